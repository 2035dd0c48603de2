//! The scalar part of the map, evaluated by its definition and widened by sixteen units in the last place of the result.

use subdeq_map::{Activation, Injection, Map};

use crate::interval::Interval;

/// `(s(u) + shift)^power`.
pub(super) struct Scalar {
    pub(super) activation: Activation,
    pub(super) shift: f64,
    pub(super) power: f64,
}

impl Scalar {
    pub(super) fn of(map: &Map) -> Scalar {
        Scalar { activation: map.activation(), shift: map.shift(), power: map.power() }
    }

    pub(super) fn is_increasing(&self) -> bool {
        self.activation.is_increasing()
    }

    /// `{(s(u) + shift)^power}`; everything where that is not certainly defined.
    pub(super) fn value(&self, u: Interval) -> Interval {
        let base = self.base(u);
        if self.power == 1.0 {
            base
        } else if base.lo >= 0.0 {
            let ends = Interval::new(base.lo.powf(self.power), base.hi.powf(self.power)).widened(16);
            Interval::new(ends.lo.max(0.0), ends.hi)
        } else {
            Interval::ALL
        }
    }

    /// `{s(u) + shift}`.
    fn base(&self, u: Interval) -> Interval {
        let s = |u: f64| match self.activation {
            Activation::Softsign if u.is_infinite() => u.signum(),
            s => s.value(u),
        };
        let (lo, hi) = self.activation.range();
        // A hull: in a very narrow interval rounding can turn the two ends around.
        let mut ends = Interval::point(s(u.lo)).hull(Interval::point(s(u.hi)));
        if !self.activation.is_increasing() && u.contains(0.0) {
            ends = ends.hull(Interval::point(0.0));
        }
        let wide = match self.activation {
            Activation::HardTanh { .. } | Activation::Relu | Activation::Identity => ends,
            // beta u, rounded, moves the result by as much as the slope (at most one) times the rounding.
            Activation::Softplus { .. } => {
                let blur = 4.0 * f64::EPSILON * u.magnitude();
                (ends + Interval::new(-blur, blur)).widened(16)
            }
            _ => ends.widened(16),
        };
        let wide = wide.intersect(Interval::new(lo, hi)).unwrap_or(wide);
        wide + Interval::point(self.shift)
    }

    /// `{d/du (s(u) + shift)^power}`, all of Clarke's slopes at a kink; everything where that is not certainly defined.
    pub(super) fn slope(&self, u: Interval) -> Interval {
        let s = self.activation_slope(u);
        if self.power == 1.0 {
            return s;
        }
        let base = self.base(u);
        if base.lo > 0.0 {
            let ends = [base.lo.powf(self.power - 1.0), base.hi.powf(self.power - 1.0)];
            let outer = Interval::new(ends[0].min(ends[1]), ends[0].max(ends[1])).widened(16);
            Interval::point(self.power) * outer * s
        } else {
            Interval::ALL
        }
    }

    fn activation_slope(&self, u: Interval) -> Interval {
        let (near, far) = (u.mignitude(), u.magnitude());
        let one = Interval::point(1.0);
        let between = |a: f64, b: f64| Interval::point(a).hull(Interval::point(b));
        match self.activation {
            Activation::Tanh => u.sech_squared(),
            Activation::Softsign => {
                let at = |u: f64| {
                    let share = 1.0 / (1.0 + u);
                    share * share
                };
                let ends = between(at(far), at(near)).widened(8);
                Interval::new(ends.lo.max(0.0), ends.hi.min(1.0))
            }
            // sech^2(u/2)/4.
            Activation::Sigmoid => (u * Interval::point(0.5)).sech_squared() * Interval::point(0.25),
            Activation::Softplus { beta } => {
                // 1/(1 + e^-t), increasing; the two ends apart, so that e^t may overflow in one of them.
                let at = |end: f64| {
                    let t = Interval::point(beta) * Interval::point(end);
                    let decay = (-t).exp();
                    if decay.hi.is_finite() { one / (one + decay) } else { Interval::new(0.0, 1e-300) }
                };
                let end = |end: f64| match end {
                    f64::NEG_INFINITY => Interval::point(0.0),
                    f64::INFINITY => one,
                    end => at(end),
                };
                Interval::new(end(u.lo).lo.max(0.0), end(u.hi).hi.min(1.0))
            }
            Activation::HardTanh { lo, hi } => {
                let touches = u.hi >= lo && u.lo <= hi;
                let inside = u.lo > lo && u.hi < hi;
                Interval::new(f64::from(inside), f64::from(touches))
            }
            Activation::Relu => Interval::new(f64::from(u.lo > 0.0), f64::from(u.hi >= 0.0)),
            Activation::LeakyRelu { slope } => {
                if u.lo > 0.0 {
                    one
                } else if u.hi < 0.0 {
                    Interval::point(slope)
                } else {
                    between(slope, 1.0)
                }
            }
            Activation::Identity => one,
        }
    }

