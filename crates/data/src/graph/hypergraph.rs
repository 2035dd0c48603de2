//! Hypergraphs as text, one hyperedge per line, and their clique expansion.

use crate::csv::fields;
use crate::error::{DataError, Place, Result};

/// Pairs of a clique expansion before duplicates are merged; more than this is a mistake in the file.
const MAX_PAIRS: u64 = 1 << 27;
/// Pairs per node id in the file: 64 are hyperedges of 129 nodes throughout (the largest real set has 5 on average). A short
/// line would otherwise ask for gigabytes, as a clique grows with the square of its nodes.
const MAX_PAIRS_PER_ID: u64 = 64;
/// Pairs that any file may have: a clique of 2900 nodes.
const SMALL_PAIRS: u64 = 1 << 22;
/// Hyperedges that any file may have; beyond, at most 16 per node.
const SMALL_HYPEREDGES: usize = 1 << 20;

/// Hyperedges as lists of node ids from 0, each sorted and without repetitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hypergraph {
    /// Number of nodes.
    pub nodes: usize,
    /// The hyperedges.
    pub hyperedges: Vec<Vec<u32>>,
}

impl Hypergraph {
    /// Reads lines of node ids counted from 1, separated by commas or blanks; empty lines are left out.
    pub fn parse(text: &str, nodes: usize, name: &str) -> Result<Self> {
        Self::parse_from(text, nodes, name, 0)
    }

    /// The same without the first node of each line.
    pub fn parse_without_first(text: &str, nodes: usize, name: &str) -> Result<Self> {
        Self::parse_from(text, nodes, name, 1)
    }

    fn parse_from(text: &str, nodes: usize, name: &str, first: usize) -> Result<Self> {
        let mut hyperedges = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut edge = Vec::new();
            for field in fields(line).skip(first) {
                let id = field.parse::<u32>().ok().filter(|&id| id >= 1 && id as usize <= nodes);
                let Some(id) = id else {
                    let shown: String = field.chars().take(40).collect();
                    let problem = format!("'{shown}' is not a node id from 1 to {nodes}");
                    let remedy = "write one hyperedge per line, ids separated by commas";
                    return Err(DataError::malformed(name, Place::Line(number as u64 + 1), problem, remedy));
                };
                edge.push(id - 1);
            }
            edge.sort_unstable();
            edge.dedup();
            edge.shrink_to_fit();
            if hyperedges.len() >= nodes.saturating_mul(16).max(SMALL_HYPEREDGES) {
                let problem = format!("more than {} hyperedges for {nodes} nodes", hyperedges.len());
                let remedy = "leave out the repeated ones and those of a single node";
                return Err(DataError::malformed(name, Place::Line(number as u64 + 1), problem, remedy));
            }
            hyperedges.push(edge);
        }
        Ok(Hypergraph { nodes, hyperedges })
    }

    /// Number of pairs of a hyperedge and one of its nodes.
    pub fn incidences(&self) -> usize {
        self.hyperedges.iter().map(Vec::len).sum()
    }

    /// The number of nodes that are in some hyperedge.
    pub fn covered_nodes(&self) -> usize {
        let mut covered = vec![false; self.nodes];
        self.hyperedges.iter().flatten().for_each(|&node| covered[node as usize] = true);
        covered.into_iter().filter(|&c| c).count()
    }

    /// Clique expansion: an edge between any two nodes of a hyperedge, once per hyperedge they share.
    pub fn clique_pairs(&self, name: &str) -> Result<Vec<(u32, u32)>> {
        let pairs = |edge: &Vec<u32>| (edge.len() as u64) * (edge.len() as u64).saturating_sub(1) / 2;
        let total: u64 = self.hyperedges.iter().map(pairs).sum();
        let ids: u64 = self.hyperedges.iter().map(|edge| edge.len() as u64).sum();
        let most = (SMALL_PAIRS + ids.saturating_mul(MAX_PAIRS_PER_ID)).min(MAX_PAIRS);
        if total > most {
            let largest = self.hyperedges.iter().map(Vec::len).max().unwrap_or(0);
            let problem = format!(
                "the clique expansion has {total} pairs, {ids} node ids justify {most} (largest hyperedge: {largest} nodes)"
            );
            return Err(DataError::malformed(
                name,
                Place::Whole,
                problem,
                "leave out the hyperedges that join everything",
            ));
        }
        let mut all = Vec::with_capacity(total as usize);
        for edge in &self.hyperedges {
            for (i, &a) in edge.iter().enumerate() {
                all.extend(edge[i + 1..].iter().map(|&b| (a, b)));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cliques_of_a_small_hypergraph() {
        let h = Hypergraph::parse("3, 1,2\n\n2,4\n5\n2,4,2\n", 5, "t").unwrap();
        assert_eq!(h.hyperedges, [vec![0, 1, 2], vec![1, 3], vec![4], vec![1, 3]]);
        assert_eq!(h.clique_pairs("t").unwrap(), [(0, 1), (0, 2), (1, 2), (1, 3), (1, 3)]);
        assert_eq!(h.covered_nodes(), 5);
    }

    #[test]
    fn bad_ids_are_named_by_line() {
        for (text, value) in
            [("1,2\n0,1\n", "'0'"), ("1,2\n1,6\n", "'6'"), ("1,2\n1,x\n", "'x'"), ("1,2\n1,-1\n", "'-1'")]
        {
            let error = Hypergraph::parse(text, 5, "h.txt").unwrap_err().to_string();
            assert!(error.contains("h.txt, line 2") && error.contains(value), "{error}");
        }
    }

    #[test]
    fn a_hyperedge_of_everything_is_refused_before_expansion() {
        let nodes = 40_000;
        let line: Vec<String> = (1..=nodes).map(|i| i.to_string()).collect();
        let h = Hypergraph::parse(&line.join(","), nodes, "h.txt").unwrap();
        assert!(h.clique_pairs("h.txt").is_err());
    }
}
