//! The verdict about a map with its weights: by its form if that suffices, else by the closing tests, else by a
//! search for two fixed points.

mod closing_search;
mod frequencies;
mod proof;
mod secants;
mod tied;

use subdeq_map::{BadMap, Form, Map, Operator, Padding, SignStructure, WeightClass};

use self::closing_search::{COLD_ROUNDS, Closing, Warm, warm_search};
use self::frequencies::frequency_proof;
pub(crate) use self::proof::stated_norm;
use self::proof::{Proof, splitting_proof, weighted_sup_proof};
pub(crate) use self::secants::{SECANT_MARGIN, SECANT_REACH, WIDER_MARGINS};
use self::secants::{secant_proof, secant_test};
use crate::by_form::{self, WeightFacts};
use crate::certificate::{
    Attempt, Certificate, Domain, Evidence, Metric, Refutation, Scope, States, Theorem, Verdict,
};
use crate::closing::weighted_sup;
use crate::ibp;
use crate::interval::Interval;
use crate::operator::channel_sums;
use crate::response::Layer;
use crate::{form_box, monotone, normalised, refute};

/// Tests that need the matrix itself are tried up to this many unknowns.
pub const DENSE_LIMIT: usize = 1024;

/// Certifies maps, one set of weights after the other. Between calls for all inputs it keeps the vectors that its searches
/// found, so that following the weights of a training run costs a few products.
///
/// No verdict leaves it unchecked: what [`Certificate::recheck`], independent code, refuses, is returned as unproven.
///
/// ```
/// use subdeq_map::{Activation, Map, Operator};
/// use subdeq_theory::certificate::Scope;
/// use subdeq_theory::certify::Certifier;
///
/// let map = Map::single(Activation::Tanh, 1.2)?;
/// let mut certifier = Certifier::new();
/// let mild = Operator::dense(2, vec![0.4, -0.4, -0.4, 0.4])?;
/// assert!(certifier.certify(&map, &mild, &Scope::AllInputs)?.verdict.is_proven());
/// let strong = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
/// assert!(certifier.certify(&map, &strong, &Scope::NonnegativeInputs)?.verdict.is_refuted());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Certifier {
    warm: Warm,
    proofs_only: bool,
}

/// A question that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CertifyError {
    /// The map does not fit the weights.
    #[error(transparent)]
    Map(#[from] BadMap),
    /// The injection does not fit the weights.
    #[error("the injection has {found} entries, but the layer takes {expected}")]
    InjectionLength {
        /// Entries the layer takes.
        expected: usize,
        /// Entries given.
        found: usize,
    },
    /// An entry of the injection is infinite or not a number, or negative where a set starts at zero.
    #[error("entry {index} (counting from 0) of the injection is {value}; it must be {must}")]
    Injection {
        /// Which entry.
        index: usize,
        /// Its value.
        value: f64,
        /// What it must be.
        must: &'static str,
    },
}

/// By how much more a factor is stated that is not confirmed at once.
const RESTATED: f64 = 1e-3;

/// How much larger a ball around a fixed point is stated then.
const WIDER_BALL: f64 = 100.0;

/// How the reason of a verdict begins that was found but not confirmed. It is never seen in the tests, which count it as a failure.
pub const NOT_CONFIRMED: &str = "a verdict was found, but the independent check does not confirm it";

impl Certifier {
    /// A certifier that also looks for several fixed points where it finds no proof.
    #[must_use]
    pub fn new() -> Certifier {
        Certifier::default()
    }

    /// One that looks for proofs only: what a training step can afford.
    #[must_use]
    pub fn proofs_only() -> Certifier {
        Certifier { proofs_only: true, ..Certifier::default() }
    }

