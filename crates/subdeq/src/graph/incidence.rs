//! From hyperedges to the matrix of a propagation.

use subdeq_engine::GraphOperator;

use super::Csr;
use crate::{Error, Result};

/// `D^-1/2 (H E^-1 H' + I) D^-1/2` of hyperedges: each gives its nodes their mean, each node keeps one part of itself, and `D`
/// has the numbers of parts, so that square roots of those are an eigenvector to the eigenvalue 1. With all entries rounded
/// downwards, the norm of what is stored is at most 1.
///
/// A node that is listed twice in a hyperedge is in it once; an empty hyperedge passes nothing; one of a single node gives it
/// itself.
///
/// ```
/// use subdeq::graph::{GraphOperator, normalised_incidence};
/// let a = normalised_incidence(3, &[vec![0, 1, 0], vec![], vec![1]])?;
/// let GraphOperator::Hyperedges { incidence, own } = a else { panic!() };
/// assert_eq!((incidence.cols, incidence.columns), (3, vec![0, 0, 2]));
/// assert!(own[2] == 1.0 && own[0] <= 0.5 && own[0] > 0.499_999);
/// assert!(normalised_incidence(3, &[vec![3]]).is_err());
/// # Ok::<(), subdeq::Error>(())
/// ```
///
/// # Errors
/// A hyperedge with a node that does not exist.
pub fn normalised_incidence(nodes: usize, hyperedges: &[Vec<u32>]) -> Result<GraphOperator<f32>> {
    let mut sizes = Vec::with_capacity(hyperedges.len());
    let mut degrees = vec![0usize; nodes];
    let mut members = Vec::new();
    let distinct = |hyperedge: &[u32], members: &mut Vec<u32>| {
        members.clear();
        members.extend_from_slice(hyperedge);
        members.sort_unstable();
        members.dedup();
    };
    for (number, hyperedge) in hyperedges.iter().enumerate() {
        distinct(hyperedge, &mut members);
        if let Some(&node) = members.last().filter(|&&node| node as usize >= nodes) {
            return Err(Error::invalid(format!(
                "hyperedge {number} (counting from 0) has node {node}, but there are {nodes} nodes, 0 to {}: give the right \
                 number of nodes, or number them from 0",
                nodes as i64 - 1
            )));
        }
        members.iter().for_each(|&node| degrees[node as usize] += 1);
        sizes.push(members.len());
    }
    let parts = |node: usize| degrees[node] as f64 + 1.0;
    let mut starts = vec![0; nodes + 1];
    (0..nodes).for_each(|node| starts[node + 1] = starts[node] + degrees[node]);
    let mut next = starts.clone();
    let (mut columns, mut values) = (vec![0; starts[nodes]], vec![0.0; starts[nodes]]);
    for (number, hyperedge) in hyperedges.iter().enumerate() {
        distinct(hyperedge, &mut members);
        for &node in &members {
            let place = &mut next[node as usize];
            columns[*place] = number as u32;
            values[*place] = rounded_down((parts(node as usize) * sizes[number] as f64).sqrt().recip());
            *place += 1;
        }
    }
    let own = (0..nodes).map(|node| rounded_down(parts(node).recip())).collect();
    let incidence = Csr { rows: nodes, cols: hyperedges.len(), starts, columns, values };
    Ok(GraphOperator::Hyperedges { incidence, own })
}

/// The largest number of single precision that is certainly not above the exact value of which `x` is correct to a few units
/// of the last place; 1, which is exact, stays.
fn rounded_down(x: f64) -> f32 {
    let nearest = x as f32;
    let certain = x == 1.0 || f64::from(nearest) <= x * (1.0 - 4.0 * f64::EPSILON);
    if certain { nearest } else { nearest.next_down() }
}
