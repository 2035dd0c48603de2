//! Models that were trained before.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use subdeq::Backend;
use subdeq::graph::load_graph_model;
use subdeq::model::Classifier;
use subdeq::train::{Images, ModelNote, RunFolder, TrainConfig, load_model};

use crate::dataset;
use crate::failure::Failure;

/// The model of a run's folder, or of a `model.safetensors` without one.
pub fn load<D: Backend<Elem = f32>>(
    run: &Path,
    device: &Arc<D>,
) -> Result<(Classifier<D>, ModelNote), Failure> {
    let path = model_file(run)?;
    load_model(device, &path).map_err(|why| match load_graph_model(&path) {
        Ok(_) => Failure::usage(format!(
            "{} is a model for a graph, which it does not hold: name the folder of its run",
            path.display()
        )),
        Err(_) => Failure::other(why),
    })
}

fn model_file(run: &Path) -> Result<PathBuf, Failure> {
    if run.is_file() {
        return Ok(run.to_owned());
    }
    if !run.is_dir() {
        return Err(Failure::other(format!(
            "{} is neither the folder of a run nor a model.safetensors: `subdeq train` makes both and prints where they are",
            run.display()
        )));
    }
    let (folder, _) = RunFolder::open(run).map_err(Failure::other)?;
    let path = folder.model_path();
    if path.exists() {
        return Ok(path);
    }
    Err(Failure::other(format!(
        "{} has no model.safetensors yet, which the end of its first epoch writes: go on with `subdeq train --resume \
         --out {0}`",
        run.display()
    )))
}

/// The test images of the run, or those of other data (all of them, if they have no test part), standardised as the run's and
/// with its classes; whether they are the run's own.
pub fn test_images(
    config: &TrainConfig,
    data: Option<&str>,
    data_dir: Option<&Path>,
) -> Result<(Images, bool), Failure> {
    match data {
        Some(name) if dataset::absolute(name) != config.data.name => {
            Ok((dataset::load_for(name, data_dir, &config.data)?, false))
        }
        _ => Ok((dataset::reload(&config.data, data_dir)?.parts.test, true)),
    }
}
