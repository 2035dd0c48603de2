//! The equilibrium layer: `z` with `z = F(z; y)`.

use std::sync::Arc;

use rand::Rng;
use subdeq_engine::{Cpu, Map, Measure, Network, Operator, Outcome, Padding, Real, SampleReport, Start};
use subdeq_map::Operator as Weighted;
use subdeq_theory::certificate::{Certificate, Evidence, Metric, Scope, Verdict};
use subdeq_theory::certify::Certifier;

use crate::builder::{EquilibriumBuilder, Plan};
use crate::error_bound::{ErrorBounds, extremes};
use crate::map::Architecture;
use crate::parallel::in_parallel;
use crate::parametrisation::{Parametrisation, Peak};
use crate::solution::require_converged;
use crate::solver::{Rule, Solver};
use crate::{Adjoint, Error, ErrorBound, Result, Solution, Stopping, theory};

/// Of the distance asked for, the share that the residual may use up: the rest is for rounding.
const CERTIFIED_SHARE: f64 = 0.9;
/// Frequencies of a convolution that the choice of a splitting's step looks at.
const STEP_FREQUENCIES: usize = 24;

/// A parameter of a layer and its gradient, on the device.
#[derive(Debug)]
pub struct Parameter<A> {
    /// Its name within the layer.
    pub name: String,
    /// Numbers in it.
    pub len: usize,
    /// Its value.
    pub value: A,
    /// The gradient of the last backward pass.
    pub gradient: A,
}

/// An equilibrium layer with its parameters.
///
/// ```
/// use rand::SeedableRng;
/// use subdeq::map::Monotone;
/// use subdeq::{Activation, Equilibrium, Stopping};
///
/// let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
/// let mut layer = Equilibrium::dense(20)
///     .map(Monotone::new(Activation::Relu))
///     .stopping(Stopping::relative(1e-5))
///     .build(&mut rng)?;
/// let solution = layer.solve(&[0.3; 20])?.require_converged()?;
/// assert_eq!(solution.z.len(), 20);
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct Equilibrium<T: Real, D: Network<T>> {
    device: Arc<D>,
    architecture: Architecture,
    map: Map,
    solver: Solver,
    stopping: Stopping,
    adjoint: Adjoint,
    start: f64,
    parameters: Vec<Parameter<D::Array>>,
    weights: Weights<T, D::Array>,
    /// Whether the parameters changed since the weights were made from them.
    stale: bool,
    /// The step of a splitting, once chosen.
    step: Option<f64>,
    certifier: Certifier,
    certificate: Option<Certificate>,
    workspace: Option<Workspace<D::Plan, D::Array>>,
}

/// The weights, on the device and on the host (where the parametrisation works).
struct Weights<T, A> {
    arrays: Vec<A>,
    gradients: Vec<A>,
    peak_derivative: A,
    /// The part of the shift that is tied to the weights, one per unit.
    tied: A,
    host_free: Vec<Vec<T>>,
    host: Vec<Vec<T>>,
    host_gradients: Vec<Vec<T>>,
    host_free_gradients: Vec<Vec<T>>,
    host_peak_derivative: Vec<T>,
    host_tied: Vec<T>,
    peak: f64,
}

/// Everything whose size depends on the batch.
struct Workspace<P, A> {
    capacity: usize,
    plan: P,
    /// The injection with the tied shift added.
    y: A,
    z: A,
    g: A,
    /// Gradients of one step of several.
    gz: A,
    gy: A,
    /// The states that an unrolled layer goes through.
    states: Vec<A>,
    /// Where weight gradients go that nobody asked for.
    discarded: Vec<A>,
    reports: Vec<SampleReport>,
    adjoint_reports: Vec<SampleReport>,
}

impl Equilibrium<f32, Cpu<f32>> {
    /// A layer of `n` units.
    #[must_use]
    pub fn dense(n: usize) -> EquilibriumBuilder {
        EquilibriumBuilder::new(Operator::Dense { n })
    }

    /// A convolutional layer on images, stored height x width x channels, with 3x3 kernels as parameters.
    #[must_use]
    pub fn conv(channels: usize, height: usize, width: usize) -> EquilibriumBuilder {
        EquilibriumBuilder::new(Operator::Conv { channels, height, width, padding: Padding::Zero, kernel: 3 })
    }
}

