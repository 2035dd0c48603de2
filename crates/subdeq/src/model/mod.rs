//! A classifier around an equilibrium: injection, equilibrium (or an explicit layer or a neural ODE), batch norm, pooling, softmax.

mod affine;
mod answer;
mod names;
mod radius;
mod trained;

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::network::{Adam, ConvShape, CrossEntropy, NormPoolShape, NormState, Rows};
use subdeq_engine::{EngineError, Network, Operator, Real, SampleReport};
use subdeq_map::{Activation, Injection, Map, Padding};

pub use answer::Answer;

use affine::{Affine, AffineShape};
use trained::{Moments, Trained};

use crate::map::Architecture;
use crate::{
    Adjoint, Equilibrium, EquilibriumBuilder, Error, Init, NeuralOde, OdeActivation, Parameter, Result,
    Solver, Stopping, theory,
};

/// Updates after which a splitting's step is chosen anew.
const STEP_PERIOD: u64 = 200;

/// What is between the injection and the batch norm.
#[allow(clippy::large_enum_variant)] // a value per model, not per sample
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Core {
    /// An equilibrium layer; `None` leaves a choice to [`crate::EquilibriumBuilder`].
    Equilibrium {
        /// The map.
        architecture: Architecture,
        /// The solver.
        solver: Option<Solver>,
        /// When a solve ends.
        stopping: Stopping,
        /// How gradients go back.
        adjoint: Option<Adjoint>,
    },
    /// The explicit baseline, `tanh(W y + b)`.
    ExplicitTanh,
    /// A neural ODE started at the injection.
    NeuralOde {
        /// The right-hand side's activation.
        activation: OdeActivation,
        /// Tolerance of the integration.
        tolerance: f64,
    },
}

/// The shape of a classifier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassifierSpec {
    /// Image height.
    pub height: usize,
    /// Image width.
    pub width: usize,
    /// Image channels.
    pub channels: usize,
    /// Units (dense) or channels (convolution) of the hidden state.
    pub hidden: usize,
    /// Side of the pooling window of a convolutional classifier; `None` for a dense one.
    pub pool: Option<usize>,
    /// Number of classes.
    pub classes: usize,
    /// What is between injection and batch norm.
    pub core: Core,
    /// How parameters are drawn.
    pub init: Init,
}

/// Sees each array of a model with its name and length.
type Visit<'a, A> = &'a mut dyn FnMut(String, usize, &mut A) -> Result<()>;

/// What happened to a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchReport {
    /// Mean cross-entropy.
    pub loss: f64,
    /// Samples classified correctly.
    pub correct: usize,
    /// Samples.
    pub samples: usize,
    /// Samples whose solve converged.
    pub converged: usize,
    /// Applications of the map per sample, on average; steps of a neural ODE.
    pub forward_iterations: f64,
    /// The same for the adjoint; 0 without a backward pass.
    pub backward_iterations: f64,
}

/// A classifier with its parameters, optimiser moments and buffers: a training step allocates no arrays.
///
/// Images are rows of height x width x channels.
///
/// ```
/// use rand::SeedableRng;
/// use subdeq::map::Architecture;
/// use subdeq::model::{Classifier, ClassifierSpec, Core};
/// use subdeq::{Cpu, Layout, Stopping};
/// use subdeq_engine::network::Adam;
///
/// let spec = ClassifierSpec {
///     height: 2, width: 2, channels: 1, hidden: 8, pool: None, classes: 2,
///     core: Core::Equilibrium {
///         architecture: Architecture::named("rational", Layout::Dense)?,
///         solver: None, stopping: Stopping::relative(1e-5), adjoint: None,
///     },
///     init: Default::default(),
/// };
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let mut model = Classifier::<f32, _>::new(Cpu::new(1)?.into(), spec, &mut rng)?;
/// let (x, labels) = ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0, 1]);
/// for step in 1..=50 {
///     model.train_step(&x, &labels, &Adam::new(0.05, 0.0, step))?;
/// }
/// assert_eq!(model.evaluate(&x, &labels)?.correct, 2);
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct Classifier<T: Real, D: Network<T>> {
    device: Arc<D>,
    spec: ClassifierSpec,
    /// One affine map per injection of the core (the power ratio has two).
    injections: Vec<Affine<D::Array>>,
    rectified: bool,
    core: CoreLayer<T, D>,
    norm: NormState<D::Array>,
    scale: Trained<D::Array>,
    offset: Trained<D::Array>,
    head: Affine<D::Array>,
    buffers: Option<Buffers<D::Array>>,
    /// Whether the next solve starts at the states that are there.
    warm: bool,
}

