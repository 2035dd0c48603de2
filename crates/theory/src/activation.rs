//! What the certificates need to know about activations, rounded outward.

use serde::{Deserialize, Serialize};
use subdeq_map::Activation;

use crate::interval::{Interval, LIBM_ULPS, down_by, up_by};

/// Enclosures of an activation's values and slopes.
///
/// ```
/// use subdeq_map::Activation;
/// use subdeq_theory::{activation::Enclosure, interval::Interval};
/// // The steepest slope on [1, 3] is the one nearest to zero: s'(1) = 1/4.
/// assert!(Activation::Softsign.slope_bound(Interval::new(1.0, 3.0)) >= 0.25);
/// ```
pub trait Enclosure {
    /// An upper bound of `|s'|`, and of every secant slope, on the interval.
    #[must_use]
    fn slope_bound(self, on: Interval) -> f64;

    /// `{s'(u)}` (Clarke's generalised slope at a kink) and every secant slope, rounded outward.
    #[must_use]
    fn slopes(self, on: Interval) -> Interval;

    /// An enclosure of `{s(u) : u in on}`.
    #[must_use]
    fn enclose(self, on: Interval) -> Interval;

    /// The closure of `{s(u) : u in R}`, exactly.
    #[must_use]
    fn image(self) -> Interval;
}

impl Enclosure for Activation {
    fn slope_bound(self, on: Interval) -> f64 {
        let steepest = match self {
            Activation::Tanh | Activation::Sigmoid | Activation::Softsign => self.derivative(on.mignitude()),
            // beta * u is rounded up first: far out, e^t amplifies the rounding of t.
            Activation::Softplus { beta } => Activation::Sigmoid.value((beta * on.hi).next_up()),
            Activation::HardTanh { lo, hi } => return f64::from(on.hi >= lo && on.lo <= hi),
            Activation::Relu => return f64::from(on.hi >= 0.0),
            Activation::LeakyRelu { slope } => {
                let right = f64::from(on.hi >= 0.0);
                return if on.lo < 0.0 { right.max(slope.abs()) } else { right };
            }
            Activation::Identity => return 1.0,
        };
        // A few roundings of relative size one ulp each, and one library call.
        up_by(steepest, LIBM_ULPS + 6).min(self.steepest_slope())
    }

    fn slopes(self, on: Interval) -> Interval {
        let hi = self.slope_bound(on);
        let far = |u: f64| down_by(self.derivative(u), LIBM_ULPS + 6).max(0.0);
        let lo = match self {
            Activation::Tanh | Activation::Sigmoid | Activation::Softsign => far(on.magnitude()),
            Activation::Softplus { .. } => far(on.lo),
            Activation::HardTanh { lo, hi } => f64::from(on.lo > lo && on.hi < hi),
            Activation::Relu => f64::from(on.lo > 0.0),
            Activation::LeakyRelu { slope } if on.lo <= 0.0 => slope.min(1.0),
            Activation::LeakyRelu { .. } | Activation::Identity => 1.0,
        };
        Interval::new(lo.min(hi), hi)
    }

    fn enclose(self, on: Interval) -> Interval {
        let hull = match self {
            // Exact, and not monotone for a negative slope.
            Activation::LeakyRelu { slope } => {
                let (a, b) = (self.value(on.lo), self.value(on.hi));
                let ends = Interval::new(a.min(b), a.max(b));
                let with_kink =
                    if slope < 0.0 && on.contains(0.0) { ends.hull(Interval::point(0.0)) } else { ends };
                return with_kink.widened(1).intersect(self.image()).unwrap_or(with_kink);
            }
            Activation::HardTanh { .. } | Activation::Relu | Activation::Identity => {
                return Interval::new(self.value(on.lo), self.value(on.hi));
            }
            Activation::Softsign if on.lo == f64::NEG_INFINITY || on.hi == f64::INFINITY => {
                let end = |u: f64| if u.is_infinite() { u.signum() } else { self.value(u) };
                Interval::new(end(on.lo), end(on.hi))
            }
            // As for the slope: round beta * u outward before e^t amplifies it.
            Activation::Softplus { beta } => {
                let t = Interval::point(beta) * on;
                let plain = |t: f64| Activation::Softplus { beta: 1.0 }.value(t) / beta;
                between(plain(t.lo), plain(t.hi))
            }
            _ => between(self.value(on.lo), self.value(on.hi)),
        };
        let steps = match self {
            Activation::Softsign => 2,
            Activation::Tanh => LIBM_ULPS,
            // Division, two additions and two library calls.
            _ => 2 * LIBM_ULPS + 4,
        };
        hull.widened(steps).intersect(self.image()).unwrap_or(hull)
    }

    fn image(self) -> Interval {
        let (lo, hi) = self.range();
        Interval::new(lo, hi)
    }
}

/// From one computed end to the other: in a very narrow interval rounding can turn the two around.
fn between(a: f64, b: f64) -> Interval {
    Interval::point(a).hull(Interval::point(b))
}

/// The smooth maximum `ln sum_i e^(z_i)`, a functional of a whole vector (the paper's Approxmax).
///
/// ```
/// use subdeq_theory::activation::LogSumExp;
/// assert!((LogSumExp.value(&[1.0, 1.0]) - (1.0 + 2f64.ln())).abs() < 1e-15);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSumExp;

impl LogSumExp {
    /// `ln sum_i e^(z_i)`; minus infinity for the empty vector.
    #[must_use]
    pub fn value(self, z: &[f64]) -> f64 {
        let top = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if top.is_infinite() {
            return top;
        }
        top + z.iter().map(|x| (x - top).exp()).sum::<f64>().ln()
    }

    /// The gradient, `softmax(z)`.
    #[must_use]
    pub fn gradient(self, z: &[f64]) -> Vec<f64> {
        let total = self.value(z);
        z.iter().map(|x| (x - total).exp()).collect()
    }
}
