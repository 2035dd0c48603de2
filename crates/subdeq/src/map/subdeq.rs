//! The paper's own maps.

use subdeq_map::{Groups, Layout, Map, PNorm};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// The models of the paper that it calls SubDEQ. With a signed `W` they can have several fixed points (see
/// [`crate::Equilibrium::certify`]); with `|W|` they cannot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SubDeq {
    /// `tanh(Wz) + y + 1.2`.
    Tanh,
    /// `norm(tanh(Wz) + y + 1.603)`.
    NormalizedTanh(PNorm),
    /// `norm_inf(tanh(|W| z + y) + 1.2)`.
    AbsNormalizedTanh,
    /// `norm_inf(tanh(|W| z + y)^0.99)`.
    NormalizedPowerTanh,
    /// `(tanh(Wz) + 1.01)^p + y` with p = 0.999 (dense) or 0.9999 (convolution), as the authors' program computes it.
    /// The printed form `tanh(Wz)^0.99 + y` is not a number wherever `(Wz)_i < 0`.
    PowerTanh(Layout),
}

impl TryFrom<SubDeq> for ParametrisedMap {
    type Error = Error;

    /// # Errors
    /// A norm that makes no sense.
    fn try_from(model: SubDeq) -> Result<Self> {
        let named = |name| ParametrisedMap::named(name, Layout::Dense);
        match model {
            SubDeq::Tanh => named("subdeq-tanh"),
            SubDeq::NormalizedTanh(norm) => {
                let name = "subdeq-normalized-tanh";
                let map = Map::named(name, Layout::Dense)?.normalised(norm, Groups::WholeVector)?;
                ParametrisedMap::new(name, map, Parametrisation::Free)
            }
            SubDeq::AbsNormalizedTanh => named("subdeq-abs-normalized-tanh"),
            SubDeq::NormalizedPowerTanh => named("subdeq-normalized-power-tanh"),
            SubDeq::PowerTanh(layout) => ParametrisedMap::named("subdeq-power-tanh", layout),
        }
    }
}
