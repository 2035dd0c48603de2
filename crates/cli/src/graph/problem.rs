//! A named graph, read and checked.

use std::path::Path;

use subdeq::graph::{Csr, GraphOperator, GraphProblem, GraphSplit, Joined, MANIFEST, normalised_incidence};
use subdeq_data::graph::{GraphDataset, GraphSplitRule};

use crate::failure::Failure;

/// A graph as it was read, and as the library takes it.
pub struct Graph {
    /// What was read.
    pub dataset: GraphDataset,
    /// What is trained on.
    pub problem: GraphProblem,
}

impl Graph {
    /// Reads a graph by its name, or from a folder, for models whose nodes are joined like that.
    pub fn load(name: &str, joined: Joined, data_dir: Option<&Path>) -> Result<Graph, Failure> {
        if Path::new(name).join(MANIFEST).exists() {
            return Err(Failure::other(format!(
                "{name} holds the shards of a graph, which `subdeq train` reads: give the graph that they were made of"
            )));
        }
        let dataset = GraphDataset::load(name, data_dir).map_err(Failure::other)?;
        let operator = match joined {
            Joined::Pairs => GraphOperator::Pairs(csr(dataset.propagation().map_err(Failure::other)?)),
            Joined::Hyperedges => match &dataset.hypergraph {
                Some(hypergraph) => normalised_incidence(hypergraph.nodes, &hypergraph.hyperedges),
                // An edge is a hyperedge of two nodes.
                None => normalised_incidence(dataset.nodes(), &pairs(&dataset)),
            }
            .map_err(Failure::other)?,
        };
        let features = csr(dataset.features.clone());
        let problem = GraphProblem::new(operator, features, dataset.labels.clone(), dataset.classes)
            .map_err(Failure::other)?;
        Ok(Graph { dataset, problem })
    }

    /// Which nodes are learned from, decide when to stop, and are counted.
    pub fn split(&self, rule: GraphSplitRule, seed: u64) -> Result<GraphSplit, Failure> {
        let split = self.dataset.split(rule, seed).map_err(Failure::other)?;
        Ok(GraphSplit { train: split.train, validation: split.validation, test: split.test })
    }
}

/// The edges of a graph, each once.
fn pairs(dataset: &GraphDataset) -> Vec<Vec<u32>> {
    let row = |i: u32| {
        dataset.adjacency.row(i as usize).0.iter().filter(move |&&j| i < j).map(move |&j| vec![i, j])
    };
    (0..dataset.nodes() as u32).flat_map(row).collect()
}

/// The library's form of a sparse matrix.
fn csr(matrix: subdeq_data::graph::Csr) -> Csr<f32> {
    let (rows, cols) = (matrix.rows(), matrix.columns());
    let (starts, columns, values) = matrix.into_parts();
    Csr { rows, cols, starts, columns, values }
}
