//! The shift that brings an activation's degree down to a given `m`.
//!
//! `|u| s'(u) <= m (s(u) + a)` for all `u` of a set is the same as `a >= sup |u| s'(u)/m - s(u)`. The supremum has a
//! closed characterisation for every activation: one stationary point, the root of an increasing function. The degree
//! is the inverse of this decreasing function of `m`.

use subdeq_map::Activation;

use crate::interval::Interval;

/// The half of the line over which the supremum is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// `0 <= u <= up_to`; infinity is allowed.
    Positive {
        /// The upper end.
        up_to: f64,
    },
    /// `u <= 0`.
    Negative,
}

/// `sup |u| s'(u)/m - s(u)` over the side: `alpha_p(m)` and `alpha_n(m)`, rounded up. Infinite where no shift helps.
///
/// ```
/// use subdeq_map::Activation;
/// use subdeq_theory::degree::{Side, required_shift};
/// // tanh + a has a degree below one on R if and only if a > 1.19967864...
/// let a = required_shift(Activation::Tanh, Side::Negative, 1.0);
/// assert!((a - 1.1996786402577338).abs() < 1e-14);
/// ```
#[must_use]
pub fn required_shift(s: Activation, side: Side, m: f64) -> f64 {
    if m.is_nan() || m <= 0.0 {
        return f64::INFINITY;
    }
    match (s, side) {
        (Activation::Tanh, Side::Positive { up_to }) => tanh_positive(m, up_to).hi,
        (Activation::Tanh, Side::Negative) => tanh_negative(m).hi,
        // sigmoid(u) = (tanh(u/2) + 1)/2, and u s'(u) does not notice the factor in u.
        (Activation::Sigmoid, Side::Positive { up_to }) => {
            ((tanh_positive(m, 0.5 * up_to) - ONE) * Interval::point(0.5)).hi
        }
        (Activation::Sigmoid, Side::Negative) => ((tanh_negative(m) - ONE) * Interval::point(0.5)).hi,
        (Activation::Softplus { beta }, Side::Positive { up_to }) => {
            (softplus_positive(m, (beta * up_to).next_up()) / Interval::point(beta)).hi
        }
        (Activation::Softplus { beta }, Side::Negative) => (softplus_negative(m) / Interval::point(beta)).hi,
        (Activation::Softsign, Side::Positive { up_to }) => softsign_positive(m, up_to).hi,
        (Activation::Softsign, Side::Negative) => softsign_negative(m).hi,
        (Activation::HardTanh { lo, hi }, Side::Positive { up_to }) => {
            // The line u on [lo, hi] within the side, constants beside it; all extrema are at ends.
            let start = s.value(0.0);
            let on_line = [lo.max(0.0), hi.min(up_to)];
            let reached = on_line[0] <= on_line[1];
            let ends = on_line.iter().filter(|_| reached).map(|&u| ray(u, m, 1.0));
            ends.fold(-start, |top, end| if end <= top { top } else { end })
        }
        (Activation::HardTanh { lo, hi }, Side::Negative) => {
            let on_line = [lo, hi.min(0.0)];
            let reached = lo <= 0.0;
            let ends = on_line.iter().filter(|_| reached).map(|&u| ray(-u, m, -1.0));
            ends.fold((-lo).max(-s.value(0.0)), |top, end| if end <= top { top } else { end })
        }
        (
            Activation::Relu | Activation::LeakyRelu { .. } | Activation::Identity,
            Side::Positive { up_to },
        ) => {
            // u/m - u on [0, up_to].
            if m >= 1.0 { 0.0 } else { ray(up_to, m, 1.0) }
        }
        (Activation::Relu, Side::Negative) => 0.0,
        (Activation::LeakyRelu { slope }, Side::Negative) if slope <= 0.0 => {
            if m >= 1.0 || slope == 0.0 {
                0.0
            } else {
                f64::INFINITY
            }
        }
        (Activation::LeakyRelu { .. } | Activation::Identity, Side::Negative) => f64::INFINITY,
    }
}

/// `sup_{w >= 0} w s'(w)/m + s(w)`, rounded up: what a subtracted `s(w)` asks of the shift (A3). Infinite for an
/// unbounded activation.
#[must_use]
pub fn required_shift_subtracted(s: Activation, m: f64) -> f64 {
    match s {
        Activation::Tanh | Activation::Softsign => required_shift(s, Side::Negative, m),
        // sigmoid(-w) = 1 - sigmoid(w).
        Activation::Sigmoid => (required_shift(s, Side::Negative, m) + 1.0).next_up(),
        Activation::HardTanh { hi, .. } if hi > 0.0 => ray(hi, m, -1.0),
        Activation::HardTanh { hi, .. } => hi,
        _ => f64::INFINITY,
    }
}

const ONE: Interval = Interval { lo: 1.0, hi: 1.0 };

/// `u/m - sign * u` for `u >= 0`, rounded up.
fn ray(u: f64, m: f64, sign: f64) -> f64 {
    let u = Interval::point(u);
    // Exactly zero at m = sign = 1, which rounding would hide.
    if u.lo == 0.0 || m == sign { 0.0 } else { (u * (ONE / Interval::point(m) - Interval::point(sign))).hi }
}

