//! The products with an operator that the certificates need (`Wx`, `|W|x`, an interval product), with outward bounds of their
//! rounding.

use std::borrow::Cow;

use subdeq_map::{Conv, Graph, Operator, Padding};

use crate::bound::Upper;
use crate::interval::Interval;
use crate::round::{centre_radius, dot, dot_abs, dot_and_abs, gamma, sum_upper, tiny, vectorised};

/// Products with an operator.
///
/// ```
/// use subdeq_map::Operator;
/// use subdeq_theory::operator::Products;
/// let w = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
/// let (lower, upper) = w.enclose(&[0.0, 0.0], &[1.0, 1.0]);
/// assert!(lower[0] <= -1.0 && upper[0] >= 1.0 && upper[0] < 1.0 + 1e-12);
/// # Ok::<(), subdeq_map::OperatorError>(())
/// ```
pub trait Products {
    /// `out = W x`, each entry wrong by at most `gamma(terms)` times that of `|W||x|`.
    fn apply(&self, x: &[f64], out: &mut [f64]);

    /// `out = |W| x` for `x >= 0`, relatively wrong by at most `gamma(terms)`.
    fn apply_abs(&self, x: &[f64], out: &mut [f64]);

    /// `sum_j |W_ij|` for every row, rounded up.
    #[must_use]
    fn row_sums(&self) -> Vec<f64>;

    /// `W+ l - W- h` rounded down and `W+ h - W- l` rounded up: the range of `Wx` over the box, entry by entry.
    #[must_use]
    fn enclose(&self, lower: &[f64], upper: &[f64]) -> (Vec<f64>, Vec<f64>);

    /// The same for a box of intervals.
    #[must_use]
    fn image(&self, on: &[Interval]) -> Vec<Interval> {
        let (lower, upper): (Vec<f64>, Vec<f64>) = on.iter().map(|x| (x.lo, x.hi)).unzip();
        let (lower, upper) = self.enclose(&lower, &upper);
        lower.into_iter().zip(upper).map(|(lo, hi)| Interval::new(lo, hi)).collect()
    }
}

impl Products for Operator {
    fn apply(&self, x: &[f64], out: &mut [f64]) {
        match self {
            Operator::Dense(_) => vectorised(
                #[inline(always)]
                || {
                    for (row, out) in self.weights().chunks_exact(self.len()).zip(out) {
                        *out = dot(row, x);
                    }
                },
            ),
            Operator::Conv(conv) => convolve(conv, x, out, |k| k),
            Operator::Graph(graph) => propagate(graph, x, out, |a| a),
        }
    }

    fn apply_abs(&self, x: &[f64], out: &mut [f64]) {
        match self {
            Operator::Dense(_) => vectorised(
                #[inline(always)]
                || {
                    for (row, out) in self.weights().chunks_exact(self.len()).zip(out) {
                        *out = dot_abs(row, x);
                    }
                },
            ),
            Operator::Conv(conv) => convolve(conv, x, out, f64::abs),
            Operator::Graph(graph) => propagate(graph, x, out, f64::abs),
        }
    }

    fn row_sums(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.len()];
        self.apply_abs(&vec![1.0; self.len()], &mut sums);
        let terms = self.terms();
        sums.iter_mut().for_each(|s| *s = sum_upper(*s, terms));
        sums
    }

    fn enclose(&self, lower: &[f64], upper: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut product = BoxProduct::new(self);
        let (mut out_lower, mut out_upper) = (vec![0.0; self.len()], vec![0.0; self.len()]);
        product.enclose(lower, upper, &mut out_lower, &mut out_upper);
        (out_lower, out_upper)
    }
}

/// `W c` and `|W| r` together.
fn apply_ball(operator: &Operator, centre: &[f64], radius: &[f64], out: &mut [f64], spread: &mut [f64]) {
    if let Operator::Dense(_) = operator {
        vectorised(
            #[inline(always)]
            || {
                let rows = operator.weights().chunks_exact(operator.len());
                for ((row, out), spread) in rows.zip(out).zip(spread) {
                    (*out, *spread) = dot_and_abs(row, centre, radius);
                }
            },
        );
    } else {
        operator.apply(centre, out);
        operator.apply_abs(radius, spread);
    }
}

/// The dense matrix, row major, without a copy where the operator is dense; for at most `limit` rows.
pub(crate) fn matrix(operator: &Operator, limit: usize) -> Option<Cow<'_, [f64]>> {
    match operator {
        Operator::Dense(_) if operator.len() <= limit => Some(Cow::Borrowed(operator.weights())),
        _ => operator.to_dense(limit).map(Cow::Owned),
    }
}