impl<T: Real, D: Network<T>> Equilibrium<T, D> {
    pub(crate) fn new(device: Arc<D>, plan: Plan, rng: &mut impl Rng) -> Result<Self> {
        let Plan { operator, architecture, solver, stopping, adjoint, start, init } = plan;
        let map = architecture.map(operator)?;
        let parametrisation = architecture.parametrisation();
        parametrisation.check_operator(&operator)?;
        let units = operator.units();
        let free = parametrisation.free(&map);
        let host_free: Vec<Vec<T>> = free.iter().map(|&(_, len)| init.draw(len, len / units, rng)).collect();
        let parameters = free
            .iter()
            .zip(&host_free)
            .map(|(&(name, len), value)| Parameter {
                name: name.into(),
                len,
                value: device.upload(value),
                gradient: device.zeros(len),
            })
            .collect();
        let lens: Vec<usize> = (0..map.weight_count()).map(|k| map.weight_len(k)).collect();
        let zeros = |lens: &[usize]| lens.iter().map(|&len| vec![T::ZERO; len]).collect::<Vec<_>>();
        let peak_len = if parametrisation.is_shifted() { operator.weight_len() } else { 0 };
        let weights = Weights {
            arrays: lens.iter().map(|&len| device.zeros(len)).collect(),
            gradients: lens.iter().map(|&len| device.zeros(len)).collect(),
            peak_derivative: device.zeros(peak_len),
            tied: device.zeros(units),
            host_free_gradients: host_free.iter().map(|v| vec![T::ZERO; v.len()]).collect(),
            host_free,
            host: zeros(&lens),
            host_gradients: zeros(&lens),
            host_peak_derivative: vec![T::ZERO; peak_len],
            host_tied: vec![T::ZERO; units],
            peak: 0.0,
        };
        Ok(Self {
            device,
            architecture,
            map,
            solver,
            stopping,
            adjoint,
            start,
            parameters,
            weights,
            stale: true,
            step: None,
            certifier: Certifier::new(),
            certificate: None,
            workspace: None,
        })
    }

    /// The architecture.
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The map, as the engine knows it.
    pub fn map(&self) -> &Map {
        &self.map
    }

    /// The device it lives on.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The free parameters.
    pub fn parameters(&self) -> &[Parameter<D::Array>] {
        &self.parameters
    }

    /// The free parameters, to change; the weights follow at the next solve.
    pub fn parameters_mut(&mut self) -> &mut [Parameter<D::Array>] {
        self.stale = true;
        &mut self.parameters
    }

    /// Replaces a free parameter.
    ///
    /// # Errors
    /// No such parameter, or another length.
    pub fn set_parameter(&mut self, index: usize, value: &[T]) -> Result<()> {
        let count = self.parameters.len();
        let parameter = self.parameters.get_mut(index).ok_or_else(|| {
            Error::invalid(format!("parameter {index} of a layer that has {count} was to be set"))
        })?;
        self.device.write(&mut parameter.value, value)?;
        self.stale = true;
        Ok(())
    }

    /// The weights that the parameters stand for, in the order given with [`subdeq_engine::Map`].
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn weights(&mut self) -> Result<&[Vec<T>]> {
        self.refresh()?;
        Ok(&self.weights.host)
    }

    /// The value that every entry of the iteration starts with.
    pub fn start(&self) -> f64 {
        self.start
    }

    /// The step of the splitting solvers, once it is chosen.
    pub fn step(&self) -> Option<f64> {
        self.step
    }

    /// Fixes the step of the splitting solvers (a resumed run continues with the step it had).
    pub fn set_step(&mut self, step: Option<f64>) {
        self.step = step;
    }

