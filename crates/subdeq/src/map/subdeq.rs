//! The paper's own maps.

use subdeq_engine::{Activation, Injection, PNorm};

use super::Architecture;
use crate::Layout;
use crate::parametrisation::Parametrisation;

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

impl From<SubDeq> for Architecture {
    fn from(model: SubDeq) -> Self {
        let plain = |name, shift| Architecture::plain(name, Activation::Tanh, shift);
        let absolute = |architecture| Architecture {
            injection: Injection::Inner,
            norm: Some(PNorm::Inf),
            parametrisation: Parametrisation::Absolute,
            ..architecture
        };
        match model {
            SubDeq::Tanh => plain("subdeq-tanh", 1.2),
            SubDeq::NormalizedTanh(norm) => {
                Architecture { norm: Some(norm), ..plain("subdeq-normalized-tanh", 1.603) }
            }
            SubDeq::AbsNormalizedTanh => absolute(plain("subdeq-abs-normalized-tanh", 1.2)),
            SubDeq::NormalizedPowerTanh => {
                Architecture { power: 0.99, ..absolute(plain("subdeq-normalized-power-tanh", 0.0)) }
            }
            SubDeq::PowerTanh(layout) => {
                let power = if layout == Layout::Dense { 0.999 } else { 0.9999 };
                Architecture { base: 1.01, power, ..plain("subdeq-power-tanh", 0.0) }
            }
        }
    }
}
