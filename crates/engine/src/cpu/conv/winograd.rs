//! Winograd's convolution F(4x4, 3x3): 36 products for 16 outputs instead of 144.
//!
//! A 6x6 tile of the image is transformed to 36 coefficients (`B^T d B`), each of which is multiplied by the matching
//! coefficients of the weights (`G g G^T`, once per packing) and summed over inputs: 36 matrix products, tiles by
//! inputs by outputs. The sums are transformed back (`A^T m A`) to 4x4 outputs. The transforms cost accuracy: the error is
//! about four times that of the direct sum. The interpolation points are 0, 1, -1, 2, -2 and infinity.
//!
//! Tiles go in blocks of tile rows whose coefficients stay in L2 next to those of the weights.

// Plain loops in what is hot: closures would not take on the instructions of the entry point.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::block::{MAX_ROWS, Strides, accumulate, load_lanes, store_lanes, vector_blocks, with_block};
use super::shape::{Geometry, Stencil, neighbour};
use crate::Real;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::Lanes;

/// Outputs along the side of a tile.
pub const TILE: usize = 4;
/// Inputs along the side of a tile.
const WINDOW: usize = 6;
/// Coefficients of a tile.
const COEFFICIENTS: usize = WINDOW * WINDOW;
/// Numbers that the coefficients of a block of tiles may take: half a MiB in `f32`, a quarter of L2.
const BLOCK_NUMBERS: usize = 1 << 17;
/// Padding of outputs, whatever the instruction set.
const LANES: usize = 16;

