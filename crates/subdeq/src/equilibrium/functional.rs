//! The layer as a function of its injection, for callers that keep injections, states and gradients themselves: what automatic
//! differentiation does, which may ask for the gradients of an earlier batch, or of several.

use subdeq_engine::{Backend, Outcome, Real, SampleReport, Start};

use super::{Equilibrium, with_tied_shift};
use crate::memory::made;
use crate::solution::require_converged;
use crate::solver::Rule;
use crate::{Adjoint, Error, Result, SampleSolution};

impl<D: Backend> Equilibrium<D> {
    /// Replaces the parameters, in their order, where they are others than those that are there: weights, plan and
    /// certificate of equal parameters are kept. The step of a splitting is chosen anew once they have moved far from those that
    /// it was chosen for.
    ///
    /// # Errors
    /// Another number of parameters, or other lengths.
    pub fn set_parameters(&mut self, values: &[&[D::Elem]]) -> Result<()> {
        let count = self.parameters().len();
        if values.len() != count {
            return Err(Error::invalid(format!("{} parameters for a layer of {count}", values.len())));
        }
        if self.has_parameters(values)? {
            return Ok(());
        }
        for (index, value) in values.iter().enumerate() {
            self.set_parameter(index, value)?;
        }
        if self.wants_step() && !self.step_origin.as_ref().is_some_and(|origin| is_near(origin, values)) {
            self.set_step(None);
            self.step_origin = Some(values.iter().map(|value| value.to_vec()).collect());
        }
        Ok(())
    }

    /// Whether the parameters are these, number for number.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn has_parameters(&self, values: &[&[D::Elem]]) -> Result<bool> {
        let mut host = Vec::new();
        for (parameter, value) in self.parameters().iter().zip(values) {
            host.resize(parameter.len, Default::default());
            self.device.read(&parameter.value, 0, &mut host)?;
            if host != *value {
                return Ok(false);
            }
        }
        Ok(values.len() == self.parameters().len())
    }

    /// Solves a batch of injections; the states go to `z`. How each solve ended.
    ///
    /// # Errors
    /// As [`Equilibrium::forward`].
    pub fn solve_into(&mut self, batch: usize, y: &D::Array, z: &mut D::Array) -> Result<Vec<SampleReport>> {
        let start = Start::Constant(self.start());
        self.solve_to(batch, y, start, Some(z))?;
        let mut reports = vec![SampleReport::default(); batch];
        self.device.read_reports(&made(&mut self.workspace)?.reports, &mut reports)?;
        Ok(reports)
    }

    /// What [`Equilibrium::solve_into`] found with what is proved about it: under [`crate::Stopping::certified`] each sample's
    /// error bound, and whether it is within the distance asked for.
    ///
    /// # Errors
    /// Lengths that do not fit.
    pub fn with_bounds(
        &mut self,
        y: &[D::Elem],
        z: &[D::Elem],
        reports: &[SampleReport],
    ) -> Result<Vec<SampleSolution>> {
        let mut samples: Vec<SampleSolution> = reports.iter().map(|&report| report.into()).collect();
        let Rule::Certified(distance) = self.stopping.rule else { return Ok(samples) };
        for (sample, bound) in samples.iter_mut().zip(self.error_bounds(y, z)?) {
            sample.error_bound = bound;
            let within = bound.is_some_and(|bound| bound.value <= distance);
            if sample.outcome == Outcome::Converged && !within {
                sample.outcome = Outcome::Stagnated;
            }
        }
        Ok(samples)
    }

    /// Pulls `v`, a gradient for the solutions `z` of the injections `y`, back: `gy` becomes the gradient for the injections,
    /// and the parameters get theirs. No forward pass need come before. How the adjoint solves ended; none where nothing was
    /// solved ([`Adjoint::Phantom`], [`Adjoint::Unrolled`]).
    ///
    /// # Errors
    /// Shapes that do not fit, or an adjoint solve whose state stopped being finite ([`Error::NotConverged`]).
    pub fn pull_back_at(
        &mut self,
        batch: usize,
        y: &D::Array,
        z: &D::Array,
        v: &D::Array,
        gy: &mut D::Array,
    ) -> Result<Vec<SampleReport>> {
        if let Adjoint::Unrolled { .. } = self.adjoint {
            // The gradient is that of the way, not of its end.
            self.forward(batch, y)?;
        } else {
            self.prepare(batch)?;
            let Self { device, workspace, weights, map, .. } = self;
            let ws = made(workspace)?;
            ws.solved = 0; // what it holds of the last forward pass is overwritten
            with_tied_shift(&**device, map, batch, y, weights.tied_shift(device), &mut ws.shifted)?;
        }
        self.pull_back(batch, Some(z), y, v, gy)?;
        if !matches!(self.adjoint, Adjoint::Implicit { .. }) {
            return Ok(Vec::new());
        }
        let mut reports = vec![SampleReport::default(); batch];
        self.device.read_reports(&made(&mut self.workspace)?.adjoint_reports, &mut reports)?;
        if reports.iter().any(|report| report.outcome == Outcome::NotFinite) {
            require_converged(
                "adjoint solves",
                reports.iter().map(|r| (r.outcome, r.iterations, r.residual)),
            )?;
        }
        Ok(reports)
    }
}

/// Whether numbers are still where a splitting's step was chosen: within a twentieth of their size.
fn is_near<T: Real>(origin: &[Vec<T>], values: &[&[T]]) -> bool {
    const SHARE: f64 = 0.05;
    let pairs = || origin.iter().zip(values).flat_map(|(origin, value)| origin.iter().zip(*value));
    let moved: f64 = pairs().map(|(a, b)| (a.to_f64() - b.to_f64()).powi(2)).sum();
    let size: f64 = pairs().map(|(a, _)| a.to_f64().powi(2)).sum();
    moved <= SHARE * SHARE * size
}
