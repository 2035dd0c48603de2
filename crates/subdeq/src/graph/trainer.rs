//! A training on a whole graph in progress: one epoch after the other, which can be put aside and taken up again.

use std::time::Instant;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::cpu::graph::{Dropout, Encoder, EncoderDropout, NodeMatrix};
use subdeq_engine::network::Adam;
use subdeq_engine::{Outcome, SampleReport};

use super::classifier::{Passes, StepDropout, largest};
use super::{GraphCertificate, GraphClassifier, GraphConfig, GraphEpoch, GraphProblem, GraphSplit};
use crate::train::{ArraySizes, TensorFile, check_arrays};
use crate::{Error, Result};

/// Where a training stands, beside its arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphCheckpoint {
    /// Epochs completed.
    pub epoch: usize,
    /// The best of them so far.
    pub best: BestEpoch,
}

impl GraphCheckpoint {
    /// Refuses a position that a training with this config cannot have come to.
    fn check(&self, config: &GraphConfig) -> Result<()> {
        if self.epoch > config.epochs || self.best.epoch > self.epoch {
            return Err(Error::invalid(format!(
                "its position (epoch {} of {}, best epoch {}) makes no sense: delete it to begin again",
                self.epoch, config.epochs, self.best.epoch
            )));
        }
        Ok(())
    }
}

/// The epoch with the most validation nodes right, the last one of several.
///
/// Counted, not shared out: what is read back from a file is exactly what was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BestEpoch {
    /// Which, from 1; 0 before the first.
    pub epoch: usize,
    /// Validation nodes that were right.
    pub validation: usize,
    /// Test nodes that were right.
    pub test: usize,
}

/// A training in progress.
///
/// [`super::train_graph`] is the loop around it. With [`GraphTrainer::checkpoint`] a training that was put aside goes on as
/// if nothing had been, to the bit:
///
/// ```
/// use subdeq::graph::{Csr, GraphConfig, GraphModel, GraphProblem, GraphSplit, GraphTrainer, normalised_adjacency};
///
/// let features = Csr { rows: 4, cols: 4, starts: (0..5).collect(), columns: (0..4).collect(), values: vec![1.0; 4] };
/// let problem =
///     GraphProblem::new(normalised_adjacency(4, &[(0, 1), (1, 2), (2, 3)])?, features, vec![0, 0, 1, 1], 2)?;
/// let split = GraphSplit { train: vec![0, 3], validation: vec![1], test: vec![2] };
/// let config = GraphConfig { epochs: 20, ..GraphConfig::new(GraphModel::paper("appnp-tanh", 0.1)?) };
///
/// let mut trainer = GraphTrainer::new(&problem, &split, &config)?;
/// for _ in 0..7 {
///     trainer.next_epoch()?;
/// }
/// let mut continued = GraphTrainer::resume(&problem, &split, &config, &trainer.checkpoint())?;
/// while let Some(epoch) = continued.next_epoch()? {
///     assert_eq!(trainer.next_epoch()?, Some(epoch));
/// }
/// assert!(continued.classifier().predict(&problem, 1)?.state.iter().all(|z| *z > 0.0));
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct GraphTrainer<'a> {
    problem: &'a GraphProblem,
    split: &'a GraphSplit,
    config: &'a GraphConfig,
    certificate: GraphCertificate,
    passes: Passes,
    weights: Encoder<f32>,
    gradient: Encoder<f32>,
    /// Adam's two moments.
    moments: [Encoder<f32>; 2],
    /// Gradient of the loss for `Z`; zero but for the training nodes.
    state_gradient: NodeMatrix<f32>,
    /// Epochs completed.
    epoch: usize,
    best: BestEpoch,
    best_weights: Encoder<f32>,
    seconds: [f64; 2],
}

/// The networks of a checkpoint.
const PARTS: [&str; 4] = ["weights", "first-moment", "second-moment", "best"];
/// Names of a network's arrays in files.
const ARRAYS: [&str; 4] = ["hidden", "hidden-bias", "output", "output-bias"];

