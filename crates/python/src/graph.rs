//! Propagation over a graph as a function of its arguments.

use numpy::{PyArray1, PyReadonlyArrayDyn, PyReadwriteArrayDyn};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use subdeq::graph::{Csr, GraphMap};
use subdeq::subdeq_engine::cpu::Buffer;
use subdeq::subdeq_engine::cpu::graph::{Adjacency, NodeMatrix, Propagation};
use subdeq::subdeq_engine::{Extent, Measure, Solver as EngineSolver, Stopping};
use subdeq::subdeq_map::Operator;
use subdeq::subdeq_theory::certify::Certifier;
use subdeq::{Backend, Cpu, Outcome, SampleReport};

use crate::arrays::{expect_len, read, write};
use crate::certificate::Certificate;
use crate::error::{raise, refuse};
use crate::layer::{REPORT, scope, write_reports};
use crate::threads::{Number, device, put_propagator_back, take_propagator};

/// How a propagation is solved, forward or backward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Solve {
    solver: EngineSolver,
    tolerance: f64,
    max_iterations: usize,
}

impl Solve {
    fn stopping(&self) -> Stopping {
        let Self { tolerance, max_iterations, .. } = *self;
        Stopping { measure: Measure::Relative, tolerance, max_iterations, extent: Extent::PerSample }
    }
}

/// A propagation without its graph.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphSpec {
    map: GraphMap,
    forward: Solve,
    backward: Solve,
}

impl GraphSpec {
    fn read(json: &str) -> PyResult<Self> {
        serde_json::from_str(json).map_err(|why| refuse(format!("this is not a propagation: {why}")))
    }
}

/// A graph with the buffers of its solves, between two calls.
pub struct Propagator<T: Number> {
    map: GraphMap,
    channels: usize,
    /// As it was given: what a graph is recognised by.
    given: Csr<T>,
    graph: Adjacency<T>,
    propagation: Propagation<T>,
}

/// A graph in compressed rows, in arrays.
pub struct Rows<'a, T> {
    starts: &'a [i64],
    columns: &'a [i64],
    values: &'a [T],
}

impl<T: Number> Rows<'_, T> {
    fn is(&self, graph: &Csr<T>) -> bool {
        graph.values == self.values
            && graph.starts.iter().map(|&s| s as i64).eq(self.starts.iter().copied())
            && graph.columns.iter().map(|&c| i64::from(c)).eq(self.columns.iter().copied())
    }

    fn csr(&self) -> PyResult<Csr<T>> {
        let nodes = self.starts.len().saturating_sub(1);
        let whole =
            |x: &i64| usize::try_from(*x).map_err(|_| refuse(format!("{x} is no place in a graph's rows")));
        let column = |x: &i64| u32::try_from(*x).map_err(|_| refuse(format!("{x} is no node")));
        Ok(Csr {
            rows: nodes,
            cols: nodes,
            starts: self.starts.iter().map(whole).collect::<PyResult<_>>()?,
            columns: self.columns.iter().map(column).collect::<PyResult<_>>()?,
            values: self.values.to_vec(),
        })
    }
}

/// Runs `work` on a propagator over this graph, from the shelf or new.
fn with_propagator<T: Number, R>(
    map: GraphMap,
    rows: &Rows<'_, T>,
    channels: usize,
    work: impl FnOnce(&mut Propagator<T>) -> PyResult<R>,
) -> PyResult<R>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let fits = |p: &Propagator<T>| p.map == map && p.channels == channels && rows.is(&p.given);
    let mut propagator = match take_propagator(fits)? {
        Some(propagator) => propagator,
        None => {
            let engine = |why: subdeq::subdeq_engine::EngineError| raise(why.into());
            let (cpu, given) = (device::<T>()?, rows.csr()?);
            let graph = Adjacency::new(&cpu, given.clone()).map_err(engine)?;
            let propagation = Propagation::new(&cpu, &map, &graph.edges(), channels).map_err(engine)?;
            Propagator { map, channels, given, graph, propagation }
        }
    };
    let done = work(&mut propagator)?;
    put_propagator_back(propagator)?;
    Ok(done)
}

