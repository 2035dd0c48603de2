//! What a solve returns.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Outcome, SampleReport};

use crate::{Error, ErrorBound, Result};

/// The equilibria of a batch, and how each was reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution<T> {
    /// The states, sample after sample.
    pub z: Vec<T>,
    /// One report per sample.
    pub samples: Vec<SampleSolution>,
}

/// How one sample's solve ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleSolution {
    /// Applications of the map.
    pub iterations: u32,
    /// The last residual, in the stopping rule's measure.
    pub residual: f64,
    /// How it ended. Under [`crate::Stopping::certified`] only a sample whose error bound is within the distance asked
    /// for has converged.
    pub outcome: Outcome,
    /// A proven bound of the distance to the solution, where it was asked for and there is a certificate.
    pub error_bound: Option<ErrorBound>,
}

impl From<SampleReport> for SampleSolution {
    fn from(report: SampleReport) -> Self {
        let SampleReport { iterations, residual, outcome } = report;
        Self { iterations, residual, outcome, error_bound: None }
    }
}

impl<T> Solution<T> {
    /// Whether every sample converged.
    #[must_use]
    pub fn converged(&self) -> bool {
        self.samples.iter().all(|sample| sample.outcome == Outcome::Converged)
    }

    /// The same solution, or an error that names the first sample that did not converge.
    ///
    /// # Errors
    /// [`Error::NotConverged`].
    pub fn require_converged(self) -> Result<Self> {
        let reports = self.samples.iter().map(|s| (s.outcome, s.iterations, s.residual));
        require_converged("solves", reports)?;
        Ok(self)
    }
}

/// An error that names the first of the failed samples, if any failed.
pub(crate) fn require_converged(
    what: &'static str,
    reports: impl ExactSizeIterator<Item = (Outcome, u32, f64)>,
) -> Result<()> {
    let samples = reports.len();
    let mut failures = reports.enumerate().filter(|(_, (outcome, ..))| *outcome != Outcome::Converged);
    let Some((first, (outcome, iterations, residual))) = failures.next() else { return Ok(()) };
    let failed = 1 + failures.count();
    Err(Error::NotConverged { what, failed, samples, first, outcome, iterations, residual })
}
