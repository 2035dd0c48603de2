//! Weights from free parameters: what makes an architecture sound for every value an optimiser may choose.

use serde::{Deserialize, Serialize};

use crate::{BadMap, Form, Map, Padding, WeightClass};

/// How the weights of a map come from free parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Parametrisation {
    /// `W = V`.
    Free,
    /// `W = |V|`.
    Absolute,
    /// `W = diag(+1, -1, +1, ..) |V|`.
    RowSigned,
    /// `P = V+`, `N = V-`.
    Split,
    /// `A = V+`, `B = V-`, `P = U+`, `N = U-` (`V` is `units x units`).
    SplitGains,
    /// `W = V - max(0, lambda - (1 - margin)) I`, `lambda` the largest eigenvalue of `V`'s symmetric part.
    MonotoneShifted {
        /// `m > 0`.
        margin: f64,
    },
    /// `W = (1 - margin) I - A'A + B - B'`; for images `A` and `B` are kernels (3x3, say), and `W` is a circular one of
    /// nearly twice their side (5x5).
    MonotoneProduct {
        /// `m > 0`.
        margin: f64,
    },
    /// `W = (1 - margin) I - A'A + b (A - A')`, `b` one free number; for images as [`Parametrisation::MonotoneProduct`].
    MonotoneTied {
        /// `m > 0`.
        margin: f64,
    },
}

impl Parametrisation {
    /// Where `b` of [`Parametrisation::MonotoneTied`] starts.
    pub const FIRST_SKEW: f64 = 1.0;

    /// The margin of the monotone ones.
    #[must_use]
    pub fn margin(&self) -> Option<f64> {
        match *self {
            Self::MonotoneShifted { margin }
            | Self::MonotoneProduct { margin }
            | Self::MonotoneTied { margin } => Some(margin),
            _ => None,
        }
    }

    /// The same with another margin; `None` for those that have none.
    #[must_use]
    pub fn with_margin(mut self, wanted: f64) -> Option<Self> {
        match &mut self {
            Self::MonotoneShifted { margin }
            | Self::MonotoneProduct { margin }
            | Self::MonotoneTied { margin } => *margin = wanted,
            _ => return None,
        }
        Some(self)
    }

    /// Whether the weights are a product of factors: of images, one of circular convolutions with a larger kernel.
    #[must_use]
    pub fn multiplies(&self) -> bool {
        matches!(self, Self::MonotoneProduct { .. } | Self::MonotoneTied { .. })
    }

    /// Height and width of the kernels of the weights that it makes of free parameters with kernels of that side; 1 for matrices.
    ///
    /// ```
    /// use subdeq_map::Parametrisation;
    /// let tied = Parametrisation::MonotoneTied { margin: 1.0 };
    /// assert_eq!((tied.weight_side(3), tied.free_side(5)), (5, 3));
    /// assert_eq!(Parametrisation::Free.weight_side(3), 3);
    /// ```
    #[must_use]
    pub fn weight_side(&self, free: usize) -> usize {
        if self.multiplies() { 2 * free - 1 } else { free }
    }

    /// Height and width of the kernels of the free parameters that it makes weights with kernels of that side of.
    #[must_use]
    pub fn free_side(&self, weights: usize) -> usize {
        if self.multiplies() { weights.div_ceil(2) } else { weights }
    }

    /// The weights that it makes.
    #[must_use]
    pub fn weight_class(&self) -> WeightClass {
        match self {
            Self::Absolute => WeightClass::Nonnegative,
            Self::RowSigned => WeightClass::RowSigned,
            // How large the margin is in the end is read off the weights.
            Self::MonotoneShifted { .. } | Self::MonotoneProduct { .. } | Self::MonotoneTied { .. } => {
                WeightClass::Monotone { margin: 0.0 }
            }
            Self::Free | Self::Split | Self::SplitGains => WeightClass::Any,
        }
    }

    /// Refuses an equation that it makes no weights for, and a margin that makes no sense.
    ///
    /// # Errors
    /// What does not fit, and what would.
    pub fn check_form(&self, map: &Map) -> Result<(), BadMap> {
        let (fits, instead) = match map.form() {
            Form::Single => (
                !matches!(self, Self::Split | Self::SplitGains),
                "use Free, Absolute, RowSigned or a monotone one",
            ),
            Form::SplitSign | Form::Divisive { .. } | Form::Rational { .. } | Form::PowerRatio { .. } => {
                (*self == Self::Split, "use Split")
            }
            Form::Gains => (*self == Self::SplitGains, "use SplitGains"),
            Form::Tied { margin, skew } => (
                *self == Self::MonotoneTied { margin } && skew == Self::FIRST_SKEW,
                "use MonotoneTied with that margin, whose b starts at 1",
            ),
            Form::Monomial | Form::Graph { .. } | Form::PowerMean { .. } => {
                (false, "it is not the map of a layer")
            }
        };
        if !fits {
            return Err(BadMap::new(format!(
                "the parametrisation {self:?} does not fit the form {:?} of `{map}`: {instead}",
                map.form()
            )));
        }
        if let Some(margin) = self.margin()
            && !(margin > 0.0 && margin.is_finite())
        {
            return Err(BadMap::new(format!("the margin of a monotone layer must be above 0, not {margin}")));
        }
        Ok(())
    }

    /// Refuses a continuation of images beyond their border that it makes no weights for.
    ///
    /// # Errors
    /// Zero padding for a product of convolutions.
    pub fn check_padding(&self, padding: Padding) -> Result<(), BadMap> {
        if padding == Padding::Zero && self.multiplies() {
            return Err(BadMap::new(
                "A'A of zero-padded convolutions is no convolution at the border: W = (1-m)I - A'A + .. needs circular \
                 padding; with zeros use the shifted parametrisation (`Monotone::shifted`)"
                    .into(),
            ));
        }
        Ok(())
    }
}
