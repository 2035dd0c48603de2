//! T1: a positive vector `v` with `D|W|v <= theta v`, `theta < 1`, sought by Collatz and Wielandt's iteration. Any
//! `v > 0` gives a rigorous bound, so the search needs no rigour.

use subdeq_map::Operator;

use crate::bound::Upper;
use crate::operator::Products;
use crate::round::{gamma, tiny};

/// Share of the old vector kept in each step, so that a zero row or a cyclic matrix does no harm.
const DAMPING: f64 = 1e-3;
/// Entries of `v` relative to its largest never fall below this.
const LEAST_WEIGHT: f64 = 1e-6;

/// `max_i (D|W|v)_i / v_i`, rounded up, and `min_i` of the same (not rounded); `image` receives `D|W|v`.
pub(crate) fn ratios(operator: &Operator, slopes: &[f64], v: &[f64], image: &mut [f64]) -> (f64, f64) {
    operator.apply_abs(v, image);
    let terms = operator.terms();
    let (up, under) = (1.0 + gamma(terms + 6), tiny(terms + 1));
    let (mut largest, mut least) = (Upper::ZERO, f64::INFINITY);
    for ((image, &d), &v) in image.iter_mut().zip(slopes).zip(v) {
        let raw = d * *image;
        largest = largest.max(Upper::new((raw * up + under) / v));
        least = least.min(raw / v);
        *image = raw;
    }
    (largest.get().next_up(), least)
}

/// Improves `v` for at most `rounds` steps and returns the best `theta`, leaving in `v` the vector it belongs to. Stops
/// when `theta` is within 1 % of the truth or the truth is certainly not below one.
pub(crate) fn search(operator: &Operator, slopes: &[f64], v: &mut [f64], rounds: usize) -> f64 {
    let mut image = vec![0.0; v.len()];
    let mut best = (f64::INFINITY, v.to_vec());
    for round in 0..=rounds {
        let (theta, least) = ratios(operator, slopes, v, &mut image);
        if theta < best.0 {
            best.0 = theta;
            best.1.copy_from_slice(v);
        }
        if round == rounds || least >= 1.0 || theta - least < 0.01 * theta || !theta.is_finite() {
            break;
        }
        let mut top = 0.0f64;
        for (v, image) in v.iter_mut().zip(&image) {
            *v = image + DAMPING * theta * *v;
            top = top.max(*v);
        }
        v.iter_mut().for_each(|v| *v = (*v / top).max(LEAST_WEIGHT));
    }
    v.copy_from_slice(&best.1);
    best.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_spectral_radius_of_a_nonnegative_matrix_from_above() {
        // rho([[0, 4], [1, 0]]) = 2, cyclic; rho([[a, b], [c, d]]) in closed form otherwise.
        let cyclic = Operator::dense(2, vec![0.0, -4.0, 1.0, 0.0]).unwrap();
        let mut v = vec![1.0; 2];
        let theta = search(&cyclic, &[0.3; 2], &mut v, 2000);
        assert!((0.6..0.7).contains(&theta), "{theta}");
        let full = Operator::dense(2, vec![0.2, -0.5, 0.3, 0.1]).unwrap();
        let mut v = vec![1.0; 2];
        let theta = search(&full, &[1.0; 2], &mut v, 200);
        let rho = 0.15 + (0.05f64 * 0.05 + 0.15).sqrt();
        assert!(theta >= rho && theta < 1.02 * rho, "{theta} {rho}");
    }
}
