//! Models that were trained before.

use std::path::Path;
use std::sync::Arc;

use subdeq::Network;
use subdeq::model::Classifier;
use subdeq::train::{Images, ModelNote, RunFolder, TrainConfig, load_model};

use crate::dataset;
use crate::failure::Failure;

/// The model of a run's folder, or of its file alone.
pub fn load<D: Network<Elem = f32>>(
    run: &Path,
    device: &Arc<D>,
) -> Result<(Classifier<D>, ModelNote), Failure> {
    if run.is_file() {
        return load_model(device, run).map_err(Failure::other);
    }
    if !run.is_dir() {
        return Err(Failure::other(format!(
            "{} is not the folder of a run: `subdeq train` makes one and prints where it is",
            run.display()
        )));
    }
    let (folder, _) = RunFolder::open(run).map_err(Failure::other)?;
    let path = folder.model_path();
    if !path.exists() {
        return Err(Failure::other(format!(
            "{} has no model.safetensors yet, which the end of its first epoch writes: go on with `subdeq train --resume \
             --out {0}`",
            run.display()
        )));
    }
    load_model(device, &path).map_err(Failure::other)
}

/// The test images of the run, or those of other data, standardised as the run's; whether they are the run's own.
pub fn test_images(
    config: &TrainConfig,
    data: Option<&str>,
    data_dir: Option<&Path>,
) -> Result<(Images, bool), Failure> {
    match data {
        Some(name) if name != config.data.name => {
            let other = dataset::load(name, data_dir, "release", config.data.split_seed)?;
            let test = other.parts.test.restandardised(&config.data.mean, &config.data.deviation);
            Ok((test.map_err(Failure::other)?, false))
        }
        _ => Ok((dataset::reload(&config.data, data_dir)?.parts.test, true)),
    }
}
