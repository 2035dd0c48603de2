//! A layer as a function of its arguments.

use numpy::{PyArray1, PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use subdeq::map::GivenWeights;
use subdeq::subdeq_engine::cpu::Buffer;
use subdeq::{
    Backend, Cpu, Device, Equilibrium, Layout, Map, Outcome, Parametrisation, SampleReport, SampleSolution,
    Scope,
};

use crate::arrays::{expect_len, read, write};
use crate::certificate::Certificate;
use crate::error::{raise, refuse};
use crate::spec::LayerSpec;
use crate::threads::{Number, device, put_back, take};

/// Numbers per sample in an array of reports: outcome, iterations, residual, error bound.
pub const REPORT: usize = 4;

/// The number of an outcome in an array of reports.
pub fn outcome_code(outcome: Outcome) -> f64 {
    match outcome {
        Outcome::Converged => 0.0,
        Outcome::IterationLimit => 1.0,
        Outcome::Stagnated => 2.0,
        Outcome::NotFinite => 3.0,
    }
}

/// Writes reports, one row each; where no bound is proved, it is infinite. Whether all converged.
pub fn write_reports(samples: impl Iterator<Item = SampleSolution>, out: &mut [f64]) -> bool {
    let mut converged = true;
    for (sample, row) in samples.zip(out.chunks_exact_mut(REPORT)) {
        let SampleSolution { iterations, residual, outcome, error_bound } = sample;
        let bound = error_bound.map_or(f64::INFINITY, |bound| bound.value);
        row.copy_from_slice(&[outcome_code(outcome), f64::from(iterations), residual, bound]);
        converged &= outcome == Outcome::Converged;
    }
    converged
}

/// Runs `work` on a layer that has these parameters, from the shelf or new.
fn with_layer<T: Number, R>(
    spec: &str,
    size: (usize, usize),
    parameters: &[&[T]],
    work: impl FnOnce(&mut Equilibrium<Cpu<T>>) -> PyResult<R>,
) -> PyResult<R>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    // Images of another size are another kind: their plans differ.
    let kind = format!("{spec}{size:?}");
    let mut layer = match take::<T>(&kind, parameters)? {
        Some(layer) => layer,
        None => LayerSpec::read(spec)?.build(device::<T>()?, size).map_err(raise)?,
    };
    layer.set_parameters(parameters).map_err(raise)?;
    let done = work(&mut layer)?;
    put_back(&kind, layer)?;
    Ok(done)
}

/// The batch of injections in an array.
fn batch_of<T: Number>(layer: &Equilibrium<Cpu<T>>, y: &[T]) -> PyResult<usize>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let len = layer.map().injection_len();
    if !y.len().is_multiple_of(len) {
        return Err(refuse(format!(
            "an injection of {} numbers is not a whole number of samples of {len} each",
            y.len()
        )));
    }
    Ok(y.len() / len)
}

