//! What a contraction factor is good for: error bounds after the fact, iteration counts in advance.
//!
//! The inequalities are the same in every metric: `factor` is the contraction factor in the metric in which the distances
//! are given.

/// A contraction factor below one.
///
/// ```
/// use subdeq_theory::bounds::Contraction;
/// let c = Contraction::new(0.5).unwrap();
/// // z and F(z) are 0.01 apart: the fixed point is at most 0.02 from z and 0.01 from F(z).
/// assert!((c.error_before(0.01) - 0.02).abs() < 1e-12 && (c.error_after(0.01) - 0.01).abs() < 1e-12);
/// assert!(Contraction::new(1.0).is_none());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contraction {
    factor: f64,
}

impl Contraction {
    /// The factor, if it lies in `[0, 1)`.
    #[must_use]
    pub fn new(factor: f64) -> Option<Contraction> {
        (0.0..1.0).contains(&factor).then_some(Contraction { factor })
    }

    /// The factor.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.factor
    }

    /// `d(z, z*) <= d(z, F z) / (1 - c)`, rounded up. `residual` must itself be rounded up for a rigorous bound.
    #[must_use]
    pub fn error_before(self, residual: f64) -> f64 {
        (residual / self.gap()).next_up()
    }

    /// `d(F z, z*) <= c / (1 - c) d(z, F z)`, rounded up.
    #[must_use]
    pub fn error_after(self, residual: f64) -> f64 {
        ((self.factor * residual).next_up() / self.gap()).next_up()
    }

    /// Iterations of `z <- F(z)` after which the distance to the fixed point is at most `tolerance`, if it is at most
    /// `distance` at the start.
    #[must_use]
    pub fn iterations_from_distance(self, distance: f64, tolerance: f64) -> u64 {
        if distance <= tolerance {
            return 0;
        }
        if self.factor == 0.0 {
            return 1;
        }
        let needed = (distance / tolerance).ln() / -self.factor.ln();
        // One part in 10^12 more than the formula, against its rounding.
        (needed * (1.0 + 1e-12)).ceil().max(1.0) as u64
    }

    /// The same from the first residual `d(z_0, F z_0)`.
    #[must_use]
    pub fn iterations_from_residual(self, residual: f64, tolerance: f64) -> u64 {
        self.iterations_from_distance(self.error_before(residual), tolerance)
    }

    /// Iterations of the adjoint `g <- J' g + v` from `g_0 = v` after which the error in the dual norm is at most
    /// `tolerance * ||v||`, with `residual` the Thompson distance of the point at which `J` is taken from its image.
    /// `None` where that point is so far off that the adjoint need not contract.
    #[must_use]
    pub fn adjoint_iterations(self, residual: f64, tolerance: f64) -> Option<u64> {
        let inexact = Contraction::new(self.factor * residual.exp() * (1.0 + 1e-15))?;
        Some(inexact.iterations_from_distance(1.0 / inexact.gap(), tolerance).saturating_sub(1))
    }

    /// `1 - c`, rounded down.
    fn gap(self) -> f64 {
        (1.0 - self.factor).next_down()
    }
}

/// The largest relative error of an entry at Thompson distance `distance`: `e^distance - 1`, rounded up.
#[must_use]
pub fn relative_error(distance: f64) -> f64 {
    crate::interval::up_by(distance.exp_m1(), crate::interval::LIBM_ULPS)
}
