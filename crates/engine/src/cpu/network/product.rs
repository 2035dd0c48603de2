//! Matrix products (crate `gemm`), cut into blocks that depend on the shape only.

use rayon::prelude::*;

use crate::Real;

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
    // SAFETY: the two lines above and the assertion on `c` make every index that the strides reach lie inside its slice;
    // `c` is borrowed mutably, so it overlaps neither factor. `T` is f32 or f64, both known to `gemm`.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            n as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
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
