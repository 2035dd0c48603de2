//! Matrix products (crates `gemm-f32` and `gemm-f64`), cut into blocks that depend on the shape only.

use gemm_common::Parallelism;
use rayon::prelude::*;

use crate::Real;
use crate::cpu::conv::same::{same, same_mut};

/// A matrix inside a slice.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T: Real> Matrix<'a, T> {
    /// `rows x cols`, row after row.
    pub(super) fn new(data: &'a [T], rows: usize, cols: usize) -> Self {
        // Checked, not wrapped: the product below is trusted with every index under the last.
        assert!(
            rows.checked_mul(cols).is_some_and(|len| len <= data.len()),
            "{rows} x {cols} of {}",
            data.len()
        );
        Self { data, rows, cols, row_stride: cols, col_stride: 1 }
    }

    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    fn row_range(self, start: usize, count: usize) -> Self {
        assert!(start + count <= self.rows);
        Self { data: &self.data[start * self.row_stride..], rows: count, ..self }
    }
}

/// `c = a b` or `c += a b` on this thread; `c` is stored row after row.
pub(super) fn product<T: Real>(a: Matrix<T>, b: Matrix<T>, c: &mut [T], accumulate: bool) {
    let (m, k, n) = (a.rows, a.cols, b.cols);
    assert!(b.rows == k && m.checked_mul(n).is_some_and(|len| len <= c.len()));
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        if !accumulate {
            c[..m * n].fill(T::ZERO);
        }
        return;
    }
    let last = |x: Matrix<T>| (x.rows - 1) * x.row_stride + (x.cols - 1) * x.col_stride;
    assert!(last(a) < a.data.len() && last(b) < b.data.len());
    // The kernels want columns that are contiguous: the transposed product has them. A single column is both.
    let (left, right, column) = if n > 1 { (b.transposed(), a.transposed(), n) } else { (a, b, 1) };
    let (rows, cols) = (left.rows, right.cols);
    macro_rules! multiply {
        ($number:ident, $kernel:path) => {
            if let (Some(x), Some(y), Some(c)) = (same(left.data), same(right.data), same_mut::<T, $number>(c)) {
                // SAFETY: the assertions make every index that the strides reach lie inside its slice; `c` is borrowed
                // mutably, so it overlaps neither factor.
                unsafe {
                    $kernel()(
                        rows,
                        cols,
                        k,
                        c.as_mut_ptr(),
                        column as isize,
                        1,
                        accumulate,
                        x.as_ptr(),
                        left.col_stride as isize,
                        left.row_stride as isize,
                        y.as_ptr(),
                        right.col_stride as isize,
                        right.row_stride as isize,
                        1.0,
                        1.0,
                        false,
                        false,
                        false,
                        Parallelism::None,
                    );
                }
            }
        };
    }
    multiply!(f32, gemm_f32::gemm::f32::get_gemm_fn);
    multiply!(f64, gemm_f64::gemm::f64::get_gemm_fn);
}

/// `c = a b` or `c += a b`, a few tasks whatever the number of threads.
pub(super) fn product_in_parallel<T: Real>(a: Matrix<T>, b: Matrix<T>, c: &mut [T], accumulate: bool) {
    const TASKS: usize = 4;
    let (rows, n) = (a.rows, b.cols);
    if n == 0 || rows == 0 {
        return;
    }
    let each = rows.div_ceil(TASKS);
    c[..rows * n].par_chunks_mut(each * n).enumerate().for_each(|(task, c)| {
        product(a.row_range(task * each, c.len() / n), b, c, accumulate);
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};

    fn random(len: usize, seed: u64) -> Vec<f64> {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    #[test]
    fn equals_the_definition_in_all_orientations() {
        let (m, k, n) = (7, 5, 6);
        let (a, b) = (random(m * k, 1), random(k * n, 2));
        let expected: Vec<f64> =
            (0..m * n).map(|i| (0..k).map(|l| a[i / n * k + l] * b[l * n + i % n]).sum::<f64>()).collect();
        let transposed = |x: &[f64], rows: usize, cols: usize| -> Vec<f64> {
            (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
        };
        let (at, bt) = (transposed(&a, m, k), transposed(&b, k, n));
        let (a, at) = (Matrix::new(&a, m, k), Matrix::new(&at, k, m).transposed());
        let (b, bt) = (Matrix::new(&b, k, n), Matrix::new(&bt, n, k).transposed());
        for (a, b) in [(a, b), (at, b), (a, bt), (at, bt)] {
            let mut c = vec![1.0; m * n];
            product_in_parallel(a, b, &mut c, true);
            assert!(c.iter().zip(&expected).all(|(x, e)| (x - 1.0 - e).abs() < 1e-14));
        }
    }
}
