//! Spectra of linear parts: what the monotone layers need to stay monotone and to choose the step of their splitting.
//!
//! A circular convolution is a block per frequency; zero padding is a compression of a circular one on a torus that is
//! one pixel larger each way, so the largest eigenvalue there bounds the one here.

use std::f64::consts::TAU;

use rayon::prelude::*;

use super::eigen::{Hermitian, RealSymmetric, TopEigenpair, top_eigenpair};
use super::vectorised::vectorised;
use crate::cpu::isa::Isa;
use crate::{Operator, Padding, Real};

/// Accuracy of the rough estimates; frequencies that could still be the best are computed to the end.
const ROUGH: f64 = 0.02;
const FINE: f64 = 1e-10;

/// An upper estimate of the largest eigenvalue of the symmetric part of `W`; `gradient` becomes its derivative.
pub(crate) fn symmetric_peak<T: Real>(isa: Isa, operator: &Operator, w: &[T], gradient: &mut [T]) -> f64 {
    match *operator {
        Operator::Dense { n } => {
            let symmetric: Vec<f64> =
                (0..n * n).map(|i| 0.5 * (w[i].to_f64() + w[i % n * n + i / n].to_f64())).collect();
            let top = top_eigenpair(isa, &RealSymmetric { n, entries: &symmetric }, FINE);
            for (i, g) in gradient.iter_mut().enumerate() {
                *g = T::from_f64(top.vector[i / n] * top.vector[i % n]);
            }
            top.value + top.residual
        }
        Operator::Conv { channels, .. } => {
            let torus = Torus::new(operator);
            let count = operator.taps();
            let symmetric = taps(count, channels, |o, i, tap| {
                0.5 * (w[(o * channels + i) * count + tap].to_f64()
                    + w[(i * channels + o) * count + count - 1 - tap].to_f64())
            });
            let estimate = |frequency: usize, tolerance: f64| {
                let (re, im) = torus.symbol(isa, channels, &symmetric, frequency);
                top_eigenpair(isa, &Hermitian { n: channels, re, im }, tolerance)
            };
            let rough: Vec<(f64, f64)> = (0..torus.frequencies())
                .into_par_iter()
                .map(|f| {
                    let top = estimate(f, ROUGH);
                    (top.value, top.residual)
                })
                .collect();
            let best = rough.iter().fold(f64::NEG_INFINITY, |m, &(value, _)| m.max(value));
            // Twice the residual: the eigenvalue next to the estimate need not be the largest one.
            let close: Vec<usize> =
                (0..rough.len()).filter(|&f| rough[f].0 + 2.0 * rough[f].1 >= best).collect();
            let tops: Vec<(usize, TopEigenpair)> =
                close.into_par_iter().map(|f| (f, estimate(f, FINE))).collect();
            let (frequency, top) =
                tops.into_iter().reduce(|a, b| if b.1.value > a.1.value { b } else { a }).unwrap_or_default();
            let (re, im) = top.vector.split_at(channels);
            let phases: Vec<(f64, f64)> = (0..count).map(|tap| torus.phase(frequency, tap)).collect();
            for (at, g) in gradient.iter_mut().enumerate() {
                let (o, i, (cos, sin)) = (at / count / channels, at / count % channels, phases[at % count]);
                let (even, odd) = (re[o] * re[i] + im[o] * im[i], re[o] * im[i] - im[o] * re[i]);
                *g = T::from_f64(even * cos - odd * sin);
            }
            top.value + top.residual
        }
    }
}

/// `sqrt(||W||_1 ||W||_inf) >= ||W||_2`.
pub(super) fn norm_bound<T: Real>(operator: &Operator, w: &[T]) -> f64 {
    let (units, taps) = (operator.units(), operator.taps());
    let (mut rows, mut cols) = (vec![0.0; units], vec![0.0; units]);
    for (at, w) in w.iter().enumerate() {
        rows[at / taps / units] += w.to_f64().abs();
        cols[at / taps % units] += w.to_f64().abs();
    }
    let largest = |sums: &[f64]| sums.iter().fold(0.0f64, |m, &s| m.max(s));
    (largest(&rows) * largest(&cols)).sqrt()
}

