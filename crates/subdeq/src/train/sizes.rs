//! What a configuration asks for, before anything of it is made: the arrays of its model, by name and length, and memory.

use subdeq_engine::cpu::installed_memory;

use crate::map::ParametrisedMap;
use crate::model::{ClassifierSpec, CoreSpec};
use crate::{Adjoint, Error, Layout, Parametrisation, Result, Solver, Stopping};

/// Bytes of a number.
const NUMBER: u64 = 4;
/// Copies that a layer keeps of its free parameters and of its weights, besides the parameters themselves.
const LAYER_COPIES: u64 = 6;
/// States that a batch needs whatever solves it: injections, their gradients, the state, its gradient, the adjoint.
const STATES: u64 = 5;
/// Most past iterates that a solver may keep.
const MAX_HISTORY: usize = 1000;
/// Most steps that gradients go back through: each keeps a state.
const MAX_UNROLLED: usize = 10_000;
/// Most steps of a solve: beyond, one that does not converge would seem to hang.
pub(crate) const MAX_STEPS: usize = 1_000_000;
/// What is believed to be there where the system does not say: it then ends what asks for more.
const UNKNOWN_MEMORY: u64 = 1 << 40;

/// Arrays by name and length.
pub type ArraySizes = Vec<(String, u64)>;

/// The arrays that decide the answers of a model of this shape, as they stand in its `model.safetensors`.
///
/// # Errors
/// Sizes that cannot be counted.
pub fn model_arrays(spec: &ClassifierSpec) -> Result<ArraySizes> {
    let mut arrays = parameters(spec).ok_or_else(|| uncountable(spec))?;
    for norm in norms(spec) {
        arrays.extend(of_norm(spec, &norm, ["running_mean", "running_variance"]));
    }
    Ok(arrays)
}

/// The same with the optimiser's moments: what [`crate::model::Classifier::state`] gives.
///
/// # Errors
/// Sizes that cannot be counted.
pub fn state_arrays(spec: &ClassifierSpec) -> Result<ArraySizes> {
    let parameters = parameters(spec).ok_or_else(|| uncountable(spec))?;
    let moments = parameters
        .into_iter()
        .flat_map(|(name, len)| ["mean", "square"].map(|moment| (format!("{name}.{moment}"), len)));
    let mut arrays = model_arrays(spec)?;
    arrays.extend(moments);
    Ok(arrays)
}

/// Refuses arrays that are missing, of another length than expected, or not expected at all, by name.
///
/// # Errors
/// The first of them.
pub fn check_arrays(expected: &[(String, u64)], found: &[(String, Vec<f32>)]) -> Result<()> {
    for (name, len) in expected {
        let Some((_, numbers)) = found.iter().find(|(given, _)| given == name) else {
            return Err(Error::invalid(format!("the array `{name}` is missing")));
        };
        if numbers.len() as u64 != *len {
            return Err(Error::invalid(format!(
                "the array `{name}` holds {} numbers, its configuration says {len}",
                numbers.len()
            )));
        }
    }
    match found.iter().find(|(given, _)| expected.iter().all(|(name, _)| name != given)) {
        Some((name, _)) => {
            Err(Error::invalid(format!("the array `{name}` does not belong to its configuration")))
        }
        None => Ok(()),
    }
}

/// Refuses a model that cannot be made, or does not fit into the memory together with batches of so many images.
///
/// # Errors
/// A sentence with the sizes.
pub fn check_model(spec: &ClassifierSpec, batch: usize) -> Result<()> {
    let ClassifierSpec { height, width, channels, hidden, pool, classes, .. } = *spec;
    if [height, width, channels, hidden].contains(&0) || classes < 2 {
        return Err(Error::invalid(format!(
            "a model of {hidden} units for images of {height} x {width} x {channels} in {classes} classes: at least one unit, \
             one pixel and two classes are needed"
        )));
    }
    if let Some(window) = pool
        && (window == 0 || window > height || window > width)
    {
        return Err(Error::invalid(format!(
            "a pooling window of {window}x{window} does not fit into {height}x{width} images"
        )));
    }
    check_core(&spec.core)?;
    spec.lipschitz.map_or(Ok(()), |bound| bound.check(spec))?;
    let what = format!(
        "a model of {hidden} units or channels for images of {height} x {width} x {channels}, {batch} of them at a time,"
    );
    fits_memory(memory(spec, batch as u64), &what)
}

