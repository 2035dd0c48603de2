//! The product per frequency on matrix tiles (AMX): roughly in one bf16 pass, finely in three.
//!
//! Rows of a left tile are images, columns of a right tile are channels of the result. A tile sums over 32
//! numbers: the real and the imaginary parts of 16 channels. With `M = A + i B` and `x = p + i q`,
//!
//! `Re(M x) = [p | -q] [A; B],  Im(M x) = [q | p] [A; B]`:
//!
//! the images are packed twice, the second time by exchanging the halves of the first, and the matrices,
//! which are what comes from far away, only once: as many bytes as they have in `f32`, half of them for one
//! pass.
//!
//! Counting, for 48 channels: 9 tiles of a matrix, each of which meets 4 operands of 32 images; that is 10
//! tile loads for 12 products in three passes, 5 for 4 in one. Up to sixteen images are the common operand
//! of four tiles of outputs instead, so that no product is empty for want of images. A row of a tile does not mix with the others,
//! so an image's numbers do not depend on its company.

use std::arch::x86_64::*;
use std::ops::Range;

use rayon::prelude::*;

use super::plane::Plane;
use crate::cpu::buffer::Buffer;
use crate::cpu::simd::SimdReal;
use crate::cpu::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, Tile, TileSession, pack_pair, products, rest32,
    round32, store32,
};

/// Images that are multiplied together: two tiles of real parts and two of imaginary parts of the results.
pub(super) const IMAGES: usize = GROUP / 2 * SIDE;

/// Units below which tiles would mostly be empty.
pub(super) const SMALL: usize = SIDE;

/// The matrices of a table as right operands.
pub(super) struct TiledTable {
    proof: AmxProof,
    /// Tiles of 16 channels.
    tiles: usize,
    /// Rows of the spectrum.
    height: usize,
    /// `[high, low][column of the spectrum][row][tile of outputs][tile of inputs]`.
    matrices: Vec<Tile>,
    steps: Vec<Step>,
}

/// What a product works in; one per thread.
pub(super) struct TiledScratch {
    /// The images: `[16 images][for real, for imaginary parts][high, low][tile of inputs]`.
    images: Vec<Tile>,
    /// The results of images that do not fill a tile: as many as are multiplied together.
    results: Buffer<f32>,
}

/// One column of the spectra of a block.
pub(super) struct Columns<'a> {
    /// The images' columns, `stride` numbers apart.
    pub spectra: &'a mut [f32],
    pub stride: usize,
    /// Those that are worked on, up to [`IMAGES`].
    pub images: &'a [usize],
}

/// Whether a tile of results can be written where the images are: sixteen neighbours.
fn is_direct(group: &[usize]) -> bool {
    group.len() == SIDE && group.is_sorted_by(|a, b| a + 1 == *b)
}

impl TiledTable {
    pub fn new<T: SimdReal>(proof: AmxProof, plane: &Plane<T>) -> Self {
        let (tiles, size) = (plane.channels / SIDE, size_of::<Tile>());
        let frequencies = plane.columns() * plane.height;
        Self {
            proof,
            tiles,
            height: plane.height,
            matrices: vec![Tile([0; SIDE * DEPTH]); 2 * frequencies * tiles * tiles],
            steps: (0..tiles).map(|k| Step { own: k * size, common: k * size }).collect(),
        }
    }

    pub fn scratch(&self) -> TiledScratch {
        TiledScratch {
            images: vec![Tile([0; SIDE * DEPTH]); GROUP * 2 * self.tiles],
            results: Buffer::zeros(IMAGES * 2 * self.tiles * SIDE),
        }
    }

