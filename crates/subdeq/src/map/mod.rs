//! The maps `F(z; y)` of equilibrium layers: the paper's, and those that are sound for every weight.
//!
//! Each file holds one of them as a small typed value. [`ParametrisedMap`] is what they all turn into: the equation, together
//! with the parametrisation that gives its weights their signs or their spectrum.

mod divisive;
mod excitatory;
mod file;
mod gains;
mod given;
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
pub use given::{GivenWeights, position};
pub use monotone::{MonDeq, Monotone};
pub use power_ratio::PowerRatio;
pub use rational::Rational;
pub use row_signed::RowSigned;
pub use split_sign::SplitSign;
pub use subdeq::SubDeq;

use file::ParametrisedMapFile;
use serde::{Deserialize, Serialize};
use subdeq_map::{Form, Groups, Layout, Map, WeightClass};

use crate::Parametrisation;
use crate::{Error, Result, theory};

/// Height and width of kernels, unless another is asked for.
const USUAL_KERNEL: usize = 3;

/// Heights and widths that may be asked for.
const KERNELS: [usize; 3] = [1, 3, 5];

/// An equation without its size and weights, and how its weights come from free parameters.
///
/// ```
/// use subdeq::map::{ParametrisedMap, SplitSign};
/// use subdeq::{Activation, Layout};
/// let by_type = ParametrisedMap::try_from(SplitSign::new(Activation::Softsign, 1.2))?;
/// assert_eq!(by_type, ParametrisedMap::named("split-sign", Layout::Dense)?);
/// let equation = by_type.equation(Layout::Dense);
/// assert_eq!(equation.to_string(), "z = softsign(W+ z) - softsign(W- z) + y + 1.2");
/// # Ok::<(), subdeq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ParametrisedMapFile", into = "ParametrisedMapFile")]
pub struct ParametrisedMap {
    name: String,
    /// As it is on vectors; on images a norm is taken over columns.
    map: Map,
    parametrisation: Parametrisation,
    kernel: usize,
}

impl ParametrisedMap {
    /// An equation with the parametrisation of its weights; which weights it is meant for follows from that.
    ///
    /// # Errors
    /// A form that the parametrisation has no weights for, an equation that was meant for other weights, a margin that is
    /// not above 0, or a normalisation other than a layer's.
    pub fn new(name: impl Into<String>, map: Map, parametrisation: Parametrisation) -> Result<Self> {
        let name = name.into();
        parametrisation.check_form(&map)?;
        let map = map.of_whole_weights()?;
        let weights = parametrisation.weight_class();
        if map.weights() != WeightClass::Any && map.weights() != weights {
            return Err(Error::invalid(format!(
                "`{map}` is meant for other weights ({:?}) than the parametrisation {parametrisation:?} makes",
                map.weights()
            )));
        }
        if let Some(norm) = map.normalisation()
            && !matches!(norm.groups, Groups::WholeVector | Groups::AlongHeight)
        {
            return Err(Error::invalid(format!(
                "`{map}` cannot be a layer: layers normalise whole vectors, or the columns of images"
            )));
        }
        let map = map.for_weights(weights)?.for_layout(Layout::Dense)?;
        Ok(Self { name, map, parametrisation, kernel: USUAL_KERNEL })
    }

    /// The name it goes by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The same under another name.
    #[must_use]
    pub fn renamed(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same with weights that come from free parameters in another way.
    ///
    /// # Errors
    /// A form that the parametrisation has no weights for.
    pub fn parametrised(self, parametrisation: Parametrisation) -> Result<Self> {
        let free =
            if self.map.form() == Form::Single { self.map.for_weights(WeightClass::Any)? } else { self.map };
        Self::new(self.name, free, parametrisation)?.with_kernel(self.kernel)
    }

    /// The same on images with free kernels of that side: 1, 3 (unless it is said) or 5. `W` has kernels of the same side, and of
    /// nearly twice that side where it is a product.
    ///
    /// ```
    /// use subdeq::map::{Monotone, ParametrisedMap};
    /// let map = ParametrisedMap::try_from(Monotone::new(subdeq::Activation::Relu).tied(1.0))?.with_kernel(5)?;
    /// assert_eq!((map.kernel(), map.weight_side()), (5, 9));
    /// # Ok::<(), subdeq::Error>(())
    /// ```
    ///
    /// # Errors
    /// Another side, or one other than 3 of a map that is not monotone: other kernels are solved in the frequency domain.
    pub fn with_kernel(self, side: usize) -> Result<Self> {
        if !KERNELS.contains(&side) {
            return Err(Error::invalid(format!("kernels are 1x1, 3x3 or 5x5, not {side}x{side}")));
        }
        if side != USUAL_KERNEL && !self.is_monotone() {
            return Err(Error::invalid(format!(
                "`{}` has 3x3 kernels: only monotone maps, which are solved in the frequency domain, have {side}x{side} ones",
                self.name
            )));
        }
        Ok(Self { kernel: side, ..self })
    }

    /// Height and width of the kernels of its free parameters, on images.
    #[must_use]
    pub fn kernel(&self) -> usize {
        self.kernel
    }

    /// Height and width of the kernels of its weights, on images.
    #[must_use]
    pub fn weight_side(&self) -> usize {
        self.parametrisation.weight_side(self.kernel)
    }

    /// The equation in a layer of that layout, in the weights that the parametrisation makes: what the engine solves. What a
    /// certificate speaks about is [`crate::Equilibrium::equation`].
    #[must_use]
    pub fn equation(&self, layout: Layout) -> Map {
        // Dense and convolutional layers both have groups for a norm.
        self.map.for_layout(layout).unwrap_or(self.map)
    }

    /// How the weights come from free parameters.
    #[must_use]
    pub fn parametrisation(&self) -> Parametrisation {
        self.parametrisation
    }

    /// The engine's map on an operator.
    ///
    /// # Errors
    /// An operator that the engine has no kernels for.
    pub fn map(&self, operator: subdeq_engine::Operator) -> Result<subdeq_engine::ShapedMap> {
        Ok(subdeq_engine::ShapedMap::new(operator, self.equation(theory::layout(&operator)))?)
    }

    /// Whether it belongs to the monotone family (A7), whose solvers are the splittings.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        self.map.is_monotone()
    }
}
