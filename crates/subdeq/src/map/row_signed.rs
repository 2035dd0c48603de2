//! A2: each unit excites or inhibits as a whole.

use subdeq_engine::Activation;

use super::Architecture;
use crate::parametrisation::Parametrisation;

/// `s(S |V| z) + y + shift` with `S = diag(+1, -1, +1, ..)`: unique, factor `mu_R(shift)` (softsign, 1.2: 0.420).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowSigned {
    activation: Activation,
    shift: f64,
}

impl RowSigned {
    /// With an activation and a shift.
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift }
    }
}

impl From<RowSigned> for Architecture {
    fn from(map: RowSigned) -> Self {
        let plain = Architecture::plain("row-signed", map.activation, map.shift);
        Architecture { parametrisation: Parametrisation::RowSigned, ..plain }
    }
}
