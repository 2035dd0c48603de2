//! Maps by the names that the paper, the theory and the program give them.

use subdeq_map::{Layout, Map};

use super::ParametrisedMap;
use crate::Parametrisation;
use crate::{Error, Result};

/// Margin of the monotone maps; the paper's MonDEQ has 1.
const MARGIN: f64 = 0.02;

impl ParametrisedMap {
    /// The names that [`ParametrisedMap::named`] understands.
    pub const NAMES: [&'static str; 18] = [
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
        "monotone-tied",
        "monotone-tanh",
    ];

    /// The map of that name ([`Map::named`]) with its usual parametrisation.
    ///
    /// # Errors
    /// A name that is not one of [`ParametrisedMap::NAMES`].
    pub fn named(name: &str, layout: Layout) -> Result<Self> {
        let parametrisation = match name {
            "subdeq-tanh" | "subdeq-normalized-tanh" | "subdeq-power-tanh" => Parametrisation::Free,
            "subdeq-abs-normalized-tanh" | "subdeq-normalized-power-tanh" | "excitatory" => {
                Parametrisation::Absolute
            }
            "row-signed" => Parametrisation::RowSigned,
            "split-sign" | "divisive" | "rational" | "power-ratio" => Parametrisation::Split,
            "gains" => Parametrisation::SplitGains,
            "mondeq-relu" | "mondeq-tanh" => Parametrisation::MonotoneProduct { margin: 1.0 },
            "monotone-product" => Parametrisation::MonotoneProduct { margin: MARGIN },
            "monotone-tied" => Parametrisation::MonotoneTied { margin: 1.0 },
            "monotone" | "monotone-tanh" => Parametrisation::MonotoneShifted { margin: MARGIN },
            _ => {
                return Err(Error::invalid(format!(
                    "there is no map `{name}`; known are {}",
                    Self::NAMES.join(", ")
                )));
            }
        };
        Self::new(name, Map::named(name, layout)?, parametrisation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation::{Relu, Softsign, Tanh};
    use crate::PNorm;
    use crate::map::{
        Divisive, Excitatory, Gains, MonDeq, Monotone, PowerRatio, Rational, RowSigned, SplitSign, SubDeq,
    };

    /// A name means one equation, whoever is asked.
    #[test]
    fn names_mean_one_thing() {
        for layout in [Layout::Dense, Layout::Conv] {
            for name in ParametrisedMap::NAMES {
                let architecture = ParametrisedMap::named(name, layout).unwrap();
                let map = Map::named(name, layout).unwrap();
                assert_eq!(architecture.equation(layout), map.of_whole_weights().unwrap(), "{name}");
                assert_eq!(architecture.name(), name);
            }
        }
    }

    #[test]
    fn values_and_names_agree() {
        for layout in [Layout::Dense, Layout::Conv] {
            let typed: [Result<ParametrisedMap>; 18] = [
                SubDeq::Tanh.try_into(),
                SubDeq::NormalizedTanh(PNorm::Inf).try_into(),
                SubDeq::AbsNormalizedTanh.try_into(),
                SubDeq::NormalizedPowerTanh.try_into(),
                SubDeq::PowerTanh(layout).try_into(),
                Excitatory::new(Tanh, 1.2).try_into(),
                RowSigned::new(Softsign, 1.2).try_into(),
                SplitSign::new(Softsign, 1.2).try_into(),
                Divisive::new(Tanh, 0.4).try_into(),
                Rational::new(0.14).try_into(),
                PowerRatio::new(0.49).try_into(),
                Gains::new(Softsign, 0.2).try_into(),
                MonDeq::Relu.try_into(),
                MonDeq::Tanh.try_into(),
                Monotone::new(Relu).try_into(),
                Monotone::new(Relu).product(MARGIN).try_into(),
                Monotone::new(Relu).tied(1.0).try_into(),
                Monotone::new(Tanh).try_into(),
            ];
            for (name, typed) in ParametrisedMap::NAMES.into_iter().zip(typed) {
                assert_eq!(typed.unwrap().renamed(name), ParametrisedMap::named(name, layout).unwrap());
            }
        }
    }
}