    /// The verdict for the inputs of the scope. A refutation names the input.
    ///
    /// # Errors
    /// A map that means nothing on these weights, or an injection of the wrong length or with an entry that is not finite (or
    /// negative, for the upper ends of a set).
    pub fn certify(
        &mut self,
        map: &Map,
        weights: &Operator,
        scope: &Scope,
    ) -> Result<Certificate, CertifyError> {
        check_question(map, weights, scope)?;
        let verdict = self.decide(map, weights, scope);
        Ok(confirmed(Certificate { map: *map, scope: scope.clone(), verdict }, weights))
    }

    /// Tries one closing test alone, on one set: for studies of how sharp each is.
    ///
    /// # Errors
    /// As for [`Certifier::certify`].
    pub fn close(
        &mut self,
        map: &Map,
        weights: &Operator,
        scope: &Scope,
        domain: Domain,
        theorem: Theorem,
    ) -> Result<Option<Certificate>, CertifyError> {
        check_question(map, weights, scope)?;
        let Some(layer) = Layer::new(map, weights, scope) else { return Ok(None) };
        if map.normalisation().is_some() {
            return Ok(None);
        }
        let proof = self.close_layer(&layer, domain, theorem, &mut Vec::new());
        Ok(proof.map(|proof| {
            let certificate = Certificate { map: *map, scope: scope.clone(), verdict: proof.verdict() };
            confirmed(certificate, weights)
        }))
    }

    fn decide(&mut self, map: &Map, weights: &Operator, scope: &Scope) -> Verdict {
        let mut tried = Vec::new();
        match prove_by_form(map, weights, scope) {
            Ok(verdict) => return verdict,
            Err(attempt) => tried.push(attempt),
        }
        let Some(layer) = Layer::new(map, weights, scope) else {
            if let Some(verdict) = prove_on_a_box(map, weights, scope, &mut tried) {
                return verdict;
            }
            let why = "neither its form nor its weights prove it".to_owned();
            return Verdict::Unproven { why, tried };
        };
        let proof = if let Some(norm) = map.normalisation() {
            normalised::prove(&layer, norm, &mut tried).map(|(theorem, factor, steps)| Proof {
                theorem,
                factor: Some(factor),
                metric: Metric::Hilbert,
                picard_converges: true,
                evidence: Evidence::NormalisedBox { steps },
            })
        } else {
            self.prove_layer(map, &layer, scope, &mut tried)
        };
        if let Some(proof) = proof {
            return proof.verdict();
        }
        if !self.proofs_only {
            match refute::search(map, &layer, scope) {
                Some(witness) => return Verdict::Refuted { witness },
                None => tried.push(Attempt::new("search for two fixed points", "found only one", f64::NAN)),
            }
        }
        let why =
            "no test of this software settles it; that is not a proof of several fixed points".to_owned();
        Verdict::Unproven { why, tried }
    }

    /// Every closing test that applies, those that promise most first.
    fn prove_layer(
        &mut self,
        map: &Map,
        layer: &Layer<'_>,
        scope: &Scope,
        tried: &mut Vec<Attempt>,
    ) -> Option<Proof> {
        if let WeightClass::Monotone { margin } = map.weights() {
            match monotone::Splitting::certify(layer.operator, map.activation(), margin) {
                Ok(splitting) => return Some(splitting_proof(splitting)),
                Err(attempt) => tried.push(attempt),
            }
        }
        use Theorem::{DiagonalStability, LogJacobian, SlopeInterval, WeightedSup, WeightedTwoNorm};
        let propagated = Domain::Propagated { steps: ibp::MAX_STEPS };
        let unbounded = matches!(scope, Scope::AllInputs | Scope::NonnegativeInputs);
        if unbounded {
            let everywhere = [WeightedSup, WeightedTwoNorm, DiagonalStability];
            let proof = self.close_everywhere(layer, &everywhere, tried);
            if proof.is_some() {
                return proof;
            }
        }
        let (state, mut closing) = match Closing::on_box(layer, propagated) {
            Some(both) => both,
            None if unbounded => return None,
            None => {
                tried.push(Attempt::new("interval propagation", "the map is not bounded", f64::NAN));
                let everywhere = [WeightedSup, WeightedTwoNorm, DiagonalStability];
                return self.close_everywhere(layer, &everywhere, tried);
            }
        };
        for test in [WeightedSup, LogJacobian] {
            if let Some(proof) = closing.prove(test, Some(&state), tried) {
                return Some(proof);
            }
        }
        if let Scope::Sample { .. } = scope
            && let Some(proof) = secant_proof(layer, &state, tried)
        {
            return Some(proof);
        }
        [WeightedTwoNorm, DiagonalStability, SlopeInterval]
            .iter()
            .find_map(|&t| closing.prove(t, Some(&state), tried))
    }