impl<'a> GraphTrainer<'a> {
    /// At the first weights.
    ///
    /// # Errors
    /// A configuration or a split that makes no sense.
    pub fn new(problem: &'a GraphProblem, split: &'a GraphSplit, config: &'a GraphConfig) -> Result<Self> {
        let certificate = config.model.certify(problem.adjacency());
        config.check(&certificate)?;
        config.check_sizes(problem)?;
        split.check(problem.nodes())?;
        let passes = Passes::new(&config.model, problem, config.hidden, config.threads)?;
        let (features, classes) = (problem.features().cols, problem.classes());
        let zeros = Encoder::zeros(features, config.hidden, classes);
        let weights = first_weights(features, config.hidden, classes, config.seed);
        Ok(Self {
            problem,
            split,
            config,
            certificate,
            passes,
            best_weights: weights.clone(),
            weights,
            gradient: zeros.clone(),
            moments: [zeros.clone(), zeros],
            state_gradient: NodeMatrix::zeros(problem.nodes(), classes),
            epoch: 0,
            best: BestEpoch::default(),
            seconds: [0.0; 2],
        })
    }

    /// Where a checkpoint of the same training was made.
    ///
    /// # Errors
    /// As for [`GraphTrainer::new`], and a checkpoint of another training.
    pub fn resume(
        problem: &'a GraphProblem,
        split: &'a GraphSplit,
        config: &'a GraphConfig,
        checkpoint: &TensorFile<GraphCheckpoint>,
    ) -> Result<Self> {
        let shape = [problem.features().cols, config.hidden, problem.classes()];
        check_arrays(&encoder_arrays(&PARTS, shape)?, &checkpoint.tensors)?;
        checkpoint.note.check(config)?;
        let mut trainer = Self::new(problem, split, config)?;
        let [first, second] = &mut trainer.moments;
        for (part, encoder) in [
            (PARTS[0], &mut trainer.weights),
            (PARTS[1], first),
            (PARTS[2], second),
            (PARTS[3], &mut trainer.best_weights),
        ] {
            read_encoder(&checkpoint.tensors, part, encoder)?;
        }
        GraphCheckpoint { epoch: trainer.epoch, best: trainer.best } = checkpoint.note;
        Ok(trainer)
    }

    /// Everything that [`GraphTrainer::resume`] needs.
    #[must_use]
    pub fn checkpoint(&self) -> TensorFile<GraphCheckpoint> {
        let encoders = [&self.weights, &self.moments[0], &self.moments[1], &self.best_weights];
        let parts = PARTS.into_iter().zip(encoders);
        let tensors = parts.flat_map(|(part, encoder)| write_encoder(part, encoder)).collect();
        TensorFile { note: GraphCheckpoint { epoch: self.epoch, best: self.best }, tensors }
    }

    /// A step of Adam and an evaluation; nothing once all epochs are done or patience has run out.
    ///
    /// # Errors
    /// A state that stopped being finite.
    pub fn next_epoch(&mut self) -> Result<Option<GraphEpoch>> {
        if self.is_finished() {
            return Ok(None);
        }
        let epoch = self.epoch + 1;
        let clock = Instant::now();
        let step = self.step(epoch as u64)?;
        let trained = clock.elapsed();
        let evaluated = self.passes.forward(self.problem, &self.weights, None)?;
        let validation = self.right(&self.split.validation);
        if validation >= self.best.validation {
            self.best = BestEpoch { epoch, validation, test: self.right(&self.split.test) };
            self.best_weights.clone_from(&self.weights);
        }
        self.epoch = epoch;
        self.seconds = [trained, clock.elapsed() - trained].map(|time| time.as_secs_f64());
        let reports = [step.solve, step.adjoint, evaluated];
        Ok(Some(GraphEpoch {
            epoch,
            loss: step.loss,
            train_accuracy: share(self.right(&self.split.train), &self.split.train),
            validation_accuracy: share(validation, &self.split.validation),
            test_accuracy: share(self.best.test, &self.split.test),
            solve_iterations: step.solve.map_or(0, |report| report.iterations),
            adjoint_iterations: step.adjoint.map_or(0, |report| report.iterations),
            converged: reports.iter().flatten().all(|report| report.outcome != Outcome::IterationLimit),
        }))
    }