    /// Splits the matrices of a table, whose units are `units`.
    pub fn pack(&mut self, units: usize, matrices: &[f32]) {
        let Self { proof, tiles, .. } = *self;
        let channels = tiles * SIDE;
        let per_column = self.height * tiles * tiles;
        let half = self.matrices.len() / 2;
        let (high, low) = self.matrices.split_at_mut(half);
        let tasks = high.par_chunks_exact_mut(per_column).zip(low.par_chunks_exact_mut(per_column));
        tasks.zip(matrices.par_chunks_exact(self.height * 2 * units * channels)).for_each(
            |((high, low), matrices)| {
                let operands = high.chunks_exact_mut(tiles).zip(low.chunks_exact_mut(tiles));
                for (at, (high, low)) in operands.enumerate() {
                    let (row, output) = (at / tiles, at % tiles * SIDE);
                    let matrix = &matrices[row * 2 * units * channels..][..2 * units * channels];
                    // Sixteen outputs of the real (0) or imaginary (1) parts of an input's column.
                    let part = |input: usize, part: usize| {
                        let column = (input * 2 + part) * channels;
                        matrix.get(column + output..column + output + SIDE).unwrap_or_default()
                    };
                    for (input, (high, low)) in high.iter_mut().zip(low).enumerate() {
                        for slot in 0..SIDE {
                            let (half, first) = (2 * slot / SIDE, input * SIDE + 2 * slot % SIDE);
                            pack_pair(proof, [part(first, half), part(first + 1, half)], slot, high, low);
                        }
                    }
                }
            },
        );
    }

    /// `x <- M x` in place for the first `rows` elements of each image's column. Channels that are padding are
    /// read and must be finite.
    pub fn multiply(
        &self,
        column: usize,
        rows: usize,
        passes: Passes,
        mut columns: Columns,
        scratch: &mut TiledScratch,
    ) {
        let (tiles, len) = (self.tiles, 2 * self.tiles * SIDE);
        let images = columns.images;
        assert!((1..=IMAGES).contains(&images.len()) && rows <= self.height && rows * len <= columns.stride);
        let session = TileSession::start(self.proof);
        for row in 0..rows {
            for (slot, &image) in images.iter().enumerate() {
                let operands = &mut scratch.images[slot / SIDE * 4 * tiles..][..4 * tiles];
                let numbers = &columns.spectra[image * columns.stride + row * len..][..len];
                // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
                unsafe { pack_image(numbers, slot % SIDE, passes, operands) };
            }
            let frequency = column * self.height + row;
            self.multiply_row(&session, frequency, passes, &mut columns, row * len, scratch);
            for (group, results) in images.chunks(SIDE).zip(scratch.results.chunks_exact(SIDE * len)) {
                if is_direct(group) {
                    continue;
                }
                for (&image, result) in group.iter().zip(results.chunks_exact(len)) {
                    columns.spectra[image * columns.stride + row * len..][..len].copy_from_slice(result);
                }
            }
        }
    }

