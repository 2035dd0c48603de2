//! The convolution on matrix tiles.
//!
//! Tile rows should not cross cache lines (see [`crate::cpu::tiles`]), so the image is kept in slots: padded bf16 planes of 32 channels, 64 bytes for each pixel, in which the tile of 16 neighbouring pixels under any
//! tap of the window is read in place and aligned. Up to 16 left-over channels share a slot with those of the next
//! pixel, so that one product serves two taps. No patch matrix is ever built. The weights of 16 outputs (15 kB or 30 kB for
//! 48 channels) stay in L1 while the rows of a band pass by.

use std::arch::x86_64::*;
use std::ops::Range;

use super::shape::{Geometry, Shape, Stencil};
use crate::cpu::buffer::Buffer;
use crate::cpu::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, Tile, TileSession, products, rest32, round32,
    split, split16, store16, store32,
};
use crate::{Padding, Real};

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
                // All outputs are derived from one pointer: another borrow of `out` would end those before it.
                let (out_start, out_len) = (out.as_mut_ptr(), out.len());
                for slot in 0..GROUP {
                    // A group at the end repeats its last tile; the repetition goes to the spill tile and is dropped.
                    let tile = (group + slot).min(tiles - 1);
                    // The last tile of a row ends with the row; where it overlaps its neighbour, both say the same.
                    let column = ((tile % row_tiles) * SIDE).min(width.saturating_sub(SIDE));
                    let row = tile / row_tiles;
                    let start = ((rows.start + row) * (width + 2) + column) * DEPTH;
                    let target = plane * plane_out + (row * width + column) * outputs + output;
                    job.own[slot] = planes.numbers[start..].as_ptr();
                    if group + slot < tiles && channels == SIDE && column + SIDE <= width {
                        assert!(target + (SIDE - 1) * outputs + SIDE <= out_len);
                        job.out[slot] = out_start.wrapping_add(target);
                        job.out_stride[slot] = 4 * outputs;
                    } else {
                        job.out[slot] = spill[slot].as_mut_ptr();
                        job.out_stride[slot] = 4 * SIDE;
                        partial[slot] = (group + slot < tiles).then_some((target, SIDE.min(width - column)));
                    }
                }
                // SAFETY: reads: a tile is 16 pixels of a slot from at most two pixels behind an inner one, which the 18
                // pixels of slack at the end of a slot leave room for; the weights hold a pair of tiles for each tap.
                // Writes: 16 x 16 numbers at the given stride, inside `out` (full tiles only, as asserted) or a spill tile.
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
        let slots = self.reserve(geometry);
        // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
        unsafe {
            if loads_in_place(geometry) {
                let (high, low) = self.numbers.split_at_mut(slots.total());
                let low = if passes == Passes::Three { low } else { &mut [] };
                split_in_place::<false>(geometry, &slots, image, &mut [], (high, low));
            } else {
                self.split_image(geometry, &slots, image, passes);
            }
        }
        self.continue_periodically(geometry, &slots, passes);
    }

    /// Puts the change of an image since `last` into the high slots, and the image into `last`. Gives the sum of the
    /// squared changes. Only where [`loads_in_place`].
    pub fn load_change(&mut self, _: AmxProof, geometry: &Geometry, image: &[f32], last: &mut [f32]) -> f64 {
        assert!(loads_in_place(geometry) && image.len() == last.len(), "channels in whole vectors");
        assert!(image.len() == geometry.in_planes * geometry.shape.input_len(), "image length");
        let slots = self.reserve(geometry);
        let (high, _) = self.numbers.split_at_mut(slots.total());
        // SAFETY: as above.
        let squares = unsafe { split_in_place::<true>(geometry, &slots, image, last, (high, &mut [])) };
        self.continue_periodically(geometry, &slots, Passes::One);
        squares
    }

    fn reserve(&mut self, geometry: &Geometry) -> Slots {
        let slots = Slots::new(geometry);
        if self.geometry != Some(*geometry) {
            // Borders, missing channels and the slack at the end are zero; afterwards only the inside is rewritten.
            self.numbers = Buffer::zeros(2 * slots.total());
            self.pixel = vec![0.0; slots.inputs.next_multiple_of(HALF)];
            self.geometry = Some(*geometry);
        }
        slots
    }

    /// Fills the borders from the opposite sides where the image is continued periodically.
    fn continue_periodically(&mut self, geometry: &Geometry, slots: &Slots, passes: Passes) {
        let Shape { height, width, padding, .. } = geometry.shape;
        if padding != Padding::Circular {
            return;
        }
        let parts = if passes == Passes::Three { 2 } else { 1 };
        let row_len = (width + 2) * DEPTH;
        for slot in self.numbers.chunks_exact_mut(slots.len).take(slots.count() * parts).enumerate() {
            let (index, slot) = slot;
            let shared = slots.shared && index % slots.count() == slots.full;
            let pixel = if shared { HALF } else { DEPTH };
            for row in slot[row_len..(height + 1) * row_len].chunks_exact_mut(row_len) {
                row.copy_within(width * DEPTH..width * DEPTH + pixel, 0);
                row.copy_within(DEPTH..DEPTH + pixel, (width + 1) * DEPTH);
                if shared {
                    row.copy_within((width + 1) * DEPTH..(width + 1) * DEPTH + HALF, width * DEPTH + HALF);
                }
            }
            slot.copy_within(height * row_len..(height + 1) * row_len, 0);
            slot.copy_within(row_len..2 * row_len, (height + 1) * row_len);
        }
    }

    /// For any number of channels: pixel by pixel.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn split_image(&mut self, geometry: &Geometry, slots: &Slots, image: &[f32], passes: Passes) {
        let shape = &geometry.shape;
        let (channels, width) = (shape.in_channels, shape.width);
        let (high, low) = self.numbers.split_at_mut(slots.total());
        for pixel in 0..shape.pixels() {
            for (plane, image) in image.chunks_exact(shape.input_len()).enumerate() {
                self.pixel[plane * channels..][..channels]
                    .copy_from_slice(&image[pixel * channels..][..channels]);
            }
            let at = ((pixel / width + 1) * (width + 2) + pixel % width + 1) * DEPTH;
            for (half, inputs) in self.pixel.chunks_exact(HALF).enumerate() {
                let at = at + (half / 2) * slots.len + (half % 2) * HALF;
                let (rounded, rest) = split16(inputs);
                let shared = slots.shared && half / 2 == slots.full;
                store16(rounded, &mut high[at..]);
                if shared {
                    store16(rounded, &mut high[at - HALF..]);
                }
                if passes == Passes::Three {
                    store16(rest, &mut low[at..]);
                    if shared {
                        store16(rest, &mut low[at - HALF..]);
                    }
                }
            }
        }
    }
}

