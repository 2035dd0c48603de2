//! A graph that several ranks share, each with a contiguous block of the rows.

use std::ops::Range;
use std::sync::Arc;

use subdeq_engine::Cpu;
use subdeq_engine::cpu::graph::{Company, CpuGraph, Division};
use subdeq_ranks::Ranks;

use super::company::RankCompany;
use super::problem::Shared;
use super::{Csr, GraphFacts, GraphOperator, GraphProblem};
use crate::{Error, Result};

impl GraphProblem {
    /// This rank's part of a graph that every rank has read: its rows of matrix and features. Training on it gives the bits of one
    /// process, whatever the number of ranks; [`super::ShardedGraph`] is for graphs that no rank can hold.
    ///
    /// # Errors
    /// Hyperedges, a matrix that is not symmetric, more ranks than nodes, or ranks that have read different graphs.
    pub fn share(&self, ranks: &Ranks) -> Result<GraphProblem> {
        let GraphOperator::Pairs(matrix) = self.operator() else {
            return Err(Error::invalid(
                "ranks cannot share a graph of hyperedges yet: start one process, or choose a model over pairs of nodes",
            ));
        };
        check_ranks(ranks, self.nodes())?;
        if !self.graph.is_symmetric() {
            return Err(Error::invalid(
                "ranks share symmetric matrices only, and the weights of this graph differ between its two directions: start one \
                 process",
            ));
        }
        agree(ranks, matrix, self)?;
        let (features, facts) = (self.features(), GraphFacts::of(self.operator()));
        let division = Division::new(matrix, features);
        let rows = division.rows_of(ranks.rank(), ranks.size());
        let part = (rows_of(matrix, &rows), rows_of(features, &rows));
        let nodes = Nodes {
            labels: self.labels.clone(),
            classes: self.classes,
            rows: self.rows.clone(),
            labels_from: 0,
        };
        GraphProblem::of_part(ranks, &division, part, facts, nodes)
    }

    /// A part that is here already.
    pub(super) fn of_part(
        ranks: &Ranks,
        division: &Division,
        (matrix, features): (Csr<f32>, Csr<f32>),
        facts: GraphFacts,
        Nodes { labels, labels_from, classes, rows }: Nodes,
    ) -> Result<GraphProblem> {
        let device = Arc::new(Cpu::<f32>::new(1)?);
        let hint = "start it on machines of one kind, or set SUBDEQ_ISA to what all of them have";
        ranks.agree("what they compute with", device.isa().name().as_bytes(), hint)?;
        let company: Arc<dyn Company<f32>> = Arc::new(RankCompany::new(ranks));
        let graph = CpuGraph::part(&company, division, matrix, features)?;
        let here = division.rows_of(ranks.rank(), ranks.size());
        Ok(GraphProblem {
            device,
            graph,
            labels,
            classes,
            rows,
            part: Some(Shared { rows: here, labels_from, facts }),
        })
    }
}

/// What is known of the nodes.
pub(super) struct Nodes {
    pub labels: Vec<u32>,
    /// The node whose label comes first.
    pub labels_from: usize,
    pub classes: usize,
    /// The row of each node; none where nodes are numbered by their rows.
    pub rows: Vec<u32>,
}

/// Refuses ranks that would have nothing to do however a graph is cut.
pub(super) fn check_ranks(ranks: &Ranks, nodes: usize) -> Result<()> {
    if ranks.size() > nodes {
        return Err(Error::invalid(format!(
            "{} ranks cannot share a graph of {nodes} nodes: start at most {nodes}",
            ranks.size()
        )));
    }
    Ok(())
}

/// Refuses ranks that have read different graphs.
fn agree(ranks: &Ranks, matrix: &Csr<f32>, problem: &GraphProblem) -> Result<()> {
    let features = problem.features();
    let mut bytes = Vec::new();
    for matrix in [matrix, features] {
        matrix.starts.iter().for_each(|start| bytes.extend(start.to_le_bytes()));
        matrix.columns.iter().for_each(|column| bytes.extend(column.to_le_bytes()));
        matrix.values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
    }
    problem.labels.iter().for_each(|label| bytes.extend(label.to_le_bytes()));
    Ok(ranks.agree("the graph", &bytes, "give every machine the same files")?)
}

pub(super) fn rows_of(matrix: &Csr<f32>, rows: &Range<usize>) -> Csr<f32> {
    let entries = matrix.starts[rows.start]..matrix.starts[rows.end];
    Csr {
        rows: rows.len(),
        cols: matrix.cols,
        starts: matrix.starts[rows.start..=rows.end].iter().map(|start| start - entries.start).collect(),
        columns: matrix.columns[entries.clone()].to_vec(),
        values: matrix.values[entries].to_vec(),
    }
}
