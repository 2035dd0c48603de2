//! The symbols of a circular convolution: `W^(f) = sum_d W[d] exp(i f d)` over the taps `d` around the centre.

use std::f64::consts::TAU;

use crate::cpu::simd::SimdReal;

/// Sizes of a circular convolution.
#[derive(Clone, Copy)]
pub(crate) struct Kernel {
    pub units: usize,
    /// Height and width of the kernel, odd.
    pub side: usize,
    pub height: usize,
    pub width: usize,
}

impl Kernel {
    /// Sine and cosine of the phase of tap `tap` (of `side`) at frequency `k` of `n`.
    pub(crate) fn phase(&self, tap: usize, k: usize, n: usize) -> (f64, f64) {
        (TAU * k as f64 / n as f64 * (tap as f64 - (self.side / 2) as f64)).sin_cos()
    }

    /// The kernels' rows summed over their columns with the phases of a column of the spectrum: for each kernel row,
    /// `units x units` complex numbers.
    pub(crate) fn of_column<T: SimdReal>(&self, weights: &[T], column: usize) -> Vec<(f64, f64)> {
        let (side, pairs) = (self.side, self.units * self.units);
        let phases: Vec<(f64, f64)> = (0..side).map(|s| self.phase(s, column, self.width)).collect();
        let mut taps = vec![(0.0, 0.0); side * pairs];
        for (pair, kernel) in weights.chunks_exact(side * side).enumerate() {
            for (r, row) in kernel.chunks_exact(side).enumerate() {
                taps[r * pairs + pair] = row.iter().zip(&phases).fold((0.0, 0.0), |sum, (w, (sin, cos))| {
                    (sum.0 + w.to_f64() * cos, sum.1 + w.to_f64() * sin)
                });
            }
        }
        taps
    }

    /// The symbol at a frequency, from what [`Self::of_column`] gave: rows of real parts then as many imaginary parts, each
    /// padded to the same length.
    pub(crate) fn symbol(&self, taps: &[(f64, f64)], row: usize, matrix: &mut [f64]) {
        let n = self.units;
        let padded = matrix.len() / (2 * n);
        matrix.fill(0.0);
        for (r, taps) in taps.chunks_exact(n * n).enumerate() {
            let (sin, cos) = self.phase(r, row, self.height);
            for (line, taps) in matrix.chunks_exact_mut(2 * padded).zip(taps.chunks_exact(n)) {
                let (re, im) = line.split_at_mut(padded);
                for ((re, im), (a, b)) in re.iter_mut().zip(im).zip(taps) {
                    *re += a * cos - b * sin;
                    *im += a * sin + b * cos;
                }
            }
        }
    }
}