    /// Chooses the step of the splitting solvers anew: where the computed factor of Peaceman-Rachford is least (a golden
    /// section search over `ln t`), or `m / L^2` for forward-backward. Does nothing if all steps are fixed.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn choose_step(&mut self) -> Result<()> {
        self.refresh()?;
        let Some(margin) = self.architecture.parametrisation().margin() else { return Ok(()) };
        if !self.wants_step() {
            return Ok(());
        }
        if matches!(self.solver, Solver::ForwardBackward(_)) {
            let lipschitz = 1.0 + self.norm_bound();
            self.step = Some((margin / (lipschitz * lipschitz)).min(1.0));
            return Ok(());
        }
        let (device, weights, operator) = (&self.device, &self.weights.arrays[0], self.map.operator());
        let mut factor =
            |ln_t: f64| device.splitting_factor(&operator, weights, ln_t.exp(), STEP_FREQUENCIES);
        self.step = Some(golden_section(-4.0, 2.5, 12, &mut factor)?.exp());
        Ok(())
    }

    /// `sqrt(||W||_1 ||W||_inf) >= ||W||_2` of the first weight array.
    fn norm_bound(&self) -> f64 {
        let units = self.map.operator().units();
        let taps = self.map.operator().taps();
        let (mut rows, mut cols) = (vec![0.0; units], vec![0.0; units]);
        for (at, w) in self.weights.host[0].iter().enumerate() {
            rows[at / taps / units] += w.to_f64().abs();
            cols[at / taps % units] += w.to_f64().abs();
        }
        let largest = |sums: &[f64]| sums.iter().fold(0.0f64, |m, &s| m.max(s));
        (largest(&rows) * largest(&cols)).sqrt()
    }

    /// Makes the weights from the parameters, if those changed.
    fn refresh(&mut self) -> Result<()> {
        if !self.stale {
            return Ok(());
        }
        let Self { device, weights, parameters, architecture, map, .. } = self;
        for (parameter, host) in parameters.iter().zip(&mut weights.host_free) {
            device.read(&parameter.value, host)?;
            if let Some(index) = host.iter().position(|x| !x.is_finite()) {
                return Err(Error::invalid(format!(
                    "entry {index} of the parameter `{}` of the layer `{}` is {}: training has diverged (lower the \
                     learning rate) or the file it was read from is damaged",
                    parameter.name,
                    architecture.name(),
                    host[index]
                )));
            }
        }
        let parametrisation = architecture.parametrisation();
        if parametrisation.is_shifted() {
            let peak =
                device.symmetric_peak(&map.operator(), &parameters[0].value, &mut weights.peak_derivative)?;
            device.read(&weights.peak_derivative, &mut weights.host_peak_derivative)?;
            // A little more than the estimate, so that rounding the weights costs none of the margin.
            weights.peak = peak + 8.0 * T::EPSILON.to_f64() * peak.abs();
        }
        parametrisation.forward(map, &weights.host_free, weights.peak, &mut weights.host);
        for (array, host) in weights.arrays.iter_mut().zip(&weights.host) {
            device.write(array, host)?;
        }
        let tie = map.equation().tie();
        if tie != 0.0 {
            let units = map.operator().units();
            for (tied, row) in weights.host_tied.iter_mut().zip(weights.host[1].chunks_exact(units)) {
                *tied = T::from_f64(tie * row.iter().map(|b| b.to_f64()).sum::<f64>());
            }
            device.write(&mut weights.tied, &weights.host_tied)?;
        }
        self.certificate = None;
        self.stale = false;
        if let Some(workspace) = &mut self.workspace {
            load(&*self.device, &mut workspace.plan, &self.weights.arrays)?;
        }
        if self.step.is_none() && self.wants_step() {
            self.choose_step()?;
        }
        Ok(())
    }

    /// Whether a splitting is used whose step nobody fixed.
    fn wants_step(&self) -> bool {
        let adjoint_wants = matches!(self.adjoint, Adjoint::Implicit { solver, .. } if solver.wants_step());
        self.solver.wants_step() || adjoint_wants
    }

    /// Makes room for batches of this many samples.
    ///
    /// # Errors
    /// A batch of no samples, or a plan that the device refuses.
    pub fn reserve(&mut self, batch: usize) -> Result<()> {
        if batch == 0 {
            return Err(Error::invalid("a batch of 0 samples was to be solved"));
        }
        self.refresh()?;
        if self.workspace.as_ref().is_some_and(|workspace| workspace.capacity >= batch) {
            return Ok(());
        }
        let device = &self.device;
        let mut plan = device.plan(&self.map, batch)?;
        load(&**device, &mut plan, &self.weights.arrays)?;
        let (states, injections) =
            (batch * self.map.operator().state_len(), batch * self.map.injection_len());
        let steps = if let Adjoint::Unrolled { steps } = self.adjoint { steps } else { 0 };
        let lens = (0..self.map.weight_count()).map(|k| self.map.weight_len(k));
        let several = matches!(self.adjoint, Adjoint::Phantom { steps: 2.. });
        self.workspace = Some(Workspace {
            capacity: batch,
            plan,
            y: device.zeros(if self.map.equation().tie() == 0.0 { 0 } else { injections }),
            z: device.zeros(states),
            g: device.zeros(states),
            gz: device.zeros(states),
            gy: device.zeros(injections),
            states: (0..steps).map(|_| device.zeros(states)).collect(),
            discarded: if several { lens.map(|len| device.zeros(len)).collect() } else { Vec::new() },
            reports: vec![SampleReport::default(); batch],
            adjoint_reports: vec![SampleReport::default(); batch],
        });
        Ok(())
    }

    /// Solves a batch on the device; the states are [`Equilibrium::states`], the reports [`Equilibrium::reports`].
    ///
    /// # Errors
    /// A shape that does not fit, weights that are not finite, or a stopping rule without a certificate. A sample that
    /// does not converge is not an error: its report says so.
    pub fn forward(&mut self, batch: usize, y: &D::Array) -> Result<()> {
        self.run(batch, y, Start::Constant(self.start))
    }

    /// The same, started at the states that are there.
    ///
    /// # Errors
    /// As [`Equilibrium::forward`].
    pub fn forward_warm(&mut self, batch: usize, y: &D::Array) -> Result<()> {
        self.run(batch, y, Start::Given)
    }

    fn run(&mut self, batch: usize, y: &D::Array, start: Start) -> Result<()> {
        self.reserve(batch)?;
        let stopping = self.resolved_stopping(self.stopping)?;
        let solver = self.solver.resolved(self.step.unwrap_or(1.0));
        let Self { device, workspace, weights, map, .. } = self;
        let Some(ws) = workspace else { return Ok(()) };
        let y = tied(&**device, map, batch, y, &weights.tied, &mut ws.y)?;
        if let Adjoint::Unrolled { .. } = self.adjoint {
            let path = (&mut ws.plan, &mut ws.states[..], &mut ws.z);
            unroll(&**device, map, batch, y, start, path)?;
            return report_unrolled(&**device, map, batch, &stopping, ws);
        }
        device.solve(
            &mut ws.plan,
            batch,
            y,
            &solver,
            &stopping,
            start,
            &mut ws.z,
            &mut ws.reports[..batch],
        )?;
        Ok(())
    }

    /// The states of the last batch.
    pub fn states(&self) -> Option<&D::Array> {
        self.workspace.as_ref().map(|workspace| &workspace.z)
    }

    /// How the solves of the last batch ended.
    pub fn reports(&self) -> &[SampleReport] {
        self.workspace.as_ref().map_or(&[], |workspace| &workspace.reports)
    }

    /// How the adjoint solves of the last batch ended ([`Adjoint::Implicit`] only).
    pub fn adjoint_reports(&self) -> &[SampleReport] {
        self.workspace.as_ref().map_or(&[], |workspace| &workspace.adjoint_reports)
    }

    /// Pulls `v`, a gradient for the states of the last [`Equilibrium::forward`] (of the same batch and injection), back:
    /// `gy` becomes the gradient for the injection, and the parameters get theirs.
    ///
    /// # Errors
    /// An adjoint solve whose state stopped being finite ([`Error::NotConverged`]); one that merely missed its tolerance
    /// is in [`Equilibrium::adjoint_reports`].
    pub fn backward(&mut self, batch: usize, y: &D::Array, v: &D::Array, gy: &mut D::Array) -> Result<()> {
        let no_forward =
            || Error::invalid("backward was called without a forward pass of at least this batch before it");
        if self.stale {
            return Err(Error::invalid("the parameters changed between the forward and the backward pass"));
        }
        let step = self.step.unwrap_or(1.0);
        let adjoint_stopping = match self.adjoint {
            Adjoint::Implicit { stopping, .. } => Some(self.resolved_stopping(stopping)?),
            _ => None,
        };
        let Self { device, workspace, weights, map, .. } = self;
        let ws = workspace.as_mut().filter(|ws| ws.capacity >= batch).ok_or_else(no_forward)?;
        let device = &**device;
        let y = if map.equation().tie() == 0.0 { y } else { &ws.y };
        for (k, gradient) in weights.gradients.iter_mut().enumerate() {
            device.fill(map.weight_len(k), 0.0, gradient)?;
        }
        let mut gw: Vec<&mut D::Array> = weights.gradients.iter_mut().collect();
        let states = batch * map.operator().state_len();
        match self.adjoint {
            Adjoint::Implicit { solver, .. } => {
                let Some(stopping) = adjoint_stopping else { return Err(no_forward()) };
                let reports = &mut ws.adjoint_reports[..batch];
                device.adjoint(
                    &mut ws.plan,
                    batch,
                    &ws.z,
                    y,
                    v,
                    &solver.resolved(step),
                    &stopping,
                    &mut ws.g,
                    reports,
                )?;
                if reports.iter().any(|report| report.outcome == Outcome::NotFinite) {
                    require_converged(
                        "adjoint solves",
                        reports.iter().map(|r| (r.outcome, r.iterations, r.residual)),
                    )?;
                }
                device.pullback(&mut ws.plan, batch, &ws.z, y, &ws.g, None, gy, &mut gw)?;
            }
            Adjoint::Phantom { steps } => {
                device.copy(states, v, &mut ws.g)?;
                for _ in 1..steps {
                    let mut discarded: Vec<&mut D::Array> = ws.discarded.iter_mut().collect();
                    let gz = Some(&mut ws.gz);
                    device.pullback(&mut ws.plan, batch, &ws.z, y, &ws.g, gz, &mut ws.gy, &mut discarded)?;
                    device.copy(states, v, &mut ws.g)?;
                    device.axpy(states, 1.0, &ws.gz, &mut ws.g)?;
                }
                device.pullback(&mut ws.plan, batch, &ws.z, y, &ws.g, None, gy, &mut gw)?;
            }
            Adjoint::Unrolled { .. } => {
                let injections = batch * map.injection_len();
                device.fill(injections, 0.0, gy)?;
                device.copy(states, v, &mut ws.g)?;
                for state in ws.states.iter().rev() {
                    device.pullback(
                        &mut ws.plan,
                        batch,
                        state,
                        y,
                        &ws.g,
                        Some(&mut ws.gz),
                        &mut ws.gy,
                        &mut gw,
                    )?;
                    device.axpy(injections, 1.0, &ws.gy, gy)?;
                    std::mem::swap(&mut ws.g, &mut ws.gz);
                }
            }
        }
        self.pull_parameters(batch, gy)
    }

    /// From gradients for the weights to gradients for the parameters.
    fn pull_parameters(&mut self, batch: usize, gy: &D::Array) -> Result<()> {
        let Self { device, weights, parameters, architecture, map, .. } = self;
        for (array, host) in weights.gradients.iter().zip(&mut weights.host_gradients) {
            device.read(array, host)?;
        }
        let tie = map.equation().tie();
        if tie != 0.0 {
            // The tied shift is a second way from B to the result: a_i = tie * (sum of row i of B).
            let units = map.operator().units();
            device.fill(units, 0.0, &mut weights.tied)?;
            device.sum_rows(batch * map.operator().state_len() / units, units, gy, &mut weights.tied)?;
            let mut sums = vec![T::ZERO; units];
            device.read(&weights.tied, &mut sums)?;
            device.write(&mut weights.tied, &weights.host_tied)?;
            for (row, &sum) in weights.host_gradients[1].chunks_exact_mut(units).zip(&sums) {
                row.iter_mut().for_each(|g| *g += T::from_f64(tie) * sum);
            }
        }
        let peak = Peak { value: weights.peak, derivative: &weights.host_peak_derivative };
        let gradients = &mut weights.host_free_gradients;
        architecture.parametrisation().pullback(
            map,
            &weights.host_free,
            peak,
            &weights.host_gradients,
            gradients,
        );
        for (parameter, host) in parameters.iter_mut().zip(gradients) {
            device.write(&mut parameter.gradient, host)?;
        }
        Ok(())
    }

    /// Solves the batch of injections in `y`, sample after sample.
    ///
    /// # Errors
    /// A length that is not a whole number of samples, numbers that are not finite, or a stopping rule without a
    /// certificate. A sample that does not converge is not an error unless asked for
    /// ([`Solution::require_converged`]).
    pub fn solve(&mut self, y: &[T]) -> Result<Solution<T>> {
        self.solve_from(y, None)
    }

    /// The same from given states instead of the layer's usual start.
    ///
    /// # Errors
    /// As [`Equilibrium::solve`].
    pub fn solve_from(&mut self, y: &[T], start: Option<&[T]>) -> Result<Solution<T>> {
        let batch = self.batch_of(y)?;
        self.reserve(batch)?;
        let injection = self.device.upload(y);
        match start {
            None => self.forward(batch, &injection)?,
            Some(start) => {
                self.set_states(batch, start)?;
                self.forward_warm(batch, &injection)?;
            }
        }
        let z = self.read_states(batch)?;
        let mut samples: Vec<crate::SampleSolution> =
            self.reports()[..batch].iter().map(|&r| r.into()).collect();
        if let Rule::Certified(distance) = self.stopping.rule {
            for (sample, bound) in samples.iter_mut().zip(self.error_bounds(y, &z)?) {
                sample.error_bound = bound;
                if sample.outcome == Outcome::Converged && !bound.is_some_and(|bound| bound.value <= distance)
                {
                    sample.outcome = Outcome::Stagnated;
                }
            }
        }
        Ok(Solution { z, samples })
    }

    /// The relative residual after each iteration of the layer's solver, for each injection in `y`: until every sample is
    /// below `floor`, at most `limit` iterations.
    ///
    /// # Errors
    /// As [`Equilibrium::solve`].
    pub fn residual_curves(&mut self, y: &[T], floor: f64, limit: usize) -> Result<Vec<Vec<f64>>> {
        let batch = self.batch_of(y)?;
        let injection = self.device.upload(y);
        let stopping = self.stopping;
        let mut curves = vec![Vec::new(); batch];
        for iterations in 1..=limit {
            self.stopping = Stopping::relative(0.0).max_iterations(iterations);
            let ended = self.forward(batch, &injection);
            self.stopping = stopping;
            ended?;
            for (curve, report) in curves.iter_mut().zip(self.reports()) {
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
    pub fn apply(&mut self, y: &[T], z: &[T]) -> Result<Vec<T>> {
        let batch = self.batch_of(y)?;
        self.reserve(batch)?;
        let Self { device, workspace, weights, map, .. } = self;
        let (injection, state) = (device.upload(y), device.upload(z));
        let (mut sum, mut image) = (device.zeros(y.len()), device.zeros(z.len()));
        let injection = tied(&**device, map, batch, &injection, &weights.tied, &mut sum)?;
        if let Some(ws) = workspace {
            device.apply(&mut ws.plan, batch, &state, injection, &mut image)?;
        }
        let mut out = vec![T::ZERO; z.len()];
        device.read(&image, &mut out)?;
        Ok(out)
    }

    /// Puts states there, for [`Equilibrium::forward_warm`] to start from.
    ///
    /// # Errors
    /// Another length than that of `batch` states, or numbers that are not finite.
    pub fn set_states(&mut self, batch: usize, states: &[T]) -> Result<()> {
        let expected = batch * self.map.operator().state_len();
        if states.len() != expected {
            return Err(Error::invalid(format!("{} numbers to start {expected} states from", states.len())));
        }
        self.reserve(batch)?;
        if let Some(ws) = &mut self.workspace {
            self.device.write_finite("the states to start from", &mut ws.z, states)?;
        }
        Ok(())
    }

    /// The states of the last batch, sample after sample.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn read_states(&self, batch: usize) -> Result<Vec<T>> {
        let len = self.map.operator().state_len();
        let Some(ws) = &self.workspace else { return Ok(Vec::new()) };
        let mut z = vec![T::ZERO; ws.capacity * len];
        self.device.read(&ws.z, &mut z)?;
        z.truncate(batch * len);
        Ok(z)
    }

    /// How many samples `y` holds.
    fn batch_of(&self, y: &[T]) -> Result<usize> {
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
    pub fn gradients(&mut self, y: &[T], v: &[T]) -> Result<(Vec<T>, Vec<Vec<T>>)> {
        let batch = self.batch_of(y)?;
        if v.len() != batch * self.map.operator().state_len() {
            return Err(Error::invalid(format!("a gradient of {} numbers for {batch} states", v.len())));
        }
        let (injection, gradient) = (self.device.upload(y), self.device.upload(v));
        let mut gy = self.device.zeros(y.len());
        self.forward(batch, &injection)?;
        self.backward(batch, &injection, &gradient, &mut gy)?;
        let mut host = vec![T::ZERO; y.len()];
        self.device.read(&gy, &mut host)?;
        Ok((host, self.weights.host_free_gradients.clone()))
    }

    /// The widest set of inputs that the layer is meant for: every real one for a monotone map, else every `y >= 0`.
    #[must_use]
    pub fn scope(&self) -> Scope {
        Scope::widest(&self.map.equation())
    }

    /// What can be promised about the fixed points for the inputs of a scope; inputs in it are in the layer's order.
    ///
    /// # Errors
    /// Parameters that are not finite or an injection that does not fit.
    pub fn certify(&mut self, scope: Scope) -> Result<Certificate> {
        let (operator, _) = self.operators()?;
        let on = self.map.operator();
        let scope = match scope {
            Scope::InputSet { ymax } => Scope::InputSet { ymax: theory::state(&on, &ymax) },
            Scope::Sample { y } => Scope::Sample { y: theory::state(&on, &y) },
            unordered => unordered,
        };
        let certified = self.certifier.certify(&self.map.equation(), &operator, &scope);
        certified.map_err(|error| Error::invalid(error.to_string()))
    }

    /// Whether a certificate, from a file for example, is about this layer's equation and holds for its weights.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn confirms(&mut self, certificate: &Certificate) -> Result<bool> {
        let (operator, _) = self.operators()?;
        Ok(certificate.map == self.map.equation() && certificate.recheck(&operator).is_ok())
    }

    /// Whether [`Equilibrium::prove`] takes less time than a few batches: dense layers of moderate width, and
    /// convolutions whose form alone is the proof.
    pub fn proves_quickly(&self) -> bool {
        match self.map.operator() {
            Operator::Dense { n } => n <= 256,
            Operator::Conv { .. } => {
                let free = self.architecture.parametrisation() == Parametrisation::Free;
                !free && !self.architecture.is_monotone()
            }
        }
    }

    /// A proof for all inputs of [`Equilibrium::scope`] if there is a quick one; refutations are not searched for.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn prove(&mut self) -> Result<Certificate> {
        let (operator, _) = self.operators()?;
        let certified = Certifier::proofs_only().certify(&self.map.equation(), &operator, &self.scope());
        certified.map_err(|error| Error::invalid(error.to_string()))
    }

    /// The verdicts for the injections in `y`, one by one, by `threads` threads (0: as many as the machine has).
    ///
    /// # Errors
    /// Parameters that are not finite or a length that does not fit.
    pub fn certify_samples(&mut self, y: &[T], threads: usize) -> Result<Vec<Certificate>> {
        self.verdicts(y, threads, &Certifier::new())
    }

    /// The same without searching for refutations, which takes a hundred times as long where nothing is proved.
    ///
    /// # Errors
    /// Parameters that are not finite or a length that does not fit.
    pub fn prove_samples(&mut self, y: &[T], threads: usize) -> Result<Vec<Certificate>> {
        self.verdicts(y, threads, &Certifier::proofs_only())
    }

    fn verdicts(&mut self, y: &[T], threads: usize, certifier: &Certifier) -> Result<Vec<Certificate>> {
        self.batch_of(y)?;
        let (operator, _) = self.operators()?;
        let (on, equation) = (self.map.operator(), self.map.equation());
        let samples: Vec<&[T]> = y.chunks_exact(self.map.injection_len()).collect();
        let one = |y: &[T]| {
            let y: Vec<f64> = y.iter().map(|y| y.to_f64()).collect();
            // A certifier of its own: what is found does not depend on what was looked at before.
            certifier.clone().certify(&equation, &operator, &Scope::Sample { y: theory::state(&on, &y) })
        };
        in_parallel(threads, &samples, one)
            .into_iter()
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| Error::invalid(error.to_string()))
    }

    /// The weights as equations read them, and the hidden ones of the gains.
    fn operators(&mut self) -> Result<(Weighted, Option<Weighted>)> {
        self.refresh()?;
        theory::operators(&self.map.operator(), &self.weights_f64())
    }

    fn weights_f64(&self) -> Vec<Vec<f64>> {
        self.weights.host.iter().map(|w| w.iter().map(|x| x.to_f64()).collect()).collect()
    }

    /// The verdict for all inputs of [`Equilibrium::scope`] about the present weights, computed once.
    fn certificate(&mut self) -> Result<&Certificate> {
        if self.certificate.is_none() || self.stale {
            let certificate = self.certify(self.scope())?;
            self.certificate = Some(certificate);
        }
        self.certificate.as_ref().ok_or_else(|| Error::invalid("no certificate"))
    }

    /// Proven bounds of the distance of each state in `z` to the solution for its injection in `y`: one application of
    /// the map in `f64`, rounded outward. `None` where there is no certificate for [`Equilibrium::scope`] to base one on, or the
    /// injection lies outside of it.
    ///
    /// # Errors
    /// Lengths that do not fit.
    pub fn error_bounds(&mut self, y: &[T], z: &[T]) -> Result<Vec<Option<ErrorBound>>> {
        let batch = self.batch_of(y)?;
        let (states, injections) = (self.map.operator().state_len(), self.map.injection_len());
        if z.len() != batch * states {
            return Err(Error::invalid(format!(
                "{} numbers are not {batch} states of {states} each",
                z.len()
            )));
        }
        let certificate = self.certificate()?.clone();
        let (operator, hidden) = self.operators()?;
        let bounds = ErrorBounds::new(&certificate, &operator, hidden.as_ref())?;
        let on = self.map.operator();
        let in_order = |x: &[T]| theory::state(&on, &x.iter().map(|x| x.to_f64()).collect::<Vec<f64>>());
        let samples = z.chunks_exact(states).zip(y.chunks_exact(injections));
        Ok(samples.map(|(z, y)| bounds.of(&in_order(z), &in_order(y))).collect())
    }

    /// The engine's stopping rule; for a certified distance, the residual that implies it.
    fn resolved_stopping(&mut self, stopping: Stopping) -> Result<subdeq_engine::Stopping> {
        let distance = match stopping.rule {
            Rule::Relative(tolerance) => return Ok(stopping.resolved(Measure::Relative, tolerance)),
            Rule::Absolute(tolerance) => return Ok(stopping.resolved(Measure::Absolute, tolerance)),
            Rule::Certified(distance) => distance * CERTIFIED_SHARE,
        };
        let step = self.step.unwrap_or(1.0);
        let certificate = self.certificate()?;
        let none = |why: String| Err(Error::NoCertificate { map: certificate.map.to_string(), why });
        let Verdict::Proven { factor, metric, evidence, .. } = &certificate.verdict else {
            return none(format!(
                "uniqueness {} is {} with these weights, so no residual bounds the distance to the solution; use \
                 Stopping::relative, or a map with a proof (split-sign, monotone, ..)",
                certificate.scope,
                certificate.verdict.name()
            ));
        };
        let spread = |scaling: &[f64]| {
            let (least, most) = extremes(scaling);
            least / most
        };
        if let Evidence::Splitting { weights, margin, lipschitz, .. } = evidence {
            // With r the step in u: ||F(z) - z|| <= (L + 1/t) r / 2, and the bound is (1 + ||W||/m) ||F(z) - z||.
            let tolerance = 2.0 * distance / ((1.0 + (1.0 + lipschitz) / margin) * (lipschitz + 1.0 / step));
            return Ok(stopping.resolved(Measure::Absolute, tolerance * spread(weights)));
        }
        let Some(factor) = factor else {
            return none("the proof gives uniqueness without a rate".into());
        };
        let residual = distance * (1.0 - factor);
        let (measure, tolerance) = match metric {
            Metric::Thompson => (Measure::Thompson, residual),
            Metric::Hilbert => (Measure::Hilbert, residual),
            Metric::WeightedSup { v } => (Measure::Sup, residual * spread(v)),
            Metric::WeightedTwoNorm { t } => (Measure::Absolute, residual * spread(t)),
            Metric::None => return none("the proof gives uniqueness without a rate".into()),
        };
        Ok(stopping.resolved(measure, tolerance))
    }
}

