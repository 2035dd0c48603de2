//! The equation of an equilibrium layer.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::activation::{Activation, UnknownActivation};
use crate::{Form, Groups, Injection, Layout, Normalisation, Operator, PNorm, Projection, WeightClass};

/// An equilibrium map `F(z; y)` without its weights. It exists only where it is defined: every way to build or to read one
/// checks its [`Parts`].
///
/// With `u` for what the [`Form`] gives (`s(W z)` for [`Form::Single`]), the map is
///
/// * outer injection: `F = norm( (u + shift)^power + y )`,
/// * inner injection: `F = norm( (u with y added to its preactivation + shift)^power )`,
///
/// `norm` only where there is a normalisation.
///
/// ```
/// use subdeq_map::{Activation, Form, Layout, Map};
/// let map = Map::named("split-sign", Layout::Dense)?;
/// assert_eq!((map.form(), map.shift()), (Form::SplitSign, 1.2));
/// assert!(map.with_power(0.5).is_err(), "a power of a difference is not one of these maps");
/// assert!(Map::named("node-tanh", Layout::Dense).is_err(), "not an equilibrium");
/// # Ok::<(), subdeq_map::BadMap>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Map {
    parts: Parts,
}

/// What a [`Map`] consists of, not yet checked to fit together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// The expression the weights enter.
    pub form: Form,
    /// `s`; softsign for [`Form::Rational`], the identity for [`Form::PowerRatio`], which have no other.
    pub activation: Activation,
    /// Where `y` enters: only [`Form::Single`] and [`Form::Graph`] have a choice, the others say [`Injection::Outer`].
    pub injection: Injection,
    /// Added to every entry, inside the power.
    pub shift: f64,
    /// Entrywise power; 1 for none.
    pub power: f64,
    /// `tie (W- 1)` is added to the shift of [`Form::Gains`]; 0 for the others.
    pub tie: f64,
    /// The weights it is meant for.
    pub weights: WeightClass,
    /// Division by a norm, if any.
    pub normalisation: Option<Normalisation>,
    /// Projection onto balls, if any (A10).
    #[serde(default)]
    pub projection: Option<Projection>,
}

/// Values that replace a map's defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Replaces the activation.
    pub activation: Option<Activation>,
    /// Replaces the shift.
    pub shift: Option<f64>,
    /// Replaces the power.
    pub power: Option<f64>,
    /// Replaces the norm, or adds one.
    pub norm: Option<PNorm>,
    /// Replaces the teleport probability of a graph map.
    pub teleport: Option<f64>,
}

impl TryFrom<Parts> for Map {
    type Error = BadMap;

    fn try_from(parts: Parts) -> Result<Map, BadMap> {
        let map = Map { parts };
        map.check().map_err(|why| BadMap::new(format!("`{map}` is not a map of this software: {why}")))?;
        Ok(map)
    }
}

impl From<Map> for Parts {
    fn from(map: Map) -> Parts {
        map.parts
    }
}

impl Map {
    /// `s(W z) + y + shift`, the form that the others are variations of.
    ///
    /// # Errors
    /// An activation or a shift that makes no sense.
    pub fn single(activation: Activation, shift: f64) -> Result<Map, BadMap> {
        Map::of_form(Form::Single, activation, shift)
    }

    /// `s(W+ z) - s(W- z) + y + shift` (A3).
    ///
    /// # Errors
    /// An activation or a shift that makes no sense.
    pub fn split_sign(activation: Activation, shift: f64) -> Result<Map, BadMap> {
        Map::of_form(Form::SplitSign, activation, shift)
    }

    /// The map of a form with an outer injection, no power, and no normalisation.
    ///
    /// # Errors
    /// Parts that do not fit together.
    pub fn of_form(form: Form, activation: Activation, shift: f64) -> Result<Map, BadMap> {
        Map::try_from(Parts {
            form,
            activation,
            injection: Injection::Outer,
            shift,
            power: 1.0,
            tie: 0.0,
            weights: WeightClass::Any,
            normalisation: None,
            projection: None,
        })
    }

    /// The same with the injection inside the activation.
    ///
    /// # Errors
    /// A form that has no inside.
    pub fn inner(self) -> Result<Map, BadMap> {
        Map::try_from(Parts { injection: Injection::Inner, ..self.parts })
    }

    /// The same with a power of activation and shift.
    ///
    /// # Errors
    /// A form that takes no power, or one that is not above 0.
    pub fn with_power(self, power: f64) -> Result<Map, BadMap> {
        Map::try_from(Parts { power, ..self.parts })
    }