#[allow(clippy::large_enum_variant)] // one of them exists per model
enum CoreLayer<T: Real, D: Network<T>> {
    Equilibrium { layer: Equilibrium<T, D>, moments: Vec<Moments<D::Array>> },
    Explicit { affine: Affine<D::Array>, z: Option<D::Array> },
    Ode { layer: NeuralOde<T, D>, moments: Moments<D::Array> },
}

/// Arrays whose size depends on the batch.
struct Buffers<A> {
    capacity: usize,
    x: A,
    /// One injection, where the core has several.
    part: A,
    y: A,
    gy: A,
    gz: A,
    features: A,
    gfeatures: A,
    logits: A,
    glogits: A,
}

impl<T: Real, D: Network<T>> Classifier<T, D> {
    /// Draws the parameters of a classifier.
    ///
    /// # Errors
    /// Sizes or values that contradict each other.
    pub fn new(device: Arc<D>, spec: ClassifierSpec, rng: &mut impl Rng) -> Result<Self> {
        let ClassifierSpec { height, width, channels, hidden, pool, classes, init, .. } = spec;
        if height * width * channels * hidden == 0 || classes < 2 {
            return Err(Error::invalid(format!(
                "a classifier needs inputs, hidden units and two classes: {spec:?}"
            )));
        }
        let shape = norm_shape(&spec, 1);
        shape.check()?;
        let affine_shape = |padding| match pool {
            None => AffineShape::Linear { inputs: height * width * channels, outputs: hidden },
            Some(_) => AffineShape::Conv(ConvShape {
                batch: 1,
                height,
                width,
                inputs: channels,
                outputs: hidden,
                padding,
            }),
        };
        let operator = match pool {
            None => Operator::Dense { n: hidden },
            Some(_) => Operator::Conv { channels: hidden, height, width, padding: Padding::Zero, kernel: 3 },
        };
        let mut rectified = true;
        let mut count = 1;
        let core = match &spec.core {
            Core::Equilibrium { architecture, solver, stopping, adjoint } => {
                let equation = architecture.equation(theory::layout(&operator));
                rectified = !takes_linear_injection(&equation);
                count = equation.form().injection_count();
                let mut builder = EquilibriumBuilder::new(operator)
                    .map(architecture.clone())
                    .stopping(*stopping)
                    .init(init);
                if let Some(solver) = solver {
                    builder = builder.solver(*solver);
                }
                if let Some(adjoint) = adjoint {
                    builder = builder.adjoint(*adjoint);
                }
                let layer = builder.build_on(device.clone(), rng)?;
                let moments = layer.parameters().iter().map(|p| Moments::new(&*device, p.len)).collect();
                CoreLayer::Equilibrium { layer, moments }
            }
            Core::ExplicitTanh => {
                let shape = match affine_shape(Padding::Zero) {
                    AffineShape::Linear { outputs, .. } => AffineShape::Linear { inputs: outputs, outputs },
                    AffineShape::Conv(shape) => AffineShape::Conv(ConvShape { inputs: hidden, ..shape }),
                };
                CoreLayer::Explicit { affine: Affine::new(&*device, "core", shape, init, rng), z: None }
            }
            Core::NeuralOde { activation, tolerance } => {
                let layer = NeuralOde::new(device.clone(), operator, *activation, *tolerance, init, rng)?;
                let moments = Moments::new(&*device, layer.parameter().len);
                CoreLayer::Ode { layer, moments }
            }
        };
        let injections = (0..count)
            .map(|k| Affine::new(&*device, &format!("injection{k}"), affine_shape(Padding::Zero), init, rng))
            .collect();
        let features = shape.pooled_len();
        let head_shape = AffineShape::Linear { inputs: features, outputs: classes };
        let head = Affine::new(&*device, "head", head_shape, Init::Release, rng);
        let ones = vec![T::ONE; hidden];
        let norm = NormState {
            scale: device.upload(&ones),
            offset: device.zeros(hidden),
            running_mean: device.zeros(hidden),
            running_variance: device.upload(&ones),
            batch_mean: device.zeros(hidden),
            batch_inverse_deviation: device.zeros(hidden),
            normalised: device.zeros(0),
        };
        let scale = Trained::new(&*device, "norm.scale", &ones);
        let offset = Trained::new(&*device, "norm.offset", &vec![T::ZERO; hidden]);
        Ok(Self {
            device,
            spec,
            injections,
            rectified,
            core,
            norm,
            scale,
            offset,
            head,
            buffers: None,
            warm: false,
        })
    }

