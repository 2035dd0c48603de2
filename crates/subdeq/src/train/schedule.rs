//! The learning rate over a training: cosine annealing, after a warm-up if one is wanted, stepped once per batch.

use serde::{Deserialize, Serialize};

/// From `start` to `end` along half a cosine.
///
/// ```
/// use subdeq::train::Cosine;
/// let rate = Cosine { start: 1e-3, end: 1e-6 };
/// assert_eq!(rate.at(0, 100), 1e-3);
/// assert!((rate.at(50, 100) - (1e-3 + 1e-6) / 2.0).abs() < 1e-12);
/// assert!((rate.at(100, 100) - 1e-6).abs() < 1e-18);
/// assert_eq!(rate.after_warm_up(4, 10, 110), 0.5e-3);
/// assert_eq!(rate.after_warm_up(60, 10, 110), rate.at(50, 100));
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

    /// The same where the first `warm_up` of all steps go up to the start along a line, and the cosine has the others.
    #[must_use]
    pub fn after_warm_up(&self, step: u64, warm_up: u64, steps: u64) -> f64 {
        match step.checked_sub(warm_up) {
            Some(step) => self.at(step, steps.saturating_sub(warm_up)),
            None => self.start * (step + 1) as f64 / warm_up as f64,
        }
    }
}
