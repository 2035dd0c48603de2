//! Error bounds for sums and products computed in `f64`, so that long loops can run at full speed and still end in
//! a bound that holds for the exact numbers.
//!
//! A sum of `k` products, in any order, is wrong by at most `gamma(k) * sum |a_i b_i|` (Higham, *Accuracy and
//! Stability*, section 3.1), with or without fused multiply-add. Where results may underflow, [`tiny`] covers
//! the absolute error.

use pulp::Arch;

/// Half the distance from 1 to the next `f64`: the relative error of one rounding.
pub const UNIT_ROUNDOFF: f64 = f64::EPSILON / 2.0;

/// Certified bounds are stated this much (relatively) above what the computation gave, so that an independent
/// re-check, whose roundings differ, confirms the stated number and not a neighbour of it.
pub const STATED_SLACK: f64 = 1e-10;

/// `gamma_k = k u / (1 - k u)`, rounded up; infinite for absurd `k`.
///
/// ```
/// use subdeq_theory::round::gamma;
/// assert!(gamma(87) > 87.0 * f64::EPSILON / 2.0 && gamma(87) < 1e-14);
/// ```
#[must_use]
pub fn gamma(k: usize) -> f64 {
    let ku = k as f64 * UNIT_ROUNDOFF;
    if ku < 0.5 { (ku / (1.0 - ku)).next_up().next_up() } else { f64::INFINITY }
}

/// An absolute error bound for what `k` products lose by underflow.
#[must_use]
pub fn tiny(k: usize) -> f64 {
    k as f64 * f64::MIN_POSITIVE
}

/// Runs `work` compiled for the widest vectors of this machine. Everything it calls must be `#[inline(always)]` to
/// profit. (Vector width and fused operations change roundings only within the bounds above.)
#[inline(always)]
pub(crate) fn vectorised<R>(work: impl FnOnce() -> R) -> R {
    Arch::new().dispatch(work)
}

/// How many partial sums a reduction keeps: independent chains that fill the vector units.
const LANES: usize = 16;

