//! T1, T2 and T3 with secant slopes from an approximate fixed point, and how far from it the fixed points can be.

use super::closing_search::{Closing, POWER_NEEDS_PICARD, Warm};
use super::proof::{Proof, stated};
use crate::bound::Upper;
use crate::certificate::{Attempt, Domain, Evidence, Metric, Theorem};
use crate::closing::diagonal_stability;
use crate::ibp::Propagated;
use crate::interval::Interval;
use crate::newton;
use crate::operator::Products;
use crate::response::Layer;
use crate::round::gamma;
use crate::secant::{self, Anchor};

/// Secant tests need the fixed points within this of the anchor (in preactivations): a secant from the fixed point itself
/// is then steeper by at most `2 reach / (neighbourhood - reach)`, a tenth of what [`secant::INFLATION`] allows; a re-check,
/// whose roundings are coarser, may use half.
pub(crate) const SECANT_REACH: f64 = 2e-11;
/// T3 with secant slopes promises no rate, so it needs no secant from the fixed point itself: only that any two fixed points
/// lie where the tangents count too ([`secant::NEIGHBOURHOOD`]): a fiftieth of it here, the rest for a re-check, whose coarser
/// residual is all rounding where the point is computed to the last digit.
const SECANT_STABILITY_REACH: f64 = 0.02 * secant::NEIGHBOURHOOD;
/// The margin asked of T3 with secant slopes, which bounds how far a fixed point can be from the anchor.
pub(crate) const SECANT_MARGIN: f64 = 1e-6;
/// Margins that most systems have and that make the bound much smaller, the largest first.
pub(crate) const WIDER_MARGINS: [f64; 2] = [1e-2, 1e-4];

/// T1, T2 and T3 with secant slopes, in this order.
pub(super) fn secant_proof(layer: &Layer<'_>, state: &Propagated, tried: &mut Vec<Attempt>) -> Option<Proof> {
    let secants = Secants::new(layer, state)?;
    [Theorem::SecantWeightedSup, Theorem::SecantTwoNorm, Theorem::SecantDiagonalStability]
        .iter()
        .find_map(|&theorem| secants.prove(theorem, tried))
}

pub(super) fn secant_test(
    layer: &Layer<'_>,
    state: &Propagated,
    theorem: Theorem,
    tried: &mut Vec<Attempt>,
) -> Option<Proof> {
    Secants::new(layer, state)?.prove(theorem, tried)
}

/// Secant slope bounds from an approximate fixed point.
pub(super) struct Secants<'a, 'b> {
    layer: &'a Layer<'b>,
    steps: usize,
    point: Vec<f64>,
    anchor: Anchor,
    slopes: Vec<f64>,
}

impl<'a, 'b> Secants<'a, 'b> {
    pub(super) fn new(layer: &'a Layer<'b>, state: &Propagated) -> Option<Secants<'a, 'b>> {
        let mut point = secant::approximate_fixed_point(layer, state);
        newton::polish(layer, &mut point);
        let anchor = Anchor::at(layer, &point);
        let slopes: Vec<f64> = anchor
            .preactivations
            .iter()
            .zip(&state.preactivations)
            .map(|(&at, &on)| secant::slope_bound(layer, at, on))
            .collect();
        slopes.iter().all(|s| s.is_finite()).then_some(Secants {
            layer,
            steps: state.steps,
            point,
            anchor,
            slopes,
        })
    }

    pub(super) fn prove(&self, theorem: Theorem, tried: &mut Vec<Attempt>) -> Option<Proof> {
        let slopes: Vec<Interval> = self.slopes.iter().map(|&s| Interval::new(0.0, s)).collect();
        let domain = Domain::Propagated { steps: self.steps };
        let mut closing = Closing::new(self.layer, domain, slopes, Warm::default());
        let row_sum = Upper::largest(self.layer.operator.row_sums()).get();
        let residual = &self.anchor.residual;
        let top_residual = Upper::largest(residual.iter().copied()).get();
        let mut failed = |outcome: &str, value: f64| {
            tried.push(Attempt::new(theorem.to_string(), outcome, value));
            None
        };
        let n = self.slopes.len();
        let loosely = 1.0 + gamma(4 * n + 64);
        // `reach` bounds |W (z' - z_k)| for every fixed point z', entry by entry.
        let (factor, weights, metric, reach, allowed) = match theorem {
            Theorem::SecantWeightedSup => {
                let (theta, v) = closing.perron();
                let v = v.to_vec();
                let Some(factor) = stated(theta) else { return failed("theta is not below 1", theta) };
                let mut image = vec![0.0; n];
                self.layer.operator.apply_abs(&v, &mut image);
                let off = Upper::largest(residual.iter().zip(&v).map(|(r, v)| r / v)).get();
                let reach = Upper::largest(image).get() * off / (1.0 - factor) * loosely;
                (Some(factor), v.clone(), Metric::WeightedSup { v }, reach, SECANT_REACH)
            }
            Theorem::SecantTwoNorm => {
                if !closing.has_matrix() {
                    return None;
                }
                let Some((factor, t)) = closing.two_norm() else {
                    return failed("the norm is not below 1", f64::NAN);
                };
                let off = residual.iter().zip(&t).map(|(r, t)| (r * t) * (r * t)).sum::<f64>().sqrt();
                let least = t.iter().copied().fold(f64::INFINITY, f64::min);
                let reach = row_sum / least * off / (1.0 - factor) * loosely;
                (Some(factor), t.clone(), Metric::WeightedTwoNorm { t }, reach, SECANT_REACH)
            }
            Theorem::SecantDiagonalStability => {
                if !self.layer.response.is_plain() {
                    return failed(POWER_NEEDS_PICARD, f64::NAN);
                }
                if !self.layer.response.is_increasing() {
                    return failed("the activation is not increasing", f64::NAN);
                }
                if !closing.has_matrix() {
                    return None;
                }
                let found = closing.stable_weights(|matrix, slopes, p| {
                    let (scaled, s) = diagonal_stability::scaled(matrix, slopes, p);
                    let wider = |&margin: &f64| scaled.exceeds(margin);
                    let margin = || WIDER_MARGINS.into_iter().find(wider).unwrap_or(SECANT_MARGIN);
                    scaled.exceeds(SECANT_MARGIN).then(|| (s, margin()))
                });
                let Some((p, (s, margin))) = found else {
                    return failed("not positive definite", f64::NAN);
                };
                // |S P W (zt - z_k)|_2 over the margin bounds S^-1 (z' - zt).
                let push = s.iter().zip(&p).map(|(s, p)| (s * p) * (s * p)).sum::<f64>().sqrt();
                let far = push * row_sum * top_residual / margin;
                let top_s = Upper::largest(s).get();
                let reach = row_sum * (top_s * far + top_residual) * loosely;
                (None, p, Metric::None, reach, SECANT_STABILITY_REACH)
            }
            _ => return None,
        };
        if !(reach <= allowed) {
            return failed("the fixed point was not computed accurately enough", reach);
        }
        Some(Proof {
            theorem,
            factor,
            metric,
            picard_converges: factor.is_some(),
            evidence: Evidence::Secant {
                steps: self.steps,
                anchor: self.point.clone(),
                slopes: self.slopes.clone(),
                weights,
            },
        })
    }
}