/// `K[o][i] = sum of |taps|`, rounded up, as an operator on channels: `rho(|W|) <= rho(K)`, with weights that are
/// constant over the pixels.
pub(crate) fn channel_sums(conv: &Conv) -> Option<Operator> {
    let count = conv.tap_count();
    let kernels = conv.kernel().chunks_exact(count);
    let sums = kernels.map(|taps| sum_upper(taps.iter().map(|t| t.abs()).sum(), count));
    Operator::dense(conv.channels(), sums.collect()).ok()
}

/// The planes of `x` with a border as wide as the kernel reaches.
fn padded(conv: &Conv, x: &[f64]) -> Vec<f64> {
    let (h, w, border) = (conv.height(), conv.width(), conv.side() / 2);
    let (rows, columns) = (h + 2 * border, w + 2 * border);
    let mut planes = vec![0.0; conv.channels() * rows * columns];
    for (plane, x) in planes.chunks_exact_mut(rows * columns).zip(x.chunks_exact(h * w)) {
        for (row, target) in plane.chunks_exact_mut(columns).enumerate() {
            let source = match conv.padding() {
                Padding::Zero if row < border || row >= h + border => continue,
                // The rows before the first are the last ones of the torus.
                _ => (row + h - border) % h,
            };
            let source = &x[source * w..][..w];
            target[border..border + w].copy_from_slice(source);
            if conv.padding() == Padding::Circular {
                target[..border].copy_from_slice(&source[w - border..]);
                target[border + w..].copy_from_slice(&source[..border]);
            }
        }
    }
    planes
}

fn convolve(conv: &Conv, x: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
    let padded = padded(conv, x);
    vectorised(
        #[inline(always)]
        || match conv.side() {
            3 => correlate(conv, &padded, out, weight),
            _ => correlate_wide(conv, &padded, out, weight),
        },
    );
}

/// Tap after tap, for kernels of any size.
#[inline(always)]
fn correlate_wide(conv: &Conv, padded: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
    let (h, w, side) = (conv.height(), conv.width(), conv.side());
    let stride = w + side - 1;
    for (output, out) in out.chunks_exact_mut(h * w).enumerate() {
        out.fill(0.0);
        for (input, plane) in padded.chunks_exact((h + side - 1) * stride).enumerate() {
            for (tap, &k) in conv.taps(output, input).iter().enumerate() {
                let k = weight(k);
                for (row, out) in out.chunks_exact_mut(w).enumerate() {
                    let source = &plane[(row + tap / side) * stride + tap % side..][..w];
                    out.iter_mut().zip(source).for_each(|(out, x)| *out += k * x);
                }
            }
        }
    }
}

/// Nine taps in one pass over each row of the output.
#[inline(always)]
fn correlate(conv: &Conv, padded: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
    let (h, w) = (conv.height(), conv.width());
    let stride = w + 2;
    for (output, out) in out.chunks_exact_mut(h * w).enumerate() {
        out.fill(0.0);
        for (input, plane) in padded.chunks_exact((h + 2) * stride).enumerate() {
            let mut k = [0.0; 9];
            for (k, &tap) in k.iter_mut().zip(conv.taps(output, input)) {
                *k = weight(tap);
            }
            for (row, out) in out.chunks_exact_mut(w).enumerate() {
                let top = &plane[row * stride..][..stride];
                let middle = &plane[(row + 1) * stride..][..stride];
                let bottom = &plane[(row + 2) * stride..][..stride];
                let (t0, t1, t2) = (&top[..w], &top[1..][..w], &top[2..][..w]);
                let (m0, m1, m2) = (&middle[..w], &middle[1..][..w], &middle[2..][..w]);
                let (b0, b1, b2) = (&bottom[..w], &bottom[1..][..w], &bottom[2..][..w]);
                for i in 0..w {
                    out[i] += (k[0] * t0[i] + k[1] * t1[i] + k[2] * t2[i])
                        + (k[3] * m0[i] + k[4] * m1[i] + k[5] * m2[i])
                        + (k[6] * b0[i] + k[7] * b1[i] + k[8] * b2[i]);
                }
            }
        }
    }
}

fn propagate(graph: &Graph, x: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
    let columns = graph.columns();
    for (node, out) in out.chunks_exact_mut(columns).enumerate() {
        out.fill(0.0);
        for (neighbour, a) in graph.neighbours(node) {
            let a = weight(a);
            let z = &x[neighbour * columns..][..columns];
            for (out, z) in out.iter_mut().zip(z) {
                *out += a * z;
            }
        }
    }
}

/// Sums of products this large may overflow on the way.
const LARGEST_SUM: f64 = f64::MAX / 16.0;

/// The interval product `W [l, h]`, with its row sums and scratch computed once for many products.
pub(crate) struct BoxProduct<'a> {
    operator: &'a Operator,
    row_sums: Vec<f64>,
    centre: Vec<f64>,
    radius: Vec<f64>,
}

