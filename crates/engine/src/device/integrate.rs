//! The neural differential equation `dz/dt = s(W z)` on `[0, 1]` as data: what an integration is asked for and what it says.

use serde::{Deserialize, Serialize};

use super::Device;
use crate::{Activation, EngineError, Operator, Result};

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

impl OdeTolerance {
    /// The step that is tried first. The method's error is of the fifth order in its step, so that goes like the fifth root of what is
    /// allowed, with a factor by which the usual tolerance of 1e-3 begins with a third of the interval. Trained layers' ends are as near
    /// to the exact ones then as from 0.1, where one more step is made or none; from a half they are twice as far
    /// (`bench/first_step.py`).
    pub(crate) fn first_step(&self) -> f64 {
        (1.15 * (self.relative + self.absolute).powf(0.2)).min(1.0)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let Self { relative, absolute, max_steps } = *self;
        if relative >= 0.0 && absolute >= 0.0 && relative + absolute > 0.0 && max_steps > 0 {
            return Ok(());
        }
        Err(EngineError::Invalid(format!(
            "an integration needs a positive tolerance and at least one step, got {self:?}"
        )))
    }
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

/// A device that integrates neural differential equations: each sample with steps of its own, so that an answer does not
/// depend on the batch, and the gradient by backpropagation through the accepted steps.
pub trait Integrate: Device {
    /// Packed weights, scratch memory, and the trajectories of the last integration.
    type OdePlan: Send;
    /// How the integrations of a batch ended, on the device.
    type OdeReports: Send;

    /// Makes a plan for batches of at most `batch` samples.
    fn ode_plan(&self, operator: Operator, activation: Activation, batch: usize) -> Result<Self::OdePlan>;
    /// Loads `W`; refuses what is not finite.
    fn ode_load(&self, plan: &mut Self::OdePlan, w: &Self::Array) -> Result<()>;
    /// Room for the reports of `batch` samples.
    fn ode_reports(&self, batch: usize) -> Result<Self::OdeReports>;
    /// Reads the reports of the first samples.
    fn read_ode_reports(&self, reports: &Self::OdeReports, host: &mut [OdeReport]) -> Result<()>;
    /// Adds the reports of the first `batch` samples to the counters.
    fn ode_count(&self, batch: usize, reports: &Self::OdeReports, tally: &mut Self::Tally) -> Result<()>;
    /// `z(1)` from `z(0) = start`, for each sample; the plan remembers the trajectories.
    fn integrate(
        &self,
        plan: &mut Self::OdePlan,
        batch: usize,
        start: &Self::Array,
        tolerance: &OdeTolerance,
        end: &mut Self::Array,
        reports: &mut Self::OdeReports,
    ) -> Result<()>;
    /// Pulls `v`, the gradient for `z(1)`, back through the last integration: `gradient` for `z(0)`, and `gw` is added to.
    fn integrate_adjoint(
        &self,
        plan: &mut Self::OdePlan,
        batch: usize,
        v: &Self::Array,
        gradient: &mut Self::Array,
        gw: &mut Self::Array,
    ) -> Result<()>;
}