fn slices<'a, T: Number>(arrays: &'a [PyReadonlyArrayDyn<'_, T>]) -> PyResult<Vec<&'a [T]>> {
    arrays.iter().map(|array| read("a parameter", array)).collect()
}

fn solve<T: Number>(
    py: Python<'_>,
    (spec, size): (&str, (usize, usize)),
    parameters: &[PyReadonlyArrayDyn<'_, T>],
    y: &PyReadonlyArrayDyn<'_, T>,
    mut z: PyReadwriteArrayDyn<'_, T>,
    mut reports: PyReadwriteArrayDyn<'_, f64>,
) -> PyResult<bool>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let (parameters, y) = (slices(parameters)?, read("the injection", y)?);
    let (z, reports) = (write("the state", &mut z)?, write("the reports", &mut reports)?);
    py.detach(|| {
        with_layer(spec, size, &parameters, |layer| {
            let batch = batch_of(layer, y)?;
            expect_len("the state", z.len(), batch * layer.map().operator().state_len())?;
            expect_len("the reports", reports.len(), batch * REPORT)?;
            if batch == 0 {
                return Ok(true);
            }
            let injection = Buffer::lend(y);
            let ended =
                Buffer::lend_mut(z, |z| layer.solve_into(batch, &injection, z)).map_err(named_inputs)?;
            Ok(write_reports(layer.with_bounds(y, z, &ended).map_err(raise)?.into_iter(), reports))
        })
    })
}

/// What the engine calls `y` and `v` is the input and the gradient of whoever calls from Python.
fn named_inputs(error: subdeq::Error) -> PyErr {
    use subdeq::subdeq_engine::EngineError::NotFinite;
    match error {
        subdeq::Error::Engine(NotFinite { what, index, value }) => refuse(format!(
            "entry {index} (counting from 0, as the array lies in memory) of {} is {value}: it must be finite",
            match what {
                "y" => "the injection",
                "v" => "the gradient that arrives at the layer",
                other => other,
            }
        )),
        other => raise(other),
    }
}

#[allow(clippy::too_many_arguments)] // the equation, where it is differentiated, and where the answers go
fn pull<T: Number>(
    py: Python<'_>,
    (spec, size): (&str, (usize, usize)),
    parameters: &[PyReadonlyArrayDyn<'_, T>],
    y: &PyReadonlyArrayDyn<'_, T>,
    z: &PyReadonlyArrayDyn<'_, T>,
    v: &PyReadonlyArrayDyn<'_, T>,
    mut gy: PyReadwriteArrayDyn<'_, T>,
    mut gradients: Vec<PyReadwriteArrayDyn<'_, T>>,
    mut reports: PyReadwriteArrayDyn<'_, f64>,
) -> PyResult<bool>
where
    Cpu<T>: Backend<Elem = T, Array = Buffer<T>>,
{
    let parameters = slices(parameters)?;
    let (y, z, v) = (read("the injection", y)?, read("the state", z)?, read("the gradient", v)?);
    let (gy, reports) = (write("the gradient", &mut gy)?, write("the reports", &mut reports)?);
    let mut gradients: Vec<&mut [T]> =
        gradients.iter_mut().map(|array| write("a gradient", array)).collect::<PyResult<_>>()?;
    py.detach(|| {
        with_layer(spec, size, &parameters, |layer| {
            let batch = batch_of(layer, y)?;
            let states = batch * layer.map().operator().state_len();
            expect_len("the state", z.len(), states)?;
            expect_len("the gradient for the state", v.len(), states)?;
            expect_len("the gradient for the injection", gy.len(), y.len())?;
            expect_len("the reports", reports.len(), batch * REPORT)?;
            if batch == 0 {
                gradients.iter_mut().for_each(|gradient| gradient.fill(T::ZERO));
                return Ok(true);
            }
            let (y, z, v) = (Buffer::lend(y), Buffer::lend(z), Buffer::lend(v));
            let pulled = Buffer::lend_mut(gy, |gy| layer.pull_back_at(batch, &y, &z, &v, gy));
            let ended = pulled.map_err(named_inputs)?;
            for (parameter, gradient) in layer.parameters().iter().zip(&mut gradients) {
                expect_len("the gradient for a parameter", gradient.len(), parameter.len)?;
                layer.device().read(&parameter.gradient, 0, gradient).map_err(|why| raise(why.into()))?;
            }
            // Where nothing was solved, nothing can have failed.
            let solved = |k: usize| {
                let none = SampleReport { iterations: 0, residual: 0.0, outcome: Outcome::Converged };
                SampleSolution::from(ended.get(k).copied().unwrap_or(none))
            };
            Ok(write_reports((0..batch).map(solved), reports))
        })
    })
}

macro_rules! layer_functions {
    ($($t:ident $solve:ident $pull:ident),*) => {$(
        /// Solves a batch of injections into `z`; `reports` gets a row per sample. Whether all converged.
        #[pyfunction]
        pub fn $solve(
            py: Python<'_>,
            spec: &str,
            size: (usize, usize),
            parameters: Vec<PyReadonlyArrayDyn<'_, $t>>,
            y: PyReadonlyArrayDyn<'_, $t>,
            z: PyReadwriteArrayDyn<'_, $t>,
            reports: PyReadwriteArrayDyn<'_, f64>,
        ) -> PyResult<bool> {
            solve(py, (spec, size), &parameters, &y, z, reports)
        }

        /// Pulls a gradient for the states `z` of the injections `y` back to the injections and the parameters. Whether all
        /// adjoint solves converged.
        #[pyfunction]
        #[allow(clippy::too_many_arguments)]
        pub fn $pull(
            py: Python<'_>,
            spec: &str,
            size: (usize, usize),
            parameters: Vec<PyReadonlyArrayDyn<'_, $t>>,
            y: PyReadonlyArrayDyn<'_, $t>,
            z: PyReadonlyArrayDyn<'_, $t>,
            v: PyReadonlyArrayDyn<'_, $t>,
            gy: PyReadwriteArrayDyn<'_, $t>,
            gradients: Vec<PyReadwriteArrayDyn<'_, $t>>,
            reports: PyReadwriteArrayDyn<'_, f64>,
        ) -> PyResult<bool> {
            pull(py, (spec, size), &parameters, &y, &z, &v, gy, gradients, reports)
        }
    )*};
}
layer_functions!(f32 solve_f32 pull_f32, f64 solve_f64 pull_f64);

/// Proven bounds of the distance of states to the solutions; infinite where none is proved.
#[pyfunction]
pub fn error_bounds<'py>(
    py: Python<'py>,
    spec: &str,
    size: (usize, usize),
    parameters: Vec<PyReadonlyArrayDyn<'_, f64>>,
    y: PyReadonlyArrayDyn<'_, f64>,
    z: PyReadonlyArrayDyn<'_, f64>,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let (parameters, y, z) = (slices(&parameters)?, read("the injection", &y)?, read("the state", &z)?);
    let bounds =
        py.detach(|| with_layer(spec, size, &parameters, |layer| layer.error_bounds(y, z).map_err(raise)))?;
    let values = bounds.iter().map(|bound| bound.map_or(f64::INFINITY, |bound| bound.value)).collect();
    Ok(PyArray1::from_vec(py, values))
}

/// What is proved about a layer: for all inputs that it is meant for, for those of `inputs` (`all` or `nonnegative`), or for one
/// injection (as the engine lays it out).
#[pyfunction]
#[pyo3(signature = (spec, size, parameters, inputs=None, injection=None))]
pub fn certify_layer(
    py: Python<'_>,
    spec: &str,
    size: (usize, usize),
    parameters: Vec<PyReadonlyArrayDyn<'_, f64>>,
    inputs: Option<&str>,
    injection: Option<PyReadonlyArrayDyn<'_, f64>>,
) -> PyResult<Certificate> {
    let parameters = slices(&parameters)?;
    let injection = injection.as_ref().map(|y| read("the injection", y)).transpose()?.map(<[f64]>::to_vec);
    py.detach(|| {
        with_layer(spec, size, &parameters, |layer| {
            let scope = match injection {
                Some(y) => Scope::Sample { y },
                None => scope(inputs, &layer.map().equation())?,
            };
            let certificate = layer.certify(scope).map_err(raise)?;
            Ok(Certificate::about(certificate, layer.operator().map_err(raise)?))
        })
    })
}

/// The inputs that a question is about.
pub fn scope(inputs: Option<&str>, map: &Map) -> PyResult<Scope> {
    match inputs {
        None => Ok(Scope::widest(map)),
        Some("all") => Ok(Scope::AllInputs),
        Some("nonnegative") => Ok(Scope::NonnegativeInputs),
        Some(other) => Err(refuse(format!("inputs must be 'all', 'nonnegative' or None, not '{other}'"))),
    }
}

/// The weight arrays that parameters stand for.
#[pyfunction]
pub fn weights<'py>(
    py: Python<'py>,
    spec: &str,
    size: (usize, usize),
    parameters: Vec<PyReadonlyArrayDyn<'_, f64>>,
) -> PyResult<Vec<Bound<'py, PyArray1<f64>>>> {
    let parameters = slices(&parameters)?;
    let made = py.detach(|| with_layer(spec, size, &parameters, |layer| layer.weights().map_err(raise)))?;
    Ok(made.into_iter().map(|array| PyArray1::from_vec(py, array)).collect())
}

