//! The one interface between the solvers and the kernels.

use crate::Measure;
use crate::cpu::conv::Grade;
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;

/// A fixed-point problem for a block of samples: what a solver needs to know of a map, a linear adjoint equation, a
/// splitting, or a user's own function.
///
/// States lie one after the other, `state_len` numbers each, without gaps; samples are named by their position in the
/// block. A step must treat each sample by itself: its result may depend neither on which other samples are active nor
/// on its position.
pub trait FixedPointStep<T: SimdReal>: Send {
    /// Numbers in one sample's state.
    fn state_len(&self) -> usize;

    /// For each sample of `active`: writes the image of its `argument` to `image` and their distance to `distances`
    /// (indexed by sample, as the states are). Leaves the other samples alone.
    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    );

    /// Itself, if it can iterate faster than by a step and an exchange of two buffers.
    fn in_place(&mut self) -> Option<&mut dyn InPlace<T>> {
        None
    }

    /// How accurately the next steps are computed; none for a problem that has no faster, rougher way.
    fn grade(&mut self) -> Option<&mut Grade> {
        None
    }

    /// Turns the states of the samples `done` into answers. `answers` holds one answer per sample of the block, of a
    /// length that the problem knows. For a plain fixed point the answer is the state.
    fn finish(&mut self, done: &[usize], state: &[T], answers: &mut [T]) {
        copy_states(self.state_len(), done, state, answers);
    }
}

/// A problem that can be iterated within one buffer.
pub trait InPlace<T: SimdReal> {
    /// Plain iteration: the state of each sample of `active` becomes its image, and their distance goes to `distances`.
    fn iterate(&mut self, active: &[usize], state: &mut [T], measure: Measure, distances: &mut [Distance]);
}

/// Copies the states, `len` numbers each, of some samples.
pub(crate) fn copy_states<T: SimdReal>(len: usize, samples: &[usize], from: &[T], to: &mut [T]) {
    for &sample in samples {
        let range = sample * len..(sample + 1) * len;
        to[range.clone()].copy_from_slice(&from[range]);
    }
}
