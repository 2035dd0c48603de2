//! What a configuration asks for, before anything of it is made: the arrays of its model, by name and length, and memory.

use subdeq_engine::cpu::installed_memory;

use crate::map::ParametrisedMap;
use crate::model::{BlockShape, BlockSpec, ClassifierSpec, CoreSpec, block_prefix};
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
    for (norm, channels) in norms(spec) {
        arrays.extend(of_norm(&norm, channels, ["running_mean", "running_variance"]));
    }
    Ok(arrays)
}

/// Numbers that training changes: what is called the number of parameters of a model.
///
/// # Errors
/// Sizes that cannot be counted.
pub fn parameter_count(spec: &ClassifierSpec) -> Result<u64> {
    let lengths = parameters(spec).ok_or_else(|| uncountable(spec))?;
    lengths.iter().try_fold(0u64, |sum, (_, len)| sum.checked_add(*len)).ok_or_else(|| uncountable(spec))
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
    for (index, (shape, block)) in spec.blocks().iter().enumerate() {
        check_block(index, shape, block.pool.is_some() == pool.is_some())?;
        check_core(&block.core)?;
    }
    spec.lipschitz.map_or(Ok(()), |bound| bound.check(spec))?;
    let what = format!(
        "a model of {hidden} units or channels for images of {height} x {width} x {channels}, {batch} of them at a time,"
    );
    fits_memory(memory(spec, batch as u64), &what)
}

fn check_block(index: usize, shape: &BlockShape, fits: bool) -> Result<()> {
    let BlockShape { height, width, stride, hidden, pool, .. } = *shape;
    let (rows, columns) = shape.sides();
    if let Some(window) = pool
        && (window == 0 || window > rows || window > columns)
    {
        return Err(Error::invalid(format!(
            "a pooling window of {window}x{window} does not fit into {rows}x{columns} images"
        )));
    }
    let number = index + 1;
    if !fits {
        return Err(Error::invalid(format!(
            "block {number} is of another kind than the first: all have a pooling window (convolutions) or none has one (dense)"
        )));
    }
    if hidden == 0 {
        return Err(Error::invalid(format!("block {number} has no unit or channel")));
    }
    let strided = pool.is_some() && stride > 0 && height % stride == 0 && width % stride == 0;
    if stride != 1 && !strided {
        return Err(Error::invalid(format!(
            "a stride of {stride} on the images of {height}x{width} that block {number} reads: strides are for convolutions, and must \
             divide height and width"
        )));
    }
    Ok(())
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
        let copies = if name.contains("core.") { 4 + LAYER_COPIES } else { 4 };
        numbers = numbers.checked_add(len.checked_mul(copies)?)?;
    }
    let image = product(&[spec.height, spec.width, spec.channels])?;
    let answers = features(spec)?.checked_add(spec.classes as u64)?.checked_mul(2)?;
    let mut per_image = image.checked_add(answers)?;
    for (shape, block) in spec.blocks() {
        let state = state_len(&shape)?;
        let (mut states, mut kept) = (STATES, 0);
        if block.injection_norm {
            // Before and after it, for the way back.
            states += 2;
        }
        if shape.stride > 1 {
            // The whole images before they are thinned.
            states = states.checked_add(product(&[shape.stride, shape.stride])?)?;
        }
        if let CoreSpec::Equilibrium { solver, adjoint, .. } = &block.core {
            kept = solver.and_then(history).unwrap_or(0) as u64;
            if let Some(Adjoint::Unrolled { steps }) = adjoint {
                states = states.checked_add(*steps as u64)?;
            }
        }
        per_image = per_image.checked_add(state.checked_mul(states)?)?;
        numbers = numbers.checked_add(kept.checked_mul(2)?.checked_mul(state)?)?;
    }
    numbers.checked_add(per_image.checked_mul(batch)?)?.checked_mul(NUMBER)
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
fn state_len(shape: &BlockShape) -> Option<u64> {
    let (height, width) = shape.sides();
    match shape.pool {
        None => Some(shape.hidden as u64),
        Some(_) => product(&[shape.hidden, height, width]),
    }
}

/// Numbers that the last layer reads.
fn features(spec: &ClassifierSpec) -> Option<u64> {
    let (shape, _) = spec.blocks().pop()?;
    let (height, width) = shape.sides();
    match shape.pool {
        None => Some(shape.hidden as u64),
        Some(window) => product(&[shape.hidden, height.checked_div(window)?, width.checked_div(window)?]),
    }
}

/// Every parameter of a model by name and length; `None` if the lengths cannot be counted.
fn parameters(spec: &ClassifierSpec) -> Option<ArraySizes> {
    let mut arrays = ArraySizes::new();
    for (index, (shape, block)) in spec.blocks().iter().enumerate() {
        let prefix = block_prefix(index);
        let of_block = block_parameters(shape, block)?;
        arrays.extend(of_block.into_iter().map(|(name, len)| (format!("{prefix}{name}"), len)));
    }
    arrays.push(("head.weight".to_owned(), features(spec)?.checked_mul(spec.classes as u64)?));
    arrays.push(("head.bias".to_owned(), spec.classes as u64));
    for (norm, channels) in norms(spec) {
        arrays.extend(of_norm(&norm, channels, ["scale", "offset"]));
    }
    Some(arrays)
}

