//! Bounds of `||X||_2` of matrices and convolutions that need not be square: the gains of what lies between equilibria.

use crate::cholesky::Symmetric;
use crate::round::{UNIT_ROUNDOFF, dot, gamma};

/// How near to the truth a bound of a matrix is.
const TOLERANCE: f64 = 1e-9;

/// An upper bound of `||X||_2` of a matrix, row major, within about a billionth of its size: the least `t` found for which
/// `t I - X X^T` (or `t I - X^T X`, if that is smaller) is shown to be positive definite. Infinite where nothing is shown.
///
/// ```
/// use subdeq_theory::norm::matrix_norm;
/// let bound = matrix_norm(2, 3, &[3.0, 0.0, 0.0, 0.0, 0.0, -4.0]);
/// assert!(bound >= 4.0 && bound < 4.000_001);
/// ```
///
/// # Panics
/// Where there are not `rows * columns` numbers.
#[must_use]
pub fn matrix_norm(rows: usize, columns: usize, matrix: &[f64]) -> f64 {
    assert_eq!(matrix.len(), rows * columns, "a matrix of {rows} x {columns}");
    let transposed;
    let (n, length, matrix) = if rows <= columns {
        (rows, columns, matrix)
    } else {
        transposed = (0..matrix.len()).map(|at| matrix[at % rows * columns + at / rows]).collect::<Vec<_>>();
        (columns, rows, &transposed[..])
    };
    let row = |i: usize| &matrix[i * length..][..length];
    let sizes: Vec<f64> = (0..n).map(|i| dot(row(i), row(i)).sqrt() * (1.0 + gamma(length + 4))).collect();
    // |x| |y| bounds the sum of the absolute products (Cauchy and Schwarz).
    let negative = Symmetric::from_fn(n, length + 8, |i, j| {
        (-dot(row(i), row(j)), sizes[i] * sizes[j] * (1.0 + gamma(8)))
    });
    match negative.least_eigenvalue(TOLERANCE) {
        Some(least) => (-least).max(0.0).sqrt().next_up(),
        None => f64::INFINITY,
    }
}

/// An upper bound, within about a billionth of its size, of the 2-norm of a convolution `kernel[output][input][row][column]` with an odd
/// `side`, on images of `height x width` that are continued by zeros: it is a compression of the circular one on a torus that is larger by
/// `side / 2`, which is block diagonal in the Fourier basis. Infinite where nothing is shown.
///
/// ```
/// use subdeq_theory::norm::convolution_norm;
/// let mean = [1.0 / 9.0; 9];
/// let bound = convolution_norm([1, 1, 3], [8, 8], &mean);
/// assert!(bound >= 1.0 && bound < 1.000_001);
/// ```
///
/// # Panics
/// Where there are not `outputs * inputs * side * side` numbers.
#[must_use]
pub fn convolution_norm(
    [outputs, inputs, side]: [usize; 3],
    [height, width]: [usize; 2],
    kernel: &[f64],
) -> f64 {
    assert_eq!(
        kernel.len(),
        outputs * inputs * side * side,
        "kernels of {side} x {side} from {inputs} to {outputs}"
    );
    let products = Products::of([outputs, inputs, side], kernel);
    let (rows, columns) = (height + side / 2, width + side / 2);
    let frequencies = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
    // Opposite frequencies have conjugate blocks.
    let half = frequencies.filter(|&(r, c)| (r, c) <= ((rows - r) % rows, (columns - c) % columns));
    let mut square: f64 = 0.0;
    for (row, column) in half {
        let negative = products.negative_at([row, column], [rows, columns]);
        if !negative.exceeds(-square) {
            match negative.least_eigenvalue(TOLERANCE) {
                Some(least) => square = square.max(-least),
                None => return f64::INFINITY,
            }
        }
    }
    square.max(0.0).sqrt().next_up()
}

/// What is lost, relative to the size of a term, by the angle (of at most two turns), its sine and cosine.
const PHASE_ERROR: f64 = 1e-14;

/// `K^* K` (or `K K^*`, if that is smaller) of the blocks of a convolution, as products of taps by the offset between them.
struct Products {
    n: usize,
    /// Largest offset, and offsets in a row.
    reach: usize,
    span: usize,
    /// `[i][j][offset]`: the sum of products of taps of channels `i` and `j` that are an offset apart; and of their magnitudes.
    sums: Vec<(f64, f64)>,
    /// Products in a sum, at most.
    terms: usize,
}

