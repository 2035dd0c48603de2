//! Solvers: methods (how the next iterate is chosen) and drivers (when each sample ends).

mod anderson;
mod broyden;
mod driver;
mod picard;
mod piece;

pub(crate) use anderson::Anderson;
pub(crate) use broyden::Broyden;
pub(crate) use driver::{Block, Workspace, solve_block, solve_lockstep};
pub(crate) use picard::Picard;
pub(crate) use piece::Piece;

use crate::Measure;
use crate::cpu::buffer::Buffer;
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;

/// The last argument of the map and its image, for each sample of a block.
#[derive(Default)]
pub(crate) struct Iterates<T: SimdReal> {
    /// Where the map was applied last.
    pub argument: Buffer<T>,
    /// Its value there; before the first application, the start.
    pub image: Buffer<T>,
}

/// A method of iteration for a block of samples.
pub(crate) trait Method<T: SimdReal>: Send {
    /// Forgets earlier solves; `samples` states of `state_len` numbers follow.
    fn begin(&mut self, samples: usize, state_len: usize);

    /// Chooses the next argument of each active sample, applies the map there once, and measures.
    fn advance(
        &mut self,
        step: &mut dyn FixedPointStep<T>,
        active: &[usize],
        iterates: &mut Iterates<T>,
        measure: Measure,
        distances: &mut [Distance],
    );
}
