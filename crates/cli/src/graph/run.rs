//! Runs on graphs: their config, and what stands in their folder.

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::graph::{GraphClassifier, GraphConfig, GraphMode, GraphSplit, MANIFEST, load_graph_model};
use subdeq::train::{EVALUATION, Evaluation, RunFolder, VerdictSummary, read_regular_file};
use subdeq_data::graph::{GRAPH_NAMES, GraphDataset, GraphSplitRule, LABELLED_SHARES, is_graph_npz};

use super::{DRAWING, Drawing, Graph};
use crate::failure::Failure;

/// A config of more bytes is not one.
const MAX_CONFIG: u64 = 16 << 20;

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
        Self::read(&folder.join("config.toml"))
    }

    /// The config in a file, if it is one for a graph. Whatever is wrong with another one, whoever reads it as the config of a
    /// run on images will say.
    pub fn read(path: &Path) -> Result<Option<GraphRunConfig>, Failure> {
        let Some(text) =
            read_regular_file(path, MAX_CONFIG).ok().and_then(|bytes| String::from_utf8(bytes).ok())
        else {
            return Ok(None);
        };
        match toml::from_str(&text) {
            Ok(Marked { kind: Some(Kind::Graph) }) => toml::from_str(&text)
                .map(Some)
                .map_err(|why| Failure::other(format!("{}: {why}", path.display()))),
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
    if folder.is_file() {
        return is_graph_npz(folder);
    }
    let holds = |file: &str| folder.join(file).exists();
    let hyperedges = || {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("hyperedges-"))
    };
    holds(MANIFEST) || holds("graph.npz") || holds("edges.txt") || holds("edges.csv") || hyperedges()
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

/// The model of a run on a graph.
pub fn trained(run: &Path) -> Result<GraphClassifier, Failure> {
    let (folder, _) = RunFolder::open_as::<GraphRunConfig>(run).map_err(Failure::other)?;
    let path = folder.model_path();
    if !path.exists() {
        return Err(Failure::other(format!(
            "{} has no model.safetensors yet, which the end of its training writes: go on with `subdeq train --resume --out \
             {0}`",
            run.display()
        )));
    }
    load_graph_model(&path).map(|(classifier, _)| classifier).map_err(Failure::other)
}

/// What is proved about a model's propagation over a graph; none where it solves no equation.
pub fn verdict(classifier: &GraphClassifier, graph: &Graph) -> Result<Option<VerdictSummary>, Failure> {
    match classifier.model.mode {
        GraphMode::Unrolled { .. } => Ok(None),
        GraphMode::Equilibrium { .. } => {
            let certificate = classifier.certify(&graph.problem).map_err(Failure::other)?;
            Ok(Some(VerdictSummary::from(&certificate)))
        }
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