/// How fast Peaceman-Rachford's splitting is with a step, as a factor per iteration: the mean `(mean of s^256)^(1/256)` of the singular
/// values `s` of `2R - I = (I - t(I - W)) (I + t(I - W))^-1`, for a convolution over at most `samples` frequencies, evenly spread.
///
/// The largest singular value alone, which bounds every solve, is that of few directions, and most solves end before they count: the
/// step that is best for it is too short for the others. The power is a choice: the lower it is, the longer the step and the larger the
/// error that is left at the same residual. Since what changes its sign in every iteration is damped (`PEACEMAN_RACHFORD_PART`), 256 takes
/// a fifth fewer iterations than 64 in trained layers that need most, and as many in others.
pub(super) fn splitting_rate<T: Real>(
    isa: Isa,
    operator: &Operator,
    w: &[T],
    step: f64,
    samples: usize,
) -> f64 {
    let mean_power_of = |n: usize, mut block: Vec<f64>| {
        for (i, x) in block.iter_mut().enumerate() {
            *x = if i % n == i / n { 1.0 + step * (1.0 - *x) } else { -step * *x };
        }
        let Some(resolvent) = inverse(isa, n, block) else { return f64::INFINITY };
        let reflected: Vec<f64> = resolvent
            .iter()
            .enumerate()
            .map(|(i, r)| 2.0 * r - f64::from(u8::from(i % n == i / n)))
            .collect();
        // The sum of s^256 is the squared Frobenius norm of (C'C)^64.
        let power = (0..6).fold(gram(isa, n, &reflected), |m, _| gram(isa, n, &m));
        power.iter().map(|x| x * x).sum::<f64>() / n as f64
    };
    let mean_power = match *operator {
        Operator::Dense { n } => mean_power_of(n, w.iter().map(|x| x.to_f64()).collect()),
        Operator::Conv { channels, .. } => {
            let torus = Torus::new(operator);
            let count = operator.taps();
            let kernel = taps(count, channels, |o, i, tap| w[(o * channels + i) * count + tap].to_f64());
            let stride = torus.frequencies().div_ceil(samples.max(1));
            let powers: Vec<f64> = (0..torus.frequencies())
                .into_par_iter()
                .step_by(stride)
                .map(|f| mean_power_of(2 * channels, torus.block(isa, channels, &kernel, f)))
                .collect();
            powers.iter().sum::<f64>() / powers.len() as f64
        }
    };
    mean_power.powf(1.0 / 256.0)
}

/// `M'M` of a square matrix.
fn gram(isa: Isa, n: usize, matrix: &[f64]) -> Vec<f64> {
    let mut gram = vec![0.0; n * n];
    vectorised(isa, || {
        for row in matrix.chunks_exact(n) {
            for (target, &a) in gram.chunks_exact_mut(n).zip(row) {
                target.iter_mut().zip(row).for_each(|(g, b)| *g += a * b);
            }
        }
    });
    gram
}

/// `kernel(out, in, tap)` as `count` matrices, tap after tap.
fn taps(count: usize, channels: usize, kernel: impl Fn(usize, usize, usize) -> f64) -> Vec<f64> {
    let square = channels * channels;
    (0..count * square).map(|at| kernel(at % square / channels, at % channels, at / square)).collect()
}

/// The frequencies of an image, one of each conjugate pair.
struct Torus {
    height: usize,
    width: usize,
    /// Height and width of the kernel.
    side: usize,
}

impl Torus {
    fn new(operator: &Operator) -> Self {
        match *operator {
            Operator::Conv { height, width, padding: Padding::Circular, kernel, .. } => {
                Self { height, width, side: kernel }
            }
            Operator::Conv { height, width, kernel, .. } => {
                Self { height: height + 1, width: width + 1, side: kernel }
            }
            Operator::Dense { .. } => Self { height: 1, width: 1, side: 1 },
        }
    }

