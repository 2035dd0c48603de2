//! Sparse matrix times dense matrix.

use rayon::prelude::*;

use super::vectorised::vectorised;
use crate::Real;
use crate::cpu::isa::Isa;
use crate::network::Csr;

/// Rows that one task computes.
const ROWS: usize = 64;

/// `y = A x`; each row of `y` is a sum in the order of the entries of its row of `A`.
pub(super) fn product<T: Real>(isa: Isa, a: &Csr<T>, width: usize, x: &[T], y: &mut [T]) {
    if width == 0 {
        return;
    }
    y[..a.rows * width].par_chunks_mut(ROWS * width).enumerate().for_each(|(task, y)| {
        vectorised(isa, || {
            for (i, y) in y.chunks_exact_mut(width).enumerate() {
                let row = task * ROWS + i;
                y.fill(T::ZERO);
                for k in a.starts[row]..a.starts[row + 1] {
                    let (value, from) = (a.values[k], a.columns[k] as usize * width);
                    for (y, &x) in y.iter_mut().zip(&x[from..from + width]) {
                        *y += value * x;
                    }
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::random;

    #[test]
    fn equals_the_dense_product_and_transposes() {
        let (rows, cols, width) = (130, 9, 3);
        let dense: Vec<f64> =
            random(rows * cols, 1).iter().map(|&x| if x.abs() < 0.7 { 0.0 } else { x }).collect();
        let mut a = Csr { rows, cols, starts: vec![0], columns: vec![], values: vec![] };
        for row in dense.chunks(cols) {
            for (col, &x) in row.iter().enumerate().filter(|(_, x)| **x != 0.0) {
                a.columns.push(col as u32);
                a.values.push(x);
            }
            a.starts.push(a.values.len());
        }
        a.check().unwrap();
        let x = random(cols * width, 2);
        let mut y = vec![9.0; rows * width];
        product(Isa::detect(), &a, width, &x, &mut y);
        for (i, &y) in y.iter().enumerate() {
            let sum: f64 = (0..cols).map(|k| dense[i / width * cols + k] * x[k * width + i % width]).sum();
            assert!((y - sum).abs() < 1e-14);
        }
        assert_eq!(a.transposed().transposed(), a);
        let u = random(rows * width, 3);
        let mut back = vec![0.0; cols * width];
        product(Isa::detect(), &a.transposed(), width, &u, &mut back);
        let inner = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        assert!((inner(&y, &u) - inner(&x, &back)).abs() < 1e-12, "<Ax, u> = <x, A'u>");
        a.columns[0] = 9;
        assert!(a.check().unwrap_err().to_string().contains("column 9 of 9"));
    }
}
