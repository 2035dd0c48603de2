//! A4 with softsign, written as a rational function.

use subdeq_engine::{Activation, Form};

use super::Architecture;
use crate::parametrisation::Parametrisation;

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

impl From<Rational> for Architecture {
    fn from(map: Rational) -> Self {
        let plain = Architecture::plain("rational", Activation::Softsign, map.shift);
        Architecture { form: Form::Rational { q: map.q }, parametrisation: Parametrisation::Split, ..plain }
    }
}
