//! T2 and T3 of a convolution, by its frequencies: as its channels are, or with channel weights.

use subdeq_map::{Conv, Operator};

use super::closing_search::POWER_NEEDS_PICARD;
use super::proof::{Proof, name, stated_norm};
use crate::balance;
use crate::certificate::{Attempt, Domain, Evidence, Metric, Theorem};
use crate::frequency;
use crate::interval::Interval;
use crate::response::Layer;

/// The first channel weights with which `test` accepts the scaled kernel: ones, or those that even out its rows and columns.
fn with_channel_weights<R>(layer: &Layer<'_>, test: impl Fn(&Conv) -> Option<R>) -> Option<(Vec<f64>, R)> {
    let conv = layer.operator.as_conv()?;
    if let Some(found) = test(conv) {
        return Some((vec![1.0; conv.channels()], found));
    }
    let t = balance::weights(layer.operator)?;
    let scaled = balance::scaled(layer.operator, &t)?;
    let Operator::Conv(conv) = &scaled else { return None };
    test(conv).map(|found| (t, found))
}

/// T2 and T3 of a convolution, by its frequencies.
pub(super) fn frequency_proof(
    layer: &Layer<'_>,
    theorem: Theorem,
    tried: &mut Vec<Attempt>,
) -> Option<Proof> {
    let slope = layer.response.slope(Interval::ALL);
    let evidence = |weights: Vec<f64>| Evidence::Closing { domain: Domain::Everywhere, weights };
    let attempt = |outcome: &str, value: f64| Attempt::new(name(theorem, Domain::Everywhere), outcome, value);
    match theorem {
        Theorem::WeightedTwoNorm => {
            let test = |conv: &Conv| frequency::norm_bound(conv, slope.magnitude()).and_then(stated_norm);
            let Some((t, factor)) = with_channel_weights(layer, test) else {
                tried.push(attempt("the norm at some frequency is not below 1", f64::NAN));
                return None;
            };
            Some(Proof {
                theorem,
                factor: Some(factor),
                metric: Metric::WeightedTwoNorm { t: t.clone() },
                picard_converges: true,
                evidence: evidence(t),
            })
        }
        Theorem::DiagonalStability if !layer.response.is_plain() => {
            tried.push(attempt(POWER_NEEDS_PICARD, f64::NAN));
            None
        }
        Theorem::DiagonalStability if slope.lo >= 0.0 && slope.hi.is_finite() => {
            // A hair steeper, so that a check by other code confirms it.
            let test = |conv: &Conv| frequency::is_monotone(conv, slope.hi * (1.0 + 1e-9)).then_some(());
            let Some((t, ())) = with_channel_weights(layer, test) else {
                tried.push(attempt("not positive definite at some frequency", f64::NAN));
                return None;
            };
            // P = T^2, exactly: T consists of powers of two.
            let weights = t.iter().map(|t| t * t).collect();
            Some(Proof {
                theorem,
                factor: None,
                metric: Metric::None,
                picard_converges: false,
                evidence: evidence(weights),
            })
        }
        _ => None,
    }
}
