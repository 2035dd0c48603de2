//! Positive definiteness by congruence, without any error analysis of a factorisation: with a nonsingular triangular `L`
//! near the inverse of the Cholesky factor, `X` is positive definite if `L X L^T` is within the identity's Gershgorin discs.

use subdeq_map::{Conv, Operator, Padding};

use crate::bound::Upper;
use crate::round::{dot, vectorised};

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
    let inverse = vectorised(
        #[inline(always)]
        || inverse_factor(&x.entries, n),
    );
    let Some(l) = inverse else { return false };
    vectorised(
        #[inline(always)]
        || is_near_identity(x, &l),
    )
}

/// Whether `L X L^T` lies within the identity's Gershgorin discs, by plain sums; errors of both products and of `X` from the sums
/// of absolute values.
#[inline(always)]
fn is_near_identity(x: &Uncertain, l: &[f64]) -> bool {
    let n = x.n;
    // Rows of L X up to the diagonal: what the lower half of L X L^T needs, and the other half is the same.
    let mut lx = vec![0.0; n * n];
    for (i, lx) in lx.chunks_exact_mut(n).enumerate() {
        let lx = &mut lx[..=i];
        for k in 0..=i {
            let factor = l[i * n + k];
            for (lx, x) in lx.iter_mut().zip(&x.entries[k * n..][..=i]) {
                *lx += factor * x;
            }
        }
    }
    let units = 4.0 * (n as f64 + 4.0) * f64::EPSILON;
    // Sums of |L|^T over columns: c_j = sum_i |L_ij|, needed for the row sums of |L| E |L|^T.
    let mut column_sums = vec![0.0; n];
    for row in l.chunks_exact(n) {
        column_sums.iter_mut().zip(row).for_each(|(sum, l)| *sum += l.abs());
    }
    let x_times_columns: Vec<f64> = (0..n)
        .map(|k| (0..n).map(|j| (units * x.entries[k * n + j].abs() + x.error) * column_sums[j]).sum())
        .collect();
    let mut off_diagonal = vec![0.0; n];
    for i in 0..n {
        for j in 0..=i {
            let y = dot(&lx[i * n..][..=j], &l[j * n..][..=j]);
            let off = (y - f64::from(i == j)).abs();
            off_diagonal[i] += off;
            if j < i {
                off_diagonal[j] += off;
            }
        }
    }
    (0..n).all(|i| {
        let off = off_diagonal[i];
        let error: f64 = (0..=i).map(|k| l[i * n + k].abs() * x_times_columns[k]).sum();
        Upper::new((off + error) * (1.0 + units)).get() < 1.0
    })
}

/// The inverse of the lower Cholesky factor, approximately.
#[inline(always)]
fn inverse_factor(x: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut c = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let sum = dot(&c[i * n..][..j], &c[j * n..][..j]);
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
    // Row i of the inverse from the rows above it: c_ii l_i = e_i - sum_k c_ik l_k.
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        let (above, row) = l.split_at_mut(i * n);
        let row = &mut row[..n];
        for (k, above) in above.chunks_exact(n).enumerate() {
            let factor = c[i * n + k];
            row[..=k].iter_mut().zip(&above[..=k]).for_each(|(row, above)| *row -= factor * above);
        }
        row[i] = 1.0;
        let scale = 1.0 / c[i * n + i];
        row[..=i].iter_mut().for_each(|x| *x *= scale);
    }
    l.iter().all(|x| x.is_finite()).then_some(l)
}

/// The matrix of an operator, row major.
pub(super) fn matrix(operator: &Operator) -> Option<Vec<f64>> {
    operator.to_dense(LIMIT)
}

/// Whether `diagonal I + skew (W + W^T) - weight W^T W` is certainly positive definite, for the operator or, if it is a
/// convolution, for all blocks of the circular one that it is a compression of.
pub(super) fn form_is_positive(operator: &Operator, diagonal: f64, skew: f64, weight: f64) -> Option<bool> {
    if let Operator::Conv(conv) = operator {
        // An entry of a block is a sum of the taps of a pair of channels, each turned.
        let taps = conv.tap_count();
        let sizes = conv.kernel().chunks_exact(taps).map(|pair| pair.iter().map(|w| w.abs()).sum::<f64>());
        let largest = Upper::largest(sizes).get() * (1.0 + (taps + 4) as f64 * f64::EPSILON);
        return Some(blocks(conv).iter().all(|block| {
            let n = 2 * conv.channels();
            is_positive(&quadratic_form(block, n, (diagonal, skew, weight), BLOCK_ERROR, largest))
        }));
    }
    let matrix = matrix(operator)?;
    let largest = largest_size(&matrix);
    Some(is_positive(&quadratic_form(&matrix, operator.len(), (diagonal, skew, weight), 0.0, largest)))
}

/// Relative error of the entries of a frequency block: angles (of at most six turns), sines and at most 81 products.
const BLOCK_ERROR: f64 = 4e-14;

fn largest_size(weights: &[f64]) -> f64 {
    Upper::largest(weights.iter().map(|w| w.abs())).get()
}

/// The form of a matrix whose entries are wrong by at most `relative * largest`, `largest` not below any of them.
fn quadratic_form(
    w: &[f64],
    n: usize,
    (diagonal, skew, weight): (f64, f64, f64),
    relative: f64,
    largest: f64,
) -> Uncertain {
    let mut products = vec![0.0; n * n];
    if weight != 0.0 {
        vectorised(
            #[inline(always)]
            || add_gram(w, n, &mut products),
        );
    }
    let mut entries = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            let d = if i == j { diagonal } else { 0.0 };
            entries[i * n + j] = d + skew * (w[i * n + j] + w[j * n + i]) - weight * products[i * n + j];
        }
    }
    let units = relative + (n as f64 + 8.0) * f64::EPSILON;
    let size = diagonal.abs() + 2.0 * skew.abs() * largest + weight.abs() * n as f64 * largest * largest;
    Uncertain { n, entries, error: 4.0 * units * size }
}

/// `out = M^T M` where it was zero, one row of `M` after the other; the lower half is a copy of the upper one.
#[inline(always)]
pub(super) fn add_gram(m: &[f64], n: usize, out: &mut [f64]) {
    for row in m.chunks_exact(n) {
        for (i, (&x, out)) in row.iter().zip(out.chunks_exact_mut(n)).enumerate() {
            out[i..].iter_mut().zip(&row[i..]).for_each(|(out, y)| *out += x * y);
        }
    }
    for i in 0..n {
        for j in 0..i {
            out[i * n + j] = out[j * n + i];
        }
    }
}

/// The blocks `K^(f)` of every frequency as real matrices `[[Re, -Im], [Im, Re]]` of twice the size.
fn blocks(conv: &Conv) -> Vec<Vec<f64>> {
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
            let turned: Vec<(f64, f64)> = (0..taps)
                .map(|tap| {
                    let (down, right) = ((tap / side) as f64 - centre, (tap % side) as f64 - centre);
                    let turns = down * r as f64 / rows as f64 + right * q as f64 / columns as f64;
                    let angle = std::f64::consts::TAU * turns;
                    (angle.cos(), angle.sin())
                })
                .collect();
            for o in 0..c {
                for i in 0..c {
                    let (mut re, mut im) = (0.0, 0.0);
                    for (weight, (cos, sin)) in conv.taps(o, i).iter().zip(&turned) {
                        re += weight * cos;
                        im += weight * sin;
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
