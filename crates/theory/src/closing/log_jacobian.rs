//! TL and the constants of Theorem 4: bounds of the log-Jacobian's row sums over a box of positive vectors.
//!
//! In row `i` the excitation `a = (W+ z)_i` and the inhibition `c = (W- z)_i` range over a full rectangle, because their
//! supports are disjoint. With `u = a - c + y'` the row sums are at most `phi'(u)/(phi(u) + y'')` times
//! `min(u - y' + 2 c_max, 2 a_max - u + y')` for all of `|A|`, times `min(a_max, u - y' + c_max)` for its positive part
//! and times `min(c_max, a_max - u + y')` for its negative part.

use crate::bound::Upper;
use crate::interval::Interval;
use crate::operator::Products;
use crate::response::Layer;
use crate::round::{gamma, tiny};

/// Pieces into which the range of `a - c` is cut.
const PIECES: usize = 64;

/// The ranges of excitation and inhibition in one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
    excitation: Interval,
    inhibition: Interval,
}

/// Upper bounds of one row of the log-Jacobian.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowSums {
    /// Of `|A|`: the local strong degree.
    pub(crate) absolute: Upper,
    /// Of the positive part of `A`.
    pub(crate) positive: Upper,
    /// Of the negative part of `A`.
    pub(crate) negative: Upper,
}

impl RowSums {
    pub(crate) const ZERO: RowSums =
        RowSums { absolute: Upper::ZERO, positive: Upper::ZERO, negative: Upper::ZERO };
    const UNKNOWN: RowSums =
        RowSums { absolute: Upper::UNKNOWN, positive: Upper::UNKNOWN, negative: Upper::UNKNOWN };

    /// Entry by entry.
    pub(crate) fn max(self, other: RowSums) -> RowSums {
        RowSums {
            absolute: self.absolute.max(other.absolute),
            positive: self.positive.max(other.positive),
            negative: self.negative.max(other.negative),
        }
    }
}

/// The drives over the box `[lower, upper]`, which must be nonnegative.
pub(crate) fn drives(layer: &Layer<'_>, lower: &[f64], upper: &[f64]) -> Vec<Drive> {
    let n = layer.len();
    let operator = layer.operator;
    let mut images = [vec![0.0; n], vec![0.0; n], vec![0.0; n], vec![0.0; n]];
    operator.apply(lower, &mut images[0]);
    operator.apply_abs(lower, &mut images[1]);
    operator.apply(upper, &mut images[2]);
    operator.apply_abs(upper, &mut images[3]);
    let terms = operator.terms();
    (0..n)
        .map(|i| {
            // W+ = (|W| + W)/2 and W- = (|W| - W)/2; every error is at most gamma times |W| upper.
            let slack = gamma(terms + 8) * images[3][i] + tiny(terms + 1);
            let part = |abs: f64, signed: f64| 0.5 * (abs + signed);
            // Through an interval first, in which a difference of infinities is everything and not zero.
            let nonnegative = Interval::new(0.0, f64::INFINITY);
            let range = |lo: f64, hi: f64| {
                let around = Interval::new((lo - slack).next_down(), (hi + slack).next_up());
                around.intersect(nonnegative).unwrap_or(nonnegative)
            };
            Drive {
                excitation: range(part(images[1][i], images[0][i]), part(images[3][i], images[2][i])),
                inhibition: range(part(images[1][i], -images[0][i]), part(images[3][i], -images[2][i])),
            }
        })
        .collect()
}

/// Bounds of the row sums of row `i`; infinite where the map is not certainly positive there.
pub(crate) fn row_sums(layer: &Layer<'_>, i: usize, drive: Drive) -> RowSums {
    let narrow = (drive.excitation - drive.inhibition).width() < 1e-9;
    row_sums_by(layer, i, drive, if narrow { 1 } else { PIECES })
}

