//! A7: monotone operators.

use subdeq_engine::{Activation, Injection};

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `s(W z + y)` or `s(W z) + y + shift` with `sym(W) <= (1 - m) I` by construction: unique for every input of any sign.
///
/// ```
/// use subdeq::map::{Architecture, Monotone};
/// use subdeq::Activation;
/// let shifted = Architecture::from(Monotone::new(Activation::Relu));
/// let product = Architecture::from(Monotone::new(Activation::Tanh).product(1.0).outer(0.0));
/// assert!(shifted.is_monotone() && product.is_monotone());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Monotone {
    activation: Activation,
    parametrisation: Parametrisation,
    injection: Injection,
    shift: f64,
}

impl Monotone {
    /// Inner injection, shifted parametrisation with margin 0.02: the most accurate for its number of weights so far.
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

    /// Injection outside the activation, with a shift.
    #[must_use]
    pub fn outer(self, shift: f64) -> Self {
        Self { injection: Injection::Outer, shift, ..self }
    }
}

impl From<Monotone> for Architecture {
    fn from(map: Monotone) -> Self {
        Architecture {
            injection: map.injection,
            parametrisation: map.parametrisation,
            ..Architecture::plain("monotone", map.activation, map.shift)
        }
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

impl From<MonDeq> for Architecture {
    fn from(model: MonDeq) -> Self {
        let (name, activation) = match model {
            MonDeq::Relu => ("mondeq-relu", Activation::Relu),
            MonDeq::Tanh => ("mondeq-tanh", Activation::Tanh),
        };
        Architecture { name: name.into(), ..Monotone::new(activation).product(1.0).into() }
    }
}
