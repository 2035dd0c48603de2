//! The verdict about a map with its weights: by its form if that suffices, else by the closing tests, else by a
//! search for two fixed points.

use std::borrow::Cow;
use std::rc::Rc;

use crate::by_form::{self, WeightFacts};
use crate::certificate::{Attempt, Certificate, Domain, Evidence, Metric, Scope, Theorem, Verdict};
use crate::closing::{diagonal_stability, log_jacobian, slope_interval, two_norm, weighted_sup};
use crate::ibp::{self, Propagated};
use crate::interval::Interval;
use crate::map::{BadMap, Form, MapSpec, SignStructure};
use crate::operator::{Conv, Operator};
use crate::response::{Inputs, LEAST_SLOPE, Layer};
use crate::round::{STATED_SLACK, gamma};
use crate::secant::{self, Anchor};
use crate::{frequency, monotone, newton, normalised, refute};

/// The smallest factor that is stated.
const LEAST_STATED: f64 = 1e-12;
/// Tests that need the matrix itself are tried up to this many unknowns.
pub const DENSE_LIMIT: usize = 1024;
/// Steps of Collatz and Wielandt's iteration: per call when warm started, and from scratch.
const WARM_ROUNDS: usize = 3;
const COLD_ROUNDS: usize = 60;
/// Secant tests need the fixed points within this of the anchor (in preactivations): a secant from the fixed point itself
/// is then steeper by at most `2 reach / (neighbourhood - reach)`, a tenth of what [`secant::INFLATION`] allows; a re-check,
/// whose roundings are coarser, may use half.
pub(crate) const SECANT_REACH: f64 = 2e-11;
/// T3 with secant slopes promises no rate, so it needs no secant from the fixed point itself: only that any two fixed points
/// lie where the tangents count too ([`secant::NEIGHBOURHOOD`]), half of it here, the rest for a re-check.
const SECANT_STABILITY_REACH: f64 = 0.5 * secant::NEIGHBOURHOOD;
/// The margin asked of T3 with secant slopes, which bounds how far a fixed point can be from the anchor.
pub(crate) const SECANT_MARGIN: f64 = 1e-6;

/// Why tests that give uniqueness alone are not tried for a power: there is no operator splitting for it, and plain
/// iteration may cycle around the one fixed point (E8), so the promise would be of no use.
const POWER_NEEDS_PICARD: &str =
    "uniqueness alone is no use for a power, which only plain iteration can solve";

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