fn load<T: Real, D: Network<T>>(device: &D, plan: &mut D::Plan, weights: &[D::Array]) -> Result<()> {
    let weights: Vec<&D::Array> = weights.iter().collect();
    Ok(device.load(plan, &weights)?)
}

/// The injection with the tied shift added, where there is one.
fn tied<'a, T: Real, D: Network<T>>(
    device: &D,
    map: &Map,
    batch: usize,
    y: &'a D::Array,
    shift: &D::Array,
    sum: &'a mut D::Array,
) -> Result<&'a D::Array> {
    if map.equation().tie() == 0.0 {
        return Ok(y);
    }
    let (len, units) = (batch * map.operator().state_len(), map.operator().units());
    device.copy(len, y, sum)?;
    device.add_to_rows(len / units, units, shift, sum)?;
    Ok(sum)
}

/// Picard steps, each state kept: `states[0]` is the start, `z` the end.
fn unroll<T: Real, D: Network<T>>(
    device: &D,
    map: &Map,
    batch: usize,
    y: &D::Array,
    start: Start,
    (plan, states, z): (&mut D::Plan, &mut [D::Array], &mut D::Array),
) -> Result<()> {
    let len = batch * map.operator().state_len();
    match start {
        Start::Constant(value) => device.fill(len, value, &mut states[0])?,
        Start::Given => device.copy(len, z, &mut states[0])?,
    }
    for k in 0..states.len() {
        let (done, rest) = states.split_at_mut(k + 1);
        let next = rest.first_mut().unwrap_or(z);
        device.apply(plan, batch, &done[k], y, next)?;
    }
    Ok(())
}

