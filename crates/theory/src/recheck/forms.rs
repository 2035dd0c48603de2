//! Proofs by form again: the condition of each theorem, stated for the factor that is claimed. (The proofs are found by
//! searching for the least factor.)

use subdeq_map::{Activation, Form, Injection, Map, Operator, SignStructure};

use super::{Recheck, ensure};
use crate::by_form::{WeightFacts, gain_infimum, positive_everywhere, rows, split_sign_infimum};
use crate::certificate::{Evidence, Metric, Scope, States, Theorem};
use crate::certify::facts;
use crate::degree::{
    Domain, Nonlinearity, Side, forms, required_shift, required_shift_subtracted, tanh_above_threshold,
};
use crate::interval::Interval;

const POSITIVE: Side = Side::Positive { up_to: f64::INFINITY };

/// What a proof by form concludes.
pub(super) struct Conclusion {
    pub(super) metric: Metric,
    pub(super) states: States,
    pub(super) evidence: Evidence,
}

/// Whether the theorem, with this factor, follows from the form of the map and the weights.
pub(super) fn check(
    map: &Map,
    scope: &Scope,
    weights: &Operator,
    theorem: Theorem,
    factor: f64,
) -> Result<Conclusion, Recheck> {
    let facts = facts(map, weights);
    ensure(map.weights().admits(facts.signs), format!("the map is not for {}", facts.signs))?;
    if theorem == Theorem::GraphPropagation {
        return propagation(map, &facts, factor);
    }
    ensure(!map.is_monotone(), "a monotone map is proved by its weights")?;
    ensure(map.projection().is_none(), "a projected map is proved by its 2-norm")?;
    let y_min = scope.least_entry();
    ensure(y_min.is_finite(), "inputs of any sign void a proof by form")?;
    let form = ByForm { map, facts: &facts, y_min, shift: least_shift(map, y_min)? };
    form.positive()?;
    let normalised = map.normalisation().is_some();
    ensure(facts.interacting_groups == (theorem == Theorem::NormalisedInteracting), "groups that interact")?;
    match theorem {
        Theorem::NormalisedInteracting => form.degree_at_most(0.5 * factor, form.plain_theorem()?)?,
        Theorem::NormalisedMonotone => form.degree_at_most(factor, Theorem::NonnegativeWeights)?,
        Theorem::NormalisedGeneral => form.kappa_at_most(factor)?,
        plain => {
            ensure(!normalised, "the theorem is not for normalised maps")?;
            form.degree_at_most(factor, plain)?;
        }
    }
    ensure(normalised || !theorem_is_normalised(theorem), "the map is not normalised")?;
    let evidence = match map.form() {
        Form::Gains => {
            Evidence::RowGains { excitatory: facts.excitatory.clone(), inhibitory: facts.inhibitory.clone() }
        }
        Form::Monomial => Evidence::ByForm { signs: facts.signs, weight_norm: Some(facts.sup_norm()) },
        _ => Evidence::ByForm { signs: facts.signs, weight_norm: None },
    };
    let metric = if normalised { Metric::Hilbert } else { Metric::Thompson };
    Ok(Conclusion { metric, states: positive_everywhere(map, y_min), evidence })
}

fn theorem_is_normalised(theorem: Theorem) -> bool {
    use Theorem::{NormalisedGeneral, NormalisedInteracting, NormalisedMonotone};
    matches!(theorem, NormalisedGeneral | NormalisedInteracting | NormalisedMonotone)
}

/// `(1 - t) ||A||_2` at most the factor.
fn propagation(map: &Map, facts: &WeightFacts, factor: f64) -> Result<Conclusion, Recheck> {
    let (Form::Graph { teleport }, Some(norm)) = (map.form(), facts.two_norm) else {
        return Err(Recheck::new("the theorem is for graphs with a symmetric matrix"));
    };
    ensure(map.normalisation().is_none(), "the theorem is not for normalised maps")?;
    ensure(map.activation().slopes_in_unit_interval(), "the activation has slopes outside [0, 1]")?;
    let again = (Interval::point(norm) - Interval::point(norm) * Interval::point(teleport)).hi;
    ensure(again <= factor, format!("the factor is {again}, above the claimed {factor}"))?;
    Ok(Conclusion {
        metric: Metric::WeightedTwoNorm { t: Vec::new() },
        states: States::Reals,
        evidence: Evidence::ByForm { signs: facts.signs, weight_norm: Some(norm) },
    })
}