    fn close_layer(
        &mut self,
        layer: &Layer<'_>,
        domain: Domain,
        theorem: Theorem,
        tried: &mut Vec<Attempt>,
    ) -> Option<Proof> {
        match domain {
            Domain::Everywhere => self.close_everywhere(layer, &[theorem], tried),
            Domain::Propagated { .. } => {
                let (state, mut closing) = Closing::on_box(layer, domain)?;
                match theorem {
                    Theorem::SecantWeightedSup
                    | Theorem::SecantTwoNorm
                    | Theorem::SecantDiagonalStability => secant_test(layer, &state, theorem, tried),
                    _ => closing.prove(theorem, Some(&state), tried),
                }
            }
        }
    }

    /// The tests on all of R^n, warm started; those of a convolution on its channels and frequencies.
    fn close_everywhere(
        &mut self,
        layer: &Layer<'_>,
        theorems: &[Theorem],
        tried: &mut Vec<Attempt>,
    ) -> Option<Proof> {
        if let Some(conv) = layer.operator.as_conv() {
            return theorems.iter().find_map(|&theorem| match theorem {
                Theorem::WeightedSup => {
                    let sums = channel_sums(conv)?;
                    let d = vec![layer.response.slope(Interval::ALL).magnitude(); sums.len()];
                    let theta = warm_search(&sums, &d, &mut self.warm.right);
                    weighted_sup_proof(theta, &self.warm.right, Domain::Everywhere, tried)
                }
                _ => frequency_proof(layer, theorem, tried),
            });
        }
        let mut closing = Closing::everywhere(layer, std::mem::take(&mut self.warm));
        let proof = theorems.iter().find_map(|&theorem| closing.prove(theorem, None, tried));
        self.warm = closing.warm;
        proof
    }
}

/// What the independent check refuses is not claimed. Where a factor or the ball around a fixed point hangs on the last digits, a
/// somewhat larger one may be.
fn confirmed(mut certificate: Certificate, weights: &Operator) -> Certificate {
    let mut outcome = certificate.recheck(weights);
    for _ in 0..2 {
        if outcome.is_ok() || !restate(&mut certificate.verdict) {
            break;
        }
        outcome = certificate.recheck(weights);
    }
    if let Err(refused) = outcome {
        let why = format!("{NOT_CONFIRMED} ({refused}); please report this");
        let attempt = Attempt::new("independent check", certificate.to_string(), f64::NAN);
        certificate.verdict = Verdict::Unproven { why, tried: vec![attempt] };
    }
    certificate
}

/// The same with a larger factor or larger balls; `false` where there is nothing to restate.
fn restate(verdict: &mut Verdict) -> bool {
    match verdict {
        Verdict::Proven { factor: Some(factor), .. } if *factor * (1.0 + RESTATED) < 1.0 => {
            *factor *= 1.0 + RESTATED;
            true
        }
        Verdict::Refuted { witness: Refutation::FixedPoints { radii, .. } } => {
            radii.iter_mut().for_each(|radius| *radius *= WIDER_BALL);
            true
        }
        Verdict::Refuted { witness: Refutation::Index { radius, .. } } => {
            *radius *= WIDER_BALL;
            true
        }
        Verdict::Proven { .. } | Verdict::Unproven { .. } => false,
    }
}