/// How far the last two states of an unrolled layer are apart, per sample.
fn report_unrolled<T: Real, D: Network<T>>(
    device: &D,
    map: &Map,
    batch: usize,
    stopping: &subdeq_engine::Stopping,
    ws: &mut Workspace<D::Plan, D::Array>,
) -> Result<()> {
    let len = map.operator().state_len();
    let (mut last, mut z) = (vec![T::ZERO; ws.capacity * len], vec![T::ZERO; ws.capacity * len]);
    let iterations = ws.states.len() as u32;
    if let Some(state) = ws.states.last() {
        device.read(state, &mut last)?;
    }
    device.read(&ws.z, &mut z)?;
    let samples = last.chunks_exact(len).zip(z.chunks_exact(len));
    for (report, (last, z)) in ws.reports[..batch].iter_mut().zip(samples) {
        let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
        let gap = squares(&mut last.iter().zip(z).map(|(a, b)| b.to_f64() - a.to_f64()));
        let size = squares(&mut z.iter().map(|z| z.to_f64()));
        let residual = if stopping.measure == Measure::Relative { gap / (1e-5 + size) } else { gap };
        let outcome = match residual {
            r if !r.is_finite() => Outcome::NotFinite,
            r if r <= stopping.tolerance => Outcome::Converged,
            _ => Outcome::IterationLimit,
        };
        *report = SampleReport { iterations, residual, outcome };
    }
    Ok(())
}

/// The least of a unimodal function on `[low, high]`, to within `0.618^rounds` of the interval.
fn golden_section(
    low: f64,
    high: f64,
    rounds: usize,
    f: &mut impl FnMut(f64) -> subdeq_engine::Result<f64>,
) -> Result<f64> {
    const RATIO: f64 = 0.618_033_988_749_894_9;
    let (mut low, mut high) = (low, high);
    let (mut left, mut right) = (high - RATIO * (high - low), low + RATIO * (high - low));
    let (mut at_left, mut at_right) = (f(left)?, f(right)?);
    for _ in 0..rounds {
        if at_left <= at_right {
            (high, right, at_right) = (right, left, at_left);
            left = high - RATIO * (high - low);
            at_left = f(left)?;
        } else {
            (low, left, at_left) = (left, right, at_right);
            right = low + RATIO * (high - low);
            at_right = f(right)?;
        }
    }
    Ok(if at_left <= at_right { left } else { right })
}