/// The shift with the least that inputs add to it.
fn least_shift(map: &Map, y_min: f64) -> Result<f64, Recheck> {
    let outer = map.injection() == Injection::Outer && !matches!(map.form(), Form::PowerRatio { .. });
    if !outer || y_min == 0.0 {
        return Ok(map.shift());
    }
    if map.power() != 1.0 {
        ensure(y_min > 0.0, "a negative input outside a power")?;
        return Ok(map.shift());
    }
    Ok((Interval::point(y_min) * Interval::point(map.form().share()) + Interval::point(map.shift())).lo)
}

struct ByForm<'a> {
    map: &'a Map,
    facts: &'a WeightFacts,
    y_min: f64,
    /// With what the inputs add to it at least.
    shift: f64,
}

impl ByForm<'_> {
    /// The map sends positive states to positive states.
    fn positive(&self) -> Result<(), Recheck> {
        let (map, s) = (self.map, self.map.activation());
        let scalar = Nonlinearity { activation: s, shift: self.shift, power: map.power() };
        let holds = match map.form() {
            Form::SplitSign => split_sign_infimum(s, self.shift) > 0.0,
            Form::Gains => {
                rows(self.facts, map.tie(), self.shift).iter().all(|row| gain_infimum(s, row) > 0.0)
            }
            Form::Monomial => scalar.is_positive_beyond_zero(),
            Form::PowerRatio { e, .. } => (Interval::point(e) + Interval::point(self.y_min)).lo > 0.0,
            Form::Divisive { .. } | Form::Rational { .. } => self.positive_on(scalar, Domain::Nonnegative),
            Form::Tied { .. } | Form::PowerMean { .. } => false,
            Form::Single | Form::Graph { .. } => match (self.facts.signs, map.injection()) {
                // s(-theta) + shift > 0, which the degree's condition theta < shift implies.
                (SignStructure::Nonnegative, Injection::Inner) if self.y_min < 0.0 => true,
                (SignStructure::Nonnegative, _) => self.positive_on(scalar, Domain::Nonnegative),
                (SignStructure::RowSigned, Injection::Outer) => self.positive_on(scalar, Domain::Reals),
                _ => false,
            },
        };
        ensure(holds, "the map is not certainly positive")
    }

    fn positive_on(&self, scalar: Nonlinearity, domain: Domain) -> bool {
        let least = match domain {
            Domain::Reals => scalar.activation.range().0,
            _ => scalar.activation.value(0.0),
        };
        let by_input = self.y_min > 0.0
            && match self.map.injection() {
                Injection::Outer => self.map.power() != 1.0 && least + self.shift >= 0.0,
                Injection::Inner => {
                    let inside = Interval::point(self.map.form().share()) * Interval::point(self.y_min);
                    let value = Interval::point(scalar.activation.value(inside.lo)).widened(16);
                    (value + Interval::point(self.shift)).lo > 0.0
                }
            };
        let on_slice = self.map.normalisation().is_some()
            && self.facts.all_positive
            && self.y_min >= 0.0
            && domain == Domain::Nonnegative
            && scalar.is_positive_beyond_zero();
        scalar.is_strictly_positive(domain) || by_input || on_slice
    }

    /// The theorem behind a degree of the map before it is normalised.
    fn plain_theorem(&self) -> Result<Theorem, Recheck> {
        Ok(match self.map.form() {
            Form::Single | Form::Graph { .. } if self.facts.signs == SignStructure::Nonnegative => {
                Theorem::NonnegativeWeights
            }
            Form::Single | Form::Graph { .. } => Theorem::RowSignedWeights,
            Form::Tied { .. } => return Err(Recheck::new("a monotone map has no degree")),
            Form::PowerMean { .. } => {
                return Err(Recheck::new("power means are not checked by weights alone"));
            }
            Form::SplitSign => Theorem::SplitSign,
            Form::Gains => Theorem::Gains,
            Form::Divisive { .. } => Theorem::Divisive,
            Form::Rational { .. } => Theorem::Rational,
            Form::Monomial => Theorem::Monomial,
            Form::PowerRatio { .. } => Theorem::PowerRatio,
        })
    }

    /// The strong degree is at most `c`, by the theorem of the form.
    fn degree_at_most(&self, c: f64, theorem: Theorem) -> Result<(), Recheck> {
        ensure(
            theorem == self.plain_theorem()?,
            format!("its form is proved by another theorem than {theorem}"),
        )?;
        let (map, s) = (self.map, self.map.activation());
        // `m` such that the scalar has to have a degree of at most `m`.
        let share = |by: f64| (c / by).next_down();
        let scalar = |side: Side, m: f64| required_shift(s, side, m) <= self.shift;
        let holds = match theorem {
            Theorem::NonnegativeWeights if self.y_min < 0.0 && map.injection() == Injection::Inner => {
                self.threshold_degree_at_most(share(map.power()))
            }
            Theorem::NonnegativeWeights => scalar(POSITIVE, share(map.power())),
            Theorem::RowSignedWeights => {
                let m = share(map.power());
                map.injection() == Injection::Outer && scalar(POSITIVE, m) && scalar(Side::Negative, m)
            }
            Theorem::SplitSign => {
                let needed = Interval::point(required_shift(s, POSITIVE, c))
                    + Interval::point(required_shift_subtracted(s, c));
                needed.hi <= self.shift
            }
            Theorem::Gains => rows(self.facts, map.tie(), self.shift).iter().all(|row| {
                let (up, down) = (required_shift(s, POSITIVE, c), required_shift_subtracted(s, c));
                let beyond = Interval::point(down) - Interval::point(row.tie);
                (row.excitatory * Interval::point(up) + row.inhibitory * beyond).hi <= self.shift
            }),
            Theorem::Divisive | Theorem::Rational => scalar(POSITIVE, 0.5 * c),
            Theorem::Monomial => {
                let norm = self.facts.sup_norm();
                norm == 0.0 || scalar(POSITIVE, share(norm))
            }
            Theorem::PowerRatio => matches!(map.form(), Form::PowerRatio { p, .. } if 2.0 * p <= c),
            _ => false,
        };
        ensure(holds, format!("the strong degree is not shown to be at most {c}"))
    }

    fn threshold_degree_at_most(&self, c: f64) -> bool {
        let theta = -(Interval::point(self.map.form().share()) * Interval::point(self.y_min)).lo;
        let found = match self.map.activation() {
            Activation::Tanh => tanh_above_threshold(self.map.shift(), theta),
            Activation::Sigmoid => {
                let doubled = Interval::point(1.0) + Interval::point(self.map.shift()) * Interval::point(2.0);
                tanh_above_threshold(doubled.lo, 0.5 * theta)
            }
            _ => return false,
        };
        found.is_ok_and(|degree| degree.bound() <= c)
    }

    /// Theorem 4 for one normalised vector.
    fn kappa_at_most(&self, factor: f64) -> Result<(), Recheck> {
        let (s, theorem) = (self.map.activation(), self.plain_theorem()?);
        let sharper = match theorem {
            Theorem::RowSignedWeights => {
                forms::normalised_row_signed(s, self.shift).map(|kappa| kappa.times(self.map.power()))
            }
            Theorem::SplitSign => forms::normalised_split_sign(s, self.shift),
            Theorem::Divisive | Theorem::Rational => return self.degree_at_most(factor, theorem),
            _ => return self.degree_at_most(0.5 * factor, theorem),
        };
        match sharper {
            Ok(kappa) => {
                // The rows themselves must have a degree; the factor between them is what is claimed.
                let again = kappa.bound();
                ensure(again <= factor, format!("the factor is {again}, above the claimed {factor}"))
            }
            Err(_) => self.degree_at_most(0.5 * factor, theorem),
        }
    }
}
