//! Certificates by form: the architecture and the signs of the weights suffice, no weight is too large.

use subdeq_map::{Activation, Conv, Form, Injection, Map, SignStructure};

use crate::activation::Enclosure;
use crate::bound::Upper;
use crate::certificate::{Attempt, Evidence, Metric, States, Theorem, Verdict};
use crate::degree::forms::{self, Gain};
use crate::degree::{Domain, NoDegree, Nonlinearity, StrongDegree, WeakDegree, tanh_above_threshold};
use crate::interval::Interval;

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
    /// Whether the groups that the map normalises depend on one another.
    pub interacting_groups: bool,
}

impl WeightFacts {
    /// Facts about the matrix (or kernel) whose rows are given; a kernel's row is one output channel, all taps.
    ///
    /// ```
    /// use subdeq_map::SignStructure;
    /// use subdeq_theory::by_form::WeightFacts;
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
        WeightFacts { signs, all_positive, excitatory, inhibitory, two_norm: None, interacting_groups: false }
    }

    /// Widens the sums of a zero-padded convolution to what they can be at the border, where only the centre taps are certain
    /// to lie inside the image.
    pub fn allow_missing_taps(&mut self, conv: &Conv) {
        let (channels, taps) = (conv.channels(), conv.tap_count());
        let centres = |output: usize, sign: f64| {
            let centre = (0..channels).map(|input| (sign * conv.taps(output, input)[taps / 2]).max(0.0));
            centre.fold(Interval::point(0.0), |sum, w| sum + Interval::point(w)).lo.max(0.0)
        };
        for (output, (a, b)) in self.excitatory.iter_mut().zip(&mut self.inhibitory).enumerate() {
            *a = Interval::new(a.lo.min(centres(output, 1.0)), a.hi);
            *b = Interval::new(b.lo.min(centres(output, -1.0)), b.hi);
        }
    }

    /// `||W||_inf`, rounded up.
    #[must_use]
    pub fn sup_norm(&self) -> f64 {
        Upper::largest(self.excitatory.iter().zip(&self.inhibitory).map(|(&a, &b)| (a + b).hi)).get()
    }
}

/// The paper's subhomogeneity constant of the map, for weights of any sign: what its theorem takes for a proof and what
/// is none.
///
/// # Errors
/// Where the activation has no degree on R.
pub fn weak_degree(map: &Map) -> Result<WeakDegree, NoDegree> {
    nonlinearity(map, map.shift()).degree(Domain::Reals).map(WeakDegree::from)
}

/// A proof of uniqueness by form, for all inputs `y >= y_min` (entrywise), or what stands in its way. The proof is about positive
/// states, and about all real ones where the map is positive everywhere.
///
/// ```
/// use subdeq_map::{Layout, Map};
/// use subdeq_theory::by_form::{self, WeightFacts};
///
/// let signed = WeightFacts::of_rows([[7.0, -9.0], [-3.0, 5.0]].iter().map(|row| row.as_slice()));
/// // The paper's model: nothing follows from its form ...
/// assert!(by_form::prove(&Map::named("subdeq-tanh", Layout::Dense)?, &signed, 0.0).is_err());
/// // ... but with the signs split, the same weights are safe, for inputs that are not negative.
/// let split = Map::named("split-sign", Layout::Dense)?;
/// assert!(by_form::prove(&split, &signed, 0.0).is_ok());
/// assert!(by_form::prove(&split, &signed, -1.2).is_err());
/// # Ok::<(), subdeq_map::BadMap>(())
/// ```
///
/// # Errors
/// The [`Attempt`] says which number was not below one, or which property the map lacks.
pub fn prove(map: &Map, weights: &WeightFacts, y_min: f64) -> Result<Verdict, Attempt> {
    if map.projection().is_some() {
        let why = "a projection keeps a contraction in the 2-norm only, and the 2-norm of these weights does not give one";
        return graph_propagation(map, weights).ok_or_else(|| refusal(why.into()));
    }
    if !map.weights().admits(weights.signs) {
        return Err(refusal(format!("`{map}` is a map for other weights, these are {}", weights.signs)));
    }
    let question = Question { map, weights, y_min };
    match question.unnormalised() {
        Ok(plain) if map.normalisation().is_none() => {
            question.conclude(plain.theorem, plain.factor, Metric::Thompson)
        }
        Ok(plain) => question.normalised(plain),
        Err(refused) => graph_propagation(map, weights).ok_or(refused),
    }
}

