//! Fully connected layers.

use super::product::{Matrix, product_in_parallel, product_of_samples};
use super::vector::{add_to_rows, sum_rows};
use crate::Real;
use crate::network::LinearShape;

pub(super) fn forward<T: Real>(shape: LinearShape, x: &[T], w: &[T], b: &[T], y: &mut [T]) {
    let LinearShape { batch, inputs, outputs } = shape;
    let w = Matrix::new(w, outputs, inputs).transposed();
    product_of_samples(Matrix::new(x, batch, inputs), w, y);
    add_to_rows(outputs, &b[..outputs], &mut y[..batch * outputs]);
}

pub(super) fn backward<T: Real>(
    shape: LinearShape,
    x: &[T],
    w: &[T],
    gy: &[T],
    gx: Option<&mut [T]>,
    gw: &mut [T],
    gb: &mut [T],
) {
    let LinearShape { batch, inputs, outputs } = shape;
    let g = Matrix::new(gy, batch, outputs);
    if let Some(gx) = gx {
        product_of_samples(g, Matrix::new(w, outputs, inputs), gx);
    }
    product_in_parallel(g.transposed(), Matrix::new(x, batch, inputs), gw, true);
    sum_rows(outputs, &gy[..batch * outputs], &mut gb[..outputs]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    #[test]
    fn gradients_equal_finite_differences() {
        let shape = LinearShape { batch: 5, inputs: 7, outputs: 3 };
        let (x, w, b, v) = (random(35, 1), random(21, 2), random(3, 3), random(15, 4));
        let objective = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
            let mut y = vec![0.0; v.len()];
            forward(shape, x, w, b, &mut y);
            y.iter().zip(&v).map(|(y, v)| y * v).sum()
        };
        let (mut gx, mut gw, mut gb) = (vec![7.0; 35], vec![0.0; 21], vec![0.0; 3]);
        backward(shape, &x, &w, &v, Some(&mut gx), &mut gw, &mut gb);
        assert_gradient(&x, &gx, |x| objective(x, &w, &b));
        assert_gradient(&w, &gw, |w| objective(&x, w, &b));
        assert_gradient(&b, &gb, |b| objective(&x, &w, b));
    }
}
