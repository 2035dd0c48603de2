//! A3: excitation and inhibition each under its own activation.

use subdeq_engine::{Activation, Form};

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `s(V+ z) - s(V- z) + y + shift`: unique for every `V`; softsign: factor `a - sqrt(a^2 - 1)` for a shift `a > 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitSign {
    activation: Activation,
    shift: f64,
}

impl SplitSign {
    /// With an activation and a shift.
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift }
    }
}

impl From<SplitSign> for Architecture {
    fn from(map: SplitSign) -> Self {
        let plain = Architecture::plain("split-sign", map.activation, map.shift);
        Architecture { form: Form::SplitSign, parametrisation: Parametrisation::Split, ..plain }
    }
}
