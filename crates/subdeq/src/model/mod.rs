//! A classifier around an equilibrium: injection, equilibrium (or an explicit layer or a neural ODE), batch norm, pooling, softmax.

mod affine;
mod answer;
mod batch_norm;
mod core_layer;
mod held;
mod injection;
mod isometry;
mod lipschitz;
mod names;
mod noise;
mod optimise;
mod passes;
mod radius;
mod readout;
mod state;
mod trained;

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::network::{ConvShape, NormPoolShape};
use subdeq_engine::{Backend, Operator, Summary};
use subdeq_map::Padding;

pub use answer::Answer;
pub use lipschitz::Lipschitz;
pub use noise::Noise;
pub use passes::Batch;

use affine::{Affine, AffineShape};
use batch_norm::BatchNorm;
use core_layer::CoreLayer;
use held::Held;
use injection::Injection;
use lipschitz::takes_linear_injection;
use passes::Buffers;
use readout::Readout;

use crate::map::ParametrisedMap;
use crate::train::check_model;
use crate::{Adjoint, Equilibrium, Init, OdeActivation, Result, Solver, Stopping, theory};

/// Updates after which a splitting's step is chosen anew.
const STEP_PERIOD: u64 = 200;

/// What is between the injection and the batch norm.
#[allow(clippy::large_enum_variant)] // a value per model, not per sample
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum CoreSpec {
    /// An equilibrium layer; `None` leaves a choice to [`crate::EquilibriumBuilder`].
    Equilibrium {
        /// The map.
        architecture: ParametrisedMap,
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
    /// Batch norm on the injection, before its ReLU if it has one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub injection_norm: bool,
    /// Number of classes.
    pub classes: usize,
    /// What is between injection and batch norm.
    pub core: CoreSpec,
    /// How parameters are drawn.
    pub init: Init,
    /// A bound of the gain that the network is kept under; it has no batch norm then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lipschitz: Option<Lipschitz>,
}

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

impl From<Summary> for BatchReport {
    fn from(summary: Summary) -> Self {
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        let explicit = summary.solves == 0;
        Self {
            loss: mean(summary.loss, summary.samples),
            correct: summary.correct as usize,
            samples: summary.samples as usize,
            converged: if explicit { summary.samples } else { summary.converged } as usize,
            forward_iterations: mean(summary.forward_iterations as f64, summary.solves),
            backward_iterations: mean(summary.backward_iterations as f64, summary.adjoint_solves),
        }
    }
}

/// A classifier with its parameters, optimiser moments and buffers: a training step allocates no arrays.
///
/// Images are channels x height x width, one after the other, as in [`crate::train::Images`], in files and in PyTorch.
///
/// ```
/// use rand::SeedableRng;
/// use subdeq::map::ParametrisedMap;
/// use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
/// use subdeq::{Adam, Cpu, Layout, Stopping};
///
/// let spec = ClassifierSpec {
///     height: 2, width: 2, channels: 1, hidden: 8, pool: None, injection_norm: false, classes: 2,
///     core: CoreSpec::Equilibrium {
///         architecture: ParametrisedMap::named("rational", Layout::Dense)?,
///         solver: None, stopping: Stopping::relative(1e-5), adjoint: None,
///     },
///     init: Default::default(), lipschitz: None,
/// };
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let mut model = Classifier::new(Cpu::<f32>::new(1)?.into(), spec, &mut rng)?;
/// let (x, labels) = ([0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0], [0, 1]);
/// for step in 1..=50 {
///     model.train_step(&x, &labels, &Adam::new(0.05, 0.0, step))?;
/// }
/// assert_eq!(model.evaluate(&x, &labels)?.correct, 2);
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct Classifier<D: Backend> {
    device: Arc<D>,
    spec: ClassifierSpec,
    /// As many as the core's equation takes (the power ratio takes two).
    injections: Vec<Injection<D::Array>>,
    rectified: bool,
    core: CoreLayer<D>,
    readout: Readout<D::Array>,
    head: Affine<D::Array>,
    /// Of a network with a bounded gain.
    held: Option<Held<D::Array>>,
    buffers: Option<Buffers<D>>,
    /// What happened since it was last read.
    tally: D::Tally,
}

impl<D: Backend> Classifier<D> {
    /// Draws the parameters of a classifier.
    ///
    /// # Errors
    /// Sizes or values that contradict each other or do not fit into the device.
    pub fn new(device: Arc<D>, spec: ClassifierSpec, rng: &mut impl Rng) -> Result<Self> {
        check_model(&spec, 1)?;
        let ClassifierSpec { height, width, channels, hidden, pool, injection_norm, classes, init, .. } =
            spec;
        let affine_shape = match pool {
            None => AffineShape::Linear { inputs: height * width * channels, outputs: hidden },
            Some(_) => AffineShape::Conv(ConvShape {
                batch: 1,
                height,
                width,
                inputs: channels,
                outputs: hidden,
                padding: Padding::Zero,
            }),
        };
        let operator = match pool {
            None => Operator::Dense { n: hidden },
            Some(_) => Operator::Conv { channels: hidden, height, width, padding: Padding::Zero, kernel: 3 },
        };
        let (rectified, count) = match &spec.core {
            CoreSpec::Equilibrium { architecture, .. } => {
                let equation = architecture.equation(theory::layout(&operator));
                (!takes_linear_injection(&equation), equation.form().injection_count())
            }
            CoreSpec::ExplicitTanh | CoreSpec::NeuralOde { .. } => (true, 1),
        };
        let core = CoreLayer::new(&device, &spec.core, operator, affine_shape, init, rng)?;
        let injections: Vec<_> = (0..count)
            .map(|k| {
                Injection::new(&*device, &format!("injection{k}"), affine_shape, injection_norm, init, rng)
            })
            .collect::<Result<_>>()?;
        let head_shape = AffineShape::Linear { inputs: norm_shape(&spec, 1).pooled_len(), outputs: classes };
        let head = Affine::new(&*device, "head", head_shape, Init::Release, rng)?;
        let (readout, held) = match spec.lipschitz {
            None => (Readout::Normed(BatchNorm::new(&*device, "norm", hidden)?), None),
            Some(bound) => {
                let window = norm_shape(&spec, 1).window;
                let held = Held::new(&*device, bound, (injections[0].affine(), window, &head))?;
                (Readout::reflected(lipschitz::reflected_margin(&spec)?), Some(held))
            }
        };
        let (buffers, tally) = (None, device.tally()?);
        let mut model =
            Self { device, spec, injections, rectified, core, readout, head, held, buffers, tally };
        model.hold()?;
        Ok(model)
    }

    /// Its shape.
    pub fn spec(&self) -> &ClassifierSpec {
        &self.spec
    }

    /// The device it lives on.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The equilibrium layer, if it has one.
    pub fn equilibrium(&mut self) -> Option<&mut Equilibrium<D>> {
        match &mut self.core {
            CoreLayer::Equilibrium { layer, .. } => Some(layer),
            CoreLayer::Explicit { .. } | CoreLayer::Ode { .. } => None,
        }
    }

    /// How many injections the core has.
    pub(crate) fn injection_count(&self) -> usize {
        self.injections.len()
    }

    /// Whether the core gets the positive part of its injections.
    pub(crate) fn rectifies_injection(&self) -> bool {
        self.rectified
    }

    /// `2 m`, if the last layer reads the reflected states `2 m z - y`.
    pub(crate) fn reflection(&self) -> Option<f64> {
        self.readout.reflection()
    }

    /// Numbers in one image.
    pub fn input_len(&self) -> usize {
        self.spec.height * self.spec.width * self.spec.channels
    }
}

fn norm_shape(spec: &ClassifierSpec, batch: usize) -> NormPoolShape {
    match spec.pool {
        None => NormPoolShape::vectors(batch, spec.hidden),
        Some(window) => {
            NormPoolShape { batch, height: spec.height, width: spec.width, channels: spec.hidden, window }
        }
    }
}
