//! Matrix products, approximate inverses by Gaussian elimination, rigorous bounds of how good they are, and the sign of a determinant.

use crate::bound::Upper;
use crate::round::{dot, gamma, tiny, vectorised};

/// An approximate inverse of the `n x n` matrix `a` (Gauss and Jordan with partial pivoting); `None` where a pivot
/// vanishes or something overflows.
#[must_use]
pub(crate) fn inverse(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut work = a.to_vec();
    let mut inv = vec![0.0; n * n];
    (0..n).for_each(|i| inv[i * n + i] = 1.0);
    let done = vectorised(
        #[inline(always)]
        || eliminate(&mut work, &mut inv, n),
    );
    (done && inv.iter().all(|x| x.is_finite())).then_some(inv)
}

#[inline(always)]
fn eliminate(work: &mut [f64], inv: &mut [f64], n: usize) -> bool {
    for k in 0..n {
        let mut pivot_row = k;
        for i in k + 1..n {
            if work[i * n + k].abs() > work[pivot_row * n + k].abs() {
                pivot_row = i;
            }
        }
        if pivot_row != k {
            for j in 0..n {
                work.swap(k * n + j, pivot_row * n + j);
                inv.swap(k * n + j, pivot_row * n + j);
            }
        }
        let pivot = work[k * n + k];
        if !(pivot.abs() > 0.0 && pivot.is_finite()) {
            return false;
        }
        let scale = 1.0 / pivot;
        for j in 0..n {
            work[k * n + j] *= scale;
            inv[k * n + j] *= scale;
        }
        for i in 0..n {
            let factor = work[i * n + k];
            if i == k || factor == 0.0 {
                continue;
            }
            subtract_row(work, n, i, k, factor);
            subtract_row(inv, n, i, k, factor);
        }
    }
    true
}

#[inline(always)]
fn subtract_row(m: &mut [f64], n: usize, target: usize, source: usize, factor: f64) {
    let (low, high) = m.split_at_mut(target.max(source) * n);
    let (target, source) = if target < source {
        (&mut low[target * n..][..n], &high[..n])
    } else {
        (&mut high[..n], &low[source * n..][..n])
    };
    for (t, s) in target.iter_mut().zip(source) {
        *t -= factor * s;
    }
}

/// `A B`, each entry wrong by at most `gamma(n)` times that of `|A||B|`.
#[must_use]
pub(crate) fn product(a: &[f64], b: &[f64], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    vectorised(
        #[inline(always)]
        || {
            for (row, out) in a.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
                for (&x, b) in row.iter().zip(b.chunks_exact(n)) {
                    for (out, b) in out.iter_mut().zip(b) {
                        *out += x * b;
                    }
                }
            }
        },
    );
    out
}

/// `out += A^T B`, four rows of both at a time, so that each entry is loaded once for four products.
#[inline(always)]
pub(crate) fn add_transposed_product(a: &[f64], b: &[f64], n: usize, out: &mut [f64]) {
    let (mut a_quads, mut b_quads) = (a.chunks_exact(4 * n), b.chunks_exact(4 * n));
    for (a, b) in (&mut a_quads).zip(&mut b_quads) {
        let (b0, b1, b2, b3) = (&b[..n], &b[n..][..n], &b[2 * n..][..n], &b[3 * n..][..n]);
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            let (a0, a1, a2, a3) = (a[i], a[n + i], a[2 * n + i], a[3 * n + i]);
            for j in 0..n {
                out[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]);
            }
        }
    }
    for (a, b) in a_quads.remainder().chunks_exact(n).zip(b_quads.remainder().chunks_exact(n)) {
        for (&a, out) in a.iter().zip(out.chunks_exact_mut(n)) {
            for (out, b) in out.iter_mut().zip(b) {
                *out += a * b;
            }
        }
    }
}

/// The upper triangle (the rest is zero) of `M^T M`, each entry wrong by at most `gamma(n)` times that of `|M^T||M|`.
#[must_use]
pub(crate) fn gram(m: &[f64], n: usize) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    vectorised(
        #[inline(always)]
        || add_gram(m, n, &mut out),
    );
    out
}

