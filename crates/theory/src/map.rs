//! Equilibrium maps `F(z; y)` described as data: what a certificate speaks about.
//!
//! A [`MapSpec`] says everything about a map except its weights. The sign structure of the weights is not part of it:
//! it is read off the weights ([`SignStructure`]), because a promise must hold for the weights that are there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::activation::{Activation, UnknownActivation};

/// The signs found in a weight matrix, kernel or adjacency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignStructure {
    /// Every entry is `>= 0`.
    Nonnegative,
    /// Within each row (output unit, output channel) all entries are `>= 0` or all are `<= 0`.
    RowSigned,
    /// At least one row has entries of both signs.
    Mixed,
}

impl fmt::Display for SignStructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignStructure::Nonnegative => "nonnegative weights",
            SignStructure::RowSigned => "weights of one sign per row",
            SignStructure::Mixed => "weights of both signs in one row",
        })
    }
}

/// How the weights act: decides what a normalised group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// `W z` is a matrix product.
    Dense,
    /// `W z` is a zero-padded 3x3 convolution of an image with several channels.
    Conv,
    /// `A Z` mixes the rows (nodes) of `Z`, each column by itself.
    Graph,
}

/// The expression that the weights enter. `s` is the activation, `W+ = max(W, 0)`, `W- = max(-W, 0)`; injection, shift,
/// power and normalisation are added around it as [`MapSpec`] says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Form {
    /// `s(W z)`.
    Single,
    /// `s(W+ z) - s(W- z)` (A3): unique for every `W`.
    SplitSign,
    /// `s(W+ z / (q + W- z))` (A4).
    Divisive {
        /// `q > 0`.
        q: f64,
    },
    /// `W+ z / (q + W+ z + W- z)` (A4 with softsign).
    Rational {
        /// `q > 0`.
        q: f64,
    },
    /// `((W+ z + y1 + e) / (W- z + y2 + e))^p` (A6). The injection has `2n` entries, `y1` then `y2`.
    PowerRatio {
        /// Exponent; unique for `0 < p < 1/2`.
        p: f64,
        /// `e > 0`.
        e: f64,
    },
    /// `W+ s(P z) - W- s(N z)` (A3'), with `P, N >= 0` of any kind (the identity where only `W` is given). The shift
    /// is tied to the weights: `a_i = tie * (row sum of W-)_i + shift`, so that no weight needs a constraint.
    Gains {
        /// 1 suffices for softsign, tanh needs more than 1.19968.
        tie: f64,
    },
    /// `s(exp(W ln z))` (A5).
    Monomial,
    /// `s(W z)` with `sym(T W T^-1) <= (1 - m) I`, `m > 0` (A7). Unique, but plain iteration need not converge.
    Monotone {
        /// The margin `m` that the weights must show; 0 asks for any margin above zero.
        margin: f64,
    },
    /// `s((1 - t) A Z)` with the injection `t f(X)`: propagation over a graph.
    Graph {
        /// Teleport probability `t` in `(0, 1)`.
        teleport: f64,
    },
}

/// Where the injection `y` enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Injection {
    /// `s(W z + y) + shift`.
    Inner,
    /// `s(W z) + y + shift`.
    Outer,
}

/// The exponent of a p-norm, `1 <= p <= infinity`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PNorm {
    /// A finite `p >= 1`.
    Finite(f64),
    /// The largest entry.
    Inf,
}

impl PNorm {
    /// The norm of a vector.
    ///
    /// ```
    /// use subdeq_theory::map::PNorm;
    /// assert_eq!(PNorm::Finite(2.0).norm(&[3.0, -4.0]), 5.0);
    /// assert_eq!(PNorm::Inf.norm(&[3.0, -4.0]), 4.0);
    /// ```
    #[must_use]
    pub fn norm(self, z: &[f64]) -> f64 {
        let top = z.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        match self {
            PNorm::Inf => top,
            PNorm::Finite(_) if top == 0.0 || !top.is_finite() => top,
            PNorm::Finite(1.0) => z.iter().map(|x| x.abs()).sum(),
            PNorm::Finite(2.0) => top * z.iter().map(|x| (x / top) * (x / top)).sum::<f64>().sqrt(),
            PNorm::Finite(p) => top * z.iter().map(|x| (x.abs() / top).powf(p)).sum::<f64>().powf(1.0 / p),
        }
    }
}

impl fmt::Display for PNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PNorm::Finite(p) => write!(f, "{p}"),
            PNorm::Inf => f.write_str("inf"),
        }
    }
}

impl FromStr for PNorm {
    type Err = BadMap;

