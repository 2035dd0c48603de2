//! What was run: one JSON file per table, written anew after each run, so that nothing is run twice.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use subdeq::train::replace_file;
use subdeq_data::graph::GraphSplitRule;

use super::Form;
use crate::failure::Failure;

/// What makes a run this run and no other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    /// The graph.
    pub graph: String,
    /// The model.
    pub model: String,
    /// In which form.
    pub form: Form,
    /// Its teleport probability.
    pub teleport: f64,
    /// Seed of split, first weights and dropout.
    pub seed: u64,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub key: Key,
    /// How the nodes were divided.
    pub split: GraphSplitRule,
    /// Labelled, validation and test nodes.
    pub nodes: [usize; 3],
    /// Test accuracy in percent at the best epoch.
    pub accuracy: f64,
    /// Validation accuracy in percent at the best epoch.
    pub validation_accuracy: f64,
    /// The epoch with the best validation accuracy.
    pub best_epoch: usize,
    /// Epochs until training stopped.
    pub epochs: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The largest numbers of iterations of a training step's solve and adjoint solve; 0 where unrolled.
    pub iterations: [u32; 2],
    /// Share of the epochs whose solves all reached their tolerance.
    pub converged: f64,
    /// What is proved about the propagation: `proven` or `unproven`.
    pub verdict: String,
    /// The proved contraction factor.
    pub factor: Option<f64>,
    /// The metric of that factor.
    pub metric: Option<String>,
    /// Iterations to a distance of [`super::DISTANCE`] from the solution of the trained model: promised, and counted.
    pub promised: Option<u64>,
    /// The same, counted.
    pub measured: Option<u64>,
}

/// The runs of one table.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    runs: Vec<Record>,
}

impl Ledger {
    /// Reads the ledger of a table, if there is one yet.
    pub fn open(folder: &Path, table: &str) -> Result<Ledger, Failure> {
        let path = folder.join(format!("{table}.json"));
        let runs = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|why| Failure::other(format!("{}: {why}", path.display())))?,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(why) => return Err(Failure::other(format!("{} cannot be read: {why}", path.display()))),
        };
        Ok(Ledger { path, runs })
    }

    /// The run with this key, if it was run.
    pub fn find(&self, key: &Key) -> Option<&Record> {
        self.runs.iter().find(|run| run.key == *key)
    }

    /// Adds a run and writes the file.
    pub fn add(&mut self, run: Record) -> Result<(), Failure> {
        self.runs.push(run);
        let fault = |why: String| Failure::other(format!("{} cannot be written: {why}", self.path.display()));
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(|why| fault(why.to_string()))?;
        }
        let text = serde_json::to_string_pretty(&self.runs).map_err(|why| fault(why.to_string()))?;
        replace_file(&self.path, |out| out.write_all(text.as_bytes())).map_err(|why| fault(why.to_string()))
    }
}
