//! Milliseconds per training epoch (one step and one evaluation) of the graph models.
//!
//! `cargo run --release --example graph_epoch -- HYPEREDGES [threads]` reads a hypergraph (one hyperedge per line, node
//! numbers from 1 separated by commas) and joins any two nodes of a hyperedge. Features are generated: as many as dblp
//! has (1425 columns, 38.8 entries per node), six classes. Without a file, a random graph of dblp's size stands in.

use std::time::Instant;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::graph::{
    Csr, GraphConfig, GraphModel, GraphProblem, GraphSplit, normalised_adjacency, train_graph,
};

const FEATURES: usize = 1425;
const ENTRIES_PER_NODE: f64 = 38.8;
const CLASSES: u32 = 6;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.get(1).map_or(Ok(2), |text| text.parse())?;
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let hyperedges = match arguments.first() {
        Some(file) => read(&std::fs::read_to_string(file)?)?,
        None => (0..22_363)
            .map(|_| (0..rng.random_range(2..10)).map(|_| rng.random_range(0..41_302)).collect())
            .collect(),
    };
    let nodes = hyperedges.iter().flatten().max().map_or(0, |&node: &u32| node as usize + 1);
    let mut edges = Vec::new();
    for hyperedge in &hyperedges {
        for (k, &i) in hyperedge.iter().enumerate() {
            edges.extend(hyperedge[..k].iter().map(|&j| (i, j)));
        }
    }
    let mut features = Csr { rows: nodes, cols: FEATURES, starts: vec![0], columns: vec![], values: vec![] };
    for _ in 0..nodes {
        features
            .columns
            .extend((0..FEATURES as u32).filter(|_| rng.random_bool(ENTRIES_PER_NODE / FEATURES as f64)));
        features.starts.push(features.columns.len());
    }
    features.values = vec![1.0; features.columns.len()];
    let labels = (0..nodes).map(|_| rng.random_range(0..CLASSES)).collect();
    let problem =
        GraphProblem::new(normalised_adjacency(nodes, &edges)?, features, labels, CLASSES as usize)?;
    println!(
        "{nodes} nodes, {} entries, {} feature entries, {threads} threads",
        problem.operator().entries(),
        problem.features().columns.len()
    );
    let ids: Vec<u32> = (0..nodes as u32).collect();
    let (train, rest) = ids.split_at(nodes / 24);
    let (validation, test) = rest.split_at(rest.len() / 2);
    let split = GraphSplit { train: train.into(), validation: validation.into(), test: test.into() };
    for name in GraphModel::NAMES {
        for (form, model) in
            [("release", GraphModel::release(name, 0.1)?), ("paper", GraphModel::paper(name, 0.1)?)]
        {
            let config = GraphConfig { threads, epochs: 12, ..GraphConfig::new(model) };
            let mut last = Instant::now();
            let mut times = Vec::new();
            let cpu = cpu_ms();
            let run = train_graph(&problem, &split, &config, |_| {
                times.push(last.elapsed().as_secs_f64() * 1e3);
                last = Instant::now();
            })?;
            let iterations =
                run.epochs.last().map(|epoch| (epoch.solve_iterations, epoch.adjoint_iterations));
            let cpu = (cpu_ms() - cpu) / times.len() as f64;
            times.remove(0);
            times.sort_by(f64::total_cmp);
            println!(
                "{name:24} {form:8} {:7.2} ms/epoch (median), {:7.2} (best), {cpu:7.1} ms CPU time (mean); solve, adjoint iterations {iterations:?}",
                times[times.len() / 2],
                times[0]
            );
        }
    }
    Ok(())
}

/// CPU time of this process in milliseconds (in steps of 10), where the system tells: wall-clock times mean little on a
/// busy machine.
fn cpu_ms() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    // User and system time, in hundredths of a second.
    fields.iter().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
}

/// Hyperedges with nodes counted from 0.
fn read(text: &str) -> Result<Vec<Vec<u32>>, Box<dyn std::error::Error>> {
    let mut hyperedges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let nodes: Result<Vec<u32>, _> = line.split(',').map(|node| node.trim().parse::<u32>()).collect();
        match nodes {
            Ok(nodes) if nodes.iter().all(|&node| node > 0) => {
                hyperedges.push(nodes.into_iter().map(|node| node - 1).collect());
            }
            _ => {
                return Err(
                    format!("line {}: `{line}` is not a list of node numbers from 1", number + 1).into()
                );
            }
        }
    }
    Ok(hyperedges)
}
