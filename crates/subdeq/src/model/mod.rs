//! A classifier of one or several blocks, each an equilibrium (or an explicit layer or a neural ODE) behind its injection; then batch
//! norm, pooling, softmax.

mod affine;
mod answer;
mod attack;
mod batch_norm;
mod block;
mod certificate;
mod core_layer;
mod gain;
mod held;
mod injection;
mod isometry;
mod lipschitz;
mod names;
mod network_radius;
mod noise;
mod optimise;
mod passes;
mod radius;
mod reflection;
mod state;
mod thinning;
mod trained;

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::{Backend, Summary};

pub use answer::Answer;
pub use attack::{Attack, Ball};
pub(crate) use block::{BlockShape, block_prefix};
pub use certificate::NetworkCertificate;
pub use gain::{BlockGain, NetworkGain};
pub use lipschitz::Lipschitz;
pub use noise::Noise;
pub use passes::Batch;

use affine::{Affine, AffineShape};
use batch_norm::BatchNorm;
use block::Block;
use core_layer::CoreLayer;
use held::Held;
use passes::Buffers;

use crate::map::ParametrisedMap;
use crate::train::check_model;
use crate::{Adjoint, Equilibrium, Init, OdeActivation, Result, Solver, Stopping};

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

/// A block behind the first one of a network: an injection that reads the states of the block before, pooled, and its core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockSpec {
    /// Units (dense) or channels (convolution) of its state.
    pub hidden: usize,
    /// Of its injection's convolution: 2 halves height and width.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub stride: usize,
    /// Side of the pooling window behind a convolutional block, in front of the next one or the head; `None` for a dense one.
    pub pool: Option<usize>,
    /// Batch norm on the injection, before its ReLU if it has one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub injection_norm: bool,
    /// What is between injection and pooling.
    pub core: CoreSpec,
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_one(stride: &usize) -> bool {
    *stride == 1
}

/// The shape of a classifier: of its images, of its first block, and of those behind it, if it is a network of several.
///
/// Between two blocks the states are pooled; batch norm, pooling and the head follow the last one.
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
    /// Side of the pooling window behind the block of a convolutional classifier; `None` for a dense one.
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
    /// The blocks behind the first one.
    #[serde(default, rename = "block", skip_serializing_if = "Vec::is_empty")]
    pub deeper: Vec<BlockSpec>,
    /// A bound of the gain that the network is kept under; it has no batch norm then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lipschitz: Option<Lipschitz>,
}

impl ClassifierSpec {
    /// All blocks in their order, with what goes into them and comes out.
    pub(crate) fn blocks(&self) -> Vec<(BlockShape, BlockSpec)> {
        let Self { height, width, channels, hidden, pool, injection_norm, ref core, .. } = *self;
        let first = BlockSpec { hidden, stride: 1, pool, injection_norm, core: core.clone() };
        let mut input = (height, width, channels);
        let mut blocks = Vec::new();
        for spec in std::iter::once(first).chain(self.deeper.iter().cloned()) {
            let (height, width, channels) = input;
            let BlockSpec { hidden, stride, pool, .. } = spec;
            let shape = BlockShape { height, width, channels, stride, hidden, pool };
            let (rows, columns) = shape.sides();
            input = match pool {
                None => (1, 1, hidden),
                // Windows of nothing are refused before anything is made.
                Some(window) => (rows / window.max(1), columns / window.max(1), hidden),
            };
            blocks.push((shape, spec));
        }
        blocks
    }
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
    /// Applications of the map per solve, on average; steps of a neural ODE.
    pub forward_iterations: f64,
    /// The same for the adjoint; 0 without a backward pass.
    pub backward_iterations: f64,
}

impl From<Summary> for BatchReport {
    fn from(summary: Summary) -> Self {
        let mean = |sum: f64, count: u64| if count == 0 { 0.0 } else { sum / count as f64 };
        Self {
            loss: mean(summary.loss, summary.samples),
            correct: summary.correct as usize,
            samples: summary.samples as usize,
            converged: summary.converged_samples() as usize,
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
///     init: Default::default(), deeper: Vec::new(), lipschitz: None,
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
    /// At least one.
    blocks: Vec<Block<D>>,
    /// Behind the last block; none in a network with a bounded gain.
    norm: Option<BatchNorm<D::Array>>,
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
        let mut blocks = Vec::new();
        for (index, (shape, block)) in spec.blocks().iter().enumerate() {
            blocks.push(Block::new(&device, index, *shape, block, spec.lipschitz.is_some(), spec.init, rng)?);
        }
        let last = blocks.last().ok_or_else(passes::no_block)?.shape;
        let head_shape = AffineShape::Linear { inputs: last.pooled_len(), outputs: spec.classes };
        let head = Affine::new(&*device, "head", head_shape, Init::Release, rng)?;
        let (norm, held) = match spec.lipschitz {
            None => (Some(BatchNorm::new(&*device, "norm", last.hidden)?), None),
            Some(bound) => (None, Some(Held::new(&*device, bound, &blocks, &head)?)),
        };
        let (buffers, tally) = (None, device.tally()?);
        let mut model = Self { device, spec, blocks, norm, head, held, buffers, tally };
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

    /// The equilibrium layers, one after the other; none in an explicit model or a neural ODE.
    pub fn equilibria(&mut self) -> impl Iterator<Item = &mut Equilibrium<D>> {
        self.blocks.iter_mut().filter_map(|block| match &mut block.core {
            CoreLayer::Equilibrium { layer, .. } => Some(layer),
            CoreLayer::Explicit { .. } | CoreLayer::Ode { .. } => None,
        })
    }

    /// The equilibrium layer of a classifier that has one block, if that is one.
    pub fn equilibrium(&mut self) -> Option<&mut Equilibrium<D>> {
        let single = self.blocks.len() == 1;
        self.equilibria().next().filter(|_| single)
    }

    /// Blocks, whatever their cores are.
    pub(crate) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// How many injections the core of a block has, and whether it gets their positive parts.
    pub(crate) fn injections(&self, block: usize) -> (usize, bool) {
        (self.blocks[block].injections.len(), self.blocks[block].rectified)
    }

    /// The equilibrium of a block, if it is one.
    pub(crate) fn equilibrium_of(&mut self, block: usize) -> Option<&mut Equilibrium<D>> {
        match &mut self.blocks[block].core {
            CoreLayer::Equilibrium { layer, .. } => Some(layer),
            CoreLayer::Explicit { .. } | CoreLayer::Ode { .. } => None,
        }
    }

    /// The last block, whose states are classified.
    fn last(&self) -> Result<&Block<D>> {
        self.blocks.last().ok_or_else(passes::no_block)
    }

    /// `2 m` of a block, if what comes out of it are the reflected states `2 m z - y`.
    pub(crate) fn reflection(&self, block: usize) -> Option<f64> {
        self.blocks[block].reflection.as_ref().map(reflection::Reflection::factor)
    }

    /// Whether features are reflected states, so that they are not what a certificate's solutions are.
    fn is_reflected(&self) -> bool {
        self.blocks.iter().any(|block| block.reflection.is_some())
    }

    /// Numbers in one image.
    pub fn input_len(&self) -> usize {
        self.spec.height * self.spec.width * self.spec.channels
    }
}
