//! Everything that decides what a training run computes.

use serde::{Deserialize, Serialize};

use super::Cosine;
use crate::model::ClassifierSpec;
use crate::{Error, Result};

/// Which data, cut and standardised how. The trainer does not read data; it records where they came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DataConfig {
    /// Name or folder of the data set.
    pub name: String,
    /// How it was split into training, validation and test: `release` or `paper`.
    pub split: String,
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
    /// Adam's L2 term.
    pub weight_decay: f64,
    /// Seed of the parameters, of the order of the images, and of the mirroring.
    pub seed: u64,
    /// Start the solve of an image where that of the epoch before ended.
    #[serde(default)]
    pub warm_start: bool,
    /// The learning rate.
    pub rate: Cosine,
    /// The data.
    pub data: DataConfig,
    /// The model.
    pub model: ClassifierSpec,
}

impl TrainConfig {
    /// Refuses what cannot be trained.
    ///
    /// # Errors
    /// No epochs, no batch, or rates that make no sense.
    pub fn check(&self) -> Result<()> {
        if self.epochs == 0 || self.batch < 2 {
            return Err(Error::Invalid(format!(
                "a training of {} epochs with batches of {}: at least one epoch and two images per batch are needed (batch \
                 norm has no variance over one)",
                self.epochs, self.batch
            )));
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
        Ok(())
    }
}
