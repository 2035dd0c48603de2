//! A fixed-point map `F(z; y)` as data: what the kernels need to know of it, and nothing else.

use serde::{Deserialize, Serialize};

use crate::{EngineError, Result};

/// How a convolution continues an image beyond its border.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Padding {
    /// With zeros, as in the paper.
    Zero,
    /// Periodically, so that the operator is diagonal in the frequency domain.
    Circular,
}

/// The linear part of a map: what `W z` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operator {
    /// A matrix product on vectors of length `n`.
    Dense {
        /// Length of a sample's state.
        n: usize,
    },
    /// A convolution of same-size images; states are stored height x width x channels (NHWC).
    Conv {
        /// Channels of the state.
        channels: usize,
        /// Image height.
        height: usize,
        /// Image width.
        width: usize,
        /// Continuation beyond the border.
        padding: Padding,
        /// Height and width of the kernel: 3, or any odd number where the padding is circular.
        kernel: usize,
    },
}

impl Operator {
    /// Numbers in one sample's state.
    pub fn state_len(&self) -> usize {
        match *self {
            Self::Dense { n } => n,
            Self::Conv { channels, height, width, .. } => channels * height * width,
        }
    }

    /// Units that the weights mix: vector entries, or channels.
    pub fn units(&self) -> usize {
        match *self {
            Self::Dense { n } => n,
            Self::Conv { channels, .. } => channels,
        }
    }

    /// Numbers in one square weight array: `n x n` (row = output), or `c x c x 3 x 3` (out, in, row, column).
    pub fn weight_len(&self) -> usize {
        self.units() * self.units() * self.taps()
    }

    /// Weights from one unit to another: the taps of a kernel, or 1.
    pub fn taps(&self) -> usize {
        match *self {
            Self::Dense { .. } => 1,
            Self::Conv { kernel, .. } => kernel * kernel,
        }
    }
}

/// A scalar activation `s`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Activation {
    /// `tanh u`.
    Tanh,
    /// `1 / (1 + e^-u)`.
    Sigmoid,
    /// `ln(1 + e^(beta u)) / beta`.
    Softplus {
        /// Sharpness.
        beta: f64,
    },
    /// `u / (1 + |u|)`.
    Softsign,
    /// `u` clipped to `[lo, hi]`.
    HardTanh {
        /// Lower end.
        lo: f64,
        /// Upper end.
        hi: f64,
    },
    /// `max(u, 0)`.
    Relu,
    /// `u` for `u > 0`, else `slope * u`.
    LeakyRelu {
        /// Slope on the negative side.
        slope: f64,
    },
    /// `u`.
    Identity,
}

/// Where the injection enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Injection {
    /// `s(W z + y)`.
    Inner,
    /// `s(W z) + y`.
    Outer,
}

/// How the linear parts and the activation are put together. Below, `h(u) = (s(u) + base)^power`
/// with the map's `base` and `power` (0 and 1 in the plain case), `P, N >= 0`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Form {
    /// `h(W z) + y` or `h(W z + y)`. Weights: `[W]`.
    Single,
    /// `h(P z) - h(N z) + y`. Weights: `[P, N]`.
    SplitSign,
    /// `h(P z / (q + N z)) + y`. Weights: `[P, N]`.
    Divisive {
        /// The constant `q > 0` of the denominator.
        q: f64,
    },
    /// `P z / (q + P z + N z) + y`. Weights: `[P, N]`. The activation is not used.
    Rational {
        /// The constant `q > 0` of the denominator.
        q: f64,
    },
    /// `((P z + y1 + e) / (N z + y2 + e))^p`; `y` holds `y1` then `y2` for each sample. Weights: `[P, N]`.
    /// The activation is not used.
    PowerRatio {
        /// Exponent, below 1/2 for a contraction.
        p: f64,
        /// The constant `e > 0`.
        e: f64,
    },
    /// `A h(P z) - B h(N z) + y`. Weights: `[A, B, P, N]`, all of the operator's own shape for `P, N`;
    /// `A, B` are `units x units` (a 1x1 convolution for images).
    Gains,
}

impl Form {
    /// Number of weight arrays.
    pub fn weight_count(&self) -> usize {
        match self {
            Self::Single => 1,
            Self::Gains => 4,
            _ => 2,
        }
    }

