//! A graph with features and classes, checked.

use std::ops::Range;
use std::sync::Arc;

use subdeq_engine::{Cpu, Graphs, LabelledNodes};

use super::Csr;
use super::order::{renumbered, rows_moved, rows_of_nodes};
use super::{GraphCertificate, GraphFacts, GraphModel, GraphOperator, Selection};
use crate::{Error, Result};

/// A graph, ready to train on; many runs can share one.
///
/// The rows of large graphs are kept in an order in which neighbours lie near each other, since every iteration gathers
/// neighbours' rows. Nodes keep their numbers in everything that is asked or answered.
pub struct GraphProblem<D: Graphs = Cpu<f32>> {
    pub(super) device: Arc<D>,
    /// Matrix and features in the order of the rows.
    pub(super) graph: D::Graph,
    /// In the order of the nodes.
    pub(super) labels: Vec<u32>,
    pub(super) classes: usize,
    /// The row of each node.
    pub(super) rows: Vec<u32>,
    /// Where other ranks have other rows ([`GraphProblem::share`]).
    pub(super) part: Option<Shared>,
}

/// What a rank knows of a graph that is shared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shared {
    /// The rows that are here.
    pub rows: Range<usize>,
    /// The node whose label comes first: 0 where all labels are here.
    pub labels_from: usize,
    /// What is known of the whole matrix.
    pub facts: GraphFacts,
}

impl<D: Graphs> std::fmt::Debug for GraphProblem<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a graph of {} nodes in {} classes", self.labels.len(), self.classes)
    }
}

impl GraphProblem {
    /// Puts a graph together in the machine's memory: the matrix of its propagation (see [`super::normalised_adjacency`] and
    /// [`super::normalised_incidence`]), one row of features and one class per node.
    ///
    /// # Errors
    /// Sizes that do not fit together, entries that are not finite, classes out of range.
    pub fn new(
        operator: impl Into<GraphOperator<f32>>,
        features: Csr<f32>,
        labels: Vec<u32>,
        classes: usize,
    ) -> Result<Self> {
        Self::on(Arc::new(Cpu::new(0)?), operator, features, labels, classes)
    }
}

impl<D: Graphs<Elem = f32>> GraphProblem<D> {
    /// The same on a device.
    ///
    /// # Errors
    /// As for [`GraphProblem::new`].
    pub fn on(
        device: Arc<D>,
        operator: impl Into<GraphOperator<f32>>,
        features: Csr<f32>,
        labels: Vec<u32>,
        classes: usize,
    ) -> Result<Self> {
        let operator = operator.into();
        let nodes = operator.nodes();
        if nodes == 0 {
            return Err(Error::invalid("the graph has no nodes"));
        }
        for (what, found) in [("rows of features", features.rows), ("labels", labels.len())] {
            if found != nodes {
                return Err(Error::invalid(format!(
                    "the graph has {nodes} nodes, but there are {found} {what}"
                )));
            }
        }
        if let Some(node) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(Error::invalid(format!(
                "node {node} has class {}, but there are {classes} classes, numbered from 0",
                labels[node]
            )));
        }
        // Checked before they are put in order, which relies on it.
        operator.check()?;
        features.check()?;
        let rows = rows_of_nodes(&operator);
        let graph = if rows.is_sorted() {
            device.graph(operator, features)?
        } else {
            device.graph(renumbered(&operator, &rows), rows_moved(&features, &rows))?
        };
        Ok(Self { device, graph, labels, classes, rows, part: None })
    }

    /// The row of a node in the matrices of this problem.
    pub(super) fn row(&self, node: u32) -> usize {
        // Nodes of shards are numbered by their rows.
        self.rows.get(node as usize).map_or(node as usize, |&row| row as usize)
    }

    /// Those of some nodes that are here with their classes, on a device, in the order of their rows: losses are added up in this
    /// order, whatever the number of ranks.
    pub(super) fn labelled(&self, device: &D, nodes: &[u32]) -> Result<LabelledNodes<D::Integers>> {
        let here = self.rows_here();
        let labels_from = self.part.as_ref().map_or(0, |part| part.labels_from);
        let placed = nodes.iter().map(|&node| (self.row(node), node)).filter(|(row, _)| here.contains(row));
        let mut labelled: Vec<(usize, u32)> =
            placed.map(|(row, node)| (row, self.labels[node as usize - labels_from])).collect();
        labelled.sort_unstable();
        let (rows, labels): (Vec<u32>, Vec<u32>) =
            labelled.iter().map(|&(row, label)| ((row - here.start) as u32, label)).unzip();
        Ok(LabelledNodes {
            rows: device.integers(&rows)?,
            labels: device.integers(&labels)?,
            count: labelled.len(),
        })
    }

    /// The rows that this process has.
    pub(super) fn rows_here(&self) -> Range<usize> {
        self.part.as_ref().map_or(0..self.nodes(), |part| part.rows.clone())
    }

    /// What is proved about a model's propagation over this graph, for every injection that its network can make.
    #[must_use]
    pub fn certify(&self, model: &GraphModel) -> GraphCertificate {
        match &self.part {
            None => model.certify(self.operator()),
            Some(part) => model.certify_by(&part.facts, model.injection_bound()),
        }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.part.as_ref().map_or(self.labels.len(), |part| part.facts.nodes)
    }

    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The class of each node; of shards, of those that are here.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The matrix of the propagation, in the order in which rows are kept; of a graph that is shared, some rows with numbers of their
    /// own.
    #[must_use]
    pub fn operator(&self) -> &GraphOperator<f32> {
        self.device.operator(&self.graph)
    }

    /// The features, in the order in which rows are kept.
    #[must_use]
    pub fn features(&self) -> &Csr<f32> {
        self.device.features(&self.graph)
    }
}

/// Which nodes are learned from, which decide when to stop, which are counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GraphSplit {
    /// Labelled nodes.
    pub train: Vec<u32>,
    /// Validation nodes.
    pub validation: Vec<u32>,
    /// Test nodes.
    pub test: Vec<u32>,
}

impl GraphSplit {
    /// Refuses empty parts (validation nodes are needed only where they select), nodes that do not exist, and nodes in two parts.
    pub(super) fn check(&self, nodes: usize, selection: Selection) -> Result<()> {
        let mut part_of = vec![None; nodes];
        for (name, part) in [("train", &self.train), ("validation", &self.validation), ("test", &self.test)] {
            let needed = name != "validation" || selection == Selection::BestValidation;
            if part.is_empty() && needed {
                return Err(Error::invalid(format!("the split has no {name} nodes")));
            }
            for &node in part {
                let Some(taken) = part_of.get_mut(node as usize) else {
                    return Err(Error::invalid(format!(
                        "{name} node {node} does not exist: there are {nodes} nodes"
                    )));
                };
                if let Some(other) = taken.replace(name) {
                    return Err(Error::invalid(format!(
                        "node {node} is listed twice: as {other} and as {name} node"
                    )));
                }
            }
        }
        Ok(())
    }
}
