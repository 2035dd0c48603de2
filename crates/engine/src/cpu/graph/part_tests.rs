//! A graph that several processes share gives the bits of one process.

use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Layout, Map};

use super::threads_company::{Thread, threads};
use super::{Company, CpuGraph, Division, Dropout, OutputActivation};
use crate::network::Csr;
use crate::{
    Cpu, EncoderShape, Extent, GraphDropout, GraphMap, GraphSpec, Graphs, LabelledNodes, Measure, NodeArray,
    Propagate, SampleReport, Solver, Stopping, Summary,
};

const NODES: usize = 3000;
const FEATURES: usize = 40;

/// A symmetric matrix: a band, some long edges, and a node that many are joined to.
fn matrix(rng: &mut ChaCha8Rng) -> Csr<f32> {
    let mut entries = Vec::new();
    let mut join = |i: usize, j: usize| entries.extend([(i, j), (j, i)]);
    for i in 0..NODES {
        (0..6).for_each(|_| join(i, (i + rng.random_range(0..40)).min(NODES - 1)));
        if i % 50 == 0 {
            join(i, rng.random_range(0..NODES));
        }
        if i % 3 == 0 {
            join(i, 1700);
        }
    }
    entries.sort_unstable();
    entries.dedup();
    let mut starts = vec![0; NODES + 1];
    entries.iter().for_each(|&(i, _)| starts[i + 1] += 1);
    (0..NODES).for_each(|i| starts[i + 1] += starts[i]);
    let root = |i: usize| ((starts[i + 1] - starts[i]) as f32).sqrt();
    let values = entries.iter().map(|&(i, j)| 1.0 / (root(i) * root(j))).collect();
    let columns = entries.iter().map(|&(_, j)| j as u32).collect();
    Csr { rows: NODES, cols: NODES, starts, columns, values }
}

fn features(rng: &mut ChaCha8Rng) -> Csr<f32> {
    let mut features = Csr { rows: NODES, cols: FEATURES, starts: vec![0], columns: vec![], values: vec![] };
    for _ in 0..NODES {
        let columns = (0..FEATURES as u32).filter(|_| rng.random_bool(0.2));
        features.columns.extend(columns);
        features.starts.push(features.columns.len());
    }
    features.values = features.columns.iter().map(|_| rng.random_range(-1.0..1.0)).collect();
    features
}

fn rows_of(matrix: &Csr<f32>, rows: &std::ops::Range<usize>) -> Csr<f32> {
    let (begin, end) = (matrix.starts[rows.start], matrix.starts[rows.end]);
    Csr {
        rows: rows.len(),
        cols: matrix.cols,
        starts: matrix.starts[rows.start..=rows.end].iter().map(|start| start - begin).collect(),
        columns: matrix.columns[begin..end].to_vec(),
        values: matrix.values[begin..end].to_vec(),
    }
}

/// Everything that a training step leaves behind, as bits.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    /// Of this process's rows.
    state: Vec<u32>,
    gradient: Vec<Vec<u32>>,
    reports: [Option<SampleReport>; 2],
    tally: Summary,
}

/// One training step over a graph of which `rows` are here.
fn step(
    graph: &CpuGraph<f32>,
    rows: std::ops::Range<usize>,
    spec: &GraphSpec,
    how: &Propagate,
    dropped: f64,
) -> Found {
    let cpu = Cpu::<f32>::new(1).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let arrays = spec
        .shape
        .arrays()
        .map(|[rows, cols]| (0..rows * cols).map(|_| rng.random_range(-0.3..0.3)).collect::<Vec<f32>>());
    let encoder = cpu.encoder(spec.shape, arrays.each_ref().map(Vec::as_slice)).unwrap();
    let mut gradient = encoder.clone();
    let mut plan = cpu.graph_plan(spec, graph).unwrap();
    let dropout = GraphDropout {
        features: Dropout::new(0.3, 1, 0),
        hidden: Dropout::new(0.4, 1, 1),
        edges: Dropout::new(dropped, 1, 2),
    };
    let mine: Vec<u32> =
        (0..NODES as u32).step_by(7).filter(|&node| rows.contains(&(node as usize))).collect();
    let nodes = LabelledNodes {
        rows: mine.iter().map(|node| node - rows.start as u32).collect(),
        labels: mine.iter().map(|node| node % 3).collect(),
        count: mine.len(),
    };
    let mut tally = Summary::default();
    let forward = cpu.propagate(&mut plan, graph, &encoder, Some(dropout), how).unwrap();
    cpu.node_loss(&mut plan, &nodes, &mut tally).unwrap();
    let backward =
        cpu.propagate_backward(&mut plan, graph, &encoder, Some(dropout), how, &mut gradient).unwrap();
    cpu.count_nodes(&plan, &nodes, true, &mut tally).unwrap();
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
    Found {
        state: bits(cpu.read_nodes(&plan, NodeArray::State).unwrap()),
        gradient: cpu.read_encoder(&gradient).unwrap().into_iter().map(bits).collect(),
        reports: [forward, backward],
        tally,
    }
}

