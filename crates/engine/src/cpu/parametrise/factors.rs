//! `W = (1 - m) I - A'A + B - B'` and its pullback, for matrices and for circular convolutions; `B` is free, or `b A` with one
//! number `b`.
//!
//! A convolution is one matrix per tap; transposing it transposes the matrices and mirrors the taps, and tap `d` of `A'A`
//! is the sum of `A_e' A_e'` over all taps with `e' - e = d`: a kernel of side `2 s - 1` out of kernels of side `s`.

use subdeq_map::Parametrisation;

use crate::{Operator, Real};

/// Shape of the factors `A` and `B`.
#[derive(Clone, Copy)]
pub(super) struct Factors {
    units: usize,
    /// Height and width of a factor's kernel; 1 for matrices.
    side: usize,
}

/// One matrix per tap, row major.
type Taps<T> = Vec<Vec<T>>;

impl Factors {
    pub fn of(parametrisation: &Parametrisation, operator: &Operator) -> Self {
        Self { units: operator.units(), side: parametrisation.free_side(operator.side()) }
    }

    /// Height and width of the kernel of `W`.
    fn product_side(&self) -> usize {
        2 * self.side - 1
    }

    /// Writes `W` (out, in, row, column).
    pub fn multiply<T: Real>(&self, margin: f64, a: &[T], b: &[T], w: &mut [T]) {
        let n = self.units;
        let (a, b) = (self.taps(a), self.taps(b));
        let mut product: Taps<T> = vec![vec![T::ZERO; n * n]; self.product_side().pow(2)];
        let last = product.len() - 1;
        for e in 0..a.len() {
            let at = self.difference(e, (a.len() - 1) / 2);
            for o in 0..n {
                for i in 0..n {
                    product[at][o * n + i] += b[e][o * n + i];
                    product[last - at][i * n + o] -= b[e][o * n + i];
                }
            }
            for f in 0..a.len() {
                let target = &mut product[self.difference(f, e)];
                for (left, right) in a[e].chunks_exact(n).zip(a[f].chunks_exact(n)) {
                    subtract_outer(target, left, right);
                }
            }
        }
        let identity = T::from_f64(1.0 - margin);
        for i in 0..n {
            product[last / 2][i * n + i] += identity;
        }
        let count = product.len();
        for (tap, matrix) in product.iter().enumerate() {
            w.iter_mut().skip(tap).step_by(count).zip(matrix).for_each(|(w, &x)| *w = x);
        }
    }

    /// `W` with `B = b A`.
    pub fn multiply_tied<T: Real>(&self, margin: f64, a: &[T], b: T, w: &mut [T]) {
        let scaled: Vec<T> = a.iter().map(|&a| b * a).collect();
        self.multiply(margin, a, &scaled, w);
    }

    /// From the gradient `g` for `W` to those for `A` and `b`: with `gB` that for `B = b A`, `b gB` is added to the first, and the
    /// second is the sum of `A gB`.
    pub fn pull_back_tied<T: Real>(&self, a: &[T], b: T, g: &[T], ga: &mut [T], gb: &mut T) {
        let mut skew = vec![T::ZERO; a.len()];
        self.pull_back(a, g, ga, &mut skew);
        ga.iter_mut().zip(&skew).for_each(|(ga, &s)| *ga += b * s);
        *gb = T::from_f64(a.iter().zip(&skew).map(|(a, s)| a.to_f64() * s.to_f64()).sum());
    }

