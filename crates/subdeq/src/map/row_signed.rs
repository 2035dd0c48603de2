//! A2: each unit excites or inhibits as a whole.

use subdeq_map::{Activation, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

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

impl TryFrom<RowSigned> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: RowSigned) -> Result<Self> {
        ParametrisedMap::new(
            "row-signed",
            Map::single(map.activation, map.shift)?,
            Parametrisation::RowSigned,
        )
    }
}
