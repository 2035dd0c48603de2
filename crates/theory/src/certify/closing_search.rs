//! The closing tests on one set: slope bounds, the scalings that the tests search for, and what they share.

use std::borrow::Cow;
use std::rc::Rc;

use subdeq_map::{Conv, Operator};

use super::DENSE_LIMIT;
use super::proof::{Proof, name, stated_norm, weighted_sup_proof};
use crate::bound::Upper;
use crate::certificate::{Attempt, Domain, Evidence, Metric, Theorem};
use crate::closing::{diagonal_stability, log_jacobian, slope_interval, two_norm, weighted_sup};
use crate::ibp::{self, Propagated};
use crate::interval::Interval;
use crate::operator::{self, channel_sums};
use crate::response::{LEAST_SLOPE, Layer};

/// Steps of Collatz and Wielandt's iteration: per call when warm started, and from scratch.
const WARM_ROUNDS: usize = 3;
pub(super) const COLD_ROUNDS: usize = 60;
/// Why tests that give uniqueness alone are not tried for a power: there is no operator splitting for it, and plain
/// iteration may cycle around the one fixed point (E8), so the promise would be of no use.
pub(super) const POWER_NEEDS_PICARD: &str =
    "uniqueness alone is no use for a power, which only plain iteration can solve";

/// What the searches of the tests for all inputs found in the last call.
#[derive(Clone, Debug, Default)]
pub(super) struct Warm {
    /// The vector of T1, a right Perron vector.
    pub(super) right: Vec<f64>,
    /// The left one, scaled by the slopes.
    pub(super) left: Vec<f64>,
    /// The largest singular vector of T2.
    pub(super) singular: Vec<f64>,
}

/// Slope bounds on a set, and what the tests share.
pub(super) struct Closing<'a, 'b> {
    layer: &'a Layer<'b>,
    domain: Domain,
    slopes: Vec<Interval>,
    /// Upper bounds of `|slope|`.
    d: Vec<f64>,
    matrix: Option<Rc<Cow<'b, [f64]>>>,
    pub(super) warm: Warm,
    /// T1's bound, once computed; its vector is `warm.right`.
    theta: Option<f64>,
    /// Whether `warm.left` belongs to these slopes.
    left_is_new: bool,
}

impl<'a, 'b> Closing<'a, 'b> {
    pub(super) fn new(
        layer: &'a Layer<'b>,
        domain: Domain,
        slopes: Vec<Interval>,
        warm: Warm,
    ) -> Closing<'a, 'b> {
        let d = slopes.iter().map(|s| s.magnitude().max(LEAST_SLOPE)).collect();
        Closing { layer, domain, slopes, d, matrix: None, warm, theta: None, left_is_new: false }
    }

    pub(super) fn everywhere(layer: &'a Layer<'b>, warm: Warm) -> Closing<'a, 'b> {
        let slope = layer.response.slope(Interval::ALL);
        Closing::new(layer, Domain::Everywhere, vec![slope; layer.len()], warm)
    }

    /// On the box after at most `domain`'s steps of propagation.
    pub(super) fn on_box(layer: &'a Layer<'b>, domain: Domain) -> Option<(Propagated, Closing<'a, 'b>)> {
        let Domain::Propagated { steps } = domain else { return None };
        let state = ibp::propagate(layer, steps, ibp::SETTLED)?;
        let slopes = state.preactivations.iter().map(|&u| widened(layer.response.slope(u))).collect();
        let domain = Domain::Propagated { steps: state.steps };
        Some((state, Closing::new(layer, domain, slopes, Warm::default())))
    }

    /// T1's bound and its vector.
    pub(super) fn perron(&mut self) -> (f64, &[f64]) {
        let theta = match self.theta {
            Some(theta) => theta,
            None => {
                if self.warm.right.len() != self.d.len()
                    && let Some(conv) = self.layer.operator.as_conv()
                {
                    self.warm.right = channel_perron(conv, &self.d);
                    weighted_sup::search(self.layer.operator, &self.d, &mut self.warm.right, COLD_ROUNDS)
                } else {
                    warm_search(self.layer.operator, &self.d, &mut self.warm.right)
                }
            }
        };
        self.theta = Some(theta);
        (theta, &self.warm.right)
    }

