//! Neural differential equations: not on the GPU yet.

use super::gpu::Memory;
use super::memory::CudaTally;
use super::{Cuda, not_yet};
use crate::{Activation, EngineError, Integrate, OdeReport, OdeTolerance, Operator, Result};

/// Nothing of this type exists: no integration can be planned on a GPU.
#[derive(Debug)]
pub enum NoIntegration {}

fn refused() -> EngineError {
    not_yet("a neural differential equation")
}

impl Integrate for Cuda {
    type OdePlan = NoIntegration;
    type OdeReports = NoIntegration;

    fn ode_plan(&self, _: Operator, _: Activation, _: usize) -> Result<NoIntegration> {
        Err(refused())
    }

    fn ode_load(&self, plan: &mut NoIntegration, _: &Memory<f32>) -> Result<()> {
        match *plan {}
    }

    fn ode_reports(&self, _: usize) -> Result<NoIntegration> {
        Err(refused())
    }

    fn read_ode_reports(&self, reports: &NoIntegration, _: &mut [OdeReport]) -> Result<()> {
        match *reports {}
    }

    fn ode_count(&self, _: usize, reports: &NoIntegration, _: &mut CudaTally) -> Result<()> {
        match *reports {}
    }

    fn integrate(
        &self,
        plan: &mut NoIntegration,
        _: usize,
        _: &Memory<f32>,
        _: &OdeTolerance,
        _: &mut Memory<f32>,
        _: &mut NoIntegration,
    ) -> Result<()> {
        match *plan {}
    }

    fn integrate_adjoint(
        &self,
        plan: &mut NoIntegration,
        _: usize,
        _: &Memory<f32>,
        _: &mut Memory<f32>,
        _: &mut Memory<f32>,
    ) -> Result<()> {
        match *plan {}
    }
}
