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
    /// How it was split into training, validation and test.
    pub split: String,
    /// How it was standardised.
    pub standardisation: String,
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
        if self.epochs == 0 || self.batch == 0 {
            return Err(Error::Invalid(format!(
                "a training of {} epochs with batches of {} images has no steps",
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
