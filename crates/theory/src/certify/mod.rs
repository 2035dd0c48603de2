//! The verdict about a map with its weights: by its form if that suffices, else by the closing tests, else by a
//! search for two fixed points.

mod closing_search;
mod frequencies;
mod proof;
mod secants;

use std::borrow::Cow;

use self::closing_search::{COLD_ROUNDS, Closing, Warm, warm_search};
use self::frequencies::frequency_proof;
pub(crate) use self::proof::stated;
use self::proof::{Proof, splitting_proof, weighted_sup_proof};
pub(crate) use self::secants::{SECANT_MARGIN, SECANT_REACH, WIDER_MARGINS};
use self::secants::{secant_proof, secant_test};
use crate::by_form::{self, WeightFacts};
use crate::certificate::{Attempt, Certificate, Domain, Evidence, Metric, Scope, Theorem, Verdict};
use crate::closing::weighted_sup;
use crate::ibp;
use crate::interval::Interval;
use crate::map::{BadMap, Form, MapSpec, SignStructure};
use crate::operator::Operator;
use crate::response::{Inputs, Layer};
use crate::{monotone, normalised, refute};

/// Tests that need the matrix itself are tried up to this many unknowns.
pub const DENSE_LIMIT: usize = 1024;

/// Certifies maps, one set of weights after the other. Between calls for all inputs it keeps the vectors that its searches
/// found, so that following the weights of a training run costs a few products.
///
/// ```
/// use subdeq_theory::activation::Activation;
/// use subdeq_theory::certify::Certifier;
/// use subdeq_theory::map::MapSpec;
/// use subdeq_theory::operator::Operator;
///
/// let map = MapSpec::single(Activation::Tanh, 1.2);
/// let mut certifier = Certifier::new();
/// let mild = Operator::dense(2, vec![0.4, -0.4, -0.4, 0.4])?;
/// assert!(certifier.all_inputs(&map, &mild)?.verdict.is_proven());
/// let strong = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
/// assert!(certifier.all_inputs(&map, &strong)?.verdict.is_refuted());
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
    /// The map's own parameters are at fault.
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

    /// The verdict for every input `y >= 0` (every real input of a monotone map). A refutation names the input.
    ///
    /// # Errors
    /// A map whose parameters make no sense.
    pub fn all_inputs(&mut self, map: &MapSpec, weights: &Operator) -> Result<Certificate, CertifyError> {
        map.check()?;
        let verdict = self.decide(map, weights, &Scope::AllInputs);
        Ok(Certificate { map: map.clone(), scope: Scope::AllInputs, verdict })
    }

    /// The verdict for every input with `0 <= y <= ymax`.
    ///
    /// # Errors
    /// A map whose parameters make no sense, or a `ymax` of the wrong length or with an entry not finite or negative.
    pub fn input_set(
        &mut self,
        map: &MapSpec,
        weights: &Operator,
        ymax: &[f64],
    ) -> Result<Certificate, CertifyError> {
        map.check()?;
        check_injection(map, weights, ymax)?;
        if let Some(index) = ymax.iter().position(|y| *y < 0.0) {
            return Err(CertifyError::Injection { index, value: ymax[index], must: "at least 0" });
        }
        let scope = Scope::InputSet { ymax: ymax.to_vec() };
        let verdict = self.decide(map, weights, &scope);
        Ok(Certificate { map: map.clone(), scope, verdict })
    }

    /// The verdict for one input. Negative entries are allowed, although no proof by form survives them.
    ///
    /// # Errors
    /// A map whose parameters make no sense, or a `y` of the wrong length or with an entry that is not finite.
    pub fn sample(
        &mut self,
        map: &MapSpec,
        weights: &Operator,
        y: &[f64],
    ) -> Result<Certificate, CertifyError> {
        map.check()?;
        check_injection(map, weights, y)?;
        let scope = Scope::Sample { y: y.to_vec() };
        let verdict = self.decide(map, weights, &scope);
        Ok(Certificate { map: map.clone(), scope, verdict })
    }

    /// Tries one closing test alone, on one set: for studies of how sharp each is.
    ///
    /// # Errors
    /// As for [`Certifier::all_inputs`], [`Certifier::input_set`] and [`Certifier::sample`].
    pub fn close(
        &mut self,
        map: &MapSpec,
        weights: &Operator,
        scope: &Scope,
        domain: Domain,
        theorem: Theorem,
    ) -> Result<Option<Certificate>, CertifyError> {
        map.check()?;
        if let Scope::Sample { y } | Scope::InputSet { ymax: y } = scope {
            check_injection(map, weights, y)?;
        }
        let operator = effective(map, weights);
        let Some(layer) = Layer::new(map, &operator, inputs(scope)) else { return Ok(None) };
        if map.normalisation.is_some() {
            return Ok(None);
        }
        let proof = self.close_layer(&layer, domain, theorem, &mut Vec::new());
        Ok(proof.map(|proof| Certificate {
            map: map.clone(),
            scope: scope.clone(),
            verdict: proof.verdict(),
        }))
    }

    fn decide(&mut self, map: &MapSpec, weights: &Operator, scope: &Scope) -> Verdict {
        let mut tried = Vec::new();
        match prove_by_form(map, weights, scope) {
            Ok(verdict) => return verdict,
            Err(attempt) => tried.push(attempt),
        }
        let operator = effective(map, weights);
        let Some(layer) = Layer::new(map, &operator, inputs(scope)) else {
            let why = "this form is proved by its form or not at all".to_owned();
            return Verdict::Unproven { why, tried };
        };
        let proof = if let Some(norm) = map.normalisation {
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
        map: &MapSpec,
        layer: &Layer<'_>,
        scope: &Scope,
        tried: &mut Vec<Attempt>,
    ) -> Option<Proof> {
        if let Form::Monotone { margin } = map.form {
            match monotone::Splitting::certify(layer.operator, map.activation, margin) {
                Ok(splitting) => return Some(splitting_proof(splitting)),
                Err(attempt) => tried.push(attempt),
            }
        }
        use Theorem::{DiagonalStability, LogJacobian, SlopeInterval, WeightedSup, WeightedTwoNorm};
        let propagated = Domain::Propagated { steps: ibp::MAX_STEPS };
        if *scope == Scope::AllInputs {
            let everywhere = [WeightedSup, WeightedTwoNorm, DiagonalStability];
            let proof = self.close_everywhere(layer, &everywhere, tried);
            if proof.is_some() {
                return proof;
            }
        }
        let (state, mut closing) = match Closing::on_box(layer, propagated) {
            Some(both) => both,
            None if *scope == Scope::AllInputs => return None,
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
                    let sums = conv.channel_sums();
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

fn check_injection(map: &MapSpec, weights: &Operator, y: &[f64]) -> Result<(), CertifyError> {
    let two_injections = matches!(map.form, Form::PowerRatio { .. });
    let expected = weights.len() * if two_injections { 2 } else { 1 };
    if y.len() != expected {
        return Err(CertifyError::InjectionLength { expected, found: y.len() });
    }
    match y.iter().position(|y| !y.is_finite()) {
        Some(index) => Err(CertifyError::Injection { index, value: y[index], must: "finite" }),
        None => Ok(()),
    }
}

fn inputs(scope: &Scope) -> Inputs<'_> {
    match scope {
        Scope::AllInputs => Inputs::Unbounded,
        Scope::InputSet { ymax } => Inputs::UpTo(ymax),
        Scope::Sample { y } => Inputs::Exactly(y),
    }
}

/// The operator the map really uses.
fn effective<'a>(map: &MapSpec, weights: &'a Operator) -> Cow<'a, Operator> {
    if map.absolute_weights { Cow::Owned(weights.abs()) } else { Cow::Borrowed(weights) }
}

