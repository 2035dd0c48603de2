//! T3: `P D^-1 - sym(P W)` positive definite for a positive diagonal `P`.

use crate::cholesky::Symmetric;

/// The matrix `S (P D^-1 - sym(P W)) S` with `S = diag(s)`, `s_i = sqrt(d_i / p_i)`: as definite as the unscaled one, but
/// with a diagonal near one, so that tiny slopes do no harm. The scaling need not be exact, any `s > 0` will do.
pub(crate) fn scaled(matrix: &[f64], slopes: &[f64], p: &[f64]) -> (Symmetric, Vec<f64>) {
    let n = slopes.len();
    let s: Vec<f64> = slopes.iter().zip(p).map(|(d, p)| (d / p).sqrt()).collect();
    let symmetric = Symmetric::from_fn(n, 10, |i, j| {
        let scale = 0.5 * s[i] * s[j];
        let (forth, back) = (scale * (p[i] * matrix[i * n + j]), scale * (p[j] * matrix[j * n + i]));
        let diagonal = if i == j { s[i] * s[i] * (p[i] / slopes[i]) } else { 0.0 };
        (diagonal - (forth + back), diagonal + forth.abs() + back.abs())
    });
    (symmetric, s)
}

/// Whether the test holds, with enough to spare for a re-check whose error bounds are cruder. (The diagonal is near one, so the
/// largest absolute row sum is the size of the matrix.)
pub(crate) fn holds(matrix: &[f64], slopes: &[f64], p: &[f64]) -> bool {
    let scaled = scaled(matrix, slopes, p).0;
    scaled.exceeds(recheck_slack(slopes.len(), scaled.size()))
}

/// What a re-check of the definiteness of a matrix of this size may lose.
pub(crate) fn recheck_slack(n: usize, size: f64) -> f64 {
    256.0 * (n as f64) * (n as f64) * f64::EPSILON * size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allows_any_inhibition_but_no_strong_excitation() {
        // Antisymmetric and negative parts of any size pass, an eigenvalue of sym(W) at one does not.
        assert!(holds(&[-5.0, 30.0, -30.0, 0.9], &[1.0; 2], &[1.0; 2]));
        assert!(!holds(&[-5.0, 30.0, -30.0, 1.0], &[1.0; 2], &[1.0; 2]));
        // The slope bound enters: 1/0.5 - 1.9 > 0, also where the other slope is tiny.
        assert!(holds(&[1.9, 0.0, 0.0, 100.0], &[0.5, 1e-180], &[1.0; 2]));
        assert!(!holds(&[2.0, 0.0, 0.0, 1.0], &[0.5, 1e-180], &[1.0; 2]));
    }
}
