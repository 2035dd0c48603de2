//! Broyden's good method with limited memory, for `r(z) = F(z) - z = 0`.
//!
//! The inverse Jacobian of `r` is kept as `B = -I + sum u_i v_i^T`; the next argument is `z - B r`. When the memory is full it
//! starts afresh. A step after which the residual has more than doubled, or is not finite, is taken back and followed by a
//! Picard step.

use super::{Iterates, Method};
use crate::Measure;
use crate::cpu::buffer::Buffer;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;
use crate::cpu::vector::{add_scaled, difference, dot};

/// The squared growth of the residual beyond which a step is taken back.
const GROWTH: f64 = 4.0;

/// Broyden's method for a block of samples, each with an approximation of its own.
pub(crate) struct Broyden<T: SimdReal> {
    isa: Isa,
    memory: usize,
    state_len: usize,
    /// `u_i`, `v_i`: `memory` states per sample each.
    left: Buffer<T>,
    right: Buffer<T>,
    /// The argument, image and residual of the last step that was kept; one state per sample.
    arguments: Buffer<T>,
    images: Buffer<T>,
    residuals: Buffer<T>,
    /// The change of the argument and of the residual in the current step.
    moved: Buffer<T>,
    changed: Buffer<T>,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy)]
struct Sample {
    updates: usize,
    /// Squared norm of the last residual that was kept; infinite before the first.
    residual: f64,
    distance: Distance,
    /// Whether the argument in use is a Broyden step, which may be taken back.
    accelerated: bool,
}

impl Sample {
    const NEW: Sample =
        Sample { updates: 0, residual: f64::INFINITY, distance: Distance::EMPTY, accelerated: false };
}

impl<T: SimdReal> Broyden<T> {
    pub fn new(isa: Isa) -> Self {
        Self {
            isa,
            memory: 0,
            state_len: 0,
            left: Buffer::default(),
            right: Buffer::default(),
            arguments: Buffer::default(),
            images: Buffer::default(),
            residuals: Buffer::default(),
            moved: Buffer::default(),
            changed: Buffer::default(),
            samples: Vec::new(),
        }
    }

    /// Sets the memory of the next solves.
    pub fn configure(&mut self, memory: usize) {
        self.memory = memory;
    }

    fn slot(&self, sample: usize, slot: usize) -> std::ops::Range<usize> {
        let at = (sample * self.memory + slot) * self.state_len;
        at..at + self.state_len
    }

    fn state(&self, sample: usize) -> std::ops::Range<usize> {
        sample * self.state_len..(sample + 1) * self.state_len
    }

    /// `argument <- z - B r = z + r - sum u_i <v_i, r>` from the last step that was kept; the start at first.
    fn propose(&mut self, sample: usize, image: &[T], argument: &mut [T]) {
        let updates = self.samples[sample].updates;
        self.samples[sample].accelerated = updates > 0;
        argument.copy_from_slice(image);
        for slot in 0..updates {
            let range = self.slot(sample, slot);
            let inner = dot(self.isa, &self.right[range.clone()], &self.residuals[self.state(sample)]);
            add_scaled(self.isa, -inner, &self.left[range], argument);
        }
    }

    fn judge(&mut self, sample: usize, argument: &[T], image: &mut [T], distance: &mut Distance) {
        let (isa, range, last) = (self.isa, self.state(sample), self.samples[sample]);
        difference(isa, image, argument, &mut self.changed);
        let residual = dot(isa, &self.changed, &self.changed);
        if last.accelerated && !(residual <= GROWTH * last.residual) {
            image.copy_from_slice(&self.images[range]);
            *distance = last.distance;
            self.samples[sample] = Sample { updates: 0, accelerated: false, ..last };
            return;
        }
        let mut updates = last.updates;
        if last.residual.is_finite() {
            if updates == self.memory {
                updates = 0;
            }
            updates += usize::from(self.update(sample, updates, argument));
        }
        // `changed` now holds the change of the residual; the residual itself is worked out again.
        difference(isa, image, argument, &mut self.residuals[range.clone()]);
        self.arguments[range.clone()].copy_from_slice(argument);
        self.images[range].copy_from_slice(image);
        self.samples[sample] = Sample { updates, residual, distance: *distance, accelerated: false };
    }

    /// Adds `u v^T` with `u = (dz - B dr) / <dz, B dr>`, `v = B^T dz`; false if the denominator vanishes. Needs the new
    /// residual in `changed`.
    fn update(&mut self, sample: usize, slot: usize, argument: &[T]) -> bool {
        let (isa, range) = (self.isa, self.state(sample));
        difference(isa, argument, &self.arguments[range.clone()], &mut self.moved);
        add_scaled(isa, -1.0, &self.residuals[range], &mut self.changed);
        let (u, v) = (self.slot(sample, slot), self.slot(sample, slot));
        // u: first B dr = -dr + sum u_i <v_i, dr>; v: B^T dz = -dz + sum v_i <u_i, dz>.
        let first = self.slot(sample, 0).start;
        let (old_left, new_left) = self.left.split_at_mut(u.start);
        let (old_right, new_right) = self.right.split_at_mut(v.start);
        let (u, v) = (&mut new_left[..self.state_len], &mut new_right[..self.state_len]);
        u.fill(T::ZERO);
        v.fill(T::ZERO);
        add_scaled(isa, -1.0, &self.changed, u);
        add_scaled(isa, -1.0, &self.moved, v);
        let old = old_left[first..]
            .chunks_exact(self.state_len)
            .zip(old_right[first..].chunks_exact(self.state_len));
        for (left, right) in old {
            add_scaled(isa, dot(isa, right, &self.changed), left, u);
            add_scaled(isa, dot(isa, left, &self.moved), right, v);
        }
        let denominator = dot(isa, &self.moved, u);
        let size = dot(isa, &self.moved, &self.moved);
        if !(denominator.abs() > 1e-8 * size) {
            return false;
        }
        for (u, &moved) in u.iter_mut().zip(&self.moved[..]) {
            *u = (moved - *u) * T::from_f64(1.0 / denominator);
        }
        true
    }
}

impl<T: SimdReal> Method<T> for Broyden<T> {
    fn begin(&mut self, samples: usize, state_len: usize) {
        self.state_len = state_len;
        self.left.reserve_zeros(samples * self.memory * state_len);
        self.right.reserve_zeros(samples * self.memory * state_len);
        for buffer in [&mut self.arguments, &mut self.images, &mut self.residuals] {
            buffer.reserve_zeros(samples * state_len);
        }
        for buffer in [&mut self.moved, &mut self.changed] {
            if buffer.len() != state_len {
                *buffer = Buffer::zeros(state_len);
            }
        }
        self.samples.clear();
        self.samples.resize(samples, Sample::NEW);
    }

    fn advance(
        &mut self,
        step: &mut dyn FixedPointStep<T>,
        active: &[usize],
        iterates: &mut Iterates<T>,
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.state_len;
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            self.propose(sample, &iterates.image[range.clone()], &mut iterates.argument[range]);
        }
        step.step(active, &iterates.argument, &mut iterates.image, measure, distances);
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            self.judge(
                sample,
                &iterates.argument[range.clone()],
                &mut iterates.image[range],
                &mut distances[sample],
            );
        }
    }
}
