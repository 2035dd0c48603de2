//! Division of a state by a p-norm of each group of its entries, and the pullback of that.

use crate::cpu::simd::{Lanes, for_vectors, get, put};
use crate::{Operator, PNorm, Real, ShapedMap};

/// How the entries of a state fall into groups, and the norm that is taken of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grouping {
    norm: PNorm,
    /// Numbers in a row: entries at the same position of each row form a group. None: all entries are one group.
    row: Option<usize>,
}

impl Grouping {
    /// The grouping of a map, if it normalises.
    pub fn of(map: &ShapedMap) -> Option<Self> {
        let row = match map.operator {
            Operator::Dense { .. } => None,
            Operator::Conv { channels, width, .. } => Some(channels * width),
        };
        map.norm.map(|norm| Self { norm, row })
    }

    /// Number of groups.
    pub fn groups(&self) -> usize {
        self.row.unwrap_or(1)
    }
}

/// `f <- f / norm(f)` in each group; `inverse` receives the reciprocal norms.
///
/// Powers are taken of `f / max |f|`, so that none overflows or underflows.
#[inline(always)]
pub(crate) fn normalise<V: Lanes>(grouping: Grouping, f: &mut [V::Elem], inverse: &mut [V::Elem]) {
    match grouping.row {
        None => {
            let mut largest = V::zero();
            for_vectors!(V, f.len(), |at, count| largest = larger(get::<V>(f, at, count).abs(), largest));
            let unit = V::Elem::ONE / largest.largest();
            let total = match grouping.norm {
                PNorm::Inf => unit,
                PNorm::Finite(p) => {
                    let mut sum = V::zero();
                    let unit_lanes = V::splat(unit);
                    for_vectors!(V, f.len(), |at, count| {
                        sum = sum + power_of_size(get::<V>(f, at, count) * unit_lanes, p);
                    });
                    unit / V::Elem::from_f64(sum.sum().to_f64().powf(1.0 / p))
                }
            };
            inverse[0] = total;
            let total = V::splat(total);
            for_vectors!(V, f.len(), |at, count| put(get::<V>(f, at, count) * total, f, at, count));
        }
        Some(row) => for_vectors!(V, row, |at, count| {
            let mut largest = V::zero();
            for f in f.chunks_exact(row) {
                largest = larger(get::<V>(f, at, count).abs(), largest);
            }
            let unit = V::one() / largest.first(count, V::one());
            let total = match grouping.norm {
                PNorm::Inf => unit,
                PNorm::Finite(p) => {
                    let mut sum = V::zero();
                    for f in f.chunks_exact(row) {
                        sum = sum + power_of_size(get::<V>(f, at, count) * unit, p);
                    }
                    unit / root(sum.first(count, V::one()), p)
                }
            };
            put(total, inverse, at, count);
            for f in f.chunks_exact_mut(row) {
                put(get::<V>(f, at, count) * total, f, at, count);
            }
        }),
    }
}

/// The gradient of the norm at a normalised state: `sign(f) |f|^(p-1)`; for the largest absolute value, the sign of the
/// first entry of that size and zeros elsewhere.
#[inline(always)]
pub(crate) fn norm_gradient<V: Lanes>(grouping: Grouping, f: &[V::Elem], gradient: &mut [V::Elem]) {
    match grouping.norm {
        PNorm::Finite(p) => for_vectors!(V, f.len(), |at, count| {
            let x = get::<V>(f, at, count);
            let size = if p == 1.0 {
                V::select(V::zero().lt(x.abs()), V::one(), V::zero())
            } else if p == 2.0 {
                x.abs()
            } else {
                x.abs().powf(V::constant(p - 1.0))
            };
            put(size.copysign(x), gradient, at, count);
        }),
        PNorm::Inf => {
            gradient.fill(V::Elem::ZERO);
            let row = grouping.row.unwrap_or(1);
            for group in 0..row {
                let members = || (group..f.len()).step_by(row);
                let first =
                    members().fold(group, |best, i| if f[i].abs() > f[best].abs() { i } else { best });
                gradient[first] = V::Elem::ONE.copysign(f[first]);
            }
        }
    }
}

/// Pulls `g` back through the normalisation: `g <- (g - <g, f> gradient) inverse` in each group, where `f` is the
/// normalised state.
#[inline(always)]
pub(crate) fn pull_back<V: Lanes>(
    grouping: Grouping,
    f: &[V::Elem],
    gradient: &[V::Elem],
    inverse: &[V::Elem],
    g: &mut [V::Elem],
) {
    let row = grouping.row;
    match row {
        None => {
            let mut inner = V::zero();
            for_vectors!(V, f.len(), |at, count| inner =
                get::<V>(f, at, count).fma(get::<V>(g, at, count), inner));
            let (inner, inverse) = (V::splat(inner.sum()), V::splat(inverse[0]));
            for_vectors!(V, f.len(), |at, count| project::<V>(g, gradient, at, count, inner, inverse));
        }
        Some(row) => for_vectors!(V, row, |at, count| {
            let mut inner = V::zero();
            for (f, g) in f.chunks_exact(row).zip(g.chunks_exact(row)) {
                inner = get::<V>(f, at, count).fma(get::<V>(g, at, count), inner);
            }
            let inverse = get::<V>(inverse, at, count);
            for (gradient, g) in gradient.chunks_exact(row).zip(g.chunks_exact_mut(row)) {
                project::<V>(g, gradient, at, count, inner, inverse);
            }
        }),
    }
}

/// `g <- (g - inner gradient) inverse` for one vector.
#[inline(always)]
fn project<V: Lanes>(g: &mut [V::Elem], gradient: &[V::Elem], at: usize, count: usize, inner: V, inverse: V) {
    let rest = get::<V>(g, at, count) - inner * get::<V>(gradient, at, count);
    put(rest * inverse, g, at, count);
}

/// The larger number of each lane, NaN where the new one is.
#[inline(always)]
fn larger<V: Lanes>(new: V, old: V) -> V {
    V::select(new.lt(old), old, new)
}

#[inline(always)]
fn power_of_size<V: Lanes>(x: V, p: f64) -> V {
    if p == 1.0 {
        x.abs()
    } else if p == 2.0 {
        x * x
    } else {
        x.abs().powf(V::constant(p))
    }
}

#[inline(always)]
fn root<V: Lanes>(x: V, p: f64) -> V {
    if p == 1.0 {
        x
    } else if p == 2.0 {
        x.sqrt()
    } else {
        x.powf(V::constant(1.0 / p))
    }
}
