//! A training on a whole graph in progress: one epoch after the other, which can be put aside and taken up again.

use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use subdeq_engine::cpu::graph::Dropout;
use subdeq_engine::network::Adam;
use subdeq_engine::{Cpu, EncoderShape, GraphDropout, Graphs, LabelledNodes, Outcome, SampleReport};

use super::classifier::Passes;
use super::encoder::encoder_arrays;
use super::{
    EncoderWeights, GraphCertificate, GraphClassifier, GraphConfig, GraphEpoch, GraphProblem, GraphSplit,
    Selection,
};
use crate::train::{TensorFile, check_arrays};
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

/// The epoch whose model counts (see [`Selection`]).
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
/// let mut continued = GraphTrainer::resume(&problem, &split, &config, &trainer.checkpoint()?)?;
/// while let Some(epoch) = continued.next_epoch()? {
///     assert_eq!(trainer.next_epoch()?, Some(epoch));
/// }
/// assert!(continued.classifier()?.predict(&problem, 1)?.state.iter().all(|z| *z > 0.0));
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct GraphTrainer<'a, D: Graphs = Cpu<f32>> {
    problem: &'a GraphProblem<D>,
    split: &'a GraphSplit,
    config: &'a GraphConfig,
    certificate: GraphCertificate,
    shape: EncoderShape,
    passes: Passes<D>,
    /// The nodes of the split: train, validation, test.
    nodes: [LabelledNodes<D::Integers>; 3],
    /// The rows of all nodes without labels, where those are learned from.
    unlabelled: D::Integers,
    tally: D::Tally,
    weights: D::Encoder,
    /// Their running mean, where that is evaluated.
    mean: Option<EncoderWeights>,
    gradient: D::Encoder,
    /// Adam's two moments.
    moments: [D::Encoder; 2],
    /// Epochs completed.
    epoch: usize,
    best: BestEpoch,
    best_weights: D::Encoder,
    seconds: [f64; 2],
}

/// The networks of a checkpoint; the last one only where weights are averaged.
const PARTS: [&str; 5] = ["weights", "first-moment", "second-moment", "best", "mean"];

/// Those of a training with this config.
fn parts(config: &GraphConfig) -> &'static [&'static str] {
    if config.averaging > 0.0 { &PARTS } else { &PARTS[..4] }
}
/// Places in [`GraphTrainer::nodes`].
const TRAIN: usize = 0;
const VALIDATION: usize = 1;
const TEST: usize = 2;

impl<'a> GraphTrainer<'a> {
    /// At the first weights, with the configuration's number of threads.
    ///
    /// # Errors
    /// A configuration or a split that makes no sense.
    pub fn new(problem: &'a GraphProblem, split: &'a GraphSplit, config: &'a GraphConfig) -> Result<Self> {
        Self::on(Arc::new(Cpu::new(config.threads)?), problem, split, config)
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
        let shape = encoder_shape(problem, config);
        check_arrays(&encoder_arrays(parts(config), shape)?, &checkpoint.tensors)?;
        checkpoint.note.check(config)?;
        Self::new(problem, split, config)?.at(checkpoint)
    }
}

impl<'a, D: Graphs<Elem = f32>> GraphTrainer<'a, D> {
    /// At the first weights, on a device.
    ///
    /// # Errors
    /// As for [`GraphTrainer::new`].
    pub fn on(
        device: Arc<D>,
        problem: &'a GraphProblem<D>,
        split: &'a GraphSplit,
        config: &'a GraphConfig,
    ) -> Result<Self> {
        let certificate = problem.certify(&config.model);
        config.check(&certificate)?;
        config.check_sizes(problem)?;
        split.check(problem.nodes(), config.selection)?;
        let shape = encoder_shape(problem, config);
        let passes = Passes::new(&device, &config.model, problem, shape)?;
        let zeros = EncoderWeights::zeros(shape).upload(&*device)?;
        let weights = EncoderWeights::first(shape, config.seed).upload(&*device)?;
        let labelled = |nodes: &[u32]| problem.labelled(&device, nodes);
        Ok(Self {
            problem,
            split,
            config,
            certificate,
            shape,
            passes,
            nodes: [labelled(&split.train)?, labelled(&split.validation)?, labelled(&split.test)?],
            unlabelled: device.integers(&unlabelled_rows(problem, split, config))?,
            tally: device.tally()?,
            best_weights: weights.clone(),
            weights,
            mean: None,
            gradient: zeros.clone(),
            moments: [zeros.clone(), zeros],
            epoch: 0,
            best: BestEpoch::default(),
            seconds: [0.0; 2],
        })
    }

