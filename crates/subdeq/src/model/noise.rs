//! What a training step does to its images beyond reading them.

use subdeq_engine::{Crop, Dropout};

/// What a training step does to its images beyond reading them. All of it is decided by counting (seed, epoch, number of the image,
/// entry), so that it is the same in any batch, with any number of threads and on any device. Evaluations do nothing of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// How images are moved.
    pub crop: Crop,
    /// What is dropped of the numbers of an image.
    pub input: Dropout,
    /// What is dropped of the features that the last layer reads.
    pub head: Dropout,
    /// The share of a label that is spread over all classes.
    pub label_smoothing: f64,
}

impl Noise {
    /// Nothing.
    pub const NONE: Self =
        Self { crop: Crop::NONE, input: Dropout::NONE, head: Dropout::NONE, label_smoothing: 0.0 };
}
