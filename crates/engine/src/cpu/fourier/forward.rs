//! The forward splitting: `z = s(W z + y)` or `z = s(W z) + y`, plus the map's shift.
//!
//! The state of the iteration is `g`, the argument of the proximal step (THEORY: `g = 2 h - u`), since the answer is
//! `prox_t(g)` and nothing else has to be kept: with `C = 2 R - I`,
//!
//! `u = 2 prox_t(g) - g,  g <- (1 - p) g + p (C u + k)`,
//!
//! with the part `p` of the way that an iteration goes ([`PEACEMAN_RACHFORD_PART`]). `prox_t` does not expand and an iteration
//! contracts by `q = 1 - p + p ||C||`, so the residual in `g` bounds the error of the answer: `||z - z*|| <= q / (1 - q) ||g_next - g||`.
//!
//! What is added outside the activation (`b`: outer injection, shift) is taken off first: `e = z - b` solves
//! `e = s(W e + W b + y)`. With `t R W = (1 + t) R - I` the constant `k = 2 t R (y + W b)` needs `C` alone:
//! `k = C x + t y + (t - 1) b`, `x = t y + (1 + t) b`.

use super::Memory;
use super::operator::Operator;
use super::pixels::Pixels;
use super::sweep::{Pointwise, sweep};
use crate::cpu::conv::{Accuracy, Grade};
use crate::cpu::distance::{Distance, Squares, distance_row};
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::prox::{leaves_zero, prox_row};
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::step::{FixedPointStep, InPlace, copy_states};
use crate::solver::PEACEMAN_RACHFORD_PART;
use crate::{Injection, Measure, ShapedMap, Start};

/// One Peaceman-Rachford step for a block of images.
pub(crate) struct Forward<'a, T: SimdReal> {
    isa: Isa,
    operator: &'a Operator<T>,
    memory: &'a mut Memory<T>,
    problem: Problem<'a, T>,
}

/// What the pointwise parts need to know.
#[derive(Clone, Copy)]
struct Problem<'a, T> {
    map: &'a ShapedMap,
    step: f64,
    pixels: Pixels,
    /// The injections of the block, without padding.
    y: &'a [T],
}

impl<T: SimdReal> Problem<'_, T> {
    /// What multiplies the injection, and what is added, when `inner y + outer b` is formed.
    fn combination(&self, inner: f64, outer: f64) -> (T, T) {
        let factor = if self.map.injection == Injection::Inner { inner } else { outer };
        (T::from_f64(factor), T::from_f64(outer * self.map.shift))
    }

    /// `u = 2 prox_t(g) - g`.
    #[inline(always)]
    fn reflect<V: Lanes<Elem = T>>(&self, g: &[T], u: &mut [T]) {
        u.copy_from_slice(g);
        prox_row::<V>(self.map.activation, self.step, u);
        for (u, g) in u.chunks_exact_mut(V::N).zip(g.chunks_exact(V::N)) {
            let z = V::load(u);
            (z + (z - V::load(g))).store(u);
        }
    }
}

impl<'a, T: SimdReal> Forward<'a, T> {
    /// For the block whose injections are `y` (`y.len()` tells how many images); the map must have been checked and the
    /// operator loaded for the same step. [`Self::start`] must follow.
    pub(crate) fn new(
        isa: Isa,
        operator: &'a Operator<T>,
        memory: &'a mut Memory<T>,
        map: &'a ShapedMap,
        y: &'a [T],
    ) -> Self {
        let pixels = Pixels::of(&operator.forward);
        let problem = Problem { map, step: operator.step(), pixels, y };
        memory.images.clear();
        memory.images.extend(0..y.len() / map.operator.state_len());
        Self { isa, operator, memory, problem }
    }

    /// Computes the constants, as accurately as the answers have to be, and writes the states to start from; `z` are the
    /// answers of the block, if they are the start. A step from zero need not be made where it is known to give the constant.
    pub(crate) fn start(&mut self, accuracy: Accuracy, start: Start, z: &[T], states: &mut [T]) {
        if matches!(start, Start::Constant(0.0)) && leaves_zero(self.problem.map) {
            return self.constants::<true>(accuracy, states);
        }
        self.constants::<false>(accuracy, states);
        let images = states.chunks_exact_mut(self.state_len()).take(self.memory.images.len());
        images.enumerate().for_each(|(image, state)| self.start_at(image, start, z, state));
    }

    /// Computes the constants, and starts the iteration there if `START`.
    fn constants<const START: bool>(&mut self, accuracy: Accuracy, states: &mut [T]) {
        let Self { isa, operator, problem, .. } = *self;
        let Memory { scratch, constant, images, .. } = &mut *self.memory;
        scratch.forget(images);
        let mut constant = Constant::<_, START> { problem, constant, states };
        sweep(isa, &operator.forward, accuracy, scratch, images, &mut constant);
    }

    fn start_at(&self, image: usize, start: Start, z: &[T], state: &mut [T]) {
        let pixels = self.problem.pixels;
        let plain = pixels.plain(image, 0, pixels.padded_len());
        let (factor, shift) = self.problem.combination(0.0, 1.0);
        state.fill(T::ZERO);
        match start {
            Start::Constant(value) => pixels.zip(state, &self.problem.y[plain], |g, y| {
                *g = T::from_f64(value) - (factor * y + shift);
            }),
            Start::Given => {
                pixels.zip(state, &z[plain.clone()], |g, z| *g = z);
                pixels.zip(state, &self.problem.y[plain], |g, y| *g -= factor * y + shift);
            }
        }
    }
}

