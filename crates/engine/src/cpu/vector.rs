//! Sums and combinations of whole states, for the accelerated methods.

use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};

/// Numbers that are worked on together: they stay in the first-level cache from one state to the next, and sums over them
/// in f32 are short enough to be accurate.
const CHUNK: usize = 1024;

struct Dots<'a, T> {
    x: &'a [T],
    states: &'a [T],
    products: &'a mut [f64],
}

impl<T: SimdReal> Vectorised<T> for Dots<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { x, states, products } = self;
        products.fill(0.0);
        for (chunk, part) in x.chunks(CHUNK).enumerate() {
            for (k, product) in products.iter_mut().enumerate() {
                let y = &states[k * x.len() + chunk * CHUNK..][..part.len()];
                let mut sum = V::zero();
                for_vectors!(V, part.len(), |at, count| sum =
                    get::<V>(part, at, count).fma(get::<V>(y, at, count), sum));
                *product += sum.sum().to_f64();
            }
        }
    }
}

/// `<x, y>` for each of the states `y`, which lie one after the other; the order of the sums is fixed.
pub(crate) fn dots<T: SimdReal>(isa: Isa, x: &[T], states: &[T], products: &mut [f64]) {
    isa.dispatch(Dots { x, states, products });
}

/// Most lanes of a vector of any instruction set.
pub(crate) const LANES: usize = 16;

struct DotsFrom<'a, T> {
    begin: usize,
    whole: usize,
    x: &'a [T],
    states: &'a [T],
    products: &'a mut [f64],
    lanes: &'a mut [f64],
}

impl<T: SimdReal> Vectorised<T> for DotsFrom<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { begin, whole, x, states, products, lanes } = self;
        let mut at = 0;
        while at < x.len() {
            let within = (begin + at) % CHUNK;
            let count = (CHUNK - within).min(x.len() - at);
            let ends = within + count == CHUNK || begin + at + count == whole;
            // Numbers up to the next whole vector, by themselves: each lane goes on with its own sum.
            let odd = ((V::N - within % V::N) % V::N).min(count);
            for (k, product) in products.iter_mut().enumerate() {
                let lanes = &mut lanes[k * LANES..][..LANES];
                let (part, y) = (&x[at..][..count], &states[k * x.len() + at..][..count]);
                let mut sum = V::zero();
                if within > 0 {
                    let mut so_far = [T::ZERO; LANES];
                    so_far.iter_mut().zip(&*lanes).for_each(|(sum, &lane)| *sum = T::from_f64(lane));
                    sum = V::load(&so_far);
                }
                if odd > 0 {
                    let (mut a, mut b) = ([T::ZERO; LANES], [T::ZERO; LANES]);
                    a[within % V::N..][..odd].copy_from_slice(&part[..odd]);
                    b[within % V::N..][..odd].copy_from_slice(&y[..odd]);
                    sum = V::load(&a).fma(V::load(&b), sum);
                }
                let (part, y) = (&part[odd..], &y[odd..]);
                for_vectors!(V, part.len(), |at, count| sum =
                    get::<V>(part, at, count).fma(get::<V>(y, at, count), sum));
                if ends {
                    *product += sum.sum().to_f64();
                } else {
                    let mut so_far = [T::ZERO; LANES];
                    sum.store(&mut so_far);
                    lanes.iter_mut().zip(so_far).for_each(|(lane, sum)| *lane = sum.to_f64());
                }
            }
            at += count;
        }
    }
}

/// [`dots`] of vectors that come in pieces, with the same bits: `x` begins at a place of the whole, `products` holds the sums so
/// far and `lanes` ([`LANES`] for each) those of the piece of [`CHUNK`] numbers in which the piece before ended.
pub(crate) fn dots_from<T: SimdReal>(
    isa: Isa,
    (begin, whole): (usize, usize),
    x: &[T],
    states: &[T],
    products: &mut [f64],
    lanes: &mut [f64],
) {
    isa.dispatch(DotsFrom { begin, whole, x, states, products, lanes });
}

/// `<x, y>`.
pub(crate) fn dot<T: SimdReal>(isa: Isa, x: &[T], y: &[T]) -> f64 {
    let mut product = [0.0];
    dots(isa, x, y, &mut product);
    product[0]
}

/// What is known of all numbers of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signs {
    pub positive: bool,
    pub finite: bool,
}