/// `G`: the weights at the interpolation points.
const WEIGHT_TRANSFORM: [[f64; 3]; WINDOW] = [
    [1.0 / 4.0, 0.0, 0.0],
    [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
    [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
    [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
    [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
    [0.0, 0.0, 1.0],
];

/// Coefficients of the weights as `[plane][output block][coefficient][input][vectors of outputs]`.
#[derive(Clone, Debug)]
pub struct Winograd {
    weights: Buffer<f32>,
    geometry: Geometry,
    isa: Isa,
}

/// Room to compute with, for one thread.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    /// `[coefficient][tile][input]`.
    image: Buffer<f32>,
    /// `[plane][coefficient][tile][padded output]`.
    sums: Buffer<f32>,
    /// Stands for a pixel outside.
    zeros: Buffer<f32>,
}

/// Outputs of one plane, padded to whole vectors.
fn padded_outputs(geometry: &Geometry) -> usize {
    geometry.shape.out_channels.next_multiple_of(LANES)
}

impl Winograd {
    /// Room for the weights of such a convolution.
    pub fn new(isa: Isa, geometry: Geometry) -> Self {
        let len = geometry.out_planes * COEFFICIENTS * geometry.inputs() * padded_outputs(&geometry);
        Self { weights: Buffer::zeros(len), geometry, isa }
    }

    /// Transforms and packs the weights.
    pub fn pack<T: Real>(&mut self, stencil: &Stencil<T>) {
        assert!(stencil.geometry() == self.geometry, "weights of another geometry");
        self.isa.dispatch(Pack { winograd: self, stencil });
    }

    /// Image rows of a block, a multiple of [`TILE`]: how many rows [`Self::transform`] takes at a time.
    pub fn block_rows(&self) -> usize {
        let geometry = &self.geometry;
        let row_tiles = geometry.shape.width.div_ceil(TILE);
        let numbers = geometry.inputs() + geometry.out_planes * padded_outputs(geometry);
        TILE * (BLOCK_NUMBERS / (COEFFICIENTS * numbers * row_tiles))
            .clamp(1, geometry.shape.height.div_ceil(TILE))
    }

    /// The transformed sums of a block of rows of an image, which [`Self::rows`] takes its answers from.
    pub fn transform(&self, image: &[f32], rows: Range<usize>, scratch: &mut Scratch) {
        let geometry = &self.geometry;
        assert!(image.len() == geometry.in_planes * geometry.shape.input_len(), "image length");
        assert!(rows.start.is_multiple_of(TILE) && rows.len() <= self.block_rows(), "rows of a block");
        let tiles = self.block_tiles();
        scratch.image.reserve_zeros(COEFFICIENTS * tiles * geometry.inputs());
        scratch.sums.reserve_zeros(geometry.out_planes * COEFFICIENTS * tiles * padded_outputs(geometry));
        scratch.zeros.reserve_zeros(geometry.shape.in_channels);
        self.isa.dispatch(Transform { winograd: self, image, rows, scratch });
    }

    /// Preactivations of one row of tiles, `band` rows behind the start of the transformed block:
    /// `[plane][row][pixel][channel]`.
    pub fn rows(&self, scratch: &Scratch, band: usize, rows: usize, out: &mut [f32]) {
        assert!(out.len() == self.geometry.out_planes * self.geometry.output_rows(rows), "output length");
        assert!(rows <= TILE && band.is_multiple_of(TILE) && band < self.block_rows(), "rows of a tile");
        self.isa.dispatch(TransformBack { winograd: self, scratch, band, rows, out });
    }

    /// Tiles of a block, up to a multiple of the rows of any register block.
    fn block_tiles(&self) -> usize {
        self.block_rows() / TILE * self.geometry.shape.width.div_ceil(TILE) + MAX_ROWS
    }
}

struct Pack<'a, T> {
    winograd: &'a mut Winograd,
    stencil: &'a Stencil<'a, T>,
}

impl<T: Real> Vectorised<f32> for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = f32>>(self) {
        let geometry = self.winograd.geometry;
        let (inputs, outputs) = (geometry.inputs(), geometry.shape.out_channels);
        let mut weights = &mut self.winograd.weights[..];
        for plane in 0..geometry.out_planes {
            for (first, count) in vector_blocks::<V>(outputs) {
                let vectors = count * V::N;
                let (block, rest) = weights.split_at_mut(COEFFICIENTS * inputs * vectors);
                weights = rest;
                for (input, lane) in (0..inputs).flat_map(|i| (0..vectors).map(move |lane| (i, lane))) {
                    let output = first * V::N + lane;
                    if output < outputs {
                        let transformed = transform_weights(|row, column| {
                            self.stencil.weight(plane, output, input, row, column).to_f64()
                        });
                        for (coefficient, &weight) in transformed.as_flattened().iter().enumerate() {
                            block[(coefficient * inputs + input) * vectors + lane] = weight as f32;
                        }
                    }
                }
            }
        }
    }
}

/// `G g G^T`.
fn transform_weights(weight: impl Fn(usize, usize) -> f64) -> [[f64; WINDOW]; WINDOW] {
    let g: [[f64; 3]; 3] = std::array::from_fn(|row| std::array::from_fn(|column| weight(row, column)));
    let left = WEIGHT_TRANSFORM
        .map(|t| -> [f64; 3] { std::array::from_fn(|c| (0..3).map(|r| t[r] * g[r][c]).sum()) });
    left.map(|row| WEIGHT_TRANSFORM.map(|t| (0..3).map(|c| row[c] * t[c]).sum()))
}

struct Transform<'a> {
    winograd: &'a Winograd,
    image: &'a [f32],
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

impl Vectorised<f32> for Transform<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = f32>>(self) {
        let geometry = &self.winograd.geometry;
        let shape = &geometry.shape;
        let row_tiles = shape.width.div_ceil(TILE);
        let block_tiles = self.winograd.block_tiles();
        let mut tile = 0;
        for row in self.rows.step_by(TILE) {
            for column in (0..row_tiles).map(|t| t * TILE) {
                for (plane, image) in self.image.chunks_exact(shape.input_len()).enumerate() {
                    let pixels = tile_pixels(geometry, image, &self.scratch.zeros, row, column);
                    let target =
                        &mut self.scratch.image[tile * geometry.inputs() + plane * shape.in_channels..];
                    transform_tile::<V>(shape.in_channels, &pixels, target, block_tiles * geometry.inputs());
                }
                tile += 1;
            }
        }
        let mut weights = &self.winograd.weights[..];
        let padded = padded_outputs(geometry);
        for sums in
            self.scratch.sums.chunks_exact_mut(COEFFICIENTS * block_tiles * padded).take(geometry.out_planes)
        {
            for (first, count) in vector_blocks::<V>(shape.out_channels) {
                let (block, rest) = weights.split_at(COEFFICIENTS * geometry.inputs() * count * V::N);
                weights = rest;
                let coefficients = self.scratch.image.chunks_exact(block_tiles * geometry.inputs());
                let sums = sums.chunks_exact_mut(block_tiles * padded);
                for ((image, weights), sums) in
                    coefficients.zip(block.chunks_exact(geometry.inputs() * count * V::N)).zip(sums)
                {
                    let factors = Factors { inputs: geometry.inputs(), tiles: tile, image, weights };
                    with_block!(V, count, multiply(&factors, &mut sums[first * V::N..], padded));
                }
            }
        }
    }
}

