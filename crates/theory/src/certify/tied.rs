//! A8: `W = (1 - m) I - A'A + b (A - A')` has the margin `m` whatever `A` is; a norm of `A` gives the splitting a step and a factor.

use subdeq_map::{Form, Map, Operator};

use super::proof::Proof;
use crate::bound::Upper;
use crate::certificate::{Attempt, Evidence, Metric, Theorem};
use crate::monotone;
use crate::operator::Products;
use crate::round::STATED_SLACK;

/// Smaller weights than this, beside one, margin and `b`, are bounded by their sums alone: what they add to `||I - W||` drowns in
/// its rounding.
const SMALL: f64 = 1e-3;

/// By how much more a norm is stated than definiteness shows, for re-checks with other roundings.
const NORM_SLACK: f64 = 1e-6;

pub(super) fn prove(map: &Map, a: &Operator) -> Result<Proof, Attempt> {
    let failed = |outcome: &str| Attempt::new(Theorem::MonotoneTied.to_string(), outcome, f64::NAN);
    let Form::Tied { margin, skew } = map.form() else { return Err(failed("the map has another form")) };
    let lipschitz = lipschitz(margin, skew, norm(a, 1.0 + margin + skew.abs())).get() * (1.0 + STATED_SLACK);
    // Where the bound is least; rounded either way it is as good a step as any.
    let step = 1.0 / lipschitz;
    let factor = factor(margin, lipschitz, step);
    if !(step > 0.0 && step.is_finite() && factor < 1.0) {
        return Err(failed("the weights are too large for a splitting"));
    }
    Ok(Proof {
        theorem: Theorem::MonotoneTied,
        factor: None,
        metric: Metric::None,
        picard_converges: false,
        evidence: Evidence::Splitting { weights: Vec::new(), margin, lipschitz, step, factor },
    })
}

/// A bound of `||A||_2`: by definiteness where that is found, and by `||A||_2^2 <= ||A||_inf ||A||_1` at the most.
fn norm(a: &Operator, beside: f64) -> Upper {
    let largest = |a: &Operator| Upper::largest(a.row_sums());
    let square = largest(a) * largest(&a.transposed());
    let crude = square.get().sqrt().next_up();
    if !(crude > SMALL * beside) {
        return Upper::new(crude);
    }
    let sharp = monotone::norm(a).map_or(f64::INFINITY, |norm| norm * (1.0 + NORM_SLACK));
    Upper::new(crude.min(sharp))
}

/// `||I - W|| = ||m I + A'A - b (A - A')|| <= m + a^2 + 2 |b| a`.
fn lipschitz(margin: f64, skew: f64, norm: Upper) -> Upper {
    Upper::new(margin) + norm * norm + Upper::new(2.0 * skew.abs()) * norm
}

/// `sqrt((1 - 2tm + t^2 L^2)/(1 + 2tm + t^2 L^2))`, a little above, also where it nearly vanishes.
fn factor(margin: f64, lipschitz: f64, step: f64) -> f64 {
    let (near, far) = (2.0 * step * margin, 1.0 + (step * lipschitz).powi(2));
    (((far - near) / (far + near)).max(0.0) + STATED_SLACK).sqrt()
}
