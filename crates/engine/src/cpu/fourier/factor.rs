//! The contraction factor of the splitting, and the step that makes it smallest.

use rayon::prelude::*;

use super::operator::Operator;
use super::product::{RESULTS, Spectra, multiply};
use super::symbol::Kernel;
use super::table::Table;
use crate::Result;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::{Cpu, prox};

/// Power iterations per frequency, and in the search for a step.
const POWER_ITERATIONS: usize = 12;
/// Steps tried in the search; each narrows the interval of `ln t` by the golden ratio.
const SEARCH_STEPS: usize = 12;

/// Computes `k = ||(I - t (I - W)) (I + t (I - W))^-1||_2`, by which a Peaceman-Rachford step for a circular 3x3 convolution
/// contracts (THEORY A7), numerically: by power iteration at each frequency.
///
/// Not a certificate: power iteration approaches the norm from below. The singular vectors are kept between calls, so that
/// calls along a training run, where the weights change little, become more and more exact.
///
/// ```
/// use subdeq_engine::{Cpu, cpu::SplittingFactor};
/// // W = -2 I: the factor is |1 - 3t| / (1 + 3t), zero at t = 1/3.
/// let weights = [0.0f32, 0.0, 0.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0];
/// let mut factor = SplittingFactor::new(&Cpu::<f32>::new(1)?, 1, 4, 4);
/// assert!((factor.at(&weights, 1.0)? - 0.5).abs() < 1e-5);
/// let (step, k) = factor.best_step(&weights)?;
/// assert!((step - 1.0 / 3.0).abs() < 0.02 && k < 0.03);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
pub struct SplittingFactor<T: SimdReal> {
    cpu: Cpu<T>,
    operator: Operator<T>,
    /// An approximate top right singular vector at each frequency.
    vectors: Buffer<T>,
}

impl<T: SimdReal> SplittingFactor<T> {
    /// For convolutions of `channels` channels on images of `height x width`.
    pub fn new(cpu: &Cpu<T>, channels: usize, height: usize, width: usize) -> Self {
        let operator = Operator::new(Kernel { units: channels, side: 3, height, width });
        let plane = &operator.forward.plane;
        let mut vectors = Buffer::zeros(plane.columns() * height * 2 * plane.channels);
        // Any start with a part along the top singular vector will do; this one has no structure.
        for (k, x) in vectors.iter_mut().enumerate() {
            *x = T::from_f64((0.618_033_988_749_894_9 * (k + 1) as f64).fract() - 0.5);
        }
        Self { cpu: cpu.clone(), operator, vectors }
    }

    /// The factor for these weights (out, in, 3, 3) and this step.
    pub fn at(&mut self, weights: &[T], step: f64) -> Result<f64> {
        crate::cpu::fourier::check_weights(&self.operator, weights)?;
        let Self { cpu, operator, vectors } = self;
        let isa = cpu.isa();
        cpu.install(|| {
            operator.load(isa, weights, step)?;
            let plane = &operator.forward.plane;
            let (height, len) = (plane.height, 2 * plane.channels);
            let norms = vectors
                .par_chunks_exact_mut(height * len)
                .enumerate()
                .map(|(column, vectors)| isa.dispatch(ColumnNorm { operator, column, vectors }));
            Ok(norms.reduce(|| 0.0, f64::max))
        })
    }

    /// The step with the smallest factor, and that factor.
    pub fn best_step(&mut self, weights: &[T]) -> Result<(f64, f64)> {
        let golden = 0.618_033_988_749_894_9;
        let (mut low, mut high) = (prox::STEP_RANGE.start().ln(), prox::STEP_RANGE.end().ln());
        let mut left = high - golden * (high - low);
        let mut right = low + golden * (high - low);
        let (mut at_left, mut at_right) = (self.at(weights, left.exp())?, self.at(weights, right.exp())?);
        for _ in 0..SEARCH_STEPS {
            if at_left < at_right {
                (high, right, at_right) = (right, left, at_left);
                left = high - golden * (high - low);
                at_left = self.at(weights, left.exp())?;
            } else {
                (low, left, at_left) = (left, right, at_right);
                right = low + golden * (high - low);
                at_right = self.at(weights, right.exp())?;
            }
        }
        Ok(if at_left < at_right { (left.exp(), at_left) } else { (right.exp(), at_right) })
    }
}

