//! T2: `||T D W T^-1||_2 < 1` for a positive diagonal `T`, by a rigorous bound of the largest eigenvalue of `M^T M`.

use crate::cholesky::Symmetric;
use crate::round::{dot, gamma, vectorised};

/// Relative accuracy of the factor that is reported.
const TOLERANCE: f64 = 1e-4;

/// An upper bound of the norm where it can be shown to be below one. `matrix` is `W`, row major.
pub(crate) fn bound(matrix: &[f64], slopes: &[f64], t: &[f64]) -> Option<f64> {
    let n = slopes.len();
    // Column j of M as row j, so that the entries of M^T M are dot products of rows.
    let mut columns = vec![0.0; n * n];
    for i in 0..n {
        let scale = t[i] * slopes[i];
        for j in 0..n {
            columns[j * n + i] = scale * matrix[i * n + j] / t[j];
        }
    }
    if largest_norm_seen(&columns, n) >= 1.0 {
        return None;
    }
    let gram = gram_matrix(&columns, n);
    let negative = |shift: f64| {
        Symmetric::from_fn(n, n + 10, |i, j| {
            let diagonal = if i == j { shift } else { 0.0 };
            // Cauchy and Schwarz: the terms of entry (i, j) sum to at most the product of the two column norms.
            let magnitude = (gram[i * n + i] * gram[j * n + j]).sqrt() * (1.0 + gamma(n + 20));
            (diagonal - gram[i * n + j], magnitude + diagonal)
        })
    };
    if !negative(1.0).exceeds(0.0) {
        return None;
    }
    let largest = -negative(0.0).least_eigenvalue(TOLERANCE)?;
    let norm = largest.max(0.0).sqrt().next_up();
    (norm < 1.0).then_some(norm)
}

fn gram_matrix(columns: &[f64], n: usize) -> Vec<f64> {
    let mut gram = vec![0.0; n * n];
    vectorised(
        #[inline(always)]
        || {
            for i in 0..n {
                let a = &columns[i * n..][..n];
                for j in i..n {
                    gram[i * n + j] = dot(a, &columns[j * n..][..n]);
                }
            }
        },
    );
    gram
}

/// A lower bound of the norm (not rigorous, it only saves work): a few power steps.
fn largest_norm_seen(columns: &[f64], n: usize) -> f64 {
    let mut x: Vec<f64> = (0..n).map(|i| 1.0 + (i % 7) as f64 * 0.1).collect();
    let mut y = vec![0.0; n];
    let mut seen = 0.0f64;
    for _ in 0..6 {
        let length = x.iter().map(|x| x * x).sum::<f64>().sqrt();
        if !(length > 0.0) {
            return 0.0;
        }
        x.iter_mut().for_each(|x| *x /= length);
        // y = M x, summed over the columns of M, then x = M^T y.
        y.fill(0.0);
        for (column, &x) in columns.chunks_exact(n).zip(&x) {
            for (y, m) in y.iter_mut().zip(column) {
                *y += m * x;
            }
        }
        seen = seen.max(y.iter().map(|y| y * y).sum::<f64>().sqrt());
        for (column, x) in columns.chunks_exact(n).zip(&mut x) {
            *x = dot(column, &y);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_the_norm_of_a_rotation_and_of_a_scaled_matrix() {
        let rotation = [0.6 * 0.9, -0.8 * 0.9, 0.8 * 0.9, 0.6 * 0.9];
        let norm = bound(&rotation, &[1.0; 2], &[1.0; 2]).unwrap();
        assert!((0.9..0.9005).contains(&norm), "{norm}");
        assert!(bound(&rotation, &[1.2; 2], &[1.0; 2]).is_none());
        // [[0, 2], [0.1, 0]] has norm 2, but 0.447... once scaled.
        let skew = [0.0, 2.0, 0.1, 0.0];
        assert!(bound(&skew, &[1.0; 2], &[1.0; 2]).is_none());
        let t = [1.0, 20f64.sqrt()];
        assert!(bound(&skew, &[1.0; 2], &t).unwrap() < 0.45);
    }
}
