//! How an equilibrium is searched for, when the search ends, where it starts.

use serde::{Deserialize, Serialize};

/// The method of iteration.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Solver {
    /// `z <- F(z)`.
    Picard,
    /// Anderson acceleration, safeguarded: a step that leaves the positive orthant (where the iteration
    /// was in it) or does not reduce the residual is replaced by a Picard step.
    Anderson {
        /// Number of past iterates kept.
        window: usize,
        /// Tikhonov term of the least-squares problem.
        ridge: f64,
        /// 1 takes images, 0 takes arguments of the combined iterates.
        mixing: f64,
    },
    /// Broyden's (good) method with limited memory.
    Broyden {
        /// Number of rank-one updates kept.
        memory: usize,
    },
    /// Peaceman-Rachford splitting with step `step` (monotone maps: [`crate::Form::Single`] with slopes in `[0, 1]`), a part
    /// of the way ([`PEACEMAN_RACHFORD_PART`]).
    PeacemanRachford {
        /// The step `t > 0`.
        step: f64,
    },
    /// Forward-backward splitting with step `step` (same maps).
    ForwardBackward {
        /// The step, in `(0, 1]`.
        step: f64,
    },
}

/// How much of the way to its image an iteration of Peaceman and Rachford's goes. All of it leaves what the image reflects (where the
/// activation is flat and the weights say little) changing its sign for ever; nine tenths of it leave 0.8 of that. (Samples of a GPU that
/// send only what has changed go all of the way, but half of it in one iteration of eight, which leaves nothing of that.)
pub const PEACEMAN_RACHFORD_PART: f64 = 0.9;

/// How the distance of `z` and `F(z)` is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Measure {
    /// `||F(z) - z||_2 / (1e-5 + ||F(z)||_2)`: the paper's.
    Relative,
    /// `||F(z) - z||_2`.
    Absolute,
    /// Thompson's metric `max |ln F(z) - ln z|` (positive states).
    Thompson,
    /// Hilbert's metric `max ln(F(z)/z) - min ln(F(z)/z)` (positive states).
    Hilbert,
    /// `max |F(z) - z|`.
    Sup,
}

/// Over what the residual is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Extent {
    /// Each sample stops by itself: answers do not depend on the batch.
    PerSample,
    /// All samples stop together, on the residual of the whole batch, as the paper's code does.
    WholeBatch,
}

/// When an iteration ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopping {
    /// How the residual is measured.
    pub measure: Measure,
    /// It must fall to this or below.
    pub tolerance: f64,
    /// At most so many applications of `F`.
    pub max_iterations: usize,
    /// Per sample or per batch.
    pub extent: Extent,
}

/// Where an iteration starts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Start {
    /// At this number in every entry (the paper: 1).
    Constant(f64),
    /// At what the output array holds.
    Given,
}