    /// From the gradient `g` for `W` to those for `A` and `B`: with `S = G + G'`, they are `-A S` and `G - G'`.
    pub fn pull_back<T: Real>(&self, a: &[T], g: &[T], ga: &mut [T], gb: &mut [T]) {
        let n = self.units;
        let a = self.taps(a);
        let (count, taps) = (a.len(), self.product_side().pow(2));
        let entry = |tap: usize, o: usize, i: usize| g[(o * n + i) * taps + tap];
        let mut symmetric: Taps<T> = vec![vec![T::ZERO; n * n]; taps];
        for (tap, matrix) in symmetric.iter_mut().enumerate() {
            for (at, s) in matrix.iter_mut().enumerate() {
                *s = entry(tap, at / n, at % n) + entry(taps - 1 - tap, at % n, at / n);
            }
        }
        for e in 0..count {
            let at = self.difference(e, (count - 1) / 2);
            for (k, row) in gb.chunks_exact_mut(n * count).enumerate() {
                for (j, taps_of_pair) in row.chunks_exact_mut(count).enumerate() {
                    taps_of_pair[e] = entry(at, k, j) - entry(taps - 1 - at, j, k);
                }
            }
            let mut sum = vec![T::ZERO; n * n];
            for f in 0..count {
                let s = &symmetric[self.difference(e, f)];
                for (sum, a) in sum.chunks_exact_mut(n).zip(a[f].chunks_exact(n)) {
                    for (s, &a) in s.chunks_exact(n).zip(a) {
                        sum.iter_mut().zip(s).for_each(|(sum, &s)| *sum -= a * s);
                    }
                }
            }
            ga.iter_mut().skip(e).step_by(count).zip(sum).for_each(|(g, s)| *g = s);
        }
    }

    /// The tap of `W`'s kernel that is `to - from`, both taps of a factor's kernel.
    fn difference(&self, to: usize, from: usize) -> usize {
        let along = |to: usize, from: usize| to + self.side - 1 - from;
        let rows = along(to / self.side, from / self.side);
        rows * self.product_side() + along(to % self.side, from % self.side)
    }

    /// `kernel[out][in][row][column]` as one matrix per tap.
    fn taps<T: Real>(&self, kernel: &[T]) -> Taps<T> {
        let count = self.side * self.side;
        (0..count).map(|tap| kernel.iter().skip(tap).step_by(count).copied().collect()).collect()
    }
}

