//! T2 and T3 of a convolution, by its frequencies.

use super::closing_search::POWER_NEEDS_PICARD;
use super::proof::{Proof, name, stated};
use crate::certificate::{Attempt, Domain, Evidence, Metric, Theorem};
use crate::frequency;
use crate::interval::Interval;
use crate::response::Layer;

/// T2 and T3 of a convolution, by its frequencies.
pub(super) fn frequency_proof(
    layer: &Layer<'_>,
    theorem: Theorem,
    tried: &mut Vec<Attempt>,
) -> Option<Proof> {
    let conv = layer.operator.as_conv()?;
    let slope = layer.response.slope(Interval::ALL);
    let evidence = Evidence::Closing { domain: Domain::Everywhere, weights: vec![1.0; conv.channels()] };
    let attempt = |outcome: &str, value: f64| Attempt::new(name(theorem, Domain::Everywhere), outcome, value);
    match theorem {
        Theorem::WeightedTwoNorm => match frequency::norm_bound(conv, slope.magnitude()).and_then(stated) {
            Some(factor) => Some(Proof {
                theorem,
                factor: Some(factor),
                metric: Metric::WeightedTwoNorm { t: Vec::new() },
                picard_converges: true,
                evidence,
            }),
            None => {
                tried.push(attempt("the norm at some frequency is not below 1", f64::NAN));
                None
            }
        },
        Theorem::DiagonalStability if !layer.response.is_plain() => {
            tried.push(attempt(POWER_NEEDS_PICARD, f64::NAN));
            None
        }
        Theorem::DiagonalStability if slope.lo >= 0.0 && slope.hi.is_finite() => {
            if frequency::is_monotone(conv, slope.hi) {
                return Some(Proof {
                    theorem,
                    factor: None,
                    metric: Metric::None,
                    picard_converges: false,
                    evidence,
                });
            }
            tried.push(attempt("not positive definite at some frequency", f64::NAN));
            None
        }
        _ => None,
    }
}