    /// The same, each group divided by its norm.
    ///
    /// # Errors
    /// A norm below 1, or a monotone map.
    pub fn normalised(self, p: PNorm, groups: Groups) -> Result<Map, BadMap> {
        Map::try_from(Parts { normalisation: Some(Normalisation { p, groups }), ..self.parts })
    }

    /// The same, each group projected onto the ball of that radius: nonexpansive in the 2-norm, so that a contraction stays one
    /// (A10).
    ///
    /// # Errors
    /// A radius that is not above 0, or a map that is not one of graphs.
    pub fn projected(self, groups: Groups, radius: f64) -> Result<Map, BadMap> {
        Map::try_from(Parts { projection: Some(Projection { groups, radius }), ..self.parts })
    }

    /// The same for other weights.
    ///
    /// # Errors
    /// A form that takes any weights, or a map that is not monotone for any.
    pub fn for_weights(self, weights: WeightClass) -> Result<Map, BadMap> {
        Map::try_from(Parts { weights, ..self.parts })
    }

    /// The same as an equation of the matrix `W` that it applies: `s(W z)` for monotone weights where `W` is made of `A` (A8), else
    /// the map itself.
    ///
    /// # Errors
    /// Never for a map that exists.
    pub fn of_whole_weights(self) -> Result<Map, BadMap> {
        match self.parts.form {
            Form::Tied { .. } => {
                let weights = WeightClass::Monotone { margin: 0.0 };
                Map::try_from(Parts { form: Form::Single, weights, ..self.parts })
            }
            _ => Ok(self),
        }
    }

    /// The same as an equation of `A`, with `W = (1 - margin) I - A'A + skew (A - A')` (A8).
    ///
    /// # Errors
    /// A map that is not `s(W z)`, a margin that is not above 0, or a skew that is not finite.
    pub fn tied(self, margin: f64, skew: f64) -> Result<Map, BadMap> {
        if self.parts.form != Form::Single {
            return Err(BadMap::new(format!("`{self}` has no W to make of a matrix A")));
        }
        let form = Form::Tied { margin, skew };
        Map::try_from(Parts { form, weights: WeightClass::Any, ..self.parts })
    }

    /// The same with another shift.
    ///
    /// # Errors
    /// A form without a shift, or one that is not finite.
    pub fn with_shift(self, shift: f64) -> Result<Map, BadMap> {
        Map::try_from(Parts { shift, ..self.parts })
    }

    /// The same with groups as the paper has them in a layer of this layout.
    ///
    /// # Errors
    /// Never for dense and convolutional layers; graph maps have columns only.
    pub fn for_layout(self, layout: Layout) -> Result<Map, BadMap> {
        let normalisation =
            self.parts.normalisation.map(|norm| Normalisation { groups: Groups::of_layout(layout), ..norm });
        Map::try_from(Parts { normalisation, ..self.parts })
    }

    /// The same map with some values replaced.
    ///
    /// # Errors
    /// A value that the map has no use for or that makes no sense.
    pub fn with(self, overrides: &Overrides, layout: Layout) -> Result<Map, BadMap> {
        let mut parts = self.parts;
        if let Some(activation) = overrides.activation {
            parts.activation = activation;
            if parts.form == Form::Gains {
                parts.tie = Map::usual_tie(activation);
            }
        }
        parts.shift = overrides.shift.unwrap_or(parts.shift);
        match (&mut parts.form, overrides.power) {
            (Form::PowerRatio { p, .. } | Form::PowerMean { p, .. }, Some(power)) => *p = power,
            (_, Some(power)) => parts.power = power,
            _ => {}
        }
        if let Some(given) = overrides.teleport {
            let (Form::Graph { teleport } | Form::PowerMean { teleport, .. }) = &mut parts.form else {
                return Err(BadMap::new(format!(
                    "`{self}` is no graph map, so it has no teleport probability"
                )));
            };
            *teleport = given;
        }
        if let Some(p) = overrides.norm {
            let groups = parts.normalisation.map_or(Groups::of_layout(layout), |norm| norm.groups);
            parts.normalisation = Some(Normalisation { p, groups });
        }
        Map::try_from(parts)
    }

    /// The tie of [`Form::Gains`] that leaves its weights free: 1.2 for tanh, which needs more than 1.19968, else 1.
    #[must_use]
    pub fn usual_tie(activation: Activation) -> f64 {
        if activation == Activation::Tanh { 1.2 } else { 1.0 }
    }

    /// The expression the weights enter.
    #[must_use]
    pub fn form(&self) -> Form {
        self.parts.form
    }

    /// `s`.
    #[must_use]
    pub fn activation(&self) -> Activation {
        self.parts.activation
    }