    /// Its shape.
    pub fn spec(&self) -> &ClassifierSpec {
        &self.spec
    }

    /// The equilibrium layer, if it has one.
    pub fn equilibrium(&mut self) -> Option<&mut Equilibrium<T, D>> {
        match &mut self.core {
            CoreLayer::Equilibrium { layer, .. } => Some(layer),
            CoreLayer::Explicit { .. } | CoreLayer::Ode { .. } => None,
        }
    }

    /// Numbers in one image.
    pub fn input_len(&self) -> usize {
        self.spec.height * self.spec.width * self.spec.channels
    }

    /// Makes room for batches of this many images.
    ///
    /// # Errors
    /// A batch of no images.
    pub fn reserve(&mut self, batch: usize) -> Result<()> {
        if batch == 0 {
            return Err(Error::invalid("a batch of 0 images"));
        }
        if self.buffers.as_ref().is_some_and(|buffers| buffers.capacity >= batch) {
            return Ok(());
        }
        let (shape, device) = (norm_shape(&self.spec, batch), &self.device);
        let (input, state, features) = (self.input_len(), shape.image_len(), shape.pooled_len());
        let parts = self.injections.len();
        let logits = batch * self.spec.classes;
        self.norm.normalised = device.zeros(batch * features);
        match &mut self.core {
            CoreLayer::Equilibrium { layer, .. } => layer.reserve(batch)?,
            CoreLayer::Explicit { z, .. } => *z = Some(device.zeros(batch * state)),
            CoreLayer::Ode { layer, .. } => layer.reserve(batch)?,
        }
        self.buffers = Some(Buffers {
            capacity: batch,
            x: device.zeros(batch * input),
            part: device.zeros(if parts > 1 { batch * state } else { 0 }),
            y: device.zeros(batch * state * parts),
            gy: device.zeros(batch * state * parts),
            gz: device.zeros(batch * state),
            features: device.zeros(batch * features),
            gfeatures: device.zeros(batch * features),
            logits: device.zeros(logits),
            glogits: device.zeros(logits),
        });
        Ok(())
    }

    /// One step of training: forward, backward, update.
    ///
    /// # Errors
    /// Images or labels that do not fit, a loss that is not finite, or an adjoint solve that is not.
    pub fn train_step(&mut self, x: &[T], labels: &[u32], adam: &Adam) -> Result<BatchReport> {
        let report = self.gradients(x, labels)?;
        self.update(adam)?;
        Ok(report)
    }

    /// The same with the solve started at `states` (the batch's, sample after sample), where its result is left.
    ///
    /// # Errors
    /// As [`Classifier::train_step`]; a model without an equilibrium; states that do not fit.
    pub fn train_step_from(
        &mut self,
        x: &[T],
        labels: &[u32],
        states: &mut [T],
        adam: &Adam,
    ) -> Result<BatchReport> {
        let batch = self.load(x, Some(labels))?;
        let CoreLayer::Equilibrium { layer, .. } = &mut self.core else {
            return Err(Error::invalid("only an equilibrium has states to start from"));
        };
        layer.set_states(batch, states)?;
        self.warm = true;
        let report = self.gradients(x, labels);
        self.warm = false;
        let report = report?;
        if let CoreLayer::Equilibrium { layer, .. } = &self.core {
            states.copy_from_slice(&layer.read_states(batch)?);
        }
        self.update(adam)?;
        Ok(report)
    }

