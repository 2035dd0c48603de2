//! Proof that a small ball contains exactly one fixed point: Krawczyk's operator, in the norm form. With `C` an approximate
//! inverse of `I - J`, the ball `|z - m| <= r` (sup norm) contains exactly one zero of `z - G(z)` if
//! `||C (m - G(m))|| + ||I - C (I - J)|| r < r` for all Jacobians over the ball.

use crate::bound::Upper;
use crate::interval::Interval;
use crate::lu::{determinant_sign, inverse, residual};
use crate::model::Model;

/// A ball with exactly one fixed point in it.
#[derive(Clone, Debug)]
pub(crate) struct Verified {
    pub(crate) point: Vec<f64>,
    pub(crate) radius: f64,
}

/// Radii tried, largest last: the first that works is reported.
const RADII: [f64; 4] = [1e-12, 1e-10, 1e-8, 1e-6];

/// Verifies the fixed point near `point`, if there is one.
pub(crate) fn verify(model: &Model<'_>, point: &[f64]) -> Option<Verified> {
    let n = model.len();
    if !point.iter().all(|x| x.is_finite()) {
        return None;
    }
    let here: Vec<Interval> = point.iter().map(|&x| Interval::point(x)).collect();
    let image = model.enclose(&here)?;
    let defects: Vec<Upper> =
        image.iter().zip(point).map(|(g, &x)| Upper::new((Interval::point(x) - *g).magnitude())).collect();
    let c = inverse(&model.one_minus_jacobian(&here)?.centre, n)?;
    let alpha = largest_row(&c, &defects);
    let radius = RADII.into_iter().find(|&r| {
        // Only where alpha alone does not rule the ball out is its Jacobian worth the work.
        alpha.get() < r
            && spread(model, point, r, &c)
                .is_some_and(|spread| (alpha + spread * Upper::new(r)).get() < r * (1.0 - 1e-9))
    })?;
    Some(Verified { point: point.to_vec(), radius })
}

/// `||I - C (I - J)||` over the ball.
fn spread(model: &Model<'_>, point: &[f64], radius: f64, c: &[f64]) -> Option<Upper> {
    let n = point.len();
    let on: Vec<Interval> =
        point.iter().map(|&x| Interval::new((x - radius).next_down(), (x + radius).next_up())).collect();
    let ball = model.one_minus_jacobian(&on)?;
    let radii: Vec<Upper> =
        ball.radius.chunks_exact(n).map(|row| row.iter().map(|&r| Upper::new(r)).sum()).collect();
    Some(residual(c, &ball.centre, n) + largest_row(c, &radii))
}

/// The largest entry of `|C| x`.
fn largest_row(c: &[f64], x: &[Upper]) -> Upper {
    let row = |row: &[f64]| row.iter().zip(x).map(|(c, &x)| Upper::new(c.abs()) * x).sum();
    c.chunks_exact(x.len()).map(row).fold(Upper::ZERO, Upper::max)
}

/// Whether `det(I - J) < 0` at the verified fixed point: its index is then -1. (All Jacobians over the ball are nonsingular,
/// so their determinants have one sign; that of one of them is proved.)
pub(crate) fn has_negative_index(model: &Model<'_>, found: &Verified) -> bool {
    let here: Vec<Interval> = found.point.iter().map(|&x| Interval::point(x)).collect();
    let Some(ball) = model.one_minus_jacobian(&here) else { return false };
    // The centre lies in the set of Jacobians over the ball, up to a rounding that the strict inequality above covers.
    determinant_sign(&ball.centre, model.len()) == Some(-1.0)
}