    fn from_str(text: &str) -> Result<PNorm, BadMap> {
        match text.trim().to_ascii_lowercase().as_str() {
            "inf" | "infinity" => Ok(PNorm::Inf),
            number => match number.parse::<f64>() {
                Ok(p) if p >= 1.0 && p.is_finite() => Ok(PNorm::Finite(p)),
                _ => Err(BadMap::new(format!("a norm is a number from 1 to inf, but `{text}` was given"))),
            },
        }
    }
}

/// Which entries are divided by one common norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Groups {
    /// The whole vector, per sample.
    WholeVector,
    /// Of each channel of an image, the pixels that differ only in their height (the norm along axis 2 of an NCHW
    /// tensor), as the paper does.
    AlongHeight,
    /// Each column (feature) of a graph's state.
    GraphColumns,
    /// Each row (node) of a graph's state.
    GraphRows,
    /// Consecutive entries of a vector, `size` at a time (the columns of a matrix stored one after the other).
    Blocks {
        /// Entries per group.
        size: usize,
    },
}

/// Division of each group of entries by its norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// Which norm.
    pub p: PNorm,
    /// What forms a group.
    pub groups: Groups,
    /// Whether one group's entries depend on another group's: then Hilbert's metric does not suffice (E4) and twice the
    /// degree must stay below one.
    pub interacting: bool,
}

impl Normalisation {
    /// The normalisation by groups of the kind given; whether they interact follows from the layer.
    #[must_use]
    pub fn new(p: PNorm, groups: Groups) -> Normalisation {
        let interacting = !matches!(groups, Groups::WholeVector | Groups::GraphColumns);
        Normalisation { p, groups, interacting }
    }

    /// What the paper normalises in a layer of this layout: the vector, image columns, or (as it writes) the columns of
    /// a graph's state.
    #[must_use]
    pub fn of_layout(p: PNorm, layout: Layout) -> Normalisation {
        Normalisation::new(
            p,
            match layout {
                Layout::Dense => Groups::WholeVector,
                Layout::Conv => Groups::AlongHeight,
                Layout::Graph => Groups::GraphColumns,
            },
        )
    }
}

/// An equilibrium map `F(z; y)` without its weights.
///
/// With `u` for what the [`Form`] gives (`s(W z)` for [`Form::Single`]), the map is
///
/// * outer injection: `F = norm( (u + shift)^power + y )`,
/// * inner injection: `F = norm( (u with y added to its preactivation + shift)^power )`,
///
/// `norm` only where there is a normalisation.
///
/// ```
/// use subdeq_theory::map::{Form, Layout, MapSpec};
/// let map = MapSpec::named("split-sign", Layout::Dense)?;
/// assert_eq!((map.form, map.shift), (Form::SplitSign, 1.2));
/// assert!(MapSpec::named("node-tanh", Layout::Dense).is_err(), "not an equilibrium");
/// # Ok::<(), subdeq_theory::map::BadMap>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MapSpec {
    /// The name it goes by, one of [`MapSpec::NAMES`] or a name of the user's own.
    pub name: String,
    /// The expression the weights enter.
    pub form: Form,
    /// `s`.
    pub activation: Activation,
    /// Added to every entry (inside the power).
    pub shift: f64,
    /// Entrywise power; 1 for none.
    pub power: f64,
    /// Where `y` enters.
    pub injection: Injection,
    /// Whether the map uses `|W|` in place of `W`.
    pub absolute_weights: bool,
    /// The sign structure without which it is not this map.
    pub requires: Option<SignStructure>,
    /// Division by a norm, if any.
    pub normalisation: Option<Normalisation>,
}

/// Values that replace a map's defaults.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Replaces the activation.
    pub activation: Option<Activation>,
    /// Replaces the shift.
    pub shift: Option<f64>,
    /// Replaces the power.
    pub power: Option<f64>,
    /// Replaces the norm, or adds one.
    pub norm: Option<PNorm>,
}

impl MapSpec {
    /// The names that [`MapSpec::named`] understands: the paper's models, then the sound architectures.
    pub const NAMES: [&'static str; 21] = [
        "subdeq-tanh",
        "subdeq-normalized-tanh",
        "subdeq-abs-normalized-tanh",
        "subdeq-normalized-power-tanh",
        "subdeq-power-tanh",
        "mondeq-relu",
        "mondeq-tanh",
        "appnp",
        "appnp-tanh",
        "appnp-normalized-tanh",
        "appnp-tanh-2",
        "appnp-normalized-tanh-2",
        "monotone",
        "excitatory",
        "row-signed",
        "split-sign",
        "divisive",
        "rational",
        "power-ratio",
        "gains",
        "monomial",
    ];

    /// The teleport probability of the graph models unless one is given.
    pub const TELEPORT: f64 = 0.1;

    /// `s(W z) + y + shift`, the form that the others are variations of.
    #[must_use]
    pub fn single(activation: Activation, shift: f64) -> MapSpec {
        MapSpec {
            name: "single".into(),
            form: Form::Single,
            activation,
            shift,
            power: 1.0,
            injection: Injection::Outer,
            absolute_weights: false,
            requires: None,
            normalisation: None,
        }
    }

