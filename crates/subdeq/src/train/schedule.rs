//! The learning rate over a training: cosine annealing, stepped once per batch.

use serde::{Deserialize, Serialize};

/// From `start` to `end` along half a cosine.
///
/// ```
/// use subdeq::train::Cosine;
/// let rate = Cosine { start: 1e-3, end: 1e-6 };
/// assert_eq!(rate.at(0, 100), 1e-3);
/// assert!((rate.at(50, 100) - (1e-3 + 1e-6) / 2.0).abs() < 1e-12);
/// assert!((rate.at(100, 100) - 1e-6).abs() < 1e-18);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cosine {
    /// Rate of the first step.
    pub start: f64,
    /// Rate that it falls to.
    pub end: f64,
}

impl Cosine {
    /// The rate of step `step` (from 0) out of `steps`.
    #[must_use]
    pub fn at(&self, step: u64, steps: u64) -> f64 {
        let progress = step.min(steps) as f64 / steps.max(1) as f64;
        self.end + 0.5 * (self.start - self.end) * (1.0 + (std::f64::consts::PI * progress).cos())
    }
}