    /// Epochs completed.
    #[must_use]
    pub fn epochs_completed(&self) -> usize {
        self.epoch
    }

    /// Whether [`GraphTrainer::next_epoch`] has nothing left to do.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.epoch >= self.config.epochs || self.epoch - self.best.epoch > self.config.patience
    }

    /// Wall-clock seconds of the last epoch's training step and of its evaluation.
    #[must_use]
    pub fn seconds(&self) -> [f64; 2] {
        self.seconds
    }

    /// Mean cross-entropy of the validation nodes at the last epoch's evaluation.
    #[must_use]
    pub fn validation_loss(&self) -> f64 {
        let share = 1.0 / self.split.validation.len() as f64;
        let loss = |&node: &u32| {
            let (state, label) = labelled(self.problem, self.passes.state(), node);
            share * Softmax::of(state).surprise(label as usize)
        };
        self.split.validation.iter().map(loss).sum()
    }

    /// The best epoch so far.
    #[must_use]
    pub fn best(&self) -> BestEpoch {
        self.best
    }

    /// The model at the best epoch so far.
    #[must_use]
    pub fn classifier(&self) -> GraphClassifier {
        GraphClassifier { model: self.config.model.clone(), weights: self.best_weights.clone() }
    }

    /// What is proved about the propagation.
    #[must_use]
    pub fn certificate(&self) -> &GraphCertificate {
        &self.certificate
    }

    /// How many of the nodes are classified rightly.
    fn right(&self, nodes: &[u32]) -> usize {
        let right = |&&node: &&u32| {
            let (state, label) = labelled(self.problem, self.passes.state(), node);
            largest(state) == label
        };
        nodes.iter().filter(right).count()
    }

    /// One step of Adam.
    fn step(&mut self, number: u64) -> Result<StepOutcome> {
        let Self { problem, config, passes, weights, gradient, .. } = self;
        let dropout = step_dropout(config, number);
        let solve = passes.forward(problem, weights, Some(dropout))?;
        let loss = cross_entropy(problem, passes.state(), &self.split.train, &mut self.state_gradient);
        let adjoint = passes.backward(problem, weights, Some(dropout), &self.state_gradient, gradient)?;
        let penalty = config.penalty as f32;
        let mut squares = 0.0;
        for unit in 0..config.hidden {
            for (g, &w) in gradient.output.row_mut(unit).iter_mut().zip(weights.output.row(unit)) {
                *g += 2.0 * penalty * w;
                squares += f64::from(w) * f64::from(w);
            }
        }
        let adam = Adam::new(config.rate, config.weight_decay, number);
        weights.adam(&passes.cpu, &adam, gradient, &mut self.moments)?;
        Ok(StepOutcome { loss: loss + config.penalty * squares, solve, adjoint })
    }
}

/// A count as a share of some nodes.
pub(super) fn share(count: usize, of: &[u32]) -> f64 {
    count as f64 / of.len().max(1) as f64
}

/// A network's arrays under the names `part.array`.
pub(super) fn write_encoder(part: &str, encoder: &Encoder<f32>) -> Vec<(String, Vec<f32>)> {
    let named = ARRAYS.iter().zip(encoder.arrays());
    named.map(|(name, array)| (format!("{part}.{name}"), array.to_rows())).collect()
}

/// Names and lengths of what [`write_encoder`] writes for a network of `[features, hidden, classes]`.
pub(super) fn encoder_arrays(parts: &[&str], [features, hidden, classes]: [usize; 3]) -> Result<ArraySizes> {
    let lens = || {
        let product = |a: usize, b: usize| (a as u64).checked_mul(b as u64);
        Some([product(features, hidden)?, hidden as u64, product(hidden, classes)?, classes as u64])
    };
    let lens = lens().filter(|lens| !lens.contains(&0)).ok_or_else(|| {
        Error::invalid(format!("a network of {features} features, {hidden} units and {classes} classes"))
    })?;
    let named = |part| ARRAYS.iter().zip(lens).map(move |(name, len)| (format!("{part}.{name}"), len));
    Ok(parts.iter().flat_map(named).collect())
}