/// The strong degree of the map before it is normalised, and what proves it.
struct Unnormalised {
    theorem: Theorem,
    factor: StrongDegree,
}

/// A map with what is known about its weights and its inputs.
struct Question<'a> {
    map: &'a Map,
    weights: &'a WeightFacts,
    /// No entry of an input is below this.
    y_min: f64,
}

impl Question<'_> {
    fn unnormalised(&self) -> Result<Unnormalised, Attempt> {
        let (s, shift) = (self.map.activation(), self.effective_shift()?);
        let (theorem, factor) = match self.map.form() {
            Form::Single | Form::Graph { .. } => return self.single(),
            Form::Tied { .. } => return Err(refusal("a monotone map is proved by its construction".into())),
            Form::PowerMean { .. } => {
                return Err(refusal("power means are proved by what their hyperedges hold".into()));
            }
            Form::SplitSign => {
                self.require_positive_value(split_sign_infimum(s, shift))?;
                (Theorem::SplitSign, forms::split_sign(s, shift))
            }
            Form::Gains => {
                let rows = rows(self.weights, self.map.tie(), shift);
                rows.iter().try_for_each(|row| self.require_positive_value(gain_infimum(s, row)))?;
                (Theorem::Gains, forms::gains(s, &rows))
            }
            Form::Divisive { .. } => {
                self.require_positive(Domain::Nonnegative)?;
                (Theorem::Divisive, forms::divisive(s, shift))
            }
            Form::Rational { .. } => {
                self.require_positive(Domain::Nonnegative)?;
                (Theorem::Rational, forms::rational(shift))
            }
            Form::Monomial => {
                // exp(..) > 0, so that s need not be positive at zero itself.
                let scalar = Nonlinearity::shifted(s, shift);
                if !scalar.is_positive_beyond_zero() {
                    return Err(refusal(vanishes(s, shift)));
                }
                let degree = scalar.degree(Domain::Nonnegative);
                (Theorem::Monomial, degree.map(|mu| mu.times(self.weights.sup_norm())))
            }
            Form::PowerRatio { p, e } => {
                self.require_positive_value((Interval::point(e) + Interval::point(self.y_min)).lo)?;
                (Theorem::PowerRatio, Ok(StrongDegree::ONE.times(2.0).times(p)))
            }
        };
        let factor = factor.map_err(|why| refusal(format!("{s} + {shift}: {why}")))?;
        Ok(Unnormalised { theorem, factor })
    }

    /// `s(W z)` with its injection: rows of one sign have equal weak and strong degrees, others have none (E1).
    fn single(&self) -> Result<Unnormalised, Attempt> {
        let map = self.map;
        let (theorem, domain) = match (self.weights.signs, map.injection()) {
            (SignStructure::Nonnegative, Injection::Inner) if self.y_min < 0.0 => {
                let factor = self.threshold_degree()?.times(map.power());
                return Ok(Unnormalised { theorem: Theorem::NonnegativeWeights, factor });
            }
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
                return Err(refusal(format!(
                    "weights of both signs in one row have no strong degree{paper}"
                )));
            }
        };
        self.require_positive(domain)?;
        let degree = nonlinearity(map, self.effective_shift()?).degree(domain);
        let factor = degree.map_err(|why| {
            refusal(format!("{} + {} on the {domain}: {why}", map.activation(), map.shift()))
        })?;
        Ok(Unnormalised { theorem, factor })
    }

    /// `W >= 0` and inputs inside the activation that may be negative, down to `-theta`: known for tanh, and for sigmoid, which
    /// is tanh of half the argument.
    fn threshold_degree(&self) -> Result<StrongDegree, Attempt> {
        let theta = -self.injected().lo;
        let shift = self.map.shift();
        let degree = match self.map.activation() {
            Activation::Tanh => tanh_above_threshold(shift, theta),
            Activation::Sigmoid => {
                let doubled = Interval::point(2.0) * Interval::point(shift) + Interval::point(1.0);
                tanh_above_threshold(doubled.lo, 0.5 * theta)
            }
            s => {
                return Err(refusal(format!(
                    "no degree of {s} is known for inputs that are negative inside it"
                )));
            }
        };
        degree.map_err(|_| {
            refusal(format!("inputs go down to {:.6}, for which the shift {shift} is too small", -theta))
        })
    }

    /// Theorems 3 and 4.
    fn normalised(&self, plain: Unnormalised) -> Result<Verdict, Attempt> {
        let (s, shift) = (self.map.activation(), self.effective_shift()?);
        let twice = plain.factor.times(2.0);
        let (theorem, kappa) = if self.weights.interacting_groups {
            (Theorem::NormalisedInteracting, twice)
        } else {
            match (self.map.form(), plain.theorem) {
                (_, Theorem::NonnegativeWeights) => (Theorem::NormalisedMonotone, plain.factor),
                (_, Theorem::RowSignedWeights) => {
                    let kappa = forms::normalised_row_signed(s, shift);
                    (Theorem::NormalisedGeneral, kappa.map_or(twice, |kappa| kappa.times(self.map.power())))
                }
                (Form::SplitSign, _) => {
                    let kappa = forms::normalised_split_sign(s, shift);
                    (Theorem::NormalisedGeneral, kappa.unwrap_or(twice))
                }
                (Form::Divisive { .. } | Form::Rational { .. }, _) => {
                    (Theorem::NormalisedGeneral, plain.factor)
                }
                _ => (Theorem::NormalisedGeneral, twice),
            }
        };
        self.conclude(theorem, kappa, Metric::Hilbert)
    }

    fn conclude(&self, theorem: Theorem, factor: StrongDegree, metric: Metric) -> Result<Verdict, Attempt> {
        if let Some(stated) = stated(factor.bound()) {
            let states = self.states();
            return Ok(Verdict::Proven {
                theorem,
                factor: Some(stated),
                metric,
                states,
                starts: Some(states),
                evidence: evidence(self.map, self.weights),
            });
        }
        let c = factor.bound();
        Err(Attempt::new(theorem.to_string(), format!("the factor is {c:.6}, which is not below one"), c))
    }

    /// The theorems are about positive states. They are about all real ones where the map is positive at every real state: then
    /// every fixed point is positive, and every trajectory after one step.
    fn states(&self) -> States {
        positive_everywhere(self.map, self.y_min)
    }

    /// What an input adds at least, where it is added.
    fn injected(&self) -> Interval {
        injected(self.map, self.y_min)
    }

    /// An outer injection adds to the shift (A1), unless a power stands between them.
    fn effective_shift(&self) -> Result<f64, Attempt> {
        let map = self.map;
        let outer = map.injection() == Injection::Outer && !matches!(map.form(), Form::PowerRatio { .. });
        if !self.y_min.is_finite() {
            return Err(refusal("inputs of any sign void every proof by form".into()));
        }
        if !outer || self.y_min == 0.0 {
            return Ok(map.shift());
        }
        if map.power() == 1.0 {
            return Ok((Interval::point(map.shift()) + self.injected()).lo);
        }
        if self.y_min < 0.0 {
            return Err(refusal("a negative input outside a power voids every proof by form".into()));
        }
        Ok(map.shift())
    }

    fn require_positive_value(&self, infimum: f64) -> Result<(), Attempt> {
        if infimum > 0.0 {
            return Ok(());
        }
        Err(refusal(format!("the map is not strictly positive: its values go down to {infimum}")))
    }

    /// The theorems are about maps of the open orthant into itself.
    fn require_positive(&self, domain: Domain) -> Result<(), Attempt> {
        let (map, shift) = (self.map, self.effective_shift()?);
        let shifted = nonlinearity(map, shift);
        let injected = self.y_min > 0.0
            && match map.injection() {
                // Outside a power, which need not be positive itself.
                Injection::Outer => map.power() != 1.0 && shifted.degree(domain).is_ok(),
                Injection::Inner => {
                    let preactivation = Interval::point(self.injected().lo.max(0.0));
                    (map.activation().enclose(preactivation) + Interval::point(map.shift())).lo > 0.0
                }
            };
        // With every weight positive, W z > 0 for every z on the normalised slice, also where z has zeros.
        let slice = map.normalisation().is_some()
            && self.weights.all_positive
            && domain == Domain::Nonnegative
            && self.y_min >= 0.0
            && shifted.is_positive_beyond_zero();
        if shifted.is_strictly_positive(domain) || injected || slice {
            return Ok(());
        }
        Err(refusal(vanishes(map.activation(), shift)))
    }
}