/// The pixels of the 6x6 tile whose outputs begin at `(row, column)`, channels from the given address on.
#[inline(always)]
fn tile_pixels<'a>(
    geometry: &Geometry,
    image: &'a [f32],
    zeros: &'a [f32],
    row: usize,
    column: usize,
) -> [[&'a [f32]; WINDOW]; WINDOW] {
    let shape = &geometry.shape;
    let mut pixels = [[&zeros[..shape.in_channels]; WINDOW]; WINDOW];
    for i in 0..WINDOW {
        let Some(row) = neighbour(row + i, shape.height, shape.padding) else { continue };
        let image = &image[row * shape.width * shape.in_channels..][..shape.width * shape.in_channels];
        for j in 0..WINDOW {
            if let Some(column) = neighbour(column + j, shape.width, shape.padding) {
                pixels[i][j] = &image[column * shape.in_channels..][..shape.in_channels];
            }
        }
    }
    pixels
}

/// `B^T d B` of one tile for all channels; coefficient `k` goes `k * stride` numbers behind the start of `out`.
#[inline(always)]
fn transform_tile<V: Lanes<Elem = f32>>(
    channels: usize,
    pixels: &[[&[f32]; WINDOW]; WINDOW],
    out: &mut [f32],
    stride: usize,
) {
    assert!(out.len() >= (COEFFICIENTS - 1) * stride + channels);
    for channel in (0..channels).step_by(V::N) {
        let lanes = V::N.min(channels - channel);
        // By columns first: `rows[i]` holds row `i` of `B^T d`.
        let mut rows = [[V::zero(); WINDOW]; WINDOW];
        for j in 0..WINDOW {
            let mut column = [V::zero(); WINDOW];
            for i in 0..WINDOW {
                column[i] = load_lanes(&pixels[i][j][channel..]);
            }
            let column = transform_six(column);
            for i in 0..WINDOW {
                rows[i][j] = column[i];
            }
        }
        for i in 0..WINDOW {
            let row = transform_six(rows[i]);
            for j in 0..WINDOW {
                store_lanes(row[j], &mut out[(i * WINDOW + j) * stride + channel..][..lanes]);
            }
        }
    }
}

/// `B^T d`.
#[inline(always)]
fn transform_six<V: Lanes>(d: [V; WINDOW]) -> [V; WINDOW] {
    let (four, five) = (V::constant(-4.0), V::constant(-5.0));
    let even = four.fma(d[2], d[4]);
    let odd = four.fma(d[1], d[3]);
    let even_2 = d[4] - d[2];
    let half_odd_2 = d[3] - d[1];
    let odd_2 = half_odd_2 + half_odd_2;
    let four = V::constant(4.0);
    [
        four.fma(d[0], five.fma(d[2], d[4])),
        even + odd,
        even - odd,
        even_2 + odd_2,
        even_2 - odd_2,
        four.fma(d[1], five.fma(d[3], d[5])),
    ]
}

/// The factors of one coefficient's product.
struct Factors<'a> {
    inputs: usize,
    tiles: usize,
    image: &'a [f32],
    weights: &'a [f32],
}

