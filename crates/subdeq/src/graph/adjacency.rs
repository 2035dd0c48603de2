//! From a list of edges to the matrix of a propagation.

use super::Csr;
use crate::{Error, Result};

/// `D^-1/2 (A + I) D^-1/2` of an undirected graph: each pair joined once however often it is listed, listed self-loops
/// dropped, one self-loop added to each node. Its eigenvalues lie in `[-1, 1]`.
///
/// ```
/// use subdeq::graph::normalised_adjacency;
/// let a = normalised_adjacency(3, &[(0, 1), (1, 0), (2, 2)])?;
/// assert_eq!((a.columns, a.values), (vec![0, 1, 0, 1, 2], vec![0.5, 0.5, 0.5, 0.5, 1.0]));
/// assert!(normalised_adjacency(3, &[(0, 3)]).is_err());
/// # Ok::<(), subdeq::Error>(())
/// ```
///
/// # Errors
/// An edge whose node does not exist.
pub fn normalised_adjacency(nodes: usize, edges: &[(u32, u32)]) -> Result<Csr<f32>> {
    let mut entries = Vec::with_capacity(2 * edges.len() + nodes);
    for (number, &(i, j)) in edges.iter().enumerate() {
        let largest = i.max(j);
        if largest as usize >= nodes {
            return Err(Error::invalid(format!(
                "edge {number} (counting from 0) joins nodes {i} and {j}, but there are {nodes} nodes, 0 to {}: give the \
                 right number of nodes, or number them from 0",
                nodes as i64 - 1
            )));
        }
        if i != j {
            entries.extend([(i, j), (j, i)]);
        }
    }
    entries.extend((0..nodes as u32).map(|i| (i, i)));
    entries.sort_unstable();
    entries.dedup();
    let mut starts = vec![0; nodes + 1];
    entries.iter().for_each(|&(i, _)| starts[i as usize + 1] += 1);
    for i in 0..nodes {
        starts[i + 1] += starts[i];
    }
    let root = |i: u32| ((starts[i as usize + 1] - starts[i as usize]) as f64).sqrt();
    let values = entries.iter().map(|&(i, j)| (1.0 / (root(i) * root(j))) as f32).collect();
    let columns = entries.iter().map(|&(_, j)| j).collect();
    Ok(Csr { rows: nodes, cols: nodes, starts, columns, values })
}