/// Those of a block's core and injections, without norms.
fn block_parameters(shape: &BlockShape, block: &BlockSpec) -> Option<ArraySizes> {
    let taps = if shape.pool.is_some() { 9 } else { 1 };
    let pairs = product(&[shape.hidden, shape.hidden])?;
    let square = pairs.checked_mul(taps as u64)?;
    let hidden = shape.hidden as u64;
    let mut arrays = ArraySizes::new();
    match &block.core {
        CoreSpec::Equilibrium { architecture, .. } => {
            let side = if shape.pool.is_some() { architecture.kernel() as u64 } else { 1 };
            arrays.extend(free(architecture, pairs.checked_mul(side * side)?, pairs));
        }
        CoreSpec::ExplicitTanh => {
            arrays.push(("core.weight".to_owned(), square));
            arrays.push(("core.bias".to_owned(), hidden));
        }
        CoreSpec::NeuralOde { .. } => arrays.push(("core.weight".to_owned(), square)),
    }
    let inputs = match shape.pool {
        None => product(&[shape.height, shape.width, shape.channels])?,
        Some(_) => product(&[shape.channels, taps])?,
    };
    let injection = inputs.checked_mul(hidden)?;
    for k in 0..injections(block) {
        arrays.push((format!("injection{k}.weight"), injection));
        arrays.push((format!("injection{k}.bias"), hidden));
    }
    Some(arrays)
}

/// Injections that the core's equation takes.
fn injections(block: &BlockSpec) -> usize {
    match &block.core {
        CoreSpec::Equilibrium { architecture, .. } => {
            let layout = if block.pool.is_some() { Layout::Conv } else { Layout::Dense };
            architecture.equation(layout).form().injection_count()
        }
        CoreSpec::ExplicitTanh | CoreSpec::NeuralOde { .. } => 1,
    }
}

/// The names of the batch norms, with their channels.
fn norms(spec: &ClassifierSpec) -> Vec<(String, u64)> {
    let mut norms = Vec::new();
    let mut channels = 0;
    for (index, (_, block)) in spec.blocks().iter().enumerate() {
        channels = block.hidden as u64;
        let (prefix, normed) =
            (block_prefix(index), if block.injection_norm { injections(block) } else { 0 });
        norms.extend((0..normed).map(|k| (format!("{prefix}injection{k}.norm"), channels)));
    }
    if spec.lipschitz.is_none() {
        norms.push(("norm".to_owned(), channels));
    }
    norms
}

/// Arrays of a batch norm: one number per channel.
fn of_norm(norm: &str, channels: u64, arrays: [&str; 2]) -> [(String, u64); 2] {
    arrays.map(|array| (format!("{norm}.{array}"), channels))
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
            deeper: Vec::new(),
            lipschitz: None,
        }
    }

    /// Two blocks more, the first of them strided where it is a convolution.
    fn network(name: &str, layout: Layout) -> ClassifierSpec {
        let first = ClassifierSpec { height: 8, width: 12, ..spec(name, layout) };
        let (conv, core) = (layout == Layout::Conv, first.core.clone());
        let block = |hidden, stride, injection_norm| BlockSpec {
            hidden,
            stride: if conv { stride } else { 1 },
            pool: conv.then_some(1),
            injection_norm,
            core: core.clone(),
        };
        ClassifierSpec { deeper: vec![block(5, 2, true), block(3, 1, false)], ..first }
    }

    #[test]
    fn the_sizes_are_those_of_the_model_itself() {
        let device = Arc::new(Cpu::<f32>::new(1).unwrap());
        for layout in [Layout::Dense, Layout::Conv] {
            let normed = |name| ClassifierSpec { injection_norm: true, ..spec(name, layout) };
            let three = |name| [spec(name, layout), normed(name), network(name, layout)];
            for spec in CoreSpec::names().into_iter().flat_map(three) {
                let name = spec.core.name();
                let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
                let model = Classifier::new(device.clone(), spec.clone(), &mut rng).unwrap();
                let state = model.state().unwrap();
                check_arrays(&state_arrays(&spec).unwrap(), &state)
                    .unwrap_or_else(|why| panic!("{layout:?} {name}: {why}"));
                let trained: usize =
                    model.named_parameters().unwrap().iter().map(|(_, data)| data.len()).sum();
                assert_eq!(parameter_count(&spec).unwrap(), trained as u64, "{layout:?} {name}");
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
    fn blocks_that_do_not_fit_together_are_refused() {
        let usual = network("monotone", Layout::Conv);
        assert!(check_model(&usual, 4).is_ok());
        let said = |change: fn(&mut BlockSpec)| {
            let mut spec = usual.clone();
            change(&mut spec.deeper[0]);
            check_model(&spec, 4).unwrap_err().to_string()
        };
        assert!(said(|block| block.stride = 3).contains("stride of 3 on the images of 4x6 that block 2"));
        assert!(said(|block| block.stride = 0).contains("stride of 0"));
        assert!(said(|block| block.pool = Some(0)).contains("window of 0x0"));
        assert!(said(|block| block.pool = Some(3)).contains("3x3 does not fit into 2x3 images"));
        assert!(said(|block| block.pool = None).contains("block 2 is of another kind"));
        assert!(said(|block| block.hidden = 0).contains("block 2 has no unit"));
        assert!(said(|block| block.hidden = usize::MAX).contains("memory"));
        let mut dense = network("monotone", Layout::Dense);
        dense.deeper[1].stride = 2;
        assert!(check_model(&dense, 4).unwrap_err().to_string().contains("strides are for convolutions"));
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
