//! Proof that a small ball contains exactly one fixed point: Krawczyk's operator, in the norm form. With `C` an approximate
//! inverse of `I - J`, the ball `|z - m| <= r` (sup norm) contains exactly one zero of `z - G(z)` if
//! `||C (m - G(m))|| + ||I - C (I - J)|| r < r` for all Jacobians over the ball.

use crate::interval::Interval;
use crate::lu::{determinant_sign, inverse, residual};
use crate::model::Model;
use crate::round::gamma;

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
    let image = model.enclose(&here);
    let defects: Vec<f64> =
        image.iter().zip(point).map(|(g, &x)| (Interval::point(x) - *g).magnitude()).collect();
    let c = inverse(&model.one_minus_jacobian(&here).centre, n)?;
    let alpha = c
        .chunks_exact(n)
        .map(|row| row.iter().zip(&defects).map(|(c, d)| c.abs() * d).sum::<f64>())
        .fold(0.0, f64::max)
        * (1.0 + gamma(n + 4));
    if !alpha.is_finite() {
        return None;
    }
    let radius = RADII
        .into_iter()
        .find(|&r| r > alpha && alpha + spread(model, point, r, &c) * r < r * (1.0 - 1e-9))?;
    Some(Verified { point: point.to_vec(), radius })
}

/// `||I - C (I - J)||` over the ball.
fn spread(model: &Model<'_>, point: &[f64], radius: f64, c: &[f64]) -> f64 {
    let n = point.len();
    let on: Vec<Interval> =
        point.iter().map(|&x| Interval::new((x - radius).next_down(), (x + radius).next_up())).collect();
    let ball = model.one_minus_jacobian(&on);
    let radii: Vec<f64> = ball.radius.chunks_exact(n).map(|row| row.iter().sum::<f64>()).collect();
    let inexact = c
        .chunks_exact(n)
        .map(|row| row.iter().zip(&radii).map(|(c, r)| c.abs() * r).sum::<f64>())
        .fold(0.0, |top: f64, x| if x <= top { top } else { x });
    (residual(c, &ball.centre, n) + inexact * (1.0 + gamma(2 * n + 8))).next_up()
}

/// Whether `det(I - J) < 0` at the verified fixed point: its index is then -1. (All Jacobians over the ball are nonsingular,
/// so their determinants have one sign; that of one of them is proved.)
pub(crate) fn has_negative_index(model: &Model<'_>, found: &Verified) -> bool {
    let here: Vec<Interval> = found.point.iter().map(|&x| Interval::point(x)).collect();
    let ball = model.one_minus_jacobian(&here);
    // The centre lies in the set of Jacobians over the ball, up to a rounding that the strict inequality above covers.
    determinant_sign(&ball.centre, model.len()) == Some(-1.0)
}
