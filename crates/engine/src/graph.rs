//! Propagation over a graph as data: what the kernels need to know of the map `Z -> F(Z; f)`.
//!
//! The state `Z` and the injection `f` have one row per node. With the teleport probability `t` and the matrix `A` of
//! the graph, `u = (1 - t) A Z`:
//!
//! * outer injection: `F = norm( s(u) + t f + shift )`,
//! * inner injection: `F = norm( s(u + t f) + shift )`,
//!
//! `norm` only where there is a normalisation.

use serde::{Deserialize, Serialize};

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
/// use subdeq_engine::{Activation, GraphMap, Injection};
/// let appnp_tanh = GraphMap {
///     teleport: 0.1,
///     activation: Activation::Tanh,
///     injection: Injection::Outer,
///     shift: 1.2,
///     normalisation: None,
/// };
/// assert!(appnp_tanh.check().is_ok());
/// assert!(GraphMap { teleport: 1.5, ..appnp_tanh }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphMap {
    /// Teleport probability `t`.
    pub teleport: f64,
    /// `s`: [`Activation::Identity`] or [`Activation::Tanh`].
    pub activation: Activation,
    /// Where `t f` enters.
    pub injection: Injection,
    /// Added to every entry before the normalisation.
    pub shift: f64,
    /// Normalisation, if any.
    pub normalisation: Option<GraphNorm>,
}

impl GraphMap {
    /// Whether the map is affine, `Z = (1 - t) A Z + t f + shift`, and so can be solved exactly.
    #[must_use]
    pub fn is_linear(&self) -> bool {
        self.activation == Activation::Identity && self.normalisation.is_none()
    }

    /// Refuses what no kernel could work with.
    pub fn check(&self) -> Result<()> {
        if !(self.teleport > 0.0 && self.teleport < 1.0) {
            return Err(EngineError::Invalid(format!(
                "the teleport probability must lie between 0 and 1, got {}",
                self.teleport
            )));
        }
        if !matches!(self.activation, Activation::Identity | Activation::Tanh) {
            return Err(EngineError::Invalid(format!(
                "propagation over a graph knows the activations Identity and Tanh, not {:?}",
                self.activation
            )));
        }
        if !self.shift.is_finite() {
            return Err(EngineError::Invalid(format!("the shift must be finite, got {}", self.shift)));
        }
        Ok(())
    }
}
