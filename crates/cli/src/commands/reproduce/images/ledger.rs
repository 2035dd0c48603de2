//! A run on images, as the ledger keeps it.

use std::cmp::Ordering;
use std::fs;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use subdeq::train::{EpochMetrics, Evaluation, TrainConfig, VerdictSummary};

use super::super::ledger::Run;
use crate::failure::Failure;

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Row of the table.
    pub model: String,
    /// The run's seed.
    pub seed: u64,
    /// Test error in percent of the model with the lowest validation error.
    pub error: f64,
    /// Test images.
    pub samples: usize,
    /// Share of the test solves that converged.
    pub converged: f64,
    /// Share of the test inputs looked at whose fixed point is proved to be the only one.
    pub certified: Option<f64>,
    /// How many were looked at.
    pub certified_samples: usize,
    /// What is proved for all inputs.
    pub all_inputs: Option<VerdictSummary>,
    /// Median of the factors of those inputs.
    pub median_factor: Option<f64>,
    /// The epoch (from 1) that was selected.
    pub best_epoch: usize,
    /// Validation error in percent after each epoch.
    pub validation_errors: Vec<f64>,
    /// Forward and adjoint iterations per training sample, in the last epoch.
    pub iterations: [f64; 2],
    /// Median of the seconds that an epoch's training batches took.
    pub seconds_per_epoch: f64,
    /// What it ran on.
    pub machine: Machine,
    /// When it ended, seconds since 1970.
    pub ended: u64,
    /// Version of this program.
    pub version: String,
    /// The commit it was built from; older entries have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Everything that decided the result.
    pub config: Value,
}

/// What a run ran on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Its cores, as the system counts them.
    pub cores: usize,
    /// What it ran on, where the ledger was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Threads of the run.
    pub threads: usize,
    /// Runs at the same time.
    pub jobs: usize,
}

impl Entry {
    /// What there is to say about a finished run.
    pub fn new(
        model: &str,
        config: &TrainConfig,
        evaluation: &Evaluation,
        epochs: &[EpochMetrics],
        machine: Machine,
    ) -> Result<Self, Failure> {
        // Every split of these tables holds images out.
        let error = |epoch: &EpochMetrics| epoch.validation_error.unwrap_or(epoch.train_error);
        let validation_errors: Vec<f64> = epochs.iter().map(error).collect();
        let best = epochs.iter().min_by(|a, b| error(a).total_cmp(&error(b)));
        let seconds = crate::statistics::median(epochs.iter().map(|epoch| epoch.seconds).collect());
        let (Some(best), Some(last), Some(seconds)) = (best, epochs.last(), seconds) else {
            return Err(Failure::other(format!("the run of {model} has no metrics")));
        };
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Ok(Self {
            model: model.to_owned(),
            seed: config.seed,
            error: evaluation.error,
            samples: evaluation.samples,
            converged: evaluation.converged,
            certified: evaluation.certified,
            certified_samples: evaluation.certified_samples,
            all_inputs: evaluation.all_inputs.clone(),
            median_factor: evaluation.median_factor,
            best_epoch: best.epoch,
            validation_errors,
            iterations: [last.forward_iterations, last.backward_iterations],
            seconds_per_epoch: seconds,
            machine,
            ended: now.map_or(0, |since| since.as_secs()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: Some(env!("SUBDEQ_COMMIT").to_owned()),
            config: as_json(config)?,
        })
    }
}

/// A config as the ledger keeps it.
pub fn as_json(config: &TrainConfig) -> Result<Value, Failure> {
    serde_json::to_value(config).map_err(Failure::other)
}

/// The runs of one column.
pub type Ledger = super::super::ledger::Ledger<Entry>;

impl Run for Entry {
    fn repeats(&self, other: &Self) -> bool {
        self.model == other.model && self.config == other.config
    }

    fn order(&self, other: &Self) -> Ordering {
        (&self.model, self.seed).cmp(&(&other.model, other.seed))
    }
}

impl Ledger {
    /// The run of exactly this config, if it was run.
    pub fn find(&self, model: &str, config: &Value) -> Option<&Entry> {
        self.runs().iter().find(|entry| entry.model == model && entry.config == *config)
    }
}

impl Machine {
    /// This one.
    pub fn here(device: String, threads: usize, jobs: usize) -> Self {
        let named = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            line.split_once(':').map(|(_, name)| name.trim().to_owned())
        });
        Self {
            processor: named.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            device: Some(device),
            threads,
            jobs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(model: &str, seed: u64, error: f64) -> Entry {
        Entry {
            model: model.into(),
            seed,
            error,
            samples: 10,
            converged: 1.0,
            certified: None,
            certified_samples: 0,
            all_inputs: None,
            median_factor: None,
            best_epoch: 1,
            validation_errors: vec![error],
            iterations: [1.0, 0.0],
            seconds_per_epoch: 0.1,
            machine: Machine::here("cpu".into(), 1, 2),
            ended: 0,
            version: "0".into(),
            commit: None,
            config: serde_json::json!({ "seed": seed, "epochs": 30 }),
        }
    }

    #[test]
    fn two_processes_lose_nothing_and_a_run_is_there_once() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Ledger::open(folder.path(), "mnist-dense").unwrap();
        let (mut ours, mut theirs) = (open(), open());
        ours.add(entry("b", 0, 1.0)).unwrap();
        theirs.add(entry("a", 0, 2.0)).unwrap();
        ours.add(entry("b", 0, 3.0)).unwrap();
        let again = open();
        let found: Vec<_> = again.runs().iter().map(|e| (e.model.as_str(), e.error)).collect();
        assert_eq!(found, [("a", 2.0), ("b", 3.0)]);
        assert!(again.find("b", &entry("b", 0, 0.0).config).is_some());
        assert!(again.find("b", &serde_json::json!({ "seed": 0, "epochs": 3 })).is_none());
    }

    #[test]
    fn an_entry_without_a_commit_reads_and_writes_back() {
        let old = serde_json::to_value(entry("a", 0, 1.0)).unwrap();
        assert!(old.get("commit").is_none());
        let read: Entry = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), old);
        let new = Entry { commit: Some("0123456789ab-dirty".into()), ..read };
        assert_eq!(serde_json::to_value(&new).unwrap()["commit"], "0123456789ab-dirty");
    }

    #[test]
    fn a_damaged_ledger_is_named_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("svhn.json"), "[{").unwrap();
        let complaint = Ledger::open(folder.path(), "svhn").unwrap_err().to_string();
        assert!(complaint.contains("svhn.json"), "{complaint}");
        assert_eq!(fs::read_to_string(folder.path().join("svhn.json")).unwrap(), "[{");
    }
}