    /// The map of that name, with the defaults of the paper or of the theory.
    ///
    /// # Errors
    /// A name that is not one of [`MapSpec::NAMES`].
    pub fn named(name: &str, layout: Layout) -> Result<MapSpec, BadMap> {
        use Activation::{Identity, Relu, Softsign, Tanh};
        let base = |activation, shift| MapSpec { name: name.into(), ..MapSpec::single(activation, shift) };
        let norm = Some(Normalisation::of_layout(PNorm::Inf, layout));
        let columns = Some(Normalisation::new(PNorm::Inf, Groups::GraphColumns));
        let graph = Form::Graph { teleport: MapSpec::TELEPORT };
        let inner = Injection::Inner;
        Ok(match name {
            "subdeq-tanh" => base(Tanh, 1.2),
            "subdeq-normalized-tanh" => MapSpec { normalisation: norm, ..base(Tanh, 1.603) },
            "subdeq-abs-normalized-tanh" => {
                MapSpec { normalisation: norm, injection: inner, absolute_weights: true, ..base(Tanh, 1.2) }
            }
            "subdeq-normalized-power-tanh" => MapSpec {
                normalisation: norm,
                injection: inner,
                absolute_weights: true,
                power: 0.99,
                ..base(Tanh, 0.0)
            },
            "subdeq-power-tanh" => MapSpec { power: 0.99, ..base(Tanh, 0.0) },
            "mondeq-relu" => {
                MapSpec { form: Form::Monotone { margin: 0.0 }, injection: inner, ..base(Relu, 0.0) }
            }
            "mondeq-tanh" => {
                MapSpec { form: Form::Monotone { margin: 0.0 }, injection: inner, ..base(Tanh, 0.0) }
            }
            "monotone" => {
                MapSpec { form: Form::Monotone { margin: 0.0 }, injection: inner, ..base(Relu, 0.0) }
            }
            "appnp" => MapSpec { form: graph, ..base(Identity, 0.0) },
            "appnp-tanh" => MapSpec { form: graph, ..base(Tanh, 1.2) },
            "appnp-normalized-tanh" => MapSpec { form: graph, normalisation: columns, ..base(Tanh, 1.2) },
            "appnp-tanh-2" => MapSpec { form: graph, injection: inner, ..base(Tanh, 1.2) },
            "appnp-normalized-tanh-2" => {
                MapSpec { form: graph, injection: inner, normalisation: columns, ..base(Tanh, 1.2) }
            }
            "excitatory" => MapSpec { requires: Some(SignStructure::Nonnegative), ..base(Tanh, 1.2) },
            "row-signed" => MapSpec { requires: Some(SignStructure::RowSigned), ..base(Tanh, 1.603) },
            "split-sign" => MapSpec { form: Form::SplitSign, ..base(Softsign, 1.2) },
            "divisive" => MapSpec { form: Form::Divisive { q: 1.0 }, ..base(Tanh, 1.2) },
            "rational" => MapSpec { form: Form::Rational { q: 1.0 }, ..base(Softsign, 1.2) },
            "power-ratio" => MapSpec {
                form: Form::PowerRatio { p: 0.45, e: 1.0 },
                injection: inner,
                ..base(Identity, 0.0)
            },
            "gains" => MapSpec { form: Form::Gains { tie: 1.0 }, ..base(Softsign, 0.2) },
            "monomial" => MapSpec { form: Form::Monomial, ..base(Tanh, 1.2) },
            "node-relu" | "node-tanh" | "explicit-tanh" => {
                return Err(BadMap::new(format!(
                    "`{name}` is not an equilibrium: it has no fixed point to certify"
                )));
            }
            _ => {
                return Err(BadMap::new(format!(
                    "there is no map `{name}`; known are {}",
                    MapSpec::NAMES.join(", ")
                )));
            }
        })
    }

    /// The same map with some values replaced.
    ///
    /// # Errors
    /// A value that the map has no use for or that makes no sense (see [`MapSpec::check`]).
    pub fn with(mut self, overrides: &Overrides, layout: Layout) -> Result<MapSpec, BadMap> {
        if let Some(activation) = overrides.activation {
            if matches!(self.form, Form::Rational { .. } | Form::PowerRatio { .. }) {
                return Err(BadMap::new(format!(
                    "`{}` has no activation to replace by {activation}",
                    self.name
                )));
            }
            self.activation = activation;
            if let Form::Gains { tie } = &mut self.form
                && activation == Activation::Tanh
            {
                *tie = 1.2;
            }
        }
        if let Some(shift) = overrides.shift {
            if matches!(self.form, Form::PowerRatio { .. }) {
                return Err(BadMap::new(format!("`{}` has no shift", self.name)));
            }
            self.shift = shift;
        }
        if let Some(power) = overrides.power {
            match &mut self.form {
                Form::PowerRatio { p, .. } => *p = power,
                _ => self.power = power,
            }
        }
        if let Some(p) = overrides.norm {
            self.normalisation = Some(match self.normalisation {
                Some(kept) => Normalisation { p, ..kept },
                None => Normalisation::of_layout(p, layout),
            });
        }
        self.check()?;
        Ok(self)
    }

