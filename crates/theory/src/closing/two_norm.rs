//! T2: `||T D W T^-1||_2 < 1` for a positive diagonal `T`, by a rigorous bound of the largest eigenvalue of `M^T M`.

use crate::cholesky::Symmetric;
use crate::lu::gram;
use crate::round::{dot, gamma, vectorised};

/// Relative accuracy of the squared norm that is reported.
const TOLERANCE: f64 = 5e-4;
/// Power steps at most, and the growth per step at which they stop.
const POWER_STEPS: usize = 30;
const LEAST_GROWTH: f64 = 1e-5;
/// Halvings of the interval in which the squared norm lies.
const MOST_HALVINGS: usize = 24;

/// An upper bound of the norm where it can be shown to be below one. `matrix` is `W`, row major; `singular` is where the search
/// for the largest singular vector starts, and receives what it finds.
pub(crate) fn bound(matrix: &[f64], slopes: &[f64], t: &[f64], singular: &mut Vec<f64>) -> Option<f64> {
    let n = slopes.len();
    let mut m = vec![0.0; n * n];
    for (i, (m, w)) in m.chunks_exact_mut(n).zip(matrix.chunks_exact(n)).enumerate() {
        let scale = t[i] * slopes[i];
        for ((m, w), t) in m.iter_mut().zip(w).zip(t) {
            *m = scale * w / t;
        }
    }
    let seen = vectorised(
        #[inline(always)]
        || largest_norm_seen(&m, n, singular),
    );
    if seen >= 1.0 {
        return None;
    }
    let gram = gram(&m, n);
    let norms: Vec<f64> = (0..n).map(|i| gram[i * n + i].sqrt() * (1.0 + gamma(n + 20))).collect();
    // Cauchy and Schwarz: the terms of entry (i, j) sum to at most the product of the two column norms.
    let negative = Symmetric::from_fn(n, n + 10, |i, j| (-gram[i * n + j], norms[i] * norms[j]));
    let exceeds_square = |level: f64| negative.exceeds(-level);
    let largest = least_level(exceeds_square, seen * seen)?;
    let norm = largest.sqrt().next_up();
    (norm < 1.0).then_some(norm)
}

/// The least level up to one that is shown, within the tolerance; `below` is one that cannot be. Mostly the first is it.
fn least_level(shown: impl Fn(f64) -> bool, below: f64) -> Option<f64> {
    let first = below * (1.0 + TOLERANCE);
    if first < 1.0 && shown(first) {
        return Some(first);
    }
    let (mut refuted, mut known) = (below, 1.0);
    if !shown(known) {
        return None;
    }
    for _ in 0..MOST_HALVINGS {
        // One itself is no use, however near.
        if known < 1.0 && known - refuted <= TOLERANCE * known {
            break;
        }
        let middle = 0.5 * (refuted + known);
        if shown(middle) {
            known = middle;
        } else {
            refuted = middle;
        }
    }
    Some(known)
}

/// Whether a few power steps show that the norm of `m` is not below one: a bound need not be sought.
pub(crate) fn is_hopeless(m: &[f64], n: usize) -> bool {
    vectorised(
        #[inline(always)]
        || largest_norm_seen(m, n, &mut Vec::new()) >= 1.0,
    )
}

/// A lower bound of the norm (up to rounding; it only saves work) by power steps, which stop once it is seen not to be below one.
#[inline(always)]
fn largest_norm_seen(m: &[f64], n: usize, x: &mut Vec<f64>) -> f64 {
    if x.len() != n {
        *x = (0..n).map(|i| 1.0 + (i % 7) as f64 * 0.1).collect();
    }
    let mut seen = 0.0f64;
    for _ in 0..POWER_STEPS {
        let length = dot(x, x).sqrt();
        if !(length > 0.0 && length.is_finite()) {
            x.clear();
            return seen;
        }
        x.iter_mut().for_each(|x| *x /= length);
        // x becomes M^T M x, one row of M at a time.
        let mut image = vec![0.0; n];
        let mut square = 0.0;
        for row in m.chunks_exact(n) {
            let y = dot(row, x);
            square += y * y;
            for (image, m) in image.iter_mut().zip(row) {
                *image += m * y;
            }
        }
        x.copy_from_slice(&image);
        let norm = square.sqrt();
        if norm >= 1.0 || !(norm > seen * (1.0 + LEAST_GROWTH)) {
            return seen.max(norm);
        }
        seen = norm;
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_the_norm_of_a_rotation_and_of_a_scaled_matrix() {
        let rotation = [0.6 * 0.9, -0.8 * 0.9, 0.8 * 0.9, 0.6 * 0.9];
        let norm = bound(&rotation, &[1.0; 2], &[1.0; 2], &mut Vec::new()).unwrap();
        assert!((0.9..0.9005).contains(&norm), "{norm}");
        assert!(bound(&rotation, &[1.2; 2], &[1.0; 2], &mut Vec::new()).is_none());
        // [[0, 2], [0.1, 0]] has norm 2, but 0.447... once scaled.
        let skew = [0.0, 2.0, 0.1, 0.0];
        assert!(bound(&skew, &[1.0; 2], &[1.0; 2], &mut Vec::new()).is_none());
        let t = [1.0, 20f64.sqrt()];
        assert!(bound(&skew, &[1.0; 2], &t, &mut Vec::new()).unwrap() < 0.45);
    }
}