    /// Injections per state entry: 2 for the power ratio, else 1.
    pub fn injection_count(&self) -> usize {
        if matches!(self, Self::PowerRatio { .. }) { 2 } else { 1 }
    }
}

/// Exponent of a p-norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PNorm {
    /// `p` in `[1, inf)`.
    P(f64),
    /// The largest absolute value.
    Inf,
}

/// Which entries are normalised together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Group {
    /// The whole state of a sample.
    Sample,
    /// The entries over the height axis, for each channel and each column of an image (as the paper's code does).
    Height,
}

/// Division of the result by a p-norm of its group.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// Which norm.
    pub norm: PNorm,
    /// Over which entries.
    pub group: Group,
}

/// `F(z; y)`: form, activation, constants, normalisation. Complete: a device needs nothing else.
///
/// ```
/// use subdeq_engine::{Activation, Form, Injection, Map, Operator};
/// let map = Map {
///     operator: Operator::Dense { n: 87 },
///     form: Form::Single,
///     activation: Activation::Tanh,
///     injection: Injection::Outer,
///     base: 0.0,
///     power: 1.0,
///     shift: 1.2,
///     normalisation: None,
/// };
/// assert!(map.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Map {
    /// What `W z` means.
    pub operator: Operator,
    /// How the parts are put together.
    pub form: Form,
    /// The activation `s`.
    pub activation: Activation,
    /// Where `y` enters (only [`Form::Single`] has a choice).
    pub injection: Injection,
    /// Added to `s` before the power is taken.
    pub base: f64,
    /// The power; 1 means none is taken.
    pub power: f64,
    /// Added at the end, before the normalisation.
    pub shift: f64,
    /// Normalisation of the result, if any.
    pub normalisation: Option<Normalisation>,
}

impl Map {
    /// Numbers in one sample's injection.
    pub fn injection_len(&self) -> usize {
        self.operator.state_len() * self.form.injection_count()
    }

    /// Length of weight array `index` (the order is given with [`Form`]).
    pub fn weight_len(&self, index: usize) -> usize {
        let units = self.operator.units();
        match self.form {
            Form::Gains if index < 2 => units * units,
            _ => self.operator.weight_len(),
        }
    }

    /// Refuses sizes and constants with which no kernel could work.
    pub fn check(&self) -> Result<()> {
        if self.operator.state_len() == 0 {
            return Err(EngineError::Invalid(format!("the operator {:?} has an empty state", self.operator)));
        }
        self.check_kernel()?;
        let positive = |name: &str, x: f64| {
            if x > 0.0 && x.is_finite() {
                Ok(())
            } else {
                Err(EngineError::Invalid(format!("{name} must be a positive number, got {x}")))
            }
        };
        match self.form {
            Form::Divisive { q } | Form::Rational { q } => positive("q", q)?,
            Form::PowerRatio { p, e } => {
                positive("p", p)?;
                positive("e", e)?;
            }
            _ => {}
        }
        positive("the power", self.power)?;
        if let Activation::Softplus { beta } = self.activation {
            positive("softplus beta", beta)?;
        }
        if !matches!(self.form, Form::Single) && self.injection == Injection::Inner {
            return Err(EngineError::Invalid(format!(
                "{:?} takes its injection outside the activation",
                self.form
            )));
        }
        if let Some(Normalisation { norm: PNorm::P(p), .. }) = self.normalisation
            && !(p >= 1.0 && p.is_finite())
        {
            return Err(EngineError::Invalid(format!("the norm exponent must lie in [1, inf], got {p}")));
        }
        if !(self.shift.is_finite() && self.base.is_finite()) {
            return Err(EngineError::Invalid(format!(
                "shift {} and base {} must be finite",
                self.shift, self.base
            )));
        }
        Ok(())
    }

    /// Kernels other than 3x3 exist in the frequency domain only, for maps with one operator.
    fn check_kernel(&self) -> Result<()> {
        let Operator::Conv { padding, kernel, .. } = self.operator else { return Ok(()) };
        let general = padding == Padding::Circular && self.form == Form::Single && kernel % 2 == 1;
        if kernel == 3 || general {
            return Ok(());
        }
        Err(EngineError::Invalid(format!(
            "a {kernel}x{kernel} kernel with padding {padding:?} and the form {:?}: kernels are 3x3, or of any odd size for \
             circular convolutions of the form Single",
            self.form
        )))
    }
}
