//! Training on a whole graph at once.

use std::time::Instant;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::Network;
use subdeq_engine::cpu::graph::{Dropout, Encoder, EncoderDropout, NodeMatrix};
use subdeq_engine::network::Adam;
use subdeq_theory::certificate::{Theorem, Verdict};

use super::classifier::{Passes, StepDropout, largest};
use super::{GraphCertificate, GraphClassifier, GraphMode, GraphModel, GraphProblem, GraphSplit};
use crate::{Error, Result};

/// How a model is trained. [`GraphConfig::new`] gives the values of the published code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphConfig {
    /// The architecture.
    pub model: GraphModel,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// Share of the features' entries that a step leaves out.
    pub feature_dropout: f64,
    /// Share of the hidden units that a step leaves out.
    pub hidden_dropout: f64,
    /// Share of the graph's entries that a step leaves out.
    pub edge_dropout: f64,
    /// `penalty * sum W2^2` is added to the loss.
    pub penalty: f64,
    /// Step length of Adam.
    pub rate: f64,
    /// Adam's L2 term for all weights.
    pub weight_decay: f64,
    /// At most so many epochs.
    pub epochs: usize,
    /// Training ends after more than this many epochs without a better (or equal) validation accuracy.
    pub patience: usize,
    /// Decides the first weights and all dropout.
    pub seed: u64,
    /// Threads (0: one per core); no influence on the result.
    pub threads: usize,
}

impl GraphConfig {
    /// The settings of the published code. A model whose certificate rests on the norm of the graph's matrix is
    /// trained without edge dropout, which would scale the matrix beyond it.
    #[must_use]
    pub fn new(model: GraphModel) -> Self {
        let certified_by_norm = model.mode_is_equilibrium() && model.map.is_linear();
        Self {
            model,
            hidden: 64,
            feature_dropout: 0.5,
            hidden_dropout: 0.5,
            edge_dropout: if certified_by_norm { 0.0 } else { 0.5 },
            penalty: 0.0025,
            rate: 0.01,
            weight_decay: 0.0,
            epochs: 2000,
            patience: 500,
            seed: 0,
            threads: 1,
        }
    }

    fn check(&self, certificate: &GraphCertificate) -> Result<()> {
        self.model.check()?;
        for (name, rate) in
            [("feature", self.feature_dropout), ("hidden", self.hidden_dropout), ("edge", self.edge_dropout)]
        {
            if !(0.0..1.0).contains(&rate) {
                return Err(Error::invalid(format!("the {name} dropout must lie in [0, 1), got {rate}")));
            }
        }
        for (name, value) in
            [("learning rate", self.rate), ("penalty", self.penalty), ("weight decay", self.weight_decay)]
        {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(Error::invalid(format!("the {name} must be a finite number >= 0, got {value}")));
            }
        }
        if self.hidden == 0 || self.epochs == 0 {
            return Err(Error::invalid("training needs at least one hidden unit and one epoch"));
        }
        let by_norm =
            matches!(certificate.verdict, Verdict::Proven { theorem: Theorem::GraphPropagation, .. });
        if self.model.mode_is_equilibrium() && by_norm && self.edge_dropout > 0.0 {
            return Err(Error::invalid(format!(
                "edge dropout {} scales the remaining entries by {}, so that the matrix may have a norm above one and \
                 the equation of `{}` no solution, or several: set the edge dropout to 0, or unroll the propagation",
                self.edge_dropout,
                1.0 / (1.0 - self.edge_dropout),
                self.model.name
            )));
        }
        Ok(())
    }
}

impl GraphModel {
    fn mode_is_equilibrium(&self) -> bool {
        matches!(self.mode, GraphMode::Equilibrium { .. })
    }
}

/// One epoch: a training step and an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphEpoch {
    /// From 1.
    pub epoch: usize,
    /// Loss of the training step, with dropout and penalty.
    pub loss: f64,
    /// Accuracy on the validation nodes, without dropout.
    pub validation_accuracy: f64,
    /// Accuracy on the test nodes at the best epoch so far.
    pub test_accuracy: f64,
    /// Iterations of the training step's solve (0 when unrolled).
    pub solve_iterations: u32,
    /// Iterations of its adjoint solve.
    pub adjoint_iterations: u32,
    /// Whether the solves of this epoch reached the tolerance (or what the number type allows).
    pub converged: bool,
}

/// A finished training run.
#[derive(Clone, Debug)]
pub struct GraphRun {
    /// The model at its best epoch.
    pub classifier: GraphClassifier,
    /// The epoch with the best validation accuracy, the last one if several are equally good.
    pub best_epoch: usize,
    /// Its validation accuracy.
    pub validation_accuracy: f64,
    /// Its test accuracy.
    pub test_accuracy: f64,
    /// All epochs.
    pub epochs: Vec<GraphEpoch>,
    /// What is proved about the propagation.
    pub certificate: GraphCertificate,
    /// Wall-clock seconds.
    pub seconds: f64,
}