    /// Forward and backward pass: every parameter gets its gradient of the mean loss.
    ///
    /// # Errors
    /// As [`Classifier::train_step`].
    pub fn gradients(&mut self, x: &[T], labels: &[u32]) -> Result<BatchReport> {
        let batch = self.load(x, Some(labels))?;
        self.core_forward(batch)?;
        let Self { device, buffers, core, norm, scale, offset, head, spec, .. } = self;
        let device = &**device;
        let Some(b) = buffers else { return Err(Error::invalid("no buffers")) };
        let shape = norm_shape(spec, batch);
        let z = core.states()?;
        device.copy(spec.hidden, &scale.parameter.value, &mut norm.scale)?;
        device.copy(spec.hidden, &offset.parameter.value, &mut norm.offset)?;
        device.norm_pool_train(shape, z, norm, &mut b.features)?;
        head.forward(device, batch, &b.features, &mut b.logits)?;
        let found = device.cross_entropy(spec.classes, &b.logits, labels, &mut b.glogits)?;
        if !found.loss.is_finite() {
            return Err(Error::invalid(format!(
                "the loss is {}: training has diverged (lower the learning rate, or use a map with a certificate)",
                found.loss
            )));
        }
        head.backward(device, batch, &b.features, &b.glogits, Some(&mut b.gfeatures))?;
        scale.zero_gradient(device)?;
        offset.zero_gradient(device)?;
        let (gscale, goffset) = (&mut scale.parameter.gradient, &mut offset.parameter.gradient);
        device.norm_pool_backward(shape, z, norm, &b.gfeatures, &mut b.gz, gscale, goffset)?;
        core.backward(device, batch, &b.y, &mut b.gz, &mut b.gy)?;
        self.injection_backward(batch)?;
        Ok(self.report(batch, found, true))
    }

    fn injection_backward(&mut self, batch: usize) -> Result<()> {
        let Self { device, buffers, injections, rectified, spec, .. } = self;
        let Some(b) = buffers else { return Ok(()) };
        let state = norm_shape(spec, 1).image_len();
        let parts = injections.len();
        if *rectified {
            device.relu_backward(batch * state * parts, &b.y, &mut b.gy)?;
        }
        for (k, injection) in injections.iter_mut().enumerate() {
            if parts == 1 {
                injection.backward(&**device, batch, &b.x, &b.gy, None)?;
            } else {
                let from = Rows { array: &b.gy, stride: parts * state, offset: k * state };
                device.copy_rows(
                    batch,
                    state,
                    from,
                    Rows { array: &mut b.part, stride: state, offset: 0 },
                )?;
                injection.backward(&**device, batch, &b.x, &b.part, None)?;
            }
        }
        Ok(())
    }

    /// Updates every parameter by its gradient.
    ///
    /// # Errors
    /// A step number of 0.
    pub fn update(&mut self, adam: &Adam) -> Result<()> {
        let device = self.device.clone();
        for trained in self.injections.iter_mut().chain([&mut self.head]).flat_map(Affine::trained) {
            trained.step(&*device, adam)?;
        }
        self.scale.step(&*device, adam)?;
        self.offset.step(&*device, adam)?;
        match &mut self.core {
            CoreLayer::Equilibrium { layer, moments } => {
                for (parameter, moments) in layer.parameters_mut().iter_mut().zip(moments) {
                    moments.step(&*device, adam, parameter)?;
                }
                if adam.step.is_multiple_of(STEP_PERIOD) {
                    layer.choose_step()?;
                }
            }
            CoreLayer::Explicit { affine, .. } => {
                for trained in affine.trained() {
                    trained.step(&*device, adam)?;
                }
            }
            CoreLayer::Ode { layer, moments } => moments.step(&*device, adam, layer.parameter_mut())?,
        }
        Ok(())
    }

    /// Loss and hits with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images or labels that do not fit.
    pub fn evaluate(&mut self, x: &[T], labels: &[u32]) -> Result<BatchReport> {
        let batch = self.eval_forward(x, Some(labels))?;
        let Some(b) = &mut self.buffers else { return Ok(BatchReport::default()) };
        let found = self.device.cross_entropy(self.spec.classes, &b.logits, labels, &mut b.glogits)?;
        Ok(self.report(batch, found, false))
    }

