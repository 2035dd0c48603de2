//! Bounds of `||X||_2` of matrices and convolutions that need not be square: the gains of what lies between equilibria.

use subdeq_map::{Operator, OperatorError, Padding};

use crate::cholesky::Symmetric;
use crate::monotone;
use crate::round::{dot, gamma};

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
    let negative =
        Symmetric::from_fn(n, length + 8, |i, j| (-dot(row(i), row(j)), sizes[i] * sizes[j] * (1.0 + gamma(8))));
    match negative.least_eigenvalue(TOLERANCE) {
        Some(least) => (-least).max(0.0).sqrt().next_up(),
        None => f64::INFINITY,
    }
}

/// An upper bound, within a thousandth, of the 2-norm of a 3x3 convolution `kernel[output][input][row][column]` on images of `height x
/// width` that are continued by zeros: the largest over the frequencies of a torus that it is a compression of.
///
/// # Errors
/// A wrong number of taps, empty images, or a tap that is not finite.
pub fn convolution_norm(
    outputs: usize,
    inputs: usize,
    height: usize,
    width: usize,
    kernel: &[f64],
) -> Result<f64, OperatorError> {
    // With channels of zeros it is square.
    let channels = outputs.max(inputs);
    let taps = kernel.len() / (outputs * inputs).max(1);
    let mut square = vec![0.0; channels * channels * taps];
    for (pair, from) in kernel.chunks_exact(taps.max(1)).enumerate() {
        let (output, input) = (pair / inputs, pair % inputs);
        square[(output * channels + input) * taps..][..taps].copy_from_slice(from);
    }
    let operator = Operator::conv(channels, height, width, Padding::Zero, square)?;
    Ok(monotone::norm(&operator).unwrap_or(f64::INFINITY))
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
            assert!(bound >= reached && bound < reached * (1.0 + 1e-6), "{rows} x {columns}: {bound} {reached}");
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
                    matrix[(o * height * width + row * width + column) * columns + i * height * width + from] = tap;
                }
            }
        }
        let reached = reached(rows, columns, &matrix);
        let bound = convolution_norm(outputs, inputs, height, width, &kernel).unwrap();
        assert!(bound >= reached && bound < 1.3 * reached, "{bound} {reached}");
    }
}
