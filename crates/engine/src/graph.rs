//! Propagation over a graph as data: what the kernels need to know of the map `Z -> F(Z; f)`.
//!
//! The state `Z` and the injection `f` have one row per node. With the teleport probability `t` and the matrix `A` of
//! the graph, `u = (1 - t) A Z`:
//!
//! * outer injection: `F = norm( s(u) + t f + shift )`,
//! * inner injection: `F = norm( s(u + t f) + shift )`,
//!
//! `norm` only where there is a normalisation, or a projection of each row onto a ball. Over hyperedges, `A = B B' + diag(own)`, a map
//! may take power means in the place of `B' Z`: `u = (1 - t) (B h(Z) + diag(own) Z)`, `h_e = n_e mean_i(|b_ie z_i|^p)^(1/p)` over the
//! `n_e` nodes of hyperedge `e`.

use serde::{Deserialize, Serialize};
use subdeq_map::{Form, Groups, Normalisation, PNorm, Parts, Projection, WeightClass};

use crate::{Activation, EngineError, Injection, Result};

/// Which entries of the state are divided by their largest absolute value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GraphNorm {
    /// The entries of each node, as the published code does. Nodes interact, so this costs a factor of two in what can
    /// be proved.
    Rows,
    /// The entries of each channel over all nodes, as the paper writes. Channels do not interact.
    Columns,
}

/// A propagation `F(Z; f)`: everything but the graph and the injection.
///
/// ```
/// use subdeq_engine::GraphMap;
/// use subdeq_map::{Layout, Map};
/// let appnp_tanh = GraphMap::new(Map::named("appnp-tanh", Layout::Graph)?)?;
/// assert_eq!((appnp_tanh.teleport(), appnp_tanh.shift()), (0.1, 1.2));
/// assert!(GraphMap::new(Map::named("split-sign", Layout::Dense)?).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "GraphMapFile", into = "GraphMapFile")]
pub struct GraphMap {
    equation: subdeq_map::Map,
    teleport: f64,
    power: Option<f64>,
    normalisation: Option<GraphNorm>,
    ball: Option<f64>,
}

/// A propagation as it is written into files.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphMapFile {
    teleport: f64,
    activation: Activation,
    injection: Injection,
    shift: f64,
    normalisation: Option<GraphNorm>,
    /// The radius of the balls that rows are projected onto.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ball: Option<f64>,
    /// The power of means over hyperedges.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    power: Option<f64>,
}

impl GraphMap {
    /// The propagation of an equation.
    ///
    /// # Errors
    /// An equation that is not a graph's, an activation other than [`Activation::Identity`] and [`Activation::Tanh`], a norm
    /// other than the largest entry's, or a projection of columns.
    pub fn new(equation: subdeq_map::Map) -> Result<Self> {
        let refuse = |why: &str| Err(EngineError::Invalid(format!("`{equation}` {why}")));
        let (teleport, power) = match equation.form() {
            Form::Graph { teleport } => (teleport, None),
            Form::PowerMean { teleport, p } => (teleport, Some(p)),
            _ => return refuse("does not propagate over a graph: it is the map of a layer"),
        };
        if !matches!(equation.activation(), Activation::Identity | Activation::Tanh) {
            return refuse(
                "cannot be solved: propagation over a graph knows the activations identity and tanh",
            );
        }
        let ball = match equation.projection() {
            None => None,
            Some(Projection { groups: Groups::GraphRows, radius }) => Some(radius),
            Some(_) => return refuse("cannot be solved: propagation over a graph projects rows only"),
        };
        let normalisation = match equation.normalisation() {
            None => None,
            Some(Normalisation { p: PNorm::Inf, groups: Groups::GraphRows }) => Some(GraphNorm::Rows),
            Some(Normalisation { p: PNorm::Inf, groups: Groups::GraphColumns }) => Some(GraphNorm::Columns),
            Some(_) => {
                return refuse(
                    "cannot be solved: propagation over a graph divides by the largest entry only",
                );
            }
        };
        Ok(Self { equation, teleport, power, normalisation, ball })
    }

    /// The equation.
    #[must_use]
    pub fn equation(&self) -> subdeq_map::Map {
        self.equation
    }

    /// Teleport probability `t`.
    #[must_use]
    pub fn teleport(&self) -> f64 {
        self.teleport
    }

