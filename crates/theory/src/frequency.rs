//! Convolutions frequency by frequency: `||W||_2` and `lambda_max(sym W)` bounded by the channel matrices `K^(f)`.
//!
//! A circular convolution is block diagonal in the Fourier basis, with one `channels x channels` block per frequency. A
//! zero-padded one is a compression of the circular one on a torus with one more row and column, so the same maxima, over the
//! frequencies of that torus, bound it from above. Opposite frequencies have conjugate blocks: half of them suffice.
//!
//! Eight frequencies are factorised at once, one per vector lane: every operation is a full vector operation whatever
//! the number of channels.

use crate::cholesky::MOST_BISECTIONS;
use crate::operator::{Conv, Padding};
use crate::round::{gamma, tiny, vectorised};

/// Frequencies handled together.
const LANES: usize = 8;
type Lane = [f64; LANES];

/// What is lost, relative to the size of a term, by the angle, its sine and cosine, and the few products and sums.
const TERM_ERROR: f64 = 1e-14;

/// Half of the offsets of a 3x3 kernel other than the centre, as (row, column).
const HALF: [(isize, isize); 4] = [(0, 1), (1, -1), (1, 0), (1, 1)];

/// The angles `(row, column)` of one frequency of every conjugate pair.
fn frequencies(conv: &Conv) -> Vec<(f64, f64)> {
    let border = usize::from(conv.padding() == Padding::Zero);
    let (rows, columns) = (conv.height() + border, conv.width() + border);
    let angle = |k: usize, n: usize| std::f64::consts::TAU * k as f64 / n as f64;
    let mut half = Vec::new();
    for r in 0..rows {
        for c in 0..columns {
            let opposite = ((rows - r) % rows, (columns - c) % columns);
            if (r, c) <= opposite {
                half.push((angle(r, rows), angle(c, columns)));
            }
        }
    }
    half
}

/// Eight Hermitian matrices, the lower triangles of which are stored lane by lane: entry `(i, j)`, `j <= i`, at
/// `i (i + 1)/2 + j`.
struct Batch {
    n: usize,
    re: Vec<Lane>,
    im: Vec<Lane>,
}

impl Batch {
    fn new(n: usize) -> Batch {
        let entries = n * (n + 1) / 2;
        Batch { n, re: vec![[0.0; LANES]; entries], im: vec![[0.0; LANES]; entries] }
    }
}

/// A map from frequencies to Hermitian matrices whose positive definiteness is in question.
trait Symbols: Sync {
    /// Writes the matrices of eight frequencies.
    fn fill(&self, angles: &[(f64, f64); LANES], batch: &mut Batch);
    /// A bound of the 2-norm of (matrix meant - matrix written).
    fn uncertainty(&self) -> f64;
}

/// Whether every matrix is positive definite at every frequency; stops at the first that is not.
fn all_positive_definite(conv: &Conv, symbols: &impl Symbols) -> bool {
    let angles = frequencies(conv);
    let n = conv.channels();
    let mut batch = Batch::new(n);
    let uncertainty = symbols.uncertainty();
    // A stride through the frequencies, so that a failure in one region is met early.
    let batches = angles.len().div_ceil(LANES);
    (0..batches).all(|start| {
        let mut chosen = [(0.0, 0.0); LANES];
        for (lane, angle) in chosen.iter_mut().enumerate() {
            *angle = angles[(start + lane * batches).min(angles.len() - 1)];
        }
        vectorised(
            #[inline(always)]
            || {
                symbols.fill(&chosen, &mut batch);
                shift_diagonal(&mut batch, uncertainty);
                factorise(&mut batch)
            },
        )
    })
}

