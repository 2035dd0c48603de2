//! A fixed-point map `F(z; y)` on a shape: the equation of [`subdeq_map`], lowered to what the kernels read.

use subdeq_map::{Activation, Form, Groups, Injection, Normalisation, PNorm, Padding};

use crate::{EngineError, Result};

/// The linear part of a map: what `W z` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

    /// Numbers in one square weight array: `n x n` (row = output), or `c x c x 3 x 3` (out, in, row, column; or of another side).
    pub fn weight_len(&self) -> usize {
        self.units() * self.units() * self.taps()
    }

    /// Weights from one unit to another: the taps of a kernel, or 1.
    pub fn taps(&self) -> usize {
        self.side() * self.side()
    }

    /// Height and width of the kernel; 1 for a matrix.
    pub fn side(&self) -> usize {
        match *self {
            Self::Dense { .. } => 1,
            Self::Conv { kernel, .. } => kernel,
        }
    }
}

impl Operator {
    /// Whether no length that follows from these sizes overflows: the kernels trust lengths that agree.
    fn fits(&self) -> bool {
        // More than any buffer of a kernel holds: two planes of weights in whole tiles, or a matrix for each frequency.
        let units = self.units().saturating_add(64);
        match *self {
            Self::Dense { .. } => product_fits(&[units, units, 64]),
            Self::Conv { height, width, kernel, .. } => {
                let (height, width) = (height.saturating_add(64), width.saturating_add(64));
                let kernel = kernel.saturating_add(1);
                product_fits(&[units, units, height, width, 64])
                    && product_fits(&[units, units, kernel, kernel, 64])
            }
        }
    }
}

/// Whether a buffer of so many numbers is one that can exist.
pub(crate) fn product_fits(sizes: &[usize]) -> bool {
    let product = sizes.iter().try_fold(size_of::<f64>(), |product, &size| product.checked_mul(size));
    product.is_some_and(|bytes| isize::try_from(bytes).is_ok())
}

/// How the kernels put linear parts and activation together. `h(u) = (s(u) + base)^power` with the lowered constants of the
/// [`ShapedMap`], `P, N >= 0`. These are the forms of [`subdeq_map::Form`] that there are kernels for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Formula {
    /// `h(W z) + y` or `h(W z + y)`.
    Single,
    /// `s(P z) - s(N z) + y`.
    SplitSign,
    /// `s(P z / (q + N z)) + y`.
    Divisive { q: f64 },
    /// `P z / (q + P z + N z) + y`.
    Rational { q: f64 },
    /// `((P z + y1 + e) / (N z + y2 + e))^p`.
    PowerRatio { p: f64, e: f64 },
    /// `A s(P z) - B s(N z) + y`.
    Gains,
}

/// `F(z; y)` on a shape. Complete: a device needs nothing else but the weights. They come as
///
/// * `[W]` for [`Form::Single`], whatever weights it is meant for,
/// * `[A, B, P, N]` for [`Form::Gains`]: `A = W+` and `B = W-` are `units x units` (a 1x1 convolution for images), `P` and
///   `N` of the operator's own shape. The tie is not added here: the caller adds it to the injection,
/// * `[P, N]` with `P = W+`, `N = W-` for the other forms.
///
/// ```
/// use subdeq_engine::{Activation, ShapedMap, Operator};
/// let equation = subdeq_map::Map::single(Activation::Tanh, 1.2)?;
/// let map = ShapedMap::new(Operator::Dense { n: 87 }, equation)?;
/// assert_eq!((map.weight_count(), map.weight_len(0)), (1, 87 * 87));
/// assert_eq!(map.equation(), equation);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShapedMap {
    equation: subdeq_map::Map,
    pub(crate) operator: Operator,
    pub(crate) formula: Formula,
    pub(crate) activation: Activation,
    pub(crate) injection: Injection,
    /// Added to `s` before a power is taken; 0 without a power.
    pub(crate) base: f64,
    /// The power; 1 means none is taken.
    pub(crate) power: f64,
    /// Added at the end, before the normalisation; 0 with a power.
    pub(crate) shift: f64,
    /// The norm that the whole vector, or each column of an image's channels, is divided by.
    pub(crate) norm: Option<PNorm>,
}

