//! The reflected resolvent of a circular convolution, frequency by frequency.

use std::f64::consts::TAU;

use rayon::prelude::*;

use super::inverse::invert;
use super::plane::Plane;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::{EngineError, Result};

/// Channels are stored in groups of this many, so that every vector length divides them.
const GROUP: usize = 16;

/// An operator or its transpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Adjoint,
}

/// `C = 2 R - I`, `R = (I + t (I - W))^-1`, for a circular 3x3 convolution `W`.
///
/// The symbols of real operators are conjugate at opposite frequencies, so only half of them are kept. They are divided
/// by the gain of the transforms.
pub(crate) struct Operator<T: SimdReal> {
    pub plane: Plane<T>,
    /// Channels that are not padding.
    pub units: usize,
    step: f64,
    forward: Buffer<T>,
    adjoint: Buffer<T>,
}

impl<T: SimdReal> Operator<T> {
    pub(crate) fn new(channels: usize, height: usize, width: usize) -> Self {
        let plane = Plane::new(height, width, channels.next_multiple_of(GROUP));
        let mut operator = Self {
            plane,
            units: channels,
            step: 1.0,
            forward: Buffer::default(),
            adjoint: Buffer::default(),
        };
        let len = (operator.plane.columns() * height) * operator.matrix_len();
        operator.forward = Buffer::zeros(len);
        operator.adjoint = Buffer::zeros(len);
        operator
    }

    fn matrix_len(&self) -> usize {
        2 * self.units * self.plane.channels
    }

    /// Rows of a column of the half spectrum whose symbols are not conjugates of other rows'.
    pub(crate) fn independent_rows(&self, column: usize) -> usize {
        let Plane { height, width, .. } = self.plane;
        if column == 0 || 2 * column == width { height / 2 + 1 } else { height }
    }

    /// The step `t` it was loaded for.
    pub(crate) fn step(&self) -> f64 {
        self.step
    }

    /// The symbol at a frequency: its `units` columns, `2 plane.channels` numbers each.
    pub(crate) fn matrix(&self, direction: Direction, column: usize, row: usize) -> &[T] {
        let table = match direction {
            Direction::Forward => &self.forward,
            Direction::Adjoint => &self.adjoint,
        };
        let len = self.matrix_len();
        &table[(column * self.plane.height + row) * len..][..len]
    }

    /// Computes the symbols from the weights (out, in, 3, 3) for step `step`.
    pub(crate) fn load(&mut self, isa: Isa, weights: &[T], step: f64) -> Result<()> {
        self.step = step;
        let (n, len, height) = (self.units, self.matrix_len(), self.plane.height);
        let padded = n.next_multiple_of(8);
        let (forward, adjoint) = (std::mem::take(&mut self.forward), std::mem::take(&mut self.adjoint));
        let (mut forward, mut adjoint) = (forward, adjoint);
        let this = &*self;
        let result = forward
            .par_chunks_exact_mut(height * len)
            .zip(adjoint.par_chunks_exact_mut(height * len))
            .enumerate()
            .try_for_each_init(
                || vec![0.0; 2 * padded * n],
                |matrix, (column, (forward, adjoint))| {
                    let taps = this.taps_of_column(weights, column);
                    let tables = forward.chunks_exact_mut(len).zip(adjoint.chunks_exact_mut(len));
                    for (row, (forward, adjoint)) in tables.enumerate().take(this.independent_rows(column)) {
                        this.shifted_symbol(&taps, row, step, matrix);
                        invert(isa, n, matrix).map_err(|reason| {
                            EngineError::Invalid(format!(
                                "Peaceman-Rachford with step {step}: I + t(I - W) {reason} at frequency ({row}, {column}) \
                                 of {height} x {}; the convolution is not monotone",
                                this.plane.width
                            ))
                        })?;
                        this.reflect(matrix, forward, adjoint);
                    }
                    Ok(())
                },
            );
        (self.forward, self.adjoint) = (forward, adjoint);
        result
    }

    /// The kernels' rows summed over their three columns with the phases of a column of the spectrum:
    /// for each kernel row, `units x units` complex numbers.
    fn taps_of_column(&self, weights: &[T], column: usize) -> Vec<(f64, f64)> {
        let n = self.units;
        let (sin, cos) = (TAU * column as f64 / self.plane.width as f64).sin_cos();
        let mut taps = vec![(0.0, 0.0); 3 * n * n];
        for (pair, kernel) in weights.chunks_exact(9).enumerate() {
            for (r, row) in kernel.chunks_exact(3).enumerate() {
                let [left, centre, right] = [0, 1, 2].map(|s| row[s].to_f64());
                // exp(i angle (s - 1)) over the taps s.
                taps[r * n * n + pair] = (centre + (left + right) * cos, (right - left) * sin);
            }
        }
        taps
    }

    /// `(1 + t) I - t W` at a frequency, rows of `padded` real parts then as many imaginary parts.
    fn shifted_symbol(&self, taps: &[(f64, f64)], row: usize, step: f64, matrix: &mut [f64]) {
        let n = self.units;
        let padded = matrix.len() / (2 * n);
        let (sin, cos) = (TAU * row as f64 / self.plane.height as f64).sin_cos();
        let (above, rest) = taps.split_at(n * n);
        let (centre, below) = rest.split_at(n * n);
        for o in 0..n {
            let (re, im) = matrix[o * 2 * padded..][..2 * padded].split_at_mut(padded);
            let line = o * n..(o + 1) * n;
            let taps = above[line.clone()].iter().zip(&centre[line.clone()]).zip(&below[line]);
            for ((re, im), ((a, c), b)) in re.iter_mut().zip(im).zip(taps) {
                // a exp(-i angle) + c + b exp(i angle)
                *re = -step * (c.0 + (a.0 + b.0) * cos + (a.1 - b.1) * sin);
                *im = -step * (c.1 + (a.1 + b.1) * cos + (b.0 - a.0) * sin);
            }
            re[o] += 1.0 + step;
        }
    }

    /// Writes `(2 R - I) / gain` by columns, and the same of its conjugate transpose.
    fn reflect(&self, resolvent: &[f64], forward: &mut [T], adjoint: &mut [T]) {
        let (n, c) = (self.units, self.plane.channels);
        let padded = resolvent.len() / (2 * n);
        let scale = 1.0 / self.plane.gain();
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
