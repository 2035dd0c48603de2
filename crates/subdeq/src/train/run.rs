//! A whole run: train, select, certify, test, write.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use subdeq_engine::Backend;
use subdeq_ranks::Ranks;

use super::evaluator::{EvaluationOptions, evaluate_in_full};
use super::model_file::{ModelNote, build, save_model};
use super::{Evaluation, Images, RunFolder, Selected, TrainConfig, Trainer, Watch};
use crate::Result;
use crate::sliced::{Sliced, check_ranks};

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    lead_run(&Ranks::alone(), device, folder, config, data, options, watch)
}

/// The same on the first of several ranks, while all others call [`follow_run`] with the same config and data. It alone writes, and
/// it alone certifies and tests what was trained together.
///
/// # Errors
/// As [`train_run`]; and a config without slices, or with fewer than ranks.
pub fn lead_run<D: Backend<Elem = f32>>(
    ranks: &Ranks,
    device: &Arc<D>,
    folder: &RunFolder,
    config: &TrainConfig,
    data: &Parts,
    options: &RunOptions,
    watch: Watch<'_>,
) -> Result<Option<Evaluation>> {
    let _claim = folder.claim()?;
    let Some(selected) = selected(ranks, device, Some(folder), config, data, options, watch)? else {
        return Ok(None);
    };
    let Selected { epoch, error, tensors } = selected;
    // A new model, as whoever reads the file will have it.
    let mut model = build(device, config, &tensors)?;
    let certificate = match model.equilibrium() {
        Some(layer) => Some(layer.certify(layer.scope())?),
        None => None,
    };
    let note = ModelNote { config: config.clone(), selected: (epoch, error), certificate };
    save_model(&folder.model_path(), &mut model, &note)?;
    let evaluation = evaluate_in_full(&mut model, &note, &data.test, &options.evaluation)?;
    folder.write_json(EVALUATION, &evaluation)?;
    Ok(Some(evaluation))
}

/// What a rank does that is not the first: its part of every step. Returns whether the training came to its end; if not, a rank asked
/// for a stop.
///
/// # Errors
/// As [`lead_run`].
pub fn follow_run<D: Backend<Elem = f32>>(
    ranks: &Ranks,
    device: &Arc<D>,
    config: &TrainConfig,
    data: &Parts,
    watch: Watch<'_>,
) -> Result<bool> {
    Ok(selected(ranks, device, None, config, data, &RunOptions::default(), watch)?.is_some())
}

/// The parameters that a training comes to; `None` if a rank asked for a stop.
fn selected<D: Backend<Elem = f32>>(
    ranks: &Ranks,
    device: &Arc<D>,
    folder: Option<&RunFolder>,
    config: &TrainConfig,
    data: &Parts,
    options: &RunOptions,
    watch: Watch<'_>,
) -> Result<Option<Selected>> {
    let (ranks, folder, config) = (ranks.clone(), folder.cloned(), config.clone());
    check_ranks(config.slices, ranks.size())?;
    if config.slices == 0 {
        return train_with(Trainer::on_ranks(device.clone(), ranks, folder, config)?, data, options, watch);
    }
    let sliced = Arc::new(Sliced::new(device.clone(), ranks.clone(), config.slices)?);
    train_with(Trainer::on_ranks(sliced, ranks, folder, config)?, data, options, watch)
}

fn train_with<D: Backend<Elem = f32>>(
    trainer: Trainer<D>,
    data: &Parts,
    options: &RunOptions,
    watch: Watch<'_>,
) -> Result<Option<Selected>> {
    let mut trainer = trainer.checkpoint_every(options.checkpoint_every);
    match trainer.run(&data.train, &data.validation, watch)? {
        ControlFlow::Break(()) => Ok(None),
        ControlFlow::Continue(()) => trainer.into_selected().map(Some),
    }
}

/// Name of the file that holds a run's [`Evaluation`].
pub const EVALUATION: &str = "evaluation.json";
