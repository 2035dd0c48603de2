//! Where the graph of a training comes from: read whole by every rank, or in shards, of which each rank reads its own.

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::Ranks;
use subdeq::graph::{
    GraphClassifier, GraphProblem, GraphSplit, Joined, MANIFEST, ShardManifest, ShardedGraph,
};
use subdeq::train::{EVALUATION, Evaluation, RunFolder};
use subdeq_data::graph::GraphSplitRule;

use crate::failure::Failure;
use crate::graph::{self, Graph, GraphData};

/// A graph to train on.
#[allow(clippy::large_enum_variant)] // one of them exists per training
pub enum Source {
    /// All of it is here; of several ranks, each trains on its part.
    Whole { graph: Box<Graph>, part: Option<GraphProblem> },
    /// This rank's rows are here.
    Shards { folder: String, manifest: Box<ShardManifest>, problem: GraphProblem, split: GraphSplit },
}

/// How the nodes of shards were divided.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SplitOfShards {
    /// The rule.
    pub rule: GraphSplitRule,
    /// Its seed.
    pub seed: u64,
}

impl Source {
    /// Reads what this rank needs of a graph.
    pub fn load(
        name: &str,
        joined: Joined,
        ranks: &Ranks,
        data_dir: Option<&Path>,
    ) -> Result<Source, Failure> {
        if Path::new(name).join(MANIFEST).exists() {
            if joined == Joined::Hyperedges {
                return Err(Failure::usage(format!(
                    "{name} holds shards of a graph of pairs: choose a model over pairs of nodes"
                )));
            }
            let sharded = ShardedGraph::open(Path::new(name)).map_err(Failure::other)?;
            let (problem, split) = sharded.load(ranks).map_err(Failure::other)?;
            let (folder, manifest) = (name.to_owned(), Box::new(sharded.manifest().clone()));
            return Ok(Source::Shards { folder, manifest, problem, split });
        }
        let graph = Graph::load(name, joined, data_dir)?;
        let part =
            (ranks.size() > 1).then(|| graph.problem.share(ranks)).transpose().map_err(Failure::other)?;
        Ok(Source::Whole { graph: Box::new(graph), part })
    }

    /// What this rank trains on.
    pub fn problem(&self) -> &GraphProblem {
        match self {
            Source::Whole { graph, part } => part.as_ref().unwrap_or(&graph.problem),
            Source::Shards { problem, .. } => problem,
        }
    }

    /// The name that a config keeps.
    pub fn name(&self) -> &str {
        match self {
            Source::Whole { graph, .. } => &graph.dataset.name,
            Source::Shards { folder, .. } => folder,
        }
    }

    /// Number of edges.
    fn edges(&self) -> usize {
        match self {
            Source::Whole { graph, .. } => graph.dataset.report.edges,
            // Two entries each, beside one of every node for itself.
            Source::Shards { manifest, .. } => (manifest.entries - manifest.facts.nodes) / 2,
        }
    }

    /// How the nodes are divided if nothing else is asked for, and by which seed.
    pub fn division(
        &self,
        asked: Option<GraphSplitRule>,
        seed: Option<u64>,
        usual: u64,
    ) -> Result<(GraphSplitRule, u64), Failure> {
        match self {
            Source::Whole { graph, .. } => {
                Ok((asked.unwrap_or_else(|| graph::default_split(&graph.dataset)), seed.unwrap_or(usual)))
            }
            Source::Shards { folder, manifest, .. } => {
                if asked.is_some() || seed.is_some() {
                    return Err(Failure::usage(format!(
                        "the nodes of {folder} were divided when the shards were made: give --labelled, --given-split and \
                         --split-seed to `subdeq data shard`"
                    )));
                }
                let SplitOfShards { rule, seed } = serde_json::from_value(manifest.split_rule.clone())
                    .map_err(|why| Failure::other(format!("{folder}: {why}")))?;
                Ok((rule, seed))
            }
        }
    }

    /// Which nodes are learned from, select and test.
    pub fn split(&self, data: &GraphData) -> Result<GraphSplit, Failure> {
        match self {
            Source::Whole { graph, .. } => graph.split(data.split, data.split_seed),
            Source::Shards { split, .. } => Ok(split.clone()),
        }
    }

    /// The first rank's evaluation of a trained model, written to the run's folder; none on the others.
    pub fn evaluate(
        &self,
        ranks: &Ranks,
        folder: Option<&RunFolder>,
        (data, split): (&GraphData, &GraphSplit),
        classifier: &GraphClassifier,
        threads: usize,
    ) -> Result<Option<Evaluation>, Failure> {
        match (self, folder) {
            (Source::Whole { graph, .. }, Some(folder)) => {
                graph::evaluate(folder, data, (graph, split), classifier, threads).map(Some)
            }
            (Source::Whole { .. }, None) => Ok(None),
            (Source::Shards { problem, .. }, folder) => {
                let found =
                    classifier.evaluate_shared(ranks, problem, split, threads).map_err(Failure::other)?;
                let class_names = (0..problem.classes()).map(|class| class.to_string()).collect();
                let evaluation = Evaluation { data: data.name.clone(), class_names, ..found };
                let Some(folder) = folder else { return Ok(None) };
                folder.write_json(EVALUATION, &evaluation).map_err(Failure::other)?;
                Ok(Some(evaluation))
            }
        }
    }

    /// Its sizes, for people.
    pub fn in_words(&self) -> String {
        let problem = self.problem();
        format!(
            "{} nodes, {} edges, {} features, {} classes",
            problem.nodes(),
            self.edges(),
            problem.features().cols,
            problem.classes()
        )
    }
}
