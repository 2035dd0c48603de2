//! The equilibrium layer: `z` with `z = F(z; y)`.

mod certified;
mod functional;
mod on_host;
mod splitting_step;
mod unrolled;
mod weights;
mod workspace;

use std::sync::Arc;

use rand::Rng;
use subdeq_engine::{
    Backend, Cpu, Operator, Outcome, Padding, Pass, Picks, Room, SampleReport, ShapedMap, Start,
};

use self::certified::Certified;
use self::unrolled::{Path, WayBack, unroll, unroll_backward};
use self::weights::LayerWeights;
use self::workspace::Workspace;
use crate::builder::{Decided, EquilibriumBuilder};
use crate::map::ParametrisedMap;
use crate::memory::made;
use crate::solution::require_converged;
use crate::solver::Solver;
use crate::{Adjoint, Error, Result, Stopping};

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
pub struct Equilibrium<D: Backend> {
    device: Arc<D>,
    architecture: ParametrisedMap,
    map: ShapedMap,
    solver: Solver,
    stopping: Stopping,
    adjoint: Adjoint,
    start: f64,
    weights: LayerWeights<D>,
    /// The step of a splitting, once chosen.
    step: Option<f64>,
    /// The parameters that it was chosen for, where they are set as a whole.
    step_origin: Option<Vec<Vec<D::Elem>>>,
    certified: Certified,
    workspace: Option<Workspace<D>>,
}

impl Equilibrium<Cpu<f32>> {
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

impl<D: Backend> Equilibrium<D> {
    pub(crate) fn new(device: Arc<D>, decided: Decided, rng: &mut impl Rng) -> Result<Self> {
        let Decided { operator, architecture, solver, stopping, adjoint, start, init } = decided;
        let map = architecture.map(operator)?;
        let weights = LayerWeights::new(&*device, &architecture, &map, init, rng)?;
        let (step, certified, workspace) = (None, Certified::default(), None);
        Ok(Self {
            device,
            architecture,
            map,
            solver,
            stopping,
            adjoint,
            start,
            weights,
            step,
            step_origin: None,
            certified,
            workspace,
        })
    }

    /// The architecture.
    pub fn architecture(&self) -> &ParametrisedMap {
        &self.architecture
    }

    /// The map, as the engine knows it.
    pub fn map(&self) -> &ShapedMap {
        &self.map
    }

    /// The device it lives on.
    pub fn device(&self) -> &Arc<D> {
        &self.device
    }

    /// The free parameters.
    pub fn parameters(&self) -> &[Parameter<D::Array>] {
        self.weights.parameters()
    }

    /// The free parameters, to change; the weights follow at the next solve.
    pub fn parameters_mut(&mut self) -> &mut [Parameter<D::Array>] {
        self.weights.parameters_mut()
    }

    /// How often they may have been changed.
    pub(crate) fn changes(&self) -> u64 {
        self.weights.version()
    }

    /// Replaces a free parameter.
    ///
    /// # Errors
    /// No such parameter, or another length.
    pub fn set_parameter(&mut self, index: usize, value: &[D::Elem]) -> Result<()> {
        let count = self.parameters().len();
        let parameter = self.weights.parameters_mut().get_mut(index).ok_or_else(|| {
            Error::invalid(format!("parameter {index} of a layer that has {count} was to be set"))
        })?;
        if value.len() != parameter.len {
            return Err(Error::invalid(format!(
                "the parameter `{}` has {} numbers, {} were given",
                parameter.name,
                parameter.len,
                value.len()
            )));
        }
        Ok(self.device.write(&mut parameter.value, 0, value)?)
    }

    /// The weights that the parameters stand for, in the order given with [`subdeq_engine::ShapedMap`].
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn weights(&mut self) -> Result<Vec<Vec<D::Elem>>> {
        self.refresh()?;
        self.weights.read(&self.device, &self.map)
    }

    /// The value that every entry of the iteration starts with.
    pub fn start(&self) -> f64 {
        self.start
    }

