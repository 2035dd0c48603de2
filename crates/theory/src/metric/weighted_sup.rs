use super::entries_per_weight;
use crate::bound::Upper;

/// The weighted sup norm of the difference, `max_i |x_i - y_i| / v_i`, `v > 0` with one weight per entry or per block
/// of neighbouring entries.
///
/// ```
/// use subdeq_theory::metric::weighted_sup;
/// assert_eq!(weighted_sup(&[1.0, 2.0], &[0.0, 0.0], &[1.0, 4.0]), 1.0);
/// assert_eq!(weighted_sup(&[f64::NAN], &[0.0], &[1.0]), f64::INFINITY, "not a number is far from everything");
/// ```
///
/// # Panics
/// Where the lengths differ or the weights do not divide the entries evenly.
#[must_use]
pub fn weighted_sup(x: &[f64], y: &[f64], v: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "a distance is between vectors of equal length");
    let block = entries_per_weight(x.len(), v.len());
    let quotients = x.iter().zip(y).enumerate().map(|(i, (a, b))| (a - b).abs() / v[i / block]);
    Upper::largest(quotients).get()
}
