//! 3x3 convolutions of stacks of images: what a kernel offers.

use crate::Padding;
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::{Grade, Series};
use crate::cpu::simd::SimdReal;

/// Sizes of a convolution from a stack of images to a stack of images, all `height x width x channels`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StackShape {
    /// Image height.
    pub height: usize,
    /// Image width.
    pub width: usize,
    /// Channels of each image.
    pub channels: usize,
    /// Continuation beyond the border.
    pub padding: Padding,
    /// Images that go in.
    pub inputs: usize,
    /// Images that come out.
    pub outputs: usize,
}

/// What a kernel works in; one per thread.
#[derive(Default)]
pub(crate) struct ConvScratch<T: SimdReal> {
    /// Numbers of the working type.
    pub numbers: Buffer<T>,
    /// Memory of a kernel's own kind.
    pub own: Option<Box<dyn std::any::Any + Send>>,
    /// How accurate `rows` has to be.
    pub grade: Grade,
}

/// Receives bands of rows: `(offset in an image, band of the first output image, band of the second or nothing)`.
pub(crate) type EmitBand<'a, T> = &'a mut dyn FnMut(usize, &mut [T], &mut [T]);

/// A 3x3 convolution with packed weights.
pub(crate) trait ConvKernel<T: SimdReal>: Send + Sync {
    /// Numbers in the input images of one sample.
    fn input_len(&self) -> usize;

    /// Packs weights. `blocks[o * inputs + i]` leads from input image `i` to output image `o` and is laid out
    /// `[channel out][channel in][row][column]`: `out(r, c) = sum w[dr][dc] in(r + dr - 1, c + dc - 1)`.
    fn pack(&mut self, blocks: &[&[T]]);

    /// The scratch memory that the other methods need.
    fn scratch(&self) -> ConvScratch<T>;

    /// Convolves one sample: `images` holds its input images one after the other. Calls `emit(offset, u, w)` once for each
    /// band of rows of the output: `offset` is where the band begins in an image, `u` the band in the first output image, `w`
    /// in the second (empty if there is none). The bands may be overwritten. `series` says whether the call before, with
    /// the same scratch memory and accuracy, was for the same sample and probably similar images.
    fn rows(&self, images: &[T], series: Series, scratch: &mut ConvScratch<T>, emit: EmitBand<T>);

    /// Length of a gradient accumulator, which has a layout of the kernel's own.
    fn gradient_len(&self) -> usize;

    /// Adds one sample's weight gradient: `images` as in `rows`, `gradients` the gradients for the output images.
    fn accumulate_gradient(
        &self,
        images: &[T],
        gradients: &[T],
        scratch: &mut ConvScratch<T>,
        accumulator: &mut [T],
    );

    /// Adds an accumulator to the gradients of the weight blocks, in the order and layout of `pack`.
    fn unpack_gradient(&self, accumulator: &[T], blocks: &mut [&mut [T]]);
}
