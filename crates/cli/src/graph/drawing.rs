//! `graph.json`: a small graph with what a model says about each node, ready to be drawn.

use serde::{Deserialize, Serialize};
use subdeq::graph::{GraphSplit, Prediction};

use super::Graph;
use super::layout::springs;

/// Name of the file in a run's folder.
pub const DRAWING: &str = "graph.json";
/// Larger graphs are not drawn: nobody could see anything.
const MOST_NODES: usize = 400;

/// The file's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Drawing {
    /// Number of classes.
    pub classes: usize,
    /// All nodes.
    pub nodes: Vec<DrawnNode>,
    /// Pairs of node numbers, each once.
    pub edges: Vec<(u32, u32)>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnNode {
    /// Place in the unit square.
    pub x: f64,
    /// Place in the unit square.
    pub y: f64,
    /// The true class.
    pub label: u32,
    /// The class that the model gives.
    pub prediction: u32,
    /// The probability that it gives it.
    pub probability: f64,
    /// `train`, `validation`, `test` or `none`.
    pub part: String,
}

impl Drawing {
    /// The drawing, if the graph is small enough for one.
    pub fn new(graph: &Graph, split: &GraphSplit, prediction: &Prediction) -> Option<Drawing> {
        let nodes = graph.problem.nodes();
        if nodes > MOST_NODES {
            return None;
        }
        let edges: Vec<(u32, u32)> = (0..nodes as u32)
            .flat_map(|i| {
                let neighbours = graph.dataset.adjacency.row(i as usize).0.iter();
                neighbours.filter(move |&&j| i < j).map(move |&j| (i, j))
            })
            .collect();
        let mut parts = vec!["none"; nodes];
        for (name, part) in
            [("train", &split.train), ("validation", &split.validation), ("test", &split.test)]
        {
            part.iter().for_each(|&node| parts[node as usize] = name);
        }
        let drawn = springs(nodes, &edges).into_iter().enumerate().map(|(node, [x, y])| DrawnNode {
            x,
            y,
            label: graph.problem.labels()[node],
            prediction: prediction.classes[node],
            probability: prediction.probability(node),
            part: parts[node].to_owned(),
        });
        Some(Drawing { classes: graph.problem.classes(), nodes: drawn.collect(), edges })
    }
}