/// The same with the range of `a - c` cut into so many pieces.
fn row_sums_by(layer: &Layer<'_>, i: usize, drive: Drive, pieces: usize) -> RowSums {
    let (a, c) = (drive.excitation, drive.inhibition);
    let range = a - c;
    let (inner, outer) = (layer.inner.at(i), layer.outer.at(i));
    if !(range.lo.is_finite() && range.hi.is_finite()) {
        return RowSums::UNKNOWN;
    }
    let mut sums = RowSums::ZERO;
    for piece in 0..pieces {
        let end = |k: usize| range.lo + (range.hi - range.lo) * (k as f64 / pieces as f64);
        let t = Interval::new(end(piece), if piece + 1 == pieces { range.hi } else { end(piece + 1) });
        let value = layer.response.enclose(t + inner) + outer;
        if !(value.lo > 0.0) {
            return RowSums::UNKNOWN;
        }
        let quotient = Upper::new(layer.response.slope(t + inner).magnitude()).over(value.lo);
        let bound = |one: f64, other: f64| quotient * Upper::new(one).min(Upper::new(other));
        let two = Interval::point(2.0);
        let ch = Interval::point(c.hi);
        let ah = Interval::point(a.hi);
        sums = sums.max(RowSums {
            absolute: bound((t + two * ch).hi, (two * ah - t).hi),
            positive: bound(a.hi, (t + ch).hi),
            negative: bound(c.hi, (ah - t).hi),
        });
    }
    sums
}

/// `c_log`: a bound of the strong degree of the layer on the box, or the first that is seen not to be below one. Rows are cut
/// into pieces only where the uncut bound exceeds what other rows have already shown.
pub(crate) fn degree(layer: &Layer<'_>, lower: &[f64], upper: &[f64]) -> Upper {
    if lower.iter().any(|l| !(*l > 0.0)) {
        return Upper::UNKNOWN;
    }
    let mut largest = Upper::ZERO;
    for (i, &drive) in drives(layer, lower, upper).iter().enumerate() {
        if row_sums_by(layer, i, drive, 1).absolute <= largest {
            continue;
        }
        largest = largest.max(row_sums(layer, i, drive).absolute);
        if largest.get() >= 1.0 {
            break;
        }
    }
    largest
}

#[cfg(test)]
mod tests {
    use subdeq_map::{Activation, Map, Operator};

    use super::*;
    use crate::certificate::Scope;

    #[test]
    fn a_nonnegative_row_has_the_degree_of_its_activation() {
        // With W >= 0 large, u covers the whole half-line and c_log is mu_p(1.2) = 0.246994.
        let map = Map::single(Activation::Tanh, 1.2).unwrap();
        let w = Operator::dense(1, vec![1.0]).unwrap();
        let y = Scope::Sample { y: vec![0.0] };
        let layer = Layer::new(&map, &w, &y).unwrap();
        let c = degree(&layer, &[0.2], &[3.0]).get();
        assert!((0.246_99..0.28).contains(&c), "{c}");
    }

    #[test]
    fn bounds_the_sampled_degree_of_a_mixed_row() {
        let map = Map::single(Activation::Tanh, 1.2).unwrap();
        let w = Operator::dense(2, vec![0.5, -0.4, -0.3, 0.6]).unwrap();
        let y = [0.1, 0.2];
        let sample = Scope::Sample { y: y.to_vec() };
        let layer = Layer::new(&map, &w, &sample).unwrap();
        let (lower, upper) = ([0.3, 0.4], [2.0, 2.2]);
        let bound = degree(&layer, &lower, &upper).get();
        let mut seen = 0.0f64;
        for k in 0..=40 {
            for m in 0..=40 {
                let z = [0.3 + 1.7 * f64::from(k) / 40.0, 0.4 + 1.8 * f64::from(m) / 40.0];
                for (i, row) in [[0.5, -0.4], [-0.3, 0.6f64]].iter().enumerate() {
                    let u = row[0] * z[0] + row[1] * z[1];
                    let absolute = row[0].abs() * z[0] + row[1].abs() * z[1];
                    seen = seen.max(absolute / u.cosh().powi(2) / (u.tanh() + 1.2 + y[i]));
                }
            }
        }
        assert!(bound >= seen && bound < 1.1 * seen, "{bound} {seen}");
    }
}
