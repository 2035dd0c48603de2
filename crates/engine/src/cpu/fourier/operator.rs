//! The reflected resolvent of a circular convolution, frequency by frequency.

use rayon::prelude::*;

use super::inverse::invert;
use super::symbol::Kernel;
use super::table::Table;
#[cfg(target_arch = "x86_64")]
use super::tiled;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::same::is_f32;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::AmxProof;
use crate::{EngineError, Result};

/// `C = 2 R - I`, `R = (I + t (I - W))^-1`, for a circular convolution `W`, and its transpose.
pub(crate) struct Operator<T: SimdReal> {
    kernel: Kernel,
    step: f64,
    pub forward: Table<T>,
    pub adjoint: Table<T>,
}

impl<T: SimdReal> Operator<T> {
    pub(crate) fn new(kernel: Kernel) -> Self {
        let Kernel { units, height, width, .. } = kernel;
        let [forward, adjoint] = [0, 1].map(|_| Table::new(units, height, width));
        Self { kernel, step: 1.0, forward, adjoint }
    }

    /// The step `t` it was loaded for.
    pub(crate) fn step(&self) -> f64 {
        self.step
    }

    /// Computes the symbols from the weights (out, in, row, column) for step `step`.
    pub(crate) fn load(&mut self, isa: Isa, weights: &[T], step: f64) -> Result<()> {
        self.step = step;
        let Self { kernel, forward, adjoint, .. } = self;
        let (n, len) = (kernel.units, forward.matrix_len());
        let padded = n.next_multiple_of(8);
        let reflection =
            Reflection { units: n, channels: forward.plane.channels, gain: forward.plane.gain() };
        let Table { plane, matrices, .. } = forward;
        let height = plane.height;
        let columns = matrices
            .par_chunks_exact_mut(height * len)
            .zip(adjoint.matrices.par_chunks_exact_mut(height * len))
            .enumerate();
        columns.try_for_each_init(
            || vec![0.0; 2 * padded * n],
            |matrix, (column, (forward, adjoint))| {
                let taps = kernel.of_column(weights, column);
                let tables = forward.chunks_exact_mut(len).zip(adjoint.chunks_exact_mut(len));
                for (row, (forward, adjoint)) in tables.enumerate().take(plane.independent_rows(column)) {
                    kernel.symbol(&taps, row, matrix);
                    shift(n, step, matrix);
                    invert(isa, n, matrix).map_err(|reason| {
                        EngineError::Invalid(format!(
                            "Peaceman-Rachford with step {step}: I + t(I - W) {reason} at frequency ({row}, {column}) of \
                             {height} x {}; the convolution is not monotone",
                            plane.width
                        ))
                    })?;
                    reflection.write(matrix, forward, adjoint);
                }
                Ok::<(), EngineError>(())
            },
        )?;
        #[cfg(target_arch = "x86_64")]
        if let Some(proof) = AmxProof::of(isa).filter(|_| is_f32::<T>() && n >= tiled::SMALL) {
            self.forward.tile(proof);
            self.adjoint.tile(proof);
        }
        Ok(())
    }
}

/// From a symbol `W` to `(1 + t) I - t W`.
fn shift(n: usize, step: f64, matrix: &mut [f64]) {
    let padded = matrix.len() / (2 * n);
    matrix.iter_mut().for_each(|w| *w *= -step);
    for o in 0..n {
        matrix[o * 2 * padded + o] += 1.0 + step;
    }
}

/// Sizes of the matrices in a table.
#[derive(Clone, Copy)]
struct Reflection {
    units: usize,
    channels: usize,
    gain: f64,
}

impl Reflection {
    /// Writes `(2 R - I) / gain` by columns, and the same of its conjugate transpose.
    fn write<T: SimdReal>(&self, resolvent: &[f64], forward: &mut [T], adjoint: &mut [T]) {
        let (n, c) = (self.units, self.channels);
        let padded = resolvent.len() / (2 * n);
        let scale = 1.0 / self.gain;
        for o in 0..n {
            let (re, im) = resolvent[o * 2 * padded..][..2 * padded].split_at(padded);
            let adjoint = &mut adjoint[o * 2 * c..][..2 * c];
            for i in 0..n {
                let identity = if i == o { scale } else { 0.0 };
                let (re, im) =
                    (T::from_f64(2.0 * scale * re[i] - identity), T::from_f64(2.0 * scale * im[i]));
                forward[i * 2 * c + o] = re;
                forward[i * 2 * c + c + o] = im;
                adjoint[i] = re;
                adjoint[c + i] = -im;
            }
        }
    }
}