impl ShapedMap {
    /// An equation on a shape.
    ///
    /// # Errors
    /// An empty state, a kernel of a size that no device has, a form or a normalisation that there are no kernels for.
    pub fn new(operator: Operator, equation: subdeq_map::Map) -> Result<Self> {
        let refuse = |why: String| Err(EngineError::Invalid(why));
        if !operator.fits() {
            return refuse(format!("the operator {operator:?} does not fit into the address space"));
        }
        if operator.state_len() == 0 {
            return refuse(format!("the operator {operator:?} has an empty state"));
        }
        let formula = match equation.form() {
            Form::Single => Formula::Single,
            Form::SplitSign => Formula::SplitSign,
            Form::Divisive { q } => Formula::Divisive { q },
            Form::Rational { q } => Formula::Rational { q },
            Form::PowerRatio { p, e } => Formula::PowerRatio { p, e },
            Form::Gains => Formula::Gains,
            Form::Monomial => {
                return refuse(format!(
                    "`{equation}` can be certified but not solved: there are no kernels for logarithms of a state"
                ));
            }
            Form::Tied { .. } => {
                return refuse(format!(
                    "`{equation}` can be certified but not solved: there are no kernels that make W of A; give W itself"
                ));
            }
            Form::Graph { .. } | Form::PowerMean { .. } => {
                return refuse(format!(
                    "`{equation}` propagates over a graph: make a GraphMap of it, not a layer"
                ));
            }
        };
        let norm = match (equation.normalisation(), operator) {
            (None, _) => None,
            (Some(Normalisation { p, groups: Groups::WholeVector }), Operator::Dense { .. })
            | (Some(Normalisation { p, groups: Groups::AlongHeight }), Operator::Conv { .. }) => Some(p),
            (Some(Normalisation { groups, .. }), _) => {
                return refuse(format!(
                    "`{equation}` normalises {groups}: on {operator:?} there are kernels for {} only",
                    match operator {
                        Operator::Dense { .. } => Groups::WholeVector,
                        Operator::Conv { .. } => Groups::AlongHeight,
                    }
                ));
            }
        };
        check_kernel(operator, formula)?;
        // Without a power, one addition at the end does; with one, the shift belongs inside it.
        let power = equation.power();
        let (base, shift) = if power == 1.0 { (0.0, equation.shift()) } else { (equation.shift(), 0.0) };
        let (activation, injection) = (equation.activation(), equation.injection());
        Ok(Self { equation, operator, formula, activation, injection, base, power, shift, norm })
    }

    /// The equation.
    pub fn equation(&self) -> subdeq_map::Map {
        self.equation
    }

    /// What `W z` means.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// Numbers in one sample's injection.
    pub fn injection_len(&self) -> usize {
        self.operator.state_len() * self.equation.form().injection_count()
    }

    /// Number of weight arrays.
    pub fn weight_count(&self) -> usize {
        match self.formula {
            Formula::Single => 1,
            Formula::Gains => 4,
            _ => 2,
        }
    }

    /// Length of weight array `index`.
    pub fn weight_len(&self, index: usize) -> usize {
        let units = self.operator.units();
        match self.formula {
            Formula::Gains if index < 2 => units * units,
            _ => self.operator.weight_len(),
        }
    }
}

/// Kernels other than 3x3 exist in the frequency domain only, for maps with one operator.
fn check_kernel(operator: Operator, formula: Formula) -> Result<()> {
    let Operator::Conv { padding, kernel, .. } = operator else { return Ok(()) };
    let general = padding == Padding::Circular && formula == Formula::Single && kernel % 2 == 1;
    if kernel == 3 || general {
        return Ok(());
    }
    Err(EngineError::Invalid(format!(
        "a {kernel}x{kernel} kernel with padding {padding:?} and the form {formula:?}: kernels are 3x3, or of any odd size for \
         circular convolutions of the form Single"
    )))
}
