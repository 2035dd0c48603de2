//! The adjoint splitting: `g = W^T D g + v` with the slopes `D` of the activation.
//!
//! `q = D g` solves `q = D (W^T q + v)`, a problem like the forward one with the linear "activation" `D`, whose proximal step
//! is `q = D p / (D + t (1 - D))`. With the state `p` and `r = 2 D / (D + t (1 - D)) - 1` in `[-1, 1]`,
//!
//! `u = r p,  p <- C^T u + k,  k = 2 t R^T v = t (C^T v + v)`,
//!
//! of which an iteration goes the same part as forward,
//!
//! and the answer is `g = p / (D + t (1 - D)) = ((1 + r) / 2 + (1 - r) / (2 t)) p`.

use super::Memory;
use super::forward::advance_row;
use super::operator::Operator;
use super::pixels::Pixels;
use super::sweep::{Pointwise, sweep};
use crate::Measure;
use crate::cpu::conv::{Accuracy, Grade};
use crate::cpu::distance::Distance;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::step::{FixedPointStep, InPlace, copy_states};

/// One Peaceman-Rachford step of the adjoint equation for a block of images.
pub(crate) struct Adjoint<'a, T: SimdReal> {
    isa: Isa,
    operator: &'a Operator<T>,
    memory: &'a mut Memory<T>,
    pixels: Pixels,
    v: &'a [T],
}

impl<'a, T: SimdReal> Adjoint<'a, T> {
    /// For the block with right-hand sides `v` and slopes `d` in `[0, 1]`, both without padding. [`Self::start`] must follow.
    pub(crate) fn new(
        isa: Isa,
        operator: &'a Operator<T>,
        memory: &'a mut Memory<T>,
        d: &[T],
        v: &'a [T],
    ) -> Self {
        let pixels = Pixels::of(&operator.adjoint);
        let t = T::from_f64(operator.step());
        let len = pixels.padded_len();
        let count = v.len() / pixels.plain(0, 0, len).len();
        let Memory { reflection, images, .. } = &mut *memory;
        for image in 0..count {
            let d = &d[pixels.plain(image, 0, len)];
            pixels.zip(&mut reflection[pixels.padded(image, 0, len)], d, |r, d| {
                let opposite = t * (T::ONE - d);
                *r = (d - opposite) / (d + opposite);
            });
        }
        images.clear();
        images.extend(0..count);
        Self { isa, operator, memory, pixels, v }
    }

    /// Computes the constants, as accurately as the answers have to be, and writes the states to start from: what a step from
    /// zero would give, which are the constants.
    pub(crate) fn start(&mut self, accuracy: Accuracy, states: &mut [T]) {
        let Self { isa, operator, pixels, v, .. } = *self;
        let Memory { scratch, constant, reflection, images, .. } = &mut *self.memory;
        let t = T::from_f64(operator.step());
        scratch.forget(images);
        let mut constant = Constant { pixels, t, v, reflection, constant, states };
        sweep(isa, &operator.adjoint, accuracy, scratch, images, &mut constant);
    }
}

impl<T: SimdReal> FixedPointStep<T> for Adjoint<'_, T> {
    fn state_len(&self) -> usize {
        self.pixels.padded_len()
    }

    fn grade(&mut self) -> Option<&mut Grade> {
        self.memory.grade.as_mut()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        copy_states(self.state_len(), active, argument, image);
        self.memory.scratch.forget(active);
        self.iterate(active, image, measure, distances);
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace<T>> {
        Some(self)
    }

    fn finish(&mut self, done: &[usize], state: &[T], answers: &mut [T]) {
        let half = T::from_f64(0.5);
        let half_step = half / T::from_f64(self.operator.step());
        let len = self.pixels.padded_len();
        for &image in done {
            let plain = &mut answers[self.pixels.plain(image, 0, len)];
            let padded = self.pixels.padded(image, 0, len);
            self.pixels.unzip(plain, &self.memory.reflection[padded.clone()], |answer, r| {
                *answer = half * (T::ONE + r) + half_step * (T::ONE - r);
            });
            self.pixels.unzip(plain, &state[padded], |answer, p| *answer *= p);
        }
    }
}

impl<T: SimdReal> InPlace<T> for Adjoint<'_, T> {
    fn iterate(&mut self, active: &[usize], state: &mut [T], measure: Measure, distances: &mut [Distance]) {
        active.iter().for_each(|&sample| distances[sample] = Distance::EMPTY);
        let accuracy = self.memory.accuracy();
        let Memory { scratch, constant, reflection, .. } = &mut *self.memory;
        let mut update = Update { pixels: self.pixels, constant, reflection, state, measure, distances };
        sweep(self.isa, &self.operator.adjoint, accuracy, scratch, active, &mut update);
    }
}

/// Computes the constant `k`, and starts the iteration there.
struct Constant<'a, T> {
    pixels: Pixels,
    t: T,
    v: &'a [T],
    reflection: &'a [T],
    constant: &'a mut [T],
    states: &'a mut [T],
}

impl<T: SimdReal> Pointwise<T> for Constant<'_, T> {
    const ITERATES: bool = true;

    #[inline(always)]
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, argument: &mut [T]) {
        let v = &self.v[self.pixels.plain(image, at, argument.len())];
        argument.fill(T::ZERO);
        self.pixels.zip(argument, v, |x, v| *x = self.t * v);
    }

    #[inline(always)]
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]) {
        let v = &self.v[self.pixels.plain(image, at, result.len())];
        self.pixels.zip(result, v, |k, v| *k += self.t * v);
        let range = self.pixels.padded(image, at, result.len());
        self.constant[range.clone()].copy_from_slice(result);
        self.states[range].copy_from_slice(result);
    }

    #[inline(always)]
    fn next<V: Lanes<Elem = T>>(&self, image: usize, at: usize, u: &mut [T]) {
        let range = self.pixels.padded(image, at, u.len());
        reflect::<V>(&self.reflection[range.clone()], &self.states[range], u);
    }
}

/// `u = r p`.
#[inline(always)]
fn reflect<V: Lanes>(r: &[V::Elem], p: &[V::Elem], u: &mut [V::Elem]) {
    for ((u, r), p) in u.chunks_exact_mut(V::N).zip(r.chunks_exact(V::N)).zip(p.chunks_exact(V::N)) {
        (V::load(r) * V::load(p)).store(u);
    }
}

/// One iteration.
struct Update<'a, T> {
    pixels: Pixels,
    constant: &'a [T],
    reflection: &'a [T],
    state: &'a mut [T],
    measure: Measure,
    distances: &'a mut [Distance],
}

impl<T: SimdReal> Pointwise<T> for Update<'_, T> {
    const ITERATES: bool = true;

    #[inline(always)]
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, u: &mut [T]) {
        let range = self.pixels.padded(image, at, u.len());
        reflect::<V>(&self.reflection[range.clone()], &self.state[range], u);
    }

    #[inline(always)]
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]) {
        let range = self.pixels.padded(image, at, result.len());
        let (k, p) = (&self.constant[range.clone()], &mut self.state[range]);
        self.distances[image].merge(advance_row::<V>(self.measure, result, k, p));
    }
}
