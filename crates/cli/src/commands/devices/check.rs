//! `subdeq devices --check`: every map by every solver, every gradient and every model's training on a device, against the
//! same in `f64` on the CPU.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::map::ParametrisedMap;
use subdeq::model::{BlockSpec, Classifier, ClassifierSpec, CoreSpec};
use subdeq::{
    Adam, Adjoint, Anderson, Backend, Broyden, Cpu, Equilibrium, EquilibriumBuilder, ForwardBackward, Init,
    Layout, PeacemanRachford, Picard, Real, Rule, Solver, Stopping,
};

/// Errors, relative to the 2-norm of what is right, that a device may make.
const STATES: f64 = 1e-5;
const GRADIENTS: f64 = 1e-4;
/// The loss after some steps of training: each step multiplies what the ones before did.
const LOSSES: f64 = 1e-3;
/// Residuals that the solves reach: on the device, about what `f32` can show, and in `f64`.
const TOLERANCE: f64 = 2e-7;
const REFERENCE: f64 = 1e-11;
/// Forward-backward splitting needs about this many with a margin of 0.02.
const MAX_ITERATIONS: usize = 20_000;
/// Steps of training that are compared.
const STEPS: usize = 3;
const SEED: u64 = 1;
/// The same for maps that divide a column by its largest entry, which have no derivative where two are equally large: with this one the two
/// largest of every column are at least a millionth apart (a test looks), more than what `f32` may be wrong by.
const SEED_WITHOUT_TIES: u64 = 266;

/// One line of the table.
pub struct Line {
    /// What was computed: a map on a shape, or a model's training.
    pub what: String,
    /// By which solver, if by one.
    pub solver: &'static str,
    /// Relative errors by name, or why there are none.
    pub errors: Result<Vec<(&'static str, f64)>, String>,
}

impl Line {
    /// Whether every error is small.
    pub fn holds(&self) -> bool {
        let allowed = |name| match name {
            "states" => STATES,
            "losses" => LOSSES,
            _ => GRADIENTS,
        };
        // A NaN is not small.
        self.errors.as_ref().is_ok_and(|errors| errors.iter().all(|&(name, error)| error <= allowed(name)))
    }
}

/// States of a layer: those of the paper's released models, for which some devices have kernels of their own, and small odd
/// ones.
#[derive(Clone, Copy)]
enum Shape {
    Dense(usize),
    Conv(usize, usize, usize),
}

const SHAPES: [Shape; 5] = [
    Shape::Dense(5),
    Shape::Dense(87),
    Shape::Conv(3, 5, 7),
    Shape::Conv(32, 28, 28),
    Shape::Conv(48, 32, 32),
];
/// Samples of a batch.
const BATCH: usize = 3;

impl Shape {
    fn layout(self) -> Layout {
        match self {
            Self::Dense(_) => Layout::Dense,
            Self::Conv(..) => Layout::Conv,
        }
    }

