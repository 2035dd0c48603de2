//! Undirected graphs as symmetric adjacency matrices, and their normalisation.

use serde::{Deserialize, Serialize};

use super::csr::Csr;
use crate::error::{DataError, Result};

/// What an edge that is given several times (or a pair that shares several hyperedges) weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Multiplicity {
    /// 1, however often it is given. The published code does this.
    Binary,
    /// As much as it is often given.
    Counted,
}

/// What was found while an adjacency matrix was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EdgeReport {
    /// Different edges between two different nodes.
    pub edges: usize,
    /// Edges from a node to itself, left out: every node gets one self-loop when the matrix is normalised.
    pub self_loops: usize,
    /// Repetitions of an edge (in either direction), merged into it.
    pub duplicates: usize,
    /// Nodes without any edge; normalised, they keep their self-loop.
    pub isolated: usize,
}

/// The symmetric adjacency matrix of undirected edges, without self-loops, each row sorted.
///
/// Fails on a node id that is not below `nodes`, and on a graph without nodes.
pub fn adjacency(
    name: &str,
    nodes: usize,
    edges: &[(u32, u32)],
    multiplicity: Multiplicity,
) -> Result<(Csr, EdgeReport)> {
    if nodes == 0 {
        return Err(DataError::request(format!("{name}: the graph has no nodes"), "give at least one node"));
    }
    let mut report = EdgeReport::default();
    let mut row_ptr = vec![0usize; nodes + 1];
    for (i, &(a, b)) in edges.iter().enumerate() {
        if a.max(b) as usize >= nodes {
            let problem = format!("{name}: edge {i} ({a}, {b}) has a node id that is not below {nodes}");
            return Err(DataError::request(problem, "ids count from 0; check ids and number of nodes"));
        }
        if a == b {
            report.self_loops += 1;
        } else {
            row_ptr[a as usize + 1] += 1;
            row_ptr[b as usize + 1] += 1;
        }
    }
    (0..nodes).for_each(|i| row_ptr[i + 1] += row_ptr[i]);
    let mut next = row_ptr.clone();
    let mut columns = vec![0u32; row_ptr[nodes]];
    for &(a, b) in edges.iter().filter(|(a, b)| a != b) {
        for (from, to) in [(a, b), (b, a)] {
            columns[next[from as usize]] = to;
            next[from as usize] += 1;
        }
    }
    let (merged_ptr, merged, values) = merge_rows(&row_ptr, columns, multiplicity);
    report.edges = merged.len() / 2;
    report.duplicates = (row_ptr[nodes] - merged.len()) / 2;
    report.isolated = merged_ptr.windows(2).filter(|pair| pair[0] == pair[1]).count();
    Ok((Csr::trusted(nodes, merged_ptr, merged, values), report))
}

/// Sorts each row and merges equal columns, in place.
fn merge_rows(
    row_ptr: &[usize],
    mut columns: Vec<u32>,
    multiplicity: Multiplicity,
) -> (Vec<usize>, Vec<u32>, Vec<f32>) {
    let mut merged_ptr = vec![0];
    let mut values: Vec<f32> = Vec::with_capacity(columns.len());
    let mut written = 0;
    for pair in row_ptr.windows(2) {
        columns[pair[0]..pair[1]].sort_unstable();
        let start = written;
        for at in pair[0]..pair[1] {
            if written > start && columns[written - 1] == columns[at] {
                if multiplicity == Multiplicity::Counted {
                    values[written - 1] += 1.0;
                }
                continue;
            }
            columns[written] = columns[at];
            values.push(1.0);
            written += 1;
        }
        merged_ptr.push(written);
    }
    columns.truncate(written);
    (merged_ptr, columns, values)
}

