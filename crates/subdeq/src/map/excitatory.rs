//! A1: no inhibition.

use subdeq_map::{Activation, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

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

impl TryFrom<Excitatory> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: Excitatory) -> Result<Self> {
        ParametrisedMap::new("excitatory", Map::single(map.activation, map.shift)?, Parametrisation::Absolute)
    }
}
