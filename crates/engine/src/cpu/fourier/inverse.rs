//! Inverse of a complex matrix whose Hermitian part is positive definite.

use crate::cpu::isa::Isa;
use crate::cpu::network::vectorised::vectorised;
use crate::cpu::simd::{Array, Lanes};

/// Rows are padded to whole ones. Not by [`Isa::dispatch`]: it has one version for `f64`, and this is on the way of `f32` too.
type V = Array<f64, 8>;

/// Inverts in place by Gauss-Jordan elimination, in `f64` whatever the tables are kept in.
///
/// `matrix` has `n` rows of real parts then imaginary parts, each padded to the same multiple of eight. No pivoting: the
/// Hermitian part of `I + t (I - W)` is positive definite for a monotone `W`, and then no pivot is smaller than its least
/// eigenvalue. For other `W` the inverse is checked on a probe vector and refused where it is wrong.
pub(crate) fn invert(isa: Isa, n: usize, matrix: &mut [f64]) -> Result<(), &'static str> {
    let padded = matrix.len() / (2 * n);
    let probe: Vec<(f64, f64)> = (0..n).map(probe_entry).collect();
    let image = multiply(matrix, padded, &probe);
    vectorised(isa, || eliminate(n, padded, matrix));
    let back = multiply(matrix, padded, &image);
    // Written so that NaN fails too.
    let right = |(a, b): (&(f64, f64), &(f64, f64))| (a.0 - b.0).abs() <= 1e-8 && (a.1 - b.1).abs() <= 1e-8;
    if back.iter().zip(&probe).all(right) { Ok(()) } else { Err("is singular or nearly so") }
}

/// Deterministic numbers in (-1, 1) without structure.
fn probe_entry(k: usize) -> (f64, f64) {
    let golden = 0.618_033_988_749_894_9 * (k + 1) as f64;
    let silver = std::f64::consts::SQRT_2 * (k + 1) as f64;
    (2.0 * golden.fract() - 1.0, 2.0 * silver.fract() - 1.0)
}

fn multiply(matrix: &[f64], padded: usize, x: &[(f64, f64)]) -> Vec<(f64, f64)> {
    matrix
        .chunks_exact(2 * padded)
        .map(|row| {
            let (re, im) = row.split_at(padded);
            x.iter().zip(re.iter().zip(im)).fold((0.0, 0.0), |sum, (x, (re, im))| {
                (sum.0 + re * x.0 - im * x.1, sum.1 + re * x.1 + im * x.0)
            })
        })
        .collect()
}

#[inline(always)]
fn eliminate(n: usize, padded: usize, matrix: &mut [f64]) {
    for k in 0..n {
        let (before, rest) = matrix.split_at_mut(k * 2 * padded);
        let (pivot, after) = rest.split_at_mut(2 * padded);
        let (re, im) = (pivot[k], pivot[padded + k]);
        let size = re * re + im * im;
        (pivot[k], pivot[padded + k]) = (1.0, 0.0);
        scale(pivot, padded, (re / size, -im / size));
        for row in before.chunks_exact_mut(2 * padded).chain(after.chunks_exact_mut(2 * padded)) {
            let factor = (row[k], row[padded + k]);
            (row[k], row[padded + k]) = (0.0, 0.0);
            subtract(row, pivot, padded, factor);
        }
    }
}

/// `row *= factor`.
#[inline(always)]
fn scale(row: &mut [f64], padded: usize, factor: (f64, f64)) {
    let (re, im) = row.split_at_mut(padded);
    for (re, im) in re.chunks_exact_mut(V::N).zip(im.chunks_exact_mut(V::N)) {
        let (a, b) = (V::load(re), V::load(im));
        let (x, y) = (V::splat(factor.0), V::splat(factor.1));
        (a * x - b * y).store(re);
        (a * y + b * x).store(im);
    }
}

/// `row -= factor * pivot`.
#[inline(always)]
fn subtract(row: &mut [f64], pivot: &[f64], padded: usize, factor: (f64, f64)) {
    let (x, y, minus_y) = (V::splat(-factor.0), V::splat(-factor.1), V::splat(factor.1));
    let (re, im) = row.split_at_mut(padded);
    let (pivot_re, pivot_im) = pivot.split_at(padded);
    let pivot = pivot_re.chunks_exact(V::N).zip(pivot_im.chunks_exact(V::N));
    for ((re, im), (a, b)) in re.chunks_exact_mut(V::N).zip(im.chunks_exact_mut(V::N)).zip(pivot) {
        let (a, b) = (V::load(a), V::load(b));
        b.fma(minus_y, a.fma(x, V::load(re))).store(re);
        b.fma(x, a.fma(y, V::load(im))).store(im);
    }
}
