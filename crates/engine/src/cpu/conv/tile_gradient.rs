//! The gradient for the weights on matrix tiles: outputs by inputs, summed over pixels.
//!
//! A tile product sums over 32 pixels of an image row. The left operand is the output gradient with pixels along the
//! rows, transposed; the right one the image in pairs of neighbouring pixels. A shift of the image by one column
//! exchanges the partners, so the pairs are stored twice, beginning at even and at odd columns; then every operand
//! of every tap is a run of whole cache lines. Rows go in strips whose operands stay in L1.
//!
//! Numbers are split into high and low parts and multiplied in three passes, as in [`crate::cpu::tiles`].

use std::arch::x86_64::*;

use super::shape::{Shape, neighbour};
use crate::cpu::buffer::Buffer;
use crate::cpu::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, TileSession, interleave, products, split16,
    store32, transpose,
};

/// Image rows of a strip.
const STRIP: usize = 4;

/// Numbers of a tile of sums.
const SUMS: usize = SIDE * SIDE;

/// Room to compute with, for one thread.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// The image: `[high, low][input tile][even, odd][padded row][pair][channel, partner]`.
    pairs: Buffer<u16>,
    /// The output gradient: `[high, low][output tile][row][pixel tile][channel][pixel]`.
    transposed: Buffer<u16>,
    /// Two pixels with their channels up to a multiple of 16.
    pixels: [Vec<f32>; 2],
    steps: Vec<Step>,
    shape: Option<Shape>,
}

/// Counts that follow from a shape.
#[derive(Clone, Copy)]
struct Layout {
    in_tiles: usize,
    out_tiles: usize,
    /// Tiles of 32 pixels in a row.
    pixel_tiles: usize,
    /// Pairs in a padded row: one more than the tiles need, for the shift by two columns.
    pairs: usize,
    /// Numbers of all high (or low) pairs.
    pairs_len: usize,
    /// Numbers of all high (or low) parts of the output gradient.
    transposed_len: usize,
}

impl Layout {
    fn new(shape: &Shape) -> Self {
        let (in_tiles, out_tiles) = (shape.in_channels.div_ceil(SIDE), shape.out_channels.div_ceil(SIDE));
        let pixel_tiles = shape.width.div_ceil(DEPTH);
        let pairs = pixel_tiles * SIDE + 1;
        Self {
            in_tiles,
            out_tiles,
            pixel_tiles,
            pairs,
            pairs_len: in_tiles * 2 * (shape.height + 2) * pairs * DEPTH,
            transposed_len: out_tiles * shape.height * pixel_tiles * SIDE * DEPTH,
        }
    }

    /// Where the operand of a tap begins among the pairs: columns 0 and 2 are even, column 1 is odd.
    fn pair_start(&self, shape: &Shape, input_tile: usize, row: usize, column: usize) -> usize {
        (((input_tile * 2 + column % 2) * (shape.height + 2) + row) * self.pairs + column / 2) * DEPTH
    }
}

/// Numbers in the packed gradient: `[output tile][input tile][tap]` tiles of `[output][input]`.
pub fn packed_len(shape: &Shape) -> usize {
    let layout = Layout::new(shape);
    layout.out_tiles * layout.in_tiles * 9 * SUMS
}

/// Adds a packed gradient to one in the order of the weights.
pub fn unpack(shape: &Shape, packed: &[f32], gw: &mut [f32]) {
    let in_tiles = Layout::new(shape).in_tiles;
    for (index, gw) in gw.iter_mut().enumerate() {
        let (output, input, tap) =
            (index / (9 * shape.in_channels), index / 9 % shape.in_channels, index % 9);
        let tile = ((output / SIDE) * in_tiles + input / SIDE) * 9 + tap;
        *gw += packed[tile * SUMS + (output % SIDE) * SIDE + input % SIDE];
    }
}

/// Adds the gradient of one image to a packed gradient.
pub fn add_image(
    proof: AmxProof,
    shape: &Shape,
    x: &[f32],
    gy: &[f32],
    scratch: &mut Scratch,
    packed: &mut [f32],
) {
    assert!(x.len() == shape.input_len() && gy.len() == shape.output_len(), "image length");
    assert!(packed.len() == packed_len(shape), "gradient length");
    let layout = Layout::new(shape);
    scratch.reserve(shape, &layout);
    // SAFETY: a machine with AMX (the proof) has AVX-512 with BW and BF16 too, see `Isa::detect`.
    unsafe {
        load_pairs(shape, &layout, x, scratch);
        load_transposed(shape, &layout, gy, scratch);
    }
    let session = TileSession::start(proof);
    for steps in scratch.steps.chunks(STRIP * layout.pixel_tiles) {
        add_strip(&session, shape, &layout, scratch, steps, packed);
    }
}

impl Scratch {
    fn reserve(&mut self, shape: &Shape, layout: &Layout) {
        if self.shape == Some(*shape) {
            return;
        }
        // Zeros wherever no pixel or channel is; the rest is rewritten for every image.
        self.pairs = Buffer::zeros(2 * layout.pairs_len);
        self.transposed = Buffer::zeros(2 * layout.transposed_len);
        let channels = SIDE * layout.in_tiles.max(layout.out_tiles);
        self.pixels = [vec![0.0; channels], vec![0.0; channels]];
        self.steps.clear();
        for row in 0..shape.height {
            self.steps.extend((0..layout.pixel_tiles).map(|tile| Step {
                own: 2 * (row * layout.pairs + tile * SIDE) * DEPTH,
                common: 2 * (row * layout.pixel_tiles + tile) * SIDE * DEPTH,
            }));
        }
        self.shape = Some(*shape);
    }
}