fn check_question(map: &Map, weights: &Operator, scope: &Scope) -> Result<(), CertifyError> {
    map.check_operator(weights)?;
    let (Scope::Sample { y } | Scope::InputSet { ymax: y }) = scope else { return Ok(()) };
    let expected = weights.len() * map.form().injection_count();
    if y.len() != expected {
        return Err(CertifyError::InjectionLength { expected, found: y.len() });
    }
    let wrong = |must: &'static str, bad: fn(&f64) -> bool| match y.iter().position(bad) {
        Some(index) => Err(CertifyError::Injection { index, value: y[index], must }),
        None => Ok(()),
    };
    wrong("finite", |y| !y.is_finite())?;
    if matches!(scope, Scope::InputSet { .. }) { wrong("at least 0", |y| *y < 0.0) } else { Ok(()) }
}

fn prove_by_form(map: &Map, weights: &Operator, scope: &Scope) -> Result<Verdict, Attempt> {
    // What most training steps ask about: no form helps `s(W z)` with both signs in a row, and finding that out is quick.
    if map.form() == Form::Single && has_mixed_row(weights) {
        return Err(Attempt::new("form of the map", SignStructure::Mixed.to_string(), f64::NAN));
    }
    if let Form::Tied { .. } = map.form() {
        return tied::prove(map, weights).map(Proof::verdict);
    }
    if map.is_monotone() {
        return Err(Attempt::new("form of the map", "a monotone map is proved by its weights", f64::NAN));
    }
    by_form::prove(map, &facts(map, weights), scope.least_entry())
}

/// A3 to A5 for given inputs: where the form alone does not suffice, the strong degree on a box may.
fn prove_on_a_box(map: &Map, weights: &Operator, scope: &Scope, tried: &mut Vec<Attempt>) -> Option<Verdict> {
    let y = scope.entries()?;
    let theorem = Theorem::LogJacobian;
    let found = form_box::prove(map, weights, &y);
    let Some((factor, steps)) = found.and_then(|(degree, steps)| Some((stated_norm(degree)?, steps))) else {
        let value = found.map_or(f64::NAN, |(degree, _)| degree);
        tried.push(Attempt::new(theorem.to_string(), "the strong degree on the box is not below 1", value));
        return None;
    };
    Some(Verdict::Proven {
        theorem,
        factor: Some(factor),
        metric: Metric::Thompson,
        states: States::Positive,
        starts: Some(States::Positive),
        evidence: Evidence::FormBox { steps },
    })
}

fn has_mixed_row(weights: &Operator) -> bool {
    weights.rows().any(|row| row.iter().any(|&w| w > 0.0) && row.iter().any(|&w| w < 0.0))
}

/// What the form of the map needs to know about the weights.
#[must_use]
pub fn facts(map: &Map, weights: &Operator) -> WeightFacts {
    let mut facts = WeightFacts::of_rows(weights.rows());
    if let Operator::Conv(conv) = weights
        && conv.padding() == Padding::Zero
    {
        facts.allow_missing_taps(conv);
    }
    facts.all_positive &= matches!(weights, Operator::Dense(_));
    facts.interacting_groups = map.normalisation().is_some_and(|norm| norm.groups.interact(weights));
    if matches!(map.form(), Form::Graph { .. }) {
        facts.two_norm = propagation_norm(weights);
    }
    facts
}

/// An upper bound of `||A||_2` for a symmetric `A`: its spectral radius is at most that of `|A|`.
fn propagation_norm(weights: &Operator) -> Option<f64> {
    // Transposing sorts the rows of a graph, so that equal operators compare equal.
    let transposed = weights.transposed();
    if transposed != transposed.transposed() {
        return None;
    }
    let mut v = vec![1.0; weights.len()];
    Some(weighted_sup::search(weights, &vec![1.0; weights.len()], &mut v, COLD_ROUNDS))
}
