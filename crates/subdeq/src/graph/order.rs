//! An order of the nodes in which neighbours lie near each other in memory.

use super::{Csr, GraphOperator};

/// Nodes from which on a graph is put into an order of its own: with fewer, the state of a few classes (32 bytes a node)
/// stays in a core's cache whatever the order.
const WORTH_ORDERING: usize = 1 << 15;

/// Which row each node gets. Small graphs keep their order.
pub(super) fn rows_of_nodes(operator: &GraphOperator<f32>) -> Vec<u32> {
    if operator.nodes() < WORTH_ORDERING {
        return (0..operator.nodes() as u32).collect();
    }
    inverse(&match operator {
        GraphOperator::Pairs(matrix) => reverse_cuthill_mckee(matrix, None),
        GraphOperator::Hyperedges { incidence, .. } => {
            reverse_cuthill_mckee(incidence, Some(&incidence.transposed()))
        }
    })
}

/// Which place each number has in an order of all numbers.
fn inverse(order: &[u32]) -> Vec<u32> {
    let mut places = vec![0; order.len()];
    for (place, &number) in order.iter().enumerate() {
        places[number as usize] = place as u32;
    }
    places
}

/// The matrix with its nodes renumbered: entry `(i, j)` becomes `(rows[i], rows[j])`. Hyperedges come in the order of their first
/// nodes.
pub(super) fn renumbered(operator: &GraphOperator<f32>, rows: &[u32]) -> GraphOperator<f32> {
    let mut moved = rows_moved(operator.stored(), rows);
    match operator {
        GraphOperator::Pairs(_) => {
            moved.columns.iter_mut().for_each(|column| *column = rows[*column as usize]);
            GraphOperator::Pairs(moved)
        }
        GraphOperator::Hyperedges { own, .. } => {
            let mut places = vec![u32::MAX; moved.cols];
            let mut met = 0;
            for column in &mut moved.columns {
                let place = &mut places[*column as usize];
                if *place == u32::MAX {
                    *place = met;
                    met += 1;
                }
                *column = *place;
            }
            let own = inverse(rows).into_iter().map(|node| own[node as usize]).collect();
            GraphOperator::Hyperedges { incidence: moved, own }
        }
    }
}

/// The matrix with row `i` as row `rows[i]`.
pub(super) fn rows_moved(matrix: &Csr<f32>, rows: &[u32]) -> Csr<f32> {
    let mut moved = Csr {
        rows: matrix.rows,
        cols: matrix.cols,
        starts: Vec::with_capacity(matrix.rows + 1),
        columns: Vec::with_capacity(matrix.columns.len()),
        values: Vec::with_capacity(matrix.values.len()),
    };
    moved.starts.push(0);
    for node in inverse(rows) {
        let entries = matrix.starts[node as usize]..matrix.starts[node as usize + 1];
        moved.columns.extend_from_slice(&matrix.columns[entries.clone()]);
        moved.values.extend_from_slice(&matrix.values[entries]);
        moved.starts.push(moved.columns.len());
    }
    moved
}

/// The nodes in the order of Cuthill and McKee, reversed: breadth first, from nodes of few neighbours on, neighbours of
/// few neighbours first. Columns of the matrix are nodes, or hyperedges, whose nodes are the rows of `members` then.
fn reverse_cuthill_mckee(matrix: &Csr<f32>, members: Option<&Csr<f32>>) -> Vec<u32> {
    let degree = |node: u32| matrix.starts[node as usize + 1] - matrix.starts[node as usize];
    let mut starts: Vec<u32> = (0..matrix.rows as u32).collect();
    starts.sort_by_key(|&node| degree(node));
    let mut seen = vec![false; matrix.rows];
    // The nodes of a hyperedge are all found when it is met first: once is enough.
    let mut met = vec![false; members.map_or(0, |members| members.rows)];
    let mut order: Vec<u32> = Vec::with_capacity(matrix.rows);
    for start in starts {
        if std::mem::replace(&mut seen[start as usize], true) {
            continue;
        }
        let mut next = order.len();
        order.push(start);
        while let Some(&node) = order.get(next) {
            let found = order.len();
            let entries = matrix.starts[node as usize]..matrix.starts[node as usize + 1];
            let mut find = |neighbour: u32| {
                if !std::mem::replace(&mut seen[neighbour as usize], true) {
                    order.push(neighbour);
                }
            };
            for &column in &matrix.columns[entries] {
                let Some(members) = members else {
                    find(column);
                    continue;
                };
                if !std::mem::replace(&mut met[column as usize], true) {
                    let entries = members.starts[column as usize]..members.starts[column as usize + 1];
                    members.columns[entries].iter().for_each(|&node| find(node));
                }
            }
            order[found..].sort_by_key(|&node| degree(node));
            next += 1;
        }
    }
    order.reverse();
    order
}

#[cfg(test)]
mod tests {
    use super::{Csr, inverse, renumbered, reverse_cuthill_mckee, rows_moved};
    use crate::graph::normalised_adjacency;

    fn entry(matrix: &Csr<f32>, row: usize, column: u32) -> Option<f32> {
        let mut entries = matrix.starts[row]..matrix.starts[row + 1];
        entries.find(|&k| matrix.columns[k] == column).map(|k| matrix.values[k])
    }

    /// A path whose nodes are numbered at random, and a node that nothing is joined to.
    #[test]
    fn neighbours_of_a_path_become_neighbours_in_memory() {
        let path = [7, 2, 9, 4, 0, 8, 1, 6, 3];
        let edges: Vec<(u32, u32)> = path.windows(2).map(|pair| (pair[0], pair[1])).collect();
        let matrix = normalised_adjacency(10, &edges).unwrap();
        let rows = inverse(&reverse_cuthill_mckee(&matrix, None));
        let mut sorted = rows.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        for (i, j) in edges {
            assert_eq!(rows[i as usize].abs_diff(rows[j as usize]), 1, "{i}, {j}: {rows:?}");
        }
    }

    #[test]
    fn renumbering_moves_every_entry() {
        let matrix = normalised_adjacency(4, &[(0, 1), (1, 2)]).unwrap();
        let rows = [2, 0, 3, 1];
        let both = renumbered(&matrix.clone().into(), &rows).stored().clone();
        let only_rows = rows_moved(&matrix, &rows);
        for i in 0..4u32 {
            for j in 0..4u32 {
                let (row, column) = (rows[i as usize] as usize, rows[j as usize]);
                assert_eq!(entry(&both, row, column), entry(&matrix, i as usize, j));
                assert_eq!(entry(&only_rows, row, j), entry(&matrix, i as usize, j));
            }
        }
    }
}
