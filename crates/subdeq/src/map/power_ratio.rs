//! A6: a power of a quotient.

use subdeq_map::{Activation, Form, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// `((V+ z + y1 + e) / (V- z + y2 + e))^p`: unique for `p < 1/2`, factor `2p`. Takes two injections per unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerRatio {
    p: f64,
    e: f64,
}

impl PowerRatio {
    /// With an exponent and `e = 1`.
    #[must_use]
    pub fn new(p: f64) -> Self {
        Self { p, e: 1.0 }
    }

    /// With another `e > 0`.
    #[must_use]
    pub fn e(self, e: f64) -> Self {
        Self { e, ..self }
    }
}

impl TryFrom<PowerRatio> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: PowerRatio) -> Result<Self> {
        let equation = Map::of_form(Form::PowerRatio { p: map.p, e: map.e }, Activation::Identity, 0.0)?;
        ParametrisedMap::new("power-ratio", equation, Parametrisation::Split)
    }
}
