//! Certificates by form: the architecture and the signs of the weights suffice, no weight is too large.

use crate::activation::Activation;
use crate::certificate::{Attempt, Evidence, Metric, Theorem, Verdict};
use crate::degree::forms::{self, Gain};
use crate::degree::{Domain, NoDegree, Nonlinearity, StrongDegree, WeakDegree};
use crate::interval::Interval;
use crate::map::{Form, Injection, MapSpec, SignStructure};

/// What a proof by form needs to know about the weights.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightFacts {
    /// The signs.
    pub signs: SignStructure,
    /// Whether every entry of the matrix is `> 0` (never for a zero-padded convolution or a graph).
    pub all_positive: bool,
    /// Encloses the sum of the positive entries of each row (of each output channel).
    pub excitatory: Vec<Interval>,
    /// Encloses the sum of the absolute values of the negative entries of each row.
    pub inhibitory: Vec<Interval>,
    /// An upper bound of the 2-norm, where one is known.
    pub two_norm: Option<f64>,
}

impl WeightFacts {
    /// Facts about the matrix (or kernel) whose rows are given; a kernel's row is one output channel, all taps.
    ///
    /// ```
    /// use subdeq_theory::{by_form::WeightFacts, map::SignStructure};
    /// let facts = WeightFacts::of_rows([[1.0, 2.0], [-1.0, 0.0]].iter().map(|row| row.as_slice()));
    /// assert_eq!(facts.signs, SignStructure::RowSigned);
    /// ```
    #[must_use]
    pub fn of_rows<'a>(rows: impl Iterator<Item = &'a [f64]>) -> WeightFacts {
        let (mut excitatory, mut inhibitory) = (Vec::new(), Vec::new());
        let (mut some_negative, mut some_mixed, mut all_positive) = (false, false, true);
        for row in rows {
            let sum = |part: fn(f64) -> f64| {
                let nonzero = row.iter().map(|&w| part(w)).filter(|&w| w != 0.0);
                nonzero.fold(Interval::point(0.0), |sum, w| {
                    if sum.hi == 0.0 { Interval::point(w) } else { sum + Interval::point(w) }
                })
            };
            let (plus, minus) = (sum(|w| w.max(0.0)), sum(|w| (-w).max(0.0)));
            some_negative |= minus.hi > 0.0;
            some_mixed |= plus.hi > 0.0 && minus.hi > 0.0;
            all_positive &= row.iter().all(|&w| w > 0.0);
            excitatory.push(plus);
            inhibitory.push(minus);
        }
        let signs = match (some_negative, some_mixed) {
            (false, _) => SignStructure::Nonnegative,
            (true, false) => SignStructure::RowSigned,
            (true, true) => SignStructure::Mixed,
        };
        WeightFacts { signs, all_positive, excitatory, inhibitory, two_norm: None }
    }

    /// The facts about `|W|`.
    #[must_use]
    pub fn absolute(&self) -> WeightFacts {
        let nothing = Interval::point(0.0);
        WeightFacts {
            signs: SignStructure::Nonnegative,
            all_positive: self.all_positive,
            excitatory: self.excitatory.iter().zip(&self.inhibitory).map(|(&a, &b)| a + b).collect(),
            inhibitory: vec![nothing; self.inhibitory.len()],
            two_norm: None,
        }
    }

    /// `||W||_inf`, rounded up.
    #[must_use]
    pub fn sup_norm(&self) -> f64 {
        self.excitatory.iter().zip(&self.inhibitory).map(|(&a, &b)| (a + b).hi).fold(0.0, f64::max)
    }
}

/// The paper's subhomogeneity constant of the map, for weights of any sign: what its theorem takes for a proof and what
/// is none.
///
/// # Errors
/// Where the activation has no degree on R.
pub fn weak_degree(map: &MapSpec) -> Result<WeakDegree, NoDegree> {
    nonlinearity(map, map.shift).degree(Domain::Reals).map(WeakDegree::from)
}

/// A proof of uniqueness by form, for all inputs `y >= y_min` (entrywise), or what stands in its way.
///
/// ```
/// use subdeq_theory::by_form::{self, WeightFacts};
/// use subdeq_theory::map::{Layout, MapSpec};
///
/// let signed = WeightFacts::of_rows([[7.0, -9.0], [-3.0, 5.0]].iter().map(|row| row.as_slice()));
/// // The paper's model: nothing follows from its form ...
/// assert!(by_form::prove(&MapSpec::named("subdeq-tanh", Layout::Dense)?, &signed, 0.0).is_err());
/// // ... but with the signs split, the same weights are safe.
/// assert!(by_form::prove(&MapSpec::named("split-sign", Layout::Dense)?, &signed, 0.0).is_ok());
/// # Ok::<(), subdeq_theory::map::BadMap>(())
/// ```
///
/// # Errors
/// The [`Attempt`] says which number was not below one, or which property the map lacks.
pub fn prove(map: &MapSpec, weights: &WeightFacts, y_min: f64) -> Result<Verdict, Attempt> {
    let absolute;
    let weights = if map.absolute_weights {
        absolute = weights.absolute();
        &absolute
    } else {
        weights
    };
    require_signs(map, weights.signs)?;
    let y_min = y_min.max(0.0);
    match unnormalised(map, weights, y_min) {
        Ok(unnormalised) => match map.normalisation {
            None => {
                conclude(unnormalised.theorem, unnormalised.factor, Metric::Thompson, evidence(map, weights))
            }
            Some(norm) => normalised(map, weights, norm.interacting, unnormalised),
        },
        Err(refused) => graph_propagation(map, weights).ok_or(refused),
    }
}

