//! A4: inhibition divides.

use subdeq_engine::{Activation, Form};

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `s(V+ z / (q + V- z)) + y + shift`: unique, factor `2 mu_p(shift)` (tanh, 1.2: 0.494).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divisive {
    activation: Activation,
    shift: f64,
    q: f64,
}

impl Divisive {
    /// With an activation, a shift and `q = 1`.
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift, q: 1.0 }
    }

    /// With another `q > 0`.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }
}

impl From<Divisive> for Architecture {
    fn from(map: Divisive) -> Self {
        let plain = Architecture::plain("divisive", map.activation, map.shift);
        Architecture { form: Form::Divisive { q: map.q }, parametrisation: Parametrisation::Split, ..plain }
    }
}