    fn builder(self) -> EquilibriumBuilder {
        match self {
            Self::Dense(n) => Equilibrium::dense(n),
            Self::Conv(channels, height, width) => Equilibrium::conv(channels, height, width),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Dense(n) => format!("dense {n}"),
            Self::Conv(channels, height, width) => format!("conv {channels}x{height}x{width}"),
        }
    }
}

/// The solvers that a map allows, by name, the one to rely on first.
fn solvers(architecture: &ParametrisedMap) -> Vec<(&'static str, Solver)> {
    if architecture.is_monotone() {
        vec![
            ("peaceman-rachford", PeacemanRachford::default().into()),
            ("forward-backward", ForwardBackward::default().into()),
        ]
    } else {
        vec![
            ("anderson", Anderson::default().into()),
            ("picard", Picard.into()),
            ("broyden", Broyden::default().into()),
        ]
    }
}

/// Checks everything, one line at a time.
pub fn check<D: Backend<Elem = f32>>(device: &Arc<D>, cpu: &Arc<Cpu<f64>>, mut tell: impl FnMut(Line)) {
    for shape in SHAPES {
        for name in ParametrisedMap::NAMES {
            map(device, cpu, shape, name, &mut tell);
        }
    }
    for layout in [Layout::Dense, Layout::Conv] {
        for name in CoreSpec::names() {
            let what = format!("training {name}, {}", if layout == Layout::Dense { "dense" } else { "conv" });
            let errors = training(device, cpu, layout, name).map_err(|why| why.to_string());
            tell(Line { what, solver: "", errors });
        }
    }
    for name in ["monotone-tied", "split-sign"] {
        let errors = network_training(device, cpu, name).map_err(|why| why.to_string());
        tell(Line { what: format!("training {name}, a network"), solver: "", errors });
    }
}

/// Fixed points and gradients of a map.
fn map<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    cpu: &Arc<Cpu<f64>>,
    shape: Shape,
    name: &str,
    tell: &mut impl FnMut(Line),
) {
    let what = format!("{name}, {}", shape.words());
    let line = |solver, errors: Result<_, subdeq::Error>| Line {
        what: what.clone(),
        solver,
        errors: errors.map_err(|why| why.to_string()),
    };
    let found = ParametrisedMap::named(name, shape.layout()).and_then(|architecture| {
        let (problem, solvers) = (Problem::new(device, shape, &architecture)?, solvers(&architecture));
        Ok((problem.answers(cpu, solvers[0].1, REFERENCE)?, problem, solvers))
    });
    let (right, problem, solvers) = match found {
        Ok(found) => found,
        Err(why) => return tell(line("", Err(why))),
    };
    for (solver_name, solver) in solvers {
        let errors = match problem.answers(device, solver, TOLERANCE) {
            Ok(answers) => Ok(answers.errors(&right)),
            // What the CPU refuses too is as it should be.
            Err(why) => problem.answers(cpu, solver, TOLERANCE).map_or(Ok(Vec::new()), |_| Err(why)),
        };
        tell(line(solver_name, errors));
    }
}

/// A layer with its parameters, a batch of injections and gradients for the states, as numbers that `f32` has.
struct Problem {
    builder: EquilibriumBuilder,
    parameters: Vec<Vec<f64>>,
    y: Vec<f64>,
    v: Vec<f64>,
}

impl Problem {
    fn new<D: Backend<Elem = f32>>(
        device: &Arc<D>,
        shape: Shape,
        architecture: &ParametrisedMap,
    ) -> subdeq::Result<Self> {
        let divides = architecture.equation(shape.layout()).normalisation().is_some();
        let mut rng = ChaCha8Rng::seed_from_u64(if divides { SEED_WITHOUT_TIES } else { SEED });
        let builder = shape.builder().map(architecture.clone()).init(Init::Release);
        let layer = builder.clone().build_on(Arc::clone(device), &mut rng)?;
        let units = layer.map().operator().units();
        let mut parameters = Vec::new();
        for parameter in layer.parameters() {
            let mut value = vec![0.0f32; parameter.len];
            device.read(&parameter.value, 0, &mut value)?;
            // Row sums of about 1: activations that are saturated have no gradient to compare.
            let scale = 2.0 / (parameter.len as f32 / units as f32).sqrt();
            parameters.push(value.into_iter().map(|w| f64::from(scale * w)).collect());
        }
        let mut uniform = |len: usize, low: f32| -> Vec<f64> {
            (0..len).map(|_| f64::from(rng.random_range(low..1.0f32))).collect()
        };
        let y = uniform(BATCH * layer.map().injection_len(), 0.0);
        let v = uniform(BATCH * layer.map().operator().state_len(), -1.0);
        Ok(Self { builder, parameters, y, v })
    }

    /// What a device makes of it.
    fn answers<D: Backend>(
        &self,
        device: &Arc<D>,
        solver: Solver,
        tolerance: f64,
    ) -> subdeq::Result<Answers> {
        let stopping = Stopping::relative(tolerance).max_iterations(MAX_ITERATIONS);
        let adjoint = Adjoint::Implicit { solver, stopping };
        let builder = self.builder.clone().stopping(stopping).solver(solver).adjoint(adjoint);
        let mut layer = builder.build_on(Arc::clone(device), &mut ChaCha8Rng::seed_from_u64(SEED))?;
        for (index, parameter) in self.parameters.iter().enumerate() {
            layer.set_parameter(index, &numbers::<D::Elem>(parameter))?;
        }
        let (y, v) = (numbers::<D::Elem>(&self.y), numbers::<D::Elem>(&self.v));
        let states = layer.solve(&y)?.z;
        let (injections, weights) = layer.gradients(&y, &v)?;
        Ok(Answers {
            states: in_f64(&states),
            injections: in_f64(&injections),
            weights: weights.iter().flat_map(|w| in_f64(w)).collect(),
        })
    }
}

