//! Random graphs of any size: the stochastic block model, generated straight into normalised CSR.
//!
//! Each row's neighbours with a larger id come from a generator of its own, by geometric jumps, so that the same edges
//! can be produced twice: once to count degrees, once to fill the matrix. Rows are visited in order, which leaves every
//! row sorted without sorting. Memory: the matrix and two numbers per node.

use rand_chacha::ChaCha8Rng;

use super::csr::Csr;
use crate::error::{DataError, Result};
use crate::random::{generator, unit};

/// Nodes in equal blocks of consecutive ids; edges appear independently, more often within a block.
///
/// ```
/// use subdeq_data::graph::BlockModel;
/// let model = BlockModel { nodes: 1000, blocks: 4, degree_within: 8.0, degree_between: 2.0, seed: 1 };
/// let (matrix, labels) = model.generate().unwrap();
/// assert_eq!((matrix.rows(), labels[0], labels[999]), (1000, 0, 3));
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BlockModel {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of blocks; 1 gives the uniform random graph.
    pub blocks: u32,
    /// Expected number of neighbours in the own block.
    pub degree_within: f64,
    /// Expected number of neighbours in other blocks.
    pub degree_between: f64,
    /// The seed.
    pub seed: u64,
}

impl BlockModel {
    /// The uniform random graph with about `edges` edges.
    pub fn uniform(nodes: u32, edges: u64, seed: u64) -> Self {
        let degree_within = 2.0 * edges as f64 / f64::from(nodes.max(1));
        BlockModel { nodes, blocks: 1, degree_within, degree_between: 0.0, seed }
    }

    /// The symmetric normalised adjacency with self-loops, and each node's block.
    pub fn generate(&self) -> Result<(Csr, Vec<u32>)> {
        let sampler = Sampler::new(self)?;
        let nodes = self.nodes as usize;
        // Four lists of one number per node; asked for at once, so that too many nodes are a sentence and not an end.
        let no_room = |_| {
            let problem = format!("a graph of {nodes} nodes does not fit into memory");
            DataError::request(problem, "ask for fewer nodes")
        };
        let (mut degree, mut row_ptr, mut next) = (Vec::new(), Vec::new(), Vec::new());
        degree.try_reserve_exact(nodes).map_err(no_room)?;
        row_ptr.try_reserve_exact(nodes + 1).map_err(no_room)?;
        next.try_reserve_exact(nodes).map_err(no_room)?;
        // Every node starts with its self-loop.
        degree.resize(nodes, 1u32);
        for i in 0..self.nodes {
            sampler.larger_neighbours(i, |j| {
                degree[i as usize] += 1;
                degree[j as usize] += 1;
            });
        }
        row_ptr.push(0usize);
        let mut entries = 0;
        for &d in &degree {
            entries += d as usize;
            row_ptr.push(entries);
        }
        let too_large = |_| {
            let problem = format!("a graph of {entries} entries does not fit into memory");
            DataError::request(problem, "ask for fewer nodes or edges")
        };
        let (mut columns, mut values) = (Vec::new(), Vec::new());
        columns.try_reserve_exact(entries).map_err(too_large)?;
        values.try_reserve_exact(entries).map_err(too_large)?;
        columns.resize(entries, 0);
        next.extend_from_slice(&row_ptr[..nodes]);
        for i in 0..self.nodes {
            let mut own = next[i as usize];
            columns[own] = i;
            own += 1;
            sampler.larger_neighbours(i, |j| {
                columns[own] = j;
                own += 1;
                columns[next[j as usize]] = i;
                next[j as usize] += 1;
            });
        }
        let scale: Vec<f32> = degree.iter().map(|&d| f64::from(d).sqrt().recip() as f32).collect();
        for (i, pair) in row_ptr.windows(2).enumerate() {
            values.extend(columns[pair[0]..pair[1]].iter().map(|&j| scale[i] * scale[j as usize]));
        }
        let labels = (0..self.nodes).map(|i| sampler.block(i)).collect();
        Ok((Csr::trusted(nodes, row_ptr, columns, values), labels))
    }
}

