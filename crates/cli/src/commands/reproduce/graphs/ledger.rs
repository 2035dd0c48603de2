//! A run on a graph, as the ledger keeps it.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use subdeq_data::graph::GraphSplitRule;

use super::super::ledger::Run;
use super::Form;

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
    /// The commit that the program was built from; older records have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// The runs of one table.
pub type Ledger = super::super::ledger::Ledger<Record>;

impl Run for Record {
    fn repeats(&self, other: &Self) -> bool {
        self.key == other.key
    }

    fn order(&self, _other: &Self) -> Ordering {
        Ordering::Equal
    }
}

impl Ledger {
    /// The run with this key, if it was run.
    pub fn find(&self, key: &Key) -> Option<&Record> {
        self.runs().iter().find(|run| run.key == *key)
    }
}
