//! The map that a command line names, and the weights it takes from a file: one meaning for every command.

use subdeq::Activation;
use subdeq::map::GivenWeights;
use subdeq::model::CoreSpec;
use subdeq::subdeq_map::{Layout, Map, Overrides, Padding};

use crate::failure::Failure;
use crate::names;
use crate::weights::Array;

/// What replaces the constants of a named map.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct MapOptions {
    /// Replaces the map's activation.
    #[arg(long)]
    activation: Option<String>,
    /// Replaces the map's shift.
    #[arg(long, allow_negative_numbers = true)]
    shift: Option<f64>,
    /// Replaces the map's power.
    #[arg(long, allow_negative_numbers = true)]
    power: Option<f64>,
    /// Normalise by this p-norm: 1 to inf.
    #[arg(long)]
    norm: Option<String>,
}

impl MapOptions {
    /// Whether anything is to be replaced.
    pub fn any(&self) -> bool {
        let Self { activation, shift, power, norm } = self;
        activation.is_some() || shift.is_some() || power.is_some() || norm.is_some()
    }

    /// The map of that name with the options applied.
    pub fn map(&self, name: &str, teleport: Option<f64>, layout: Layout) -> Result<Map, Failure> {
        let overrides = Overrides {
            activation: self.activation.as_deref().map(activation).transpose()?,
            shift: self.shift,
            power: self.power,
            norm: self.norm.as_deref().map(str::parse).transpose().map_err(Failure::usage)?,
            teleport,
        };
        // Models without a map are known too: they are refused for another reason.
        let known: Vec<&str> = Map::NAMES.into_iter().chain(CoreSpec::names()).collect();
        let map =
            Map::named(name, layout).map_err(|why| Failure::usage(names::unknown(why, name, &known)))?;
        map.with(&overrides, layout).map_err(Failure::usage)
    }
}

/// The activation of that name, with its parameters in parentheses if it has any.
pub fn activation(name: &str) -> Result<Activation, Failure> {
    name.parse().map_err(|why| Failure::usage(names::unknown(why, name, &Activation::NAMES)))
}

/// What lies beyond the border of a map's images: where it is monotone, they are tori, as in the layers.
pub fn padding(map: &Map) -> Padding {
    if map.is_monotone() { Padding::Circular } else { Padding::Zero }
}

/// The weights that a map takes from a file.
pub struct Taken {
    /// The numbers.
    pub data: Vec<f64>,
    /// Where they come from: `FILE`, or `|W| of FILE`.
    pub words: String,
    /// Whether they are not what the file holds.
    pub changed: bool,
}

/// Maps for nonnegative weights are maps of `|W|`. Rows must have one sign where the map says so: the entry at fault is named.
pub fn take(name: &str, map: &Map, source: &str, weights: Array) -> Result<Taken, Failure> {
    let Array { shape, data } = weights;
    let GivenWeights { data, absolute } = GivenWeights::new(name, map, &shape, data)
        .map_err(|why| Failure::other(format!("{source}: {why}")))?;
    let words = if absolute { format!("|W| of {source}") } else { source.to_owned() };
    Ok(Taken { data, words, changed: absolute })
}
