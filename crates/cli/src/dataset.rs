//! From a data set to what a training reads: split, standardised, with everything a config has to record.

use std::path::Path;

use subdeq::train::{DataConfig, Images, Parts};
use subdeq_data::image_dataset::{ImageDataset, protocol};
use subdeq_data::images::ImageSet;
use subdeq_data::split::{Split, SplitRule};
use subdeq_data::standardise::Standardisation;

use crate::failure::Failure;

/// A data set, divided.
pub struct Dataset {
    /// What a config records of it.
    pub config: DataConfig,
    /// Channels, height, width.
    pub shape: [usize; 3],
    /// Number of classes.
    pub classes: usize,
    /// Training, validation and test images.
    pub parts: Parts,
}

/// The split of that name.
fn split_rule(name: &str) -> Result<SplitRule, Failure> {
    match name {
        "release" => Ok(SplitRule::Release),
        "paper" => Ok(SplitRule::Paper),
        _ => Err(Failure::usage(format!("there is no split `{name}`: use release or paper"))),
    }
}

/// Loads a data set by name or folder and divides it. The release standardises with constants of its own, the paper with
/// those of the training images.
pub fn load(name: &str, data_dir: Option<&Path>, split: &str, split_seed: u64) -> Result<Dataset, Failure> {
    let (dataset, divided) = divide(name, data_dir, split, split_seed)?;
    let constants = match divided.rule {
        SplitRule::Paper => Standardisation::measured(&dataset.images, &divided.train),
        _ => dataset.release_standardisation(&divided.train),
    }
    .map_err(Failure::other)?;
    let numbers = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let config = DataConfig {
        name: absolute(&dataset.name),
        split: split.to_owned(),
        split_seed,
        fingerprint: divided.fingerprint(),
        white: dataset.images.white(),
        mean: numbers(&constants.mean),
        deviation: numbers(&constants.deviation),
        class_names: dataset.class_names.clone(),
        flips: dataset.name == "tiny-imagenet",
    };
    build(&dataset.images, &divided, config)
}

/// The data of a config, after checking that they are the ones it was made with.
pub fn reload(config: &DataConfig, data_dir: Option<&Path>) -> Result<Dataset, Failure> {
    let (dataset, divided) = divide(&config.name, data_dir, &config.split, config.split_seed)?;
    if divided.fingerprint() != config.fingerprint || dataset.images.white() != config.white {
        return Err(Failure::other(format!(
            "the {} split of {} that is there is another one than the run's: the data have changed",
            config.split, config.name
        )));
    }
    build(&dataset.images, &divided, config.clone())
}

fn divide(
    name: &str,
    data_dir: Option<&Path>,
    split: &str,
    split_seed: u64,
) -> Result<(ImageDataset, Split), Failure> {
    let rule = split_rule(split)?;
    let dataset = ImageDataset::load(name, data_dir).map_err(Failure::other)?;
    let divided = dataset.split(rule, split_seed).map_err(Failure::other)?;
    Ok((dataset, divided))
}

fn build(set: &ImageSet, divided: &Split, config: DataConfig) -> Result<Dataset, Failure> {
    let part = |indices: &[u32]| chosen(set, indices, &config);
    let parts = Parts {
        train: part(&divided.train)?,
        validation: part(&divided.validation)?,
        test: part(&divided.test)?,
    };
    let shape = [set.channels(), set.height(), set.width()];
    Ok(Dataset { config, shape, classes: set.classes(), parts })
}

/// A folder is recorded so that it is found from anywhere.
pub fn absolute(name: &str) -> String {
    match protocol(name) {
        Some(_) => name.to_owned(),
        None => std::fs::canonicalize(name).map_or_else(|_| name.to_owned(), |p| p.display().to_string()),
    }
}

fn chosen(set: &ImageSet, indices: &[u32], config: &DataConfig) -> Result<Images, Failure> {
    let mut pixels = Vec::with_capacity(indices.len() * set.pixels());
    indices.iter().for_each(|&i| pixels.extend_from_slice(set.image(i as usize)));
    let labels = indices.iter().map(|&i| set.labels()[i as usize]).collect();
    let shape = [set.channels(), set.height(), set.width()];
    Images::new(pixels, labels, shape, f64::from(set.white()), &config.mean, &config.deviation)
        .map_err(Failure::other)
}