/// Trains a model: full batch, Adam, early stopping on the validation accuracy. `progress` sees each epoch.
///
/// The result depends on problem, split and configuration only, to the bit (on machines with the same instructions), not
/// on `config.threads`. Independent runs may go on in parallel, each with one thread.
///
/// # Errors
/// A configuration that makes no sense, or a state that stopped being finite.
pub fn train_graph(
    problem: &GraphProblem,
    split: &GraphSplit,
    config: &GraphConfig,
    mut progress: impl FnMut(&GraphEpoch),
) -> Result<GraphRun> {
    let clock = Instant::now();
    let certificate = config.model.certify(problem.adjacency())?;
    config.check(&certificate)?;
    split.check(problem.nodes())?;
    let mut training = Training::new(problem, split, config)?;
    let mut best = Best { epoch: 0, validation: 0.0, test: 0.0, weights: training.weights.clone() };
    let mut epochs = Vec::new();
    for epoch in 1..=config.epochs {
        let step = training.step(epoch as u64)?;
        let evaluated = training.passes.forward(problem, &training.weights, None)?;
        let accuracy = |nodes: &[u32]| training.accuracy(nodes);
        let validation = accuracy(&split.validation);
        if validation >= best.validation {
            best = Best { epoch, validation, test: accuracy(&split.test), weights: training.weights.clone() };
        }
        let reports = [step.solve, step.adjoint, evaluated];
        let record = GraphEpoch {
            epoch,
            loss: step.loss,
            validation_accuracy: validation,
            test_accuracy: best.test,
            solve_iterations: step.solve.map_or(0, |report| report.iterations),
            adjoint_iterations: step.adjoint.map_or(0, |report| report.iterations),
            converged: reports
                .iter()
                .flatten()
                .all(|report| report.outcome != subdeq_engine::Outcome::IterationLimit),
        };
        progress(&record);
        epochs.push(record);
        if epoch - best.epoch > config.patience {
            break;
        }
    }
    Ok(GraphRun {
        classifier: GraphClassifier { model: config.model.clone(), weights: best.weights },
        best_epoch: best.epoch,
        validation_accuracy: best.validation,
        test_accuracy: best.test,
        epochs,
        certificate,
        seconds: clock.elapsed().as_secs_f64(),
    })
}

/// The best epoch so far.
struct Best {
    epoch: usize,
    validation: f64,
    test: f64,
    weights: Encoder<f32>,
}

/// What a training step hands over.
struct StepOutcome {
    loss: f64,
    solve: Option<subdeq_engine::SampleReport>,
    adjoint: Option<subdeq_engine::SampleReport>,
}

/// The state of a run.
struct Training<'a> {
    problem: &'a GraphProblem,
    split: &'a GraphSplit,
    config: &'a GraphConfig,
    passes: Passes,
    weights: Encoder<f32>,
    gradient: Encoder<f32>,
    /// Adam's two moments.
    moments: [Encoder<f32>; 2],
    /// Gradient of the loss for `Z`; zero but for the training nodes.
    state_gradient: NodeMatrix<f32>,
}

impl<'a> Training<'a> {
    fn new(problem: &'a GraphProblem, split: &'a GraphSplit, config: &'a GraphConfig) -> Result<Self> {
        let passes = Passes::new(&config.model, problem, config.hidden, config.threads)?;
        let (features, classes) = (problem.features().cols, problem.classes());
        let zeros = Encoder::zeros(features, config.hidden, classes);
        let weights = first_weights(features, config.hidden, classes, config.seed);
        let moments = [zeros.clone(), zeros.clone()];
        let state_gradient = NodeMatrix::zeros(problem.nodes(), classes);
        Ok(Self { problem, split, config, passes, weights, gradient: zeros, moments, state_gradient })
    }

    /// One step of Adam.
    fn step(&mut self, number: u64) -> Result<StepOutcome> {
        let Self { problem, config, passes, weights, gradient, .. } = self;
        let dropout = step_dropout(config, number);
        let solve = passes.forward(problem, weights, Some(dropout))?;
        let loss =
            cross_entropy(passes.state(), &problem.labels, &self.split.train, &mut self.state_gradient);
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
        let [means, squared] = &mut self.moments;
        let arrays = weights.arrays_mut().into_iter().zip(gradient.arrays());
        for ((weight, gradient), (mean, square)) in
            arrays.zip(means.arrays_mut().into_iter().zip(squared.arrays_mut()))
        {
            passes.cpu.adam(
                &adam,
                weight.array_mut(),
                gradient.array(),
                mean.array_mut(),
                square.array_mut(),
            )?;
        }
        Ok(StepOutcome { loss: loss + config.penalty * squares, solve, adjoint })
    }

    fn accuracy(&self, nodes: &[u32]) -> f64 {
        let right = |&&node: &&u32| {
            largest(self.passes.state().row(node as usize)) == self.problem.labels[node as usize]
        };
        nodes.iter().filter(right).count() as f64 / nodes.len() as f64
    }
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

/// Mean of `-ln softmax(Z)[label]` over `nodes`, and its gradient for their rows.
fn cross_entropy(
    state: &NodeMatrix<f32>,
    labels: &[u32],
    nodes: &[u32],
    gradient: &mut NodeMatrix<f32>,
) -> f64 {
    let share = 1.0 / nodes.len() as f64;
    let mut loss = 0.0;
    for &node in nodes {
        let (row, label) = (state.row(node as usize), labels[node as usize] as usize);
        let top = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b.into()));
        let total: f64 = row.iter().map(|&z| (f64::from(z) - top).exp()).sum();
        loss += share * (total.ln() - (f64::from(row[label]) - top));
        for (class, (g, &z)) in gradient.row_mut(node as usize).iter_mut().zip(row).enumerate() {
            let probability = (f64::from(z) - top).exp() / total;
            *g = (share * (probability - f64::from(u8::from(class == label)))) as f32;
        }
    }
    loss
}