/// Subtracts what rounding may have hidden: as in the real case, with the error of complex products (each is two
/// real sums of two products, so an inner product of length `n` is a real one of length `2 n`).
#[inline(always)]
fn shift_diagonal(batch: &mut Batch, uncertainty: f64) {
    let n = batch.n;
    let mut trace = [0.0; LANES];
    for i in 0..n {
        let diagonal = &batch.re[i * (i + 1) / 2 + i];
        for l in 0..LANES {
            trace[l] += diagonal[l].abs();
        }
    }
    for i in 0..n {
        let diagonal = &mut batch.re[i * (i + 1) / 2 + i];
        for l in 0..LANES {
            let shift = uncertainty + 4.0 * gamma(2 * n + 8) * trace[l] + tiny(4 * n * n);
            diagonal[l] = (diagonal[l] - shift.next_up()).next_down();
        }
    }
}

/// Cholesky `H = L L^*` in place; `false` as soon as a pivot of any lane is not positive.
#[inline(always)]
fn factorise(batch: &mut Batch) -> bool {
    let n = batch.n;
    for j in 0..n {
        let row_j = j * (j + 1) / 2;
        // Pivot: the diagonal minus the squared length of the row so far.
        let mut pivot = batch.re[row_j + j];
        for k in 0..j {
            let (re, im) = (&batch.re[row_j + k], &batch.im[row_j + k]);
            for l in 0..LANES {
                pivot[l] -= re[l] * re[l] + im[l] * im[l];
            }
        }
        if !pivot.iter().all(|p| *p > 0.0 && p.is_finite()) {
            return false;
        }
        let mut scale = [0.0; LANES];
        for l in 0..LANES {
            scale[l] = 1.0 / pivot[l].sqrt();
        }
        // The column below it, four rows at a time: each entry of row j is loaded once for four rows.
        let mut i = j + 1;
        while i + 4 <= n {
            column_entries::<4>(batch, i, j, &scale);
            i += 4;
        }
        while i < n {
            column_entries::<1>(batch, i, j, &scale);
            i += 1;
        }
    }
    true
}

/// `L[i][j]` for `ROWS` consecutive `i`: `(H_ij - sum_k L_ik conj(L_jk)) / L_jj`.
#[inline(always)]
fn column_entries<const ROWS: usize>(batch: &mut Batch, i: usize, j: usize, scale: &Lane) {
    let row_j = j * (j + 1) / 2;
    let starts: [usize; ROWS] = std::array::from_fn(|r| (i + r) * (i + r + 1) / 2);
    let mut re: [Lane; ROWS] = std::array::from_fn(|r| batch.re[starts[r] + j]);
    let mut im: [Lane; ROWS] = std::array::from_fn(|r| batch.im[starts[r] + j]);
    {
        let (cr, ci) = (&batch.re[row_j..][..j], &batch.im[row_j..][..j]);
        let rows_re: [&[Lane]; ROWS] = std::array::from_fn(|r| &batch.re[starts[r]..][..j]);
        let rows_im: [&[Lane]; ROWS] = std::array::from_fn(|r| &batch.im[starts[r]..][..j]);
        for k in 0..j {
            for r in 0..ROWS {
                let (a, b) = (&rows_re[r][k], &rows_im[r][k]);
                for l in 0..LANES {
                    re[r][l] -= a[l] * cr[k][l] + b[l] * ci[k][l];
                    im[r][l] -= b[l] * cr[k][l] - a[l] * ci[k][l];
                }
            }
        }
    }
    for r in 0..ROWS {
        for l in 0..LANES {
            re[r][l] *= scale[l];
            im[r][l] *= scale[l];
        }
        batch.re[starts[r] + j] = re[r];
        batch.im[starts[r] + j] = im[r];
    }
}

/// The Hermitian part of the blocks, `sym K^(f) = A_0 + sum_d cos(d f) C_d + i sin(d f) D_d` with real symmetric `C_d` and
/// antisymmetric `D_d`, in the combination `diagonal I - weight sym K`.
struct HermitianPart {
    diagonal: f64,
    /// Per entry of the lower triangle: `A_0`, the four `C_d`, the four `D_d`, all times `-weight`.
    coefficients: Vec<[f64; 9]>,
    uncertainty: f64,
    n: usize,
}