    /// Where `y` enters.
    #[must_use]
    pub fn injection(&self) -> Injection {
        self.parts.injection
    }

    /// Added to every entry, inside the power.
    #[must_use]
    pub fn shift(&self) -> f64 {
        self.parts.shift
    }

    /// Entrywise power; 1 for none.
    #[must_use]
    pub fn power(&self) -> f64 {
        self.parts.power
    }

    /// `tie (W- 1)` is added to the shift; 0 for all but [`Form::Gains`].
    #[must_use]
    pub fn tie(&self) -> f64 {
        self.parts.tie
    }

    /// The weights it is meant for.
    #[must_use]
    pub fn weights(&self) -> WeightClass {
        self.parts.weights
    }

    /// Division by a norm, if any.
    #[must_use]
    pub fn normalisation(&self) -> Option<Normalisation> {
        self.parts.normalisation
    }

    /// Projection onto balls, if any.
    #[must_use]
    pub fn projection(&self) -> Option<Projection> {
        self.parts.projection
    }

    /// Whether it is meant for monotone weights (A7) or has them by construction (A8): the solvers are the splittings.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        matches!(self.parts.weights, WeightClass::Monotone { .. })
            || matches!(self.parts.form, Form::Tied { .. })
    }

    /// Refuses an operator on which the map means nothing: groups that its states do not have, a graph map without a graph.
    ///
    /// # Errors
    /// A sentence that names both.
    pub fn check_operator(&self, operator: &Operator) -> Result<(), BadMap> {
        if let Form::PowerMean { .. } = self.parts.form {
            return Err(BadMap::new(format!(
                "`{self}` takes means over hyperedges, which a matrix of weights does not tell: train on a graph with them"
            )));
        }
        let is_graph = matches!(self.parts.form, Form::Graph { .. });
        if is_graph != (operator.layout() == Layout::Graph) {
            let what =
                if is_graph { "needs the weights of a graph" } else { "does not take a graph's weights" };
            return Err(BadMap::new(format!("`{self}` {what}")));
        }
        let groups = self.parts.normalisation.map(|norm| norm.groups);
        match groups.or(self.parts.projection.map(|projection| projection.groups)) {
            Some(groups) => groups.members(operator).map(|_| ()),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), String> {
        let Parts { form, activation, injection, shift, power, tie, weights, normalisation, projection } =
            self.parts;
        activation.check().map_err(|bad| bad.to_string())?;
        let positive = |what: &str, x: f64| match x {
            x if x > 0.0 && x.is_finite() => Ok(()),
            x => Err(format!("it needs a finite {what} above 0, not {x}")),
        };
        let ensure = |holds: bool, why: &str| if holds { Ok(()) } else { Err(why.to_owned()) };
        ensure(shift.is_finite(), "its shift must be finite")?;
        positive("power", power)?;
        ensure(tie >= 0.0 && tie.is_finite(), "its tie must be a finite number from 0")?;
        ensure(tie == 0.0 || form == Form::Gains, "only gains have a tie")?;
        ensure(power == 1.0 || form == Form::Single, "only s(W z) takes a power")?;
        let chooses = matches!(form, Form::Single | Form::Tied { .. } | Form::Graph { .. });
        ensure(
            chooses || injection == Injection::Outer,
            "this form takes its injection outside the activation",
        )?;
        ensure(form == Form::Single || weights == WeightClass::Any, "this form is for any weights")?;
        match form {
            Form::Divisive { q } | Form::Rational { q } => positive("q", q)?,
            Form::PowerRatio { p, e } => {
                positive("power", p)?;
                positive("e", e)?;
                ensure(shift == 0.0, "a power ratio has no shift")?;
                ensure(activation == Activation::Identity, "a power ratio has no activation")?;
            }
            Form::PowerMean { p, .. } => {
                // Below 1 a power mean is no norm: its slopes grow beyond all bounds near zero.
                if !(1.0..=Form::MOST_POWER).contains(&p) {
                    return Err(format!(
                        "the power of its means must lie between 1 and {}, not {p}",
                        Form::MOST_POWER
                    ));
                }
                ensure(activation == Activation::Identity, "power means have no activation")?;
                ensure(shift == 0.0, "power means have no shift")?;
                ensure(normalisation.is_none() && projection.is_none(), "power means stay as they are")?;
            }
            Form::Graph { .. } => {}
            Form::Tied { margin, skew } => {
                positive("margin", margin)?;
                ensure(skew.is_finite(), "its skew must be finite")?;
            }
            Form::Single | Form::SplitSign | Form::Gains | Form::Monomial => {}
        }
        if let Some(teleport) = form.teleport() {
            ensure(teleport > 0.0 && teleport < 1.0, "its teleport probability must lie between 0 and 1")?;
        }
        if let Form::Rational { .. } = form {
            ensure(activation == Activation::Softsign, "a rational form has no activation but softsign")?;
        }
        if let WeightClass::Monotone { margin } = weights {
            ensure(margin >= 0.0 && margin.is_finite(), "its margin must be a finite number from 0")?;
        }
        if self.is_monotone() {
            ensure(power == 1.0, "a monotone map has no power: its slopes would leave [0, 1]")?;
            ensure(normalisation.is_none(), "a monotone map has no normalisation")?;
            if !activation.slopes_in_unit_interval() {
                return Err(format!("a monotone map needs slopes in [0, 1], which {activation} has not"));
            }
        }
        if let Some(norm) = normalisation {
            if let PNorm::Finite(p) = norm.p {
                ensure(p >= 1.0 && p.is_finite(), "its norm must be a number from 1 to inf")?;
            }
            ensure(norm.groups != Groups::Blocks { size: 0 }, "a block has at least one entry")?;
            let of_graph = matches!(norm.groups, Groups::GraphColumns | Groups::GraphRows);
            let on_graph = matches!(form, Form::Graph { .. });
            ensure(
                of_graph == on_graph,
                "graph maps, and only they, are normalised by rows or columns of Z",
            )?;
        }
        if let Some(Projection { groups, radius }) = projection {
            positive("radius", radius)?;
            ensure(matches!(form, Form::Graph { .. }), "only graph maps are projected")?;
            ensure(normalisation.is_none(), "a map is normalised or projected, not both")?;
            let of_graph = matches!(groups, Groups::GraphColumns | Groups::GraphRows);
            ensure(of_graph, "graph maps are projected by rows or columns of Z")?;
        }
        Ok(())
    }
}

