//! Everything that decides what a training run computes.

use serde::{Deserialize, Serialize};
use subdeq_engine::network::Adam;

use super::sizes::check_model;
use super::trainer::EVALUATION_BATCH;
use super::{Checkpoint, Cosine, Recipe};
use crate::model::{ClassifierSpec, CoreSpec};
use crate::sliced::check_slices;
use crate::{Error, Parametrisation, Result};

/// Which data, cut and standardised how. The trainer does not read data; it records where they came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// Name or folder of the data set.
    pub name: String,
    /// How it was split into training, validation and test: `release`, `paper` or `standard`.
    pub split: String,
    /// Training images that the standard split holds out for validation.
    #[serde(default, skip_serializing_if = "is_none_held_out")]
    pub validation: usize,
    /// Seed of the split.
    pub split_seed: u64,
    /// Checksum of the split, so that a repetition notices other data.
    pub fingerprint: String,
    /// The pixel value that stands for 1.
    pub white: u8,
    /// Mean of each channel of pixels from 0 to 1.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel of pixels from 0 to 1.
    pub deviation: Vec<f64>,
    /// Names of the classes.
    pub class_names: Vec<String>,
    /// Mirror training images left to right with probability 1/2.
    pub flips: bool,
}

/// A complete training run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainConfig {
    /// Passes over the training images.
    pub epochs: usize,
    /// Images in a batch.
    pub batch: usize,
    /// Adam's L2 term, or AdamW's decay.
    pub weight_decay: f64,
    /// Seed of the parameters, of the order of the images, and of all that is done to them.
    pub seed: u64,
    /// Start the solve of an image where that of the epoch before ended.
    #[serde(default)]
    pub warm_start: bool,
    /// Slices that each batch is cut into, so that several processes can share it ([`crate::sliced`]); 0 for none. What it is decides
    /// in which order gradients are added up, and so their last digits; how many processes there are does not.
    #[serde(default, skip_serializing_if = "is_whole")]
    pub slices: usize,
    /// The learning rate.
    pub rate: Cosine,
    /// What is done beside plain steps.
    #[serde(default, skip_serializing_if = "Recipe::is_plain")]
    pub recipe: Recipe,
    /// The data.
    pub data: DataConfig,
    /// The model.
    pub model: ClassifierSpec,
}

/// What is not said in a config needs no line there: configs, and the ledgers that runs are found in by theirs, stay as they were.
#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_none_held_out(validation: &usize) -> bool {
    *validation == 0
}

/// The same for batches that are not cut.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_whole(slices: &usize) -> bool {
    *slices == 0
}

/// More updates, or images in an epoch, than any training makes.
const MAX_STEPS: u64 = 1 << 62;
/// Most epochs: the updates of a training are counted in 64 bits.
const MAX_EPOCHS: usize = 1_000_000_000;

impl DataConfig {
    /// Refuses constants that do not fit the model or would divide by nothing.
    fn check(&self, model: &ClassifierSpec) -> Result<()> {
        let Self { mean, deviation, class_names, white, .. } = self;
        if mean.len() != model.channels || deviation.len() != model.channels {
            return Err(Error::Invalid(format!(
                "{} means and {} deviations for images of {} channels: one each is needed",
                mean.len(),
                deviation.len(),
                model.channels
            )));
        }
        if mean.iter().any(|x| !x.is_finite()) || deviation.iter().any(|x| !(*x > 0.0 && x.is_finite())) {
            return Err(Error::Invalid(format!(
                "images cannot be standardised with means {mean:?} and deviations {deviation:?}: finite numbers are needed, \
                 deviations above 0"
            )));
        }
        if *white == 0 {
            return Err(Error::Invalid("the pixel value that stands for 1 cannot be 0".into()));
        }
        if !class_names.is_empty() && class_names.len() != model.classes {
            return Err(Error::Invalid(format!("{} names for {} classes", class_names.len(), model.classes)));
        }
        Ok(())
    }
}

