use super::thompson::log_ratio;
use crate::bound::Upper;

/// Hilbert's projective metric `max_i ln(x_i/y_i) - min_i ln(x_i/y_i)` on positive vectors: zero for vectors that
/// differ by a factor only.
///
/// ```
/// use subdeq_theory::metric::hilbert;
/// assert!(hilbert(&[1.0, 2.0], &[10.0, 20.0]) < 1e-15);
/// assert!((hilbert(&[1.0, 2.0], &[2.0, 1.0]) - 4f64.ln()).abs() < 1e-15);
/// ```
///
/// # Panics
/// Where the lengths differ.
#[must_use]
pub fn hilbert(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "a distance is between vectors of equal length");
    let ratios = || x.iter().zip(y).map(|(&a, &b)| log_ratio(a, b));
    if !ratios().all(f64::is_finite) {
        return f64::INFINITY;
    }
    let bottom = ratios().fold(f64::INFINITY, f64::min);
    Upper::largest(ratios().map(|ratio| ratio - bottom)).get()
}
