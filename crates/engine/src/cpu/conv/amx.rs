//! The convolution on matrix tiles.
//!
//! Tile rows should not cross cache lines (see [`super::tiles`]), so the image is kept in slots: padded bf16 planes of 32 channels, 64 bytes for each pixel, in which the tile of 16 neighbouring pixels under any
//! tap of the window is read in place and aligned. Up to 16 left-over channels share a slot with those of the next
//! pixel, so that one product serves two taps. No patch matrix is ever built. The weights of 16 outputs (15 kB or 30 kB for
//! 48 channels) stay in L1 while the rows of a band pass by.

use std::ops::Range;

use super::shape::{Geometry, Stencil, neighbour};
use super::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, Tile, TileSession, products, split, split16,
    store16,
};
use crate::Real;
use crate::cpu::buffer::Buffer;

/// Channels of one pixel in a shared slot.
const HALF: usize = 16;

/// Weights as `[output tile][step][high, low]`, in the pairwise layout of the tile product.
#[derive(Clone, Debug)]
pub struct Amx {
    geometry: Geometry,
    taps: Vec<Tap>,
    steps: Vec<Step>,
    tiles: Vec<Tile>,
}

/// The padded high slots of the image at hand, then the low ones.
#[derive(Clone, Debug, Default)]
pub struct Planes {
    numbers: Buffer<u16>,
    /// The inputs of one pixel, up to a multiple of 16.
    pixel: Vec<f32>,
    geometry: Option<Geometry>,
}

/// What one tile product of the sum stands for: a tap of the window (two in a shared slot) and up to 32 channels.
#[derive(Clone, Copy, Debug)]
struct Tap {
    slot: usize,
    row: usize,
    column: usize,
}

/// How the inputs are distributed over slots.
#[derive(Clone, Copy)]
struct Slots {
    inputs: usize,
    /// Slots of 32 channels of one pixel.
    full: usize,
    /// Whether one more slot holds the last channels of a pixel and of its right neighbour.
    shared: bool,
    /// Numbers of one slot, with room for tiles that run over the end.
    len: usize,
}

impl Slots {
    fn new(geometry: &Geometry) -> Self {
        let shape = &geometry.shape;
        let inputs = geometry.inputs();
        let shared = (1..=HALF).contains(&(inputs % DEPTH));
        let pixels = (shape.height + 2) * (shape.width + 2) + SIDE + 2;
        Self {
            inputs,
            full: if shared { inputs / DEPTH } else { inputs.div_ceil(DEPTH) },
            shared,
            len: pixels * DEPTH,
        }
    }

    fn count(&self) -> usize {
        self.full + usize::from(self.shared)
    }

    /// Numbers in all high (or all low) slots.
    fn total(&self) -> usize {
        self.count() * self.len
    }

    fn taps(&self) -> Vec<Tap> {
        let mut taps = Vec::new();
        for row in 0..3 {
            taps.extend((0..self.full).flat_map(|slot| (0..3).map(move |column| Tap { slot, row, column })));
            if self.shared {
                taps.extend([0, 2].map(|column| Tap { slot: self.full, row, column }));
            }
        }
        taps
    }

    /// Where the tiles of a tap lie, seen from the upper left neighbour of an output pixel in the first slot.
    fn step(&self, geometry: &Geometry, index: usize, tap: &Tap) -> Step {
        let own = 2 * (tap.slot * self.len + (tap.row * (geometry.shape.width + 2) + tap.column) * DEPTH);
        Step { own, common: 2 * size_of::<Tile>() * index }
    }

    /// The window column and the input that entry `k` of a tap multiplies, if any.
    fn factor(&self, tap: &Tap, k: usize) -> Option<(usize, usize)> {
        let (column, input) = if tap.slot < self.full {
            (tap.column, tap.slot * DEPTH + k)
        } else {
            (tap.column + k / HALF, self.full * DEPTH + k % HALF)
        };
        (column < 3 && input < self.inputs).then_some((column, input))
    }
}

/// Output tiles of one plane.
fn output_tiles(geometry: &Geometry) -> usize {
    geometry.shape.out_channels.div_ceil(SIDE)
}

impl Amx {
    /// Room for the weights of such a convolution.
    pub fn new(geometry: Geometry) -> Self {
        let slots = Slots::new(&geometry);
        let taps = slots.taps();
        let steps: Vec<Step> =
            taps.iter().enumerate().map(|(k, tap)| slots.step(&geometry, k, tap)).collect();
        let tiles =
            vec![Tile([0; SIDE * DEPTH]); geometry.out_planes * output_tiles(&geometry) * steps.len() * 2];
        Self { geometry, taps, steps, tiles }
    }

    /// Packs the weights.
    pub fn pack<T: Real>(&mut self, stencil: &Stencil<T>) {
        assert!(stencil.geometry() == self.geometry, "weights of another geometry");
        let slots = Slots::new(&self.geometry);
        let (outputs, plane_tiles) = (self.geometry.shape.out_channels, output_tiles(&self.geometry));
        let mut tiles = self.tiles.chunks_exact_mut(2);
        for (plane, first) in
            (0..self.geometry.out_planes).flat_map(|p| (0..plane_tiles).map(move |t| (p, t * SIDE)))
        {
            for (tap, tiles) in self.taps.iter().zip(&mut tiles) {
                for (k, (column, input)) in (0..DEPTH).filter_map(|k| Some((k, slots.factor(tap, k)?))) {
                    for output in first..outputs.min(first + SIDE) {
                        let at = (k / 2) * DEPTH + 2 * (output - first) + k % 2;
                        let weight = stencil.weight(plane, output, input, tap.row, column);
                        (tiles[0].0[at], tiles[1].0[at]) = split(weight.to_f64() as f32);
                    }
                }
            }
        }
    }