    /// The products of all packed images with the matrix of one frequency; results of sixteen neighbours go
    /// where these have them, `at` numbers from their beginnings, the others to the scratch memory.
    fn multiply_row(
        &self,
        session: &TileSession,
        frequency: usize,
        passes: Passes,
        columns: &mut Columns,
        at: usize,
        scratch: &mut TiledScratch,
    ) {
        let (tiles, len, size) = (self.tiles, 2 * self.tiles * SIDE, size_of::<Tile>());
        let Columns { ref mut spectra, stride, images } = *columns;
        assert!(!images.is_empty() && at + len <= stride && scratch.results.len() == IMAGES * len);
        assert!(scratch.images.len() == GROUP * 2 * tiles);
        assert!(images.iter().all(|&image| (image + 1) * stride <= spectra.len()));
        let half = self.matrices.len() / 2;
        let matrix = &self.matrices[..half][frequency * tiles * tiles..][..tiles * tiles];
        let (spectra, results) = (spectra.as_mut_ptr(), scratch.results.as_mut_ptr());
        let groups = images.len().div_ceil(SIDE);
        // Sixteen outputs of the matrix, and sixteen images for their real (0) or imaginary (1) results.
        let outputs_at = |output: usize| matrix[output * tiles..].as_ptr().cast();
        let images_at =
            |group: usize, part: usize| scratch.images[(2 * group + part) * 2 * tiles..].as_ptr().cast();
        let place = |group: usize, part: usize, output: usize| {
            let at_part = (part * tiles + output) * SIDE;
            // SAFETY: within the columns of sixteen neighbours, or within the scratch memory, as asserted.
            unsafe {
                match images.chunks(SIDE).nth(group) {
                    Some(group) if is_direct(group) => {
                        (spectra.add(group[0] * stride + at + at_part), 4 * stride)
                    }
                    _ => (results.add(group * SIDE * len + at_part), 4 * len),
                }
            }
        };
        let (image_low, matrix_low) = (tiles * size, half * size);
        let Range { start: steps, end: steps_end } = self.steps.as_ptr_range();
        let run =
            |own, [own_low, common_low]: [usize; 2], common, places: [(*mut f32, usize); GROUP], side| {
                let (out, out_stride) = (places.map(|place| place.0), places.map(|place| place.1));
                let job = Job { own, common, own_low, common_low, out, out_stride, steps, steps_end };
                // SAFETY: there is a step; operands hold `tiles` high tiles from where they begin and as many low ones as far
                // behind as said. Sums are 16 numbers of each of 16 images or results.
                unsafe { products(session, &job, passes, side) }
            };
        if groups == 1 {
            // Four tiles of outputs have the images in common; what there is not of them repeats the last.
            for (part, first) in
                [0, 1].into_iter().flat_map(|part| (0..tiles).step_by(GROUP).map(move |o| (part, o)))
            {
                let output = |sum: usize| (first + sum).min(tiles - 1);
                let places = std::array::from_fn(|sum| place(0, part, output(sum)));
                let own = std::array::from_fn(|sum| outputs_at(output(sum)));
                run(own, [matrix_low, image_low], images_at(0, part), places, Common::Left);
            }
        } else {
            // Real and imaginary parts of two groups of images have the outputs in common.
            for output in 0..tiles {
                let places = std::array::from_fn(|sum| place(sum / 2, sum % 2, output));
                let own = std::array::from_fn(|sum| images_at(sum / 2, sum % 2));
                run(own, [image_low, matrix_low], outputs_at(output), places, Common::Right);
            }
        }
    }
}

/// Writes an image's `p` and `q` (one after the other) to row `slot` of the operands `[p | -q]` and `[q |
/// p]`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_image(numbers: &[f32], slot: usize, passes: Passes, operands: &mut [Tile]) {
    let (tiles, channels) = (operands.len() / 4, numbers.len() / 2);
    assert!(channels == tiles * SIDE);
    let (real, imaginary) = operands.split_at_mut(2 * tiles);
    for tile in 0..tiles {
        // SAFETY: sixteen channels of both parts, as asserted.
        let (p, q) = unsafe {
            let p = numbers.as_ptr().add(tile * SIDE);
            (_mm512_loadu_ps(p), _mm512_loadu_ps(p.add(channels)))
        };
        let minus = _mm512_sub_ps(_mm512_setzero_ps(), q);
        let high = round32(p, minus);
        store32(high, &mut real[tile].0[slot * DEPTH..]);
        store32(exchange(high), &mut imaginary[tile].0[slot * DEPTH..]);
        if passes == Passes::Three {
            let low = rest32(p, minus, high);
            store32(low, &mut real[tiles + tile].0[slot * DEPTH..]);
            store32(exchange(low), &mut imaginary[tiles + tile].0[slot * DEPTH..]);
        }
    }
}

/// `[p | -q]` to `[q | p]`.
#[inline]
#[target_feature(enable = "avx512f")]
fn exchange(numbers: __m512i) -> __m512i {
    let signs_of_first_half = _mm512_zextsi256_si512(_mm256_set1_epi16(i16::MIN));
    _mm512_xor_si512(_mm512_shuffle_i64x2::<0b01_00_11_10>(numbers, numbers), signs_of_first_half)
}