/// D^-1/2 (A + I) D^-1/2, where D holds the row sums of A + I: the symmetric normalised adjacency with self-loops.
///
/// `adjacency` must be square and symmetric with non-negative entries, as [`adjacency`] makes it; a diagonal entry is
/// increased by 1. An isolated node gets the single entry 1 on the diagonal.
pub fn normalised(adjacency: &Csr) -> Result<Csr> {
    let nodes = adjacency.rows();
    if adjacency.columns() != nodes {
        let problem = format!("an adjacency matrix of {nodes} x {}", adjacency.columns());
        return Err(DataError::request(problem, "it must be square"));
    }
    let mut scale = Vec::with_capacity(nodes);
    for i in 0..nodes {
        let degree: f64 = adjacency.row(i).1.iter().map(|&v| f64::from(v)).sum::<f64>() + 1.0;
        if degree.is_nan() || degree <= 0.0 {
            return Err(DataError::request(
                format!("node {i} has the degree {degree}"),
                "weights must not be negative",
            ));
        }
        scale.push(degree.sqrt().recip());
    }
    let mut row_ptr = Vec::with_capacity(nodes + 1);
    row_ptr.push(0);
    let mut columns = Vec::with_capacity(adjacency.nnz() + nodes);
    let mut values = Vec::with_capacity(adjacency.nnz() + nodes);
    for i in 0..nodes {
        let (row_columns, row_values) = adjacency.row(i);
        let weight = |j: usize, v: f64| (v * scale[i] * scale[j]) as f32;
        let mut diagonal = Some(1.0);
        for (&j, &v) in row_columns.iter().zip(row_values) {
            let own = if j as usize >= i { diagonal.take() } else { None };
            if j as usize == i {
                // Present already: one entry for both.
                columns.push(j);
                values.push(weight(i, f64::from(v) + own.unwrap_or(0.0)));
                continue;
            }
            if let Some(one) = own {
                columns.push(i as u32);
                values.push(weight(i, one));
            }
            columns.push(j);
            values.push(weight(j as usize, f64::from(v)));
        }
        if let Some(one) = diagonal {
            columns.push(i as u32);
            values.push(weight(i, one));
        }
        row_ptr.push(columns.len());
    }
    Ok(Csr::trusted(nodes, row_ptr, columns, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn duplicates_self_loops_and_isolated_nodes() {
        let edges = [(0, 1), (1, 0), (2, 2), (1, 2), (0, 1)];
        let (binary, report) = adjacency("t", 4, &edges, Multiplicity::Binary).unwrap();
        assert_eq!(report, EdgeReport { edges: 2, self_loops: 1, duplicates: 2, isolated: 1 });
        assert_eq!(binary.row(1), (&[0, 2][..], &[1.0, 1.0][..]));
        let (counted, _) = adjacency("t", 4, &edges, Multiplicity::Counted).unwrap();
        assert_eq!(counted.row(1), (&[0, 2][..], &[3.0, 1.0][..]));
        let normal = normalised(&binary).unwrap();
        assert_eq!(normal.row(3), (&[3][..], &[1.0][..]));
        let (columns, values) = normal.row(0);
        assert_eq!(columns, [0, 1]);
        assert!((values[0] - 0.5).abs() < 1e-6 && (values[1] - 1.0 / 6f32.sqrt()).abs() < 1e-6);
    }

    #[test]
    fn impossible_graphs_are_errors() {
        assert!(adjacency("t", 0, &[], Multiplicity::Binary).is_err());
        let error = adjacency("g", 3, &[(0, 1), (1, 3)], Multiplicity::Binary).unwrap_err().to_string();
        assert!(error.contains("edge 1 (1, 3)") && error.contains("not below 3"), "{error}");
        assert_eq!(adjacency("t", 3, &[], Multiplicity::Binary).unwrap().1.isolated, 3);
    }

    proptest! {
        /// Symmetric, spectral radius 1: A d^(1/2) = d^(1/2) for D^-1/2 (A+I) D^-1/2.
        #[test]
        fn normalised_has_the_square_roots_of_the_degrees_as_eigenvector(
            nodes in 1usize..30,
            pairs in prop::collection::vec((0u32..30, 0u32..30), 0..120),
            counted in any::<bool>(),
        ) {
            let edges: Vec<_> = pairs.into_iter().map(|(a, b)| (a % nodes as u32, b % nodes as u32)).collect();
            let multiplicity = if counted { Multiplicity::Counted } else { Multiplicity::Binary };
            let (a, _) = adjacency("t", nodes, &edges, multiplicity).unwrap();
            let n = normalised(&a).unwrap();
            prop_assert_eq!(&n, &n.transpose());
            let root: Vec<f64> = (0..nodes).map(|i| (1.0 + a.row(i).1.iter().map(|&v| f64::from(v)).sum::<f64>()).sqrt()).collect();
            for i in 0..nodes {
                let (columns, values) = n.row(i);
                let product: f64 = columns.iter().zip(values).map(|(&j, &v)| f64::from(v) * root[j as usize]).sum();
                prop_assert!((product - root[i]).abs() < 1e-5 * root[i]);
            }
        }
    }
}
