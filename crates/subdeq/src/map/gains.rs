//! A3': a hidden layer of excitation and inhibition, with the shift tied to the gains.

use subdeq_map::{Activation, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// `A s(P z) - B s(N z) + y + tie (B 1) + shift` with `A - B` and `P - N` free: unique for every weight, because the
/// shift grows with the inhibition. Softsign needs `tie = 1`, tanh `tie > 1.19968`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gains {
    activation: Activation,
    shift: f64,
}

impl Gains {
    /// With an activation and a shift; the tie is [`Map::usual_tie`].
    #[must_use]
    pub fn new(activation: Activation, shift: f64) -> Self {
        Self { activation, shift }
    }
}

impl TryFrom<Gains> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// Constants that make no sense.
    fn try_from(map: Gains) -> Result<Self> {
        ParametrisedMap::new("gains", Map::gains(map.activation, map.shift)?, Parametrisation::SplitGains)
    }
}
