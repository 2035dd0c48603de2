//! The output gains `A`, `B` of [`crate::Form::Gains`]: products with each pixel (or with the whole dense state).

use crate::cpu::isa::Isa;
use crate::cpu::linear::{Dense, DenseScratch};
use crate::cpu::simd::SimdReal;

/// `A`, `B` and their transposes, packed.
pub(crate) struct Gains<T: SimdReal> {
    units: usize,
    forward: [Dense<T>; 2],
    transposed: [Dense<T>; 2],
    pixels: Vec<usize>,
}

/// One per thread.
pub(crate) struct GainScratch<T: SimdReal>(DenseScratch<T>);

impl<T: SimdReal> Gains<T> {
    /// For states of `state_len` numbers, `units` per pixel.
    pub fn new(isa: Isa, units: usize, state_len: usize) -> Self {
        let pair = || [(); 2].map(|()| Dense::new(isa, units, 1, 1));
        Self { units, forward: pair(), transposed: pair(), pixels: (0..state_len / units).collect() }
    }

    /// Packs `A` and `B`.
    pub fn pack(&mut self, gains: [&[T]; 2]) {
        let mut transposed = vec![T::ZERO; self.units * self.units];
        for (index, gain) in gains.into_iter().enumerate() {
            self.forward[index].pack(&[gain]);
            for (k, &w) in gain.iter().enumerate() {
                transposed[(k % self.units) * self.units + k / self.units] = w;
            }
            self.transposed[index].pack(&[&transposed]);
        }
    }

    pub fn scratch(&self) -> GainScratch<T> {
        GainScratch(self.forward[0].scratch())
    }

    /// `out <- A row` (`which` 0) or `B row` (`which` 1), pixel by pixel.
    pub fn apply(&self, which: usize, row: &[T], scratch: &mut GainScratch<T>, out: &mut [T]) {
        self.product(&self.forward[which], row, scratch, out);
    }

    /// `out <- A^T row` or `B^T row`, pixel by pixel.
    pub fn apply_transposed(&self, which: usize, row: &[T], scratch: &mut GainScratch<T>, out: &mut [T]) {
        self.product(&self.transposed[which], row, scratch, out);
    }

    fn product(&self, gain: &Dense<T>, row: &[T], scratch: &mut GainScratch<T>, out: &mut [T]) {
        let pixels = &self.pixels[..row.len() / self.units];
        gain.apply(pixels, row, &mut scratch.0, &mut |pixel, _, product, _| {
            out[pixel * self.units..(pixel + 1) * self.units].copy_from_slice(product);
        });
    }
}