fn check_core(core: &CoreSpec) -> Result<()> {
    let CoreSpec::Equilibrium { solver, stopping, adjoint, .. } = core else { return Ok(()) };
    solver.map_or(Ok(()), check_solver)?;
    check_stopping(*stopping)?;
    match adjoint {
        Some(Adjoint::Implicit { solver, stopping }) => {
            check_solver(*solver)?;
            check_stopping(*stopping)
        }
        Some(Adjoint::Phantom { steps } | Adjoint::Unrolled { steps }) if *steps > MAX_UNROLLED => {
            Err(Error::invalid(format!(
                "gradients through {steps} steps: take at most {MAX_UNROLLED}, or the implicit ones"
            )))
        }
        Some(Adjoint::Phantom { .. } | Adjoint::Unrolled { .. }) => Ok(()),
        None => Ok(()),
    }
}

fn check_solver(solver: Solver) -> Result<()> {
    match history(solver) {
        Some(kept) if !(1..=MAX_HISTORY).contains(&kept) => Err(Error::invalid(format!(
            "a solver that keeps {kept} past iterates: keep between 1 and {MAX_HISTORY}, five are usual"
        ))),
        _ => Ok(()),
    }
}

fn check_stopping(stopping: Stopping) -> Result<()> {
    check_steps(stopping.max_iterations)
}

/// Refuses solves that nobody would see the end of.
pub(crate) fn check_steps(steps: usize) -> Result<()> {
    if steps > MAX_STEPS {
        return Err(Error::invalid(format!("a solve of up to {steps} steps: allow at most {MAX_STEPS}")));
    }
    Ok(())
}

/// Past iterates that a solver keeps, if it is one that does.
fn history(solver: Solver) -> Option<usize> {
    match solver {
        Solver::Anderson(method) => Some(method.window),
        Solver::Broyden(method) => Some(method.memory),
        Solver::Picard | Solver::PeacemanRachford(_) | Solver::ForwardBackward(_) => None,
    }
}

/// Refuses what needs more memory than the machine has; `None` stands for more bytes than can be counted.
///
/// # Errors
/// A sentence with both amounts.
pub fn fits_memory(bytes: Option<u64>, what: &str) -> Result<()> {
    let there = installed_memory().unwrap_or(UNKNOWN_MEMORY);
    let gigabytes = |bytes: u64| format!("{:.1} GB", bytes as f64 * 1e-9);
    match bytes {
        Some(bytes) if bytes <= there => Ok(()),
        Some(bytes) => Err(Error::invalid(format!(
            "{what} needs at least {} of memory and this machine has {}: choose something smaller",
            gigabytes(bytes),
            gigabytes(there)
        ))),
        None => Err(Error::invalid(format!(
            "{what} needs more memory than can be counted and this machine has {}: choose something smaller",
            gigabytes(there)
        ))),
    }
}

/// Bytes that a training with such batches holds at the very least.
fn memory(spec: &ClassifierSpec, batch: u64) -> Option<u64> {
    let mut numbers = 0u64;
    for (name, len) in parameters(spec)? {
        // Value, gradient and two moments; a layer keeps copies.
        let copies = if name.starts_with("core.") { 4 + LAYER_COPIES } else { 4 };
        numbers = numbers.checked_add(len.checked_mul(copies)?)?;
    }
    let state = state_len(spec)?;
    let (mut states, mut kept) = (STATES, 0);
    if spec.injection_norm {
        // Before and after it, for the way back.
        states += 2;
    }
    if let CoreSpec::Equilibrium { solver, adjoint, .. } = &spec.core {
        kept = solver.and_then(history).unwrap_or(0) as u64;
        if let Some(Adjoint::Unrolled { steps }) = adjoint {
            states = states.checked_add(*steps as u64)?;
        }
    }
    let image = product(&[spec.height, spec.width, spec.channels])?;
    let answers = features(spec)?.checked_add(spec.classes as u64)?.checked_mul(2)?;
    let per_image = state.checked_mul(states)?.checked_add(image)?.checked_add(answers)?;
    let solver = kept.checked_mul(2)?.checked_mul(state)?;
    numbers.checked_add(per_image.checked_mul(batch)?)?.checked_add(solver)?.checked_mul(NUMBER)
}

