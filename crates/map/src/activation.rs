//! The scalar nonlinearities `s` of an equilibrium layer.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A scalar activation, applied entry by entry. Shift and power are part of the [`Map`](crate::Map), not of the activation.
///
/// ```
/// use subdeq_map::Activation;
/// let s: Activation = "softsign".parse()?;
/// assert_eq!(s.value(1.0), 0.5);
/// # Ok::<(), subdeq_map::UnknownActivation>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activation {
    /// `tanh u`.
    Tanh,
    /// `1 / (1 + e^-u)`.
    Sigmoid,
    /// `ln(1 + e^(beta u)) / beta`.
    Softplus {
        /// Sharpness, `> 0`; 1 is the usual one.
        beta: f64,
    },
    /// `u / (1 + |u|)`.
    Softsign,
    /// `u` clipped to `[lo, hi]`.
    HardTanh {
        /// The least value.
        lo: f64,
        /// The greatest value.
        hi: f64,
    },
    /// `max(u, 0)`.
    Relu,
    /// `u` for `u >= 0`, `slope * u` below.
    LeakyRelu {
        /// Slope on the negative half-line.
        slope: f64,
    },
    /// `u`.
    Identity,
}

impl Activation {
    /// The names that [`FromStr`] understands.
    pub const NAMES: [&'static str; 8] =
        ["tanh", "sigmoid", "softplus", "softsign", "hardtanh", "relu", "leaky-relu", "identity"];

    /// `s(u)`.
    #[must_use]
    pub fn value(self, u: f64) -> f64 {
        match self {
            Activation::Tanh => u.tanh(),
            Activation::Sigmoid => {
                let decay = (-u.abs()).exp();
                if u >= 0.0 { 1.0 / (1.0 + decay) } else { decay / (1.0 + decay) }
            }
            Activation::Softplus { beta } => {
                let t = beta * u;
                (t.max(0.0) + (-t.abs()).exp().ln_1p()) / beta
            }
            Activation::Softsign => u / (1.0 + u.abs()),
            Activation::HardTanh { lo, hi } => u.max(lo).min(hi),
            Activation::Relu => u.max(0.0),
            Activation::LeakyRelu { slope } => {
                if u >= 0.0 {
                    u
                } else {
                    slope * u
                }
            }
            Activation::Identity => u,
        }
    }

    /// `s'(u)`; at a kink the slope on its right, except for [`Activation::HardTanh`], which is flat from `hi` on.
    #[must_use]
    pub fn derivative(self, u: f64) -> f64 {
        match self {
            Activation::Tanh => {
                let decay = (-2.0 * u.abs()).exp();
                4.0 * decay / ((1.0 + decay) * (1.0 + decay))
            }
            Activation::Sigmoid => {
                let decay = (-u.abs()).exp();
                decay / ((1.0 + decay) * (1.0 + decay))
            }
            Activation::Softplus { beta } => Activation::Sigmoid.value(beta * u),
            Activation::Softsign => {
                // Not 1 / scale^2, which overflows long before the slope underflows.
                let scale = 1.0 / (1.0 + u.abs());
                scale * scale
            }
            Activation::HardTanh { lo, hi } => f64::from(u >= lo && u < hi),
            Activation::Relu => f64::from(u >= 0.0),
            Activation::LeakyRelu { slope } => {
                if u >= 0.0 {
                    1.0
                } else {
                    slope
                }
            }
            Activation::Identity => 1.0,
        }
    }

    /// The largest `|s'|` on all of R, exactly.
    #[must_use]
    pub fn steepest_slope(self) -> f64 {
        match self {
            Activation::Sigmoid => 0.25,
            Activation::LeakyRelu { slope } => slope.abs().max(1.0),
            _ => 1.0,
        }
    }

    /// The ends of the closure of `{s(u) : u in R}`, exactly; infinite where it is not bounded.
    #[must_use]
    pub fn range(self) -> (f64, f64) {
        match self {
            Activation::Tanh | Activation::Softsign => (-1.0, 1.0),
            Activation::Sigmoid => (0.0, 1.0),
            Activation::Softplus { .. } | Activation::Relu => (0.0, f64::INFINITY),
            Activation::HardTanh { lo, hi } => (lo, hi),
            Activation::LeakyRelu { slope } if slope <= 0.0 => (0.0, f64::INFINITY),
            Activation::LeakyRelu { .. } | Activation::Identity => (f64::NEG_INFINITY, f64::INFINITY),
        }
    }

    /// Whether `s` is bounded on both sides.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        let (lo, hi) = self.range();
        lo.is_finite() && hi.is_finite()
    }

