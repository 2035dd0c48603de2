//! A complex matrix at each frequency: an operator on images that commutes with translations.

use super::plane::Plane;
use crate::cpu::buffer::Buffer;
use crate::cpu::simd::SimdReal;

/// Channels are stored in groups of this many, so that every vector length divides them.
const GROUP: usize = 16;

/// One `units x units` matrix per frequency of the half spectrum (the symbols of real operators are conjugate at opposite
/// frequencies), divided by the gain of the transforms.
pub(crate) struct Table<T: SimdReal> {
    pub plane: Plane<T>,
    /// Channels that are not padding.
    pub units: usize,
    pub(super) matrices: Buffer<T>,
}

impl<T: SimdReal> Table<T> {
    /// All matrices zero.
    pub(crate) fn new(units: usize, height: usize, width: usize) -> Self {
        let plane = Plane::new(height, width, units.next_multiple_of(GROUP));
        let matrices = Buffer::zeros(plane.columns() * height * 2 * units * plane.channels);
        Self { plane, units, matrices }
    }

    /// Numbers of one matrix.
    pub(crate) fn matrix_len(&self) -> usize {
        2 * self.units * self.plane.channels
    }

    /// Rows of a column of the half spectrum whose symbols are not conjugates of other rows'.
    pub(crate) fn independent_rows(&self, column: usize) -> usize {
        self.plane.independent_rows(column)
    }

    /// The matrix at a frequency: its `units` columns, `2 plane.channels` numbers each.
    pub(crate) fn matrix(&self, column: usize, row: usize) -> &[T] {
        let len = self.matrix_len();
        &self.matrices[(column * self.plane.height + row) * len..][..len]
    }
}
