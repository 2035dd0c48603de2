//! The maps `F(z; y)` of equilibrium layers: the paper's, and those that are sound for every weight.
//!
//! Each file holds one of them as a small typed value. [`Architecture`] is what they all turn into: the map as the
//! engine needs it, together with the parametrisation that gives its weights their signs or their spectrum.

mod divisive;
mod excitatory;
mod gains;
mod monotone;
mod names;
mod power_ratio;
mod rational;
mod row_signed;
mod split_sign;
mod subdeq;

pub use divisive::Divisive;
pub use excitatory::Excitatory;
pub use gains::Gains;
pub use monotone::{MonDeq, Monotone};
pub use names::{activation_named, norm_named};
pub use power_ratio::PowerRatio;
pub use rational::Rational;
pub use row_signed::RowSigned;
pub use split_sign::SplitSign;
pub use subdeq::SubDeq;

use serde::{Deserialize, Serialize};
use subdeq_engine::{Activation, Form, Group, Injection, Map, Normalisation, Operator, PNorm};

use crate::parametrisation::Parametrisation;

/// A map without its size and weights, and how its weights come from free parameters.
///
/// ```
/// use subdeq::map::{Architecture, SplitSign};
/// use subdeq::{Activation, Layout};
/// let by_type = Architecture::from(SplitSign::new(Activation::Softsign, 1.2));
/// assert_eq!(by_type, Architecture::named("split-sign", Layout::Dense)?);
/// # Ok::<(), subdeq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Architecture {
    /// The name it goes by.
    pub name: String,
    /// How the linear parts and the activation are put together.
    pub form: Form,
    /// The activation.
    pub activation: Activation,
    /// Where the injection enters.
    pub injection: Injection,
    /// Added to the activation before the power is taken.
    pub base: f64,
    /// The power; 1 for none.
    pub power: f64,
    /// Added at the end, before the normalisation.
    pub shift: f64,
    /// The norm that the result is divided by, if any: of the whole vector, or of each column of an image's channels.
    pub norm: Option<PNorm>,
    /// `tie * (row sum of B)` is added to the shift ([`Form::Gains`] only), which leaves its weights free.
    pub tie: f64,
    /// How the weights come from free parameters.
    pub parametrisation: Parametrisation,
}

impl Architecture {
    /// `s(W z) + y + shift` with free `W`, the form that the others are variations of.
    pub(crate) fn plain(name: &str, activation: Activation, shift: f64) -> Self {
        Self {
            name: name.into(),
            form: Form::Single,
            activation,
            injection: Injection::Outer,
            base: 0.0,
            power: 1.0,
            shift,
            norm: None,
            tie: 0.0,
            parametrisation: Parametrisation::Free,
        }
    }

    /// The engine's map on an operator.
    #[must_use]
    pub fn map(&self, operator: Operator) -> Map {
        let group = match operator {
            Operator::Dense { .. } => Group::Sample,
            Operator::Conv { .. } => Group::Height,
        };
        Map {
            operator,
            form: self.form,
            activation: self.activation,
            injection: self.injection,
            base: self.base,
            power: self.power,
            shift: self.shift,
            normalisation: self.norm.map(|norm| Normalisation { norm, group }),
        }
    }

    /// Whether it belongs to the monotone family (A7), whose solvers are the splittings.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        self.parametrisation.margin().is_some()
    }
}
