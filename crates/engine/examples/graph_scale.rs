//! Time and memory of propagation on generated graphs.
//!
//! `cargo run --release -p subdeq-engine --example graph_scale -- [edges] [channels] [threads] [hyper]` generates a graph of about
//! that many directed entries (20 per node, half of them near the node, half anywhere), and iterates
//! `Z = tanh(0.9 A Z) + 0.1 f + 1.2` to a relative residual of 1e-6. Peak memory should be the graph (8 bytes per entry) and
//! four node matrices: injection, state, and the two iterates. With `hyper` as the last word the entries are incidences of as many
//! hyperedges as nodes, stored in both directions (16 bytes each), and the states of the hyperedges come in addition.

use std::time::Instant;

use subdeq_engine::cpu::graph::{Adjacency, NodeMatrix, Propagation};
use subdeq_engine::network::Csr;
use subdeq_engine::{Cpu, Extent, GraphMap, GraphOperator, Measure, Solver, Stopping};
use subdeq_map::{Layout, Map};

const DEGREE: usize = 20;

/// A number for each counter (SplitMix64).
fn hash(counter: u64) -> u64 {
    let mut x = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The entries of row `i`: itself and pairs `i +- d` for distances that do not depend on `i`, so that the matrix is
/// symmetric without being sorted or mirrored. Half the distances are short, half are anywhere.
fn generate(nodes: usize) -> Csr<f32> {
    let mut distances: Vec<usize> = (0..DEGREE as u64 / 4).map(|k| 1 + (hash(k) % 200) as usize).collect();
    distances.extend((0..DEGREE as u64 / 4).map(|k| 1 + (hash(100 + k) % (nodes as u64 / 2 - 1)) as usize));
    distances.sort_unstable();
    distances.dedup();
    let backward = distances.iter().rev().map(|&d| -(d as i64));
    let offsets: Vec<i64> = backward.chain([0]).chain(distances.iter().map(|&d| d as i64)).collect();
    let row_len = offsets.len();
    let weight = 1.0 / row_len as f32;
    let mut columns = Vec::with_capacity(nodes * row_len);
    let size = nodes as i64;
    for i in 0..size {
        // Sorted without sorting: what wraps around at the end comes first, what wraps around at the beginning last.
        let low = offsets.partition_point(|&d| i + d < 0);
        let high = offsets.partition_point(|&d| i + d < size);
        columns.extend(offsets[high..].iter().map(|&d| (i + d - size) as u32));
        columns.extend(offsets[low..high].iter().map(|&d| (i + d) as u32));
        columns.extend(offsets[..low].iter().map(|&d| (i + d + size) as u32));
    }
    let values = vec![weight; columns.len()];
    Csr { rows: nodes, cols: nodes, starts: (0..=nodes).map(|i| i * row_len).collect(), columns, values }
}

/// The rows of a matrix as the incidences of nodes and hyperedges; each node keeps as much of itself as one passes to it.
fn as_hyperedges(mut incidence: Csr<f32>) -> GraphOperator<f32> {
    let parts = incidence.columns.len() as f32 / incidence.rows as f32 + 1.0;
    incidence.values.fill(1.0 / parts);
    let own = vec![1.0 / parts; incidence.rows];
    GraphOperator::Hyperedges { incidence, own }
}

/// Peak resident memory in GB, where the system tells.
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<f64>().ok().map(|kilobytes| kilobytes / 1e6)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let argument = |k: usize, default: usize| {
        std::env::args().nth(k).map_or(Ok(default), |text| text.parse::<f64>().map(|x| x as usize))
    };
    let (edges, channels, threads) = (argument(1, 1_000_000)?, argument(2, 64)?, argument(3, 2)?);
    let nodes = (edges / (DEGREE + 1)).max(1000);
    let cpu = Cpu::<f32>::new(threads)?;
    let clock = Instant::now();
    let matrix = generate(nodes);
    let entries = matrix.columns.len();
    let hyper = std::env::args().nth(4).is_some_and(|word| word == "hyper");
    let graph = Adjacency::new(&cpu, if hyper { as_hyperedges(matrix) } else { matrix.into() })?;
    println!(
        "{nodes} nodes, {entries} entries, symmetric: {}, made in {:.1?}",
        graph.is_symmetric(),
        clock.elapsed()
    );
    let map = GraphMap::new(Map::named("appnp-tanh", Layout::Graph)?)?;
    let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), channels)?;
    let mut f = NodeMatrix::zeros(nodes, channels);
    for node in 0..nodes {
        for (channel, x) in f.row_mut(node).iter_mut().enumerate() {
            *x = (hash((node * channels + channel) as u64) >> 40) as f32 / (1u32 << 24) as f32;
        }
    }
    let mut z = NodeMatrix::zeros(nodes, channels);
    let (measure, extent) = (Measure::Relative, Extent::PerSample);
    let stopping = Stopping { measure, tolerance: 1e-6, max_iterations: 100, extent };
    let clock = Instant::now();
    let report = propagation.solve(&graph.edges(), &f, &Solver::Picard, &stopping, &mut z)?;
    let seconds = clock.elapsed().as_secs_f64() / f64::from(report.iterations + 1);
    // Each entry: column, value and one gathered row; each node: injection and argument read, image written.
    let ways = if hyper { 2.0 } else { 1.0 };
    let bytes = ways * entries as f64 * (8.0 + 4.0 * channels as f64) + nodes as f64 * channels as f64 * 12.0;
    println!(
        "{:?} after {} iterations; {:.2} ms per iteration, {:.3} ns per entry, {:.1} GB/s moved, peak memory {:.2} GB",
        report.outcome,
        report.iterations,
        seconds * 1e3,
        seconds * 1e9 / entries as f64,
        bytes / seconds / 1e9,
        peak_memory().unwrap_or(f64::NAN)
    );
    Ok(())
}
