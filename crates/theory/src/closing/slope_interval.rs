//! T4: `rho(R |W (I - Dc W)^-1|) < 1`, where the slopes lie in `[Dc - R, Dc + R]`: then every `I - Delta W` is
//! nonsingular.

use subdeq_map::Operator;

use super::weighted_sup;
use crate::bound::Upper;
use crate::interval::Interval;
use crate::lu::{inverse, product, residual, row_norm};
use crate::round::{centre_radius, gamma, tiny};

/// The bound `theta < 1` and the vector it belongs to, or the bound that failed.
pub(crate) fn bound(matrix: &[f64], slopes: &[Interval], rounds: usize) -> Result<(f64, Vec<f64>), f64> {
    let n = slopes.len();
    let (centres, radii): (Vec<f64>, Vec<f64>) = slopes.iter().map(|s| centre_radius(s.lo, s.hi)).unzip();
    let magnitudes = transfer(matrix, &centres).ok_or(f64::INFINITY)?;
    let operator = Operator::dense(n, magnitudes).map_err(|_| f64::INFINITY)?;
    let mut v = vec![1.0; n];
    let theta = weighted_sup::search(&operator, &radii, &mut v, rounds);
    if theta < 1.0 { Ok((theta, v)) } else { Err(theta) }
}

/// An upper bound of `|W (I - Dc W)^-1|`, entry by entry.
pub(crate) fn transfer(matrix: &[f64], centres: &[f64]) -> Option<Vec<f64>> {
    let n = centres.len();
    // A = I - Dc W in floating point; its distance from the exact one is part of the residual bound below.
    let mut a: Vec<f64> = (0..n * n).map(|k| -centres[k / n] * matrix[k]).collect();
    let mut slack = Upper::ZERO;
    for (i, row) in a.chunks_exact_mut(n).enumerate() {
        row[i] += 1.0;
        slack = slack.max(Upper::new(row.iter().map(|x| x.abs()).sum::<f64>() + 2.0));
    }
    let inverse = inverse(&a, n)?;
    // E = I - C A; ||E|| in the norm of largest absolute row sums, with the rounding of A itself.
    let rounding = gamma(4) * row_norm(&inverse, n).get() * slack.get() * (1.0 + gamma(4 * n));
    let epsilon = (residual(&inverse, &a, n) + Upper::new(rounding)).get();
    if !(epsilon < 0.5) {
        return None;
    }
    // A^-1 - C = (I - E)^-1 E C, so column j of it is at most eps/(1 - eps) times the largest entry of column j of C.
    let share = (epsilon / (1.0 - epsilon)).next_up().next_up();
    let column_tops: Vec<f64> =
        (0..n).map(|j| Upper::largest((0..n).map(|i| inverse[i * n + j].abs())).get()).collect();
    let mut wc = product(matrix, &inverse, n);
    for i in 0..n {
        let row_sum = matrix[i * n..][..n].iter().map(|w| w.abs()).sum::<f64>() * (1.0 + gamma(n + 2));
        for j in 0..n {
            let rounding = gamma(n + 4) * row_sum * column_tops[j] + tiny(n + 1);
            let inexact = share * row_sum * column_tops[j];
            wc[i * n + j] = (wc[i * n + j].abs() + (rounding + inexact) * (1.0 + gamma(8))).next_up();
        }
    }
    Some(wc)
}
