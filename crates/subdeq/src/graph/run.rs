//! A training in a folder of its own: continued where it was left, ended with a tested and certified model.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use subdeq_engine::EncoderShape;
use subdeq_ranks::Ranks;

use super::encoder::encoder_arrays;
use super::{
    BestEpoch, EncoderWeights, GraphCertificate, GraphCheckpoint, GraphClassifier, GraphConfig, GraphEpoch,
    GraphProblem, GraphSplit, GraphTrainer,
};
use crate::train::{
    ArrayShapes, EpochMetrics, RunFolder, TensorFile, check_arrays, told_checkpoint, understood,
};
use crate::{Error, Result};

/// Name of the network's arrays in a `model.safetensors`.
const WEIGHTS: &str = "weights";

/// What stands in the metadata of a graph model's `model.safetensors`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphNote {
    /// How it was trained.
    pub config: GraphConfig,
    /// Features, hidden units and classes.
    pub shape: [usize; 3],
    /// The epoch it was selected at.
    pub selected: BestEpoch,
    /// What is proved about it, for every injection that its network can make; none if a program wrote it that did not say
    /// among which states.
    #[serde(default, deserialize_with = "understood")]
    pub certificate: Option<GraphCertificate>,
}

/// Trains to the end, from the folder's checkpoint if there is one, and writes the metrics and the selected model. Returns
/// `None` if the watcher asked for a stop; the run can then be continued.
///
/// Metrics are written with each checkpoint: epochs take milliseconds, files do not.
///
/// # Errors
/// A configuration that makes no sense, a training that diverges, a folder that cannot be written.
pub fn train_graph_run(
    folder: &RunFolder,
    problem: &GraphProblem,
    split: &GraphSplit,
    config: &GraphConfig,
    checkpoint_every: Duration,
    watch: &mut dyn FnMut(&EpochMetrics) -> ControlFlow<()>,
) -> Result<Option<GraphClassifier>> {
    train_shared_graph_run(&Ranks::alone(), Some(folder), problem, split, config, checkpoint_every, watch)
}

/// The same on ranks that share a graph (see [`GraphProblem::share`]): all of them train, with the same config and split; the first has
/// the folder and writes. A stop that any watcher asks for stops all.
///
/// # Errors
/// As for [`train_graph_run`]; and a message between ranks that failed.
pub fn train_shared_graph_run(
    ranks: &Ranks,
    folder: Option<&RunFolder>,
    problem: &GraphProblem,
    split: &GraphSplit,
    config: &GraphConfig,
    checkpoint_every: Duration,
    watch: &mut dyn FnMut(&EpochMetrics) -> ControlFlow<()>,
) -> Result<Option<GraphClassifier>> {
    if ranks.size() > 1 && config.teaching.is_some() {
        return Err(Error::invalid(
            "opinions about nodes without labels are formed by one process: leave --teaching out, or train without mpirun",
        ));
    }
    let _claim = folder.map(RunFolder::claim).transpose()?;
    let read = folder.map(RunFolder::read_checkpoint::<GraphCheckpoint>).transpose()?.flatten();
    let mut trainer = match told_checkpoint(ranks, read)? {
        Some(checkpoint) => GraphTrainer::resume(problem, split, config, &checkpoint)
            .map_err(|why| folder.map_or(why.clone(), |folder| folder.bad_checkpoint(&why)))?,
        None => GraphTrainer::new(problem, split, config)?,
    };
    if let Some(folder) = folder {
        folder.keep_metrics(trainer.epochs_completed())?;
    }
    let mut metrics = Vec::new();
    let mut last_written = Instant::now();
    while let Some(epoch) = trainer.next_epoch()? {
        metrics.push(epoch_metrics(&epoch, &mut trainer, config)?);
        let stopped = ranks.any(metrics.last().is_some_and(|metrics| watch(metrics).is_break()))?;
        if stopped || trainer.is_finished() || last_written.elapsed() >= checkpoint_every {
            if let Some(folder) = folder {
                folder.append_epochs(&metrics)?;
                folder.write_checkpoint(&trainer.checkpoint()?)?;
            }
            metrics.clear();
            last_written = Instant::now();
        }
        if stopped {
            return Ok(None);
        }
    }
    let classifier = trainer.classifier()?;
    if let Some(folder) = folder {
        write_model(folder, &classifier, &trainer, problem, config)?;
    }
    Ok(Some(classifier))
}

fn epoch_metrics(
    epoch: &GraphEpoch,
    trainer: &mut GraphTrainer<'_>,
    config: &GraphConfig,
) -> Result<EpochMetrics> {
    Ok(EpochMetrics {
        epoch: epoch.epoch,
        train_loss: epoch.loss,
        train_error: 100.0 * (1.0 - epoch.train_accuracy),
        validation_loss: Some(trainer.validation_loss()?),
        validation_error: Some(100.0 * (1.0 - epoch.validation_accuracy)),
        forward_iterations: epoch.solve_iterations.into(),
        backward_iterations: epoch.adjoint_iterations.into(),
        converged: f64::from(u8::from(epoch.converged)),
        verdict: Some(Cow::Borrowed(trainer.certificate().verdict.name())),
        learning_rate: config.rate,
        seconds: trainer.seconds()[0],
    })
}

fn write_model(
    folder: &RunFolder,
    classifier: &GraphClassifier,
    trainer: &GraphTrainer<'_>,
    problem: &GraphProblem,
    config: &GraphConfig,
) -> Result<()> {
    let note = GraphNote {
        config: config.clone(),
        shape: [problem.features().cols, config.hidden, problem.classes()],
        selected: trainer.best(),
        certificate: Some(trainer.certificate().clone()),
    };
    let tensors = classifier.weights.to_file(WEIGHTS);
    let shape = |((name, _), [rows, columns]): (&(String, Vec<f32>), [usize; 2])| {
        (name.clone(), if name.ends_with("bias") { vec![columns] } else { vec![rows, columns] })
    };
    let shapes: ArrayShapes = tensors.iter().zip(classifier.weights.shape.arrays()).map(shape).collect();
    TensorFile { note, tensors }.write_shaped(&folder.model_path(), &shapes)
}

/// The model of a run, from its `model.safetensors`.
///
/// # Errors
/// No such file (the training is not over), or one that is damaged or of another kind.
pub fn load_graph_model(path: &Path) -> Result<(GraphClassifier, GraphNote)> {
    let file = TensorFile::<GraphNote>::read(path)?;
    let [features, hidden, classes] = file.note.shape;
    let shape = EncoderShape { features, hidden, classes };
    // Nothing is made before the file has shown that it holds what its note speaks of.
    let fault = |why: Error| Error::Invalid(format!("{}: {why}", path.display()));
    file.note.config.model.check().map_err(fault)?;
    check_arrays(&encoder_arrays(&[WEIGHTS], shape).map_err(fault)?, &file.tensors).map_err(fault)?;
    let weights = EncoderWeights::from_file(&file.tensors, WEIGHTS, shape)?;
    Ok((GraphClassifier { model: file.note.config.model.clone(), weights }, file.note))
}
