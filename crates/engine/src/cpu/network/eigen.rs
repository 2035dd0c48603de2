//! Largest eigenvalue of a small symmetric matrix, by Lanczos with full reorthogonalisation.

// Sums are counted by hand, so that they stay in registers.
#![allow(clippy::needless_range_loop)]

use super::vectorised::vectorised;
use crate::cpu::isa::Isa;

/// An estimate of the largest eigenvalue: `value` is a Rayleigh quotient, some eigenvalue lies within `residual` of it.
#[derive(Clone, Debug, Default)]
pub(super) struct TopEigenpair {
    pub value: f64,
    pub residual: f64,
    /// A unit vector.
    pub vector: Vec<f64>,
}

/// A symmetric matrix.
pub(super) trait Symmetric {
    /// Rows.
    fn size(&self) -> usize;
    /// The largest entry's absolute value.
    fn largest(&self) -> f64;
    /// `y = A x`. Must be inlined, to be compiled for the machine's vectors.
    fn multiply(&self, x: &[f64], y: &mut [f64]);
}

/// A real one, by its entries.
pub(super) struct RealSymmetric<'a> {
    pub n: usize,
    pub entries: &'a [f64],
}

/// A complex Hermitian one, `H = re + i im`, as a real matrix `[[re, -im], [im, re]]` of twice the size; half of its entries
/// need not be kept, and then they stay in L1 (48 channels: 37 kB).
pub(super) struct Hermitian {
    pub n: usize,
    pub re: Vec<f64>,
    pub im: Vec<f64>,
}

fn largest(entries: &[f64]) -> f64 {
    entries.iter().fold(0.0, |m, x| m.max(x.abs()))
}

impl Symmetric for RealSymmetric<'_> {
    fn size(&self) -> usize {
        self.n
    }

    fn largest(&self) -> f64 {
        largest(self.entries)
    }

    /// Column by column, which are the rows of a symmetric matrix.
    #[inline(always)]
    fn multiply(&self, x: &[f64], y: &mut [f64]) {
        y.fill(0.0);
        for (row, &x) in self.entries.chunks_exact(self.n).zip(x) {
            for (y, a) in y.iter_mut().zip(row) {
                *y += a * x;
            }
        }
    }
}

impl Symmetric for Hermitian {
    fn size(&self) -> usize {
        2 * self.n
    }

    fn largest(&self) -> f64 {
        largest(&self.re).max(largest(&self.im))
    }

    /// Column by column, which are the conjugate rows.
    #[inline(always)]
    fn multiply(&self, x: &[f64], y: &mut [f64]) {
        y.fill(0.0);
        let ((x_re, x_im), (y_re, y_im)) = (x.split_at(self.n), y.split_at_mut(self.n));
        let rows = self.re.chunks_exact(self.n).zip(self.im.chunks_exact(self.n));
        for ((re, im), (&x_re, &x_im)) in rows.zip(x_re.iter().zip(x_im)) {
            for ((y_re, y_im), (re, im)) in y_re.iter_mut().zip(y_im.iter_mut()).zip(re.iter().zip(im)) {
                *y_re += re * x_re + im * x_im;
                *y_im += re * x_im - im * x_re;
            }
        }
    }
}

/// The largest eigenvalue of the matrix to a residual of `tolerance` times the matrix's largest entry. The start is fixed, so
/// the result is a function of the matrix alone.
pub(super) fn top_eigenpair(isa: Isa, matrix: &impl Symmetric, tolerance: f64) -> TopEigenpair {
    vectorised(isa, || lanczos(matrix, tolerance))
}