/// The largest norm of the symbols of a column.
struct ColumnNorm<'a, T: SimdReal> {
    operator: &'a Operator<T>,
    column: usize,
    vectors: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for ColumnNorm<'_, T> {
    type Output = f64;

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> f64 {
        let Self { operator, column, vectors } = self;
        let Table { plane, units, .. } = &operator.forward;
        let (c, units) = (plane.channels, *units);
        let mut result = vec![T::ZERO; RESULTS * 2 * c];
        let mut largest = 0.0;
        for (row, x) in vectors.chunks_exact_mut(2 * c).enumerate().take(plane.independent_rows(column)) {
            let mut norm = 0.0;
            for _ in 0..POWER_ITERATIONS {
                let before = normalise(x, units, c);
                for table in [&operator.forward, &operator.adjoint] {
                    let matrix = table.matrix(column, row);
                    // SAFETY: `x` is one spectrum of 2c numbers, the matrix has `units` columns of 2c numbers, and `result`
                    // is as long as asked for.
                    unsafe {
                        let spectra = Spectra { start: x.as_mut_ptr(), stride: 2 * c, images: 1 };
                        multiply::<V>(matrix.as_ptr(), units, c, spectra, result.as_mut_ptr());
                    }
                }
                // ||C^H C x|| for a unit vector x approaches ||C||^2.
                norm = if before > 0.0 { length(x, units, c).sqrt() } else { 0.0 };
            }
            largest = f64::max(largest, norm);
        }
        largest * plane.gain()
    }
}

fn length<T: SimdReal>(x: &[T], units: usize, c: usize) -> f64 {
    let square = |x: &T| x.to_f64() * x.to_f64();
    (x[..units].iter().map(square).sum::<f64>() + x[c..c + units].iter().map(square).sum::<f64>()).sqrt()
}

/// Divides `x` by its length, which it returns; a zero vector is started anew.
fn normalise<T: SimdReal>(x: &mut [T], units: usize, c: usize) -> f64 {
    let mut size = length(x, units, c);
    if !(size > 0.0) {
        x[..units].fill(T::ONE);
        size = length(x, units, c);
    }
    let inverse = T::from_f64(1.0 / size);
    x.iter_mut().for_each(|x| *x *= inverse);
    size
}

#[cfg(test)]
mod tests {
    use super::SplittingFactor;
    use crate::Cpu;

    #[test]
    fn agrees_with_a_dense_norm() {
        // Two channels on a ring of three pixels: a 6 x 6 circulant, whose factor is the norm of a 6 x 6 matrix.
        let weights: Vec<f64> = (0..36)
            .map(|k| ((k * 7 % 11) as f64 - 5.0) / 10.0 - if k == 4 || k == 31 { 2.0 } else { 0.0 })
            .collect();
        let step = 0.6;
        let (h, w, c) = (1, 3, 2);
        let n = h * w * c;
        let mut shifted = vec![vec![0.0; n]; n];
        for (x, r, s) in (0..w).flat_map(|x| (0..3).flat_map(move |r| (0..3).map(move |s| (x, r, s)))) {
            for (o, i) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                shifted[x * c + o][(x + w + s - 1) % w * c + i] -=
                    step * weights[(o * c + i) * 9 + 3 * r + s];
            }
        }
        for (k, row) in shifted.iter_mut().enumerate() {
            row[k] += step;
        }
        // C = (I - A)(I + A)^-1, A = t (I - W): the largest ||(I - A) x|| / ||(I + A) x|| by power iteration on x with
        // (I + A)^-T (I - A)^T (I - A) (I + A)^-1, with systems solved by elimination.
        let apply = |sign: f64, transposed: bool, x: &[f64]| -> Vec<f64> {
            (0..n)
                .map(|i| {
                    x[i] + sign
                        * (0..n)
                            .map(|j| if transposed { shifted[j][i] } else { shifted[i][j] } * x[j])
                            .sum::<f64>()
                })
                .collect()
        };
        let solve = |transposed: bool, b: &[f64]| -> Vec<f64> {
            let mut m: Vec<Vec<f64>> = (0..n)
                .map(|i| {
                    let entry = |j: usize| if transposed { shifted[j][i] } else { shifted[i][j] };
                    (0..n).map(|j| entry(j) + f64::from(i == j)).chain([b[i]]).collect()
                })
                .collect();
            for k in 0..n {
                let pivot =
                    (k..n).max_by(|&a, &b| m[a][k].abs().total_cmp(&m[b][k].abs())).expect("rows are left");
                m.swap(k, pivot);
                for i in (0..n).filter(|&i| i != k) {
                    let factor = m[i][k] / m[k][k];
                    let pivot = m[k].clone();
                    for (entry, pivot) in m[i][k..].iter_mut().zip(&pivot[k..]) {
                        *entry -= factor * pivot;
                    }
                }
            }
            (0..n).map(|k| m[k][n] / m[k][k]).collect()
        };
        let mut x: Vec<f64> = (0..n).map(|k| 1.0 + k as f64).collect();
        let mut expected = 0.0;
        for _ in 0..2000 {
            let size = x.iter().map(|x| x * x).sum::<f64>().sqrt();
            x.iter_mut().for_each(|x| *x /= size);
            let y = solve(true, &apply(-1.0, true, &apply(-1.0, false, &solve(false, &x))));
            expected = y.iter().map(|y| y * y).sum::<f64>().sqrt().sqrt();
            x = y;
        }
        let mut factor = SplittingFactor::new(&Cpu::<f64>::new(1).expect("one thread"), c, h, w);
        let mut found = 0.0;
        // Repeated calls continue the power iteration.
        for _ in 0..20 {
            found = factor.at(&weights, step).expect("an invertible matrix");
        }
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
        assert!(factor.at(&weights[1..], step).is_err());
    }
}
