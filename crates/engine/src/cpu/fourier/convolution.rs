//! Circular convolutions with kernels of any odd size, applied in the frequency domain: what a map needs besides its solves.

use rayon::prelude::*;

use super::gradient::{Gradient, accumulate};
use super::pixels::Pixels;
use super::sweep::{Pointwise, Scratch, sweep};
use super::symbol::Kernel;
use super::table::Table;
use crate::cpu::conv::Accuracy;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Lanes, SimdReal};

/// Images that are transformed together: the matrices are read once for all of them.
const BLOCK: usize = 8;
const EVERYONE: [usize; BLOCK] = [0, 1, 2, 3, 4, 5, 6, 7];

/// A circular convolution with its weights.
pub(crate) struct Convolution<T: SimdReal> {
    isa: Isa,
    kernel: Kernel,
    table: Table<T>,
}

/// What it works in; one per thread.
pub(crate) struct ConvolutionScratch<T: SimdReal> {
    sweep: Scratch<T>,
    /// Made when a gradient is first asked for.
    gradient: Option<Gradient<T>>,
}

impl<T: SimdReal> Convolution<T> {
    pub(crate) fn new(isa: Isa, kernel: Kernel) -> Self {
        Self { isa, kernel, table: Table::new(kernel.units, kernel.height, kernel.width) }
    }

    /// Computes the symbols of the weights (out, in, row, column).
    pub(crate) fn pack(&mut self, weights: &[T]) {
        let Self { kernel, table, .. } = self;
        let (n, len) = (kernel.units, table.matrix_len());
        let Table { plane, matrices, .. } = table;
        let (c, scale) = (plane.channels, 1.0 / plane.gain());
        matrices.par_chunks_exact_mut(plane.height * len).enumerate().for_each_init(
            || vec![0.0; 2 * n * n],
            |symbol, (column, matrices)| {
                let taps = kernel.of_column(weights, column);
                let rows = matrices.chunks_exact_mut(len).enumerate();
                for (row, matrix) in rows.take(plane.independent_rows(column)) {
                    kernel.symbol(&taps, row, symbol);
                    for (o, line) in symbol.chunks_exact(2 * n).enumerate() {
                        for i in 0..n {
                            matrix[i * 2 * c + o] = T::from_f64(scale * line[i]);
                            matrix[i * 2 * c + c + o] = T::from_f64(scale * line[n + i]);
                        }
                    }
                }
            },
        );
    }

    /// Scratch memory for the other methods.
    pub(crate) fn scratch(&self) -> ConvolutionScratch<T> {
        ConvolutionScratch { sweep: Scratch::new(&self.table, BLOCK), gradient: None }
    }

    /// Convolves the images of the `active` samples; `emit(sample, offset, row)` receives the results row by row.
    pub(crate) fn apply(
        &self,
        active: &[usize],
        states: &[T],
        scratch: &mut ConvolutionScratch<T>,
        emit: &mut dyn FnMut(usize, usize, &mut [T]),
    ) {
        for samples in active.chunks(BLOCK) {
            let images = &EVERYONE[..samples.len()];
            let mut rows = Rows { pixels: Pixels::of(&self.table), samples, states, emit };
            sweep(self.isa, &self.table, Accuracy::Full, &mut scratch.sweep, images, &mut rows);
        }
    }

    /// Length of a gradient accumulator.
    pub(crate) fn gradient_len(&self) -> usize {
        let taps = self.kernel.side * self.kernel.side;
        taps * self.kernel.units * self.table.plane.channels
    }

    /// Adds the weight gradient of the `active` samples: the sum of `q z^T`, tap by tap.
    pub(crate) fn accumulate_gradient(
        &self,
        active: &[usize],
        z: &[T],
        q: &[T],
        scratch: &mut ConvolutionScratch<T>,
        accumulator: &mut [T],
    ) {
        let memory = scratch.gradient.get_or_insert_with(|| Gradient::new(&self.table, &self.kernel, BLOCK));
        for images in active.chunks(BLOCK) {
            accumulate(self.isa, &self.table, &self.kernel, memory, images, [z, q], accumulator);
        }
    }

    /// Adds an accumulator to the gradient of the weights.
    pub(crate) fn unpack_gradient(&self, accumulator: &[T], gradient: &mut [T]) {
        let (n, c, taps) = (self.kernel.units, self.table.plane.channels, self.kernel.side.pow(2));
        for (at, sum) in gradient.iter_mut().enumerate() {
            let (o, i, tap) = (at / (taps * n), at / taps % n, at % taps);
            *sum += accumulator[(tap * n + o) * c + i];
        }
    }
}

/// Hands the rows of the images to a sweep, and its results on.
struct Rows<'a, T> {
    pixels: Pixels,
    /// Which sample each image is.
    samples: &'a [usize],
    states: &'a [T],
    emit: &'a mut dyn FnMut(usize, usize, &mut [T]),
}

impl<T: SimdReal> Pointwise<T> for Rows<'_, T> {
    #[inline(always)]
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, argument: &mut [T]) {
        let z = &self.states[self.pixels.plain(self.samples[image], at, argument.len())];
        argument.fill(T::ZERO);
        self.pixels.zip(argument, z, |x, z| *x = z);
    }

    #[inline(always)]
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]) {
        let sample = self.samples[image];
        let range = self.pixels.plain(sample, at, result.len());
        let offset = self.pixels.plain(0, at, 0).start;
        self.pixels.compact(result);
        (self.emit)(sample, offset, &mut result[..range.len()]);
    }
}