/// As [`add_transposed_product`] of a matrix with itself, the upper triangle only.
#[inline(always)]
fn add_gram(m: &[f64], n: usize, out: &mut [f64]) {
    let mut quads = m.chunks_exact(4 * n);
    for quad in &mut quads {
        let (r0, r1, r2, r3) = (&quad[..n], &quad[n..][..n], &quad[2 * n..][..n], &quad[3 * n..][..n]);
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            let (a0, a1, a2, a3) = (r0[i], r1[i], r2[i], r3[i]);
            let (out, r0, r1, r2, r3) = (&mut out[i..], &r0[i..], &r1[i..], &r2[i..], &r3[i..]);
            for j in 0..n - i {
                out[j] += (a0 * r0[j] + a1 * r1[j]) + (a2 * r2[j] + a3 * r3[j]);
            }
        }
    }
    for row in quads.remainder().chunks_exact(n) {
        for (i, out) in out.chunks_exact_mut(n).enumerate() {
            for (out, b) in out[i..].iter_mut().zip(&row[i..]) {
                *out += row[i] * b;
            }
        }
    }
}

/// An upper bound of `||I - C A||` in the norm of largest absolute row sums.
#[must_use]
pub(crate) fn residual(c: &[f64], a: &[f64], n: usize) -> Upper {
    let ca = product(c, a, n);
    let a_sums: Vec<f64> = a.chunks_exact(n).map(|row| row.iter().map(|x| x.abs()).sum::<f64>()).collect();
    let mut largest = Upper::ZERO;
    for (i, row) in ca.chunks_exact(n).enumerate() {
        let off: f64 = row.iter().enumerate().map(|(j, x)| (x - f64::from(i == j)).abs()).sum();
        // sum_j (|C||A|)_ij = sum_k |C_ik| (row sum k of |A|).
        let magnitude: f64 = c[i * n..][..n].iter().zip(&a_sums).map(|(c, s)| c.abs() * s).sum();
        let bound = (off * (1.0 + gamma(n + 4)) + gamma(n + 2) * magnitude * (1.0 + gamma(2 * n + 4)))
            + tiny(2 * n * n);
        largest = largest.max(Upper::new(bound.next_up().next_up()));
    }
    largest
}

/// The sign of `det A`, proved, or `None`: `A` is compared with the product of two triangular matrices whose determinant
/// has an obvious sign. With `X = U^-1 L^-1` (as computed) and `||I - X P A|| < 1`, the determinants of `X P` and `A` have
/// the same sign.
#[must_use]
pub(crate) fn determinant_sign(a: &[f64], n: usize) -> Option<f64> {
    let (lu, order, swaps) = factorise(a, n)?;
    let (upper_inv, lower_inv) = triangular_inverses(&lu, n);
    let mut sign = if swaps % 2 == 0 { 1.0 } else { -1.0 };
    for i in 0..n {
        let diagonal = upper_inv[i * n + i];
        if !(diagonal.abs() > 0.0 && diagonal.is_finite()) {
            return None;
        }
        sign *= diagonal.signum();
    }
    let permuted: Vec<f64> = order.iter().flat_map(|&row| a[row * n..][..n].iter().copied()).collect();
    // || I - Ui Li P A || <= || I - X P A || + || (X - Ui Li) P A ||, X = fl(Ui Li).
    let x = product(&upper_inv, &lower_inv, n);
    let abs = |m: &[f64]| m.iter().map(|v| v.abs()).collect::<Vec<f64>>();
    let magnitudes = product(&abs(&upper_inv), &abs(&lower_inv), n);
    let inexact = gamma(n + 2) * row_norm(&magnitudes, n).get() * row_norm(&permuted, n).get();
    let inexact = Upper::new(inexact * (1.0 + gamma(4 * n + 8)) + tiny(n * n));
    ((residual(&x, &permuted, n) + inexact).get() < 1.0 - 1e-10).then_some(sign)
}