/// `t sech^2 t/m + tanh t` at the root of `t tanh t = (1 + m)/2`.
fn tanh_negative(m: f64) -> Interval {
    let half = (ONE + Interval::point(m)) * Interval::point(0.5);
    let t = root(|t| t * t.tanh(), half);
    t * t.sech_squared() / Interval::point(m) + t.tanh()
}

/// `t sech^2 t/m - tanh t` at the root of `t tanh t = (1 - m)/2`, or at `up_to` if that comes first.
fn tanh_positive(m: f64, up_to: f64) -> Interval {
    if m >= 1.0 {
        return Interval::point(0.0);
    }
    let half = (ONE - Interval::point(m)) * Interval::point(0.5);
    let t = no_further_than(up_to, root(|t| t * t.tanh(), half));
    t * t.sech_squared() / Interval::point(m) - t.tanh()
}

/// With `x = t/(1+t)`: `x(1-x)/m + x`, largest at `x = (1+m)/2` or at the end `x = 1`.
fn softsign_negative(m: f64) -> Interval {
    if m >= 1.0 {
        return ONE;
    }
    let m = Interval::point(m);
    (ONE + m).square() / (Interval::point(4.0) * m)
}

/// With `x = t/(1+t)`: `x(1-x)/m - x`, largest at `x = (1-m)/2` or at the end.
fn softsign_positive(m: f64, up_to: f64) -> Interval {
    if m >= 1.0 {
        return Interval::point(0.0);
    }
    let m = Interval::point(m);
    let last = if up_to.is_finite() { Interval::point(up_to) / (ONE + Interval::point(up_to)) } else { ONE };
    let peak = (ONE - m) * Interval::point(0.5);
    let x = Interval::new(peak.lo.min(last.lo), peak.hi.min(last.hi));
    x * (ONE - x) / m - x
}

/// `1/(1 + e^-t)`.
fn sigmoid(t: Interval) -> Interval {
    ONE / (ONE + (-t).exp())
}

/// `ln(1 + e^t)` for `t >= 0`, without overflow.
fn ln_1p_exp(t: Interval) -> Interval {
    t + (-t).exp().ln_1p()
}

/// beta = 1: `t sigmoid(-t)/m - ln(1 + e^-t)` at the root of `t sigmoid(t) = 1 + m`.
fn softplus_negative(m: f64) -> Interval {
    let t = root(|t| t * sigmoid(t), ONE + Interval::point(m));
    t * sigmoid(-t) / Interval::point(m) - (-t).exp().ln_1p()
}

/// beta = 1: `t sigmoid(t)/m - ln(1 + e^t)`. It rises for ever where `m < 1`; for `m > 1` the candidates are 0 and the
/// larger root of `t sigmoid(-t) = m - 1` (the smaller one is a minimum).
fn softplus_positive(m: f64, up_to: f64) -> Interval {
    let at = |t: Interval| t * sigmoid(t) / Interval::point(m) - ln_1p_exp(t);
    if m < 1.0 {
        return if up_to.is_finite() { at(Interval::point(up_to)) } else { Interval::ALL };
    }
    let at_zero = -Interval::point(2.0).ln();
    if m == 1.0 {
        // t sigmoid(t) < t < ln(1 + e^t), and the gap closes at infinity.
        return Interval::new(at_zero.lo, 0.0);
    }
    // t sigmoid(-t) rises up to t = 1.2784645... and falls beyond; 1.3 lies on the falling side.
    let turn = 1.3;
    let excess = Interval::point(m) - ONE;
    let falling = |t: Interval| t * sigmoid(-t);
    if falling(Interval::point(turn)).hi < excess.lo {
        // No stationary point beyond `turn`; between the peak and it the function is bounded by its values there.
        return at_zero.hull(at(no_further_than(up_to, Interval::new(1.27, turn))));
    }
    let beyond = root(|t| -(falling(Interval::point(turn) + t)), -excess);
    at_zero.hull(at(no_further_than(up_to, Interval::point(turn) + beyond)))
}

/// The interval with both ends cut off at `last`.
fn no_further_than(last: f64, t: Interval) -> Interval {
    Interval::new(t.lo.min(last), t.hi.min(last))
}

/// An enclosure of the `t >= 0` at which the increasing function `f` reaches `target`; everything from there on if it is
/// not reached. Every step is decided by enclosures, so the root cannot be lost.
pub(super) fn root(f: impl Fn(Interval) -> Interval, target: Interval) -> Interval {
    let below = |t: f64| f(Interval::point(t)).hi < target.lo;
    let above = |t: f64| f(Interval::point(t)).lo > target.hi;
    let (mut low, mut high) = (0.0, 1.0);
    while !above(high) {
        if high > 1e300 {
            return Interval::new(low, f64::INFINITY);
        }
        high *= 2.0;
    }
    // From both sides towards the root, each as far as its side can be told for certain.
    let mut reach = high;
    while reach - low > f64::EPSILON * reach {
        let middle = 0.5 * (low + reach);
        if below(middle) {
            low = middle;
        } else {
            reach = middle;
        }
    }
    let mut start = low;
    while high - start > f64::EPSILON * high {
        let middle = 0.5 * (start + high);
        if above(middle) {
            high = middle;
        } else {
            start = middle;
        }
    }
    Interval::new(low, high)
}
