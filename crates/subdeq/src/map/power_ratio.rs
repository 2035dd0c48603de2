//! A6: a power of a quotient.

use subdeq_engine::{Activation, Form};

use super::Architecture;
use crate::parametrisation::Parametrisation;

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

impl From<PowerRatio> for Architecture {
    fn from(map: PowerRatio) -> Self {
        let plain = Architecture::plain("power-ratio", Activation::Identity, 0.0);
        Architecture {
            form: Form::PowerRatio { p: map.p, e: map.e },
            parametrisation: Parametrisation::Split,
            ..plain
        }
    }
}