fn prove_by_form(map: &MapSpec, weights: &Operator, scope: &Scope) -> Result<Verdict, Attempt> {
    let y_min = match scope {
        Scope::Sample { y } => y.iter().copied().fold(f64::INFINITY, f64::min),
        Scope::AllInputs | Scope::InputSet { .. } => 0.0,
    };
    if y_min < 0.0 && map.needs_nonnegative_injection() {
        return Err(Attempt::new("form of the map", "a negative injection voids every proof by form", y_min));
    }
    // What most training steps ask about: no form helps `s(W z)` with both signs in a row, and finding that out is quick.
    if map.form == Form::Single && !map.absolute_weights && has_mixed_row(weights) {
        return Err(Attempt::new("form of the map", SignStructure::Mixed.to_string(), f64::NAN));
    }
    by_form::prove(map, &facts(map, weights), y_min)
}

fn has_mixed_row(weights: &Operator) -> bool {
    weights.rows().any(|row| row.iter().any(|&w| w > 0.0) && row.iter().any(|&w| w < 0.0))
}

/// What the form of the map needs to know about the weights.
#[must_use]
pub fn facts(map: &MapSpec, weights: &Operator) -> WeightFacts {
    let mut facts = WeightFacts::of_rows(weights.rows());
    facts.all_positive &= matches!(weights, Operator::Dense(_));
    if matches!(map.form, Form::Graph { .. }) {
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
