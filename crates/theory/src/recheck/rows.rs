//! Rows of an operator, entry by entry from its definition, and sums over them with every operation rounded outward.

use crate::activation::Activation;
use crate::interval::Interval;
use crate::map::{Injection, MapSpec};
use crate::operator::{Operator, Padding};

/// The nonzero entries of row `i`, as (column, weight), read off the definition of the operator.
pub(super) fn row(operator: &Operator, i: usize, absolute: bool) -> Vec<(usize, f64)> {
    let mut entries = match operator {
        Operator::Dense(_) => {
            let n = operator.len();
            operator.weights()[i * n..(i + 1) * n].iter().copied().enumerate().collect()
        }
        Operator::Conv(conv) => {
            let (h, w) = (conv.height() as isize, conv.width() as isize);
            let pixels = conv.height() * conv.width();
            let (output, pixel) = (i / pixels, (i % pixels) as isize);
            let side = conv.side() as isize;
            let taps = side * side;
            let mut entries = Vec::new();
            for input in 0..conv.channels() {
                for tap in 0..taps {
                    let (mut y, mut x) =
                        (pixel / w + tap / side - side / 2, pixel % w + tap % side - side / 2);
                    match conv.padding() {
                        Padding::Circular => (y, x) = (y.rem_euclid(h), x.rem_euclid(w)),
                        Padding::Zero if y < 0 || y >= h || x < 0 || x >= w => continue,
                        Padding::Zero => {}
                    }
                    let pair = output * conv.channels() + input;
                    let weight = conv.kernel()[pair * taps as usize + tap as usize];
                    entries.push((input * pixels + (y * w + x) as usize, weight));
                }
            }
            entries
        }
        Operator::Graph(graph) => {
            let columns = graph.columns();
            graph.neighbours(i / columns).map(|(j, a)| (j * columns + i % columns, a)).collect()
        }
    };
    if absolute {
        entries.iter_mut().for_each(|(_, w)| *w = w.abs());
    }
    entries.retain(|(_, w)| *w != 0.0);
    entries
}

/// `sum_j w_j x_j` over a box.
pub(super) fn sum(row: &[(usize, f64)], x: &[Interval]) -> Interval {
    row.iter().fold(Interval::point(0.0), |sum, &(j, w)| sum + Interval::point(w) * x[j])
}

/// `sum_j |w_j| v_j`, rounded up.
pub(super) fn absolute_sum(row: &[(usize, f64)], v: impl Fn(usize) -> f64) -> f64 {
    row.iter().fold(0.0, |sum: f64, &(j, w)| (sum + (w.abs() * v(j)).next_up()).next_up())
}

/// The scalar part of the map, evaluated by its definition and widened by sixteen units in the last place of the result.
pub(super) struct Scalar {
    activation: Activation,
    shift: f64,
    power: f64,
}

impl Scalar {
    pub(super) fn of(map: &MapSpec) -> Scalar {
        Scalar { activation: map.activation, shift: map.shift, power: map.power }
    }

    pub(super) fn is_increasing(&self) -> bool {
        self.activation.is_increasing() && self.power > 0.0
    }

    /// `{(s(u) + shift)^power}`, for an increasing `s`.
    pub(super) fn value(&self, u: Interval) -> Interval {
        let s = |u: f64| match self.activation {
            Activation::Softsign if u.is_infinite() => u.signum(),
            s => s.value(u),
        };
        let range = self.activation.range();
        // A hull: in a very narrow interval rounding can turn the two ends around.
        let base = Interval::point(s(u.lo)).hull(Interval::point(s(u.hi))).widened(16);
        let base = base.intersect(range).unwrap_or(base) + Interval::point(self.shift);
        if self.power == 1.0 {
            base
        } else if base.lo > 0.0 {
            Interval::new(base.lo.powf(self.power), base.hi.powf(self.power)).widened(16)
        } else {
            Interval::ALL
        }
    }

    /// `{d/du (s(u) + shift)^power}`.
    pub(super) fn slope(&self, u: Interval) -> Interval {
        let (near, far) = (u.mignitude(), u.magnitude());
        let s = match self.activation {
            Activation::Tanh => u.sech_squared(),
            Activation::Softsign => {
                let at = |u: f64| 1.0 / ((1.0 + u) * (1.0 + u));
                Interval::point(at(far)).hull(Interval::point(at(near))).widened(8)
            }
            other => Interval::new(if other.is_increasing() { 0.0 } else { -1.0 }, other.slope_bound(u)),
        };
        if self.power == 1.0 {
            return s;
        }
        let base = Scalar { power: 1.0, ..*self }.value(u);
        if base.lo > 0.0 {
            let ends = [base.lo.powf(self.power - 1.0), base.hi.powf(self.power - 1.0)];
            let outer = Interval::new(ends[0].min(ends[1]), ends[0].max(ends[1])).widened(16);
            Interval::point(self.power) * outer * s
        } else {
            Interval::ALL
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
pub(super) fn injections(map: &MapSpec, y: Interval) -> (Interval, Interval) {
    match map.injection {
        Injection::Inner => (y, Interval::point(0.0)),
        Injection::Outer => (Interval::point(0.0), y),
    }
}