fn nodes<T: Number>(what: &str, rows: &Rows<'_, T>, numbers: &[T]) -> PyResult<(usize, usize)> {
    let nodes = rows.starts.len().saturating_sub(1);
    if nodes == 0 || !numbers.len().is_multiple_of(nodes) || numbers.is_empty() {
        return Err(refuse(format!(
            "{what} of {} numbers does not fit a graph of {nodes} nodes",
            numbers.len()
        )));
    }
    if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
        return Err(refuse(format!("entry {at} of {what} is {}: it must be finite", numbers[at])));
    }
    Ok((nodes, numbers.len() / nodes))
}

fn propagate<T: Number>(
    spec: GraphSpec,
    rows: &Rows<'_, T>,
    f: &[T],
    z: &mut [T],
    reports: &mut [f64],
) -> PyResult<bool>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let (nodes, channels) = nodes("the injection", rows, f)?;
    expect_len("the state", z.len(), f.len())?;
    expect_len("the reports", reports.len(), REPORT)?;
    with_propagator(spec.map, rows, channels, |propagator| {
        let engine = |why: subdeq::subdeq_engine::EngineError| raise(why.into());
        let injection = NodeMatrix::from_rows(nodes, channels, f).map_err(engine)?;
        let mut state = NodeMatrix::zeros(nodes, channels);
        let Propagator { graph, propagation, .. } = propagator;
        let solved = propagation.solve(
            &graph.edges(),
            &injection,
            &spec.forward.solver,
            &spec.forward.stopping(),
            &mut state,
        );
        let report = solved.map_err(engine)?;
        z.copy_from_slice(&state.to_rows());
        Ok(write_reports(std::iter::once(report.into()), reports))
    })
}

#[allow(clippy::too_many_arguments)] // the equation, where it is differentiated, and where the answer goes
fn pull<T: Number>(
    spec: GraphSpec,
    rows: &Rows<'_, T>,
    f: &[T],
    z: &[T],
    v: &[T],
    gf: &mut [T],
    reports: &mut [f64],
) -> PyResult<bool>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let (nodes, channels) = nodes("the gradient that arrives", rows, v)?;
    for (what, found) in [("the injection", f.len()), ("the state", z.len()), ("its gradient", gf.len())] {
        expect_len(what, found, v.len())?;
    }
    expect_len("the reports", reports.len(), REPORT)?;
    with_propagator(spec.map, rows, channels, |propagator| {
        let engine = |why: subdeq::subdeq_engine::EngineError| raise(why.into());
        let matrix = |rows: &[T]| NodeMatrix::from_rows(nodes, channels, rows).map_err(engine);
        let (f, z, v) = (matrix(f)?, matrix(z)?, matrix(v)?);
        let mut gradient = NodeMatrix::zeros(nodes, channels);
        let Propagator { graph, propagation, .. } = propagator;
        let edges = graph.edges();
        // One application: the norms at this state are remembered for the way back.
        propagation.apply(&edges, Some(&z), &f, None, &mut gradient).map_err(engine)?;
        let Solve { solver, .. } = spec.backward;
        let pulled =
            propagation.adjoint(&edges, &f, &z, &v, &solver, &spec.backward.stopping(), &mut gradient);
        let report: SampleReport = pulled.map_err(engine)?;
        if report.outcome == Outcome::NotFinite {
            return Err(crate::error::NotConverged::new_err(
                "the adjoint solve of the propagation stopped being finite: there is no gradient",
            ));
        }
        gf.copy_from_slice(&gradient.to_rows());
        Ok(write_reports(std::iter::once(report.into()), reports))
    })
}

