//! A3: excitation and inhibition each under its own activation.

use subdeq_map::{Activation, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

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

impl TryFrom<SplitSign> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: SplitSign) -> Result<Self> {
        ParametrisedMap::new(
            "split-sign",
            Map::split_sign(map.activation, map.shift)?,
            Parametrisation::Split,
        )
    }
}