impl Products {
    fn of([outputs, inputs, side]: [usize; 3], kernel: &[f64]) -> Self {
        let (n, others) = (inputs.min(outputs), inputs.max(outputs));
        let taps = side * side;
        let tap = |i: usize, o: usize, t: usize| {
            let (output, input) = if inputs <= outputs { (o, i) } else { (i, o) };
            kernel[(output * inputs + input) * taps + t]
        };
        let (reach, span) = (side - 1, 2 * side - 1);
        let mut sums = vec![(0.0, 0.0); n * n * span * span];
        for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
            for (s, t) in (0..taps).flat_map(|s| (0..taps).map(move |t| (s, t))) {
                let (row, column) = (t / side + reach - s / side, t % side + reach - s % side);
                let sum = &mut sums[((i * n + j) * span + row) * span + column];
                for o in 0..others {
                    let product = tap(i, o, s) * tap(j, o, t);
                    *sum = (sum.0 + product, sum.1 + product.abs());
                }
            }
        }
        Self { n, reach, span, sums, terms: taps * others }
    }

    /// The negative block at a frequency of a torus, a Hermitian matrix `R + i S` as the real one `[R -S; S R]`.
    fn negative_at(&self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> Symmetric {
        let Self { n, reach, span, ref sums, terms } = *self;
        // Whole turns are left out exactly, so that the size of an offset does not matter.
        let turns = |at: usize, frequency: usize, length: usize| {
            let offset = at as isize - reach as isize;
            (offset * frequency as isize).rem_euclid(length as isize) as f64 / length as f64
        };
        let phase = |at: usize| {
            let both = turns(at / span, row, rows) + turns(at % span, column, columns);
            (std::f64::consts::TAU * both).sin_cos()
        };
        let phases: Vec<(f64, f64)> = (0..span * span).map(phase).collect();
        let entry = |i: usize, j: usize| {
            let of_pair = &sums[(i % n * n + j % n) * span * span..][..span * span];
            let mut total = (0.0, 0.0);
            for (&(sum, size), &(sine, cosine)) in of_pair.iter().zip(&phases) {
                let part = match (i < n, j < n) {
                    (true, false) => -sine,
                    (false, true) => sine,
                    _ => cosine,
                };
                total = (total.0 - sum * part, total.1 + size);
            }
            total
        };
        let phase_roundings = (PHASE_ERROR / UNIT_ROUNDOFF) as usize;
        Symmetric::from_fn(2 * n, 2 * terms + span * span + phase_roundings, entry)
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn random(len: usize, seed: u64) -> Vec<f64> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    /// `||X||_2` from below, by power iteration.
    fn reached(rows: usize, columns: usize, x: &[f64]) -> f64 {
        let mut v = random(columns, 9);
        let mut size = 0.0;
        for _ in 0..500 {
            let norm = v.iter().map(|v| v * v).sum::<f64>().sqrt();
            v.iter_mut().for_each(|v| *v /= norm);
            let u: Vec<f64> = (0..rows).map(|i| dot(&x[i * columns..][..columns], &v)).collect();
            size = u.iter().map(|u| u * u).sum::<f64>().sqrt();
            v = (0..columns).map(|j| (0..rows).map(|i| x[i * columns + j] * u[i]).sum()).collect();
        }
        size
    }

    #[test]
    fn bounds_of_matrices_are_tight_from_above() {
        for (rows, columns) in [(1, 1), (1, 7), (7, 1), (5, 9), (9, 5), (20, 20)] {
            let x = random(rows * columns, (rows * 31 + columns) as u64);
            let (bound, reached) = (matrix_norm(rows, columns, &x), reached(rows, columns, &x));
            assert!(
                bound >= reached && bound < reached * (1.0 + 1e-6),
                "{rows} x {columns}: {bound} {reached}"
            );
        }
        assert!(matrix_norm(3, 2, &[0.0; 6]) < 1e-100);
        assert!(matrix_norm(2, 1, &[f64::NAN, 0.0]).is_infinite());
    }

    #[test]
    fn bounds_of_convolutions_hold_for_their_matrices() {
        let (outputs, inputs, height, width) = (4, 2, 5, 6);
        let kernel = random(outputs * inputs * 9, 3);
        let (rows, columns) = (outputs * height * width, inputs * height * width);
        let mut matrix = vec![0.0; rows * columns];
        for (at, &tap) in kernel.iter().enumerate() {
            let (o, i, r, c) = (at / 9 / inputs, at / 9 % inputs, at % 9 / 3, at % 3);
            for (row, column) in (0..height * width).map(|pixel| (pixel / width, pixel % width)) {
                let (from_row, from_column) = (row + r, column + c);
                if (1..=height).contains(&from_row) && (1..=width).contains(&from_column) {
                    let from = (from_row - 1) * width + from_column - 1;
                    matrix
                        [(o * height * width + row * width + column) * columns + i * height * width + from] =
                        tap;
                }
            }
        }
        let reached = reached(rows, columns, &matrix);
        let bound = convolution_norm([outputs, inputs, 3], [height, width], &kernel);
        assert!(bound >= reached && bound < 1.3 * reached, "{bound} {reached}");
        // The transposed convolution has the same norm.
        let at = |o: usize, i: usize, t: usize| kernel[(o * inputs + i) * 9 + t];
        let transposed: Vec<f64> =
            (0..kernel.len()).map(|k| at(k / 9 % outputs, k / 9 / outputs, 8 - k % 9)).collect();
        let other = convolution_norm([inputs, outputs, 3], [height, width], &transposed);
        assert!((bound - other).abs() < 1e-6 * bound, "{bound} {other}");
        assert!(convolution_norm([1, 1, 3], [4, 4], &[f64::NAN; 9]).is_infinite());
        assert!(convolution_norm([1, 1, 3], [4, 4], &[0.0; 9]) < 1e-100);
    }
}