struct Sampler {
    nodes: u64,
    block_size: u64,
    /// 1 / ln(1 - p), for jumps within the block and outside; `None`: no edges.
    within: Option<f64>,
    between: Option<f64>,
    seed: u64,
}

impl Sampler {
    fn new(model: &BlockModel) -> Result<Self> {
        let nodes = u64::from(model.nodes);
        if nodes == 0 || model.blocks == 0 || model.blocks > model.nodes {
            let problem = format!("{} blocks of {} nodes", model.blocks, model.nodes);
            return Err(DataError::request(problem, "at least one node per block"));
        }
        let block_size = nodes.div_ceil(u64::from(model.blocks));
        let jump = |degree: f64, others: u64, what: &str| {
            if degree == 0.0 {
                return Ok(None);
            }
            let p = degree / others as f64;
            if !(p > 0.0 && p < 1.0) {
                let problem = format!("{degree} neighbours {what} out of {others} nodes");
                return Err(DataError::request(problem, "ask for fewer neighbours than there are nodes"));
            }
            Ok(Some((-p).ln_1p().recip()))
        };
        let within = jump(model.degree_within, block_size - 1, "in the own block")?;
        let between = jump(model.degree_between, nodes - block_size, "in other blocks")?;
        Ok(Sampler { nodes, block_size, within, between, seed: model.seed })
    }

    fn block(&self, node: u32) -> u32 {
        (u64::from(node) / self.block_size) as u32
    }

    /// Calls `visit` with the neighbours of `i` that are larger than `i`, in order.
    fn larger_neighbours(&self, i: u32, mut visit: impl FnMut(u32)) {
        let mut random = generator(self.seed, u64::from(i));
        let block_end = ((u64::from(i) / self.block_size + 1) * self.block_size).min(self.nodes);
        jump_through(&mut random, u64::from(i) + 1, block_end, self.within, &mut visit);
        jump_through(&mut random, block_end, self.nodes, self.between, &mut visit);
    }
}

/// Takes each number of `start..end` with the same probability, by drawing the gaps between those taken.
fn jump_through(
    random: &mut ChaCha8Rng,
    start: u64,
    end: u64,
    jump: Option<f64>,
    visit: &mut impl FnMut(u32),
) {
    let Some(jump) = jump else { return };
    let mut at = start;
    while at < end {
        let gap = (unit(random).ln() * jump).floor();
        if gap >= (end - at) as f64 {
            return;
        }
        at += gap as u64;
        visit(at as u32);
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symmetric_sorted_and_as_dense_as_asked() {
        let model = BlockModel { nodes: 20_000, blocks: 5, degree_within: 8.0, degree_between: 2.0, seed: 7 };
        let (matrix, labels) = model.generate().unwrap();
        assert_eq!(matrix, matrix.transpose());
        let (mut within, mut between) = (0usize, 0usize);
        for i in 0..20_000 {
            let (columns, values) = matrix.row(i);
            assert!(columns.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(values.iter().all(|&v| v > 0.0 && v <= 1.0));
            let same = columns.iter().filter(|&&j| labels[j as usize] == labels[i]).count() - 1;
            within += same;
            between += columns.len() - 1 - same;
        }
        // Poisson: the deviation of the mean over 20000 nodes is about 0.03 and 0.014 (edges are counted twice).
        assert!((within as f64 / 2e4 - 8.0).abs() < 0.15, "{within}");
        assert!((between as f64 / 2e4 - 2.0).abs() < 0.08, "{between}");
        assert_eq!(model.generate().unwrap().0, matrix);
    }

    #[test]
    fn impossible_models_are_errors() {
        assert!(BlockModel::uniform(0, 5, 1).generate().is_err());
        assert!(BlockModel::uniform(10, 500, 1).generate().is_err());
        let (lonely, _) = BlockModel::uniform(3, 0, 1).generate().unwrap();
        assert_eq!(lonely, Csr::identity(3));
    }
}