#[inline(always)]
fn lanczos(matrix: &impl Symmetric, tolerance: f64) -> TopEigenpair {
    let n = matrix.size();
    let scale = matrix.largest() * n as f64;
    if scale == 0.0 {
        let mut vector = vec![0.0; n];
        vector[0] = 1.0;
        return TopEigenpair { value: 0.0, residual: 0.0, vector };
    }
    let mut basis: Vec<f64> = Vec::with_capacity(n * n.min(64));
    let (mut diagonal, mut coupling) = (Vec::new(), Vec::new());
    let mut next = start(n);
    loop {
        basis.extend_from_slice(&next);
        let steps = basis.len() / n;
        let last = &basis[(steps - 1) * n..];
        matrix.multiply(last, &mut next);
        diagonal.push(dot(&next, last));
        // Twice is enough (Kahan and Parlett).
        for _ in 0..2 {
            for q in basis.chunks_exact(n) {
                let overlap = dot(&next, q);
                next.iter_mut().zip(q).for_each(|(x, q)| *x -= overlap * q);
            }
        }
        let norm = dot(&next, &next).sqrt();
        let exhausted = steps == n || norm <= 1e-14 * scale;
        if exhausted || steps.is_multiple_of(4) {
            let enough = tolerance * scale / n as f64;
            let (value, weights) = top_of_tridiagonal(&diagonal, &coupling, scale, 1e-4 * enough);
            let residual = norm * weights[steps - 1].abs();
            if exhausted || residual <= enough {
                let mut vector = vec![0.0; n];
                for (q, weight) in basis.chunks_exact(n).zip(&weights) {
                    vector.iter_mut().zip(q).for_each(|(v, q)| *v += weight * q);
                }
                let length = dot(&vector, &vector).sqrt();
                vector.iter_mut().for_each(|v| *v /= length);
                return TopEigenpair {
                    value,
                    residual: if exhausted { 1e-14 * scale } else { residual },
                    vector,
                };
            }
        }
        coupling.push(norm);
        next.iter_mut().for_each(|x| *x /= norm);
    }
}

/// A unit vector without symmetry: a Weyl sequence.
fn start(n: usize) -> Vec<f64> {
    let mut x: Vec<f64> = (1..=n).map(|i| (i as f64 * 0.618_033_988_749_894_9).fract() + 0.1).collect();
    let length = dot(&x, &x).sqrt();
    x.iter_mut().for_each(|x| *x /= length);
    x
}