fn uncountable(spec: &ClassifierSpec) -> Error {
    Error::invalid(format!(
        "a model of {} units or channels for images of {} x {} x {} has more numbers than can be counted",
        spec.hidden, spec.height, spec.width, spec.channels
    ))
}

fn product(sizes: &[usize]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(size as u64))
}

/// Numbers in the state of one image.
fn state_len(spec: &ClassifierSpec) -> Option<u64> {
    match spec.pool {
        None => Some(spec.hidden as u64),
        Some(_) => product(&[spec.hidden, spec.height, spec.width]),
    }
}

/// Numbers that the last layer reads.
fn features(spec: &ClassifierSpec) -> Option<u64> {
    match spec.pool {
        None => Some(spec.hidden as u64),
        Some(window) => {
            product(&[spec.hidden, spec.height.checked_div(window)?, spec.width.checked_div(window)?])
        }
    }
}

/// Every parameter of a model by name and length; `None` if the lengths cannot be counted.
fn parameters(spec: &ClassifierSpec) -> Option<ArraySizes> {
    let taps = if spec.pool.is_some() { 9 } else { 1 };
    let square = product(&[spec.hidden, spec.hidden, taps])?;
    let hidden = spec.hidden as u64;
    let mut arrays = ArraySizes::new();
    match &spec.core {
        CoreSpec::Equilibrium { architecture, .. } => {
            arrays.extend(free(architecture, square, product(&[spec.hidden, spec.hidden])?));
        }
        CoreSpec::ExplicitTanh => {
            arrays.push(("core.weight".to_owned(), square));
            arrays.push(("core.bias".to_owned(), hidden));
        }
        CoreSpec::NeuralOde { .. } => arrays.push(("core.weight".to_owned(), square)),
    }
    let inputs = match spec.pool {
        None => product(&[spec.height, spec.width, spec.channels])?,
        Some(_) => product(&[spec.channels, taps])?,
    };
    let injection = inputs.checked_mul(hidden)?;
    for k in 0..injections(spec) {
        arrays.push((format!("injection{k}.weight"), injection));
        arrays.push((format!("injection{k}.bias"), hidden));
    }
    arrays.push(("head.weight".to_owned(), features(spec)?.checked_mul(spec.classes as u64)?));
    arrays.push(("head.bias".to_owned(), spec.classes as u64));
    for norm in norms(spec) {
        arrays.extend(of_norm(spec, &norm, ["scale", "offset"]));
    }
    Some(arrays)
}

/// Injections that the core's equation takes.
fn injections(spec: &ClassifierSpec) -> usize {
    match &spec.core {
        CoreSpec::Equilibrium { architecture, .. } => {
            let layout = if spec.pool.is_some() { Layout::Conv } else { Layout::Dense };
            architecture.equation(layout).form().injection_count()
        }
        CoreSpec::ExplicitTanh | CoreSpec::NeuralOde { .. } => 1,
    }
}

/// The names of the batch norms.
fn norms(spec: &ClassifierSpec) -> Vec<String> {
    let normed = if spec.injection_norm { injections(spec) } else { 0 };
    let last = spec.lipschitz.is_none().then(|| "norm".to_owned());
    (0..normed).map(|k| format!("injection{k}.norm")).chain(last).collect()
}

