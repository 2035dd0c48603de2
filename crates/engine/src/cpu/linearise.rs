//! The derivative of a map at a state: slopes, and what the normalisation needs.

use crate::ShapedMap;
use crate::cpu::buffer::Buffer;
use crate::cpu::epilogue::{Injected, add, multiply, slopes_row};
use crate::cpu::gains::GainScratch;
use crate::cpu::isa::Vectorised;
use crate::cpu::linear::LinearScratch;
use crate::cpu::normalise::{Grouping, norm_gradient, normalise, pull_back};
use crate::cpu::packed::Packed;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::map::Formula;

/// The derivative of `F` at one state per sample of a block.
///
/// `J^T g` is: pull `g` back through the normalisation, through the gains, multiply by the slopes, apply the
/// transposed operators. What is fed to the transposed operators is called `q` everywhere.
pub(crate) struct Linearisation<T: SimdReal> {
    /// Slopes `df/du`, `df/dw`: `planes` times the state per sample.
    slopes: Buffer<T>,
    /// `h(u)`, `h(w)` likewise, for the gradients of the gains.
    values: Buffer<T>,
    /// The normalised state, the gradient of the norm, the reciprocal norms.
    normalised: Buffer<T>,
    norm_gradient: Buffer<T>,
    inverse_norms: Buffer<T>,
    /// One state per plane.
    rows: [Buffer<T>; 2],
    gains: Option<GainScratch<T>>,
}

impl<T: SimdReal> Linearisation<T> {
    /// Memory for blocks of `samples`.
    pub fn new(packed: &Packed<T>, samples: usize) -> Self {
        let len = packed.map.operator.state_len();
        let planes = packed.planes();
        let if_normalised = |len: usize| if packed.grouping.is_some() { samples * len } else { 0 };
        let if_gains = |len: usize| if packed.gains.is_some() { len } else { 0 };
        Self {
            slopes: Buffer::zeros(samples * planes * len),
            values: Buffer::zeros(if_gains(samples * planes * len)),
            normalised: Buffer::zeros(if_normalised(len)),
            norm_gradient: Buffer::zeros(if_normalised(len)),
            inverse_norms: Buffer::zeros(packed.grouping.map_or(0, |g| samples * g.groups())),
            rows: [Buffer::zeros(len), Buffer::zeros(len)],
            gains: packed.gains.as_ref().map(|gains| gains.scratch()),
        }
    }

    /// Linearises at `z` (with injection `y`) for the first `samples` samples of a block.
    pub fn at(
        &mut self,
        packed: &Packed<T>,
        active: &[usize],
        z: &[T],
        y: &[T],
        scratch: &mut LinearScratch<T>,
    ) {
        let Packed { isa, map, grouping, .. } = packed;
        let (len, planes) = (map.operator.state_len(), packed.planes());
        let Self { slopes, values, normalised, rows: [row0, row1], gains: gain_scratch, .. } = self;
        packed.forward.apply(active, z, scratch, &mut |sample, offset, u, w| {
            let width = u.len();
            let y = injected(map, y, sample, offset, width);
            let slopes = &mut slopes[sample * planes * len..][..planes * len];
            let (d0, d1) = slopes.split_at_mut(len);
            let d0 = &mut d0[offset..offset + width];
            let d1 = if planes == 2 { &mut d1[offset..offset + width] } else { &mut [][..] };
            let out = match grouping {
                Some(_) => &mut normalised[sample * len + offset..][..width],
                None => &mut row0[..width],
            };
            isa.dispatch(Slopes { map, u, w, y, d0, d1, out });
            if let (Some(gains), Some(scratch)) = (&packed.gains, gain_scratch.as_mut()) {
                let at = sample * planes * len + offset;
                values[at..at + width].copy_from_slice(u);
                values[at + len..at + len + width].copy_from_slice(w);
                if grouping.is_some() {
                    gains.apply(0, u, scratch, out);
                    gains.apply(1, w, scratch, &mut row1[..width]);
                    let shift = T::from_f64(map.shift);
                    for ((f, &b), &y) in out.iter_mut().zip(&row1[..width]).zip(y.first) {
                        *f = *f - b + (y + shift);
                    }
                }
            }
        });
        if let Some(grouping) = *grouping {
            for &sample in active {
                isa.dispatch(Normalise {
                    grouping,
                    f: &mut self.normalised[sample * len..][..len],
                    gradient: &mut self.norm_gradient[sample * len..][..len],
                    inverse: &mut self.inverse_norms[sample * grouping.groups()..][..grouping.groups()],
                });
            }
        }
    }

    /// The first `count` slopes: one state per sample, for maps with one operator.
    pub fn all_slopes(&self, count: usize) -> &[T] {
        &self.slopes[..count]
    }