    /// Makes the weights of the parameters, if those changed.
    fn refresh(&mut self) -> Result<()> {
        self.weights.refresh(&self.device, &self.architecture)
    }

    /// Makes room for batches of this many samples.
    ///
    /// # Errors
    /// A batch of no samples, or a plan that the device refuses.
    pub fn reserve(&mut self, batch: usize) -> Result<()> {
        if batch == 0 {
            return Err(Error::invalid("a batch of 0 samples was to be solved"));
        }
        if self.workspace.as_ref().is_none_or(|workspace| workspace.capacity < batch) {
            self.workspace = None; // its memory may be needed for the larger one
            self.workspace = Some(Workspace::new(&*self.device, &self.map, self.adjoint, batch)?);
        }
        Ok(())
    }

    /// Room for a batch, weights in the plan, a step for the splittings.
    fn prepare(&mut self, batch: usize) -> Result<()> {
        self.refresh()?;
        self.reserve(batch)?;
        let (workspace, version) = (made(&mut self.workspace)?, self.weights.version());
        if workspace.loaded != Some(version) {
            workspace.loaded = None;
            let arrays: Vec<&D::Array> = self.weights.arrays(&self.device).iter().collect();
            self.device.load(&mut workspace.plan, &arrays)?;
            workspace.loaded = Some(version);
        }
        if self.step.is_none() && self.wants_step() {
            self.choose_step()?;
        }
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
        self.solve_to(batch, y, start, None)?;
        made(&mut self.workspace)?.solved = batch;
        Ok(())
    }

    /// Solves a batch; the states go to `elsewhere`, or to those of the workspace.
    fn solve_to(
        &mut self,
        batch: usize,
        y: &D::Array,
        start: Start,
        elsewhere: Option<&mut D::Array>,
    ) -> Result<()> {
        self.prepare(batch)?;
        let solver = self.solver.resolved(self.step.unwrap_or(1.0));
        let stopping = self.resolved_stopping(self.stopping, &solver)?;
        let Self { device, workspace, weights, map, .. } = self;
        let (device, ws) = (&**device, made(workspace)?);
        ws.solved = 0;
        let Workspace { plan, shifted, trajectory, z, reports, .. } = ws;
        let z = elsewhere.unwrap_or(z);
        let y = with_tied_shift(device, map, batch, y, weights.tied_shift(device), shifted)?;
        if let Adjoint::Unrolled { .. } = self.adjoint {
            unroll(device, map, batch, y, start, &stopping, Path { plan, trajectory, z, reports })?;
        } else {
            device.solve(plan, batch, y, &solver, &stopping, start, z, reports)?;
        }
        Ok(())
    }

    /// The states of the last batch.
    pub fn states(&self) -> Option<&D::Array> {
        self.workspace.as_ref().map(|workspace| &workspace.z)
    }

    /// How the solves of the last batch ended.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn reports(&self) -> Result<Vec<SampleReport>> {
        self.read_reports(|workspace| &workspace.reports)
    }

    /// How the adjoint solves of the last batch ended ([`Adjoint::Implicit`] only).
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn adjoint_reports(&self) -> Result<Vec<SampleReport>> {
        self.read_reports(|workspace| &workspace.adjoint_reports)
    }

    fn read_reports(&self, which: impl Fn(&Workspace<D>) -> &D::Reports) -> Result<Vec<SampleReport>> {
        let Some(workspace) = &self.workspace else { return Ok(Vec::new()) };
        let mut host = vec![SampleReport::default(); workspace.solved];
        self.device.read_reports(which(workspace), &mut host)?;
        Ok(host)
    }

    /// Adds the solves of the last forward pass to the device's counters.
    ///
    /// # Errors
    /// No forward pass before it.
    pub fn count(&mut self, tally: &mut D::Tally) -> Result<()> {
        let ws = made(&mut self.workspace)?;
        Ok(self.device.count(Pass::Forward, ws.solved, &ws.reports, tally)?)
    }

