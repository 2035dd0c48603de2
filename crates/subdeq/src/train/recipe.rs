//! What a training does beside plain steps: a gentle beginning, and what is good against overfitting.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Crop, Dropout};

use crate::model::{ClassifierSpec, Noise};
use crate::{Error, Result};

/// What a training does beside plain steps; the default is nothing.
///
/// Whatever is random in it is a function of seed, epoch, number of the image and entry: a run that is continued, other threads and
/// another device make the same choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recipe {
    /// Epochs in which the learning rate rises, step by step, to where the cosine begins.
    pub warm_up: usize,
    /// The weight decay is AdamW's, for all parameters, not a term of the gradient.
    pub decoupled_decay: bool,
    /// The share of a label that is spread over all classes.
    pub label_smoothing: f64,
    /// The share of an image's numbers that is dropped (the others grow by as much).
    pub dropout_input: f64,
    /// The share of the last layer's features that is dropped.
    pub dropout_head: f64,
    /// Training images are moved by up to so many pixels in each direction; what comes in at the border is black.
    pub crop: u16,
}

/// Streams of random numbers per epoch.
const STREAMS: u64 = 4;

impl Recipe {
    /// Whether it is nothing but plain steps.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Refuses what makes no sense for a training of so many epochs.
    pub(super) fn check(&self, model: &ClassifierSpec, epochs: usize) -> Result<()> {
        for (what, share) in
            [("dropout on the input", self.dropout_input), ("dropout before the head", self.dropout_head)]
        {
            if !(0.0..1.0).contains(&share) {
                return Err(Error::Invalid(format!("{what} must be a share from 0 to below 1, not {share}")));
            }
        }
        if !(0.0..=1.0).contains(&self.label_smoothing) {
            return Err(Error::Invalid(format!(
                "label smoothing must be a share from 0 to 1, not {}",
                self.label_smoothing
            )));
        }
        if self.warm_up >= epochs && self.warm_up > 0 {
            return Err(Error::Invalid(format!(
                "a warm-up of {} epochs leaves nothing of {epochs} for the cosine: take fewer",
                self.warm_up
            )));
        }
        let side = model.height.min(model.width);
        if usize::from(self.crop) >= side && self.crop > 0 {
            return Err(Error::Invalid(format!(
                "images of {} x {} cannot be moved by up to {} pixels: nothing of them might be left",
                model.height, model.width, self.crop
            )));
        }
        Ok(())
    }

    /// What happens to the images of an epoch.
    pub(super) fn noise(&self, seed: u64, epoch: usize) -> Noise {
        let stream = |what: u64| STREAMS * epoch as u64 + what;
        Noise {
            crop: if self.crop > 0 { Crop::new(self.crop, seed, stream(0)) } else { Crop::NONE },
            input: Dropout::new(self.dropout_input, seed, stream(1)),
            head: Dropout::new(self.dropout_head, seed, stream(2)),
            label_smoothing: self.label_smoothing,
        }
    }
}