/// Adds a strip of rows, given by their steps, to all tiles of the gradient.
fn add_strip(
    session: &TileSession,
    shape: &Shape,
    layout: &Layout,
    scratch: &Scratch,
    steps: &[Step],
    packed: &mut [f32],
) {
    let columns = layout.in_tiles * 9;
    assert!(packed.len() == layout.out_tiles * columns * SUMS);
    // All outputs are derived from one pointer: another borrow of `packed` would end those before it.
    let packed = packed.as_mut_ptr();
    let mut spill = [0f32; SUMS];
    for group in (0..columns).step_by(GROUP) {
        for output_tile in 0..layout.out_tiles {
            let transposed =
                &scratch.transposed[output_tile * shape.height * layout.pixel_tiles * SIDE * DEPTH..];
            let mut job = Job {
                own: [std::ptr::null(); GROUP],
                common: transposed.as_ptr(),
                own_low: 2 * layout.pairs_len,
                common_low: 2 * layout.transposed_len,
                out: [spill.as_mut_ptr(); GROUP],
                out_stride: [4 * SIDE; GROUP],
                steps: steps.as_ptr_range().start,
                steps_end: steps.as_ptr_range().end,
            };
            for slot in 0..GROUP {
                // A group at the end repeats its last tile; the repetition goes to the spill tile and is dropped.
                let column = (group + slot).min(columns - 1);
                let (input_tile, tap) = (column / 9, column % 9);
                job.own[slot] =
                    scratch.pairs[layout.pair_start(shape, input_tile, tap / 3, tap % 3)..].as_ptr();
                if group + slot < columns {
                    job.out[slot] = packed.wrapping_add((output_tile * columns + column) * SUMS);
                }
            }
            // SAFETY: `steps` is not empty. Left, the tiles of a strip of this output tile. Right, 16 pairs of a padded row,
            // one pair further at most, which is why a row has one pair more than its tiles. Sums are whole tiles, of
            // as many as asserted.
            unsafe { products(session, &job, Passes::Three, Common::LeftAdded) }
        }
    }
}

/// Splits the padded image into pairs of pixels.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn load_pairs(shape: &Shape, layout: &Layout, x: &[f32], scratch: &mut Scratch) {
    let (high, low) = scratch.pairs.split_at_mut(layout.pairs_len);
    scratch.pixels.iter_mut().for_each(|pixel| pixel.fill(0.0));
    for row in 0..shape.height + 2 {
        let Some(source) = neighbour(row, shape.height, shape.padding) else { continue };
        let x = &x[source * shape.width * shape.in_channels..][..shape.width * shape.in_channels];
        for (parity, pair) in
            [0, 1].into_iter().flat_map(|parity| (0..layout.pairs).map(move |pair| (parity, pair)))
        {
            let first = 2 * pair + parity;
            if first >= shape.width + 2 {
                continue;
            }
            for (column, pixel) in (first..first + 2).zip(&mut scratch.pixels) {
                let inside = if column < shape.width + 2 {
                    neighbour(column, shape.width, shape.padding)
                } else {
                    None
                };
                match inside {
                    Some(column) => pixel[..shape.in_channels]
                        .copy_from_slice(&x[column * shape.in_channels..][..shape.in_channels]),
                    None => pixel[..shape.in_channels].fill(0.0),
                }
            }
            for tile in 0..layout.in_tiles {
                let at = (((tile * 2 + parity) * (shape.height + 2) + row) * layout.pairs + pair) * DEPTH;
                let [left, right] = &scratch.pixels;
                let (h, l) = split_pair(&left[tile * SIDE..], &right[tile * SIDE..]);
                store32(h, &mut high[at..]);
                store32(l, &mut low[at..]);
            }
        }
    }
}

/// Splits the output gradient and transposes it so that pixels run along rows.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn load_transposed(shape: &Shape, layout: &Layout, gy: &[f32], scratch: &mut Scratch) {
    let channels = shape.out_channels;
    let (high, low) = scratch.transposed.split_at_mut(layout.transposed_len);
    for (row, gy) in gy.chunks_exact(shape.width * channels).enumerate() {
        for (pixel_tile, output_tile) in
            (0..layout.pixel_tiles).flat_map(|p| (0..layout.out_tiles).map(move |o| (p, o)))
        {
            let mut rows = [[_mm512_setzero_si512(); SIDE]; 2];
            let from = output_tile * SIDE;
            let count = SIDE.min(channels - from);
            let [high_rows, low_rows] = &mut rows;
            for (pair, (high_row, low_row)) in high_rows.iter_mut().zip(low_rows).enumerate() {
                let column = pixel_tile * DEPTH + 2 * pair;
                for (column, pixel) in (column..column + 2).zip(&mut scratch.pixels) {
                    pixel[..SIDE].fill(0.0);
                    if column < shape.width {
                        pixel[..count].copy_from_slice(&gy[column * channels + from..][..count]);
                    }
                }
                let [left, right] = &scratch.pixels;
                (*high_row, *low_row) = split_pair(left, right);
            }
            let at = ((output_tile * shape.height + row) * layout.pixel_tiles + pixel_tile) * SIDE * DEPTH;
            for (rows, out) in rows.iter().zip([&mut high[at..], &mut low[at..]]) {
                let transposed = transpose(rows);
                for (channel, &line) in transposed.iter().enumerate() {
                    store32(line, &mut out[channel * DEPTH..]);
                }
            }
        }
    }
}

/// The high and the low parts of two pixels, channel by channel next to each other.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn split_pair(left: &[f32], right: &[f32]) -> (__m512i, __m512i) {
    let ((left_high, left_low), (right_high, right_low)) = (split16(left), split16(right));
    (interleave(left_high, right_high), interleave(left_low, right_low))
}
