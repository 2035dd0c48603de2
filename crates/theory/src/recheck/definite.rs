//! Positive definiteness by congruence, without any error analysis of a factorisation: with a nonsingular triangular `L`
//! near the inverse of the Cholesky factor, `X` is positive definite if `L X L^T` is within the identity's Gershgorin discs.

use super::rows;
use crate::operator::{Conv, Operator, Padding};

/// The most unknowns of a dense re-check.
const LIMIT: usize = 1024;

/// A symmetric matrix, entries wrong by at most `error` each.
pub(super) struct Uncertain {
    pub(super) n: usize,
    pub(super) entries: Vec<f64>,
    pub(super) error: f64,
}

/// Whether the matrix meant is certainly positive definite.
pub(super) fn is_positive(x: &Uncertain) -> bool {
    let n = x.n;
    let Some(l) = inverse_factor(&x.entries, n) else { return false };
    // Y = L X L^T by plain sums; errors of both products and of X from the sums of absolute values.
    let mut lx = vec![0.0; n * n];
    for i in 0..n {
        for k in 0..=i {
            let factor = l[i * n + k];
            for j in 0..n {
                lx[i * n + j] += factor * x.entries[k * n + j];
            }
        }
    }
    let units = 4.0 * (n as f64 + 4.0) * f64::EPSILON;
    // Sums of |L|^T over columns: c_j = sum_i |L_ij|, needed for the row sums of |L| E |L|^T.
    let column_sums: Vec<f64> = (0..n).map(|j| (0..n).map(|i| l[i * n + j].abs()).sum()).collect();
    let x_times_columns: Vec<f64> = (0..n)
        .map(|k| (0..n).map(|j| (units * x.entries[k * n + j].abs() + x.error) * column_sums[j]).sum())
        .collect();
    (0..n).all(|i| {
        let mut off = 0.0;
        for j in 0..n {
            let y: f64 = (0..=j).map(|k| lx[i * n + k] * l[j * n + k]).sum();
            off += (y - f64::from(i == j)).abs();
        }
        let error: f64 = (0..=i).map(|k| l[i * n + k].abs() * x_times_columns[k]).sum();
        (off + error) * (1.0 + units) < 1.0
    })
}

/// The inverse of the lower Cholesky factor, approximately.
fn inverse_factor(x: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut c = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let sum: f64 = (0..j).map(|k| c[i * n + k] * c[j * n + k]).sum();
            let rest = x[i * n + j] - sum;
            if i == j {
                if !(rest > 0.0) {
                    return None;
                }
                c[i * n + i] = rest.sqrt();
            } else {
                c[i * n + j] = rest / c[j * n + j];
            }
        }
    }
    let mut l = vec![0.0; n * n];
    for j in 0..n {
        l[j * n + j] = 1.0 / c[j * n + j];
        for i in j + 1..n {
            let sum: f64 = (j..i).map(|k| c[i * n + k] * l[k * n + j]).sum();
            l[i * n + j] = -sum / c[i * n + i];
        }
    }
    l.iter().all(|x| x.is_finite()).then_some(l)
}

/// The matrix of an operator, row major.
pub(super) fn matrix(operator: &Operator, absolute: bool) -> Option<Vec<f64>> {
    let n = operator.len();
    if n > LIMIT {
        return None;
    }
    let mut matrix = vec![0.0; n * n];
    for i in 0..n {
        for (j, w) in rows::row(operator, i, absolute) {
            matrix[i * n + j] = w;
        }
    }
    Some(matrix)
}

/// Whether `diagonal I + skew (W + W^T) - weight W^T W` is certainly positive definite, for the operator or, if it is a
/// convolution, for all blocks of the circular one that it is a compression of.
pub(super) fn form_is_positive(
    operator: &Operator,
    absolute: bool,
    diagonal: f64,
    skew: f64,
    weight: f64,
) -> Option<bool> {
    if let Operator::Conv(conv) = operator {
        // An entry of a block is the sum of as many weights as there are taps.
        let largest = (conv.side() * conv.side()) as f64 * largest_size(conv.kernel());
        return Some(blocks(conv, absolute).iter().all(|block| {
            let n = 2 * conv.channels();
            is_positive(&quadratic_form(block, n, (diagonal, skew, weight), BLOCK_ERROR, largest))
        }));
    }
    let matrix = matrix(operator, absolute)?;
    let largest = largest_size(&matrix);
    Some(is_positive(&quadratic_form(&matrix, operator.len(), (diagonal, skew, weight), 0.0, largest)))
}

/// Relative error of the entries of a frequency block: angles, sines and at most 25 products.
const BLOCK_ERROR: f64 = 3e-14;

fn largest_size(weights: &[f64]) -> f64 {
    weights.iter().fold(0.0, |m: f64, x| m.max(x.abs()))
}

/// The form of a matrix whose entries are wrong by at most `relative * largest`, `largest` not below any of them.
fn quadratic_form(
    w: &[f64],
    n: usize,
    (diagonal, skew, weight): (f64, f64, f64),
    relative: f64,
    largest: f64,
) -> Uncertain {
    let mut entries = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            let product: f64 =
                if weight == 0.0 { 0.0 } else { (0..n).map(|k| w[k * n + i] * w[k * n + j]).sum() };
            let d = if i == j { diagonal } else { 0.0 };
            entries[i * n + j] = d + skew * (w[i * n + j] + w[j * n + i]) - weight * product;
        }
    }
    let units = relative + (n as f64 + 8.0) * f64::EPSILON;
    let size = diagonal.abs() + 2.0 * skew.abs() * largest + weight.abs() * n as f64 * largest * largest;
    Uncertain { n, entries, error: 4.0 * units * size }
}

/// The blocks `K^(f)` of every frequency as real matrices `[[Re, -Im], [Im, Re]]` of twice the size.
fn blocks(conv: &Conv, absolute: bool) -> Vec<Vec<f64>> {
    let (c, side) = (conv.channels(), conv.side());
    let taps = side * side;
    let border = usize::from(conv.padding() == Padding::Zero);
    let (rows, columns) = (conv.height() + border, conv.width() + border);
    let mut blocks = Vec::new();
    // Opposite frequencies have conjugate blocks: the upper half of the rows meets one of each pair.
    for r in 0..=rows / 2 {
        for q in 0..columns {
            let mut block = vec![0.0; 4 * c * c];
            let centre = (side / 2) as f64;
            for o in 0..c {
                for i in 0..c {
                    let (mut re, mut im) = (0.0, 0.0);
                    for tap in 0..taps {
                        let weight = conv.kernel()[(o * c + i) * taps + tap];
                        let weight = if absolute { weight.abs() } else { weight };
                        let (down, right) = ((tap / side) as f64 - centre, (tap % side) as f64 - centre);
                        let turns = down * r as f64 / rows as f64 + right * q as f64 / columns as f64;
                        let angle = std::f64::consts::TAU * turns;
                        re += weight * angle.cos();
                        im += weight * angle.sin();
                    }
                    block[o * 2 * c + i] = re;
                    block[(o + c) * 2 * c + i + c] = re;
                    block[o * 2 * c + i + c] = -im;
                    block[(o + c) * 2 * c + i] = im;
                }
            }
            blocks.push(block);
        }
    }
    blocks
}
