//! Neural ODE layers: `dz/dt = s(W z)` on `[0, 1]`, `z(0) = y`, output `z(1)` (the paper's `node-relu` and `node-tanh`).

use std::sync::Arc;

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::{Activation, Backend, OdeOutcome, OdeReport, OdeTolerance, Operator};

use crate::memory::made;
use crate::{Error, Init, Parameter, Result};

/// The right-hand side's activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OdeActivation {
    /// `max(u, 0)`.
    Relu,
    /// `tanh u`.
    Tanh,
}

impl From<OdeActivation> for Activation {
    fn from(activation: OdeActivation) -> Self {
        match activation {
            OdeActivation::Relu => Self::Relu,
            OdeActivation::Tanh => Self::Tanh,
        }
    }
}

/// An integration that needs more steps than this is given up.
const MAX_STEPS: usize = 1000;

/// A neural ODE layer: Dormand and Prince's method of order 5(4), each sample with steps of its own, so that an answer does
/// not depend on the batch. Gradients are those of the steps that were taken, by backpropagation through them with their
/// lengths held fixed.
pub struct NeuralOde<D: Backend> {
    device: Arc<D>,
    operator: Operator,
    activation: OdeActivation,
    tolerance: OdeTolerance,
    weight: Parameter<D::Array>,
    workspace: Option<Workspace<D>>,
}

/// Everything whose size depends on the batch.
struct Workspace<D: Backend> {
    capacity: usize,
    /// Samples of the last integration; 0 before it.
    integrated: usize,
    plan: D::OdePlan,
    z: D::Array,
    reports: D::OdeReports,
}

impl<D: Backend> NeuralOde<D> {
    /// A layer on an operator's states; `tolerance` is the error that a step may make, relative and absolute.
    ///
    /// # Errors
    /// A tolerance that is not positive, or an empty state.
    pub fn new(
        device: Arc<D>,
        operator: Operator,
        activation: OdeActivation,
        tolerance: f64,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        if !(tolerance > 0.0 && tolerance.is_finite()) {
            return Err(Error::invalid(format!(
                "the tolerance of an integration is a positive number, not {tolerance}"
            )));
        }
        if operator.state_len() == 0 {
            return Err(Error::invalid("a neural ODE without units"));
        }
        let (len, units) = (operator.weight_len(), operator.units());
        let value = init.draw::<D::Elem>(len, len / units, rng);
        let (value, gradient) = (device.upload(&value)?, device.zeros(len)?);
        let weight = Parameter { name: "weight".into(), len, value, gradient };
        let tolerance = OdeTolerance { relative: tolerance, absolute: tolerance, max_steps: MAX_STEPS };
        Ok(Self { device, operator, activation, tolerance, weight, workspace: None })
    }

    /// The weights.
    pub fn parameter(&self) -> &Parameter<D::Array> {
        &self.weight
    }

    /// The weights, to change.
    pub fn parameter_mut(&mut self) -> &mut Parameter<D::Array> {
        &mut self.weight
    }

    /// The states at time 1 of the last batch.
    pub fn states(&self) -> Option<&D::Array> {
        self.workspace.as_ref().map(|workspace| &workspace.z)
    }

    /// How the integration of each sample of the last batch went.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn reports(&self) -> Result<Vec<OdeReport>> {
        let Some(ws) = &self.workspace else { return Ok(Vec::new()) };
        let mut host = vec![OdeReport::default(); ws.integrated];
        self.device.read_ode_reports(&ws.reports, &mut host)?;
        Ok(host)
    }

    /// Makes room for batches of this many samples.
    ///
    /// # Errors
    /// A batch of no samples.
    pub fn reserve(&mut self, batch: usize) -> Result<()> {
        if self.workspace.as_ref().is_none_or(|workspace| workspace.capacity < batch) {
            self.workspace = Some(Workspace {
                capacity: batch,
                integrated: 0,
                plan: self.device.ode_plan(self.operator, self.activation.into(), batch)?,
                z: self.device.zeros(batch * self.operator.state_len())?,
                reports: self.device.ode_reports(batch)?,
            });
        }
        Ok(())
    }

    /// Integrates from `y` at time 0 to time 1.
    ///
    /// # Errors
    /// A state that stops being finite, or more than 1000 steps.
    pub fn forward(&mut self, batch: usize, y: &D::Array) -> Result<()> {
        self.integrate(batch, y)?;
        let unfinished = |report: &&OdeReport| report.outcome != OdeOutcome::Finished;
        match self.reports()?.iter().filter(unfinished).count() as u64 {
            0 => Ok(()),
            count => Err(self.failure(count)?),
        }
    }

    /// The same where nobody waits for the device: how the integrations ended is counted, and whoever reads the counters must
    /// look at [`subdeq_engine::Summary::unfinished`] before the states are trusted.
    ///
    /// # Errors
    /// Arrays that do not fit.
    pub fn forward_counted(&mut self, batch: usize, y: &D::Array, tally: &mut D::Tally) -> Result<()> {
        self.integrate(batch, y)?;
        let ws = made(&mut self.workspace)?;
        Ok(self.device.ode_count(batch, &ws.reports, tally)?)
    }

    fn integrate(&mut self, batch: usize, y: &D::Array) -> Result<()> {
        self.reserve(batch)?;
        let Self { device, workspace, tolerance, weight, .. } = self;
        let ws = made(workspace)?;
        ws.integrated = 0;
        device.ode_load(&mut ws.plan, &weight.value)?;
        device.integrate(&mut ws.plan, batch, y, tolerance, &mut ws.z, &mut ws.reports)?;
        ws.integrated = batch;
        Ok(())
    }

    /// What to say when integrations of the last steps did not reach their end.
    pub(crate) fn failure(&self, count: u64) -> Result<Error> {
        let reports = self.reports()?;
        let first = reports.iter().enumerate().find(|(_, report)| report.outcome != OdeOutcome::Finished);
        Ok(Error::invalid(match first {
            Some((sample, report)) => format!(
                "the neural ODE of sample {sample} {} at time {:.4}: its weights have grown too large for a tolerance of {:e}",
                match report.outcome {
                    OdeOutcome::NotFinite => "stopped being finite",
                    _ => "reached its limit of 1000 steps",
                },
                report.time,
                self.tolerance.relative
            ),
            None => format!("{count} integrations of the last steps did not reach their end"),
        }))
    }

    /// Pulls a gradient `v` for the states at time 1 back: `gy` becomes the one for the states at time 0, and the weights
    /// get theirs.
    ///
    /// # Errors
    /// No forward pass before it, or arrays that do not fit.
    pub fn backward(&mut self, batch: usize, v: &D::Array, gy: &mut D::Array) -> Result<()> {
        let Self { device, workspace: Some(ws), weight, .. } = self else {
            return Err(Error::invalid("backward was called without a forward pass before it"));
        };
        device.fill(weight.len, 0.0, &mut weight.gradient)?;
        Ok(device.integrate_adjoint(&mut ws.plan, batch, v, gy, &mut weight.gradient)?)
    }
}