impl<T: SimdReal> FixedPointStep<T> for Forward<'_, T> {
    fn state_len(&self) -> usize {
        self.problem.pixels.padded_len()
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
        self.isa.dispatch(Finish { problem: self.problem, row: &mut self.memory.row, done, state, answers });
    }
}

impl<T: SimdReal> InPlace<T> for Forward<'_, T> {
    fn iterate(&mut self, active: &[usize], state: &mut [T], measure: Measure, distances: &mut [Distance]) {
        active.iter().for_each(|&sample| distances[sample] = Distance::EMPTY);
        let accuracy = self.memory.accuracy();
        let Memory { scratch, constant, .. } = &mut *self.memory;
        let mut update = Update { problem: self.problem, constant, state, measure, distances };
        sweep(self.isa, &self.operator.forward, accuracy, scratch, active, &mut update);
    }
}

/// Computes the constant `k`, and starts the iteration there if `START`.
struct Constant<'a, T, const START: bool> {
    problem: Problem<'a, T>,
    constant: &'a mut [T],
    states: &'a mut [T],
}

impl<T: SimdReal, const START: bool> Pointwise<T> for Constant<'_, T, START> {
    const ITERATES: bool = START;

    #[inline(always)]
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, argument: &mut [T]) {
        let Problem { step, pixels, y, .. } = self.problem;
        let (factor, shift) = self.problem.combination(step, 1.0 + step);
        let y = &y[pixels.plain(image, at, argument.len())];
        argument.fill(T::ZERO);
        pixels.zip(argument, y, |x, y| *x = factor * y + shift);
    }

    #[inline(always)]
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]) {
        let Problem { step, pixels, y, .. } = self.problem;
        let (factor, shift) = self.problem.combination(step, step - 1.0);
        let y = &y[pixels.plain(image, at, result.len())];
        pixels.zip(result, y, |k, y| *k += factor * y + shift);
        let range = pixels.padded(image, at, result.len());
        self.constant[range.clone()].copy_from_slice(result);
        if START {
            self.states[range].copy_from_slice(result);
        }
    }

    #[inline(always)]
    fn next<V: Lanes<Elem = T>>(&self, image: usize, at: usize, u: &mut [T]) {
        self.problem.reflect::<V>(&self.states[self.problem.pixels.padded(image, at, u.len())], u);
    }
}

/// One iteration.
struct Update<'a, T> {
    problem: Problem<'a, T>,
    constant: &'a [T],
    state: &'a mut [T],
    measure: Measure,
    distances: &'a mut [Distance],
}

impl<T: SimdReal> Pointwise<T> for Update<'_, T> {
    const ITERATES: bool = true;

    #[inline(always)]
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, u: &mut [T]) {
        self.problem.reflect::<V>(&self.state[self.problem.pixels.padded(image, at, u.len())], u);
    }

    #[inline(always)]
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]) {
        let range = self.problem.pixels.padded(image, at, result.len());
        let (k, g) = (&self.constant[range.clone()], &mut self.state[range]);
        self.distances[image].merge(advance_row::<V>(self.measure, result, k, g));
    }
}

/// `g <- (1 - p) g + p (product + k)`, and how far that is, in one pass: `k` and `g` come from far away.
#[inline(always)]
pub(super) fn advance_row<V: Lanes>(
    measure: Measure,
    product: &mut [V::Elem],
    k: &[V::Elem],
    g: &mut [V::Elem],
) -> Distance {
    let part = V::constant(PEACEMAN_RACHFORD_PART);
    let next = |g: V, product: V, k: V| part.fma(product + k - g, g);
    if !Squares::<V>::make(measure) {
        let arguments = g.chunks_exact(V::N).zip(k.chunks_exact(V::N));
        for (p, (g, k)) in product.chunks_exact_mut(V::N).zip(arguments) {
            next(V::load(g), V::load(p), V::load(k)).store(p);
        }
        let distance = distance_row::<V>(measure, g, product);
        g.copy_from_slice(product);
        return distance;
    }
    let mut squares = Squares::<V>::new();
    let arguments = product.chunks_exact(V::N).zip(k.chunks_exact(V::N));
    for (g, (product, k)) in g.chunks_exact_mut(V::N).zip(arguments) {
        let image = next(V::load(g), V::load(product), V::load(k));
        squares.add(V::load(g), image);
        image.store(g);
    }
    squares.distance()
}

/// `z = prox_t(g) + b`.
struct Finish<'a, T> {
    problem: Problem<'a, T>,
    row: &'a mut [T],
    done: &'a [usize],
    state: &'a [T],
    answers: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { problem: Problem { map, step, pixels, y }, row, done, state, answers } = self;
        let (factor, shift) = self.problem.combination(0.0, 1.0);
        for &image in done {
            for at in (0..pixels.padded_len()).step_by(row.len()) {
                row.copy_from_slice(&state[pixels.padded(image, at, row.len())]);
                prox_row::<V>(map.activation, step, row);
                let plain = pixels.plain(image, at, row.len());
                pixels.zip(row, &y[plain.clone()], |z, y| *z += factor * y + shift);
                pixels.unzip(&mut answers[plain], row, |answer, z| *answer = z);
            }
        }
    }
}
