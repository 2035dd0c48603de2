//! Convolutions of whole batches, for the parts of a network outside the equilibrium.
//!
//! Images are independent and shared out over the threads of the current rayon pool (call inside
//! `ThreadPool::install`); scratch memory stays with the threads. A sample's numbers depend on that sample alone, and sums
//! over the batch are formed in an order that depends on the batch size alone.

use rayon::prelude::*;

use super::kernel::{Convolution, Scratch, Series};
use super::precision::Accuracy;
use super::shape::{Shape, Stencil};
use super::weight_gradient::{self, WeightGradient};
use super::workspace;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::{EngineError, Result};

/// Chunks of images whose weight gradients are summed one after the other.
const CHUNKS: usize = 16;
/// Input channels (of grey or coloured images, say) below which plain sums are faster: tiles, which channels fill, would be
/// empty for the most part.
const FEW_CHANNELS: usize = 8;

/// `y = conv(x, weights) + bias`, cut off at zero if `relu`; `x` holds `batch` images of the shape's input channels.
#[allow(clippy::too_many_arguments)] // sizes, three inputs, an option, one output
pub fn forward<T: SimdReal>(
    isa: Isa,
    shape: &Shape,
    batch: usize,
    x: &[T],
    weights: &[T],
    bias: Option<&[T]>,
    relu: bool,
    y: &mut [T],
) -> Result<()> {
    shape.check(batch)?;
    check("the bias", bias.map_or(shape.out_channels, <[T]>::len), shape.out_channels)?;
    check("the input", x.len(), batch * shape.input_len())?;
    check("the weights", weights.len(), shape.weight_len())?;
    check("the output", y.len(), batch * shape.output_len())?;
    convolve(isa, &Stencil::new(shape.single(), &[weights]), x, y, |pixels| {
        if let Some(bias) = bias {
            for pixel in pixels.chunks_exact_mut(bias.len()) {
                pixel.iter_mut().zip(bias).for_each(|(y, &b)| *y += b);
            }
        }
        if relu {
            pixels.iter_mut().for_each(|y| *y = if *y > T::ZERO { *y } else { T::ZERO });
        }
    });
    Ok(())
}

/// `gx = conv^T(gy, weights)`: the gradient for the input of `conv(x, weights)`, given the one for its output.
pub fn input_gradient<T: SimdReal>(
    isa: Isa,
    shape: &Shape,
    batch: usize,
    gy: &[T],
    weights: &[T],
    gx: &mut [T],
) -> Result<()> {
    shape.check(batch)?;
    check("the output gradient", gy.len(), batch * shape.output_len())?;
    check("the weights", weights.len(), shape.weight_len())?;
    check("the input gradient", gx.len(), batch * shape.input_len())?;
    convolve(isa, &Stencil::new(shape.single(), &[weights]).transposed(), gy, gx, |_| {});
    Ok(())
}

