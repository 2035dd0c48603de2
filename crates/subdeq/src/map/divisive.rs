//! A4: inhibition divides.

use subdeq_map::{Activation, Form, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

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

impl TryFrom<Divisive> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: Divisive) -> Result<Self> {
        let equation = Map::of_form(Form::Divisive { q: map.q }, map.activation, map.shift)?;
        ParametrisedMap::new("divisive", equation, Parametrisation::Split)
    }
}