    /// Whether all parameters make sense.
    ///
    /// # Errors
    /// A sentence that names the map, the parameter and its value.
    pub fn check(&self) -> Result<(), BadMap> {
        let wrong =
            |what: &str, value: f64| Err(BadMap::new(format!("`{}` needs {what}, not {value}", self.name)));
        self.activation.check()?;
        if !self.shift.is_finite() {
            return wrong("a finite shift", self.shift);
        }
        if !(self.power > 0.0 && self.power.is_finite()) {
            return wrong("a finite power above 0", self.power);
        }
        if let Some(Normalisation { p: PNorm::Finite(p), .. }) = self.normalisation
            && !(p >= 1.0 && p.is_finite())
        {
            return wrong("a norm from 1 to inf", p);
        }
        match self.form {
            Form::Divisive { q } | Form::Rational { q } if !(q > 0.0 && q.is_finite()) => {
                wrong("a finite q > 0", q)
            }
            Form::PowerRatio { p, .. } if !(p > 0.0 && p.is_finite()) => wrong("a finite power above 0", p),
            Form::PowerRatio { e, .. } if !(e > 0.0 && e.is_finite()) => wrong("a finite e > 0", e),
            Form::Gains { tie } if !(tie >= 0.0 && tie.is_finite()) => wrong("a finite tie >= 0", tie),
            Form::Monotone { margin } if !(margin >= 0.0 && margin.is_finite()) => {
                wrong("a finite margin >= 0", margin)
            }
            Form::Graph { teleport } if !(teleport > 0.0 && teleport < 1.0) => {
                wrong("a teleport probability between 0 and 1", teleport)
            }
            _ => Ok(()),
        }
    }

    /// Whether the theorems for this map speak of `y >= 0` only.
    #[must_use]
    pub fn needs_nonnegative_injection(&self) -> bool {
        !matches!(self.form, Form::Monotone { .. })
    }
}

/// A map that does not exist, or one with parameters that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMap(String);

impl BadMap {
    pub(crate) fn new(sentence: String) -> BadMap {
        BadMap(sentence)
    }
}

impl From<UnknownActivation> for BadMap {
    fn from(cause: UnknownActivation) -> BadMap {
        BadMap(cause.to_string())
    }
}

impl fmt::Display for MapSpec {
    /// The equation, in plain characters: `z = tanh(W z) + y + 1.2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.activation;
        let w = if self.absolute_weights { "|W|" } else { "W" };
        let inner = if self.injection == Injection::Inner { " + y" } else { "" };
        let core = match self.form {
            Form::Single | Form::Monotone { .. } => format!("{s}({w} z{inner})"),
            Form::SplitSign => format!("{s}(W+ z) - {s}(W- z)"),
            Form::Divisive { q } => format!("{s}(W+ z / ({q} + W- z))"),
            Form::Rational { q } => format!("W+ z / ({q} + |W| z)"),
            Form::PowerRatio { p, e } => format!("((W+ z + y1 + {e}) / (W- z + y2 + {e}))^{p}"),
            Form::Gains { .. } => format!("W+ {s}(P z) - W- {s}(N z)"),
            Form::Monomial => format!("{s}(exp(W ln z))"),
            Form::Graph { teleport } => {
                let inner = if self.injection == Injection::Inner {
                    format!(" + {teleport} y")
                } else {
                    String::new()
                };
                format!("{s}({} A z{inner})", 1.0 - teleport)
            }
        };
        let shift = match self.form {
            Form::Gains { tie } => format!(" + {tie} (W- 1) + {}", self.shift),
            _ if self.shift == 0.0 => String::new(),
            _ => format!(" + {}", self.shift),
        };
        let outer = match (self.injection, self.form) {
            (Injection::Inner, _) => String::new(),
            (Injection::Outer, Form::Graph { teleport }) => format!(" + {teleport} y"),
            (Injection::Outer, _) => " + y".into(),
        };
        let body = if self.power == 1.0 {
            format!("{core}{outer}{shift}")
        } else {
            format!("({core}{shift})^{}{outer}", self.power)
        };
        match self.normalisation {
            Some(norm) => write!(f, "z = norm_{}({body})", norm.p),
            None => write!(f, "z = {body}"),
        }
    }
}