    /// A proof that no secant from `at` to a point of `on` is steeper than `sigma`, for tanh and softsign:
    /// `h(w) = s(w) - s(a) + sigma (a - w)` (with signs such that `a >= 0`) has its least value on `w <= a` either at `w = a`,
    /// where it vanishes, or at the end of the interval, or where `s'(w) = sigma` with `w < 0`.
    pub(super) fn secants_below(&self, at: Interval, on: Interval, sigma: f64) -> bool {
        let x = match self.activation {
            Activation::Tanh => (1.0 / sigma.sqrt()).acosh(),
            Activation::Softsign => 1.0 / sigma.sqrt() - 1.0,
            _ => return false,
        };
        if self.power != 1.0 || !(sigma > 0.0) {
            return false;
        }
        if sigma >= 1.0 {
            return true;
        }
        let (a, end) = if at.midpoint() >= 0.0 { (at, on.lo) } else { (-at, -on.hi) };
        let s = |u: f64| Interval::point(self.activation.value(u)).widened(16);
        let s_on = |u: Interval| s(u.lo).hull(s(u.hi));
        let height = |w: f64| s(w) - s_on(a) + Interval::point(sigma) * (a - Interval::point(w));
        if end >= -x {
            return height(end).lo >= 0.0;
        }
        // The exact point with slope sigma lies within this of `-x`, where `h` is flat: by the mean value theorem it changes
        // by its slope there times the distance, far less than its values at the two ends would suggest.
        let off = Interval::new(-1e-10, 1e-10) * Interval::point(1.0 + x);
        let steepness = self.slope(Interval::point(-x) + off) - Interval::point(sigma);
        (height(-x) + steepness * off).lo >= 0.0
    }
}

/// Where the input enters the row, as (added to the preactivation, added to the response).
pub(super) fn injections(map: &Map, y: Interval) -> (Interval, Interval) {
    match map.injection() {
        Injection::Inner => (y, Interval::point(0.0)),
        Injection::Outer => (Interval::point(0.0), y),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values and difference quotients at sampled points lie in the enclosures, for every activation, with and without a power.
    #[test]
    fn enclosures_contain_what_is_sampled() {
        let activations = [
            "tanh",
            "sigmoid",
            "softplus(3)",
            "softsign",
            "hardtanh(-1,2)",
            "relu",
            "leaky-relu(-4)",
            "identity",
        ];
        for text in activations {
            for power in [1.0, 0.5, 2.5] {
                let scalar = Scalar { activation: text.parse().unwrap(), shift: 1.5, power };
                for k in 0..200 {
                    let lo = f64::from(k % 20) * 0.4 - 4.0;
                    let u = Interval::new(lo, lo + f64::from(k / 20) * 0.15 + 1e-3);
                    let (value, slope) = (scalar.value(u), scalar.slope(u));
                    let f = |x: f64| (scalar.activation.value(x) + scalar.shift).powf(power);
                    for step in 0..10 {
                        let x = u.lo + (u.hi - u.lo) * f64::from(step) / 10.0;
                        let quotient = (f(x + 1e-6) - f(x)) / 1e-6;
                        if f(x).is_nan() || quotient.is_nan() {
                            continue;
                        }
                        assert!(
                            value.lo - 1e-12 <= f(x) && f(x) <= value.hi + 1e-12,
                            "{text}^{power} at {x}"
                        );
                        assert!(
                            slope.lo - 1e-4 <= quotient && quotient <= slope.hi + 1e-4,
                            "{text}^{power} at {x}: {quotient} {slope:?}"
                        );
                    }
                }
            }
        }
    }
}
