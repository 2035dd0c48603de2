//! What a solve says of each sample.

use serde::{Deserialize, Serialize};

/// How the solve of one sample ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// The residual fell to the tolerance.
    Converged,
    /// The iteration limit came first.
    IterationLimit,
    /// The residual stopped falling above the tolerance: the tolerance is below what the number type can reach.
    Stagnated,
    /// The state stopped being finite.
    NotFinite,
}

/// Iterations, residual and outcome of one sample.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleReport {
    /// Applications of the map.
    pub iterations: u32,
    /// The last residual, in the stopping rule's measure.
    pub residual: f64,
    /// How it ended.
    pub outcome: Outcome,
}

impl Default for SampleReport {
    fn default() -> Self {
        Self { iterations: 0, residual: f64::INFINITY, outcome: Outcome::IterationLimit }
    }
}

impl SampleReport {
    /// Whether the residual fell to the tolerance.
    pub fn converged(&self) -> bool {
        self.outcome == Outcome::Converged
    }
}
