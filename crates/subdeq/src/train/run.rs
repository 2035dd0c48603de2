//! A whole run: train, select, certify, test, write.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use subdeq_engine::Backend;

use super::evaluator::{EvaluationOptions, evaluate_in_full};
use super::model_file::{ModelNote, build, save_model};
use super::{Evaluation, Images, RunFolder, Selected, TrainConfig, Trainer, Watch};
use crate::Result;

/// The three parts of a data set.
#[derive(Clone, Debug)]
pub struct Parts {
    /// What the parameters are fitted to.
    pub train: Images,
    /// What selects the epoch; if there are none, the last one is taken.
    pub validation: Images,
    /// What is reported.
    pub test: Images,
}

/// How a run goes about its work; nothing of it changes the model.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOptions {
    /// How much of an evaluation is wanted at the end.
    pub evaluation: EvaluationOptions,
    /// Time between two checkpoints within an epoch; the end of every epoch is one.
    pub checkpoint_every: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self { evaluation: EvaluationOptions::default(), checkpoint_every: Duration::from_secs(30) }
    }
}

/// Trains to the end (from the folder's checkpoint, if there is one), then writes `model.safetensors` and
/// `evaluation.json`. Returns `None` if the watcher asked for a stop; the run can then be continued.
///
/// # Errors
/// A training that diverges, data that do not fit, a folder that cannot be written or that another process trains in.
pub fn train_run<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    folder: &RunFolder,
    config: &TrainConfig,
    data: &Parts,
    options: &RunOptions,
    watch: Watch<'_>,
) -> Result<Option<Evaluation>> {
    let _claim = folder.claim()?;
    let trainer = Trainer::new(device.clone(), folder.clone(), config.clone())?;
    let mut trainer = trainer.checkpoint_every(options.checkpoint_every);
    if trainer.run(&data.train, &data.validation, watch)? == ControlFlow::Break(()) {
        return Ok(None);
    }
    let Selected { epoch, error, tensors } = trainer.into_selected()?;
    // A new model, as whoever reads the file will have it.
    let mut model = build(device, config, &tensors)?;
    let certificate = model.certify()?;
    let note = ModelNote { config: config.clone(), selected: (epoch, error), certificate };
    save_model(&folder.model_path(), &mut model, &note)?;
    let evaluation = evaluate_in_full(&mut model, &note, &data.test, &options.evaluation)?;
    folder.write_json(EVALUATION, &evaluation)?;
    Ok(Some(evaluation))
}

/// Name of the file that holds a run's [`Evaluation`].
pub const EVALUATION: &str = "evaluation.json";
