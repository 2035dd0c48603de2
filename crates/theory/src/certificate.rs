//! What a certificate is: a verdict as data, with every number needed to check it again from the weights alone.

use std::fmt;

use serde::{Deserialize, Serialize};

use subdeq_map::{Injection, Map, SignStructure};

use crate::interval::Interval;

/// A verdict about one map with one set of weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certificate {
    /// The map, without its weights.
    pub map: Map,
    /// The inputs `Y` that were asked about.
    pub scope: Scope,
    /// What was found.
    pub verdict: Verdict,
}

/// The inputs `y` that a verdict speaks about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Scope {
    /// Every real `y`. A refutation holds for the `y` in its witness.
    AllInputs,
    /// Every `y >= 0`. A refutation holds for the `y` in its witness.
    NonnegativeInputs,
    /// Every `y` with `0 <= y <= ymax`.
    InputSet {
        /// Upper ends, one per entry.
        ymax: Vec<f64>,
    },
    /// One input.
    Sample {
        /// The injection.
        y: Vec<f64>,
    },
}

impl Scope {
    /// The widest set of inputs that the map is meant for: every real input for a monotone map, else every `y >= 0`.
    ///
    /// ```
    /// use subdeq_map::{Layout, Map};
    /// use subdeq_theory::certificate::Scope;
    /// assert_eq!(Scope::widest(&Map::named("monotone", Layout::Dense)?), Scope::AllInputs);
    /// assert_eq!(Scope::widest(&Map::named("split-sign", Layout::Dense)?), Scope::NonnegativeInputs);
    /// # Ok::<(), subdeq_map::BadMap>(())
    /// ```
    #[must_use]
    pub fn widest(map: &Map) -> Scope {
        if map.is_monotone() { Scope::AllInputs } else { Scope::NonnegativeInputs }
    }

    /// Whether the input belongs to the set.
    #[must_use]
    pub fn contains(&self, input: &[f64]) -> bool {
        match self {
            Scope::AllInputs => input.iter().all(|y| y.is_finite()),
            Scope::NonnegativeInputs => input.iter().all(|y| *y >= 0.0 && y.is_finite()),
            Scope::InputSet { ymax } => {
                input.len() == ymax.len() && input.iter().zip(ymax).all(|(y, top)| (0.0..=*top).contains(y))
            }
            Scope::Sample { y } => input == y,
        }
    }

    /// The values that entry `i` of an input of the set may take.
    pub(crate) fn entry(&self, i: usize) -> Interval {
        match self {
            Scope::AllInputs => Interval::ALL,
            Scope::NonnegativeInputs => Interval::new(0.0, f64::INFINITY),
            Scope::InputSet { ymax } => Interval::new(0.0, ymax[i]),
            Scope::Sample { y } => Interval::point(y[i]),
        }
    }

    /// All entries of the inputs of a bounded set.
    pub(crate) fn entries(&self) -> Option<Vec<Interval>> {
        let (Scope::Sample { y } | Scope::InputSet { ymax: y }) = self else { return None };
        Some((0..y.len()).map(|i| self.entry(i)).collect())
    }

    /// The least entry of any input of the set.
    pub(crate) fn least_entry(&self) -> f64 {
        match self {
            Scope::AllInputs => f64::NEG_INFINITY,
            Scope::NonnegativeInputs | Scope::InputSet { .. } => 0.0,
            Scope::Sample { y } => y.iter().copied().fold(f64::INFINITY, f64::min),
        }
    }
}

/// A set of states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum States {
    /// All real vectors.
    Reals,
    /// The vectors whose entries are all positive.
    Positive,
}

impl States {
    /// The states among which a question about the map is asked: all real ones for a monotone map, else the positive ones. A
    /// proof may cover more; a refutation must lie among them.
    #[must_use]
    pub fn of(map: &Map) -> States {
        if map.is_monotone() { States::Reals } else { States::Positive }
    }

