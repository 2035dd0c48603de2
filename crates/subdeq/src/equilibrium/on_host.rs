//! The layer for callers whose numbers are on the host.

use subdeq_engine::{Backend, Real};

use super::{Equilibrium, with_tied_shift};
use crate::memory::made;
use crate::{Error, Result, Solution, Stopping};

impl<D: Backend> Equilibrium<D> {
    /// Solves the batch of injections in `y`, sample after sample.
    ///
    /// # Errors
    /// A length that is not a whole number of samples, numbers that are not finite, or a stopping rule without a
    /// certificate. A sample that does not converge is not an error unless asked for
    /// ([`Solution::require_converged`]).
    pub fn solve(&mut self, y: &[D::Elem]) -> Result<Solution<D::Elem>> {
        self.solve_from(y, None)
    }

    /// The same from given states instead of the layer's usual start.
    ///
    /// # Errors
    /// As [`Equilibrium::solve`].
    pub fn solve_from(&mut self, y: &[D::Elem], start: Option<&[D::Elem]>) -> Result<Solution<D::Elem>> {
        let batch = self.batch_of(y)?;
        let injection = self.device.upload(y)?;
        match start {
            None => self.forward(batch, &injection)?,
            Some(start) => {
                self.set_states(batch, start)?;
                self.forward_warm(batch, &injection)?;
            }
        }
        let z = self.read_states()?;
        let reports = self.reports()?;
        let samples = self.with_bounds(y, &z, &reports)?;
        Ok(Solution { z, samples })
    }

    /// The relative residual after each iteration of the layer's solver, for each injection in `y`: until every sample is
    /// below `floor`, at most `limit` iterations.
    ///
    /// # Errors
    /// As [`Equilibrium::solve`].
    pub fn residual_curves(&mut self, y: &[D::Elem], floor: f64, limit: usize) -> Result<Vec<Vec<f64>>> {
        let batch = self.batch_of(y)?;
        let injection = self.device.upload(y)?;
        let stopping = self.stopping;
        let mut curves = vec![Vec::new(); batch];
        for iterations in 1..=limit {
            self.stopping = Stopping::relative(0.0).max_iterations(iterations);
            let ended = self.forward(batch, &injection);
            self.stopping = stopping;
            ended?;
            for (curve, report) in curves.iter_mut().zip(self.reports()?) {
                curve.push(report.residual);
            }
            if curves.iter().all(|curve| curve.last().is_some_and(|&r| r <= floor)) {
                break;
            }
        }
        Ok(curves)
    }

    /// `F(z; y)`, one application.
    ///
    /// # Errors
    /// Lengths that do not fit or numbers that are not finite.
    pub fn apply(&mut self, y: &[D::Elem], z: &[D::Elem]) -> Result<Vec<D::Elem>> {
        let batch = self.batch_of(y)?;
        if z.len() != batch * self.map.operator().state_len() {
            return Err(Error::invalid(format!("{} numbers are not {batch} states", z.len())));
        }
        self.prepare(batch)?;
        let Self { device, workspace, weights, map, .. } = self;
        let (device, ws) = (&**device, made(workspace)?);
        let (injection, state) = (device.upload(y)?, device.upload(z)?);
        let (mut sum, mut image) = (device.zeros(y.len())?, device.zeros(z.len())?);
        let injection =
            with_tied_shift(device, map, batch, &injection, weights.tied_shift(device), &mut sum)?;
        device.apply(&mut ws.plan, batch, &state, injection, &mut image)?;
        let mut out = vec![Default::default(); z.len()];
        device.read(&image, 0, &mut out)?;
        Ok(out)
    }

    /// Puts states there, for [`Equilibrium::forward_warm`] to start from.
    ///
    /// # Errors
    /// Another length than that of `batch` states, or numbers that are not finite.
    pub fn set_states(&mut self, batch: usize, states: &[D::Elem]) -> Result<()> {
        let expected = batch * self.map.operator().state_len();
        if states.len() != expected {
            return Err(Error::invalid(format!("{} numbers to start {expected} states from", states.len())));
        }
        self.reserve(batch)?;
        let ws = made(&mut self.workspace)?;
        Ok(self.device.write_finite("the states to start from", &mut ws.z, states)?)
    }

    /// The states of the last batch, sample after sample.
    ///
    /// # Errors
    /// No forward pass before it; a device that cannot be read.
    pub fn read_states(&self) -> Result<Vec<D::Elem>> {
        let ws = self.workspace.as_ref().filter(|ws| ws.solved > 0);
        let ws = ws.ok_or_else(|| Error::invalid("no batch was solved whose states could be read"))?;
        let mut z = vec![Default::default(); ws.solved * self.map.operator().state_len()];
        self.device.read(&ws.z, 0, &mut z)?;
        Ok(z)
    }

    /// How many samples `y` holds.
    pub(super) fn batch_of(&self, y: &[D::Elem]) -> Result<usize> {
        let len = self.map.injection_len();
        if y.is_empty() || !y.len().is_multiple_of(len) {
            return Err(Error::invalid(format!(
                "an injection of {} numbers is not a whole number of samples of {len} each",
                y.len()
            )));
        }
        if let Some(index) = y.iter().position(|y| !y.is_finite()) {
            return Err(Error::invalid(format!(
                "entry {} of the injection of sample {} is {}: inputs must be finite",
                index % len,
                index / len,
                y[index]
            )));
        }
        Ok(y.len() / len)
    }

    /// Solves, then pulls `v` (a gradient for the states) back: the gradients for the injection and for each parameter.
    ///
    /// # Errors
    /// As [`Equilibrium::solve`] and [`Equilibrium::backward`].
    #[allow(clippy::type_complexity)] // the injections, then each parameter
    pub fn gradients(&mut self, y: &[D::Elem], v: &[D::Elem]) -> Result<(Vec<D::Elem>, Vec<Vec<D::Elem>>)> {
        let batch = self.batch_of(y)?;
        if v.len() != batch * self.map.operator().state_len() {
            return Err(Error::invalid(format!("a gradient of {} numbers for {batch} states", v.len())));
        }
        let (injection, gradient) = (self.device.upload(y)?, self.device.upload(v)?);
        let mut gy = self.device.zeros(y.len())?;
        self.forward(batch, &injection)?;
        self.backward(batch, &injection, &gradient, &mut gy)?;
        let mut host = vec![Default::default(); y.len()];
        self.device.read(&gy, 0, &mut host)?;
        let mut gradients = Vec::new();
        for parameter in self.parameters() {
            let mut gradient = vec![Default::default(); parameter.len];
            self.device.read(&parameter.gradient, 0, &mut gradient)?;
            gradients.push(gradient);
        }
        Ok((host, gradients))
    }
}