    /// Whether the tests that need the matrix itself can be tried.
    pub(super) fn has_matrix(&self) -> bool {
        self.layer.len() <= DENSE_LIMIT
    }

    pub(super) fn matrix(&mut self) -> Option<Rc<Cow<'b, [f64]>>> {
        if self.matrix.is_none() {
            self.matrix = operator::matrix(self.layer.operator, DENSE_LIMIT).map(Rc::new);
        }
        self.matrix.clone()
    }

    /// `D x` for the left Perron vector `x` of `D|W|`: the right one of `D|W^T|`.
    pub(super) fn left_perron(&mut self) -> &[f64] {
        if !self.left_is_new {
            warm_search(&self.layer.operator.transposed(), &self.d, &mut self.warm.left);
            self.left_is_new = true;
        }
        &self.warm.left
    }

    /// The diagonal scaling `T`, other than the identity, worth trying for T2.
    pub(super) fn balanced_norm_weights(&mut self) -> Vec<f64> {
        let p = self.balanced_stability_weights();
        p.iter().zip(&self.d).map(|(p, d)| clamped((p / d).sqrt())).collect()
    }

    /// The diagonal matrix `P` made of both Perron vectors.
    pub(super) fn balanced_stability_weights(&mut self) -> Vec<f64> {
        self.perron();
        self.left_perron();
        self.warm.left.iter().zip(&self.warm.right).map(|(q, v)| clamped(q / v)).collect()
    }

    /// T2's bound with the first diagonal scaling that gives one, and the scaling.
    pub(super) fn two_norm(&mut self) -> Option<(f64, Vec<f64>)> {
        let matrix = self.matrix()?;
        let ones = vec![1.0; self.d.len()];
        let bound = |closing: &mut Self, t: &[f64]| {
            two_norm::bound(&matrix, &closing.d, t, &mut closing.warm.singular).and_then(stated_norm)
        };
        if let Some(factor) = bound(self, &ones) {
            return Some((factor, ones));
        }
        let t = self.balanced_norm_weights();
        if t == ones {
            return None;
        }
        bound(self, &t).map(|factor| (factor, t))
    }

    /// The first diagonal `P` worth trying for T3 that passes the test.
    pub(super) fn stable_weights<R>(
        &mut self,
        mut test: impl FnMut(&[f64], &[f64], &[f64]) -> Option<R>,
    ) -> Option<(Vec<f64>, R)> {
        let matrix = self.matrix()?;
        let d = self.d.clone();
        let mut passes = |p: Vec<f64>| test(&matrix, &d, &p).map(|found| (p, found));
        let ones = vec![1.0; d.len()];
        passes(ones.clone())
            .or_else(|| {
                let balanced = self.balanced_stability_weights();
                if balanced == ones { None } else { passes(balanced) }
            })
            .or_else(|| {
                if self.domain == Domain::Everywhere {
                    return None;
                }
                passes(d.iter().map(|&d| clamped(d)).collect())
                    .or_else(|| passes(d.iter().map(|&d| clamped(1.0 / d)).collect()))
            })
    }

    pub(super) fn prove(
        &mut self,
        theorem: Theorem,
        state: Option<&Propagated>,
        tried: &mut Vec<Attempt>,
    ) -> Option<Proof> {
        let domain = self.domain;
        let mut failed = |outcome: &str, value: f64| {
            tried.push(Attempt::new(name(theorem, domain), outcome, value));
            None
        };
        let evidence = |weights: &[f64]| Evidence::Closing { domain, weights: weights.to_vec() };
        let uniqueness_only = matches!(theorem, Theorem::DiagonalStability | Theorem::SlopeInterval);
        if uniqueness_only && !self.layer.response.is_plain() {
            return failed(POWER_NEEDS_PICARD, f64::NAN);
        }
        if !self.d.iter().all(|d| d.is_finite()) {
            return failed("the slopes are not bounded", f64::INFINITY);
        }
        match theorem {
            Theorem::WeightedSup => {
                let (theta, v) = self.perron();
                weighted_sup_proof(theta, v, domain, tried)
            }
            Theorem::WeightedTwoNorm => {
                if !self.has_matrix() {
                    return None;
                }
                let Some((factor, t)) = self.two_norm() else {
                    return failed("the norm is not below 1", f64::NAN);
                };
                Some(Proof {
                    theorem,
                    factor: Some(factor),
                    evidence: evidence(&t),
                    metric: Metric::WeightedTwoNorm { t },
                    picard_converges: true,
                })
            }
            Theorem::DiagonalStability => {
                if self.slopes.iter().any(|s| s.lo < 0.0) {
                    return failed("the activation is not increasing", f64::NAN);
                }
                if !self.has_matrix() {
                    return None;
                }
                let found =
                    self.stable_weights(|matrix, d, p| diagonal_stability::holds(matrix, d, p).then_some(()));
                let Some((p, ())) = found else { return failed("not positive definite", f64::NAN) };
                Some(Proof {
                    theorem,
                    factor: None,
                    metric: Metric::None,
                    picard_converges: false,
                    evidence: evidence(&p),
                })
            }
            Theorem::SlopeInterval => {
                let slopes = self.slopes.clone();
                match slope_interval::bound(&self.matrix()?, &slopes, COLD_ROUNDS) {
                    Ok((theta, v)) if stated_norm(theta).is_some() => Some(Proof {
                        theorem,
                        factor: None,
                        metric: Metric::None,
                        picard_converges: false,
                        evidence: evidence(&v),
                    }),
                    Ok((theta, _)) | Err(theta) => failed("the spectral radius is not below 1", theta),
                }
            }
            Theorem::LogJacobian => {
                let state = state?;
                let degree = log_jacobian::degree(self.layer, &state.lower, &state.upper).get();
                match stated_norm(degree) {
                    Some(factor) => Some(Proof {
                        theorem,
                        factor: Some(factor),
                        metric: Metric::Thompson,
                        picard_converges: true,
                        evidence: evidence(&[]),
                    }),
                    None => failed("the strong degree on the box is not below 1", degree),
                }
            }
            _ => None,
        }
    }
}