/// What a device computed.
struct Answers {
    states: Vec<f64>,
    injections: Vec<f64>,
    weights: Vec<f64>,
}

impl Answers {
    fn errors(&self, right: &Self) -> Vec<(&'static str, f64)> {
        vec![
            ("states", relative(&self.states, &right.states)),
            ("gradient of inputs", relative(&self.injections, &right.injections)),
            ("gradient of weights", relative(&self.weights, &right.weights)),
        ]
    }
}

fn numbers<T: Real>(x: &[f64]) -> Vec<T> {
    x.iter().map(|&x| T::from_f64(x)).collect()
}

fn in_f64<T: Real>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// `||found - right|| / ||right||`; what has no right answer of that length has no error either.
fn relative(found: &[f64], right: &[f64]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let size = norm(&mut right.iter().copied());
    if found.len() != right.len() || size == 0.0 {
        return f64::NAN;
    }
    norm(&mut found.iter().zip(right).map(|(found, right)| found - right)) / size
}

/// Solved to a hundredth of what trainings ask for: devices may end a solve one iteration apart, and what that leaves is not what is
/// compared.
fn sharper(mut core: CoreSpec) -> CoreSpec {
    if let CoreSpec::Equilibrium { stopping, adjoint, .. } = &mut core {
        let sharp = |stopping: &mut Stopping| {
            (stopping.rule, stopping.max_iterations) = (Rule::Relative(1e-5), MAX_ITERATIONS);
        };
        sharp(stopping);
        if let Some(Adjoint::Implicit { stopping, .. }) = adjoint {
            sharp(stopping);
        }
    }
    core
}

/// The losses of some steps of training, and of an evaluation after them.
fn training<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    cpu: &Arc<Cpu<f64>>,
    layout: Layout,
    name: &str,
) -> subdeq::Result<Vec<(&'static str, f64)>> {
    let core = sharper(CoreSpec::named(name, layout)?);
    let spec = ClassifierSpec {
        height: 12,
        width: 12,
        channels: 3,
        hidden: 16,
        pool: (layout == Layout::Conv).then_some(4),
        injection_norm: false,
        classes: 7,
        core,
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    };
    compared_losses(device, cpu, spec)
}

/// The same of a network: a block that is strided and one that is pooled, with norms, behind the first.
fn network_training<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    cpu: &Arc<Cpu<f64>>,
    name: &str,
) -> subdeq::Result<Vec<(&'static str, f64)>> {
    let core = sharper(CoreSpec::named(name, Layout::Conv)?);
    let block = |hidden, stride, pool| BlockSpec {
        hidden,
        stride,
        pool: Some(pool),
        injection_norm: true,
        core: core.clone(),
    };
    let spec = ClassifierSpec {
        height: 16,
        width: 16,
        channels: 3,
        hidden: 8,
        pool: Some(1),
        injection_norm: true,
        classes: 7,
        core: core.clone(),
        init: Init::Release,
        deeper: vec![block(16, 2, 2), block(12, 1, 4)],
        lipschitz: None,
    };
    compared_losses(device, cpu, spec)
}

fn compared_losses<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    cpu: &Arc<Cpu<f64>>,
    spec: ClassifierSpec,
) -> subdeq::Result<Vec<(&'static str, f64)>> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut model = Classifier::new(Arc::clone(device), spec.clone(), &mut rng)?;
    let mut right = Classifier::new(Arc::clone(cpu), spec, &mut rng)?;
    let state: Vec<_> = model.state()?.into_iter().map(|(name, array)| (name, in_f64(&array))).collect();
    right.set_state(&state)?;
    let images = 20;
    let x: Vec<f64> =
        (0..images * model.input_len()).map(|_| f64::from(rng.random_range(-1.0..1.0f32))).collect();
    let labels: Vec<u32> = (0..images).map(|_| rng.random_range(0..7)).collect();
    let (found, expected) = (losses(&mut model, &x, &labels)?, losses(&mut right, &x, &labels)?);
    Ok(vec![("losses", relative(&found, &expected))])
}

