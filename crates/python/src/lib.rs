//! The extension module `subdeq._subdeq`: what the Python files of the package call. Thin: it checks arrays, releases the
//! interpreter's lock and calls the crate `subdeq`.
#![forbid(unsafe_code)]

mod arrays;
mod certificate;
mod certify;
mod classifier;
mod degree;
mod error;
mod graph;
mod layer;
mod spec;
mod threads;

/// The engine of the package `subdeq`.
#[pyo3::pymodule]
mod _subdeq {
    #[pymodule_export]
    use crate::certificate::Certificate;
    #[pymodule_export]
    use crate::certify::certify;
    #[pymodule_export]
    use crate::classifier::Classifier;
    #[pymodule_export]
    use crate::degree::degree;
    #[pymodule_export]
    use crate::error::{NoCertificate, NotConverged};
    #[pymodule_export]
    use crate::graph::{
        certify_graph, normalised_adjacency, propagate_f32, propagate_f64, pull_graph_f32, pull_graph_f64,
    };
    #[pymodule_export]
    use crate::layer::{
        certify_layer, error_bounds, pull_f32, pull_f64, solve_f32, solve_f64, take_weights, weights,
    };
    #[pymodule_export]
    use crate::spec::{architecture, graph_map, layer};
    #[pymodule_export]
    use crate::threads::{forget_after_fork, num_threads, set_num_threads};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        module.add("MAPS", subdeq::map::ParametrisedMap::NAMES.to_vec())?;
        module.add("MODELS", subdeq::model::CoreSpec::names())?;
        module.add("GRAPH_MAPS", subdeq::graph::GraphModel::NAMES.to_vec())
    }
}
