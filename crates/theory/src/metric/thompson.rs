use crate::bound::Upper;

/// Thompson's metric `max_i |ln x_i - ln y_i|` on positive vectors; infinite as soon as a pair of entries has not both
/// positive or both equal values.
///
/// ```
/// use subdeq_theory::metric::thompson;
/// assert_eq!(thompson(&[1.0, 2.0], &[1.0, 2.0]), 0.0);
/// assert!((thompson(&[1.0, 2.0], &[2.0, 1.0]) - 2f64.ln()).abs() < 1e-15);
/// ```
///
/// # Panics
/// Where the lengths differ.
#[must_use]
pub fn thompson(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "a distance is between vectors of equal length");
    Upper::largest(x.iter().zip(y).map(|(&a, &b)| log_ratio(a, b).abs())).get()
}

/// `ln(a/b)`, accurate near `a = b`; infinite where it makes no sense.
pub(super) fn log_ratio(a: f64, b: f64) -> f64 {
    if a == b {
        return 0.0;
    }
    if !(a > 0.0 && b > 0.0) {
        return f64::INFINITY;
    }
    let relative = (a - b) / b;
    if relative.abs() < 0.5 { relative.ln_1p() } else { a.ln() - b.ln() }
}