    /// Whether `s` never decreases.
    #[must_use]
    pub fn is_increasing(self) -> bool {
        !matches!(self, Activation::LeakyRelu { slope } if slope < 0.0)
    }

    /// Whether every slope lies in `[0, 1]`: what the monotone theorem (A7) and T1 to T4 with `D = I` need.
    #[must_use]
    pub fn slopes_in_unit_interval(self) -> bool {
        self.is_increasing() && self.steepest_slope() <= 1.0
    }

    /// Whether `s` is odd, `s(-u) = -s(u)`.
    #[must_use]
    pub fn is_odd(self) -> bool {
        matches!(self, Activation::Tanh | Activation::Softsign | Activation::Identity)
            || matches!(self, Activation::HardTanh { lo, hi } if lo == -hi)
    }

    /// Whether the parameters make sense: `beta > 0`, `lo < hi`, finite slope.
    ///
    /// # Errors
    /// A sentence that names the parameter and its value.
    pub fn check(self) -> Result<(), UnknownActivation> {
        let fault = match self {
            Activation::Softplus { beta } if !(beta > 0.0 && beta.is_finite()) => {
                format!("softplus needs a finite beta > 0, but beta is {beta}")
            }
            Activation::HardTanh { lo, hi } if !(lo < hi && lo.is_finite() && hi.is_finite()) => {
                format!("hardtanh needs finite lo < hi, but lo is {lo} and hi is {hi}")
            }
            Activation::LeakyRelu { slope } if !slope.is_finite() => {
                format!("leaky-relu needs a finite slope, but the slope is {slope}")
            }
            _ => return Ok(()),
        };
        Err(UnknownActivation(fault))
    }
}

/// An activation that does not exist, or one with parameters that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnknownActivation(String);

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Activation::Tanh => f.write_str("tanh"),
            Activation::Sigmoid => f.write_str("sigmoid"),
            Activation::Softplus { beta: 1.0 } => f.write_str("softplus"),
            Activation::Softplus { beta } => write!(f, "softplus({beta})"),
            Activation::Softsign => f.write_str("softsign"),
            Activation::HardTanh { lo, hi } => write!(f, "hardtanh({lo},{hi})"),
            Activation::Relu => f.write_str("relu"),
            Activation::LeakyRelu { slope } => write!(f, "leaky-relu({slope})"),
            Activation::Identity => f.write_str("identity"),
        }
    }
}

impl FromStr for Activation {
    type Err = UnknownActivation;

    /// Reads `tanh`, `softplus`, `softplus(2)`, `hardtanh(-1,1)`, `leaky-relu(0.01)`, ... as [`fmt::Display`] writes
    /// them; without parentheses the usual parameters are taken (beta 1, clip to [-1, 1], slope 0.01).
    fn from_str(text: &str) -> Result<Activation, UnknownActivation> {
        let (name, parameters) = match text.split_once('(') {
            Some((name, rest)) => {
                let inside = rest.strip_suffix(')').ok_or_else(|| {
                    UnknownActivation(format!("the activation `{text}` lacks its closing parenthesis"))
                })?;
                (name, read_parameters(text, inside)?)
            }
            None => (text, Vec::new()),
        };
        let activation = match (name, parameters.as_slice()) {
            ("tanh", []) => Activation::Tanh,
            ("sigmoid", []) => Activation::Sigmoid,
            ("softplus", []) => Activation::Softplus { beta: 1.0 },
            ("softplus", &[beta]) => Activation::Softplus { beta },
            ("softsign", []) => Activation::Softsign,
            ("hardtanh", []) => Activation::HardTanh { lo: -1.0, hi: 1.0 },
            ("hardtanh", &[lo, hi]) => Activation::HardTanh { lo, hi },
            ("relu", []) => Activation::Relu,
            ("leaky-relu", []) => Activation::LeakyRelu { slope: 0.01 },
            ("leaky-relu", &[slope]) => Activation::LeakyRelu { slope },
            ("identity", []) => Activation::Identity,
            (name, _) if Activation::NAMES.contains(&name) => {
                return Err(UnknownActivation(format!(
                    "`{text}` has {} parameters, which is not what {name} takes",
                    parameters.len()
                )));
            }
            _ => {
                return Err(UnknownActivation(format!(
                    "there is no activation `{text}`; known are {}",
                    Activation::NAMES.join(", ")
                )));
            }
        };
        activation.check()?;
        Ok(activation)
    }
}

fn read_parameters(text: &str, inside: &str) -> Result<Vec<f64>, UnknownActivation> {
    inside
        .split(',')
        .map(|number| {
            number.trim().parse().map_err(|_| {
                UnknownActivation(format!("`{}` in the activation `{text}` is not a number", number.trim()))
            })
        })
        .collect()
}
