//! A proof by one test, and how its factor is stated.

use crate::certificate::{Attempt, Domain, Evidence, Metric, States, Theorem, Verdict};
use crate::monotone;
use crate::round::STATED_SLACK;

/// How far above the computed bound a factor is stated that rests on a factorisation or on a box, whose re-check loses more
/// digits.
const FACTORISED_SLACK: f64 = 1e-7;

/// The smallest factor that is stated.
const LEAST_STATED: f64 = 1e-12;

/// A proof by one test, before it is put into words.
pub(super) struct Proof {
    pub(super) theorem: Theorem,
    pub(super) factor: Option<f64>,
    pub(super) metric: Metric,
    /// Whether plain iteration converges, from every real start.
    pub(super) picard_converges: bool,
    pub(super) evidence: Evidence,
}

impl Proof {
    pub(super) fn verdict(self) -> Verdict {
        Verdict::Proven {
            theorem: self.theorem,
            factor: self.factor,
            metric: self.metric,
            // These tests look at every real state: boxes hold the image of all of them.
            states: States::Reals,
            starts: self.picard_converges.then_some(States::Reals),
            evidence: self.evidence,
        }
    }
}

/// A factor as it is stated, a little above the computed bound; `None` unless below one. It never falls below what a re-check
/// by other code can confirm: where a slope underflows, two sound bounds of it need not agree in any digit.
pub(crate) fn stated(bound: f64) -> Option<f64> {
    let stated = bound * (1.0 + STATED_SLACK);
    (stated < 1.0).then_some(stated.max(LEAST_STATED))
}

/// The same for a bound that rests on the definiteness of a matrix or on a propagated box.
pub(crate) fn stated_norm(bound: f64) -> Option<f64> {
    stated(bound * (1.0 + FACTORISED_SLACK))
}

pub(super) fn splitting_proof(splitting: monotone::Splitting) -> Proof {
    Proof {
        theorem: Theorem::Monotone,
        factor: None,
        metric: Metric::None,
        picard_converges: false,
        evidence: splitting.into(),
    }
}

pub(super) fn weighted_sup_proof(
    theta: f64,
    v: &[f64],
    domain: Domain,
    tried: &mut Vec<Attempt>,
) -> Option<Proof> {
    let Some(factor) = stated(theta) else {
        tried.push(Attempt::new(name(Theorem::WeightedSup, domain), "theta is not below 1", theta));
        return None;
    };
    Some(Proof {
        theorem: Theorem::WeightedSup,
        factor: Some(factor),
        metric: Metric::WeightedSup { v: v.to_vec() },
        picard_converges: true,
        evidence: Evidence::Closing { domain, weights: v.to_vec() },
    })
}

pub(super) fn name(theorem: Theorem, domain: Domain) -> String {
    match domain {
        Domain::Everywhere => format!("{theorem} for all inputs"),
        Domain::Propagated { steps } => format!("{theorem} on the box after {steps} steps"),
    }
}