    /// Whether all states of `other` are among these.
    #[must_use]
    pub fn include(self, other: States) -> bool {
        self == States::Reals || other == States::Positive
    }
}

/// What is known about the fixed points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Verdict {
    /// For every input of the scope, there is exactly one fixed point among `states`, by `theorem`.
    Proven {
        /// Which statement proves it.
        theorem: Theorem,
        /// The contraction factor of plain (Picard) iteration in `metric`, rounded up; `None` where the theorem gives
        /// uniqueness only.
        factor: Option<f64>,
        /// The metric that the factor is about.
        metric: Metric,
        /// `Z`: the states among which the fixed point is the only one.
        states: States,
        /// `S`: the starts from which plain iteration is proved to converge to it; `None` where it need not converge.
        starts: Option<States>,
        /// The numbers that the proof rests on.
        evidence: Evidence,
    },
    /// There is more than one fixed point.
    Refuted {
        /// The proof of it.
        witness: Refutation,
    },
    /// Neither could be shown.
    Unproven {
        /// In one sentence, what stands in the way.
        why: String,
        /// What was tried, in order.
        tried: Vec<Attempt>,
    },
}

/// The statements that certificates appeal to, see [`crate::theorems`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Theorem {
    /// Theorem 1 with the strong degree of a user's own operator.
    StrongDegree,
    /// Theorem 2 and A1: nonnegative weights, the degree on the nonnegative half-line.
    NonnegativeWeights,
    /// Lemma 2 and A2: rows of one sign, the degree on the whole line.
    RowSignedWeights,
    /// A3.
    SplitSign,
    /// A3'.
    Gains,
    /// A4.
    Divisive,
    /// A4 with softsign, written as a rational function.
    Rational,
    /// A5.
    Monomial,
    /// A6.
    PowerRatio,
    /// A7: a strongly monotone operator.
    Monotone,
    /// A8: a strongly monotone operator by construction.
    MonotoneTied,
    /// Linear or 1-Lipschitz propagation over a graph, `(1 - t) ||A||_2 < 1`.
    GraphPropagation,
    /// Damped propagation by power means over hyperedges, whose gain in a weighted sup norm is below `1/(1 - t)`.
    PowerMeans,
    /// Theorem 3: one normalised vector, an order-preserving map, Hilbert's metric.
    NormalisedMonotone,
    /// Theorem 4: one normalised vector, `kappa`.
    NormalisedGeneral,
    /// Theorem 4: interacting groups, twice the strong degree.
    NormalisedInteracting,
    /// T1: `D|W|v <= theta v`.
    WeightedSup,
    /// T2: `||T D W T^-1||_2 < 1`.
    WeightedTwoNorm,
    /// T3: `P D^-1 - sym(P W)` positive definite.
    DiagonalStability,
    /// T4: the slope interval around its midpoint.
    SlopeInterval,
    /// TL: the log-Jacobian on a box (strong subhomogeneity on that box).
    LogJacobian,
    /// T1 with secant slopes at the computed fixed point.
    SecantWeightedSup,
    /// T2 with secant slopes at the computed fixed point.
    SecantTwoNorm,
    /// T3 with secant slopes at the computed fixed point.
    SecantDiagonalStability,
}

/// What a contraction factor measures distances with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Metric {
    /// `max_i |ln x_i - ln y_i|`.
    Thompson,
    /// `max_i ln(x_i/y_i) - min_i ln(x_i/y_i)`, within each normalised group.
    Hilbert,
    /// `max_i |x_i - y_i| / v_i`.
    WeightedSup {
        /// Positive weights, one per entry; for a convolution one per channel; for hyperedges one per node.
        v: Vec<f64>,
    },
    /// `||T (x - y)||_2`, `T` diagonal.
    WeightedTwoNorm {
        /// Diagonal of `T`; for a convolution one per channel; empty for the identity.
        t: Vec<f64>,
    },
    /// The theorem gives uniqueness without a rate.
    None,
}

