//! The one trait between the layers and the hardware.

use crate::{Map, Real, Result, SampleReport, Solver, Start, Stopping};

/// Hardware that holds arrays and carries out the operations of equilibrium models on them.
///
/// A plan is made once for a map and a batch size and owns every buffer that its solves need, so that a training
/// step allocates nothing. Weights are loaded into a plan once per training step (they are packed there for the
/// kernels); after that, a whole batch is solved in one call.
///
/// All arrays are contiguous: samples outermost, then the state as [`crate::Operator`] lays it out. Arrays may be
/// longer than the batch needs; `batch` says how many samples a call is about (at most the plan's).
pub trait Device<T: Real>: Send + Sync {
    /// Contiguous memory on the device.
    type Array: Send + Sync;
    /// Packed weights and scratch memory of one map.
    type Plan: Send;

    /// An array of `len` zeros.
    fn zeros(&self, len: usize) -> Self::Array;
    /// A copy of host numbers on the device.
    fn upload(&self, host: &[T]) -> Self::Array;
    /// Writes host numbers into an array of the same length.
    fn write(&self, array: &mut Self::Array, host: &[T]) -> Result<()>;
    /// Writes host numbers to the beginning of an array; refuses what is not finite (`what` names it in the error).
    fn write_finite(&self, what: &'static str, array: &mut Self::Array, host: &[T]) -> Result<()>;
    /// Reads an array of the same length.
    fn read(&self, array: &Self::Array, host: &mut [T]) -> Result<()>;

    /// Makes a plan for batches of at most `batch` samples.
    fn plan(&self, map: &Map, batch: usize) -> Result<Self::Plan>;
    /// Loads the weights, in the order given with [`crate::Map`]; refuses what is not finite.
    fn load(&self, plan: &mut Self::Plan, weights: &[&Self::Array]) -> Result<()>;

    /// `out = F(z; y)`, one application.
    fn apply(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &Self::Array,
        y: &Self::Array,
        out: &mut Self::Array,
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
        reports: &mut [SampleReport],
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
        reports: &mut [SampleReport],
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
        gw: &mut [&mut Self::Array],
    ) -> Result<()>;
}