#[test]
fn shared_by_any_number_of_processes_every_model_has_the_bits_of_one() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (matrix, features) = (matrix(&mut rng), features(&mut rng));
    let division = Division::new(&matrix, &features);
    assert!(division.blocks.len() >= 5 && division.slices.len() >= 5, "{division:?}");
    let whole = Cpu::<f32>::new(2).unwrap().graph(matrix.clone().into(), features.clone()).unwrap();
    let stopping = Stopping {
        measure: Measure::Relative,
        tolerance: 1e-6,
        max_iterations: 40,
        extent: Extent::PerSample,
    };
    let solve = |solver| Propagate::Solve { solver, stopping };
    let anderson = Solver::Anderson { window: 3, ridge: 1e-6, mixing: 0.9 };
    let cases = [
        ("appnp", Propagate::ConjugateGradient { tolerance: 1e-6, max_iterations: 100 }, 0.0),
        ("appnp-tanh", solve(anderson), 0.0),
        ("appnp-tanh", solve(Solver::Picard), 0.3),
        ("appnp-normalized-tanh", solve(Solver::Picard), 0.5),
        ("appnp-projected-tanh", Propagate::Unroll { steps: 4 }, 0.5),
    ];
    for (name, how, dropped) in cases {
        let map = GraphMap::new(Map::named(name, Layout::Graph).unwrap()).unwrap();
        for classes in [3, 20] {
            let shape = EncoderShape { features: FEATURES, hidden: 12, classes };
            let spec = GraphSpec { map, output: OutputActivation::Softplus, shape };
            let expected = step(&whole, 0..NODES, &spec, &how, dropped);
            for size in [1, 2, 3, 4, division.blocks.len() + 2] {
                let found = on_threads(size, |thread| {
                    let company: Arc<dyn Company<f32>> = Arc::new(thread);
                    let rows = division.rows_of(company.rank(), size);
                    let (matrix, features) = (rows_of(&matrix, &rows), rows_of(&features, &rows));
                    let graph = CpuGraph::part(&company, &division, matrix, features).unwrap();
                    step(&graph, rows, &spec, &how, dropped)
                });
                let state: Vec<u32> = found.iter().flat_map(|part| part.state.clone()).collect();
                for part in found {
                    assert!(part.gradient == expected.gradient, "gradients of {name} on {size}");
                    assert_eq!(
                        (part.reports, part.tally),
                        (expected.reports, expected.tally),
                        "{name} on {size}"
                    );
                }
                assert!(state == expected.state, "states of {name} on {size}");
            }
        }
    }
}

/// Has every one of some threads do the same; their answers in order.
fn on_threads<R: Send>(size: usize, work: impl Fn(Thread) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            threads(size).into_iter().map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn rows_of_another_part_are_refused() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let (matrix, features) = (matrix(&mut rng), features(&mut rng));
    let division = Division::new(&matrix, &features);
    let refused = on_threads(2, |thread| {
        let company: Arc<dyn Company<f32>> = Arc::new(thread);
        CpuGraph::part(&company, &division, matrix.clone(), features.clone()).unwrap_err().to_string()
    });
    let mut overlapping = division.clone();
    overlapping.blocks[1].start -= 1;
    let company: Arc<dyn Company<f32>> = Arc::new(threads(1).remove(0));
    let why =
        CpuGraph::part(&company, &overlapping, matrix.clone(), features.clone()).unwrap_err().to_string();
    assert!(why.contains("do not follow each other"), "{why}");
    assert!(refused[1].contains("rank 1 of 2 has 3000 rows of 3000 columns"), "{refused:?}");
}
