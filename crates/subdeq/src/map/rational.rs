//! A4 with softsign, written as a rational function.

use subdeq_map::{Activation, Form, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// `V+ z / (q + V+ z + V- z) + y + shift`: unique for a shift above 1/8, factor `2 (sqrt(1 + a) - sqrt a)^2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rational {
    shift: f64,
    q: f64,
}

impl Rational {
    /// With a shift and `q = 1`.
    #[must_use]
    pub fn new(shift: f64) -> Self {
        Self { shift, q: 1.0 }
    }

    /// With another `q > 0`.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }
}

impl TryFrom<Rational> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: Rational) -> Result<Self> {
        let equation = Map::of_form(Form::Rational { q: map.q }, Activation::Softsign, map.shift)?;
        ParametrisedMap::new("rational", equation, Parametrisation::Split)
    }
}
