//! A whole run: train, select, certify, test, write.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use subdeq_engine::Network;

use super::evaluator::{EvaluationOptions, evaluate_in_full};
use super::{
    Evaluation, Images, RunFolder, Selected, TensorFile, TrainConfig, Trainer, Watch, check_arrays,
    model_arrays, restore,
};
use crate::model::Classifier;
use crate::{Certificate, Error, Result};

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

/// What stands in the metadata of a `model.safetensors`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelNote {
    /// How it was trained.
    pub config: TrainConfig,
    /// The epoch (from 1) and validation error, in percent, that it was selected by (training error, if nothing was held out).
    pub selected: (usize, f64),
    /// What is proved about it for all inputs that it is meant for; none for models without a fixed point.
    #[serde(default, deserialize_with = "understood")]
    pub certificate: Option<Certificate>,
}

/// A certificate of this program's; none in place of one that an older program wrote, which did not say for which inputs and
/// among which states it holds: whoever needs it computes it anew.
pub(crate) fn understood<'de, D: Deserializer<'de>, C: DeserializeOwned>(
    file: D,
) -> Result<Option<C>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(file)?).ok())
}

/// Trains to the end (from the folder's checkpoint, if there is one), then writes `model.safetensors` and
/// `evaluation.json`. Returns `None` if the watcher asked for a stop; the run can then be continued.
///
/// # Errors
/// A training that diverges, data that do not fit, a folder that cannot be written or that another process trains in.
pub fn train_run<D: Network<Elem = f32>>(
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
    let certificate = match model.equilibrium() {
        Some(layer) => Some(layer.certify(layer.scope())?),
        None => None,
    };
    let note = ModelNote { config: config.clone(), selected: (epoch, error), certificate };
    TensorFile { note: note.clone(), tensors }.write(&folder.model_path())?;
    let evaluation = evaluate_in_full(&mut model, &note, &data.test, &options.evaluation)?;
    folder.write_json(EVALUATION, &evaluation)?;
    Ok(Some(evaluation))
}

/// Name of the file that holds a run's [`Evaluation`].
pub const EVALUATION: &str = "evaluation.json";

/// The model of a run, from its `model.safetensors`.
///
/// # Errors
/// No such file (the training is not over), or one that is damaged.
pub fn load_model<D: Network<Elem = f32>>(
    device: &Arc<D>,
    path: &Path,
) -> Result<(Classifier<D>, ModelNote)> {
    let TensorFile { mut note, tensors } = TensorFile::<ModelNote>::read(path)?;
    // Nothing is made before the file has shown that it holds what its note speaks of.
    let fault = |why: Error| Error::Invalid(format!("{}: {why}", path.display()));
    note.config.check().map_err(fault)?;
    check_arrays(&model_arrays(&note.config.model).map_err(fault)?, &tensors).map_err(fault)?;
    let mut model = build(device, &note.config, &tensors).map_err(fault)?;
    if let Some(layer) = model.equilibrium() {
        // Only what holds for the very equation, weights and inputs of this model is taken over.
        let known = match &note.certificate {
            Some(known) => known.scope == layer.scope() && layer.confirms(known)?,
            None => false,
        };
        if !known {
            note.certificate = Some(layer.certify(layer.scope())?);
        }
    }
    Ok((model, note))
}

fn build<D: Network<Elem = f32>>(
    device: &Arc<D>,
    config: &TrainConfig,
    tensors: &[(String, Vec<f32>)],
) -> Result<Classifier<D>> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let mut model = Classifier::new(device.clone(), config.model.clone(), &mut rng)?;
    restore(&mut model, tensors)?;
    Ok(model)
}
