//! A3': a hidden layer of excitation and inhibition, with the shift tied to the gains.

use subdeq_engine::{Activation, Form};

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `A s(P z) - B s(N z) + y + tie (B 1) + shift` with `A - B` and `P - N` free: unique for every weight, because the
/// shift grows with the inhibition. Softsign needs `tie = 1`, tanh `tie > 1.19968`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    activation: Activation,
    shift: f64,
    tie: f64,
}

impl Gains {
    /// With an activation and a shift; the tie is 1.2 for tanh, else 1.
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift, tie: if activation == Activation::Tanh { 1.2 } else { 1.0 } }
    }
}

impl From<Gains> for Architecture {
    fn from(map: Gains) -> Self {
        let plain = Architecture::plain("gains", map.activation, map.shift);
        Architecture {
            form: Form::Gains,
            tie: map.tie,
            parametrisation: Parametrisation::SplitGains,
            ..plain
        }
    }
}