    /// The slopes of one sample, if `q` is just their product with `g`: one operator, no normalisation.
    pub fn plain_slopes(&self, packed: &Packed<T>, sample: usize) -> Option<&[T]> {
        let len = packed.map.operator.state_len();
        let plain = packed.planes() == 1 && packed.grouping.is_none();
        plain.then(|| &self.slopes[sample * len..(sample + 1) * len])
    }

    /// `h(u)` and `h(w)` of one sample (maps with gains).
    pub fn values(&self, sample: usize, len: usize) -> (&[T], &[T]) {
        self.values[sample * 2 * len..][..2 * len].split_at(len)
    }

    /// Whether rows of `g` can be turned into rows of `q` one by one, without waiting for the whole state.
    pub fn is_rowwise(packed: &Packed<T>) -> bool {
        packed.grouping.is_none()
    }

    /// `g <- ` its pullback through the normalisation (a whole state).
    pub fn through_norm(&self, packed: &Packed<T>, sample: usize, g: &mut [T]) {
        let Some(grouping) = packed.grouping else { return };
        let len = g.len();
        packed.isa.dispatch(PullBack {
            grouping,
            f: &self.normalised[sample * len..][..len],
            gradient: &self.norm_gradient[sample * len..][..len],
            inverse: &self.inverse_norms[sample * grouping.groups()..][..grouping.groups()],
            g,
        });
    }

    /// Rows of `q` out of a row of `g` that has passed the normalisation. `q` holds the sample's `planes` states; the
    /// row begins at `offset` in each.
    pub fn row_of_q(&mut self, packed: &Packed<T>, sample: usize, offset: usize, g: &[T], q: &mut [T]) {
        let (len, planes, width) = (packed.map.operator.state_len(), packed.planes(), g.len());
        let (isa, slopes) = (packed.isa, &self.slopes[sample * planes * len..][..planes * len]);
        let gains = packed.gains.as_ref().zip(self.gains.as_mut());
        if let Some((gains, scratch)) = gains {
            for (plane, row) in self.rows.iter_mut().enumerate() {
                let range = plane * len + offset..plane * len + offset + width;
                gains.apply_transposed(plane, g, scratch, &mut row[..width]);
                isa.dispatch(Multiply {
                    x: &row[..width],
                    y: &slopes[range.clone()],
                    out: &mut q[range.clone()],
                });
            }
            for q in &mut q[len + offset..len + offset + width] {
                *q = -*q;
            }
            return;
        }
        for plane in 0..planes {
            let range = plane * len + offset..plane * len + offset + width;
            isa.dispatch(Multiply { x: g, y: &slopes[range.clone()], out: &mut q[range.clone()] });
        }
    }
}

/// A row of one sample's injection.
pub(crate) fn injected<'a, T>(
    map: &ShapedMap,
    y: &'a [T],
    sample: usize,
    offset: usize,
    width: usize,
) -> Injected<'a, T> {
    let len = map.operator.state_len();
    let y = &y[sample * map.injection_len()..][..map.injection_len()];
    let second = match map.formula {
        Formula::PowerRatio { .. } => &y[len + offset..len + offset + width],
        _ => &[],
    };
    Injected { first: &y[offset..offset + width], second }
}

struct Slopes<'a, T> {
    map: &'a ShapedMap,
    u: &'a mut [T],
    w: &'a mut [T],
    y: Injected<'a, T>,
    d0: &'a mut [T],
    d1: &'a mut [T],
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Slopes<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        slopes_row::<V>(self.map, self.u, self.w, self.y, [self.d0, self.d1], self.out);
    }
}

struct Normalise<'a, T> {
    grouping: Grouping,
    f: &'a mut [T],
    gradient: &'a mut [T],
    inverse: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Normalise<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        normalise::<V>(self.grouping, self.f, self.inverse);
        norm_gradient::<V>(self.grouping, self.f, self.gradient);
    }
}

struct PullBack<'a, T> {
    grouping: Grouping,
    f: &'a [T],
    gradient: &'a [T],
    inverse: &'a [T],
    g: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for PullBack<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        pull_back::<V>(self.grouping, self.f, self.gradient, self.inverse, self.g);
    }
}

pub(crate) struct Multiply<'a, T> {
    pub x: &'a [T],
    pub y: &'a [T],
    pub out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Multiply<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        multiply::<V>(self.x, self.y, self.out);
    }
}

/// `x <- x + y`.
pub(crate) struct Add<'a, T> {
    pub x: &'a mut [T],
    pub y: &'a [T],
}

impl<T: SimdReal> Vectorised<T> for Add<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        add::<V>(self.x, self.y);
    }
}