    /// The logits of images, with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn logits(&mut self, x: &[T]) -> Result<Vec<T>> {
        let batch = self.eval_forward(x, None)?;
        let Some(b) = &self.buffers else { return Ok(Vec::new()) };
        let mut logits = vec![T::ZERO; b.capacity * self.spec.classes];
        self.device.read(&b.logits, &mut logits)?;
        logits.truncate(batch * self.spec.classes);
        Ok(logits)
    }

    fn eval_forward(&mut self, x: &[T], labels: Option<&[u32]>) -> Result<usize> {
        let batch = self.load(x, labels)?;
        self.core_forward(batch)?;
        let Self { device, buffers, core, norm, scale, offset, head, spec, .. } = self;
        let Some(b) = buffers else { return Ok(batch) };
        device.copy(spec.hidden, &scale.parameter.value, &mut norm.scale)?;
        device.copy(spec.hidden, &offset.parameter.value, &mut norm.offset)?;
        device.norm_pool_eval(norm_shape(spec, batch), core.states()?, norm, &mut b.features)?;
        head.forward(&**device, batch, &b.features, &mut b.logits)?;
        Ok(batch)
    }

    /// Brings images to the device.
    fn load(&mut self, x: &[T], labels: Option<&[u32]>) -> Result<usize> {
        let len = self.input_len();
        if x.is_empty() || !x.len().is_multiple_of(len) {
            return Err(Error::invalid(format!(
                "{} numbers are not a whole number of images of {len} each",
                x.len()
            )));
        }
        let batch = x.len() / len;
        if let Some(labels) = labels
            && labels.len() != batch
        {
            return Err(Error::invalid(format!("{} labels for {batch} images", labels.len())));
        }
        self.reserve(batch)?;
        if let Some(b) = &mut self.buffers {
            self.device.write_finite("the images", &mut b.x, x).map_err(|error| match error {
                EngineError::NotFinite { index, value, .. } => Error::invalid(format!(
                    "number {} of image {} is {value}: inputs must be finite",
                    index % len,
                    index / len
                )),
                other => other.into(),
            })?;
        }
        Ok(batch)
    }

    /// From the images to the injections.
    fn inject(&mut self, batch: usize) -> Result<()> {
        let Self { device, buffers, injections, rectified, spec, .. } = self;
        let device = &**device;
        let Some(b) = buffers else { return Ok(()) };
        let state = norm_shape(spec, 1).image_len();
        let parts = injections.len();
        for (k, injection) in injections.iter().enumerate() {
            if parts == 1 {
                injection.forward(device, batch, &b.x, &mut b.y)?;
            } else {
                injection.forward(device, batch, &b.x, &mut b.part)?;
                let from = Rows { array: &b.part, stride: state, offset: 0 };
                device.copy_rows(
                    batch,
                    state,
                    from,
                    Rows { array: &mut b.y, stride: parts * state, offset: k * state },
                )?;
            }
        }
        if *rectified {
            device.relu(batch * state * parts, &mut b.y)?;
        }
        Ok(())
    }

    /// Injection and core.
    fn core_forward(&mut self, batch: usize) -> Result<()> {
        self.inject(batch)?;
        let Self { device, buffers, core, spec, warm, .. } = self;
        let device = &**device;
        let Some(b) = buffers else { return Ok(()) };
        let state = norm_shape(spec, 1).image_len();
        match core {
            CoreLayer::Equilibrium { layer, .. } if *warm => layer.forward_warm(batch, &b.y),
            CoreLayer::Equilibrium { layer, .. } => layer.forward(batch, &b.y),
            CoreLayer::Explicit { affine, z } => {
                let Some(z) = z else { return Ok(()) };
                affine.forward(device, batch, &b.y, z)?;
                Ok(device.tanh(batch * state, z)?)
            }
            CoreLayer::Ode { layer, .. } => layer.forward(batch, &b.y),
        }
    }

    fn report(&self, batch: usize, found: CrossEntropy, backward: bool) -> BatchReport {
        let mean = |reports: &[SampleReport]| {
            reports.iter().map(|r| f64::from(r.iterations)).sum::<f64>() / reports.len().max(1) as f64
        };
        let mut report = BatchReport {
            loss: found.loss,
            correct: found.correct,
            samples: batch,
            converged: batch,
            ..BatchReport::default()
        };
        if let CoreLayer::Ode { layer, .. } = &self.core {
            let steps: f64 = layer.reports()[..batch].iter().map(|r| f64::from(r.accepted)).sum();
            report.forward_iterations = steps / batch as f64;
        }
        if let CoreLayer::Equilibrium { layer, .. } = &self.core {
            let reports = &layer.reports()[..batch];
            report.converged = reports.iter().filter(|r| r.converged()).count();
            report.forward_iterations = mean(reports);
            if backward {
                report.backward_iterations = mean(&layer.adjoint_reports()[..batch]);
            }
        }
        report
    }

    /// Every number that training changes, by name: parameters, running statistics, optimiser moments.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn state(&mut self) -> Result<Vec<(String, Vec<T>)>> {
        let device = self.device.clone();
        let mut state = Vec::new();
        self.for_each_array(&mut |name, len, array| {
            let mut host = vec![T::ZERO; len];
            device.read(array, &mut host)?;
            state.push((name, host));
            Ok(())
        })?;
        Ok(state)
    }

    /// Puts back what [`Classifier::state`] gave.
    ///
    /// # Errors
    /// An array that is missing or has another length, by name.
    pub fn set_state(&mut self, state: &[(String, Vec<T>)]) -> Result<()> {
        let device = self.device.clone();
        self.for_each_array(&mut |name, len, array| {
            let (_, host) = state
                .iter()
                .find(|(given, _)| *given == name)
                .ok_or_else(|| Error::invalid(format!("the array `{name}` of the model is missing")))?;
            if host.len() != len {
                return Err(Error::invalid(format!(
                    "the array `{name}` holds {} numbers, {len} are needed",
                    host.len()
                )));
            }
            Ok(device.write(array, host)?)
        })
    }

    fn for_each_array(&mut self, visit: Visit<'_, D::Array>) -> Result<()> {
        let hidden = self.spec.hidden;
        let mut of_core = |parameter: &mut Parameter<D::Array>, moments: &mut Moments<D::Array>| {
            let name = format!("core.{}", parameter.name);
            visit(format!("{name}.mean"), parameter.len, &mut moments.mean)?;
            visit(format!("{name}.square"), parameter.len, &mut moments.square)?;
            visit(name, parameter.len, &mut parameter.value)
        };
        let affine = match &mut self.core {
            CoreLayer::Equilibrium { layer, moments } => {
                for (parameter, moments) in layer.parameters_mut().iter_mut().zip(moments) {
                    of_core(parameter, moments)?;
                }
                None
            }
            CoreLayer::Explicit { affine, .. } => Some(affine),
            CoreLayer::Ode { layer, moments } => {
                of_core(layer.parameter_mut(), moments)?;
                None
            }
        };
        let affines = self.injections.iter_mut().chain([&mut self.head]).chain(affine);
        for trained in affines.flat_map(Affine::trained).chain([&mut self.scale, &mut self.offset]) {
            let (name, len) = (trained.parameter.name.clone(), trained.parameter.len);
            visit(format!("{name}.mean"), len, &mut trained.moments.mean)?;
            visit(format!("{name}.square"), len, &mut trained.moments.square)?;
            visit(name, len, &mut trained.parameter.value)?;
        }
        visit("norm.running_mean".into(), hidden, &mut self.norm.running_mean)?;
        visit("norm.running_variance".into(), hidden, &mut self.norm.running_variance)
    }
}

