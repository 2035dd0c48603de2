//! Negative inputs inside the activation.

use super::{NoDegree, StrongDegree, smallest};
use crate::interval::Interval;

/// The degree in `z` of `tanh(W z + y) + a` with `W >= 0` and `y >= -theta`, `theta >= 0`: below one if and only if
/// `theta < a`.
///
/// With `v` the preactivation, `W z <= v + theta`, so the degree is at most `m` as soon as
/// `a >= (v + theta) sech^2 v/m - tanh v` for all `v >= -theta`; for `m < 1` the right side is largest at the one root of
/// `(v + theta) tanh v = (1 - m)/2`.
///
/// ```
/// use subdeq_theory::degree::tanh_above_threshold;
/// let c = tanh_above_threshold(1.2, 0.5).unwrap().bound();
/// assert!((0.491186..0.491188).contains(&c));
/// assert!(tanh_above_threshold(1.2, 1.2).is_err());
/// ```
///
/// # Errors
/// [`NoDegree::NotBelowOne`] for `theta >= a`.
pub fn tanh_above_threshold(a: f64, theta: f64) -> Result<StrongDegree, NoDegree> {
    if theta.is_nan() || a.is_nan() || theta >= a {
        return Err(NoDegree::NotBelowOne);
    }
    let theta = Interval::point(theta.max(0.0));
    let needed = |m: f64| {
        let one = Interval::point(1.0);
        let half = (one - Interval::point(m)) * Interval::point(0.5);
        let v = super::required_shift::root(|v| (v + theta) * v.tanh(), half);
        ((v + theta) * v.sech_squared() / Interval::point(m) - v.tanh()).hi
    };
    // The stationary point is the maximum for m < 1 only.
    let below_one = 1.0 - 1e-12;
    if needed(below_one) > a {
        return Err(NoDegree::NotBelowOne);
    }
    smallest(|m| needed(m.min(below_one)) <= a)
}
