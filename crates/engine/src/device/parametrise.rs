//! Weights from free parameters, where the parameters are.

use subdeq_map::Parametrisation;

use super::Device;
use crate::{Result, ShapedMap};

/// A device that makes the weights of a map from free parameters and brings their gradients back.
pub trait Parametrise: Device {
    /// The weights of one map, and what their parametrisation remembers for the way back (an eigenvalue and its
    /// derivative, say).
    type Weights: Send;

    /// Room for the weights of a map.
    fn weights(&self, map: &ShapedMap, parametrisation: Parametrisation) -> Result<Self::Weights>;
    /// Makes the weights of the free parameters (in the order of [`free_parameters`]); refuses parameters that are not
    /// finite.
    fn make_weights(&self, weights: &mut Self::Weights, free: &[&Self::Array]) -> Result<()>;
    /// The weight arrays, in the order given with [`crate::ShapedMap`].
    fn weight_arrays<'a>(&self, weights: &'a Self::Weights) -> &'a [Self::Array];
    /// The shift that is tied to the weights, one number per unit; `None` where the map has none.
    fn tied_shift<'a>(&self, weights: &'a Self::Weights) -> Option<&'a Self::Array>;
    /// Turns gradients for the weight arrays into gradients for the free parameters. `tied` is the gradient for the tied
    /// shift, where there is one.
    fn pull_parameters(
        &self,
        weights: &mut Self::Weights,
        free: &[&Self::Array],
        gradients: &[Self::Array],
        tied: Option<&Self::Array>,
        free_gradients: &mut [&mut Self::Array],
    ) -> Result<()>;
}

/// Names and lengths of the free parameters that a parametrisation makes the weights of a map from.
///
/// ```
/// use subdeq_engine::{Activation, ShapedMap, Operator, free_parameters};
/// use subdeq_map::Parametrisation;
/// let map = ShapedMap::new(Operator::Dense { n: 3 }, subdeq_map::Map::single(Activation::Tanh, 1.2)?)?;
/// assert_eq!(free_parameters(Parametrisation::MonotoneProduct { margin: 0.1 }, &map), [("a", 9), ("b", 9)]);
/// assert_eq!(free_parameters(Parametrisation::MonotoneTied { margin: 1.0 }, &map), [("a", 9), ("b", 1)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn free_parameters(parametrisation: Parametrisation, map: &ShapedMap) -> Vec<(&'static str, usize)> {
    let (square, units) = (map.operator().weight_len(), map.operator().units());
    match parametrisation {
        Parametrisation::SplitGains => vec![("gain", units * units), ("weight", square)],
        Parametrisation::MonotoneProduct { .. } | Parametrisation::MonotoneTied { .. } => {
            let side = parametrisation.free_side(map.operator().side());
            let len = units * units * side * side;
            let tied = matches!(parametrisation, Parametrisation::MonotoneTied { .. });
            vec![("a", len), ("b", if tied { 1 } else { len })]
        }
        _ => vec![("weight", square)],
    }
}