    fn frequencies(&self) -> usize {
        self.height * (self.width / 2 + 1)
    }

    /// Cosine and sine of the phase by which a tap turns at a frequency.
    fn phase(&self, frequency: usize, tap: usize) -> (f64, f64) {
        let columns = self.width / 2 + 1;
        let (p, q) = (frequency / columns, frequency % columns);
        let centre = (self.side / 2) as f64;
        let (down, right) = ((tap / self.side) as f64 - centre, (tap % self.side) as f64 - centre);
        let turns = p as f64 * down / self.height as f64 + q as f64 * right / self.width as f64;
        let (sin, cos) = (TAU * turns).sin_cos();
        (cos, sin)
    }

    /// The real and imaginary parts of the block of a frequency.
    fn symbol(&self, isa: Isa, channels: usize, taps: &[f64], frequency: usize) -> (Vec<f64>, Vec<f64>) {
        let square = channels * channels;
        let (mut re, mut im) = (vec![0.0; square], vec![0.0; square]);
        for (tap, kernel) in taps.chunks_exact(square).enumerate() {
            let (cos, sin) = self.phase(frequency, tap);
            vectorised(isa, || {
                for ((re, im), k) in re.iter_mut().zip(im.iter_mut()).zip(kernel) {
                    *re += k * cos;
                    *im += k * sin;
                }
            });
        }
        (re, im)
    }

    /// The same as a real matrix, `[[Re, -Im], [Im, Re]]`.
    fn block(&self, isa: Isa, channels: usize, taps: &[f64], frequency: usize) -> Vec<f64> {
        let n = 2 * channels;
        let (re, im) = self.symbol(isa, channels, taps, frequency);
        let mut block = vec![0.0; n * n];
        for o in 0..channels {
            for i in 0..channels {
                let (re, im) = (re[o * channels + i], im[o * channels + i]);
                block[o * n + i] = re;
                block[o * n + channels + i] = -im;
                block[(channels + o) * n + i] = im;
                block[(channels + o) * n + channels + i] = re;
            }
        }
        block
    }
}

