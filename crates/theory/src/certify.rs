//! The verdict about a map with its weights: by its form if that suffices, else by the closing tests, else by a
//! search for two fixed points.

use std::borrow::Cow;

use crate::by_form::{self, WeightFacts};
use crate::certificate::{Attempt, Certificate, Domain, Evidence, Metric, Scope, Theorem, Verdict};
use crate::closing::{diagonal_stability, log_jacobian, slope_interval, two_norm, weighted_sup};
use crate::ibp::{self, Propagated};
use crate::interval::Interval;
use crate::map::{BadMap, Form, MapSpec, SignStructure};
use crate::operator::Operator;
use crate::response::{Inputs, LEAST_SLOPE, Layer};
use crate::round::{STATED_SLACK, gamma};
use crate::secant::{self, Anchor};
use crate::{frequency, monotone, newton, normalised, refute};

/// Tests that need the matrix itself are tried up to this many unknowns.
pub const DENSE_LIMIT: usize = 1024;
/// Steps of Collatz and Wielandt's iteration: per call when warm started, and from scratch.
const WARM_ROUNDS: usize = 3;
const COLD_ROUNDS: usize = 60;
/// Secant tests need the fixed points within this of the anchor (in preactivations): a secant from the fixed point itself
/// is then steeper by at most `2 reach / (neighbourhood - reach)`, a tenth of what [`secant::INFLATION`] allows; a re-check,
/// whose roundings are coarser, may use half.
pub(crate) const SECANT_REACH: f64 = 2e-11;
/// The margin asked of T3 with secant slopes, which bounds how far a fixed point can be from the anchor.
pub(crate) const SECANT_MARGIN: f64 = 1e-6;

/// Why tests that give uniqueness alone are not tried for a power: there is no operator splitting for it, and plain
/// iteration may cycle around the one fixed point (E8), so the promise would be of no use.
const POWER_NEEDS_PICARD: &str =
    "uniqueness alone is no use for a power, which only plain iteration can solve";

/// Certifies maps, one set of weights after the other. Between calls for all inputs it keeps the vector of T1, so
/// that following the weights of a training run costs a few products.
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
    /// The vector of T1 for all inputs, from the last call.
    weights: Vec<f64>,
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

/// A proof by one test, before it is put into words.
struct Proof {
    theorem: Theorem,
    factor: Option<f64>,
    metric: Metric,
    picard_converges: bool,
    evidence: Evidence,
}

impl Proof {
    fn verdict(self) -> Verdict {
        Verdict::Proven {
            theorem: self.theorem,
            factor: self.factor,
            metric: self.metric,
            picard_converges: self.picard_converges,
            evidence: self.evidence,
        }
    }
}