fn losses<D: Backend>(model: &mut Classifier<D>, x: &[f64], labels: &[u32]) -> subdeq::Result<Vec<f64>> {
    let x = numbers::<D::Elem>(x);
    let mut losses = Vec::new();
    for step in 1..=STEPS as u64 {
        losses.push(model.train_step(&x, labels, &Adam::new(1e-3, 1e-5, step))?.loss);
    }
    losses.push(model.evaluate(&x, labels)?.loss);
    Ok(losses)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On small shapes: the CPU in `f32` holds, and what another problem's answers are does not.
    #[test]
    fn the_cpu_holds_and_wrong_answers_do_not() {
        let (cpu, reference) = (Arc::new(Cpu::<f32>::new(1).unwrap()), Arc::new(Cpu::<f64>::new(1).unwrap()));
        let mut lines = Vec::new();
        for shape in [Shape::Dense(5), Shape::Conv(3, 5, 7)] {
            for name in ParametrisedMap::NAMES {
                map(&cpu, &reference, shape, name, &mut |line: Line| lines.push(line));
            }
        }
        assert_eq!(lines.len(), 2 * (12 * 3 + 6 * 2));
        for line in &lines {
            assert!(line.holds(), "{} {} {:?}", line.what, line.solver, line.errors);
        }
        for name in ["node-tanh", "explicit-tanh", "monotone"] {
            let errors = training(&cpu, &reference, Layout::Conv, name).unwrap();
            assert!(Line { what: name.into(), solver: "", errors: Ok(errors) }.holds(), "{name}");
        }
        let errors = network_training(&cpu, &reference, "monotone-tied").unwrap();
        assert!(Line { what: "network".into(), solver: "", errors: Ok(errors) }.holds());
        let architecture = ParametrisedMap::named("rational", Layout::Dense).unwrap();
        let mut problem = Problem::new(&cpu, Shape::Dense(5), &architecture).unwrap();
        let right = problem.answers(&reference, Picard.into(), REFERENCE).unwrap();
        problem.parameters[0][3] += 1e-3;
        let errors = problem.answers(&cpu, Picard.into(), TOLERANCE).unwrap().errors(&right);
        assert!(errors.iter().all(|&(_, error)| error > 1e-5), "{errors:?}");
    }

    #[test]
    fn columns_have_one_largest_entry() {
        let (cpu, reference) = (Arc::new(Cpu::<f32>::new(1).unwrap()), Arc::new(Cpu::<f64>::new(1).unwrap()));
        let mut seen = 0;
        for shape in SHAPES {
            let Shape::Conv(channels, height, width) = shape else { continue };
            for name in ParametrisedMap::NAMES {
                let architecture = ParametrisedMap::named(name, shape.layout()).unwrap();
                if architecture.equation(shape.layout()).normalisation().is_none() {
                    continue;
                }
                let problem = Problem::new(&cpu, shape, &architecture).unwrap();
                let states = problem.answers(&reference, Picard.into(), REFERENCE).unwrap().states;
                let row = width * channels;
                for column in 0..BATCH * row {
                    let first = column / row * height * row + column % row;
                    let mut entries: Vec<f64> = (0..height).map(|k| states[first + k * row].abs()).collect();
                    entries.sort_by(|a, b| b.total_cmp(a));
                    assert!(entries[1] < (1.0 - 1e-6) * entries[0], "{name}, {}: {entries:?}", shape.words());
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, 3 * BATCH * (3 * 7 + 32 * 28 + 48 * 32));
    }

    #[test]
    fn an_error_that_is_too_large_or_not_a_number_does_not_hold() {
        let line = |name, error| Line { what: String::new(), solver: "", errors: Ok(vec![(name, error)]) };
        assert!(line("states", STATES).holds());
        for (name, error) in
            [("states", 2e-5), ("states", f64::NAN), ("losses", 2e-3), ("gradient of inputs", 2e-4)]
        {
            assert!(!line(name, error).holds(), "{name} {error}");
        }
        assert!(!Line { what: String::new(), solver: "", errors: Err("no".into()) }.holds());
        assert!(relative(&[1.0], &[1.0, 0.0]).is_nan());
        assert!(relative(&[0.0], &[0.0]).is_nan());
        assert!((relative(&[3.0, 4.5], &[3.0, 4.0]) - 0.1).abs() < 1e-12);
    }
}
