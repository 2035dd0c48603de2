//! What is done between the stages of a step, each in one pass over the states.

use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};

use super::tableau::{ERROR, STAGES};

/// Numbers whose squares are added in `f32`: few enough for the sum to be accurate.
const CHUNK: usize = 1024;

/// A sum of at most so many multiples of states.
pub(super) struct Terms<'a, T> {
    terms: [(T, &'a [T]); STAGES],
    count: usize,
}

impl<'a, T: SimdReal> Terms<'a, T> {
    /// Of factors that are not zero.
    pub fn new(terms: impl IntoIterator<Item = (f64, &'a [T])>) -> Self {
        let mut all = Self { terms: [(T::ZERO, &[]); STAGES], count: 0 };
        for (factor, state) in terms.into_iter().filter(|(factor, _)| *factor != 0.0) {
            all.terms[all.count] = (T::from_f64(factor), state);
            all.count += 1;
        }
        all
    }

    fn get(&self) -> &[(T, &'a [T])] {
        &self.terms[..self.count]
    }
}

/// `out <- (start + sum of terms) * slope`; without a start it is zero, without a slope one.
pub(super) struct Combine<'a, T> {
    pub start: Option<&'a [T]>,
    pub terms: Terms<'a, T>,
    pub slope: Option<&'a [T]>,
    pub out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Combine<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { start, terms, slope, out } = self;
        for_vectors!(V, out.len(), |at, count| {
            let mut sum = start.map_or(V::zero(), |start| get::<V>(start, at, count));
            for &(factor, state) in terms.get() {
                sum = V::splat(factor).fma(get::<V>(state, at, count), sum);
            }
            put(slope.map_or(sum, |slope| sum * get::<V>(slope, at, count)), out, at, count);
        });
    }
}

/// The error estimate of a step in units of what is allowed, squared and added up. What is allowed is relative to the larger one of the
/// states before and after the step.
pub(super) struct Errors<'a, T> {
    pub step: f64,
    pub relative: f64,
    pub absolute: f64,
    pub stages: [&'a [T]; STAGES + 1],
    pub before: &'a [T],
    pub after: &'a [T],
}

impl<T: SimdReal> Vectorised<T> for Errors<'_, T> {
    type Output = f64;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> f64 {
        let Self { step, relative, absolute, stages, before, after } = self;
        let factors = ERROR.map(|e| V::constant(step * e));
        let (relative, absolute, len) = (V::constant(relative), V::constant(absolute), before.len());
        let mut total = 0.0;
        for first in (0..len).step_by(CHUNK) {
            let mut sum = V::zero();
            for_vectors!(V, CHUNK.min(len - first), |at, count| {
                let mut error = V::zero();
                for (factor, stage) in factors.iter().zip(&stages) {
                    error = factor.fma(get::<V>(stage, first + at, count), error);
                }
                let size = get::<V>(before, first + at, count).abs();
                let size = size.max(get::<V>(after, first + at, count).abs());
                // Of the lanes behind the end, 0 may be divided by 0.
                let share = (error / relative.fma(size, absolute)).first(count, V::zero());
                sum = share.fma(share, sum);
            });
            total += sum.sum().to_f64();
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::Isa;

    /// States of some length whose numbers have nothing to do with each other.
    fn states(count: usize, len: usize) -> Vec<Vec<f32>> {
        let number = |k: usize, i: usize| ((k * 7919 + i) as f64 * 0.7).sin() as f32;
        (0..count).map(|k| (0..len).map(|i| number(k, i)).collect()).collect()
    }

    #[test]
    fn combinations_are_what_they_are_called_whatever_the_length() {
        for isa in Isa::available() {
            for len in [1, 15, 16, 17, 1025] {
                let x = states(4, len);
                let mut out = vec![f32::NAN; len];
                let terms = || Terms::new([(0.5, &x[1][..]), (0.0, &[][..]), (-2.0, &x[2][..])]);
                isa.dispatch(Combine { start: Some(&x[0]), terms: terms(), slope: None, out: &mut out });
                for i in 0..len {
                    assert!(
                        (out[i] - (x[0][i] + 0.5 * x[1][i] - 2.0 * x[2][i])).abs() < 1e-6,
                        "{isa:?} {len}"
                    );
                }
                isa.dispatch(Combine { start: None, terms: terms(), slope: Some(&x[3]), out: &mut out });
                for i in 0..len {
                    let expected = (0.5 * x[1][i] - 2.0 * x[2][i]) * x[3][i];
                    assert!((out[i] - expected).abs() < 1e-6, "{isa:?} {len}");
                }
            }
        }
    }

    #[test]
    fn errors_are_relative_to_the_larger_state() {
        for isa in Isa::available() {
            for len in [1, 15, 16, 17, 1025, 2500] {
                let x = states(STAGES + 3, len);
                let stages = std::array::from_fn(|k| &x[k][..]);
                let [before, after] = [&x[STAGES + 1][..], &x[STAGES + 2][..]];
                // Without an absolute part: behind the end nothing is allowed, and nothing is there.
                let (step, relative, absolute) = (0.3, 1e-2, 0.0);
                let found = isa.dispatch(Errors { step, relative, absolute, stages, before, after });
                let expected: f64 = (0..len)
                    .map(|i| {
                        let error: f64 = stages.iter().zip(ERROR).map(|(k, e)| e * f64::from(k[i])).sum();
                        let size = f64::from(before[i].abs().max(after[i].abs()));
                        (step * error / (relative * size)).powi(2)
                    })
                    .sum();
                assert!((found - expected).abs() <= 1e-5 * expected, "{isa:?} {len}: {found} {expected}");
                let mut broken = x[2].clone();
                broken[len / 2] = f32::NAN;
                let mut stages = stages;
                stages[2] = &broken;
                let found = isa.dispatch(Errors { step, relative, absolute, stages, before, after });
                assert!(found.is_nan(), "{isa:?} {len}");
            }
        }
    }
}