impl<T: Real, D: Network<T>> CoreLayer<T, D> {
    fn states(&self) -> Result<&D::Array> {
        let states = match self {
            Self::Equilibrium { layer, .. } => layer.states(),
            Self::Explicit { z, .. } => z.as_ref(),
            Self::Ode { layer, .. } => layer.states(),
        };
        states.ok_or_else(|| Error::invalid("no batch was solved yet"))
    }

    /// From `gz` to `gy`; `gz` may be changed on the way.
    fn backward(
        &mut self,
        device: &D,
        batch: usize,
        y: &D::Array,
        gz: &mut D::Array,
        gy: &mut D::Array,
    ) -> Result<()> {
        match self {
            Self::Equilibrium { layer, .. } => layer.backward(batch, y, gz, gy),
            Self::Explicit { affine, z } => {
                let Some(z) = z else { return Ok(()) };
                device.tanh_backward(batch * affine.output_len(), z, gz)?;
                affine.backward(device, batch, y, gz, Some(gy))
            }
            Self::Ode { layer, .. } => layer.backward(batch, gz, gy),
        }
    }
}

/// The monotone maps with an unbounded inner activation take `U x + b` as it is; all others need `y >= 0`.
fn takes_linear_injection(map: &Map) -> bool {
    map.is_monotone()
        && map.injection() == Injection::Inner
        && matches!(
            map.activation(),
            Activation::Relu | Activation::LeakyRelu { .. } | Activation::Softplus { .. }
        )
}

fn norm_shape(spec: &ClassifierSpec, batch: usize) -> NormPoolShape {
    match spec.pool {
        None => NormPoolShape::vectors(batch, spec.hidden),
        Some(window) => {
            NormPoolShape { batch, height: spec.height, width: spec.width, channels: spec.hidden, window }
        }
    }
}