    /// Takes the states to start from out of a set of states, one per sample of a data set.
    ///
    /// # Errors
    /// A state that is not there.
    pub fn gather_states(&mut self, all: &D::Array, picks: Picks<'_, D::Integers>) -> Result<()> {
        self.reserve(picks.range.len())?;
        let ws = made(&mut self.workspace)?;
        Ok(self.device.gather_rows(self.map.operator().state_len(), all, picks, &mut ws.z)?)
    }

    /// Puts the states of the last batch back where [`Equilibrium::gather_states`] took their starts from.
    ///
    /// # Errors
    /// A state that is not there.
    pub fn scatter_states(&mut self, picks: Picks<'_, D::Integers>, all: &mut D::Array) -> Result<()> {
        let ws = made(&mut self.workspace)?;
        Ok(self.device.scatter_rows(self.map.operator().state_len(), &ws.z, picks, all)?)
    }

    /// Pulls `v`, a gradient for the states of the last [`Equilibrium::forward`] (of the same batch and injection), back:
    /// `gy` becomes the gradient for the injection, and the parameters get theirs.
    ///
    /// # Errors
    /// An adjoint solve whose state stopped being finite ([`Error::NotConverged`]); one that merely missed its tolerance
    /// is in [`Equilibrium::adjoint_reports`].
    pub fn backward(&mut self, batch: usize, y: &D::Array, v: &D::Array, gy: &mut D::Array) -> Result<()> {
        self.require_solved(batch)?;
        self.pull_back(batch, None, y, v, gy)?;
        let not_finite = |report: &&SampleReport| report.outcome == Outcome::NotFinite;
        match self.adjoint_reports()?.iter().filter(not_finite).count() as u64 {
            0 => Ok(()),
            count => Err(self.adjoint_failure(count)?),
        }
    }

    /// Refuses to pull anything back that no forward pass came before.
    fn require_solved(&self, batch: usize) -> Result<()> {
        if !self.weights.is_current() {
            return Err(Error::invalid("the parameters changed between the forward and the backward pass"));
        }
        let solved = self.workspace.as_ref().map_or(0, |ws| ws.solved);
        if batch == 0 || solved != batch {
            return Err(Error::invalid("backward was called without a forward pass of this batch before it"));
        }
        Ok(())
    }

    /// The same where nobody waits for the device: how the adjoint solves ended is counted, and whoever reads the counters must
    /// look at [`subdeq_engine::Summary::adjoint_not_finite`] before the gradients are trusted.
    ///
    /// # Errors
    /// No forward pass of this batch before it.
    pub fn backward_counted(
        &mut self,
        batch: usize,
        y: &D::Array,
        v: &D::Array,
        gy: &mut D::Array,
        tally: &mut D::Tally,
    ) -> Result<()> {
        self.require_solved(batch)?;
        self.pull_back(batch, None, y, v, gy)?;
        self.count_adjoints(batch, tally)
    }

    /// The same where the injection is not needed any more: `y` becomes its gradient. `room` is for as many numbers, where the device or
    /// the layer needs it.
    ///
    /// # Errors
    /// As [`Equilibrium::backward_counted`].
    pub(crate) fn backward_over(
        &mut self,
        batch: usize,
        y: &mut D::Array,
        v: &D::Array,
        room: &mut Room<D::Array>,
        tally: &mut D::Tally,
    ) -> Result<()> {
        self.require_solved(batch)?;
        let Some((solver, stopping)) = self.implicit_adjoint()? else {
            let gy = room.made(&*self.device)?;
            self.pull_back(batch, None, y, v, gy)?;
            std::mem::swap(y, gy);
            return Ok(());
        };
        let Self { device, workspace, weights, map, .. } = self;
        let (device, ws) = (&**device, made(workspace)?);
        let Workspace { plan, shifted, z, g, adjoint_reports: reports, .. } = ws;
        if map.equation().tie() != 0.0 {
            device.copy(batch * map.injection_len(), shifted, y)?;
        }
        weights.clear_gradients(device, map)?;
        let gw = &mut weights.gradients[..];
        device.implicit_gradient_over(plan, batch, z, y, v, &solver, &stopping, [g, room], reports, gw)?;
        weights.pull(device, map, batch, y)?;
        self.count_adjoints(batch, tally)
    }