/// Arrays of a batch norm: one number per channel.
fn of_norm(spec: &ClassifierSpec, norm: &str, arrays: [&str; 2]) -> [(String, u64); 2] {
    arrays.map(|array| (format!("{norm}.{array}"), spec.hidden as u64))
}

/// The free parameters of a layer.
fn free(architecture: &ParametrisedMap, square: u64, pairs: u64) -> ArraySizes {
    let of_core = |arrays: &[(&str, u64)]| {
        arrays.iter().map(|&(name, len)| (format!("core.{name}"), len)).collect::<ArraySizes>()
    };
    match architecture.parametrisation() {
        Parametrisation::SplitGains => of_core(&[("gain", pairs), ("weight", square)]),
        Parametrisation::MonotoneProduct { .. } => of_core(&[("a", square), ("b", square)]),
        Parametrisation::MonotoneTied { .. } => of_core(&[("a", square), ("b", 1)]),
        _ => of_core(&[("weight", square)]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Classifier;
    use crate::{Cpu, Init};
    use rand::SeedableRng;
    use std::sync::Arc;

    fn spec(name: &str, layout: Layout) -> ClassifierSpec {
        ClassifierSpec {
            height: 5,
            width: 7,
            channels: 3,
            hidden: 4,
            pool: (layout == Layout::Conv).then_some(2),
            injection_norm: false,
            classes: 6,
            core: CoreSpec::named(name, layout).unwrap(),
            init: Init::Release,
            lipschitz: None,
        }
    }

    #[test]
    fn the_sizes_are_those_of_the_model_itself() {
        let device = Arc::new(Cpu::<f32>::new(1).unwrap());
        for layout in [Layout::Dense, Layout::Conv] {
            let normed = |name| ClassifierSpec { injection_norm: true, ..spec(name, layout) };
            for spec in CoreSpec::names().into_iter().flat_map(|name| [spec(name, layout), normed(name)]) {
                let name = spec.core.name();
                let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
                let model = Classifier::new(device.clone(), spec.clone(), &mut rng).unwrap();
                let state = model.state().unwrap();
                check_arrays(&state_arrays(&spec).unwrap(), &state)
                    .unwrap_or_else(|why| panic!("{layout:?} {name}: {why}"));
            }
        }
    }

    #[test]
    fn arrays_that_do_not_belong_are_named() {
        let expected = [("a".to_owned(), 2), ("b".to_owned(), 1)];
        let said = |found: &[(&str, usize)]| {
            let found: Vec<_> = found.iter().map(|&(name, len)| (name.to_owned(), vec![0.0; len])).collect();
            check_arrays(&expected, &found).err().map_or(String::new(), |why| why.to_string())
        };
        assert_eq!(said(&[("b", 1), ("a", 2)]), "");
        assert_eq!(said(&[("a", 2)]), "the array `b` is missing");
        assert!(said(&[("a", 3), ("b", 1)]).contains("`a` holds 3 numbers, its configuration says 2"));
        assert!(said(&[("a", 2), ("b", 1), ("c", 0)]).contains("`c` does not belong"));
    }

    #[test]
    fn absurd_sizes_are_refused_before_anything_is_made() {
        for layout in [Layout::Dense, Layout::Conv] {
            let usual = spec("monotone", layout);
            assert!(check_model(&usual, 256).is_ok());
            for huge in [4_000_000_000, usize::MAX / 2, usize::MAX] {
                for absurd in [
                    ClassifierSpec { hidden: huge, ..usual.clone() },
                    ClassifierSpec { height: huge, ..usual.clone() },
                    ClassifierSpec {
                        width: huge,
                        height: huge,
                        pool: usual.pool.map(|_| huge),
                        ..usual.clone()
                    },
                    ClassifierSpec { channels: huge, ..usual.clone() },
                    ClassifierSpec { classes: huge, ..usual.clone() },
                ] {
                    let why = check_model(&absurd, 256).unwrap_err().to_string();
                    assert!(why.contains("memory") && why.contains("GB"), "{why}");
                }
            }
            assert!(check_model(&usual, usize::MAX).is_err());
        }
    }
}
