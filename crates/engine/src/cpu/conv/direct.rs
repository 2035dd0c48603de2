//! The convolution as it is defined, with vectors over output channels.
//!
//! In the padded image the `3 x inputs` numbers under one row of the window are contiguous, so the window is three
//! segments. Where all three are too much for L1, one segment at a time is summed over a band of rows (its weights, 27 kB
//! for 48 channels, stay in L1) and the sums of the band wait in the output in between.

// Plain loops in what is hot: closures would not take on the instructions of the entry point.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use super::block::{Strides, accumulate, load_lanes, store_lanes, vector_blocks, with_block};
use super::padded::Padded;
use super::shape::{Geometry, Stencil};
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal};

/// Summands up to which the three rows of the window are summed in one go.
const DEPTH: usize = 160;

/// Weights as `[plane][output block][window row][window column][input][vectors of outputs]`.
#[derive(Clone, Debug)]
pub struct Direct<T: SimdReal> {
    weights: Buffer<T>,
    geometry: Geometry,
    isa: Isa,
}

impl<T: SimdReal> Direct<T> {
    /// Room for the weights of such a convolution.
    pub fn new(isa: Isa, geometry: Geometry) -> Self {
        let mut direct = Self { weights: Buffer::default(), geometry, isa };
        let lanes = isa.dispatch::<T, _>(LaneCount);
        direct.weights.reserve_zeros(geometry.out_planes * plane_weights(lanes, &geometry));
        direct
    }

    /// Packs the weights.
    pub fn pack(&mut self, stencil: &Stencil<T>) {
        assert!(stencil.geometry() == self.geometry, "weights of another geometry");
        self.isa.dispatch(Pack { direct: self, stencil });
    }

    /// Preactivations of some rows of the padded image: `[plane][row][pixel][channel]`.
    pub fn rows(&self, image: &Padded<T>, rows: Range<usize>, out: &mut [T]) {
        assert!(
            out.len() == self.geometry.out_planes * self.geometry.output_rows(rows.len()),
            "output length"
        );
        assert!(rows.end <= self.geometry.shape.height, "row {} of {}", rows.end, self.geometry.shape.height);
        self.isa.dispatch(Rows { direct: self, image: image.numbers(&self.geometry), rows, out });
    }
}

/// Asks for the number of lanes of an instruction set.
pub struct LaneCount;

impl<T: SimdReal> Vectorised<T> for LaneCount {
    type Output = usize;

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> usize {
        V::N
    }
}

/// Packed weights of one output plane.
fn plane_weights(lanes: usize, geometry: &Geometry) -> usize {
    9 * geometry.inputs() * geometry.shape.out_channels.next_multiple_of(lanes)
}

struct Pack<'a, T: SimdReal> {
    direct: &'a mut Direct<T>,
    stencil: &'a Stencil<'a, T>,
}

impl<T: SimdReal> Vectorised<T> for Pack<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let geometry = self.direct.geometry;
        let outputs = geometry.shape.out_channels;
        let mut target = self.direct.weights.iter_mut();
        for plane in 0..geometry.out_planes {
            for (first, count) in vector_blocks::<V>(outputs) {
                for tap in 0..9 {
                    for input in 0..geometry.inputs() {
                        for (output, target) in (first * V::N..(first + count) * V::N).zip(&mut target) {
                            if output < outputs {
                                *target = self.stencil.weight(plane, output, input, tap / 3, tap % 3);
                            }
                        }
                    }
                }
            }
        }
    }
}

struct Rows<'a, T: SimdReal> {
    direct: &'a Direct<T>,
    image: &'a [T],
    rows: Range<usize>,
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let geometry = &self.direct.geometry;
        let plane_out = geometry.output_rows(self.rows.len());
        let segment = 3 * geometry.inputs();
        let at_once = if 3 * segment <= DEPTH { 3 } else { 1 };
        let mut weights = &self.direct.weights[..];
        for out in self.out.chunks_exact_mut(plane_out) {
            for (first, count) in vector_blocks::<V>(geometry.shape.out_channels) {
                for window_row in (0..3).step_by(at_once) {
                    let (part, rest) = weights.split_at(at_once * segment * count * V::N);
                    weights = rest;
                    let part = Part {
                        geometry,
                        image: self.image,
                        rows: self.rows.clone(),
                        first: first * V::N,
                        window_rows: window_row..window_row + at_once,
                        weights: part,
                    };
                    with_block!(V, count, add_part(&part, out));
                }
            }
        }
    }
}

/// Some rows of the window for one block of outputs over a band of image rows.
struct Part<'a, T> {
    geometry: &'a Geometry,
    image: &'a [T],
    rows: Range<usize>,
    /// The first output channel.
    first: usize,
    window_rows: Range<usize>,
    weights: &'a [T],
}

/// Adds a part to the sums of a band (the first row of the window begins them).
#[inline(always)]
fn add_part<V: Lanes, const PIXELS: usize, const VECTORS: usize>(part: &Part<V::Elem>, out: &mut [V::Elem]) {
    let (width, outputs) = (part.geometry.shape.width, part.geometry.shape.out_channels);
    let inputs = part.geometry.inputs();
    let lanes = (outputs - part.first).min(VECTORS * V::N);
    let strides = Strides { row: inputs, depth: 1, right: VECTORS * V::N };
    let segment = 3 * inputs * strides.right;
    assert!(part.weights.len() == part.window_rows.len() * segment && PIXELS <= Padded::<V::Elem>::SLACK);
    for (row, out) in part.rows.clone().zip(out.chunks_exact_mut(width * outputs)) {
        for column in (0..width).step_by(PIXELS) {
            let valid = PIXELS.min(width - column);
            let mut sums = [[V::zero(); VECTORS]; PIXELS];
            if part.window_rows.start > 0 {
                for pixel in 0..valid.min(PIXELS) {
                    let out = &out[(column + pixel) * outputs + part.first..][..lanes];
                    for v in 0..VECTORS {
                        sums[pixel][v] = load_lanes(&out[v * V::N..]);
                    }
                }
            }
            for (window_row, weights) in part.window_rows.clone().zip(part.weights.chunks_exact(segment)) {
                let image = &part.image[((row + window_row) * (width + 2) + column) * inputs..];
                assert!(image.len() >= (PIXELS + 2) * inputs);
                // SAFETY: left, `PIXELS` rows of `3 * inputs` numbers, `inputs` apart, checked above; right, `3 * inputs`
                // times `VECTORS` vectors.
                unsafe { accumulate(&mut sums, image.as_ptr(), weights.as_ptr(), 3 * inputs, strides) }
            }
            for pixel in 0..valid.min(PIXELS) {
                let out = &mut out[(column + pixel) * outputs + part.first..][..lanes];
                for v in 0..VECTORS {
                    store_lanes(sums[pixel][v], &mut out[v * V::N..]);
                }
            }
        }
    }
}