    /// Adds the adjoint solves of the last backward pass to the device's counters.
    fn count_adjoints(&mut self, batch: usize, tally: &mut D::Tally) -> Result<()> {
        if matches!(self.adjoint, Adjoint::Implicit { .. }) {
            let ws = made(&mut self.workspace)?;
            self.device.count(Pass::Backward, batch, &ws.adjoint_reports, tally)?;
        }
        Ok(())
    }

    /// What to say when adjoint solves of the last steps stopped being finite.
    pub(crate) fn adjoint_failure(&self, count: u64) -> Result<Error> {
        let reports = self.adjoint_reports()?;
        let ended = reports.iter().map(|r| (r.outcome, r.iterations, r.residual));
        let failed = reports.iter().any(|report| report.outcome == Outcome::NotFinite);
        Ok(match require_converged("adjoint solves", ended) {
            Err(error) if failed => error,
            _ => Error::invalid(format!("{count} adjoint solves of the last steps stopped being finite")),
        })
    }

    /// How adjoint equations are solved, if they are.
    fn implicit_adjoint(&mut self) -> Result<Option<(subdeq_engine::Solver, subdeq_engine::Stopping)>> {
        let Adjoint::Implicit { solver, stopping } = self.adjoint else { return Ok(None) };
        let solver = solver.resolved(self.step.unwrap_or(1.0));
        Ok(Some((solver, self.resolved_stopping(stopping, &solver)?)))
    }

    /// Pulls `v` back at the states `at`, or at those of the workspace.
    fn pull_back(
        &mut self,
        batch: usize,
        at: Option<&D::Array>,
        y: &D::Array,
        v: &D::Array,
        gy: &mut D::Array,
    ) -> Result<()> {
        let adjoint = self.implicit_adjoint()?;
        let Self { device, workspace, weights, map, .. } = self;
        let device = &**device;
        let Workspace { plan, shifted, z, g, gz, gy: part, trajectory, discarded, adjoint_reports, .. } =
            made(workspace)?;
        let g = g.made(device)?;
        let z = at.unwrap_or(z);
        let y = if map.equation().tie() == 0.0 { y } else { &*shifted };
        weights.clear_gradients(device, map)?;
        let gw = &mut weights.gradients[..];
        let states = batch * map.operator().state_len();
        if let Some((solver, stopping)) = adjoint {
            let reports = adjoint_reports;
            device.implicit_gradient(plan, batch, z, y, v, &solver, &stopping, g, reports, gy, gw)?;
        }
        match self.adjoint {
            Adjoint::Implicit { .. } => {}
            Adjoint::Phantom { steps } => {
                device.copy(states, v, g)?;
                for _ in 1..steps {
                    device.pullback(plan, batch, z, y, g, Some(gz), part, discarded)?;
                    device.copy(states, v, g)?;
                    device.axpy(states, 1.0, gz, g)?;
                }
                device.pullback(plan, batch, z, y, g, None, gy, gw)?;
            }
            Adjoint::Unrolled { .. } => {
                let way = WayBack { plan, trajectory, g, gz, part };
                unroll_backward(device, map, batch, (y, v), way, gy, gw)?;
            }
        }
        weights.pull(device, map, batch, gy)
    }
}

/// The injection with the tied shift added, where there is one.
fn with_tied_shift<'a, D: Backend>(
    device: &D,
    map: &ShapedMap,
    batch: usize,
    y: &'a D::Array,
    shift: Option<&D::Array>,
    sum: &'a mut D::Array,
) -> Result<&'a D::Array> {
    let Some(shift) = shift else { return Ok(y) };
    let (len, units) = (batch * map.operator().state_len(), map.operator().units());
    device.copy(len, y, sum)?;
    device.add_to_rows(len / units, units, shift, sum)?;
    Ok(sum)
}