impl HermitianPart {
    fn new(conv: &Conv, diagonal: f64, weight: f64) -> HermitianPart {
        let n = conv.channels();
        let tap = |o: usize, i: usize, (dr, dc): (isize, isize)| {
            conv.taps(o, i)[((dr + 1) * 3 + dc + 1).unsigned_abs()]
        };
        let mut coefficients = Vec::with_capacity(n * (n + 1) / 2);
        for o in 0..n {
            for i in 0..=o {
                let mut c = [0.0; 9];
                c[0] = -weight * 0.5 * (tap(o, i, (0, 0)) + tap(i, o, (0, 0)));
                for (k, &(dr, dc)) in HALF.iter().enumerate() {
                    let forth = 0.5 * (tap(o, i, (dr, dc)) + tap(i, o, (-dr, -dc)));
                    let back = 0.5 * (tap(i, o, (dr, dc)) + tap(o, i, (-dr, -dc)));
                    c[1 + k] = -weight * (forth + back);
                    c[5 + k] = -weight * (forth - back);
                }
                coefficients.push(c);
            }
        }
        // Largest absolute row sum of all terms, for the error of each.
        let row = |o: usize| -> f64 {
            let pair = |i: usize| conv.taps(o, i).iter().chain(conv.taps(i, o)).map(|t| t.abs()).sum::<f64>();
            (0..n).map(pair).sum()
        };
        let magnitude = weight.abs() * (0..n).map(row).fold(0.0, f64::max) + diagonal.abs();
        HermitianPart { diagonal, coefficients, uncertainty: 2.0 * TERM_ERROR * magnitude, n }
    }
}

impl Symbols for HermitianPart {
    #[inline(always)]
    fn fill(&self, angles: &[(f64, f64); LANES], batch: &mut Batch) {
        let (mut cosines, mut sines) = ([[0.0; LANES]; 4], [[0.0; LANES]; 4]);
        for (k, &(dr, dc)) in HALF.iter().enumerate() {
            for (l, &(row, column)) in angles.iter().enumerate() {
                let phase = dr as f64 * row + dc as f64 * column;
                (sines[k][l], cosines[k][l]) = phase.sin_cos();
            }
        }
        for ((c, re), im) in self.coefficients.iter().zip(&mut batch.re).zip(&mut batch.im) {
            for l in 0..LANES {
                re[l] = c[0]
                    + (c[1] * cosines[0][l] + c[2] * cosines[1][l])
                    + (c[3] * cosines[2][l] + c[4] * cosines[3][l]);
                im[l] = (c[5] * sines[0][l] + c[6] * sines[1][l]) + (c[7] * sines[2][l] + c[8] * sines[3][l]);
            }
        }
        for i in 0..self.n {
            for re in &mut batch.re[i * (i + 1) / 2 + i] {
                *re += self.diagonal;
            }
        }
    }

    fn uncertainty(&self) -> f64 {
        self.uncertainty
    }
}

/// `diagonal I + skew (K + K^*) - weight K^* K`, the matrix behind norms (`skew = 0`) and splitting factors.
struct Gram<'a> {
    conv: &'a Conv,
    diagonal: f64,
    skew: f64,
    weight: f64,
    uncertainty: f64,
}