/// Whether the channels of every pixel are whole vectors, which can be split where they lie.
pub fn loads_in_place(geometry: &Geometry) -> bool {
    geometry.shape.in_channels.is_multiple_of(HALF)
}

/// Splits the inside of an image (or its change since `last`) into `high` and, if there is any, `low`. Gives the sum of
/// the squared changes.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_in_place<const CHANGE: bool>(
    geometry: &Geometry,
    slots: &Slots,
    image: &[f32],
    last: &mut [f32],
    (high, low): (&mut [u16], &mut [u16]),
) -> f64 {
    let shape = &geometry.shape;
    let (channels, width) = (shape.in_channels, shape.width);
    let total = slots.total();
    assert!(high.len() == total && (low.is_empty() || low.len() == total));
    assert!(image.len() == geometry.in_planes * shape.input_len() && channels.is_multiple_of(HALF));
    assert!(!CHANGE || last.len() == image.len());
    let mut squares = _mm512_setzero_ps();
    for row in 0..shape.height {
        for half in 0..slots.inputs / HALF {
            let (plane, channel) = (half * HALF / channels, half * HALF % channels);
            let from = plane * shape.input_len() + row * width * channels + channel;
            let to = (half / 2) * slots.len + (half % 2) * HALF + ((row + 1) * (width + 2) + 1) * DEPTH;
            let shared = slots.shared && half / 2 == slots.full;
            let mut next = |column: usize| {
                // SAFETY: sixteen channels of an inner pixel of the image and of `last` (equally long).
                unsafe {
                    let from = from + column * channels;
                    let x = _mm512_loadu_ps(image.as_ptr().add(from));
                    if !CHANGE {
                        return x;
                    }
                    let last = last.as_mut_ptr().add(from);
                    let change = _mm512_sub_ps(x, _mm512_loadu_ps(last));
                    _mm512_storeu_ps(last, x);
                    squares = _mm512_fmadd_ps(change, change, squares);
                    change
                }
            };
            if shared {
                // A line is a pixel and its right neighbour; the first is the border's.
                let mut left = _mm512_setzero_ps();
                for column in 0..=width {
                    let right = if column < width { next(column) } else { _mm512_setzero_ps() };
                    let to = to - DEPTH + column * DEPTH;
                    let rounded = round32(left, right);
                    store32(rounded, &mut high[to..]);
                    if !low.is_empty() {
                        store32(rest32(left, right, rounded), &mut low[to..]);
                    }
                    left = right;
                }
                continue;
            }
            for column in 0..width {
                let (x, to) = (next(column), to + column * DEPTH);
                // SAFETY: sixteen channels of a slot of an inner pixel.
                unsafe {
                    let rounded = _mm512_cvtneps_pbh(x);
                    let bits = std::mem::transmute::<__m256bh, __m256i>(rounded);
                    _mm256_storeu_si256(high.as_mut_ptr().add(to).cast(), bits);
                    if !low.is_empty() {
                        let rest = _mm512_cvtneps_pbh(_mm512_sub_ps(x, _mm512_cvtpbh_ps(rounded)));
                        let bits = std::mem::transmute::<__m256bh, __m256i>(rest);
                        _mm256_storeu_si256(low.as_mut_ptr().add(to).cast(), bits);
                    }
                }
            }
        }
    }
    f64::from(_mm512_reduce_add_ps(squares))
}

/// The sums of a sequence of images that change little: `sums <- sums + change`, `change <- sums`.
pub fn add_change(_: AmxProof, change: &mut [f32], sums: &mut [f32]) {
    #[target_feature(enable = "avx512f")]
    fn add(change: &mut [f32], sums: &mut [f32]) {
        for (change, sum) in change.iter_mut().zip(sums) {
            *sum += *change;
            *change = *sum;
        }
    }
    // SAFETY: a machine with AMX (the proof) has AVX-512 too.
    unsafe { add(change, sums) }
}