macro_rules! graph_functions {
    ($($t:ident $propagate:ident $pull:ident),*) => {$(
        /// Solves `Z = F(Z; f)` over a graph in compressed rows into `z`.
        #[pyfunction]
        #[allow(clippy::too_many_arguments)]
        pub fn $propagate(
            py: Python<'_>,
            spec: &str,
            starts: PyReadonlyArrayDyn<'_, i64>,
            columns: PyReadonlyArrayDyn<'_, i64>,
            values: PyReadonlyArrayDyn<'_, $t>,
            f: PyReadonlyArrayDyn<'_, $t>,
            mut z: PyReadwriteArrayDyn<'_, $t>,
            mut reports: PyReadwriteArrayDyn<'_, f64>,
        ) -> PyResult<bool> {
            let (spec, f) = (GraphSpec::read(spec)?, read("the injection", &f)?);
            let rows = Rows {
                starts: read("the rows", &starts)?,
                columns: read("the columns", &columns)?,
                values: read("the values", &values)?,
            };
            let (z, reports) = (write("the state", &mut z)?, write("the reports", &mut reports)?);
            py.detach(|| propagate(spec, &rows, f, z, reports))
        }

        /// Pulls a gradient for the solution of a propagation back to its injection.
        #[pyfunction]
        #[allow(clippy::too_many_arguments)]
        pub fn $pull(
            py: Python<'_>,
            spec: &str,
            starts: PyReadonlyArrayDyn<'_, i64>,
            columns: PyReadonlyArrayDyn<'_, i64>,
            values: PyReadonlyArrayDyn<'_, $t>,
            f: PyReadonlyArrayDyn<'_, $t>,
            z: PyReadonlyArrayDyn<'_, $t>,
            v: PyReadonlyArrayDyn<'_, $t>,
            mut gf: PyReadwriteArrayDyn<'_, $t>,
            mut reports: PyReadwriteArrayDyn<'_, f64>,
        ) -> PyResult<bool> {
            let spec = GraphSpec::read(spec)?;
            let rows = Rows {
                starts: read("the rows", &starts)?,
                columns: read("the columns", &columns)?,
                values: read("the values", &values)?,
            };
            let (f, z, v) = (read("the injection", &f)?, read("the state", &z)?, read("the gradient", &v)?);
            let (gf, reports) = (write("the gradient", &mut gf)?, write("the reports", &mut reports)?);
            py.detach(|| pull(spec, &rows, f, z, v, gf, reports))
        }
    )*};
}
graph_functions!(f32 propagate_f32 pull_graph_f32, f64 propagate_f64 pull_graph_f64);

/// Compressed rows: where each begins, the columns, the values.
type RowArrays<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<f64>>);

/// `D^-1/2 (A + I) D^-1/2` of an undirected graph in compressed rows.
#[pyfunction]
pub fn normalised_adjacency<'py>(
    py: Python<'py>,
    nodes: usize,
    edges: Vec<(u32, u32)>,
) -> PyResult<RowArrays<'py>> {
    let Csr { starts, columns, values, .. } =
        subdeq::graph::normalised_adjacency(nodes, &edges).map_err(raise)?;
    Ok((
        PyArray1::from_iter(py, starts.into_iter().map(|s| s as i64)),
        PyArray1::from_iter(py, columns.into_iter().map(i64::from)),
        PyArray1::from_iter(py, values.into_iter().map(f64::from)),
    ))
}

/// What is proved about a propagation over a graph in compressed rows.
#[pyfunction]
#[pyo3(signature = (spec, starts, columns, values, channels, inputs=None))]
pub fn certify_graph(
    py: Python<'_>,
    spec: &str,
    starts: PyReadonlyArrayDyn<'_, i64>,
    columns: PyReadonlyArrayDyn<'_, i64>,
    values: PyReadonlyArrayDyn<'_, f64>,
    channels: usize,
    inputs: Option<&str>,
) -> PyResult<Certificate> {
    let map = GraphSpec::read(spec)?.map.equation();
    let rows = Rows {
        starts: read("the rows", &starts)?,
        columns: read("the columns", &columns)?,
        values: read("the values", &values)?,
    };
    let Csr { starts, columns, values, .. } = rows.csr()?;
    let columns = columns.into_iter().map(|c| c as usize).collect();
    let operator = Operator::graph(channels, starts, columns, values).map_err(refuse)?;
    let scope = scope(inputs, &map)?;
    let certificate = py.detach(|| Certifier::new().certify(&map, &operator, &scope)).map_err(refuse)?;
    Ok(Certificate::about(certificate, operator))
}