/// A re-check propagates the box by other code; what its last digits change in the slopes is allowed for here.
fn widened(slope: Interval) -> Interval {
    const SHARE: f64 = 1e-7;
    let (lo, hi) = (slope.lo - SHARE * slope.lo.abs(), slope.hi + SHARE * slope.hi.abs());
    Interval::new(lo, hi)
}

/// Scalings stay where their squares and quotients neither overflow nor vanish.
pub(super) fn clamped(x: f64) -> f64 {
    x.clamp(1e-100, 1e100)
}

/// The Perron vector of `D|W|` with the channel sums in place of the taps and the steepest slope of each channel, constant over
/// the pixels: where the search on all pixels starts.
pub(super) fn channel_perron(conv: &Conv, d: &[f64]) -> Vec<f64> {
    let pixels = d.len() / conv.channels();
    let steepest: Vec<f64> =
        d.chunks_exact(pixels).map(|d| Upper::largest(d.iter().copied()).get()).collect();
    let mut v = vec![1.0; conv.channels()];
    if let Some(sums) = channel_sums(conv) {
        weighted_sup::search(&sums, &steepest, &mut v, COLD_ROUNDS);
    }
    v.iter().flat_map(|&v| std::iter::repeat_n(v, pixels)).collect()
}

/// T1's search, from `v` where it fits.
pub(super) fn warm_search(operator: &Operator, d: &[f64], v: &mut Vec<f64>) -> f64 {
    let warm = v.len() == d.len();
    if !warm {
        *v = vec![1.0; d.len()];
    }
    weighted_sup::search(operator, d, v, if warm { WARM_ROUNDS } else { COLD_ROUNDS })
}
