//! Maps of weights that somebody gives as they are, not made of free parameters.

use subdeq_map::{Layout, Map, WeightClass};

use super::ParametrisedMap;
use crate::{Error, Parametrisation, Result};

/// The margin asked of weights that are given for a monotone map: any that f64 can show.
const LEAST_MARGIN: f64 = 1e-9;

/// Weights as a map takes them.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenWeights {
    /// The numbers.
    pub data: Vec<f64>,
    /// Whether they are `|W|` of those that were given.
    pub absolute: bool,
}

impl GivenWeights {
    /// Maps for nonnegative weights are maps of `|W|`. Rows must have one sign where the map says so: the entry at fault is
    /// named.
    ///
    /// # Errors
    /// A row of both signs.
    pub fn new(name: &str, map: &Map, shape: &[usize], mut data: Vec<f64>) -> Result<Self> {
        if map.weights() == WeightClass::Nonnegative && data.iter().any(|&w| w < 0.0) {
            data.iter_mut().for_each(|w| *w = w.abs());
            return Ok(Self { data, absolute: true });
        }
        if map.weights() == WeightClass::RowSigned {
            let row_length = (data.len() / shape.first().copied().unwrap_or(1).max(1)).max(1);
            for (i, row) in data.chunks(row_length).enumerate() {
                let sign = row.iter().find(|&&w| w != 0.0).map_or(0.0, |w| w.signum());
                if let Some(j) = row.iter().position(|&w| w * sign < 0.0) {
                    return Err(Error::invalid(format!(
                        "`{name}` takes rows of one sign, but entry {:?} is {}",
                        position(shape, i * row_length + j),
                        row[j]
                    )));
                }
            }
        }
        Ok(Self { data, absolute: false })
    }
}

/// The indices of a flat position in an array of that shape, for messages.
#[must_use]
pub fn position(shape: &[usize], mut flat: usize) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (index, &length) in place.iter_mut().zip(shape).rev() {
        *index = flat % length.max(1);
        flat /= length.max(1);
    }
    place
}

impl ParametrisedMap {
    /// The map of that name, its constants replaced or not, as a layer whose first parameter is the weights themselves (`A` for
    /// `monotone-tied`, whose second is `b`, 1); the others have no second one.
    ///
    /// ```
    /// use subdeq::map::ParametrisedMap;
    /// use subdeq::{Layout, Map, Parametrisation};
    /// let map = Map::named("row-signed", Layout::Dense)?;
    /// let layer = ParametrisedMap::of_given_weights("row-signed", map, Layout::Dense)?;
    /// assert_eq!(layer.parametrisation(), Parametrisation::Free);
    /// # Ok::<(), subdeq::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that is none of [`ParametrisedMap::NAMES`], or that of the gains, which have two arrays of weights.
    pub fn of_given_weights(name: &str, map: Map, layout: Layout) -> Result<Self> {
        let usual = Self::named(name, layout)?.parametrisation();
        let architecture = Self::new(name, map, usual)?;
        match usual {
            Parametrisation::SplitGains => Err(Error::invalid(
                "`gains` has two weight arrays and cannot be solved from one; use another map",
            )),
            // Whose rows have which sign is for the weights to say.
            Parametrisation::RowSigned => architecture.parametrised(Parametrisation::Free),
            // What is given is A, and b is 1.
            Parametrisation::MonotoneTied { .. } => Ok(architecture),
            Parametrisation::MonotoneShifted { .. } | Parametrisation::MonotoneProduct { .. } => {
                architecture.parametrised(Parametrisation::MonotoneShifted { margin: LEAST_MARGIN })
            }
            _ => Ok(architecture),
        }
    }
}
