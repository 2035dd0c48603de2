//! From a data set to what a training reads: split, standardised, with everything a config has to record.

use std::path::Path;

use subdeq::train::{DataConfig, Images, Parts};
use subdeq_data::DataError;
use subdeq_data::graph::GRAPH_NAMES;
use subdeq_data::image_dataset::{ImageDataset, PROTOCOLS, protocol};
use subdeq_data::images::ImageSet;
use subdeq_data::split::{Split, SplitRule};
use subdeq_data::standardise::Standardisation;

use crate::failure::Failure;
use crate::names;

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

/// How a data set is divided.
pub struct Division<'a> {
    /// `release`, `paper` or `standard`.
    pub split: &'a str,
    /// Training images that the standard split holds out.
    pub validation: usize,
    /// What decides which images go where.
    pub seed: u64,
}

impl Division<'_> {
    fn rule(&self, dataset: &ImageDataset) -> Result<SplitRule, Failure> {
        let official = dataset.official_train;
        match (self.split, self.validation) {
            ("release", 0) => Ok(SplitRule::Release),
            ("paper", 0) => Ok(SplitRule::Paper),
            ("release" | "paper", _) => Err(Failure::usage(format!(
                "the split `{}` says itself how many images are held out: --validation belongs to --split standard",
                self.split
            ))),
            ("standard", _) if dataset.official_test() == 0 => Err(Failure::usage(format!(
                "{} comes without test images of its own, so that there is no standard split: use --split release",
                dataset.name
            ))),
            ("standard", validation) if validation < official => {
                Ok(SplitRule::Counts { train: official - validation, validation })
            }
            ("standard", validation) => Err(Failure::usage(format!(
                "{validation} of {official} training images cannot be held out: nothing would be left to train on"
            ))),
            (name, _) => {
                Err(Failure::usage(format!("there is no split `{name}`: use release, paper or standard")))
            }
        }
    }
}

/// Loads a data set by name or folder and divides it. The release standardises with constants of its own, the paper with
/// those of the training images.
pub fn load(name: &str, data_dir: Option<&Path>, division: &Division<'_>) -> Result<Dataset, Failure> {
    let (dataset, divided) = divide(name, data_dir, division)?;
    let constants = match divided.rule {
        SplitRule::Paper => Standardisation::measured(&dataset.images, &divided.train),
        _ => dataset.release_standardisation(&divided.train),
    }
    .map_err(Failure::other)?;
    let numbers = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let config = DataConfig {
        name: absolute(&dataset.name),
        split: division.split.to_owned(),
        validation: division.validation,
        split_seed: division.seed,
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
    let division = Division { split: &config.split, validation: config.validation, seed: config.split_seed };
    let (dataset, divided) = divide(&config.name, data_dir, &division)?;
    if divided.fingerprint() != config.fingerprint || dataset.images.white() != config.white {
        return Err(Failure::other(format!(
            "the {} split of {} that is there is another one than the run's: the data have changed",
            config.split, config.name
        )));
    }
    build(&dataset.images, &divided, config.clone())
}

/// The test images of other data (all images, if none of them are for testing) for a model of this config: standardised as it
/// was trained, each with the number that its class has there.
pub fn load_for(name: &str, data_dir: Option<&Path>, config: &DataConfig) -> Result<Images, Failure> {
    let dataset = read(name, data_dir)?;
    let first = if dataset.official_test() > 0 { dataset.official_train } else { 0 };
    let indices: Vec<u32> = (first as u32..dataset.images.len() as u32).collect();
    let mut occurs = vec![false; dataset.class_names.len()];
    indices.iter().for_each(|&i| occurs[dataset.images.labels()[i as usize] as usize] = true);
    let labels = matched(name, &dataset.class_names, &occurs, &config.class_names)?;
    chosen(&dataset.images, &indices, config, |label| labels[label as usize])
}

/// For each class of the data its number in a run, by its name. Classes that do not occur may be unknown to it.
fn matched(data: &str, theirs: &[String], occurs: &[bool], ours: &[String]) -> Result<Vec<u32>, Failure> {
    let place = |name: &String| ours.iter().position(|known| known == name);
    let unknown: Vec<&str> = theirs
        .iter()
        .zip(occurs)
        .filter(|(name, occurs)| **occurs && place(name).is_none())
        .map(|(name, _)| name.as_str())
        .collect();
    if !unknown.is_empty() {
        let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
        return Err(Failure::other(format!(
            "the run does not know {} of the classes of {data} ({}): its classes are {}; rename those of the data (folders, or \
             the lines of a classes.txt)",
            if unknown.len() == 1 { "one".to_owned() } else { unknown.len().to_string() },
            listed(&unknown),
            listed(&ours)
        )));
    }
    Ok(theirs.iter().map(|name| place(name).unwrap_or(0) as u32).collect())
}

/// Names with commas; of very many the first.
fn listed(names: &[&str]) -> String {
    const SHOWN: usize = 20;
    let more = names.len().saturating_sub(SHOWN);
    let shown = names[..names.len() - more].join(", ");
    if more == 0 { shown } else { format!("{shown} and {more} more") }
}

/// Reads a data set; a slip in its name is recognised.
pub fn read(name: &str, data_dir: Option<&Path>) -> Result<ImageDataset, Failure> {
    ImageDataset::load(name, data_dir).map_err(|why| match why {
        DataError::Request { .. } => {
            let known: Vec<&str> =
                PROTOCOLS.iter().map(|p| p.name).chain(GRAPH_NAMES.iter().copied()).collect();
            names::unknown(why, name, &known)
        }
        other => Failure::other(other),
    })
}

fn divide(
    name: &str,
    data_dir: Option<&Path>,
    division: &Division<'_>,
) -> Result<(ImageDataset, Split), Failure> {
    let dataset = read(name, data_dir)?;
    let rule = division.rule(&dataset)?;
    let divided = dataset.split(rule, division.seed).map_err(Failure::other)?;
    Ok((dataset, divided))
}

fn build(set: &ImageSet, divided: &Split, config: DataConfig) -> Result<Dataset, Failure> {
    let part = |indices: &[u32]| chosen(set, indices, &config, |label| label);
    let parts = Parts {
        train: part(&divided.train)?,
        validation: part(&divided.validation)?,
        test: part(&divided.test)?,
    };
    let shape = [set.channels(), set.height(), set.width()];
    Ok(Dataset { config, shape, classes: set.classes(), parts })
}

/// A folder or file is recorded so that it is found from anywhere.
pub fn absolute(name: &str) -> String {
    match protocol(name) {
        Some(_) => name.to_owned(),
        None => std::fs::canonicalize(name).map_or_else(|_| name.to_owned(), |p| p.display().to_string()),
    }
}

fn chosen(
    set: &ImageSet,
    indices: &[u32],
    config: &DataConfig,
    class: impl Fn(u32) -> u32,
) -> Result<Images, Failure> {
    let mut pixels = Vec::with_capacity(indices.len() * set.pixels());
    indices.iter().for_each(|&i| pixels.extend_from_slice(set.image(i as usize)));
    let labels = indices.iter().map(|&i| class(set.labels()[i as usize])).collect();
    let shape = [set.channels(), set.height(), set.width()];
    Images::new(pixels, labels, shape, f64::from(set.white()), &config.mean, &config.deviation)
        .map_err(Failure::other)
}