struct Combine<'a, T> {
    weights: &'a [f64],
    scale: f64,
    states: &'a [T],
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Combine<'_, T> {
    type Output = Signs;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Signs {
        let Self { weights, scale, states, out } = self;
        let (len, one) = (out.len(), V::splat(T::ONE));
        let (mut not_positive, mut not_finite) = (V::zero(), V::zero());
        for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
            for (k, &weight) in weights.iter().enumerate() {
                let x = &states[k * len + chunk * CHUNK..][..out.len()];
                let factor = V::splat(T::from_f64(scale * weight));
                for_vectors!(V, out.len(), |at, count| {
                    put(factor.fma(get::<V>(x, at, count), get::<V>(out, at, count)), out, at, count);
                });
            }
            for_vectors!(V, out.len(), |at, count| {
                let x = get::<V>(out, at, count).first(count, one);
                not_positive = not_positive + V::select(V::zero().lt(x), V::zero(), one);
                // Zero times infinity is NaN, which is below nothing.
                not_finite = not_finite + V::select((x * V::zero()).lt(one), V::zero(), one);
            });
        }
        Signs { positive: not_positive.sum() == T::ZERO, finite: not_finite.sum() == T::ZERO }
    }
}

/// `out <- out + scale * sum of weights[k] states[k]`, where the states lie one after the other.
pub(crate) fn combine<T: SimdReal>(
    isa: Isa,
    scale: f64,
    weights: &[f64],
    states: &[T],
    out: &mut [T],
) -> Signs {
    isa.dispatch(Combine { weights, scale, states, out })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_and_combinations_are_what_they_are_called_whatever_the_length() {
        for isa in Isa::available() {
            for len in [1, 15, 16, 17, 1023, 1024, 1025, 2500] {
                let states: Vec<f64> = (0..3 * len).map(|i| (i as f64 * 0.7).sin()).collect();
                let x: Vec<f64> = (0..len).map(|i| (i as f64).cos()).collect();
                let mut products = [7.0; 3];
                dots(isa, &x, &states, &mut products);
                let mut out = vec![1.0; len];
                let weights = [0.5, -2.0, 3.0];
                combine(isa, 2.0, &weights, &states, &mut out);
                for (k, state) in states.chunks_exact(len).enumerate() {
                    let exact: f64 = state.iter().zip(&x).map(|(a, b)| a * b).sum();
                    assert!((products[k] - exact).abs() < 1e-11, "{isa:?} {len}");
                }
                for (i, out) in out.iter().enumerate() {
                    let exact = 1.0 + (0..3).map(|k| 2.0 * weights[k] * states[k * len + i]).sum::<f64>();
                    assert!((out - exact).abs() < 1e-13, "{isa:?} {len}");
                }
            }
        }
    }

    #[test]
    fn products_of_pieces_have_the_bits_of_the_whole() {
        for isa in Isa::available() {
            for len in [40, 1024, 5000] {
                let numbers = |seed: f64| (0..len).map(move |i| ((i as f64 * 0.7 + seed).sin()) as f32);
                let states: Vec<Vec<f32>> = (0..3).map(|k| numbers(f64::from(k)).collect()).collect();
                let x: Vec<f32> = numbers(9.0).collect();
                let mut whole = [0.0; 3];
                dots(isa, &x, &states.concat(), &mut whole);
                for step in [8, 24, 1000, 1032, 3000] {
                    let (mut products, mut lanes) = ([0.0; 3], [0.0; 3 * LANES]);
                    for begin in (0..len).step_by(step) {
                        let range = begin..(begin + step).min(len);
                        let pieces: Vec<f32> =
                            states.iter().flat_map(|y| &y[range.clone()]).copied().collect();
                        dots_from(isa, (begin, len), &x[range], &pieces, &mut products, &mut lanes);
                    }
                    assert_eq!(products, whole, "{isa:?}: {len} by {step}");
                }
            }
        }
    }

    #[test]
    fn signs_see_every_number() {
        for isa in Isa::available() {
            for len in [1, 16, 1030] {
                for at in [0, len / 2, len - 1] {
                    for (odd, positive, finite) in [
                        (1.0f32, true, true),
                        (0.0, false, true),
                        (-1.0, false, true),
                        (f32::INFINITY, true, false),
                        (f32::NAN, false, false),
                    ] {
                        let mut state = vec![1.0; len];
                        state[at] = odd;
                        let signs = combine(isa, 1.0, &[1.0], &state, &mut vec![0.0; len]);
                        assert_eq!(signs, Signs { positive, finite }, "{isa:?}: {odd} at {at} of {len}");
                    }
                }
            }
        }
    }
}