/// `det A` in plain floating point.
#[must_use]
pub(crate) fn determinant(a: &[f64], n: usize) -> f64 {
    let Some((lu, _, swaps)) = factorise(a, n) else { return 0.0 };
    let product: f64 = (0..n).map(|i| lu[i * n + i]).product();
    if swaps % 2 == 0 { product } else { -product }
}

/// The largest absolute row sum, up to rounding.
#[must_use]
pub(crate) fn row_norm(m: &[f64], n: usize) -> Upper {
    Upper::largest(m.chunks_exact(n).map(|row| row.iter().map(|x| x.abs()).sum::<f64>()))
}

/// `P A = L U` in one matrix (unit diagonal of `L` left out), the row order, and the number of swaps.
fn factorise(a: &[f64], n: usize) -> Option<(Vec<f64>, Vec<usize>, usize)> {
    let mut lu = a.to_vec();
    let mut order: Vec<usize> = (0..n).collect();
    let mut swaps = 0;
    for k in 0..n {
        let mut pivot_row = k;
        for i in k + 1..n {
            if lu[i * n + k].abs() > lu[pivot_row * n + k].abs() {
                pivot_row = i;
            }
        }
        if pivot_row != k {
            (0..n).for_each(|j| lu.swap(k * n + j, pivot_row * n + j));
            order.swap(k, pivot_row);
            swaps += 1;
        }
        let pivot = lu[k * n + k];
        if !(pivot.abs() > 0.0 && pivot.is_finite()) {
            return None;
        }
        for i in k + 1..n {
            lu[i * n + k] /= pivot;
            let factor = lu[i * n + k];
            let (top, bottom) = lu.split_at_mut(i * n);
            for (target, source) in bottom[k + 1..n].iter_mut().zip(&top[k * n + k + 1..][..n - k - 1]) {
                *target -= factor * source;
            }
        }
    }
    Some((lu, order, swaps))
}

/// Approximate `U^-1` (upper triangular) and `L^-1` (lower triangular, unit diagonal).
fn triangular_inverses(lu: &[f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut upper, mut lower) = (vec![0.0; n * n], vec![0.0; n * n]);
    for j in 0..n {
        lower[j * n + j] = 1.0;
        for i in j + 1..n {
            lower[i * n + j] = -(j..i).map(|k| lu[i * n + k] * lower[k * n + j]).sum::<f64>();
        }
        upper[j * n + j] = 1.0 / lu[j * n + j];
        for i in (0..j).rev() {
            let sum: f64 = (i + 1..=j).map(|k| lu[i * n + k] * upper[k * n + j]).sum();
            upper[i * n + j] = -sum / lu[i * n + i];
        }
    }
    (upper, lower)
}

/// `out = M x`.
pub(crate) fn matvec(m: &[f64], x: &[f64], out: &mut [f64]) {
    for (row, out) in m.chunks_exact(x.len()).zip(out) {
        *out = dot(row, x);
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    #[test]
    fn inverts_and_bounds_the_residual() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for n in [1, 2, 7, 60] {
            let a: Vec<f64> = (0..n * n).map(|_| rng.random_range(-1.0..1.0)).collect();
            let c = inverse(&a, n).unwrap();
            assert!(residual(&c, &a, n).get() < 1e-8);
        }
        assert!(inverse(&[1.0, 2.0, 2.0, 4.0], 2).is_none());
    }

    #[test]
    fn signs_of_determinants_follow_row_swaps() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for n in [2, 5, 40] {
            let mut a: Vec<f64> = (0..n * n).map(|_| rng.random_range(-1.0..1.0)).collect();
            let before = determinant_sign(&a, n).unwrap();
            (0..n).for_each(|j| a.swap(j, n + j));
            assert_eq!(determinant_sign(&a, n).unwrap(), -before);
        }
        assert_eq!(determinant_sign(&[0.0, 1.0, 1.0, 0.0], 2), Some(-1.0));
        // Singular up to rounding: no sign may be claimed.
        assert_eq!(determinant_sign(&[0.1, 0.3, 0.2, 0.6], 2), None);
    }
}
