//! Whole batches of equilibria and their adjoints.

use super::{Device, Pass, Room};
use crate::{Result, SampleReport, ShapedMap, Solver, Start, Stopping};

/// A device that solves `z = F(z; y)`.
///
/// A plan is made once for a map and a batch size and owns every buffer that its solves need, so that a training
/// step allocates nothing. Weights are loaded into a plan once per training step (they are packed there for the
/// kernels); after that, a whole batch is solved in one call.
///
/// Samples are outermost, then the state as [`crate::Operator`] lays it out; `batch` says how many samples a call is about
/// (at most the plan's). Numbers that are not finite are never taken for an answer: a device that knows at once refuses them
/// with an error, one that finds out later says so in the reports.
pub trait Equilibria: Device {
    /// Packed weights and scratch memory of one map.
    type Plan: Send;
    /// How the solves of a batch ended, on the device.
    type Reports: Send;

    /// Makes a plan for batches of at most `batch` samples.
    fn plan(&self, map: &ShapedMap, batch: usize) -> Result<Self::Plan>;
    /// Loads the weights, in the order given with [`crate::ShapedMap`]; refuses what is not finite.
    fn load(&self, plan: &mut Self::Plan, weights: &[&Self::Array]) -> Result<()>;
    /// Room for the reports of `batch` samples.
    fn reports(&self, batch: usize) -> Result<Self::Reports>;
    /// Reads the reports of the first samples.
    fn read_reports(&self, reports: &Self::Reports, host: &mut [SampleReport]) -> Result<()>;
    /// Adds the reports of the first `batch` samples to the counters.
    fn count(&self, pass: Pass, batch: usize, reports: &Self::Reports, tally: &mut Self::Tally)
    -> Result<()>;

    /// `out = F(z; y)`, one application.
    fn apply(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &Self::Array,
        out: &mut Self::Array,
    ) -> Result<()>;

    /// Reports on states that were reached by `iterations` applications: how far the last one, from `before` to `after`,
    /// went, in the measure of the stopping rule (relative or absolute).
    #[allow(clippy::too_many_arguments)] // two states, what is asked about them, and where the answer goes
    fn compare(
        &self,
        state_len: usize,
        batch: usize,
        iterations: u32,
        stopping: &Stopping,
        before: &Self::Array,
        after: &Self::Array,
        reports: &mut Self::Reports,
    ) -> Result<()>;

    /// Solves `z = F(z; y)` for each sample. Refuses a `y` that is not finite; after an error `z` holds nothing of use.
    #[allow(clippy::too_many_arguments)] // a solve has this many sides; a struct would only rename them
    fn solve(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        y: &Self::Array,
        solver: &Solver,
        stopping: &Stopping,
        start: Start,
        z: &mut Self::Array,
        reports: &mut Self::Reports,
    ) -> Result<()>;

    /// Solves the adjoint equation `g = J^T g + v`, `J` the Jacobian of `F` in `z` at `(z, y)`, for each sample.
    /// Refuses a `v` that is not finite; after an error `g` holds nothing of use.
    #[allow(clippy::too_many_arguments)]
    fn adjoint(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &Self::Array,
        v: &Self::Array,
        solver: &Solver,
        stopping: &Stopping,
        g: &mut Self::Array,
        reports: &mut Self::Reports,
    ) -> Result<()>;

    /// Pulls `g` back through one application of `F` at `(z, y)`: `gz = J^T g` where asked for, `gy = (dF/dy)^T g`,
    /// and `gw[k] +=` the gradient for weight array `k`, summed over the batch in an order that does not depend on the
    /// number of threads.
    #[allow(clippy::too_many_arguments)]
    fn pullback(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &Self::Array,
        g: &Self::Array,
        gz: Option<&mut Self::Array>,
        gy: &mut Self::Array,
        gw: &mut [Self::Array],
    ) -> Result<()>;

    /// [`Equilibria::adjoint`], then [`Equilibria::pullback`] of its `g` without `gz`: what a training does at each fixed point. A
    /// device may compute once what both need, and leave anything in `g`.
    #[allow(clippy::too_many_arguments)]
    fn implicit_gradient(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &Self::Array,
        v: &Self::Array,
        solver: &Solver,
        stopping: &Stopping,
        g: &mut Self::Array,
        reports: &mut Self::Reports,
        gy: &mut Self::Array,
        gw: &mut [Self::Array],
    ) -> Result<()> {
        self.adjoint(plan, batch, z, y, v, solver, stopping, g, reports)?;
        self.pullback(plan, batch, z, y, g, None, gy, gw)
    }

    /// The same where the injection is not needed any more: `y` becomes its gradient. Room for a state and for an injection of the whole
    /// batch is made where the device needs it, and holds nothing of use afterwards.
    #[allow(clippy::too_many_arguments)]
    fn implicit_gradient_over(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &mut Self::Array,
        v: &Self::Array,
        solver: &Solver,
        stopping: &Stopping,
        [g, gy]: [&mut Room<Self::Array>; 2],
        reports: &mut Self::Reports,
        gw: &mut [Self::Array],
    ) -> Result<()> {
        let (g, gy) = (g.made(self)?, gy.made(self)?);
        self.implicit_gradient(plan, batch, z, y, v, solver, stopping, g, reports, gy, gw)?;
        std::mem::swap(y, gy);
        Ok(())
    }
}
