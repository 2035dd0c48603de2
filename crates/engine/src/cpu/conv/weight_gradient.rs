//! The gradient for the weights: `gw[o][i][row][column] = sum over images and pixels of gy[p, o] x[p + offset, i]`.
//!
//! For each row of the window, an outer product of the `3 x inputs` contiguous numbers under it with the outputs, summed
//! over pixels: sums in registers over a band of rows, then added to the gradient of a chunk of images, then chunks
//! added pairwise in a fixed order. The chunks depend on the batch size alone, so threads do not change a bit; the three
//! levels keep the rounding error of long sums small.

// Plain loops in what is hot: closures would not take on the instructions of the entry point.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::block::{Strides, accumulate, vector_blocks, with_block};
use super::kernel::SMALL;
use super::padded::Padded;
use super::same::is_f32;
#[cfg(target_arch = "x86_64")]
use super::same::{same, same_mut};
use super::shape::Shape;
#[cfg(target_arch = "x86_64")]
use super::tile_gradient;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal};
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::AmxProof;

/// Rows of the image that are summed in registers.
const BAND: usize = 4;

/// Room to compute with, for one thread.
#[derive(Clone, Debug, Default)]
pub struct Scratch<T: SimdReal> {
    padded: Padded<T>,
    /// A band of the output gradient, channels padded to whole vectors.
    band: Buffer<T>,
    #[cfg(target_arch = "x86_64")]
    tiles: tile_gradient::Scratch,
}

/// Outputs are padded to this many in the packed gradient, whatever the instruction set.
const LANES: usize = 16;

/// How the gradient for the weights of a shape is formed; packed gradients have a layout of their own.
#[derive(Clone, Copy, Debug)]
pub struct WeightGradient {
    shape: Shape,
    isa: Isa,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<AmxProof>,
}

impl WeightGradient {
    /// The fastest way for numbers of type `T`: on matrix tiles where there are any and the image is not tiny.
    pub fn new<T: SimdReal>(isa: Isa, shape: Shape) -> Self {
        Self {
            shape,
            isa,
            #[cfg(target_arch = "x86_64")]
            tiles: AmxProof::of(isa).filter(|_| is_f32::<T>() && shape.pixels() >= SMALL),
        }
    }

    /// Plain sums.
    pub fn by_sums(isa: Isa, shape: Shape) -> Self {
        Self {
            shape,
            isa,
            #[cfg(target_arch = "x86_64")]
            tiles: None,
        }
    }

    /// Numbers in a packed gradient.
    pub fn packed_len(&self) -> usize {
        #[cfg(target_arch = "x86_64")]
        if self.tiles.is_some() {
            return tile_gradient::packed_len(&self.shape);
        }
        // `[window row][window column][input][padded output]`.
        9 * self.shape.in_channels * self.shape.out_channels.next_multiple_of(LANES)
    }

    /// Adds the gradient of one image to a packed gradient.
    pub fn add_image<T: SimdReal>(&self, x: &[T], gy: &[T], scratch: &mut Scratch<T>, packed: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        if let (Some(proof), Some(x), Some(gy)) = (self.tiles, same::<T, f32>(x), same::<T, f32>(gy))
            && let Some(packed) = same_mut::<T, f32>(packed)
        {
            return tile_gradient::add_image(proof, &self.shape, x, gy, &mut scratch.tiles, packed);
        }
        self.add_image_by_sums(x, gy, scratch, packed);
    }

    fn add_image_by_sums<T: SimdReal>(&self, x: &[T], gy: &[T], scratch: &mut Scratch<T>, packed: &mut [T]) {
        let shape = &self.shape;
        let geometry = shape.single();
        assert!(packed.len() == self.packed_len() && gy.len() == shape.output_len(), "gradient length");
        scratch.padded.load(&geometry, x);
        let padded_outputs = shape.out_channels.next_multiple_of(LANES);
        scratch.band.reserve_zeros(BAND * shape.width * padded_outputs);
        for start in (0..shape.height).step_by(BAND) {
            let rows = start..shape.height.min(start + BAND);
            let gy = &gy[start * shape.width * shape.out_channels..];
            let pixels = rows.len() * shape.width;
            let targets = scratch.band.chunks_exact_mut(padded_outputs).take(pixels);
            for (target, gy) in targets.zip(gy.chunks_exact(shape.out_channels)) {
                // What lies behind the outputs goes into sums that nobody reads.
                target[..shape.out_channels].copy_from_slice(gy);
            }
            let (image, gy) = (scratch.padded.numbers(&geometry), &scratch.band[..pixels * padded_outputs]);
            self.isa.dispatch(AddBand { shape, rows, image, gy, packed });
        }
    }

    /// Adds a packed gradient to one in the order of the weights.
    pub fn unpack<T: SimdReal>(&self, packed: &[T], gw: &mut [T]) {
        #[cfg(target_arch = "x86_64")]
        if let (Some(_), Some(packed)) = (self.tiles, same::<T, f32>(packed))
            && let Some(gw) = same_mut::<T, f32>(gw)
        {
            return tile_gradient::unpack(&self.shape, packed, gw);
        }
        let shape = &self.shape;
        let padded_outputs = shape.out_channels.next_multiple_of(LANES);
        for (output, gw) in gw.chunks_exact_mut(9 * shape.in_channels).enumerate() {
            for (input, gw) in gw.chunks_exact_mut(9).enumerate() {
                for (tap, gw) in gw.iter_mut().enumerate() {
                    *gw += packed[(tap * shape.in_channels + input) * padded_outputs + output];
                }
            }
        }
    }
}

/// Adds a band of rows to a packed gradient.
struct AddBand<'a, T: SimdReal> {
    shape: &'a Shape,
    rows: Range<usize>,
    image: &'a [T],
    gy: &'a [T],
    packed: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for AddBand<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(mut self) {
        for window_row in 0..3 {
            for (first, count) in vector_blocks::<V>(self.shape.out_channels) {
                with_block!(V, count, add_segment(&mut self, window_row, first * V::N));
            }
        }
    }
}

/// One row of the window for one block of outputs.
#[inline(always)]
fn add_segment<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    band: &mut AddBand<V::Elem>,
    window_row: usize,
    first: usize,
) {
    let Shape { width, in_channels, out_channels, .. } = *band.shape;
    let padded_outputs = out_channels.next_multiple_of(LANES);
    let strides = Strides { row: 1, depth: in_channels, right: padded_outputs };
    let segment = 3 * in_channels;
    for start in (0..segment).step_by(ROWS) {
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        for (row, gy) in band.rows.clone().zip(band.gy.chunks_exact(width * padded_outputs)) {
            let image = &band.image[(row + window_row) * (width + 2) * in_channels + start..];
            assert!(image.len() >= width * in_channels + ROWS && first + VECTORS * V::N <= padded_outputs);
            // SAFETY: left, entry `ROWS - 1 + (width - 1) * in_channels` at most; right, `VECTORS` vectors of the padded
            // outputs of each of `width` pixels; both checked above.
            unsafe { accumulate(&mut sums, image.as_ptr(), gy[first..].as_ptr(), width, strides) }
        }
        for row in 0..ROWS.min(segment - start) {
            let at = (window_row * segment + start + row) * padded_outputs + first;
            for v in 0..VECTORS {
                let packed = &mut band.packed[at + v * V::N..][..V::N];
                (sums[row][v] + V::load(packed)).store(packed);
            }
        }
    }
}