impl TrainConfig {
    /// Refuses what cannot be trained.
    ///
    /// # Errors
    /// No epochs, no batch, rates that make no sense, data that do not fit the model, or a model that does not fit into the
    /// memory.
    pub fn check(&self) -> Result<()> {
        if self.epochs > MAX_EPOCHS {
            return Err(Error::Invalid(format!(
                "a training of {} epochs has no end: at most {MAX_EPOCHS} can be asked for",
                self.epochs
            )));
        }
        // A batch larger than the data set is the whole set, which is not known here.
        check_model(&self.model, self.batch.min(EVALUATION_BATCH))?;
        self.data.check(&self.model)?;
        if self.epochs == 0 || self.batch < 2 {
            return Err(Error::Invalid(format!(
                "a training of {} epochs with batches of {}: at least one epoch and two images per batch are needed (batch \
                 norm has no variance over one)",
                self.epochs, self.batch
            )));
        }
        if self.slices > 0 {
            check_slices(self.slices)?;
        }
        for (what, x) in [
            ("the learning rate", self.rate.start),
            ("the last learning rate", self.rate.end),
            ("the weight decay", self.weight_decay),
        ] {
            if !(x >= 0.0 && x.is_finite()) {
                return Err(Error::Invalid(format!("{what} must be a number from 0, not {x}")));
            }
        }
        if self.warm_start && !self.model.deeper.is_empty() {
            return Err(Error::Invalid(
                "warm starts are for models of one block: leave --warm-start out".into(),
            ));
        }
        self.check_proofs()?;
        self.recipe.check(&self.model, self.epochs)
    }

    /// Refuses networks that could be trained but not certified.
    fn check_proofs(&self) -> Result<()> {
        for (index, (shape, block)) in self.model.blocks().iter().enumerate() {
            let CoreSpec::Equilibrium { architecture, .. } = &block.core else { continue };
            let (height, width) = shape.sides();
            // What a proof speaks about: the factor of tied weights, and else the weights.
            let side = match architecture.parametrisation() {
                Parametrisation::MonotoneTied { .. } => architecture.kernel(),
                _ => architecture.weight_side(),
            };
            if architecture.is_monotone() && block.pool.is_some() && height.min(width) < side {
                return Err(Error::Invalid(format!(
                    "block {} has images of {height}x{width}: the {side}x{side} kernels of monotone maps continue at the opposite \
                     border, and are proved for images of at least their own size",
                    index + 1
                )));
            }
        }
        Ok(())
    }

    /// The update of step `step` (from 0), where an epoch has so many batches.
    #[must_use]
    pub fn adam(&self, step: u64, batches: usize) -> Adam {
        let (rate, number) = (self.rate_at(step, batches), step + 1);
        if self.recipe.decoupled_decay {
            Adam::decoupled(rate, self.weight_decay, number)
        } else {
            Adam::new(rate, self.weight_decay, number)
        }
    }

    /// The learning rate of step `step` (from 0), where an epoch has so many batches.
    #[must_use]
    pub fn rate_at(&self, step: u64, batches: usize) -> f64 {
        let steps = |epochs: usize| (epochs * batches) as u64;
        self.rate.after_warm_up(step, steps(self.recipe.warm_up), steps(self.epochs))
    }

    /// Images in a batch of a data set of so many: all of them, if fewer than asked for are there.
    ///
    /// # Errors
    /// More than fit into the memory.
    pub fn batch_of(&self, images: usize) -> Result<usize> {
        let batch = self.batch.min(images);
        check_model(&self.model, batch)?;
        Ok(batch)
    }

    /// Refuses a checkpoint that a training with this config cannot have come to.
    pub(super) fn check_position(&self, at: &Checkpoint) -> Result<()> {
        let Checkpoint { epoch, step, running, best, splitting_step, deeper_steps, metrics_lines, .. } = at;
        // No training counts so far; sums with them stay in range.
        let counts = [*step, at.batches as u64, running.samples as u64, running.correct as u64];
        let uncounted = counts.iter().chain([&(running.converged as u64)]).any(|&n| n > MAX_STEPS);
        let best_epoch = best.map_or(0, |(_, epoch)| epoch);
        if *epoch > self.epochs || *metrics_lines != *epoch || best_epoch > *epoch || uncounted {
            return Err(Error::Invalid(format!(
                "its position (epoch {epoch} of {}, step {step}, {metrics_lines} lines of metrics, best epoch {best_epoch}) \
                 makes no sense: delete it to begin again",
                self.epochs
            )));
        }
        let unusable = |step: &&f64| !(**step > 0.0 && step.is_finite());
        match splitting_step.iter().chain(deeper_steps.iter().flatten()).find(unusable) {
            Some(step) => Err(Error::Invalid(format!("the step of its splitting is {step}, not above 0"))),
            None => Ok(()),
        }
    }
}