/// A factor as it is stated, a little above the computed bound; `None` unless below one.
pub(crate) fn stated(bound: f64) -> Option<f64> {
    let stated = bound * (1.0 + STATED_SLACK);
    (stated < 1.0).then_some(stated)
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
            let first =
                everywhere.iter().find_map(|&t| self.close_layer(layer, Domain::Everywhere, t, tried));
            if first.is_some() {
                return first;
            }
        }
        let (state, mut closing) = match Closing::on_box(layer, propagated) {
            Some(both) => both,
            None if *scope == Scope::AllInputs => return None,
            None => {
                tried.push(Attempt::new("interval propagation", "the map is not bounded", f64::NAN));
                let everywhere = [WeightedSup, WeightedTwoNorm, DiagonalStability];
                return everywhere
                    .iter()
                    .find_map(|&t| self.close_layer(layer, Domain::Everywhere, t, tried));
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
            Domain::Everywhere if theorem == Theorem::WeightedSup => {
                self.weighted_sup_everywhere(layer, tried)
            }
            Domain::Everywhere if layer.operator.as_conv().is_some() => {
                frequency_proof(layer, theorem, tried)
            }
            Domain::Everywhere => Closing::everywhere(layer).prove(theorem, None, tried),
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

    /// T1 on all of R^n, warm started; for a convolution on its channels.
    fn weighted_sup_everywhere(&mut self, layer: &Layer<'_>, tried: &mut Vec<Attempt>) -> Option<Proof> {
        let operator = match layer.operator.as_conv() {
            Some(conv) => Cow::Owned(conv.channel_sums()),
            None => Cow::Borrowed(layer.operator),
        };
        let n = operator.len();
        let steepest = layer.response.slope(Interval::ALL).magnitude();
        let warm = self.weights.len() == n;
        if !warm {
            self.weights = vec![1.0; n];
        }
        let rounds = if warm { WARM_ROUNDS } else { COLD_ROUNDS };
        let theta = weighted_sup::search(&operator, &vec![steepest; n], &mut self.weights, rounds);
        weighted_sup_proof(theta, &self.weights, Domain::Everywhere, tried)
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

fn splitting_proof(splitting: monotone::Splitting) -> Proof {
    Proof {
        theorem: Theorem::Monotone,
        factor: None,
        metric: Metric::None,
        picard_converges: false,
        evidence: splitting.into(),
    }
}

fn weighted_sup_proof(theta: f64, v: &[f64], domain: Domain, tried: &mut Vec<Attempt>) -> Option<Proof> {
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

fn name(theorem: Theorem, domain: Domain) -> String {
    match domain {
        Domain::Everywhere => format!("{theorem} for all inputs"),
        Domain::Propagated { steps } => format!("{theorem} on the box after {steps} steps"),
    }
}

/// T2 and T3 of a convolution, by its frequencies.
fn frequency_proof(layer: &Layer<'_>, theorem: Theorem, tried: &mut Vec<Attempt>) -> Option<Proof> {
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

/// Slope bounds on a set, and what the tests share.
struct Closing<'a, 'b> {
    layer: &'a Layer<'b>,
    domain: Domain,
    slopes: Vec<Interval>,
    /// Upper bounds of `|slope|`.
    d: Vec<f64>,
    matrix: Option<Vec<f64>>,
    /// T1's bound and its vector, once computed.
    perron: Option<(f64, Vec<f64>)>,
}

impl<'a, 'b> Closing<'a, 'b> {
    fn new(layer: &'a Layer<'b>, domain: Domain, slopes: Vec<Interval>) -> Closing<'a, 'b> {
        let d = slopes.iter().map(|s| s.magnitude().max(LEAST_SLOPE)).collect();
        Closing { layer, domain, slopes, d, matrix: None, perron: None }
    }

    fn everywhere(layer: &'a Layer<'b>) -> Closing<'a, 'b> {
        let slope = layer.response.slope(Interval::ALL);
        Closing::new(layer, Domain::Everywhere, vec![slope; layer.len()])
    }

    /// On the box after at most `domain`'s steps of propagation.
    fn on_box(layer: &'a Layer<'b>, domain: Domain) -> Option<(Propagated, Closing<'a, 'b>)> {
        let Domain::Propagated { steps } = domain else { return None };
        let state = ibp::propagate(layer, steps)?;
        let slopes = state.preactivations.iter().map(|&u| layer.response.slope(u)).collect();
        let domain = Domain::Propagated { steps: state.steps };
        Some((state, Closing::new(layer, domain, slopes)))
    }

    fn perron(&mut self) -> &(f64, Vec<f64>) {
        self.perron.get_or_insert_with(|| {
            let mut v = vec![1.0; self.d.len()];
            let theta = weighted_sup::search(self.layer.operator, &self.d, &mut v, COLD_ROUNDS);
            (theta, v)
        })
    }

    fn matrix(&mut self) -> Option<&[f64]> {
        if self.matrix.is_none() {
            self.matrix = self.layer.operator.to_dense(DENSE_LIMIT);
        }
        self.matrix.as_deref()
    }

    /// `D x` for the left Perron vector `x` of `D|W|`: the right one of `D|W^T|`.
    fn left_perron(&self) -> Vec<f64> {
        let mut q = vec![1.0; self.d.len()];
        weighted_sup::search(&self.layer.operator.transposed(), &self.d, &mut q, COLD_ROUNDS);
        q
    }

    /// The diagonal scalings `T` worth trying for T2.
    fn two_norm_weights(&mut self) -> Vec<Vec<f64>> {
        let (q, d) = (self.left_perron(), self.d.clone());
        let v = &self.perron().1;
        let balanced = (0..d.len()).map(|i| (q[i] / (d[i] * v[i])).sqrt().clamp(1e-100, 1e100)).collect();
        vec![vec![1.0; d.len()], balanced]
    }

    /// The diagonal matrices `P` worth trying for T3.
    fn stability_weights(&mut self) -> Vec<Vec<f64>> {
        let (q, d) = (self.left_perron(), self.d.clone());
        let v = &self.perron().1;
        let clamped = |x: f64| x.clamp(1e-100, 1e100);
        let balanced = q.iter().zip(v).map(|(q, v)| clamped(q / v)).collect();
        let mut choices = vec![vec![1.0; d.len()], balanced];
        if self.domain != Domain::Everywhere {
            choices.push(d.iter().map(|&d| clamped(d)).collect());
            choices.push(d.iter().map(|&d| clamped(1.0 / d)).collect());
        }
        choices
    }

    fn prove(
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
                weighted_sup_proof(*theta, v, domain, tried)
            }
            Theorem::WeightedTwoNorm => {
                let choices = self.two_norm_weights();
                let d = self.d.clone();
                let matrix = self.matrix()?;
                for t in choices {
                    if let Some(factor) = two_norm::bound(matrix, &d, &t).and_then(stated) {
                        return Some(Proof {
                            theorem,
                            factor: Some(factor),
                            evidence: evidence(&t),
                            metric: Metric::WeightedTwoNorm { t },
                            picard_converges: true,
                        });
                    }
                }
                failed("the norm is not below 1", f64::NAN)
            }
            Theorem::DiagonalStability => {
                if self.slopes.iter().any(|s| s.lo < 0.0) {
                    return failed("the activation is not increasing", f64::NAN);
                }
                let ones = vec![1.0; self.d.len()];
                let d = self.d.clone();
                let holds = |p: &[f64], matrix: &[f64]| diagonal_stability::holds(matrix, &d, p);
                let found = if holds(&ones, self.matrix()?) {
                    Some(ones)
                } else {
                    let choices = self.stability_weights();
                    let matrix = self.matrix()?;
                    choices.into_iter().skip(1).find(|p| holds(p, matrix))
                };
                match found {
                    Some(p) => Some(Proof {
                        theorem,
                        factor: None,
                        metric: Metric::None,
                        picard_converges: false,
                        evidence: evidence(&p),
                    }),
                    None => failed("not positive definite", f64::NAN),
                }
            }
            Theorem::SlopeInterval => {
                let slopes = self.slopes.clone();
                match slope_interval::bound(self.matrix()?, &slopes, COLD_ROUNDS) {
                    Ok((theta, v)) if stated(theta).is_some() => Some(Proof {
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
                let degree = log_jacobian::degree(self.layer, &state.lower, &state.upper);
                match stated(degree) {
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

/// T1, T2 and T3 with secant slopes, in this order.
fn secant_proof(layer: &Layer<'_>, state: &Propagated, tried: &mut Vec<Attempt>) -> Option<Proof> {
    let secants = Secants::new(layer, state)?;
    [Theorem::SecantWeightedSup, Theorem::SecantTwoNorm, Theorem::SecantDiagonalStability]
        .iter()
        .find_map(|&theorem| secants.prove(theorem, tried))
}

fn secant_test(
    layer: &Layer<'_>,
    state: &Propagated,
    theorem: Theorem,
    tried: &mut Vec<Attempt>,
) -> Option<Proof> {
    Secants::new(layer, state)?.prove(theorem, tried)
}

/// Secant slope bounds from an approximate fixed point.
struct Secants<'a, 'b> {
    layer: &'a Layer<'b>,
    steps: usize,
    point: Vec<f64>,
    anchor: Anchor,
    slopes: Vec<f64>,
}

impl<'a, 'b> Secants<'a, 'b> {
    fn new(layer: &'a Layer<'b>, state: &Propagated) -> Option<Secants<'a, 'b>> {
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

    fn prove(&self, theorem: Theorem, tried: &mut Vec<Attempt>) -> Option<Proof> {
        let slopes: Vec<Interval> = self.slopes.iter().map(|&s| Interval::new(0.0, s)).collect();
        let mut closing = Closing::new(self.layer, Domain::Propagated { steps: self.steps }, slopes);
        let row_sum = self.layer.operator.row_sums().into_iter().fold(0.0, f64::max);
        let residual = &self.anchor.residual;
        let top_residual = residual.iter().copied().fold(0.0, f64::max);
        let mut failed = |outcome: &str, value: f64| {
            tried.push(Attempt::new(theorem.to_string(), outcome, value));
            None
        };
        let n = self.slopes.len();
        let loosely = 1.0 + gamma(4 * n + 64);
        // `reach` bounds |W (z' - z_k)| for every fixed point z', entry by entry.
        let (factor, weights, metric, reach) = match theorem {
            Theorem::SecantWeightedSup => {
                let (theta, v) = closing.perron().clone();
                let Some(factor) = stated(theta) else { return failed("theta is not below 1", theta) };
                let mut image = vec![0.0; n];
                self.layer.operator.apply_abs(&v, &mut image);
                let off = residual.iter().zip(&v).map(|(r, v)| r / v).fold(0.0, f64::max);
                let reach = image.iter().copied().fold(0.0, f64::max) * off / (1.0 - factor) * loosely;
                (Some(factor), v.clone(), Metric::WeightedSup { v }, reach)
            }
            Theorem::SecantTwoNorm => {
                let choices = closing.two_norm_weights();
                let matrix = closing.matrix()?;
                let bound = |t: &Vec<f64>| two_norm::bound(matrix, &self.slopes, t).and_then(stated);
                let Some((factor, t)) = choices.into_iter().find_map(|t| bound(&t).map(|f| (f, t))) else {
                    return failed("the norm is not below 1", f64::NAN);
                };
                let off = residual.iter().zip(&t).map(|(r, t)| (r * t) * (r * t)).sum::<f64>().sqrt();
                let least = t.iter().copied().fold(f64::INFINITY, f64::min);
                let reach = row_sum / least * off / (1.0 - factor) * loosely;
                (Some(factor), t.clone(), Metric::WeightedTwoNorm { t }, reach)
            }
            Theorem::SecantDiagonalStability => {
                if !self.layer.response.is_plain() {
                    return failed(POWER_NEEDS_PICARD, f64::NAN);
                }
                if !self.layer.response.is_increasing() {
                    return failed("the activation is not increasing", f64::NAN);
                }
                let choices = closing.stability_weights();
                let matrix = closing.matrix()?;
                let found = choices.into_iter().find_map(|p| {
                    let (scaled, s) = diagonal_stability::scaled(matrix, &self.slopes, &p);
                    scaled.exceeds(SECANT_MARGIN).then_some((p, s))
                });
                let Some((p, s)) = found else { return failed("not positive definite", f64::NAN) };
                // |S P W (zt - z_k)|_2 over the margin bounds S^-1 (z' - zt).
                let push = s.iter().zip(&p).map(|(s, p)| (s * p) * (s * p)).sum::<f64>().sqrt();
                let far = push * row_sum * top_residual / SECANT_MARGIN;
                let top_s = s.iter().copied().fold(0.0, f64::max);
                (None, p, Metric::None, row_sum * (top_s * far + top_residual) * loosely)
            }
            _ => return None,
        };
        if !(reach <= SECANT_REACH) {
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