/// The inner product, as eight sums: one sum would wait for each of its additions.
#[inline(always)]
fn dot(x: &[f64], y: &[f64]) -> f64 {
    const SUMS: usize = 8;
    let mut sums = [0.0; SUMS];
    let (x, y) = (x.chunks_exact(SUMS), y.chunks_exact(SUMS));
    let rest: f64 = x.remainder().iter().zip(y.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in x.zip(y) {
        for k in 0..SUMS {
            sums[k] += x[k] * y[k];
        }
    }
    sums.iter().fold(rest, |total, sum| total + sum)
}

/// Largest eigenvalue of a symmetric tridiagonal matrix by bisection (`x` is above it iff `x I - T` has positive pivots),
/// from above and to within `accuracy` or rounding, and its unit eigenvector by inverse iteration from there.
fn top_of_tridiagonal(diagonal: &[f64], coupling: &[f64], scale: f64, accuracy: f64) -> (f64, Vec<f64>) {
    let mut pivots = vec![0.0; diagonal.len()];
    let is_above = |x: f64, pivots: &mut [f64]| {
        let mut correction = 0.0;
        for (i, (pivot, d)) in pivots.iter_mut().zip(diagonal).enumerate() {
            *pivot = x - d - correction;
            if *pivot <= 0.0 {
                return false;
            }
            correction = coupling.get(i).map_or(0.0, |c| c * c / *pivot);
        }
        true
    };
    let top = diagonal.iter().fold(f64::NEG_INFINITY, |m, &d| m.max(d));
    let (mut below, mut above) = (
        top,
        top + 2.0 * coupling[..diagonal.len() - 1].iter().fold(0.0, |m: f64, &c| m.max(c)) + 1e-14 * scale,
    );
    while above - below > accuracy.max(4e-16 * scale) {
        let middle = 0.5 * (below + above);
        if middle <= below || middle >= above {
            break;
        }
        if is_above(middle, &mut pivots) { above = middle } else { below = middle }
    }
    let mut shifted = above;
    while !is_above(shifted, &mut pivots) {
        shifted += 1e-15 * scale;
    }
    let mut x = vec![1.0; diagonal.len()];
    for _ in 0..3 {
        // (shifted I - T) = L diag(pivots) L', L unit lower bidiagonal with entries -coupling / pivot.
        for i in 1..x.len() {
            x[i] += x[i - 1] * coupling[i - 1] / pivots[i - 1];
        }
        for i in 0..x.len() {
            x[i] /= pivots[i];
        }
        for i in (1..x.len()).rev() {
            x[i - 1] += x[i] * coupling[i - 1] / pivots[i - 1];
        }
        let length = dot(&x, &x).sqrt();
        x.iter_mut().for_each(|x| *x /= length);
    }
    (above, x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::random;

    fn symmetric(n: usize, seed: u64) -> Vec<f64> {
        let a = random(n * n, seed);
        (0..n * n).map(|i| a[i] + a[i % n * n + i / n]).collect()
    }

    #[test]
    fn finds_the_top_of_random_matrices() {
        for n in [1, 2, 3, 10, 87] {
            let a = symmetric(n, n as u64);
            let matrix = RealSymmetric { n, entries: &a };
            let top = top_eigenpair(Isa::detect(), &matrix, 1e-10);
            let mut image = vec![0.0; n];
            matrix.multiply(&top.vector, &mut image);
            let error =
                image.iter().zip(&top.vector).map(|(y, x)| (y - top.value * x).abs()).fold(0.0, f64::max);
            assert!(error < 1e-7, "n = {n}: {error}");
            // Above every eigenvalue: value I - A + tiny has a Cholesky factor.
            let mut m: Vec<f64> = a.iter().map(|x| -x).collect();
            (0..n).for_each(|i| m[i * n + i] += top.value + 1e-7);
            for k in 0..n {
                assert!(m[k * n + k] > 0.0, "n = {n}: an eigenvalue above {} exists", top.value);
                for i in k + 1..n {
                    let factor = m[i * n + k] / m[k * n + k];
                    (k..n).for_each(|j| m[i * n + j] -= factor * m[k * n + j]);
                }
            }
        }
    }

    #[test]
    fn a_hermitian_matrix_is_its_real_form() {
        for n in [1, 3, 16] {
            let (a, b) = (symmetric(n, 7), random(n * n, 8));
            let im: Vec<f64> = (0..n * n).map(|i| b[i] - b[i % n * n + i / n]).collect();
            let entry = |o: usize, i: usize| match (o / n, i / n) {
                (0, 1) => -im[o * n + i % n],
                (1, 0) => im[o % n * n + i],
                _ => a[o % n * n + i % n],
            };
            let entries: Vec<f64> = (0..4 * n * n).map(|k| entry(k / (2 * n), k % (2 * n))).collect();
            let real = RealSymmetric { n: 2 * n, entries: &entries };
            let hermitian = Hermitian { n, re: a.clone(), im };
            let x = random(2 * n, 9);
            let [mut there, mut here] = [vec![0.0; 2 * n], vec![0.0; 2 * n]];
            real.multiply(&x, &mut there);
            hermitian.multiply(&x, &mut here);
            assert!(there.iter().zip(&here).all(|(a, b)| (a - b).abs() < 1e-12), "{there:?} {here:?}");
            assert_eq!((real.size(), real.largest()), (hermitian.size(), hermitian.largest()));
        }
    }

    #[test]
    fn degenerate_matrices() {
        assert_eq!(
            top_eigenpair(Isa::detect(), &RealSymmetric { n: 3, entries: &[0.0; 9] }, 1e-10).value,
            0.0
        );
        let entries = &[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let identity = top_eigenpair(Isa::detect(), &RealSymmetric { n: 3, entries }, 1e-10);
        assert!((identity.value - 1.0).abs() < 1e-12);
    }
}
