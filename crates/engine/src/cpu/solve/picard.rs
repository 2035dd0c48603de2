//! Picard's iteration `z <- F(z)`.

use super::{Iterates, Method};
use crate::Measure;
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;

/// `z <- F(z)`: the next argument is the last image.
pub(crate) struct Picard;

impl<T: SimdReal> Method<T> for Picard {
    fn begin(&mut self, _samples: usize, _state_len: usize) {}

    fn advance(
        &mut self,
        step: &mut dyn FixedPointStep<T>,
        active: &[usize],
        iterates: &mut Iterates<T>,
        measure: Measure,
        distances: &mut [Distance],
    ) {
        if let Some(problem) = step.in_place() {
            return problem.iterate(active, &mut iterates.image, measure, distances);
        }
        // Samples that have ended are swapped too; their answers have been taken already.
        std::mem::swap(&mut iterates.argument, &mut iterates.image);
        step.step(active, &iterates.argument, &mut iterates.image, measure, distances);
    }
}
