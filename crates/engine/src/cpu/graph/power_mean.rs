//! Power means over hyperedges, `mean_i(|b_ie z_i|^p)^(1/p)`, and their slopes.
//!
//! Numbers are taken relative to the largest of their hyperedge before they are raised, and to the mean before slopes are: neither
//! overflows, and what underflows does not count.

use std::ops::Range;

use super::adjacency::Entries;
use super::propagate::SEGMENT;
use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal};

/// A power `p >= 1` in the working precision; those that need no logarithm by themselves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Power<T> {
    One,
    Two,
    Other {
        /// `p`.
        p: T,
        /// `1 / p`.
        inverse: T,
        /// `p - 1`.
        less_one: T,
    },
}

impl<T: SimdReal> Power<T> {
    pub fn new(p: f64) -> Self {
        match p {
            1.0 => Power::One,
            2.0 => Power::Two,
            p => Power::Other {
                p: T::from_f64(p),
                inverse: T::from_f64(1.0 / p),
                less_one: T::from_f64(p - 1.0),
            },
        }
    }

    /// `x^p`, `x >= 0`.
    #[inline(always)]
    fn raise<V: Lanes<Elem = T>>(self, x: V) -> V {
        match self {
            Power::One => x,
            Power::Two => x * x,
            Power::Other { p, .. } => x.powf(V::splat(p)),
        }
    }

    /// `x^(1/p)`, `x >= 0`.
    #[inline(always)]
    fn root<V: Lanes<Elem = T>>(self, x: V) -> V {
        match self {
            Power::One => x,
            Power::Two => x.sqrt(),
            Power::Other { inverse, .. } => x.powf(V::splat(inverse)),
        }
    }

    /// `x^(p-1)`, `x >= 0`: the slope of a mean for a number that is `x` times the mean, times how many numbers there are.
    #[inline(always)]
    fn slope<V: Lanes<Elem = T>>(self, x: V) -> V {
        match self {
            Power::One => V::one(),
            Power::Two => x,
            Power::Other { less_one, .. } => x.powf(V::splat(less_one)),
        }
    }
}

/// Zeros as ones: what is divided by them is zero itself.
#[inline(always)]
fn divisors<V: Lanes>(x: V) -> V {
    V::select(V::zero().lt(x), x, V::one())
}

/// What a mean is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// To be passed on, times the number of nodes: with `p = 1` that is their sum.
    Passed,
    /// To be divided by: never zero.
    Divisor,
}

/// One chunk of the way from nodes to hyperedges: the power means of what nodes give.
pub(crate) struct CollectMeans<'a, T> {
    pub power: Power<T>,
    pub wanted: Use,
    /// One row per hyperedge.
    pub entries: Entries<'a, T>,
    pub rows: Range<usize>,
    pub stride: usize,
    pub argument: &'a [T],
    /// The rows of these hyperedges.
    pub image: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for CollectMeans<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { power, wanted, entries, rows, stride, argument, image } = self;
        for (row, out) in rows.zip(image.chunks_exact_mut(stride)) {
            let range = entries.begin[row]..entries.end[row];
            let count = V::constant(range.len() as f64);
            let nodes = Given { columns: &entries.columns[range.clone()], values: &entries.values[range] };
            for at in (0..stride).step_by(V::N) {
                let top = nodes.largest::<V>(argument, stride, at);
                let powers = nodes.powers::<V>(power, divisors(top), argument, stride, at);
                // An empty hyperedge: 0 / 1, not 0 / 0.
                let mean = top * power.root(powers / count.max(V::one()));
                let wanted = match wanted {
                    Use::Passed => mean * count,
                    Use::Divisor => divisors(mean),
                };
                wanted.store(&mut out[at..]);
            }
        }
    }
}

/// The nodes of a hyperedge with their weights.
struct Given<'a, T> {
    columns: &'a [u32],
    values: &'a [T],
}

impl<T: SimdReal> Given<'_, T> {
    /// `|b z|` of its `k`-th node.
    #[inline(always)]
    fn number<V: Lanes<Elem = T>>(&self, k: usize, argument: &[T], stride: usize, at: usize) -> V {
        let z = V::load(&argument[self.columns[k] as usize * stride + at..]);
        (z * V::splat(self.values[k])).abs()
    }

    #[inline(always)]
    fn largest<V: Lanes<Elem = T>>(&self, argument: &[T], stride: usize, at: usize) -> V {
        let mut top = V::zero();
        for k in 0..self.columns.len() {
            top = top.max(self.number::<V>(k, argument, stride, at));
        }
        top
    }

    /// The sum of the powers of all numbers, relative to `unit`.
    #[inline(always)]
    fn powers<V: Lanes<Elem = T>>(
        &self,
        power: Power<T>,
        unit: V,
        argument: &[T],
        stride: usize,
        at: usize,
    ) -> V {
        let (mut total, len) = (V::zero(), self.columns.len());
        let mut begin = 0;
        while begin < len {
            let end = len.min(begin + SEGMENT);
            let mut sum = V::zero();
            for k in begin..end {
                sum = sum + power.raise(self.number::<V>(k, argument, stride, at) / unit);
            }
            total = total + sum;
            begin = end;
        }
        total
    }
}

/// The way back through power means at a state, from hyperedges to nodes: `n dM_e/dz_i = b_ie (|b_ie z_i| / M_e)^(p-1) sign z_i`.
///
/// Where all numbers of a hyperedge are zero a mean has no derivative if `p > 1`; 0, one of its subgradients, is taken.
#[derive(Clone, Copy)]
pub(crate) struct Slopes<'a, T> {
    pub power: Power<T>,
    /// The state, whole.
    pub state: &'a [T],
    /// The means there, whole, as divisors.
    pub means: &'a [T],
}

impl<T: SimdReal> Slopes<'_, T> {
    /// `out` = what node `row` gets of what has arrived at its hyperedges.
    #[inline(always)]
    pub fn row_product<V: Lanes<Elem = T>>(
        &self,
        entries: &Entries<'_, T>,
        row: usize,
        arrived: &[T],
        stride: usize,
        out: &mut [T],
    ) {
        let range = entries.begin[row]..entries.end[row];
        let (columns, values) = (&entries.columns[range.clone()], &entries.values[range]);
        for at in (0..stride).step_by(V::N) {
            let z = V::load(&self.state[row * stride + at..]);
            let (mut total, len) = (V::zero(), columns.len());
            let mut begin = 0;
            while begin < len {
                let end = len.min(begin + SEGMENT);
                let mut sum = V::zero();
                for k in begin..end {
                    let place = columns[k] as usize * stride + at;
                    let weight = V::splat(values[k]);
                    let given = z * weight;
                    let slope = self.power.slope(given.abs() / V::load(&self.means[place..])).copysign(given);
                    sum = (slope * weight).fma(V::load(&arrived[place..]), sum);
                }
                total = total + sum;
                begin = end;
            }
            total.store(&mut out[at..]);
        }
    }
}