    /// With the arrays and the position of a checkpoint.
    fn at(mut self, checkpoint: &TensorFile<GraphCheckpoint>) -> Result<Self> {
        let device = self.passes.device.clone();
        let part =
            |k: usize| EncoderWeights::from_file(&checkpoint.tensors, PARTS[k], self.shape)?.upload(&*device);
        (self.weights, self.moments, self.best_weights) = (part(0)?, [part(1)?, part(2)?], part(3)?);
        if let Some(&mean) = parts(self.config).get(4) {
            self.mean = Some(EncoderWeights::from_file(&checkpoint.tensors, mean, self.shape)?);
        }
        GraphCheckpoint { epoch: self.epoch, best: self.best } = checkpoint.note;
        if self.config.teaching.is_some() && self.epoch > 0 {
            let evaluated = self.mean.as_ref().map(|mean| mean.upload(&*device)).transpose()?;
            self.passes.forward(self.problem, evaluated.as_ref().unwrap_or(&self.weights), None)?;
            self.form_opinion()?;
        }
        Ok(self)
    }

    /// Everything that [`GraphTrainer::resume`] needs.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn checkpoint(&self) -> Result<TensorFile<GraphCheckpoint>> {
        let encoders = [&self.weights, &self.moments[0], &self.moments[1], &self.best_weights];
        let mut tensors = Vec::new();
        for (part, encoder) in PARTS.into_iter().zip(encoders) {
            tensors.extend(self.read(encoder)?.to_file(part));
        }
        if let Some(&part) = parts(self.config).get(4) {
            let mean = self.mean.clone().map_or_else(|| self.read(&self.weights), Ok)?;
            tensors.extend(mean.to_file(part));
        }
        Ok(TensorFile { note: GraphCheckpoint { epoch: self.epoch, best: self.best }, tensors })
    }

    fn read(&self, encoder: &D::Encoder) -> Result<EncoderWeights> {
        EncoderWeights::read(&*self.passes.device, encoder, self.shape)
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
        let averaged = self.averaged(epoch)?;
        let candidate = averaged.as_ref().unwrap_or(&self.weights);
        let evaluated = self.passes.forward(self.problem, candidate, None)?;
        self.form_opinion()?;
        let validation = self.right(VALIDATION)?;
        if self.config.selection == Selection::LastEpoch || validation >= self.best.validation {
            self.best = BestEpoch { epoch, validation, test: self.right(TEST)? };
            self.best_weights.clone_from(averaged.as_ref().unwrap_or(&self.weights));
        }
        self.epoch = epoch;
        self.seconds = [trained, clock.elapsed() - trained].map(|time| time.as_secs_f64());
        let reports = [step.solve, step.adjoint, evaluated];
        let train = self.right(TRAIN)?;
        Ok(Some(GraphEpoch {
            epoch,
            loss: step.loss,
            train_accuracy: share(train, &self.split.train),
            validation_accuracy: share(validation, &self.split.validation),
            test_accuracy: share(self.best.test, &self.split.test),
            solve_iterations: step.solve.map_or(0, |report| report.iterations),
            adjoint_iterations: step.adjoint.map_or(0, |report| report.iterations),
            converged: reports.iter().flatten().all(|report| report.outcome != Outcome::IterationLimit),
        }))
    }

    /// The running mean of the weights after this epoch, where that is evaluated. The first epochs count less than its share
    /// says, so that the first weights are soon forgotten.
    fn averaged(&mut self, epoch: usize) -> Result<Option<D::Encoder>> {
        if self.config.averaging == 0.0 {
            return Ok(None);
        }
        let new = self.read(&self.weights)?;
        let share = self.config.averaging.min(1.0 - 1.0 / epoch as f64);
        let mean = self.mean.get_or_insert_with(|| new.clone());
        mean.average(&new, share);
        mean.upload(&*self.passes.device).map(Some)
    }

    /// Keeps what was just evaluated for the next step, where nodes without labels are learned from.
    fn form_opinion(&mut self) -> Result<()> {
        let Some(teaching) = &self.config.teaching else { return Ok(()) };
        Ok(self.passes.device.form_opinion(&mut self.passes.plan, teaching.opinion())?)
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

    /// Mean cross-entropy of the validation nodes at the last epoch's evaluation; 0 if there are none.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn validation_loss(&mut self) -> Result<f64> {
        let Self { passes: Passes { device, plan, .. }, nodes, split, tally, .. } = self;
        if split.validation.is_empty() {
            return Ok(0.0);
        }
        device.count_nodes(plan, &nodes[VALIDATION], true, tally)?;
        let found = device.finish(tally)?;
        Ok(found.loss / found.samples as f64)
    }

    /// The best epoch so far.
    #[must_use]
    pub fn best(&self) -> BestEpoch {
        self.best
    }

    /// The model at the best epoch so far.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn classifier(&self) -> Result<GraphClassifier> {
        Ok(GraphClassifier { model: self.config.model.clone(), weights: self.read(&self.best_weights)? })
    }

    /// What is proved about the propagation.
    #[must_use]
    pub fn certificate(&self) -> &GraphCertificate {
        &self.certificate
    }

    /// How many nodes of a part of the split are classified rightly.
    fn right(&mut self, part: usize) -> Result<usize> {
        let Self { passes: Passes { device, plan, .. }, nodes, split, tally, .. } = self;
        if [&split.train, &split.validation, &split.test][part].is_empty() {
            return Ok(0);
        }
        device.count_nodes(plan, &nodes[part], false, tally)?;
        Ok(device.finish(tally)?.correct as usize)
    }

    /// One step of Adam.
    fn step(&mut self, number: u64) -> Result<StepOutcome> {
        let Self { problem, config, passes, weights, gradient, nodes, unlabelled, tally, .. } = self;
        let dropout = Some(step_dropout(config, number));
        let device = passes.device.clone();
        let solve = passes.forward(problem, weights, dropout)?;
        // Before the first evaluation there is no opinion.
        if let Some(teaching) = config.teaching.filter(|_| number > 1) {
            device.opinion_loss(&mut passes.plan, unlabelled, teaching.weight_in(number), tally)?;
        }
        device.node_loss(&mut passes.plan, &nodes[TRAIN], tally)?;
        let adjoint = passes.backward(problem, weights, dropout, gradient)?;
        device.penalise(config.penalty, weights, gradient, tally)?;
        let adam = Adam::new(config.rate, config.weight_decay, number);
        device.encoder_adam(&adam, weights, gradient, &mut self.moments)?;
        let found = device.finish(tally)?;
        Ok(StepOutcome { loss: found.loss / found.samples as f64 + found.penalty, solve, adjoint })
    }
}