impl Metric {
    /// A short name: `thompson`, `hilbert`, `weighted-sup`, `weighted-two-norm`, `none`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Metric::Thompson => "thompson",
            Metric::Hilbert => "hilbert",
            Metric::WeightedSup { .. } => "weighted-sup",
            Metric::WeightedTwoNorm { .. } => "weighted-two-norm",
            Metric::None => "none",
        }
    }
}

/// The numbers a proof rests on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Evidence {
    /// The factor follows from the form of the map, its scalar constants and the signs of the weights.
    ByForm {
        /// The signs that were found and that the proof needs.
        signs: SignStructure,
        /// A norm of the weights that the factor depends on (A5: `||W||_inf`; power means: their gain; both rounded up), else
        /// `None`.
        weight_norm: Option<f64>,
    },
    /// A3': enclosures of the row sums `A_i` and `B_i` of the gains.
    RowGains {
        /// `A_i`.
        excitatory: Vec<Interval>,
        /// `B_i`.
        inhibitory: Vec<Interval>,
    },
    /// A user's own operator, whose strong degree was computed by the calculus.
    StrongDegree {
        /// The degree, rounded up.
        degree: f64,
    },
    /// T1 to T4 or TL (as the theorem says) with bounds of the slopes on a set that holds every fixed point.
    Closing {
        /// The set.
        domain: Domain,
        /// `v` of T1 and T4, `T` of T2, `P` of T3: one per entry, or one per channel of a convolution; empty for TL.
        weights: Vec<f64>,
    },
    /// T1, T2 or T3 with bounds of the secant slopes from an approximate fixed point into a propagated box.
    Secant {
        /// Steps of interval propagation that give the box.
        steps: usize,
        /// The approximate fixed point.
        anchor: Vec<f64>,
        /// The bounds claimed for the slopes.
        slopes: Vec<f64>,
        /// `v` of T1, `T` of T2, `P` of T3.
        weights: Vec<f64>,
    },
    /// A7: `sym(T W T^-1) <= (1 - margin) I`, and the operator splitting that uses it.
    Splitting {
        /// Diagonal of `T`; empty for the identity.
        weights: Vec<f64>,
        /// `m`, rounded down.
        margin: f64,
        /// `||I - W||_2` in the `T`-weighted norm, rounded up.
        lipschitz: f64,
        /// The step `t` of Peaceman and Rachford's iteration.
        step: f64,
        /// Its contraction factor `||(I - t(I-W))(I + t(I-W))^-1||_2`, rounded up.
        factor: f64,
    },
    /// The strong degree of a form that takes the signs apart (A3 to A5) on a box of positive states.
    FormBox {
        /// Steps of interval propagation that give the box.
        steps: usize,
    },
    /// Theorem 4 on boxes of normalised vectors.
    NormalisedBox {
        /// Steps of interval propagation that give the box.
        steps: usize,
    },
}

/// A set that contains every fixed point and that the map carries into itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Domain {
    /// All of R^n.
    Everywhere,
    /// The image of everything (a box), then as many steps of interval propagation.
    Propagated {
        /// Number of steps.
        steps: usize,
    },
}

/// The proof that there is more than one fixed point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Refutation {
    /// Balls (in the sup norm) that do not meet, each with exactly one fixed point in it.
    FixedPoints {
        /// The input for which they are fixed points.
        y: Vec<f64>,
        /// The centres.
        points: Vec<Vec<f64>>,
        /// The radii.
        radii: Vec<f64>,
    },
    /// A verified fixed point of negative index: the others must exist, because the indices of all sum to one.
    Index {
        /// The input.
        y: Vec<f64>,
        /// The fixed point.
        point: Vec<f64>,
        /// The ball around it in which it lies.
        radius: f64,
        /// `det(I - J)` at the point, in plain floating point: for the reader. What is proved, and re-checked, is that the
        /// determinant is negative all over the ball.
        determinant: f64,
    },
}

