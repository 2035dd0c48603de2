//! The step of the splitting solvers.

use subdeq_engine::Backend;

use super::Equilibrium;
use crate::solver::Solver;
use crate::{Adjoint, Result};

/// Frequencies of a convolution that the choice of a splitting's step looks at.
const STEP_FREQUENCIES: usize = 12;
/// Rounds of the search for it: to within a fiftieth, so that devices that round otherwise choose nearly the same.
const STEP_ROUNDS: usize = 12;

impl<D: Backend> Equilibrium<D> {
    /// The step of the splitting solvers, once it is chosen.
    pub fn step(&self) -> Option<f64> {
        self.step
    }

    /// Fixes the step of the splitting solvers (a resumed run continues with the step it had); `None` has it chosen anew.
    pub fn set_step(&mut self, step: Option<f64>) {
        self.step = step;
    }

    /// Chooses the step of the splitting solvers anew: where Peaceman-Rachford's rate ([`subdeq_engine::Spectra::splitting_rate`])
    /// is least (a golden section search over `ln t`), or `m / L^2` for forward-backward. Does nothing if all steps are fixed.
    ///
    /// # Errors
    /// Parameters that are not finite.
    pub fn choose_step(&mut self) -> Result<()> {
        self.refresh()?;
        let Some(margin) = self.architecture.parametrisation().margin() else { return Ok(()) };
        if !self.wants_step() {
            return Ok(());
        }
        let (device, operator) = (&*self.device, self.map.operator());
        let weights = &self.weights.arrays(device)[0];
        if matches!(self.solver, Solver::ForwardBackward(_)) {
            let lipschitz = 1.0 + device.norm_bound(&operator, weights)?;
            self.step = Some((margin / (lipschitz * lipschitz)).min(1.0));
            return Ok(());
        }
        let mut rate = |ln_t: f64| device.splitting_rate(&operator, weights, ln_t.exp(), STEP_FREQUENCIES);
        self.step = Some(golden_section(-4.0, 2.5, STEP_ROUNDS, &mut rate)?.exp());
        Ok(())
    }

    /// Whether a splitting is used whose step nobody fixed.
    pub(super) fn wants_step(&self) -> bool {
        let adjoint_wants = matches!(self.adjoint, Adjoint::Implicit { solver, .. } if solver.wants_step());
        self.solver.wants_step() || adjoint_wants
    }
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
