//! What a device counted.

use crate::{OdeOutcome, OdeReport, Outcome, SampleReport};

/// Which solves are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Solves for the state.
    Forward,
    /// Adjoint solves.
    Backward,
}

/// What happened since the counters were last read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Samples whose loss was taken.
    pub samples: u64,
    /// Sum of `-ln softmax(logits)[label]`.
    pub loss: f64,
    /// What was added to the loss for the size of weights, and for opinions about nodes without labels.
    pub penalty: f64,
    /// Samples whose largest logit (the first, in a tie) is the label's.
    pub correct: u64,
    /// Solves for states.
    pub solves: u64,
    /// Of them converged.
    pub converged: u64,
    /// Applications of the map in them; accepted steps of integrations.
    pub forward_iterations: u64,
    /// Adjoint solves.
    pub adjoint_solves: u64,
    /// Applications of the map in them.
    pub backward_iterations: u64,
    /// Adjoint solves whose state stopped being finite: the gradients are worth nothing.
    pub adjoint_not_finite: u64,
    /// Integrations that did not reach the end.
    pub unfinished: u64,
}

impl Summary {
    /// Samples that converged: all of those that had nothing to solve; of a network, which solves several times for each sample, the
    /// share of its solves.
    #[must_use]
    pub fn converged_samples(&self) -> u64 {
        (self.converged * self.samples).checked_div(self.solves).unwrap_or(self.samples)
    }

    /// Counts the solves of some samples.
    pub(crate) fn count(&mut self, pass: Pass, reports: &[SampleReport]) {
        let iterations: u64 = reports.iter().map(|report| u64::from(report.iterations)).sum();
        let not_finite = reports.iter().filter(|report| report.outcome == Outcome::NotFinite).count() as u64;
        match pass {
            Pass::Forward => {
                self.solves += reports.len() as u64;
                self.forward_iterations += iterations;
                self.converged += reports.iter().filter(|report| report.converged()).count() as u64;
            }
            Pass::Backward => {
                self.adjoint_solves += reports.len() as u64;
                self.backward_iterations += iterations;
                self.adjoint_not_finite += not_finite;
            }
        }
    }

    /// Counts the integrations of some samples.
    pub(crate) fn count_integrations(&mut self, reports: &[OdeReport]) {
        let finished = reports.iter().filter(|report| report.outcome == OdeOutcome::Finished).count() as u64;
        self.solves += reports.len() as u64;
        self.converged += finished;
        self.unfinished += reports.len() as u64 - finished;
        self.forward_iterations += reports.iter().map(|report| u64::from(report.accepted)).sum::<u64>();
    }
}