impl Refutation {
    /// The fixed points, as far as they are known.
    #[must_use]
    pub fn points(&self) -> Vec<&[f64]> {
        match self {
            Refutation::FixedPoints { points, .. } => points.iter().map(Vec::as_slice).collect(),
            Refutation::Index { point, .. } => vec![point],
        }
    }

    /// The input for which there are several.
    #[must_use]
    pub fn y(&self) -> &[f64] {
        match self {
            Refutation::FixedPoints { y, .. } | Refutation::Index { y, .. } => y,
        }
    }
}

/// One test that did not settle the matter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Which.
    pub test: String,
    /// What came out, in words.
    pub outcome: String,
    /// The number that had to be below one (or above zero), where there is one and it is finite.
    pub value: Option<f64>,
}

impl Attempt {
    /// An attempt; a value that is not finite is left out, because JSON has no such numbers.
    #[must_use]
    pub fn new(test: impl Into<String>, outcome: impl Into<String>, value: f64) -> Attempt {
        Attempt { test: test.into(), outcome: outcome.into(), value: value.is_finite().then_some(value) }
    }
}

impl Verdict {
    /// `proven`, `refuted` or `unproven`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Verdict::Proven { .. } => "proven",
            Verdict::Refuted { .. } => "refuted",
            Verdict::Unproven { .. } => "unproven",
        }
    }

    /// Whether uniqueness is proven.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        matches!(self, Verdict::Proven { .. })
    }

    /// Whether plain iteration is proved to converge to the fixed point.
    #[must_use]
    pub fn picard_converges(&self) -> bool {
        matches!(self, Verdict::Proven { starts: Some(_), .. })
    }

    /// Whether uniqueness is refuted.
    #[must_use]
    pub fn is_refuted(&self) -> bool {
        matches!(self, Verdict::Refuted { .. })
    }
}

impl Certificate {
    /// How much further apart than two inputs their solutions can be, in the 2-norm: `1/m` for monotone maps (A7, A8) with the
    /// input inside the activation. `None` where no such number is proved.
    ///
    /// ```
    /// use subdeq_map::{Layout, Map, Operator};
    /// use subdeq_theory::{certificate::Scope, certify::Certifier};
    /// let map = Map::named("monotone", Layout::Dense)?;
    /// let w = Operator::dense(2, vec![0.5, -9.0, 9.0, 0.5])?;
    /// let gain = Certifier::new().certify(&map, &w, &Scope::AllInputs)?.gain().expect("a margin of 0.5");
    /// assert!((2.0..2.001).contains(&gain));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn gain(&self) -> Option<f64> {
        let Verdict::Proven { evidence: Evidence::Splitting { weights, margin, .. }, .. } = &self.verdict
        else {
            return None;
        };
        let inner = self.map.injection() == Injection::Inner && weights.is_empty();
        inner.then(|| (1.0 / margin).next_up())
    }
}