fn encoder_shape<D: Graphs<Elem = f32>>(problem: &GraphProblem<D>, config: &GraphConfig) -> EncoderShape {
    EncoderShape { features: problem.features().cols, hidden: config.hidden, classes: problem.classes() }
}

/// The rows of the nodes that are not labelled; none where only labels are learned from.
fn unlabelled_rows<D: Graphs<Elem = f32>>(
    problem: &GraphProblem<D>,
    split: &GraphSplit,
    config: &GraphConfig,
) -> Vec<u32> {
    if config.teaching.is_none() {
        return Vec::new();
    }
    let mut labelled = vec![false; problem.nodes()];
    split.train.iter().for_each(|&node| labelled[node as usize] = true);
    let nodes = (0..problem.nodes() as u32).filter(|&node| !labelled[node as usize]);
    nodes.map(|node| problem.row(node) as u32).collect()
}

/// A count as a share of some nodes.
pub(super) fn share(count: usize, of: &[u32]) -> f64 {
    count as f64 / of.len().max(1) as f64
}

/// What a training step hands over.
struct StepOutcome {
    loss: f64,
    solve: Option<SampleReport>,
    adjoint: Option<SampleReport>,
}

/// Streams of one seed: a step's number in the upper bits, what is dropped in the lower.
fn step_dropout(config: &GraphConfig, step: u64) -> GraphDropout {
    let dropout = |rate: f64, what: u64| Dropout::new(rate, config.seed, step * 4 + what);
    GraphDropout {
        features: dropout(config.feature_dropout, 0),
        hidden: dropout(config.hidden_dropout, 1),
        edges: dropout(config.edge_dropout, 2),
    }
}
