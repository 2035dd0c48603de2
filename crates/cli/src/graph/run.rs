//! Runs on graphs: their config, and what stands in their folder.

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::graph::{GraphClassifier, GraphConfig, GraphSplit};
use subdeq::train::{EVALUATION, Evaluation, RunFolder};
use subdeq_data::graph::{GRAPH_NAMES, GraphDataset, GraphSplitRule, LABELLED_SHARES};

use super::{DRAWING, Drawing, Graph};
use crate::failure::Failure;

/// The `config.toml` of a run on a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphRunConfig {
    /// That it is one.
    pub kind: Kind,
    /// The graph.
    pub data: GraphData,
    /// The model and its training.
    pub training: GraphConfig,
}

/// As much of a config as tells one kind from the other.
#[derive(Deserialize)]
struct Marked {
    kind: Option<Kind>,
}

/// The mark of a config for graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Node classification on one graph.
    Graph,
}

/// Which graph, divided how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphData {
    /// Name or folder.
    pub name: String,
    /// Which nodes are labelled, validate and test.
    pub split: GraphSplitRule,
    /// Seed of the division.
    pub split_seed: u64,
}

impl GraphRunConfig {
    /// The config of a run's folder, if it is one on a graph.
    pub fn of(folder: &Path) -> Result<Option<GraphRunConfig>, Failure> {
        match RunFolder::open_as::<Marked>(folder) {
            Ok((_, Marked { kind: Some(Kind::Graph) })) => {
                let (_, config) = RunFolder::open_as(folder).map_err(Failure::other)?;
                Ok(Some(config))
            }
            // Whatever else is wrong with it, whoever reads it as the config of a run on images will say.
            _ => Ok(None),
        }
    }

    /// The graph and its division.
    pub fn load(&self, data_dir: Option<&Path>) -> Result<(Graph, GraphSplit), Failure> {
        let graph = Graph::load(&self.data.name, self.training.model.joined, data_dir)?;
        let split = graph.split(self.data.split, self.data.split_seed)?;
        Ok((graph, split))
    }
}

/// Whether a data set's name, or the files of a folder, mean a graph.
pub fn is_graph(name: &str) -> bool {
    if GRAPH_NAMES.contains(&name) {
        return true;
    }
    let folder = Path::new(name);
    let holds = |file: &str| folder.join(file).exists();
    let hyperedges = || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("hyperedges-"))
    };
    holds("graph.npz") || holds("edges.txt") || holds("edges.csv") || hyperedges()
}

/// How a graph is divided if nobody says: as in the paper, else as given with the data, else a tenth is labelled.
pub fn default_split(dataset: &GraphDataset) -> GraphSplitRule {
    if LABELLED_SHARES.iter().any(|shares| shares.name == dataset.name) {
        GraphSplitRule::Main
    } else if !dataset.given_splits.is_empty() {
        GraphSplitRule::Given { index: 0 }
    } else {
        GraphSplitRule::Share { labelled: 0.1 }
    }
}

/// Tests a model and writes what came out, and the drawing of a small graph, into its folder.
pub fn evaluate(
    folder: &RunFolder,
    data: &GraphData,
    (graph, split): (&Graph, &GraphSplit),
    classifier: &GraphClassifier,
    threads: usize,
) -> Result<Evaluation, Failure> {
    let (evaluation, prediction) =
        classifier.evaluate(&graph.problem, &split.test, threads).map_err(Failure::other)?;
    let class_names = (0..graph.problem.classes()).map(|class| class.to_string()).collect();
    let evaluation = Evaluation { data: data.name.clone(), class_names, ..evaluation };
    folder.write_json(EVALUATION, &evaluation).map_err(Failure::other)?;
    if let Some(drawing) = Drawing::new(graph, split, &prediction) {
        folder.write_json(DRAWING, &drawing).map_err(Failure::other)?;
    }
    Ok(evaluation)
}
