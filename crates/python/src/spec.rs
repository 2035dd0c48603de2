//! What a layer is, as a line of JSON: it goes through PyTorch's operators and into files as a string.

use std::sync::Arc;

use pyo3::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use subdeq::graph::GraphModel;
use subdeq::map::ParametrisedMap;
use subdeq::subdeq_engine::free_parameters;
use subdeq::subdeq_map::Overrides;
use subdeq::{
    Adjoint, Backend, Equilibrium, Layout, Map, Padding, Parametrisation, Result, Rule, Solver, Stopping,
};

use crate::error::{raise, refuse};

/// A layer without its parameters and, for images, without their size.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerSpec {
    pub architecture: ParametrisedMap,
    /// Units, or channels of images.
    pub units: usize,
    pub images: bool,
    pub padding: Option<Padding>,
    pub solver: Option<Solver>,
    pub stopping: Stopping,
    pub adjoint: Option<Adjoint>,
    pub start: Option<f64>,
}

/// An image size for checks that need some.
const SOME_SIZE: (usize, usize) = (8, 8);

impl LayerSpec {
    pub fn read(json: &str) -> PyResult<Self> {
        serde_json::from_str(json).map_err(|why| refuse(format!("this is not a layer: {why}")))
    }

    /// The layer on a device; its parameters are to be set.
    pub fn build<D: Backend>(
        &self,
        device: Arc<D>,
        (height, width): (usize, usize),
    ) -> Result<Equilibrium<D>> {
        let mut builder = if self.images {
            Equilibrium::conv(self.units, height, width)
        } else {
            Equilibrium::dense(self.units)
        };
        builder = builder.map(self.architecture.clone()).stopping(self.stopping);
        if let Some(padding) = self.padding {
            builder = builder.padding(padding);
        }
        if let Some(solver) = self.solver {
            builder = builder.solver(solver);
        }
        if let Some(adjoint) = self.adjoint {
            builder = builder.adjoint(adjoint);
        }
        if let Some(start) = self.start {
            builder = builder.start(start);
        }
        builder.build_on(device, &mut ChaCha8Rng::seed_from_u64(0))
    }

    fn check_tolerances(&self) -> PyResult<()> {
        let adjoint = match self.adjoint {
            Some(Adjoint::Implicit { stopping, .. }) => Some(stopping),
            _ => None,
        };
        for stopping in [Some(self.stopping), adjoint].into_iter().flatten() {
            let (Rule::Relative(tolerance) | Rule::Absolute(tolerance) | Rule::Certified(tolerance)) =
                stopping.rule;
            if !(tolerance >= 0.0 && tolerance.is_finite()) || stopping.max_iterations == 0 {
                return Err(refuse(format!(
                    "a tolerance of {tolerance} with at most {} iterations: a number from 0 and at least one iteration \
                     are needed",
                    stopping.max_iterations
                )));
            }
        }
        Ok(())
    }
}

fn layout(images: bool) -> Layout {
    if images { Layout::Conv } else { Layout::Dense }
}

/// The map of a name with its constants replaced where others are given, as JSON. With `given`, its one parameter is the
/// weights themselves.
#[pyfunction]
#[pyo3(signature = (name, images, given, activation=None, shift=None, power=None, norm=None, margin=None, kernel=None))]
#[allow(clippy::too_many_arguments)] // one per keyword of the Python function
pub fn architecture(
    name: &str,
    images: bool,
    given: bool,
    activation: Option<&str>,
    shift: Option<f64>,
    power: Option<f64>,
    norm: Option<&str>,
    margin: Option<f64>,
    kernel: Option<usize>,
) -> PyResult<String> {
    let layout = layout(images);
    let overrides = overrides(activation, shift, power, norm, None)?;
    let map = Map::named(name, layout).and_then(|map| map.with(&overrides, layout)).map_err(refuse)?;
    let mut architecture = if given {
        ParametrisedMap::of_given_weights(name, map, layout).map_err(raise)?
    } else {
        let usual = ParametrisedMap::named(name, layout).map_err(raise)?;
        ParametrisedMap::new(name, map, usual.parametrisation()).map_err(raise)?
    };
    if let Some(margin) = margin {
        let parametrisation = architecture.parametrisation().with_margin(margin);
        let none = || refuse(format!("`{name}` has no margin: only the monotone maps have one"));
        let parametrisation = parametrisation.ok_or_else(none)?;
        architecture = architecture.parametrised(parametrisation).map_err(raise)?;
    }
    if let Some(side) = kernel {
        architecture = architecture.with_kernel(side).map_err(raise)?;
    }
    serde_json::to_string(&architecture).map_err(refuse)
}

