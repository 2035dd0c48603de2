//! A7 and A8: monotone operators.

use subdeq_map::{Activation, Injection, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// `s(W z + y)` or `s(W z) + y + shift` with `sym(W) <= (1 - m) I` by construction: unique for every input of any sign.
///
/// ```
/// use subdeq::map::{ParametrisedMap, Monotone};
/// use subdeq::Activation;
/// let shifted = ParametrisedMap::try_from(Monotone::new(Activation::Relu))?;
/// let product = ParametrisedMap::try_from(Monotone::new(Activation::Tanh).product(1.0).outer(0.0))?;
/// assert!(shifted.is_monotone() && product.is_monotone());
/// # Ok::<(), subdeq::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Monotone {
    activation: Activation,
    parametrisation: Parametrisation,
    injection: Injection,
    shift: f64,
}

impl Monotone {
    /// Inner injection, shifted parametrisation with margin 0.02.
    #[must_use]
    pub fn new(activation: Activation) -> Self {
        Self {
            activation,
            parametrisation: Parametrisation::MonotoneShifted { margin: 0.02 },
            injection: Injection::Inner,
            shift: 0.0,
        }
    }

    /// `W = V - max(0, lambda - (1 - margin)) I`, `lambda` the largest eigenvalue of the symmetric part of `V`.
    #[must_use]
    pub fn shifted(self, margin: f64) -> Self {
        Self { parametrisation: Parametrisation::MonotoneShifted { margin }, ..self }
    }

    /// `W = (1 - margin) I - A'A + B - B'`.
    #[must_use]
    pub fn product(self, margin: f64) -> Self {
        Self { parametrisation: Parametrisation::MonotoneProduct { margin }, ..self }
    }

    /// `W = (1 - margin) I - A'A + b (A - A')` with one number `b` (A8): the most accurate for its number of weights so far, with
    /// margin 1.
    #[must_use]
    pub fn tied(self, margin: f64) -> Self {
        Self { parametrisation: Parametrisation::MonotoneTied { margin }, ..self }
    }

    /// Injection outside the activation, with a shift.
    #[must_use]
    pub fn outer(self, shift: f64) -> Self {
        Self { injection: Injection::Outer, shift, ..self }
    }
}

impl TryFrom<Monotone> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: Monotone) -> Result<Self> {
        let outer = Map::single(map.activation, map.shift)?;
        let equation = if map.injection == Injection::Inner { outer.inner()? } else { outer };
        ParametrisedMap::new("monotone", equation, map.parametrisation)
    }
}

/// The monotone equilibrium models that the paper compares with (Winston and Kolter), `s(W z + y)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonDeq {
    /// With ReLU.
    Relu,
    /// With tanh.
    Tanh,
}

impl TryFrom<MonDeq> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// None.
    fn try_from(model: MonDeq) -> Result<Self> {
        let (name, activation) = match model {
            MonDeq::Relu => ("mondeq-relu", Activation::Relu),
            MonDeq::Tanh => ("mondeq-tanh", Activation::Tanh),
        };
        Ok(ParametrisedMap::try_from(Monotone::new(activation).product(1.0))?.renamed(name))
    }
}