/// Gauss-Jordan with row pivoting; `None` for a singular matrix.
fn inverse(isa: Isa, n: usize, mut a: Vec<f64>) -> Option<Vec<f64>> {
    let mut b = vec![0.0; n * n];
    (0..n).for_each(|i| b[i * n + i] = 1.0);
    for k in 0..n {
        let pivot = (k..n).max_by(|&i, &j| a[i * n + k].abs().total_cmp(&a[j * n + k].abs()))?;
        if !(a[pivot * n + k].abs() > 0.0) {
            return None;
        }
        for j in 0..n {
            a.swap(k * n + j, pivot * n + j);
            b.swap(k * n + j, pivot * n + j);
        }
        let scale = 1.0 / a[k * n + k];
        for j in 0..n {
            a[k * n + j] *= scale;
            b[k * n + j] *= scale;
        }
        let (row_a, row_b) = (a[k * n..(k + 1) * n].to_vec(), b[k * n..(k + 1) * n].to_vec());
        for i in (0..n).filter(|&i| i != k) {
            let factor = a[i * n + k];
            vectorised(isa, || {
                a[i * n..(i + 1) * n].iter_mut().zip(&row_a).for_each(|(x, r)| *x -= factor * r);
                b[i * n..(i + 1) * n].iter_mut().zip(&row_b).for_each(|(x, r)| *x -= factor * r);
            });
        }
    }
    Some(b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    const OPERATORS: [Operator; 4] = [
        Operator::Dense { n: 6 },
        Operator::Conv { channels: 3, height: 4, width: 5, padding: Padding::Circular, kernel: 3 },
        Operator::Conv { channels: 2, height: 5, width: 6, padding: Padding::Circular, kernel: 5 },
        Operator::Conv { channels: 2, height: 4, width: 3, padding: Padding::Zero, kernel: 3 },
    ];

    /// The matrix of an operator, from its definition.
    fn matrix(operator: &Operator, w: &[f64]) -> (usize, Vec<f64>) {
        let Operator::Conv { channels, height, width, padding, kernel } = *operator else {
            return (operator.state_len(), w.to_vec());
        };
        let n = operator.state_len();
        let mut m = vec![0.0; n * n];
        for (row, col) in (0..height).flat_map(|r| (0..width).map(move |c| (r, c))) {
            for tap in 0..kernel * kernel {
                let from_centre = |k: usize| k as isize - (kernel / 2) as isize;
                let (r, c) =
                    (row as isize + from_centre(tap / kernel), col as isize + from_centre(tap % kernel));
                let inside = r >= 0 && c >= 0 && r < height as isize && c < width as isize;
                if !inside && padding == Padding::Zero {
                    continue;
                }
                let (r, c) = (r.rem_euclid(height as isize) as usize, c.rem_euclid(width as isize) as usize);
                for (o, i) in (0..channels).flat_map(|o| (0..channels).map(move |i| (o, i))) {
                    m[((row * width + col) * channels + o) * n + (r * width + c) * channels + i] +=
                        w[(o * channels + i) * kernel * kernel + tap];
                }
            }
        }
        (n, m)
    }

    #[test]
    fn the_peak_is_the_largest_eigenvalue_and_bounds_zero_padding() {
        for (seed, operator) in OPERATORS.iter().enumerate() {
            let w = random(operator.weight_len(), seed as u64);
            let (n, m) = matrix(operator, &w);
            let symmetric: Vec<f64> = (0..n * n).map(|i| 0.5 * (m[i] + m[i % n * n + i / n])).collect();
            let exact = top_eigenpair(Isa::detect(), &RealSymmetric { n, entries: &symmetric }, 1e-12).value;
            let mut gradient = vec![0.0; w.len()];
            let peak = symmetric_peak(Isa::detect(), operator, &w, &mut gradient);
            if matches!(operator, Operator::Conv { padding: Padding::Zero, .. }) {
                assert!(peak >= exact, "{peak} {exact}");
            } else {
                assert!((peak - exact).abs() < 1e-9, "{peak} {exact}");
            }
            assert_gradient(&w, &gradient, |w| {
                symmetric_peak(Isa::detect(), operator, w, &mut vec![0.0; w.len()])
            });
        }
    }

    #[test]
    fn the_splitting_rate_is_a_mean_of_the_reflected_resolvents_singular_values() {
        // A diagonal matrix has them on its diagonal.
        let diagonal = [-3.0, -0.5, 0.2, 0.6];
        let w: Vec<f64> = (0..16).map(|i| if i % 4 == i / 4 { diagonal[i / 4] } else { 0.0 }).collect();
        let rate = splitting_rate(Isa::detect(), &Operator::Dense { n: 4 }, &w, 0.3, 1);
        let reflected = |w: f64| (1.0 - 0.3 * (1.0 - w)) / (1.0 + 0.3 * (1.0 - w));
        let mean = diagonal.iter().map(|&w| reflected(w).powi(256)).sum::<f64>() / 4.0;
        assert!((rate - mean.powf(1.0 / 256.0)).abs() < 1e-12, "{rate} {mean}");
        for operator in &OPERATORS[..3] {
            let w: Vec<f64> = random(operator.weight_len(), 9).iter().map(|x| 0.2 * x).collect();
            let (n, m) = matrix(operator, &w);
            let dense = splitting_rate(Isa::detect(), &Operator::Dense { n }, &m, 0.7, 1);
            let found = splitting_rate(Isa::detect(), operator, &w, 0.7, usize::MAX);
            // Of conjugate frequencies one counts: some weigh half of what they do in the matrix.
            assert!((dense / found).ln().abs() <= 2f64.ln() / 256.0 && found < 1.0, "{dense} {found}");
        }
    }
}