fn overrides(
    activation: Option<&str>,
    shift: Option<f64>,
    power: Option<f64>,
    norm: Option<&str>,
    teleport: Option<f64>,
) -> PyResult<Overrides> {
    Ok(Overrides {
        activation: activation.map(str::parse).transpose().map_err(refuse)?,
        shift,
        power,
        norm: norm.map(str::parse).transpose().map_err(refuse)?,
        teleport,
    })
}

/// What Python wants to know of a layer: the parameters with their shapes, the equation, the number of injections, whether the
/// map is monotone.
type About = (Vec<(String, Vec<usize>)>, String, usize, bool);

/// Checks a layer and says what Python needs to know of it.
#[pyfunction]
pub fn layer(json: &str) -> PyResult<About> {
    let spec = LayerSpec::read(json)?;
    spec.check_tolerances()?;
    if spec.units == 0 {
        return Err(refuse("a layer of 0 units has no state"));
    }
    // What contradicts itself does so at any size: found out with few units.
    let small = LayerSpec { units: spec.units.min(4), ..spec.clone() };
    let built = small.build(crate::threads::device::<f32>()?, SOME_SIZE).map_err(raise)?;
    let map = spec.architecture.map(sized(&spec, built.map())).map_err(raise)?;
    let parametrisation = spec.architecture.parametrisation();
    let tied = matches!(parametrisation, Parametrisation::MonotoneTied { .. });
    let shape = |name: &str, len: usize| {
        if tied && name == "b" {
            return vec![1];
        }
        let taps = len / (spec.units * spec.units);
        let side = (taps as f64).sqrt().round() as usize;
        let mut shape = vec![spec.units, spec.units];
        if spec.images && name != "gain" {
            shape.extend([side, side]);
        }
        shape
    };
    let parameters = free_parameters(parametrisation, &map);
    let parameters = parameters.into_iter().map(|(name, len)| (name.to_owned(), shape(name, len))).collect();
    let injections = map.equation().form().injection_count();
    Ok((parameters, map.equation().to_string(), injections, spec.architecture.is_monotone()))
}

/// The operator of a small layer with the units of the real one.
fn sized(spec: &LayerSpec, small: &subdeq::subdeq_engine::ShapedMap) -> subdeq::Operator {
    match small.operator() {
        subdeq::Operator::Dense { .. } => subdeq::Operator::Dense { n: spec.units },
        subdeq::Operator::Conv { height, width, padding, kernel, .. } => {
            subdeq::Operator::Conv { channels: spec.units, height, width, padding, kernel }
        }
    }
}

/// The propagation of a name with its constants replaced where others are given, as JSON, and its equation.
#[pyfunction]
#[pyo3(signature = (name, teleport, activation=None, shift=None))]
pub fn graph_map(
    name: &str,
    teleport: f64,
    activation: Option<&str>,
    shift: Option<f64>,
) -> PyResult<(String, String)> {
    let model = GraphModel::paper(name, teleport).map_err(raise)?;
    let overrides = overrides(activation, shift, None, None, None)?;
    let equation = model.map.equation().with(&overrides, Layout::Graph).map_err(refuse)?;
    let map = subdeq::graph::GraphMap::new(equation).map_err(|why| raise(why.into()))?;
    Ok((serde_json::to_string(&map).map_err(refuse)?, equation.to_string()))
}