impl fmt::Display for Theorem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Theorem::StrongDegree => "strong degree below one (Theorem 1)",
            Theorem::NonnegativeWeights => "nonnegative weights (Theorem 2)",
            Theorem::RowSignedWeights => "rows of one sign (Lemma 2)",
            Theorem::SplitSign => "split-sign form (A3)",
            Theorem::Gains => "gains tied to the shift (A3')",
            Theorem::Divisive => "divisive form (A4)",
            Theorem::Rational => "rational form (A4)",
            Theorem::Monomial => "monomial form (A5)",
            Theorem::PowerRatio => "power-ratio form (A6)",
            Theorem::Monotone => "strongly monotone operator (A7)",
            Theorem::MonotoneTied => "monotone by construction (A8)",
            Theorem::GraphPropagation => "damped graph propagation",
            Theorem::PowerMeans => "damped power means over hyperedges (Minkowski)",
            Theorem::NormalisedMonotone => "normalised order-preserving map in Hilbert's metric (Theorem 3)",
            Theorem::NormalisedGeneral => "normalised map in Hilbert's metric (Theorem 4)",
            Theorem::NormalisedInteracting => "interacting normalised groups, twice the degree (Theorem 4)",
            Theorem::WeightedSup => "weighted sup norm (T1)",
            Theorem::WeightedTwoNorm => "weighted 2-norm (T2)",
            Theorem::DiagonalStability => "diagonal stability (T3)",
            Theorem::SlopeInterval => "slope interval (T4)",
            Theorem::LogJacobian => "log-Jacobian on a box (TL)",
            Theorem::SecantWeightedSup => "weighted sup norm with secant slopes (T1)",
            Theorem::SecantTwoNorm => "weighted 2-norm with secant slopes (T2)",
            Theorem::SecantDiagonalStability => "diagonal stability with secant slopes (T3)",
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::AllInputs => f.write_str("for every real input y"),
            Scope::NonnegativeInputs => f.write_str("for every input y >= 0"),
            Scope::InputSet { .. } => f.write_str("for every input of the given set, 0 <= y <= ymax"),
            Scope::Sample { .. } => f.write_str("for this input"),
        }
    }
}

/// `positive ` or nothing, before "fixed point".
fn among(states: States) -> &'static str {
    match states {
        States::Reals => "",
        States::Positive => "positive ",
    }
}

/// A factor below one, rounded up to six digits, or by its distance from one where those would say one.
fn shown_factor(c: f64) -> String {
    let rounded = (c * 1e6).ceil() / 1e6;
    if rounded < 1.0 { format!("{rounded:.6}") } else { format!("1 - {:.1e}", (1.0 - c) * 0.95) }
}

/// One plain sentence first; below it the equation, the theorem and what else is known.
impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (map, scope) = (self.map, &self.scope);
        match &self.verdict {
            Verdict::Proven { theorem, factor, metric, states, starts, .. } => {
                write!(f, "PROVEN: there is exactly one {}fixed point {scope}.", among(*states))?;
                write!(f, "\n  {map}, by {theorem}.")?;
                let Some(starts) = starts else {
                    return f.write_str(
                        "\n  Plain iteration need not reach it: use an operator-splitting solver.",
                    );
                };
                let start = if *starts == States::Reals { "every" } else { "every positive" };
                match factor {
                    Some(c) => write!(
                        f,
                        "\n  From {start} start each iteration shrinks the {} distance to {} of it or less.",
                        metric.name(),
                        shown_factor(*c)
                    ),
                    None => write!(f, "\n  Plain iteration converges to it from {start} start."),
                }
            }
            Verdict::Refuted { witness } => {
                write!(f, "REFUTED: there is more than one {}fixed point", among(States::of(&map)))?;
                let shown = |p: &[f64]| {
                    let head: Vec<String> = p.iter().take(6).map(|x| format!("{x:.8}")).collect();
                    format!("({}{})", head.join(", "), if p.len() > 6 { ", ..." } else { "" })
                };
                if matches!(self.scope, Scope::Sample { .. }) {
                    write!(f, " {scope}.")?;
                } else {
                    write!(f, " for y = {}.", shown(witness.y()))?;
                }
                write!(f, "\n  {map}:")?;
                for point in witness.points() {
                    write!(f, " {}", shown(point))?;
                }
                match witness {
                    Refutation::Index { .. } => write!(f, " is one of negative index, so there are others."),
                    Refutation::FixedPoints { .. } => f.write_str("."),
                }
            }
            Verdict::Unproven { why, tried } => {
                write!(f, "UNPROVEN: nothing is promised {scope}.\n  {map}: {why}")?;
                for attempt in tried {
                    write!(f, "\n  tried {}: {}", attempt.test, attempt.outcome)?;
                }
                Ok(())
            }
        }
    }
}