/// A map that does not exist, or one with parts that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMap(String);

impl BadMap {
    /// With that sentence.
    pub(crate) fn new(sentence: String) -> BadMap {
        BadMap(sentence)
    }
}

impl From<UnknownActivation> for BadMap {
    fn from(cause: UnknownActivation) -> BadMap {
        BadMap(cause.to_string())
    }
}

impl fmt::Display for Map {
    /// The equation, in plain characters: `z = tanh(W z) + y + 1.2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.parts.activation;
        let injected = match self.parts.form.teleport() {
            Some(teleport) => format!(" + {teleport} y"),
            None => " + y".to_owned(),
        };
        let (inner, outer) = match (self.parts.injection, self.parts.form) {
            (_, Form::PowerRatio { .. }) => (String::new(), String::new()),
            (Injection::Inner, _) => (injected, String::new()),
            (Injection::Outer, _) => (String::new(), injected),
        };
        let core = match self.parts.form {
            Form::Single => format!("{s}(W z{inner})"),
            Form::SplitSign => format!("{s}(W+ z) - {s}(W- z)"),
            Form::Divisive { q } => format!("{s}(W+ z / ({q} + W- z))"),
            Form::Rational { q } => format!("W+ z / ({q} + |W| z)"),
            Form::PowerRatio { p, e } => format!("((W+ z + y1 + {e}) / (W- z + y2 + {e}))^{p}"),
            Form::Gains => format!("W+ {s}(P z) - W- {s}(N z) + {} (W- 1)", self.parts.tie),
            Form::Monomial => format!("{s}(exp(W ln z))"),
            Form::Tied { margin, skew } => {
                format!("{s}(((1 - {margin}) I - A'A + {skew} (A - A')) z{inner})")
            }
            Form::Graph { teleport } => format!("{s}((1 - {teleport}) A z{inner})"),
            Form::PowerMean { teleport, p } => {
                format!("(1 - {teleport}) (B n mean((B' |z|)^{p})^(1/{p}) + diag z)")
            }
        };
        let shift = match self.parts.shift {
            0.0 => String::new(),
            below if below < 0.0 => format!(" - {}", -below),
            above => format!(" + {above}"),
        };
        let body = if self.parts.power == 1.0 {
            format!("{core}{outer}{shift}")
        } else {
            format!("({core}{shift})^{}{outer}", self.parts.power)
        };
        if let Some(Projection { groups, radius }) = self.parts.projection {
            return write!(f, "z = P_{radius}({body}), {groups} projected onto balls of radius {radius}");
        }
        match self.parts.normalisation {
            None => write!(f, "z = {body}"),
            Some(Normalisation { p, groups: Groups::WholeVector }) => write!(f, "z = norm_{p}({body})"),
            Some(Normalisation { p, groups }) => write!(f, "z = norm_{p}({body}) over {groups}"),
        }
    }
}