impl<'a> Gram<'a> {
    fn new(conv: &'a Conv, diagonal: f64, skew: f64, weight: f64) -> Gram<'a> {
        let n = conv.channels();
        let sums = |o: usize, i: usize| conv.taps(o, i).iter().map(|t| t.abs()).sum::<f64>();
        // ||K||_1 and ||K||_inf bound the row sums of |K^*||K|.
        let rows = (0..n).map(|o| (0..n).map(|i| sums(o, i)).sum::<f64>()).fold(0.0, f64::max);
        let columns = (0..n).map(|i| (0..n).map(|o| sums(o, i)).sum::<f64>()).fold(0.0, f64::max);
        let products = weight.abs() * rows * columns;
        let error = (4.0 * TERM_ERROR + gamma(2 * n + 16)) * products
            + 2.0 * TERM_ERROR * (skew.abs() * (rows + columns) + diagonal.abs());
        Gram { conv, diagonal, skew, weight, uncertainty: 2.0 * error }
    }
}

impl Symbols for Gram<'_> {
    #[inline(always)]
    fn fill(&self, angles: &[(f64, f64); LANES], batch: &mut Batch) {
        let n = self.conv.channels();
        let (mut cosines, mut sines) = ([[0.0; LANES]; 9], [[0.0; LANES]; 9]);
        for t in 0..9 {
            let (dr, dc) = ((t / 3) as f64 - 1.0, (t % 3) as f64 - 1.0);
            for (l, &(row, column)) in angles.iter().enumerate() {
                (sines[t][l], cosines[t][l]) = (dr * row + dc * column).sin_cos();
            }
        }
        // Column i of K as row i, so that entries of K^* K are inner products of rows.
        let (mut re, mut im) = (vec![[0.0; LANES]; n * n], vec![[0.0; LANES]; n * n]);
        for i in 0..n {
            for o in 0..n {
                let taps = self.conv.taps(o, i);
                let (re, im) = (&mut re[i * n + o], &mut im[i * n + o]);
                for t in 0..9 {
                    for l in 0..LANES {
                        re[l] += taps[t] * cosines[t][l];
                        im[l] += taps[t] * sines[t][l];
                    }
                }
            }
        }
        for i in 0..n {
            for j in 0..=i {
                // (K^* K)_ij = sum_o conj(K_oi) K_oj.
                let (mut sum_re, mut sum_im) = ([0.0; LANES], [0.0; LANES]);
                let (a_re, a_im) = (&re[i * n..][..n], &im[i * n..][..n]);
                let (b_re, b_im) = (&re[j * n..][..n], &im[j * n..][..n]);
                for o in 0..n {
                    for l in 0..LANES {
                        sum_re[l] += a_re[o][l] * b_re[o][l] + a_im[o][l] * b_im[o][l];
                        sum_im[l] += a_re[o][l] * b_im[o][l] - a_im[o][l] * b_re[o][l];
                    }
                }
                // (K + K^*)_ij = K_ij + conj(K_ji); row i holds column i.
                let entry = i * (i + 1) / 2 + j;
                for l in 0..LANES {
                    let diagonal = if i == j { self.diagonal } else { 0.0 };
                    let both_re = re[j * n + i][l] + re[i * n + j][l];
                    let both_im = im[j * n + i][l] - im[i * n + j][l];
                    batch.re[entry][l] = diagonal + self.skew * both_re - self.weight * sum_re[l];
                    batch.im[entry][l] = self.skew * both_im - self.weight * sum_im[l];
                }
            }
        }
    }

    fn uncertainty(&self) -> f64 {
        self.uncertainty
    }
}

/// Whether `I / slope - sym W` is positive definite, by all frequencies: T3 with `D = slope I`, `P = I`.
pub(crate) fn is_monotone(conv: &Conv, slope: f64) -> bool {
    exceeds(conv, 1.0, slope)
}

/// Whether `level I - weight sym W` is certainly positive definite.
pub(crate) fn exceeds(conv: &Conv, level: f64, weight: f64) -> bool {
    all_positive_definite(conv, &HermitianPart::new(conv, level, weight))
}

/// Whether `diagonal I + skew (W + W^T) - weight W^T W` is certainly positive definite.
pub(crate) fn gram_exceeds(conv: &Conv, diagonal: f64, skew: f64, weight: f64) -> bool {
    all_positive_definite(conv, &Gram::new(conv, diagonal, skew, weight))
}

/// The norms that [`norm_bound`] tries: failures are found early, so that trying small ones first costs little.
const NORM_LADDER: [f64; 8] = [0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.999];

