//! A complex matrix at each frequency: an operator on images that commutes with translations.

use super::plane::Plane;
#[cfg(target_arch = "x86_64")]
use super::tiled::TiledTable;
use crate::cpu::buffer::Buffer;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::same::same;
use crate::cpu::simd::SimdReal;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::AmxProof;

/// Channels are stored in groups of this many, so that every vector length divides them.
const GROUP: usize = 16;

/// One `units x units` matrix per frequency of the half spectrum (the symbols of real operators are conjugate at opposite
/// frequencies), divided by the gain of the transforms.
pub(crate) struct Table<T: SimdReal> {
    pub plane: Plane<T>,
    /// Channels that are not padding.
    pub units: usize,
    pub(super) matrices: Buffer<T>,
    /// The same in bf16, for what need not be computed to full accuracy.
    #[cfg(target_arch = "x86_64")]
    pub(super) tiled: Option<TiledTable>,
}

impl<T: SimdReal> Table<T> {
    /// All matrices zero.
    pub(crate) fn new(units: usize, height: usize, width: usize) -> Self {
        let plane = Plane::new(height, width, units.next_multiple_of(GROUP));
        let matrices = Buffer::zeros(plane.columns() * height * 2 * units * plane.channels);
        Self {
            plane,
            units,
            matrices,
            #[cfg(target_arch = "x86_64")]
            tiled: None,
        }
    }

    /// Brings the bf16 copy up to date with the matrices, which must be `f32`.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn tile(&mut self, proof: AmxProof) {
        let Self { plane, units, matrices, tiled } = self;
        if let Some(matrices) = same::<T, f32>(matrices) {
            tiled.get_or_insert_with(|| TiledTable::new(proof, plane)).pack(*units, matrices);
        }
    }

    /// Whether products can be computed faster and more roughly than to full accuracy.
    pub(crate) fn is_graded(&self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.tiled.is_some();
        #[cfg(not(target_arch = "x86_64"))]
        return false;
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
