//! Sums and combinations of whole states, for the accelerated methods.

use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};

struct Dot<'a, T> {
    x: &'a [T],
    y: &'a [T],
}

impl<T: SimdReal> Vectorised<T> for Dot<'_, T> {
    type Output = f64;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> f64 {
        // Chunks keep the rounding error of long sums in f32 small; the order is fixed.
        const CHUNK: usize = 1024;
        let mut total = 0.0;
        for (x, y) in self.x.chunks(CHUNK).zip(self.y.chunks(CHUNK)) {
            let mut sum = V::zero();
            for_vectors!(V, x.len(), |at, count| sum =
                get::<V>(x, at, count).fma(get::<V>(y, at, count), sum));
            total += sum.sum().to_f64();
        }
        total
    }
}

/// `<x, y>`.
pub(crate) fn dot<T: SimdReal>(isa: Isa, x: &[T], y: &[T]) -> f64 {
    isa.dispatch(Dot { x, y })
}

struct AddScaled<'a, T> {
    factor: T,
    x: &'a [T],
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for AddScaled<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let factor = V::splat(self.factor);
        let Self { x, out, .. } = self;
        for_vectors!(V, out.len(), |at, count| {
            put(factor.fma(get::<V>(x, at, count), get::<V>(out, at, count)), out, at, count);
        });
    }
}

/// `out <- out + factor x`.
pub(crate) fn add_scaled<T: SimdReal>(isa: Isa, factor: f64, x: &[T], out: &mut [T]) {
    isa.dispatch(AddScaled { factor: T::from_f64(factor), x, out });
}

struct Difference<'a, T> {
    x: &'a [T],
    y: &'a [T],
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Difference<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { x, y, out } = self;
        for_vectors!(V, out.len(), |at, count| {
            put(get::<V>(x, at, count) - get::<V>(y, at, count), out, at, count);
        });
    }
}

/// `out <- x - y`.
pub(crate) fn difference<T: SimdReal>(isa: Isa, x: &[T], y: &[T], out: &mut [T]) {
    isa.dispatch(Difference { x, y, out });
}

/// Whether all numbers are positive (and none is NaN).
pub(crate) fn all_positive<T: SimdReal>(x: &[T]) -> bool {
    x.iter().fold(true, |all, &x| all & (x > T::ZERO))
}