/// By halves: one partial sum after the other would wait for each addition.
#[inline(always)]
fn lanes_sum(mut lanes: [f64; LANES]) -> f64 {
    let mut half = LANES / 2;
    while half > 0 {
        for k in 0..half {
            lanes[k] += lanes[k + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `sum a_i b_i`, wrong by at most `gamma(len) sum |a_i b_i|`.
#[inline(always)]
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for k in 0..LANES {
            lanes[k] += x[k] * y[k];
        }
    }
    lanes_sum(lanes) + tail
}

/// `sum |a_i| b_i` for `b >= 0`; relatively wrong by at most `gamma(len)`.
#[inline(always)]
pub(crate) fn dot_abs(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (a_chunks, b_chunks) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x.abs() * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for k in 0..LANES {
            lanes[k] += x[k].abs() * y[k];
        }
    }
    lanes_sum(lanes) + tail
}

/// `(sum a_i c_i, sum |a_i| r_i)` in one pass over `a`.
#[inline(always)]
pub(crate) fn dot_and_abs(a: &[f64], c: &[f64], r: &[f64]) -> (f64, f64) {
    let (mut centre, mut radius) = ([0.0; LANES], [0.0; LANES]);
    let a_chunks = a.chunks_exact(LANES);
    let done = a.len() - a_chunks.remainder().len();
    for ((x, y), z) in a_chunks.zip(c.chunks_exact(LANES)).zip(r.chunks_exact(LANES)) {
        for k in 0..LANES {
            centre[k] += x[k] * y[k];
            radius[k] += x[k].abs() * z[k];
        }
    }
    let (mut centre_tail, mut radius_tail) = (0.0, 0.0);
    for k in done..a.len() {
        centre_tail += a[k] * c[k];
        radius_tail += a[k].abs() * r[k];
    }
    (lanes_sum(centre) + centre_tail, lanes_sum(radius) + radius_tail)
}

/// An upper bound of the exact value behind `computed`, a sum of `terms` nonnegative products.
#[inline(always)]
pub(crate) fn sum_upper(computed: f64, terms: usize) -> f64 {
    computed * (1.0 + gamma(terms + 4)).next_up() + tiny(terms + 1)
}

/// A centre and a radius (rounded up) with `[lower, upper]` inside `[centre - radius, centre + radius]`.
#[inline(always)]
pub(crate) fn centre_radius(lower: f64, upper: f64) -> (f64, f64) {
    let centre = 0.5 * lower + 0.5 * upper;
    // Not `max`: where a difference is not a number, the radius must not become small.
    let (above, below) = (upper - centre, centre - lower);
    let radius = if above >= below { above } else { below };
    match radius {
        0.0 => (centre, 0.0),
        radius if radius > 0.0 => (centre, radius.next_up()),
        _ => (centre, f64::INFINITY),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `a * b = p + e` exactly (no overflow or underflow in the range tested).
    fn two_product(a: f64, b: f64) -> (f64, f64) {
        let p = a * b;
        (p, a.mul_add(b, -p))
    }

    /// `a + b = s + e` exactly.
    fn two_sum(a: f64, b: f64) -> (f64, f64) {
        let s = a + b;
        let t = s - a;
        (s, (a - (s - t)) + (b - t))
    }

    /// The dot product in twice the working precision (Ogita, Rump and Oishi's Dot2), as `high + low`.
    fn dot2(a: &[f64], b: &[f64]) -> (f64, f64) {
        let (mut high, mut low) = (0.0, 0.0);
        for (&x, &y) in a.iter().zip(b) {
            let (p, e) = two_product(x, y);
            let (s, f) = two_sum(high, p);
            high = s;
            low += e + f;
        }
        two_sum(high, low)
    }

    fn vectors() -> impl Strategy<Value = (Vec<f64>, Vec<f64>)> {
        let entry = || prop_oneof![-1e8..1e8, -1.0..1.0, -1e-8..1e-8];
        prop::collection::vec((entry(), entry()), 0..200).prop_map(|pairs| pairs.into_iter().unzip())
    }

    proptest! {
        #[test]
        fn dot_error_stays_within_gamma((a, b) in vectors()) {
            let (high, low) = dot2(&a, &b);
            let magnitude = a.iter().zip(&b).map(|(x, y)| (x * y).abs()).sum::<f64>();
            let error = ((dot(&a, &b) - high) - low).abs();
            prop_assert!(error <= gamma(a.len() + 2) * magnitude);
            let simd = vectorised(#[inline(always)] || dot(&a, &b));
            prop_assert!(((simd - high) - low).abs() <= gamma(a.len() + 2) * magnitude);
        }

        #[test]
        fn the_pair_of_sums_agrees_with_the_single_ones((a, b) in vectors()) {
            let r: Vec<f64> = b.iter().map(|x| x.abs()).collect();
            let (centre, radius) = dot_and_abs(&a, &b, &r);
            let magnitude = dot_abs(&a, &r);
            prop_assert!((centre - dot(&a, &b)).abs() <= 2.0 * gamma(a.len() + 2) * magnitude);
            prop_assert!((radius - magnitude).abs() <= 2.0 * gamma(a.len() + 2) * magnitude);
            let exact = dot2(&a.iter().map(|x| x.abs()).collect::<Vec<_>>(), &r);
            prop_assert!(sum_upper(radius, a.len()) >= exact.0 + exact.1);
        }

        #[test]
        fn centre_and_radius_enclose(a in -1e9f64..1e9, b in -1e9f64..1e9) {
            let (lower, upper) = (a.min(b), a.max(b));
            let (centre, radius) = centre_radius(lower, upper);
            // Exact comparison: `centre - radius <= lower` iff the two-term difference is not above.
            let (difference, error) = two_sum(centre, -radius);
            prop_assert!(difference < lower || (difference == lower && error <= 0.0));
            let (sum, error) = two_sum(centre, radius);
            prop_assert!(sum > upper || (sum == upper && error >= 0.0));
        }
    }

    #[test]
    fn gamma_rounds_up_and_gives_up_at_absurd_lengths() {
        assert!(gamma(1) > UNIT_ROUNDOFF);
        assert!(gamma(usize::MAX).is_infinite());
    }
}
