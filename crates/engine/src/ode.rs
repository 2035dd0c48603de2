//! The neural differential equation `dz/dt = s(W z)` on `[0, 1]` as data: what an integration is asked for and what it says.

use serde::{Deserialize, Serialize};

/// How accurately an equation is integrated.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OdeTolerance {
    /// Error of a step that is allowed, relative to the state.
    pub relative: f64,
    /// The same, absolute.
    pub absolute: f64,
    /// At most so many steps are tried, accepted or not.
    pub max_steps: usize,
}

/// How the integration of one sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OdeOutcome {
    /// The end of the interval was reached.
    Finished,
    /// The step limit came first; the answer is the state where it stopped.
    StepLimit,
    /// The state stopped being finite.
    NotFinite,
}

/// Steps and outcome of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OdeReport {
    /// Accepted steps.
    pub accepted: u32,
    /// Rejected steps.
    pub rejected: u32,
    /// The time that was reached; 1 when finished.
    pub time: f64,
    /// How it ended.
    pub outcome: OdeOutcome,
}

impl Default for OdeReport {
    fn default() -> Self {
        Self { accepted: 0, rejected: 0, time: 0.0, outcome: OdeOutcome::StepLimit }
    }
}