/// Tiles by inputs times inputs by a block of outputs.
#[inline(always)]
fn multiply<V: Lanes<Elem = f32>, const ROWS: usize, const VECTORS: usize>(
    factors: &Factors,
    sums: &mut [V::Elem],
    padded_outputs: usize,
) {
    let inputs = factors.inputs;
    let strides = Strides { row: inputs, depth: 1, right: VECTORS * V::N };
    assert!(factors.weights.len() == inputs * strides.right);
    for tile in (0..factors.tiles).step_by(ROWS) {
        let mut block = [[V::zero(); VECTORS]; ROWS];
        let image = &factors.image[tile * inputs..][..ROWS * inputs];
        // SAFETY: left, `ROWS` rows of `inputs` numbers; right, `inputs` times `VECTORS` vectors; both checked above.
        unsafe { accumulate(&mut block, image.as_ptr(), factors.weights.as_ptr(), inputs, strides) }
        for row in 0..ROWS {
            let sums = &mut sums[(tile + row) * padded_outputs..][..VECTORS * V::N];
            for v in 0..VECTORS {
                block[row][v].store(&mut sums[v * V::N..]);
            }
        }
    }
}

struct TransformBack<'a> {
    winograd: &'a Winograd,
    scratch: &'a Scratch,
    band: usize,
    rows: usize,
    out: &'a mut [f32],
}

impl Vectorised<f32> for TransformBack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = f32>>(self) {
        let geometry = &self.winograd.geometry;
        let (width, outputs) = (geometry.shape.width, geometry.shape.out_channels);
        let row_tiles = width.div_ceil(TILE);
        let (block_tiles, padded) = (self.winograd.block_tiles(), padded_outputs(geometry));
        let planes = self.scratch.sums.chunks_exact(COEFFICIENTS * block_tiles * padded);
        for (out, sums) in self.out.chunks_exact_mut(geometry.output_rows(self.rows)).zip(planes) {
            for t in 0..row_tiles {
                let sums = &sums[(self.band / TILE * row_tiles + t) * padded..];
                let columns = TILE.min(width - t * TILE);
                for channel in (0..outputs).step_by(V::N) {
                    let tile = back_tile::<V>(&sums[channel..], block_tiles * padded);
                    for i in 0..self.rows.min(TILE) {
                        for j in 0..columns.min(TILE) {
                            let at = (i * width + t * TILE + j) * outputs;
                            store_lanes(tile[i][j], &mut out[at + channel..at + outputs]);
                        }
                    }
                }
            }
        }
    }
}

/// `A^T m A` of one vector of channels.
#[inline(always)]
fn back_tile<V: Lanes>(sums: &[V::Elem], stride: usize) -> [[V; TILE]; TILE] {
    assert!(sums.len() >= (COEFFICIENTS - 1) * stride + V::N);
    let mut rows = [[V::zero(); WINDOW]; TILE];
    for j in 0..WINDOW {
        let mut column = [V::zero(); WINDOW];
        for i in 0..WINDOW {
            column[i] = V::load(&sums[(i * WINDOW + j) * stride..]);
        }
        let column = back_six(column);
        for i in 0..TILE {
            rows[i][j] = column[i];
        }
    }
    let mut tile = [[V::zero(); TILE]; TILE];
    for i in 0..TILE {
        tile[i] = back_six(rows[i]);
    }
    tile
}

/// `A^T m`.
#[inline(always)]
fn back_six<V: Lanes>(m: [V; WINDOW]) -> [V; TILE] {
    let (p, q) = (m[1] + m[2], m[1] - m[2]);
    let (r, t) = (m[3] + m[4], m[3] - m[4]);
    [
        m[0] + (p + r),
        V::constant(2.0).fma(t, q),
        V::constant(4.0).fma(r, p),
        m[5] + V::constant(8.0).fma(t, q),
    ]
}