impl<'a> BoxProduct<'a> {
    pub(crate) fn new(operator: &'a Operator) -> BoxProduct<'a> {
        let n = operator.len();
        BoxProduct { operator, row_sums: operator.row_sums(), centre: vec![0.0; n], radius: vec![0.0; n] }
    }

    /// Writes a box that contains `W x` for every `x` in `[lower, upper]`.
    pub(crate) fn enclose(
        &mut self,
        lower: &[f64],
        upper: &[f64],
        out_lower: &mut [f64],
        out_upper: &mut [f64],
    ) {
        let mut largest = Upper::ZERO;
        for (j, (&l, &h)) in lower.iter().zip(upper).enumerate() {
            let (centre, radius) = centre_radius(l, h);
            (self.centre[j], self.radius[j]) = (centre, radius);
            largest = largest.max(Upper::new(centre.abs() + radius));
        }
        // |W x - fl(W c)| <= |W| r + gamma |W||c| and |W| r <= fl(|W| r) + gamma |W| r: one bound for both errors.
        apply_ball(self.operator, &self.centre, &self.radius, out_lower, out_upper);
        let terms = self.operator.terms();
        let relative = gamma(terms + 8) * largest.get();
        for ((lower, upper), row_sum) in out_lower.iter_mut().zip(out_upper).zip(&self.row_sums) {
            let slack = (relative * row_sum + tiny(terms + 1)).next_up();
            let (centre, spread) = (*lower, (*upper + slack).next_up());
            *lower = (centre - spread).next_down();
            *upper = (centre + spread).next_up();
            // A partial sum may overflow where the sum itself does not: then nothing is known.
            if !(largest.get() * row_sum < LARGEST_SUM) {
                (*lower, *upper) = (f64::NEG_INFINITY, f64::INFINITY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use subdeq_map::Padding;

    use super::*;

    fn some_operator(kind: usize, rng: &mut ChaCha8Rng) -> Operator {
        let mut weights = |n: usize| (0..n).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f64>>();
        match kind {
            0 => Operator::dense(19, weights(361)).unwrap(),
            1 => Operator::conv(2, 3, 5, Padding::Zero, weights(36)).unwrap(),
            2 => Operator::conv(3, 4, 3, Padding::Circular, weights(81)).unwrap(),
            3 => Operator::conv(2, 5, 6, Padding::Circular, weights(100)).unwrap(),
            _ => Operator::graph(2, vec![0, 2, 3, 6], vec![0, 1, 2, 0, 1, 2], weights(6)).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn products_agree_with_the_dense_matrix(kind in 0usize..5, seed in any::<u64>()) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let w = some_operator(kind, &mut rng);
            let n = w.len();
            let matrix = w.to_dense(100).unwrap();
            let x: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..2.0)).collect();
            let (mut plain, mut abs, mut back) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
            w.apply(&x, &mut plain);
            w.apply_abs(&x, &mut abs);
            w.transposed().apply(&x, &mut back);
            for i in 0..n {
                let row = &matrix[i * n..][..n];
                prop_assert!((plain[i] - row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>()).abs() < 1e-13);
                prop_assert!((abs[i] - row.iter().zip(&x).map(|(a, b)| a.abs() * b).sum::<f64>()).abs() < 1e-13);
                prop_assert!((back[i] - (0..n).map(|j| matrix[j * n + i] * x[j]).sum::<f64>()).abs() < 1e-13);
            }
            prop_assert_eq!(w.transposed().transposed(), w);
        }

        #[test]
        fn the_box_product_contains_every_product(kind in 0usize..5, seed in any::<u64>()) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let w = some_operator(kind, &mut rng);
            let n = w.len();
            let lower: Vec<f64> = (0..n).map(|_| rng.random_range(-1.0..1.0)).collect();
            let upper: Vec<f64> = lower.iter().map(|l| l + rng.random_range(0.0..1.0)).collect();
            let (out_lower, out_upper) = w.enclose(&lower, &upper);
            // The extreme corners of row i, in twice the precision, must lie inside; and the box is tight.
            let matrix = w.to_dense(100).unwrap();
            for i in 0..n {
                let row = &matrix[i * n..][..n];
                let (mut least, mut most) = (0.0, 0.0);
                for j in 0..n {
                    let ends = [row[j] * lower[j], row[j] * upper[j]];
                    least += ends[0].min(ends[1]);
                    most += ends[0].max(ends[1]);
                }
                prop_assert!(out_lower[i] <= least + 1e-15 && least - out_lower[i] < 1e-12);
                prop_assert!(out_upper[i] >= most - 1e-15 && out_upper[i] - most < 1e-12);
            }
        }
    }
}
