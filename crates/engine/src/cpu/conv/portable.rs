//! The convolution in plain Rust, for any number type and any size.

use super::{ConvKernel, Scratch, Shape};
use crate::Padding;
use crate::cpu::buffer::Buffer;
use crate::cpu::simd::SimdReal;

/// Weights as `[output][input][tap][channel in][channel out]`, so that the innermost loop runs over contiguous
/// outputs.
pub(crate) struct PortableConv<T: SimdReal> {
    shape: Shape,
    weights: Buffer<T>,
}

impl<T: SimdReal> PortableConv<T> {
    pub fn new(shape: Shape) -> Self {
        let len = shape.outputs * shape.inputs * 9 * shape.channels * shape.channels;
        Self { shape, weights: Buffer::zeros(len) }
    }

    /// The pixel that a tap reads, if it is not a padding zero.
    fn neighbour(&self, row: usize, column: usize, tap: usize) -> Option<usize> {
        let Shape { height, width, padding, .. } = self.shape;
        let along = |at: usize, shift: usize, size: usize| match padding {
            Padding::Zero => (at + shift).checked_sub(1).filter(|&to| to < size),
            Padding::Circular => Some((at + shift + size - 1) % size),
        };
        Some(along(row, tap / 3, height)? * width + along(column, tap % 3, width)?)
    }
}

impl<T: SimdReal> ConvKernel<T> for PortableConv<T> {
    fn pack(&mut self, blocks: &[&[T]]) {
        let c = self.shape.channels;
        for (block, packed) in blocks.iter().zip(self.weights.chunks_exact_mut(9 * c * c)) {
            for (index, &w) in block.iter().enumerate() {
                let (out, input, tap) = (index / (9 * c), index / 9 % c, index % 9);
                packed[(tap * c + input) * c + out] = w;
            }
        }
    }

    fn scratch(&self) -> Scratch<T> {
        Scratch { numbers: Buffer::zeros(self.shape.outputs * self.shape.row_len()), halves: Buffer::default() }
    }

    fn rows(&self, images: &[T], scratch: &mut Scratch<T>, emit: &mut dyn FnMut(usize, &mut [T])) {
        let Shape { height, channels: c, inputs, outputs, .. } = self.shape;
        let (row_len, image_len) = (self.shape.row_len(), self.shape.image_len());
        let pre = &mut scratch.numbers[..outputs * row_len];
        for row in 0..height {
            pre.fill(T::ZERO);
            for (out, pre) in pre.chunks_exact_mut(row_len).enumerate() {
                for (column, pixel) in pre.chunks_exact_mut(c).enumerate() {
                    for input in 0..inputs {
                        for tap in 0..9 {
                            let Some(from) = self.neighbour(row, column, tap) else { continue };
                            let from = &images[input * image_len + from * c..][..c];
                            let weights = &self.weights[((out * inputs + input) * 9 + tap) * c * c..][..c * c];
                            for (&z, w) in from.iter().zip(weights.chunks_exact(c)) {
                                for (u, &w) in pixel.iter_mut().zip(w) {
                                    *u += z * w;
                                }
                            }
                        }
                    }
                }
            }
            emit(row, pre);
        }
    }

    fn gradient_len(&self) -> usize {
        self.weights.len()
    }

    fn accumulate_gradient(&self, images: &[T], gradients: &[T], _scratch: &mut Scratch<T>, accumulator: &mut [T]) {
        let Shape { height, width, channels: c, inputs, outputs, .. } = self.shape;
        let image_len = self.shape.image_len();
        for pixel in 0..height * width {
            for out in 0..outputs {
                let gradient = &gradients[out * image_len + pixel * c..][..c];
                for input in 0..inputs {
                    for tap in 0..9 {
                        let Some(from) = self.neighbour(pixel / width, pixel % width, tap) else { continue };
                        let from = &images[input * image_len + from * c..][..c];
                        let block = &mut accumulator[((out * inputs + input) * 9 + tap) * c * c..][..c * c];
                        for (&z, row) in from.iter().zip(block.chunks_exact_mut(c)) {
                            for (sum, &g) in row.iter_mut().zip(gradient) {
                                *sum += z * g;
                            }
                        }
                    }
                }
            }
        }
    }

    fn unpack_gradient(&self, accumulator: &[T], blocks: &mut [&mut [T]]) {
        let c = self.shape.channels;
        for (block, packed) in blocks.iter_mut().zip(accumulator.chunks_exact(9 * c * c)) {
            for (index, w) in block.iter_mut().enumerate() {
                let (out, input, tap) = (index / (9 * c), index / 9 % c, index % 9);
                *w += packed[(tap * c + input) * c + out];
            }
        }
    }
}