/// `target -= left right'`.
fn subtract_outer<T: Real>(target: &mut [T], left: &[T], right: &[T]) {
    for (row, &scale) in target.chunks_exact_mut(right.len()).zip(left) {
        row.iter_mut().zip(right).for_each(|(w, &a)| *w -= scale * a);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Padding;

    /// Out of factors of 1x1, 3x3 and 5x5.
    const CONVS: [Operator; 3] = [circular(1), circular(5), circular(9)];

    const fn circular(kernel: usize) -> Operator {
        Operator::Conv { channels: 2, height: 4, width: 5, padding: Padding::Circular, kernel }
    }

    const PRODUCT: Parametrisation = Parametrisation::MonotoneProduct { margin: 0.25 };
    const TIED: Parametrisation = Parametrisation::MonotoneTied { margin: 0.25 };

    fn factor_len(factors: &Factors) -> usize {
        (factors.units * factors.side).pow(2)
    }

    fn numbers(len: usize, seed: f64) -> Vec<f64> {
        (0..len).map(|k| ((k as f64 + 1.0) * seed).sin()).collect()
    }

    /// The matrix of a circular convolution, by its definition.
    fn matrix(kernel: &[f64], side: usize) -> (usize, Vec<f64>) {
        let (c, h, w) = (2, 4, 5);
        let n = c * h * w;
        let mut m = vec![0.0; n * n];
        for (at, &x) in kernel.iter().enumerate() {
            let (o, i, tap) = (at / (side * side * c), at / (side * side) % c, at % (side * side));
            for (y, x0) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
                let there = |at: usize, tap: usize, n: usize| (at + side * n + tap - side / 2) % n;
                let (ty, tx) = (there(y, tap / side, h), there(x0, tap % side, w));
                m[((y * w + x0) * c + o) * n + (ty * w + tx) * c + i] += x;
            }
        }
        (n, m)
    }

    #[test]
    fn the_kernel_is_that_of_the_matrices_product() {
        for operator in CONVS {
            let factors = Factors::of(&PRODUCT, &operator);
            let (a, b) = (numbers(factor_len(&factors), 0.7), numbers(factor_len(&factors), 1.3));
            let mut w = vec![f64::NAN; operator.weight_len()];
            factors.multiply(0.25, &a, &b, &mut w);
            let (n, w) = matrix(&w, factors.product_side());
            let ((_, a), (_, b)) = (matrix(&a, factors.side), matrix(&b, factors.side));
            for (o, i) in (0..n).flat_map(|o| (0..n).map(move |i| (o, i))) {
                let product: f64 = (0..n).map(|k| a[k * n + o] * a[k * n + i]).sum();
                let expected = f64::from(o == i) * 0.75 - product + b[o * n + i] - b[i * n + o];
                assert!((w[o * n + i] - expected).abs() < 1e-11, "{o} {i}: {} {expected}", w[o * n + i]);
            }
        }
    }

    #[test]
    fn the_pullback_is_the_derivative() {
        for operator in CONVS.into_iter().chain([Operator::Dense { n: 5 }]) {
            let factors = Factors::of(&PRODUCT, &operator);
            let (a, b) = (numbers(factor_len(&factors), 0.7), numbers(factor_len(&factors), 1.3));
            let g = numbers(factors.units.pow(2) * factors.product_side().pow(2), 2.1);
            let value = |a: &[f64], b: &[f64]| {
                let mut w = vec![0.0; g.len()];
                factors.multiply(0.25, a, b, &mut w);
                w.iter().zip(&g).map(|(w, g)| w * g).sum::<f64>()
            };
            let (mut ga, mut gb) = (vec![f64::NAN; a.len()], vec![f64::NAN; b.len()]);
            factors.pull_back(&a, &g, &mut ga, &mut gb);
            for k in 0..a.len() {
                let moved = |x: &[f64], by: f64| {
                    let mut x = x.to_vec();
                    x[k] += by;
                    x
                };
                // Exact but for rounding: the value is quadratic.
                let slope = value(&moved(&a, 0.5), &b) - value(&moved(&a, -0.5), &b);
                assert!((ga[k] - slope).abs() < 1e-10, "A[{k}]: {} {slope}", ga[k]);
                let slope = value(&a, &moved(&b, 0.5)) - value(&a, &moved(&b, -0.5));
                assert!((gb[k] - slope).abs() < 1e-10, "B[{k}]: {} {slope}", gb[k]);
            }
        }
    }

    #[test]
    fn the_tied_kernel_is_that_of_the_matrices() {
        for (margin, operator) in [1.0, 0.1].into_iter().flat_map(|m| CONVS.map(|operator| (m, operator))) {
            let factors = Factors::of(&TIED, &operator);
            let (a, b) = (numbers(factor_len(&factors), 0.7), -0.6);
            let mut w = vec![f64::NAN; operator.weight_len()];
            factors.multiply_tied(margin, &a, b, &mut w);
            let ((n, w), (_, a)) = (matrix(&w, factors.product_side()), matrix(&a, factors.side));
            for (o, i) in (0..n).flat_map(|o| (0..n).map(move |i| (o, i))) {
                let product: f64 = (0..n).map(|k| a[k * n + o] * a[k * n + i]).sum();
                let identity = f64::from(o == i) * (1.0 - margin);
                let expected = identity - product + b * (a[o * n + i] - a[i * n + o]);
                assert!((w[o * n + i] - expected).abs() < 1e-11, "{o} {i}: {} {expected}", w[o * n + i]);
            }
        }
    }

    #[test]
    fn the_tied_pullback_is_the_derivative() {
        for operator in CONVS.into_iter().chain([Operator::Dense { n: 5 }]) {
            let factors = Factors::of(&TIED, &operator);
            let (a, b) = (numbers(factor_len(&factors), 0.7), 1.4);
            let g = numbers(factors.units.pow(2) * factors.product_side().pow(2), 2.1);
            let value = |a: &[f64], b: f64| {
                let mut w = vec![0.0; g.len()];
                factors.multiply_tied(0.25, a, b, &mut w);
                w.iter().zip(&g).map(|(w, g)| w * g).sum::<f64>()
            };
            let (mut ga, mut gb) = (vec![f64::NAN; a.len()], f64::NAN);
            factors.pull_back_tied(&a, b, &g, &mut ga, &mut gb);
            // Exact but for rounding: the value is quadratic.
            for k in 0..a.len() {
                let moved = |by: f64| {
                    let mut x = a.clone();
                    x[k] += by;
                    value(&x, b)
                };
                let slope = moved(0.5) - moved(-0.5);
                assert!((ga[k] - slope).abs() < 1e-10, "A[{k}]: {} {slope}", ga[k]);
            }
            let slope = value(&a, b + 0.5) - value(&a, b - 0.5);
            assert!((gb - slope).abs() < 1e-10, "b: {gb} {slope}");
        }
    }
}