/// The first rung of a ladder below one that certainly bounds `slope ||W||_2`.
pub(crate) fn norm_bound(conv: &Conv, slope: f64) -> Option<f64> {
    if !slope.is_finite() {
        return None;
    }
    // The last rung decides; the others only sharpen the factor. `1 - 4 u` makes up for squaring the rung.
    let below =
        |rung: f64| gram_exceeds(conv, rung * rung * (1.0 - f64::EPSILON), 0.0, (slope * slope).next_up());
    let top = NORM_LADDER.len() - 1;
    if !below(NORM_LADDER[top]) {
        return None;
    }
    NORM_LADDER[..top].iter().copied().find(|&rung| below(rung)).or(Some(NORM_LADDER[top]))
}

/// An upper bound of `lambda_max(sym W)` within about `tolerance`, relative to the size of the kernel.
#[must_use]
pub fn largest_symmetric_eigenvalue(conv: &Conv, tolerance: f64) -> f64 {
    let n = conv.channels();
    let pair =
        |o: usize, i: usize| conv.taps(o, i).iter().chain(conv.taps(i, o)).map(|t| t.abs()).sum::<f64>();
    let span = (0..n).map(|o| 0.5 * (0..n).map(|i| pair(o, i)).sum::<f64>()).fold(0.0, f64::max)
        * (1.0 + 1e-9)
        + f64::MIN_POSITIVE;
    let (mut known, mut refuted) = (span, -span);
    for _ in 0..MOST_BISECTIONS {
        if known - refuted <= tolerance * span {
            break;
        }
        let middle = 0.5 * (known + refuted);
        if exceeds(conv, middle, 1.0) {
            known = middle;
        } else {
            refuted = middle;
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::cholesky::Symmetric;
    use crate::operator::Operator;

    fn random(padding: Padding, seed: u64) -> Operator {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let kernel = (0..2 * 2 * 9).map(|_| rng.random_range(-0.2..0.2)).collect();
        Operator::conv(2, 4, 5, padding, kernel).unwrap()
    }

    /// The same bounds from the dense matrix: exact for a torus, not above for zero padding.
    #[test]
    fn frequencies_give_the_eigenvalues_of_the_dense_matrix() {
        for seed in 0..20 {
            for padding in [Padding::Circular, Padding::Zero] {
                let operator = random(padding, seed);
                let n = operator.len();
                let matrix = operator.to_dense(100).unwrap();
                let negative = Symmetric::from_fn(n, 4, |i, j| {
                    let sum = -0.5 * (matrix[i * n + j] + matrix[j * n + i]);
                    (sum, sum.abs())
                });
                let dense = -negative.least_eigenvalue(1e-9).unwrap();
                let conv = operator.as_conv().unwrap();
                let by_frequency = largest_symmetric_eigenvalue(conv, 1e-9);
                assert!(by_frequency >= dense - 1e-6, "{by_frequency} {dense}");
                if padding == Padding::Circular {
                    assert!(by_frequency <= dense + 1e-6, "{by_frequency} {dense}");
                }
            }
        }
    }

    #[test]
    fn norms_agree_with_the_dense_matrix() {
        for seed in 0..20 {
            let operator = random(Padding::Circular, seed);
            let matrix = operator.to_dense(100).unwrap();
            let ones = vec![1.0; operator.len()];
            let dense = crate::closing::two_norm::bound(&matrix, &ones, &ones);
            let found = norm_bound(operator.as_conv().unwrap(), 1.0);
            match (dense, found) {
                (Some(dense), Some(found)) => {
                    assert!(found > dense - 1e-3, "{found} {dense}");
                    assert!(NORM_LADDER.iter().all(|&rung| rung >= found || rung < dense));
                }
                (None, found) => assert!(found.is_none()),
                (Some(dense), None) => assert!(dense > 0.998, "{dense}"),
            }
        }
    }
}