/// What [`write_encoder`] wrote, into a network of the same shape.
pub(super) fn read_encoder(
    tensors: &[(String, Vec<f32>)],
    part: &str,
    encoder: &mut Encoder<f32>,
) -> Result<()> {
    for (array_name, array) in ARRAYS.iter().zip(encoder.arrays_mut()) {
        let name = format!("{part}.{array_name}");
        let Some((_, numbers)) = tensors.iter().find(|(found, _)| *found == name) else {
            return Err(Error::invalid(format!("the file has no array `{name}`")));
        };
        let (nodes, channels) = (array.nodes(), array.channels());
        if numbers.len() != nodes * channels {
            return Err(Error::invalid(format!(
                "the array `{name}` has {} numbers, this graph and model need {nodes} x {channels}",
                numbers.len()
            )));
        }
        *array = NodeMatrix::from_rows(nodes, channels, numbers)?;
    }
    Ok(())
}

/// What a training step hands over.
struct StepOutcome {
    loss: f64,
    solve: Option<SampleReport>,
    adjoint: Option<SampleReport>,
}

/// Streams of one seed: a step's number in the upper bits, what is dropped in the lower.
fn step_dropout(config: &GraphConfig, step: u64) -> StepDropout {
    let dropout = |rate: f64, what: u64| Dropout::new(rate, config.seed, step * 4 + what);
    StepDropout {
        encoder: EncoderDropout {
            features: dropout(config.feature_dropout, 0),
            hidden: dropout(config.hidden_dropout, 1),
        },
        edges: dropout(config.edge_dropout, 2),
    }
}

/// The published code's first weights: Glorot's uniform for matrices, uniform in `+-1/sqrt(outputs)` for biases.
fn first_weights(features: usize, hidden: usize, classes: usize, seed: u64) -> Encoder<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut weights = Encoder::zeros(features, hidden, classes);
    let glorot = |inputs: usize, outputs: usize| (6.0 / (inputs + outputs) as f64).sqrt();
    let bias = |outputs: usize| 1.0 / (outputs as f64).sqrt();
    let bounds = [glorot(features, hidden), bias(hidden), glorot(hidden, classes), bias(classes)];
    for (array, bound) in weights.arrays_mut().into_iter().zip(bounds) {
        for row in 0..array.nodes() {
            for weight in array.row_mut(row) {
                let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
                *weight = (bound * (2.0 * unit - 1.0)) as f32;
            }
        }
    }
    weights
}

/// The softmax of one node's state, in f64.
pub(super) struct Softmax<'a> {
    row: &'a [f32],
    top: f64,
    total: f64,
}

impl<'a> Softmax<'a> {
    pub fn of(row: &'a [f32]) -> Self {
        let top = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b.into()));
        let total = row.iter().map(|&z| (f64::from(z) - top).exp()).sum();
        Self { row, top, total }
    }

    pub fn probability(&self, class: usize) -> f64 {
        (f64::from(self.row[class]) - self.top).exp() / self.total
    }

    /// `-ln probability`.
    pub fn surprise(&self, class: usize) -> f64 {
        self.total.ln() - (f64::from(self.row[class]) - self.top)
    }
}

/// What a node has in the state, and its class.
fn labelled<'a>(problem: &GraphProblem, state: &'a NodeMatrix<f32>, node: u32) -> (&'a [f32], u32) {
    (state.row(problem.row(node)), problem.labels[node as usize])
}

/// Mean of `-ln softmax(Z)[label]` over `nodes`, and its gradient for their rows.
fn cross_entropy(
    problem: &GraphProblem,
    state: &NodeMatrix<f32>,
    nodes: &[u32],
    gradient: &mut NodeMatrix<f32>,
) -> f64 {
    let share = 1.0 / nodes.len() as f64;
    let mut loss = 0.0;
    for &node in nodes {
        let (row, label) = labelled(problem, state, node);
        let (row, label) = (Softmax::of(row), label as usize);
        loss += share * row.surprise(label);
        for (class, g) in gradient.row_mut(problem.row(node)).iter_mut().enumerate() {
            *g = (share * (row.probability(class) - f64::from(u8::from(class == label)))) as f32;
        }
    }
    loss
}