/// What the searches of the tests for all inputs found in the last call.
#[derive(Clone, Debug, Default)]
struct Warm {
    /// The vector of T1, a right Perron vector.
    right: Vec<f64>,
    /// The left one, scaled by the slopes.
    left: Vec<f64>,
    /// The largest singular vector of T2.
    singular: Vec<f64>,
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

/// A factor as it is stated, a little above the computed bound; `None` unless below one. It never falls below what a re-check
/// by other code can confirm: where a slope underflows, two sound bounds of it need not agree in any digit.
pub(crate) fn stated(bound: f64) -> Option<f64> {
    let stated = bound * (1.0 + STATED_SLACK);
    (stated < 1.0).then_some(stated.max(LEAST_STATED))
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

/// T1's search, from `v` where it fits.
fn warm_search(operator: &Operator, d: &[f64], v: &mut Vec<f64>) -> f64 {
    let warm = v.len() == d.len();
    if !warm {
        *v = vec![1.0; d.len()];
    }
    weighted_sup::search(operator, d, v, if warm { WARM_ROUNDS } else { COLD_ROUNDS })
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
    matrix: Option<Rc<Cow<'b, [f64]>>>,
    warm: Warm,
    /// T1's bound, once computed; its vector is `warm.right`.
    theta: Option<f64>,
    /// Whether `warm.left` belongs to these slopes.
    left_is_new: bool,
}

impl<'a, 'b> Closing<'a, 'b> {
    fn new(layer: &'a Layer<'b>, domain: Domain, slopes: Vec<Interval>, warm: Warm) -> Closing<'a, 'b> {
        let d = slopes.iter().map(|s| s.magnitude().max(LEAST_SLOPE)).collect();
        Closing { layer, domain, slopes, d, matrix: None, warm, theta: None, left_is_new: false }
    }

    fn everywhere(layer: &'a Layer<'b>, warm: Warm) -> Closing<'a, 'b> {
        let slope = layer.response.slope(Interval::ALL);
        Closing::new(layer, Domain::Everywhere, vec![slope; layer.len()], warm)
    }

    /// On the box after at most `domain`'s steps of propagation.
    fn on_box(layer: &'a Layer<'b>, domain: Domain) -> Option<(Propagated, Closing<'a, 'b>)> {
        let Domain::Propagated { steps } = domain else { return None };
        let state = ibp::propagate(layer, steps, ibp::SETTLED)?;
        let slopes = state.preactivations.iter().map(|&u| layer.response.slope(u)).collect();
        let domain = Domain::Propagated { steps: state.steps };
        Some((state, Closing::new(layer, domain, slopes, Warm::default())))
    }

    /// T1's bound and its vector.
    fn perron(&mut self) -> (f64, &[f64]) {
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
    fn has_matrix(&self) -> bool {
        self.layer.len() <= DENSE_LIMIT
    }

    fn matrix(&mut self) -> Option<Rc<Cow<'b, [f64]>>> {
        if self.matrix.is_none() {
            self.matrix = self.layer.operator.matrix(DENSE_LIMIT).map(Rc::new);
        }
        self.matrix.clone()
    }

    /// `D x` for the left Perron vector `x` of `D|W|`: the right one of `D|W^T|`.
    fn left_perron(&mut self) -> &[f64] {
        if !self.left_is_new {
            warm_search(&self.layer.operator.transposed(), &self.d, &mut self.warm.left);
            self.left_is_new = true;
        }
        &self.warm.left
    }

    /// The diagonal scaling `T`, other than the identity, worth trying for T2.
    fn balanced_norm_weights(&mut self) -> Vec<f64> {
        let p = self.balanced_stability_weights();
        p.iter().zip(&self.d).map(|(p, d)| clamped((p / d).sqrt())).collect()
    }

    /// The diagonal matrix `P` made of both Perron vectors.
    fn balanced_stability_weights(&mut self) -> Vec<f64> {
        self.perron();
        self.left_perron();
        self.warm.left.iter().zip(&self.warm.right).map(|(q, v)| clamped(q / v)).collect()
    }

    /// T2's bound with the first diagonal scaling that gives one, and the scaling.
    fn two_norm(&mut self) -> Option<(f64, Vec<f64>)> {
        let matrix = self.matrix()?;
        let ones = vec![1.0; self.d.len()];
        let bound = |closing: &mut Self, t: &[f64]| {
            two_norm::bound(&matrix, &closing.d, t, &mut closing.warm.singular).and_then(stated)
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
    fn stable_weights<R>(
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

/// Scalings stay where their squares and quotients neither overflow nor vanish.
fn clamped(x: f64) -> f64 {
    x.clamp(1e-100, 1e100)
}

/// The Perron vector of `D|W|` with the channel sums in place of the taps and the steepest slope of each channel, constant over
/// the pixels: where the search on all pixels starts.
fn channel_perron(conv: &Conv, d: &[f64]) -> Vec<f64> {
    let pixels = d.len() / conv.channels();
    let steepest: Vec<f64> = d.chunks_exact(pixels).map(|d| d.iter().copied().fold(0.0, f64::max)).collect();
    let mut v = vec![1.0; conv.channels()];
    weighted_sup::search(&conv.channel_sums(), &steepest, &mut v, COLD_ROUNDS);
    v.iter().flat_map(|&v| std::iter::repeat_n(v, pixels)).collect()
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
        let domain = Domain::Propagated { steps: self.steps };
        let mut closing = Closing::new(self.layer, domain, slopes, Warm::default());
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
        let (factor, weights, metric, reach, allowed) = match theorem {
            Theorem::SecantWeightedSup => {
                let (theta, v) = closing.perron();
                let v = v.to_vec();
                let Some(factor) = stated(theta) else { return failed("theta is not below 1", theta) };
                let mut image = vec![0.0; n];
                self.layer.operator.apply_abs(&v, &mut image);
                let off = residual.iter().zip(&v).map(|(r, v)| r / v).fold(0.0, f64::max);
                let reach = image.iter().copied().fold(0.0, f64::max) * off / (1.0 - factor) * loosely;
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
                    scaled.exceeds(SECANT_MARGIN).then_some(s)
                });
                let Some((p, s)) = found else { return failed("not positive definite", f64::NAN) };
                // |S P W (zt - z_k)|_2 over the margin bounds S^-1 (z' - zt).
                let push = s.iter().zip(&p).map(|(s, p)| (s * p) * (s * p)).sum::<f64>().sqrt();
                let far = push * row_sum * top_residual / SECANT_MARGIN;
                let top_s = s.iter().copied().fold(0.0, f64::max);
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