/// `gw += ` the gradient for the weights and `gb += ` the one for the bias, given the one for the output.
#[allow(clippy::too_many_arguments)]
pub fn weight_gradient<T: SimdReal>(
    isa: Isa,
    shape: &Shape,
    batch: usize,
    x: &[T],
    gy: &[T],
    gw: &mut [T],
    gb: Option<&mut [T]>,
) -> Result<()> {
    shape.check(batch)?;
    check("the input", x.len(), batch * shape.input_len())?;
    check("the output gradient", gy.len(), batch * shape.output_len())?;
    check("the weight gradient", gw.len(), shape.weight_len())?;
    check("the bias gradient", gb.as_ref().map_or(shape.out_channels, |gb| gb.len()), shape.out_channels)?;
    if batch == 0 || shape.pixels() == 0 {
        return Ok(());
    }
    let gradient = if shape.in_channels < FEW_CHANNELS {
        WeightGradient::by_sums(isa, *shape)
    } else {
        WeightGradient::new::<T>(isa, *shape)
    };
    let (weight_sums, bias_sums) = (gradient.packed_len(), shape.out_channels);
    let chunk = batch.div_ceil(CHUNKS);
    workspace::with(|partial: &mut Buffer<T>| {
        let len = weight_sums + bias_sums;
        let chunks = batch.div_ceil(chunk);
        partial.reserve_zeros(chunks * len);
        let images = x.par_chunks(chunk * shape.input_len()).zip(gy.par_chunks(chunk * shape.output_len()));
        partial[..chunks * len].par_chunks_mut(len).zip(images).for_each(|(sums, (x, gy))| {
            sums.fill(T::ZERO);
            let (weight_sums, bias_sums) = sums.split_at_mut(weight_sums);
            workspace::with(|scratch: &mut weight_gradient::Scratch<T>| {
                for (x, gy) in x.chunks_exact(shape.input_len()).zip(gy.chunks_exact(shape.output_len())) {
                    gradient.add_image(x, gy, scratch, weight_sums);
                    add_rows(shape, gy, bias_sums);
                }
            });
        });
        add_pairwise(&mut partial[..chunks * len], len);
        let (weight_sums, bias_sums) = partial[..len].split_at(weight_sums);
        gradient.unpack(weight_sums, gw);
        if let Some(gb) = gb {
            gb.iter_mut().zip(bias_sums).for_each(|(gb, &sum)| *gb += sum);
        }
    });
    Ok(())
}

/// Convolves every image and passes bands of finished pixels to `finish` while they are in cache.
fn convolve<T: SimdReal>(
    isa: Isa,
    stencil: &Stencil<T>,
    x: &[T],
    y: &mut [T],
    finish: impl Fn(&mut [T]) + Sync,
) {
    let geometry = stencil.geometry();
    let shape = &geometry.shape;
    if y.is_empty() || x.is_empty() {
        return;
    }
    let accuracy = if shape.in_channels < FEW_CHANNELS { Accuracy::Full } else { Accuracy::Fine };
    let mut convolution = Convolution::new(isa, geometry);
    convolution.pack(stencil);
    y.par_chunks_mut(shape.output_len()).zip(x.par_chunks(shape.input_len())).for_each(|(y, x)| {
        workspace::with(|(scratch, band): &mut (Scratch<T>, Buffer<T>)| {
            band.reserve_zeros(convolution.band_len());
            convolution.bands(x, (accuracy, Series::Alone), scratch, band, |first, band| {
                finish(band);
                y[geometry.output_rows(first)..][..band.len()].copy_from_slice(band);
            });
        });
    });
}

/// Sums the pixels of an image, row by row.
fn add_rows<T: SimdReal>(shape: &Shape, gy: &[T], sums: &mut [T]) {
    workspace::with(|row_sums: &mut Vec<T>| {
        for row in gy.chunks_exact(shape.width * shape.out_channels) {
            row_sums.clear();
            row_sums.resize(shape.out_channels, T::ZERO);
            for pixel in row.chunks_exact(shape.out_channels) {
                row_sums.iter_mut().zip(pixel).for_each(|(sum, &g)| *sum += g);
            }
            sums.iter_mut().zip(row_sums.iter()).for_each(|(sum, &g)| *sum += g);
        }
    });
}

/// Adds arrays of length `len` pairwise into the first.
fn add_pairwise<T: SimdReal>(arrays: &mut [T], len: usize) {
    let count = arrays.len() / len;
    let mut distance = 1;
    while distance < count {
        for pair in arrays.chunks_mut(2 * distance * len).filter(|pair| pair.len() > distance * len) {
            let (left, right) = pair.split_at_mut(distance * len);
            left[..len].iter_mut().zip(&right[..len]).for_each(|(a, &b)| *a += b);
        }
        distance *= 2;
    }
}

fn check(what: &'static str, found: usize, needed: usize) -> Result<()> {
    if found == needed { Ok(()) } else { Err(EngineError::Length { what, found, needed }) }
}