/// The strong degree of the map before it is normalised, and what proves it.
struct Unnormalised {
    theorem: Theorem,
    factor: StrongDegree,
}

fn require_signs(map: &MapSpec, found: SignStructure) -> Result<(), Attempt> {
    let satisfied = match map.requires {
        None => true,
        Some(SignStructure::Nonnegative) => found == SignStructure::Nonnegative,
        Some(SignStructure::RowSigned) => found != SignStructure::Mixed,
        Some(SignStructure::Mixed) => true,
    };
    if satisfied {
        return Ok(());
    }
    Err(refusal(format!("`{}` is a map for other weights, these are {found}", map.name)))
}

fn unnormalised(map: &MapSpec, weights: &WeightFacts, y_min: f64) -> Result<Unnormalised, Attempt> {
    let s = map.activation;
    let shift = effective_shift(map, y_min);
    let (theorem, factor) = match map.form {
        Form::Single | Form::Graph { .. } => return single(map, weights, y_min),
        Form::SplitSign => (Theorem::SplitSign, forms::split_sign(s, shift)),
        Form::Gains { tie } => (Theorem::Gains, forms::gains(s, &rows(weights, tie, shift))),
        Form::Divisive { .. } => {
            require_positive(map, Domain::Nonnegative, weights, y_min)?;
            (Theorem::Divisive, forms::divisive(s, shift))
        }
        Form::Rational { .. } => {
            require_positive(map, Domain::Nonnegative, weights, y_min)?;
            (Theorem::Rational, forms::rational(shift))
        }
        Form::Monomial => {
            // exp(..) > 0, so that s need not be positive at zero itself.
            let scalar = Nonlinearity::shifted(s, shift).degree(Domain::Nonnegative);
            (Theorem::Monomial, scalar.map(|mu| mu.times(weights.sup_norm())))
        }
        Form::PowerRatio { p, .. } => (Theorem::PowerRatio, Ok(StrongDegree::ONE.times(2.0).times(p))),
        Form::Monotone { .. } => {
            return Err(refusal("a monotone map is proved by its weights, not by its form".into()));
        }
    };
    let factor = factor.map_err(|why| refusal(format!("{s} + {shift}: {why}")))?;
    Ok(Unnormalised { theorem, factor: factor.times(map.power) })
}

/// `s(W z)` with its injection: rows of one sign have equal weak and strong degrees, others have none (E1).
fn single(map: &MapSpec, weights: &WeightFacts, y_min: f64) -> Result<Unnormalised, Attempt> {
    let (theorem, domain) = match (weights.signs, map.injection) {
        (SignStructure::Nonnegative, _) => (Theorem::NonnegativeWeights, Domain::Nonnegative),
        (SignStructure::RowSigned, Injection::Outer) => (Theorem::RowSignedWeights, Domain::Reals),
        (SignStructure::RowSigned, Injection::Inner) => {
            return Err(refusal(
                "an input inside the activation can outweigh any inhibition, so negative rows have no degree"
                    .into(),
            ));
        }
        (SignStructure::Mixed, _) => {
            let paper = match weak_degree(map) {
                Ok(mu) => {
                    let mu = (mu.bound() * 1e6).ceil() / 1e6;
                    format!("; the paper's condition, weak degree {mu:.6}, does not imply uniqueness")
                }
                Err(_) => String::new(),
            };
            return Err(refusal(format!("weights of both signs in one row have no strong degree{paper}")));
        }
    };
    require_positive(map, domain, weights, y_min)?;
    let degree = nonlinearity(map, effective_shift(map, y_min)).degree(domain);
    let factor = degree
        .map_err(|why| refusal(format!("{} + {} on the {domain}: {why}", map.activation, map.shift)))?;
    Ok(Unnormalised { theorem, factor })
}

