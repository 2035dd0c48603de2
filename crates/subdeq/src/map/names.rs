//! Maps by the names that the paper, the theory and the program give them.

use subdeq_engine::{Activation, PNorm};

use super::{
    Architecture, Divisive, Excitatory, Gains, MonDeq, Monotone, PowerRatio, Rational, RowSigned, SplitSign,
    SubDeq,
};
use crate::{Error, Layout, Result};

/// Margin of the product form, that of the shifted one; the paper's MonDEQ has 1.
const PRODUCT_MARGIN: f64 = 0.02;

impl Architecture {
    /// The names that [`Architecture::named`] understands.
    pub const NAMES: [&'static str; 17] = [
        "subdeq-tanh",
        "subdeq-normalized-tanh",
        "subdeq-abs-normalized-tanh",
        "subdeq-normalized-power-tanh",
        "subdeq-power-tanh",
        "excitatory",
        "row-signed",
        "split-sign",
        "divisive",
        "rational",
        "power-ratio",
        "gains",
        "mondeq-relu",
        "mondeq-tanh",
        "monotone",
        "monotone-product",
        "monotone-tanh",
    ];

    /// The map of that name with its default constants.
    ///
    /// # Errors
    /// A name that is not one of [`Architecture::NAMES`].
    pub fn named(name: &str, layout: Layout) -> Result<Self> {
        use Activation::{Relu, Softsign, Tanh};
        Ok(match name {
            "subdeq-tanh" => SubDeq::Tanh.into(),
            "subdeq-normalized-tanh" => SubDeq::NormalizedTanh(PNorm::Inf).into(),
            "subdeq-abs-normalized-tanh" => SubDeq::AbsNormalizedTanh.into(),
            "subdeq-normalized-power-tanh" => SubDeq::NormalizedPowerTanh.into(),
            "subdeq-power-tanh" => SubDeq::PowerTanh(layout).into(),
            "excitatory" => Excitatory::new(Tanh, 1.2).into(),
            "row-signed" => RowSigned::new(Softsign, 1.2).into(),
            "split-sign" => SplitSign::new(Softsign, 1.2).into(),
            "divisive" => Divisive::new(Tanh, 0.4).into(),
            "rational" => Rational::new(0.14).into(),
            "power-ratio" => PowerRatio::new(0.49).into(),
            "gains" => Gains::new(Softsign, 0.2).into(),
            "mondeq-relu" => MonDeq::Relu.into(),
            "mondeq-tanh" => MonDeq::Tanh.into(),
            "monotone" => Monotone::new(Relu).into(),
            "monotone-product" => {
                Self { name: name.into(), ..Monotone::new(Relu).product(PRODUCT_MARGIN).into() }
            }
            "monotone-tanh" => Self { name: name.into(), ..Monotone::new(Tanh).into() },
            _ => {
                return Err(Error::invalid(format!(
                    "there is no map `{name}`; known are {}",
                    Self::NAMES.join(", ")
                )));
            }
        })
    }
}

/// The activation of that name: `tanh`, `sigmoid`, `softplus`, `softsign`, `hardtanh`, `relu`, `leaky-relu`, `identity`.
///
/// # Errors
/// Another name.
pub fn activation_named(name: &str) -> Result<Activation> {
    let activation: subdeq_theory::activation::Activation = name
        .parse()
        .map_err(|error: subdeq_theory::activation::UnknownActivation| Error::invalid(error.to_string()))?;
    Ok(crate::theory::engine_activation(activation))
}

/// The norm of that name: a number from 1, or `inf`.
///
/// # Errors
/// Anything else.
pub fn norm_named(name: &str) -> Result<PNorm> {
    use subdeq_theory::map::PNorm as Named;
    match name.parse().map_err(|error: subdeq_theory::map::BadMap| Error::invalid(error.to_string()))? {
        Named::Inf => Ok(PNorm::Inf),
        Named::Finite(p) => Ok(PNorm::P(p)),
    }
}
