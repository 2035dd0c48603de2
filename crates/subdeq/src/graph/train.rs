//! Training on a whole graph at once.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::trainer::share;
use super::{GraphCertificate, GraphClassifier, GraphConfig, GraphProblem, GraphSplit, GraphTrainer};
use crate::Result;

/// One epoch: a training step and an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphEpoch {
    /// From 1.
    pub epoch: usize,
    /// Loss of the training step, with dropout and penalty.
    pub loss: f64,
    /// Accuracy on the training nodes, without dropout.
    pub train_accuracy: f64,
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
    let mut trainer = GraphTrainer::new(problem, split, config)?;
    let mut epochs = Vec::new();
    while let Some(epoch) = trainer.next_epoch()? {
        progress(&epoch);
        epochs.push(epoch);
    }
    let best = trainer.best();
    Ok(GraphRun {
        classifier: trainer.classifier()?,
        best_epoch: best.epoch,
        validation_accuracy: share(best.validation, &split.validation),
        test_accuracy: share(best.test, &split.test),
        epochs,
        certificate: trainer.certificate().clone(),
        seconds: clock.elapsed().as_secs_f64(),
    })
}