/// Theorems 3 and 4.
fn normalised(
    map: &MapSpec,
    weights: &WeightFacts,
    interacting: bool,
    plain: Unnormalised,
) -> Result<Verdict, Attempt> {
    let s = map.activation;
    let twice = plain.factor.times(2.0);
    let (theorem, kappa) = if interacting {
        (Theorem::NormalisedInteracting, twice)
    } else {
        match (map.form, plain.theorem) {
            (_, Theorem::NonnegativeWeights) => (Theorem::NormalisedMonotone, plain.factor),
            (_, Theorem::RowSignedWeights) => {
                let kappa = forms::normalised_row_signed(s, map.shift);
                (Theorem::NormalisedGeneral, kappa.map_or(twice, |kappa| kappa.times(map.power)))
            }
            (Form::SplitSign, _) => {
                let kappa = forms::normalised_split_sign(s, map.shift);
                (Theorem::NormalisedGeneral, kappa.map_or(twice, |kappa| kappa.times(map.power)))
            }
            (Form::Divisive { .. } | Form::Rational { .. }, _) => (Theorem::NormalisedGeneral, plain.factor),
            _ => (Theorem::NormalisedGeneral, twice),
        }
    };
    conclude(theorem, kappa, Metric::Hilbert, evidence(map, weights))
}

/// `(1 - t) ||A||_2 < 1` and slopes in [0, 1]: a contraction in the Frobenius norm, for inputs of any sign.
pub fn graph_propagation(map: &MapSpec, weights: &WeightFacts) -> Option<Verdict> {
    let Form::Graph { teleport } = map.form else { return None };
    let plain = map.normalisation.is_none() && map.power == 1.0 && map.activation.slopes_in_unit_interval();
    let norm = weights.two_norm.filter(|_| plain)?;
    let kept = Interval::point(1.0) - Interval::point(teleport);
    let factor = (kept * Interval::point(norm)).hi;
    (factor < 1.0).then(|| Verdict::Proven {
        theorem: Theorem::GraphPropagation,
        factor: Some(factor),
        metric: Metric::WeightedTwoNorm { t: Vec::new() },
        picard_converges: true,
        evidence: Evidence::ByForm { signs: weights.signs, weight_norm: Some(norm) },
    })
}

fn conclude(
    theorem: Theorem,
    factor: StrongDegree,
    metric: Metric,
    evidence: Evidence,
) -> Result<Verdict, Attempt> {
    if factor.is_contraction() {
        return Ok(Verdict::Proven {
            theorem,
            factor: Some(factor.bound()),
            metric,
            picard_converges: true,
            evidence,
        });
    }
    let c = factor.bound();
    Err(Attempt::new(theorem.to_string(), format!("the factor is {c:.6}, which is not below one"), c))
}

fn evidence(map: &MapSpec, weights: &WeightFacts) -> Evidence {
    match map.form {
        Form::Gains { .. } => Evidence::RowGains {
            excitatory: weights.excitatory.clone(),
            inhibitory: weights.inhibitory.clone(),
        },
        Form::Monomial => Evidence::ByForm { signs: weights.signs, weight_norm: Some(weights.sup_norm()) },
        _ => Evidence::ByForm { signs: weights.signs, weight_norm: None },
    }
}

fn rows(weights: &WeightFacts, tie: f64, shift: f64) -> Vec<Gain> {
    let pairs = weights.excitatory.iter().zip(&weights.inhibitory);
    pairs.map(|(&excitatory, &inhibitory)| Gain { excitatory, inhibitory, tie, shift }).collect()
}

fn nonlinearity(map: &MapSpec, shift: f64) -> Nonlinearity {
    let activation =
        if matches!(map.form, Form::Rational { .. }) { Activation::Softsign } else { map.activation };
    Nonlinearity { activation, shift, power: map.power }
}

/// An outer injection adds to the shift (A1), unless a power stands between them.
fn effective_shift(map: &MapSpec, y_min: f64) -> f64 {
    let injected = match map.form {
        Form::Graph { teleport } => (teleport * y_min).next_down().max(0.0),
        _ => y_min,
    };
    if map.injection == Injection::Outer && map.power == 1.0 && injected > 0.0 {
        (map.shift + injected).next_down()
    } else {
        map.shift
    }
}

/// The theorems are about maps of the open orthant into itself.
fn require_positive(map: &MapSpec, domain: Domain, weights: &WeightFacts, y_min: f64) -> Result<(), Attempt> {
    let shifted = nonlinearity(map, effective_shift(map, y_min));
    let injected = y_min > 0.0
        && match map.injection {
            Injection::Outer => shifted.degree(domain).is_ok(),
            Injection::Inner => {
                let teleport = if let Form::Graph { teleport } = map.form { teleport } else { 1.0 };
                let least = Interval::point(y_min) * Interval::point(teleport);
                let preactivation = Interval::point(least.lo.max(0.0));
                (map.activation.enclose(preactivation) + Interval::point(map.shift)).lo > 0.0
            }
        };
    // With every weight positive, W z > 0 for every z on the normalised slice, also where z has zeros.
    let slice = map.normalisation.is_some() && weights.all_positive && domain == Domain::Nonnegative;
    if shifted.is_strictly_positive(domain) || injected || slice {
        return Ok(());
    }
    Err(refusal(format!(
        "the map is not strictly positive where an input is zero ({} + {} vanishes or is negative there); a larger \
         shift or inputs bounded away from zero would help",
        map.activation, map.shift
    )))
}

fn refusal(outcome: String) -> Attempt {
    Attempt { test: "proof by form".into(), outcome, value: None }
}