    /// `s`: [`Activation::Identity`] or [`Activation::Tanh`].
    #[must_use]
    pub fn activation(&self) -> Activation {
        self.equation.activation()
    }

    /// Where `t f` enters.
    #[must_use]
    pub fn injection(&self) -> Injection {
        self.equation.injection()
    }

    /// Added to every entry before the normalisation.
    #[must_use]
    pub fn shift(&self) -> f64 {
        self.equation.shift()
    }

    /// `p`, where hyperedges take power means of their nodes; `None` where they add them up.
    #[must_use]
    pub fn power(&self) -> Option<f64> {
        self.power
    }

    /// Normalisation, if any.
    #[must_use]
    pub fn normalisation(&self) -> Option<GraphNorm> {
        self.normalisation
    }

    /// The radius of the ball that each row is projected onto, if any.
    #[must_use]
    pub fn ball(&self) -> Option<f64> {
        self.ball
    }

    /// Whether the map is affine, `Z = (1 - t) A Z + t f + shift`, and so can be solved exactly.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.activation() == Activation::Identity
            && self.power.is_none()
            && self.normalisation.is_none()
            && self.ball.is_none()
    }
}

impl From<GraphMap> for GraphMapFile {
    fn from(map: GraphMap) -> Self {
        Self {
            teleport: map.teleport,
            activation: map.activation(),
            injection: map.injection(),
            shift: map.shift(),
            normalisation: map.normalisation,
            ball: map.ball,
            power: map.power,
        }
    }
}

impl TryFrom<GraphMapFile> for GraphMap {
    type Error = EngineError;

    fn try_from(file: GraphMapFile) -> Result<Self> {
        let GraphMapFile { teleport, activation, injection, shift, normalisation, ball, power } = file;
        let normalisation = normalisation.map(|over| Normalisation {
            p: PNorm::Inf,
            groups: match over {
                GraphNorm::Rows => Groups::GraphRows,
                GraphNorm::Columns => Groups::GraphColumns,
            },
        });
        let parts = Parts {
            form: power.map_or(Form::Graph { teleport }, |p| Form::PowerMean { teleport, p }),
            activation,
            injection,
            shift,
            power: 1.0,
            tie: 0.0,
            weights: WeightClass::Any,
            normalisation,
            projection: ball.map(|radius| Projection { groups: Groups::GraphRows, radius }),
        };
        Self::new(subdeq_map::Map::try_from(parts)?)
    }
}

#[cfg(test)]
mod tests {
    use super::GraphMap;

    /// Ledgers and stored runs hold these.
    #[test]
    fn files_look_as_they_always_did() {
        let line =
            r#"{"teleport":0.1,"activation":"Tanh","injection":"Inner","shift":1.2,"normalisation":"Rows"}"#;
        let map: GraphMap = serde_json::from_str(line).unwrap();
        assert_eq!(
            map.equation().to_string(),
            "z = norm_inf(tanh((1 - 0.1) A z + 0.1 y) + 1.2) over the rows of Z"
        );
        assert_eq!(serde_json::to_string(&map).unwrap(), line);
        for (change, to) in [("Tanh", "Relu"), ("0.1", "1.0"), ("1.2", "1e999"), ("shift", "drift")] {
            assert!(serde_json::from_str::<GraphMap>(&line.replace(change, to)).is_err(), "{to}");
        }
    }

    #[test]
    fn files_tell_the_power_of_means_or_are_refused() {
        let line = r#"{"teleport":0.1,"activation":"Identity","injection":"Outer","shift":0.0,"normalisation":null,"power":3.0}"#;
        let map: GraphMap = serde_json::from_str(line).unwrap();
        assert_eq!((map.power(), map.is_linear()), (Some(3.0), false));
        assert_eq!(serde_json::to_string(&map).unwrap(), line);
        for bad in ["0.999", "-2.0", "1e999", "101.0", "0.0"] {
            let refused =
                serde_json::from_str::<GraphMap>(&line.replace("3.0", bad)).unwrap_err().to_string();
            assert!(refused.contains("between 1 and 100") || bad == "1e999", "{bad}: {refused}");
        }
        for (change, to) in [("Identity", "Tanh"), ("Outer", "Inner"), ("null", "\"Rows\"")] {
            assert!(serde_json::from_str::<GraphMap>(&line.replace(change, to)).is_err(), "{to}");
        }
    }
}
