//! What a training does if nothing else is said: the published program's values for its data sets.

use subdeq::model::{ClassifierSpec, CoreSpec};
use subdeq::train::{Cosine, Recipe, TrainConfig};
use subdeq::{Init, Layout};

use crate::blocks::Blocks;
use crate::dataset::Dataset;
use crate::failure::Failure;
use crate::names;

/// The model that is trained if none is named: proved for every input, and the most accurate of those.
pub const DEFAULT_MODEL: &str = "monotone";

/// Values that depend on the data set and the layout.
struct Defaults {
    hidden: usize,
    pool: usize,
    epochs: usize,
    batch: usize,
}

/// What may be asked for instead; `None` keeps the default.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Name of the model.
    pub model: Option<String>,
    /// Units or channels.
    pub hidden: Option<usize>,
    /// Widths of a network's blocks.
    pub blocks: Option<Blocks>,
    /// Side of the pooling window.
    pub pool: Option<usize>,
    /// Epochs.
    pub epochs: Option<usize>,
    /// Images per batch.
    pub batch: Option<usize>,
    /// First learning rate.
    pub rate: Option<f64>,
    /// Adam's L2 term.
    pub weight_decay: Option<f64>,
    /// Warm starts.
    pub warm_start: bool,
}

/// Epochs of the published program on the data set of that name.
pub fn usual_epochs(data: &str, convolutional: bool) -> usize {
    let layout = if convolutional { Layout::Conv } else { Layout::Dense };
    usual(data, layout, usize::MAX).epochs
}

fn defaults(data: &Dataset, layout: Layout) -> Defaults {
    let [_, height, width] = data.shape;
    usual(&data.config.name, layout, height.min(width))
}

fn usual(data: &str, layout: Layout, side: usize) -> Defaults {
    match (data, layout) {
        ("digits", Layout::Conv) => Defaults { hidden: 16, pool: 4, epochs: 30, batch: 32 },
        ("digits", _) => Defaults { hidden: 64, pool: 1, epochs: 60, batch: 32 },
        ("mnist" | "fashion-mnist", Layout::Conv) => Defaults { hidden: 32, pool: 6, epochs: 40, batch: 128 },
        ("tiny-imagenet", Layout::Conv) => Defaults { hidden: 64, pool: 8, epochs: 50, batch: 64 },
        (_, Layout::Conv) => Defaults { hidden: 48, pool: 8.min(side), epochs: 40, batch: 128 },
        (_, _) => Defaults { hidden: 87, pool: 1, epochs: 30, batch: 128 },
    }
}

/// Side of the pooling window of a convolutional model.
pub fn usual_pool(data: &Dataset) -> usize {
    defaults(data, Layout::Conv).pool
}

/// The model of that name.
pub fn core(name: &str, layout: Layout) -> Result<CoreSpec, Failure> {
    CoreSpec::named(name, layout).map_err(|why| Failure::usage(names::unknown(why, name, &CoreSpec::names())))
}

/// The complete config of a training.
pub fn config(data: &Dataset, layout: Layout, seed: u64, wishes: &Wishes) -> Result<TrainConfig, Failure> {
    let usual = defaults(data, layout);
    let [channels, height, width] = data.shape;
    let name = wishes.model.as_deref().unwrap_or(DEFAULT_MODEL);
    let mut config = TrainConfig {
        epochs: wishes.epochs.unwrap_or(usual.epochs),
        batch: wishes.batch.unwrap_or(usual.batch),
        weight_decay: wishes.weight_decay.unwrap_or(1e-5),
        seed,
        warm_start: wishes.warm_start,
        slices: 0,
        rate: Cosine { start: wishes.rate.unwrap_or(1e-3), end: 1e-6 },
        recipe: Recipe::default(),
        data: data.config.clone(),
        model: ClassifierSpec {
            height,
            width,
            channels,
            hidden: wishes.hidden.unwrap_or(usual.hidden),
            pool: (layout == Layout::Conv).then(|| wishes.pool.unwrap_or(usual.pool)),
            injection_norm: false,
            classes: data.classes,
            core: core(name, layout)?,
            init: Init::Release,
            deeper: Vec::new(),
            lipschitz: None,
        },
    };
    if let Some(blocks) = &wishes.blocks {
        blocks.apply(&mut config.model, wishes.pool, usual.pool);
    }
    config.check().map_err(Failure::usage)?;
    Ok(config)
}
