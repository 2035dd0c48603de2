//! A1: no inhibition.

use subdeq_engine::Activation;

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `s(|V| z) + y + shift`: unique, factor `mu_p(shift)` (tanh, 1.2: 0.247).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excitatory {
    activation: Activation,
    shift: f64,
}

impl Excitatory {
    /// With an activation and a shift.
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift }
    }
}

impl From<Excitatory> for Architecture {
    fn from(map: Excitatory) -> Self {
        let plain = Architecture::plain("excitatory", map.activation, map.shift);
        Architecture { parametrisation: Parametrisation::Absolute, ..plain }
    }
}