/// What inputs from `y_min` on add at least, where they are added.
fn injected(map: &Map, y_min: f64) -> Interval {
    Interval::point(y_min) * Interval::point(map.form().share())
}

/// All real states where the map sends every one of them to a positive one, for inputs from `y_min` on; else the positive ones.
pub(crate) fn positive_everywhere(map: &Map, y_min: f64) -> States {
    let defined = matches!(map.form(), Form::Single | Form::Graph { .. });
    let base = map.activation().image() + Interval::point(map.shift());
    let outside = match map.injection() {
        Injection::Inner => Interval::point(0.0),
        Injection::Outer => injected(map, y_min),
    };
    let positive =
        if map.power() == 1.0 { (base + outside).lo > 0.0 } else { base.lo > 0.0 && outside.lo >= 0.0 };
    if defined && positive { States::Reals } else { States::Positive }
}

/// `inf s(u) - s(w) + shift` over `u, w >= 0`, rounded down.
pub(crate) fn split_sign_infimum(s: Activation, shift: f64) -> f64 {
    let least = s.enclose(Interval::point(0.0));
    (least - Interval::point(s.range().1) + Interval::point(shift)).lo
}

/// The same for one row of A3'.
pub(crate) fn gain_infimum(s: Activation, row: &Gain) -> f64 {
    let least = s.enclose(Interval::point(0.0));
    let inhibition = Interval::point(s.range().1) - Interval::point(row.tie);
    let value = row.excitatory * least - row.inhibitory * inhibition + Interval::point(row.shift);
    value.lo
}