/// Weights that somebody gives for a map, as the map takes them, and whether they are `|W|`. Weights of a monotone map must be
/// monotone as they stand; the `A` of tied ones may be any.
#[pyfunction]
pub fn take_weights<'py>(
    py: Python<'py>,
    spec: &str,
    size: (usize, usize),
    weights: PyReadonlyArrayDyn<'_, f64>,
) -> PyResult<(Bound<'py, PyArray1<f64>>, bool)> {
    let (layer, shape) = (LayerSpec::read(spec)?, weights.shape().to_vec());
    let layout = if layer.images { Layout::Conv } else { Layout::Dense };
    // The map of the name knows which weights it is meant for; that of given weights takes any.
    let name = layer.architecture.name();
    let map = Map::named(name, layout).map_err(refuse)?;
    let given = read("the weights", &weights)?.to_vec();
    if let Some(at) = given.iter().position(|w| !w.is_finite()) {
        let place = subdeq::map::position(&shape, at);
        return Err(refuse(format!("entry {place:?} of the weights is {}, not a finite number", given[at])));
    }
    let GivenWeights { data, absolute } = GivenWeights::new(name, &map, &shape, given).map_err(raise)?;
    if let Parametrisation::MonotoneShifted { .. } = layer.architecture.parametrisation() {
        let made = py.detach(|| with_layer(spec, size, &[&data], |layer| layer.weights().map_err(raise)))?;
        if made[0] != data {
            return Err(refuse(format!(
                "these weights are not monotone as they stand (the largest eigenvalue of (W + W')/2 is not below 1), so the \
                 solvers of `{name}` cannot be relied on"
            )));
        }
    }
    Ok((PyArray1::from_vec(py, data), absolute))
}