    /// Preactivations of some rows of the image in `planes`: `[plane][row][pixel][channel]`.
    pub fn rows(
        &self,
        session: &TileSession,
        planes: &Planes,
        passes: Passes,
        rows: Range<usize>,
        out: &mut [f32],
    ) {
        let geometry = &self.geometry;
        let shape = &geometry.shape;
        let (outputs, width) = (shape.out_channels, shape.width);
        let row_tiles = width.div_ceil(SIDE);
        let tiles = rows.len() * row_tiles;
        let plane_out = geometry.output_rows(rows.len());
        assert!(out.len() == geometry.out_planes * plane_out, "output length");
        assert!(rows.end <= shape.height && planes.geometry == Some(*geometry), "image size");
        let low = 2 * Slots::new(geometry).total();
        let mut spill = [[0f32; SIDE * SIDE]; GROUP];
        for (index, weights) in self.tiles.chunks_exact(2 * self.steps.len()).enumerate() {
            let (plane, output) = (index / output_tiles(geometry), (index % output_tiles(geometry)) * SIDE);
            let channels = SIDE.min(outputs - output);
            for group in (0..tiles).step_by(GROUP) {
                let mut job = Job {
                    own: [std::ptr::null(); GROUP],
                    common: weights.as_ptr().cast(),
                    own_low: low,
                    common_low: size_of::<Tile>(),
                    out: [std::ptr::null_mut(); GROUP],
                    out_stride: [0; GROUP],
                    steps: self.steps.as_ptr_range().start,
                    steps_end: self.steps.as_ptr_range().end,
                };
                let mut partial = [None; GROUP];
                for slot in 0..GROUP {
                    // A group at the end repeats its last tile; the repetition goes to the spill tile and is dropped.
                    let tile = (group + slot).min(tiles - 1);
                    let (row, column) = (tile / row_tiles, (tile % row_tiles) * SIDE);
                    let start = ((rows.start + row) * (width + 2) + column) * DEPTH;
                    let target = plane * plane_out + (row * width + column) * outputs + output;
                    job.own[slot] = planes.numbers[start..].as_ptr();
                    if group + slot < tiles && channels == SIDE && column + SIDE <= width {
                        job.out[slot] = out[target..].as_mut_ptr();
                        job.out_stride[slot] = 4 * outputs;
                    } else {
                        job.out[slot] = spill[slot].as_mut_ptr();
                        job.out_stride[slot] = 4 * SIDE;
                        partial[slot] = (group + slot < tiles).then_some((target, SIDE.min(width - column)));
                    }
                }
                // SAFETY: reads: a tile is 16 pixels of a slot from at most two pixels behind an inner one, which the 18
                // pixels of slack at the end of a slot leave room for; the weights hold a pair of tiles for each tap.
                // Writes: 16 x 16 numbers at the given stride, inside `out` (full tiles only) or a spill tile.
                unsafe { products(session, &job, passes, Common::Right) }
                for (spill, partial) in spill.iter().zip(partial) {
                    let Some((target, pixels)) = partial else { continue };
                    for pixel in 0..pixels {
                        out[target + pixel * outputs..][..channels]
                            .copy_from_slice(&spill[pixel * SIDE..][..channels]);
                    }
                }
            }
        }
    }
}

impl Planes {
    /// Splits an image (all input planes) into padded bf16 slots; the low ones only where they will be used.
    pub fn load(&mut self, _: AmxProof, geometry: &Geometry, image: &[f32], passes: Passes) {
        assert!(image.len() == geometry.in_planes * geometry.shape.input_len(), "image length");
        let slots = Slots::new(geometry);
        if self.geometry != Some(*geometry) {
            // Borders, missing channels and the slack at the end are zero; afterwards only the inside is rewritten.
            self.numbers = Buffer::zeros(2 * slots.total());
            self.pixel = vec![0.0; slots.inputs.next_multiple_of(HALF)];
            self.geometry = Some(*geometry);
        }
        // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
        unsafe { self.split_image(geometry, &slots, image, passes) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn split_image(&mut self, geometry: &Geometry, slots: &Slots, image: &[f32], passes: Passes) {
        let shape = &geometry.shape;
        let (channels, width) = (shape.in_channels, shape.width);
        let in_place = geometry.in_planes == 1 && channels % HALF == 0;
        let (high, low) = self.numbers.split_at_mut(slots.total());
        for row in 0..shape.height + 2 {
            let Some(source_row) = neighbour(row, shape.height, shape.padding) else { continue };
            for column in 0..width + 2 {
                let Some(source_column) = neighbour(column, width, shape.padding) else { continue };
                let start = (source_row * width + source_column) * channels;
                let inputs = if in_place {
                    &image[start..start + channels]
                } else {
                    for (plane, image) in image.chunks_exact(shape.input_len()).enumerate() {
                        self.pixel[plane * channels..][..channels]
                            .copy_from_slice(&image[start..][..channels]);
                    }
                    &self.pixel[..]
                };
                let at = (row * (width + 2) + column) * DEPTH;
                for (half, inputs) in inputs.chunks_exact(HALF).enumerate() {
                    let at = at + (half / 2) * slots.len + (half % 2) * HALF;
                    let (rounded, rest) = split16(inputs);
                    let shared = slots.shared && half / 2 == slots.full;
                    store16(rounded, &mut high[at..]);
                    if shared && column > 0 {
                        store16(rounded, &mut high[at - HALF..]);
                    }
                    if passes == Passes::Three {
                        store16(rest, &mut low[at..]);
                        if shared && column > 0 {
                            store16(rest, &mut low[at - HALF..]);
                        }
                    }
                }
            }
        }
    }
}