fn vanishes(s: Activation, shift: f64) -> String {
    format!(
        "the map is not strictly positive where an input is zero ({s} + {shift} vanishes or is negative there); a larger \
         shift or inputs bounded away from zero would help"
    )
}

/// `(1 - t) ||A||_2 < 1` and slopes in [0, 1]: a contraction in the Frobenius norm, for inputs of any sign.
pub fn graph_propagation(map: &Map, weights: &WeightFacts) -> Option<Verdict> {
    let Form::Graph { teleport } = map.form() else { return None };
    let plain = map.normalisation().is_none() && map.activation().slopes_in_unit_interval();
    let norm = weights.two_norm.filter(|_| plain)?;
    let kept = Interval::point(1.0) - Interval::point(teleport);
    let factor = stated((kept * Interval::point(norm)).hi)?;
    Some(Verdict::Proven {
        theorem: Theorem::GraphPropagation,
        factor: Some(factor),
        metric: Metric::WeightedTwoNorm { t: Vec::new() },
        states: States::Reals,
        starts: Some(States::Reals),
        evidence: Evidence::ByForm { signs: weights.signs, weight_norm: Some(norm) },
    })
}

/// A factor as it is stated: a hair above the computed bound, so that a check that divides where this multiplied confirms it.
pub(crate) fn stated(bound: f64) -> Option<f64> {
    let stated = bound * (1.0 + 1e-12);
    (stated < 1.0).then_some(stated)
}

fn evidence(map: &Map, weights: &WeightFacts) -> Evidence {
    match map.form() {
        Form::Gains => Evidence::RowGains {
            excitatory: weights.excitatory.clone(),
            inhibitory: weights.inhibitory.clone(),
        },
        Form::Monomial => Evidence::ByForm { signs: weights.signs, weight_norm: Some(weights.sup_norm()) },
        _ => Evidence::ByForm { signs: weights.signs, weight_norm: None },
    }
}

/// The rows of A3', with their shifts.
pub(crate) fn rows(weights: &WeightFacts, tie: f64, shift: f64) -> Vec<Gain> {
    let pairs = weights.excitatory.iter().zip(&weights.inhibitory);
    pairs.map(|(&excitatory, &inhibitory)| Gain { excitatory, inhibitory, tie, shift }).collect()
}

fn nonlinearity(map: &Map, shift: f64) -> Nonlinearity {
    Nonlinearity { activation: map.activation(), shift, power: map.power() }
}

fn refusal(outcome: String) -> Attempt {
    Attempt { test: "proof by form".into(), outcome, value: None }
}
