//! A user's own map.

use super::Device;
use crate::{Result, SampleReport, Solver, Start, Stopping};

/// A map of a user's own: `apply`, and the product with the transposed Jacobian for its adjoint.
///
/// It may be called from several threads at once, for different samples.
pub trait CustomMap<T>: Sync {
    /// Numbers in one sample's state.
    fn state_len(&self) -> usize;
    /// `out = F(z)` for sample `sample`.
    fn apply(&self, sample: usize, z: &[T], out: &mut [T]);
    /// `out = J^T g`, `J` the Jacobian of `F` at `z`, for sample `sample`.
    fn vjp(&self, sample: usize, z: &[T], g: &[T], out: &mut [T]);
}

/// A device that can call back to the host: it runs maps that are written as Rust functions, by the same methods.
///
/// ```
/// use subdeq_engine::{Cpu, CustomMap, CustomMaps, Measure, SampleReport, Extent, Solver, Start, Stopping};
///
/// /// z = cos z.
/// struct Cosine;
/// impl CustomMap<f64> for Cosine {
///     fn state_len(&self) -> usize { 1 }
///     fn apply(&self, _: usize, z: &[f64], out: &mut [f64]) { out[0] = z[0].cos() }
///     fn vjp(&self, _: usize, z: &[f64], g: &[f64], out: &mut [f64]) { out[0] = -z[0].sin() * g[0] }
/// }
///
/// let cpu = Cpu::<f64>::new(1)?;
/// let stopping =
///     Stopping { measure: Measure::Absolute, tolerance: 1e-12, max_iterations: 100, extent: Extent::PerSample };
/// let solver = Solver::Anderson { window: 3, ridge: 1e-12, mixing: 1.0 };
/// let (mut z, mut reports) = ([0.0], [SampleReport::default()]);
/// cpu.solve_custom(&Cosine, 1, &solver, &stopping, Start::Constant(1.0), &mut z, &mut reports)?;
/// assert!(reports[0].converged() && (z[0] - 0.7390851332151607).abs() < 1e-11);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
pub trait CustomMaps: Device {
    /// Solves `z = F(z)` for each sample; `z` holds `batch` states and, if the start is given, the starts. Its memory is
    /// allocated for the call.
    #[allow(clippy::too_many_arguments)] // as many sides as Equilibria::solve has
    fn solve_custom(
        &self,
        map: &dyn CustomMap<Self::Elem>,
        batch: usize,
        solver: &Solver,
        stopping: &Stopping,
        start: Start,
        z: &mut [Self::Elem],
        reports: &mut [SampleReport],
    ) -> Result<()>;

    /// Solves `g = J^T g + v` for each sample, `J` the map's Jacobian at `z`, started at `v`.
    #[allow(clippy::too_many_arguments)] // as many sides as Equilibria::adjoint has
    fn adjoint_custom(
        &self,
        map: &dyn CustomMap<Self::Elem>,
        batch: usize,
        z: &[Self::Elem],
        v: &[Self::Elem],
        solver: &Solver,
        stopping: &Stopping,
        g: &mut [Self::Elem],
        reports: &mut [SampleReport],
    ) -> Result<()>;
}
