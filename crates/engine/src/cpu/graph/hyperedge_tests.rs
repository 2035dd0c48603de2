//! Propagation over hyperedges against the same matrix written out, odd hyperedges, large ones.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Groups, Layout, Map, PNorm};

use super::*;
use crate::cpu::{Cpu, Isa};
use crate::network::Csr;
use crate::{Extent, GraphMap, GraphOperator, Measure, Solver, Stopping};

/// Weights of nodes in hyperedges, one list of `(node, weight)` per hyperedge, and what nodes keep of themselves.
pub(super) struct Hypergraph {
    pub hyperedges: Vec<Vec<(usize, f64)>>,
    pub own: Vec<f64>,
}

impl Hypergraph {
    /// Hyperedges of 0, 1, 2, .. nodes at random, and `D^-1/2 (H E^-1 H' + I) D^-1/2`.
    pub fn random(seed: u64, nodes: usize, hyperedges: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let members: Vec<Vec<usize>> = (0..hyperedges)
            .map(|k| {
                let mut members: Vec<usize> = (0..k % 6).map(|_| rng.random_range(0..nodes)).collect();
                members.sort_unstable();
                members.dedup();
                members
            })
            .collect();
        let mut parts = vec![1.0f64; nodes];
        members.iter().flatten().for_each(|&node| parts[node] += 1.0);
        let weighed = |members: &Vec<usize>| {
            let size = members.len() as f64;
            members.iter().map(|&node| (node, (parts[node] * size).sqrt().recip())).collect()
        };
        Self {
            hyperedges: members.iter().map(weighed).collect(),
            own: parts.iter().map(|p| p.recip()).collect(),
        }
    }

    pub fn operator(&self) -> GraphOperator<f64> {
        let nodes = self.own.len();
        let mut rows = vec![Vec::new(); nodes];
        for (number, hyperedge) in self.hyperedges.iter().enumerate() {
            hyperedge.iter().for_each(|&(node, weight)| rows[node].push((number as u32, weight)));
        }
        GraphOperator::Hyperedges { incidence: csr(self.hyperedges.len(), &rows), own: self.own.clone() }
    }

    /// `B B' + diag(own)`, every entry.
    fn written_out(&self) -> GraphOperator<f64> {
        let nodes = self.own.len();
        let mut matrix = vec![vec![0.0; nodes]; nodes];
        (0..nodes).for_each(|node| matrix[node][node] = self.own[node]);
        for hyperedge in &self.hyperedges {
            for &(i, a) in hyperedge {
                hyperedge.iter().for_each(|&(j, b)| matrix[i][j] += a * b);
            }
        }
        // Both ways round the same product: exactly symmetric.
        let entries =
            |row: &Vec<f64>| (0..).zip(row).filter(|(_, x)| **x != 0.0).map(|(j, &x)| (j, x)).collect();
        GraphOperator::Pairs(csr(nodes, &matrix.iter().map(entries).collect::<Vec<_>>()))
    }
}

fn csr(cols: usize, rows: &[Vec<(u32, f64)>]) -> Csr<f64> {
    let mut csr = Csr { rows: rows.len(), cols, starts: vec![0], columns: vec![], values: vec![] };
    for row in rows {
        csr.columns.extend(row.iter().map(|entry| entry.0));
        csr.values.extend(row.iter().map(|entry| entry.1));
        csr.starts.push(csr.columns.len());
    }
    csr
}

fn maps() -> Vec<GraphMap> {
    let named = |name: &str| Map::named(name, Layout::Graph).unwrap();
    let plain =
        ["hyper-appnp", "hyper-appnp-tanh", "appnp-tanh", "appnp-tanh-2", "appnp-normalized-tanh"].map(named);
    let rows = named("appnp-tanh").normalised(PNorm::Inf, Groups::GraphRows).unwrap();
    let ball = named("hyper-appnp-tanh").projected(Groups::GraphRows, 0.3).unwrap();
    plain.into_iter().chain([rows, ball]).map(|map| GraphMap::new(map).unwrap()).collect()
}

pub(super) fn stopping(tolerance: f64) -> Stopping {
    Stopping { measure: Measure::Relative, tolerance, max_iterations: 3000, extent: Extent::PerSample }
}

pub(super) fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| 2.0 * rng.random::<f64>() - 0.7).collect()
}

/// State, gradient of the equilibrium, and (linear maps) both by conjugate gradients.
fn solved(
    operator: GraphOperator<f64>,
    map: &GraphMap,
    channels: usize,
    f: &[f64],
    v: &[f64],
) -> Vec<Vec<f64>> {
    let cpu = Cpu::<f64>::new(1).unwrap();
    let graph = Adjacency::new(&cpu, operator).unwrap();
    let (edges, nodes) = (graph.edges(), graph.nodes());
    let matrix = |rows: &[f64]| NodeMatrix::from_rows(nodes, channels, rows).unwrap();
    let (f, v) = (matrix(f), matrix(v));
    let mut propagation = Propagation::new(&cpu, map, &edges, channels).unwrap();
    let (mut z, mut gradient) = (f.clone(), f.clone());
    propagation.solve(&edges, &f, &Solver::Picard, &stopping(1e-15), &mut z).unwrap();
    propagation.adjoint(&edges, &f, &z, &v, &Solver::Picard, &stopping(1e-15), &mut gradient).unwrap();
    let mut found = vec![z.to_rows(), gradient.to_rows()];
    if map.is_linear() {
        propagation.solve_linear(&edges, &f, 1e-14, 500, &mut z).unwrap();
        propagation.adjoint_linear(&edges, &v, 1e-14, 500, &mut gradient).unwrap();
        found.extend([z.to_rows(), gradient.to_rows()]);
    }
    found
}

pub(super) fn gap(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

#[test]
fn two_steps_are_the_matrix_written_out() {
    for (seed, nodes, hyperedges, channels) in [(1, 40, 30, 3), (2, 7, 50, 9), (3, 25, 0, 1), (4, 60, 60, 17)]
    {
        let hypergraph = Hypergraph::random(seed, nodes, hyperedges);
        let (f, v) = (numbers(seed, nodes * channels), numbers(seed + 10, nodes * channels));
        for map in maps() {
            let two_steps = solved(hypergraph.operator(), &map, channels, &f, &v);
            let written_out = solved(hypergraph.written_out(), &map, channels, &f, &v);
            for (k, (a, b)) in two_steps.iter().zip(&written_out).enumerate() {
                assert!(gap(a, b) < 1e-10, "{} ({k}), {nodes} nodes: {}", map.equation(), gap(a, b));
            }
        }
    }
}

#[test]
fn gradients_over_hyperedges_agree_with_differences() {
    let (nodes, channels, h) = (9, 2, 1e-6);
    let hypergraph = Hypergraph::random(5, nodes, 14);
    let (f, v) = (numbers(6, nodes * channels), numbers(7, nodes * channels));
    for map in maps() {
        let value = |f: &[f64]| -> f64 {
            let z = &solved(hypergraph.operator(), &map, channels, f, &v)[0];
            z.iter().zip(&v).map(|(z, v)| z * v).sum()
        };
        let gradient = &solved(hypergraph.operator(), &map, channels, &f, &v)[1];
        for (k, g) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                f.iter().enumerate().map(|(i, x)| x + if i == k { by } else { 0.0 }).collect::<Vec<_>>()
            };
            let wanted = (value(&moved(h)) - value(&moved(-h))) / (2.0 * h);
            assert!((g - wanted).abs() < 1e-7, "{}: {k}: {g} {wanted}", map.equation());
        }
    }
}

#[test]
fn the_order_of_nodes_and_hyperedges_does_not_matter() {
    let (nodes, channels) = (30, 4);
    let hypergraph = Hypergraph::random(8, nodes, 40);
    let (f, v) = (numbers(9, nodes * channels), numbers(10, nodes * channels));
    // Multiplication by 7 permutes the numbers below 30.
    let new = |node: usize| node * 7 % nodes;
    let rows = |rows: &[f64]| {
        let mut moved = vec![0.0; rows.len()];
        for node in 0..nodes {
            moved[new(node) * channels..][..channels].copy_from_slice(&rows[node * channels..][..channels]);
        }
        moved
    };
    let mut own = vec![0.0; nodes];
    (0..nodes).for_each(|node| own[new(node)] = hypergraph.own[node]);
    let moved =
        |hyperedge: &Vec<(usize, f64)>| hyperedge.iter().rev().map(|&(node, w)| (new(node), w)).collect();
    let permuted = Hypergraph { hyperedges: hypergraph.hyperedges.iter().rev().map(moved).collect(), own };
    for map in maps() {
        let plain = solved(hypergraph.operator(), &map, channels, &f, &v);
        let other = solved(permuted.operator(), &map, channels, &rows(&f), &rows(&v));
        for (a, b) in plain.iter().zip(&other) {
            assert!(gap(&rows(a), b) < 1e-10, "{}", map.equation());
        }
    }
}

#[test]
fn threads_and_instructions_agree_over_hyperedges() {
    // Large enough for several chunks of nodes and of hyperedges.
    let nodes = 9000;
    let operator = Hypergraph::random(11, nodes, 9000).operator();
    let GraphOperator::Hyperedges { incidence, own } = operator else { panic!("not hyperedges") };
    let narrow = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let Csr { rows, cols, starts, columns, values } = incidence;
    let incidence = Csr { rows, cols, starts, columns, values: narrow(&values) };
    let operator = GraphOperator::Hyperedges { incidence, own: narrow(&own) };
    let f = NodeMatrix::from_rows(nodes, 5, &narrow(&numbers(12, nodes * 5))).unwrap();
    for map in maps() {
        let run = |threads: usize, isa: Isa| {
            let cpu = Cpu::<f32>::with_isa(threads, isa).unwrap();
            let graph = Adjacency::new(&cpu, operator.clone()).unwrap();
            let edges = graph.edges();
            assert!(edges.forward.chunks.len() > 1 && graph.is_symmetric());
            let mut propagation = Propagation::new(&cpu, &map, &edges, 5).unwrap();
            let (mut z, mut gradient) = (f.clone(), f.clone());
            propagation.solve(&edges, &f, &Solver::Picard, &stopping(1e-6), &mut z).unwrap();
            propagation.adjoint(&edges, &f, &z, &f, &Solver::Picard, &stopping(1e-6), &mut gradient).unwrap();
            (z.to_rows(), gradient.to_rows())
        };
        let best = Isa::available().last().unwrap();
        let one = run(1, best);
        assert!(one == run(3, best), "{}", map.equation());
        for isa in Isa::available() {
            let wide = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
            assert!(gap(&wide(&one.0), &wide(&run(1, isa).0)) < 1e-4, "{} {}", map.equation(), isa.name());
        }
    }
}

#[test]
fn a_hyperedge_of_very_many_nodes_is_a_mean() {
    // Written out it would have 1e10 entries.
    let nodes = 100_000;
    let weight = (0.5 / nodes as f32).sqrt();
    let incidence = Csr {
        rows: nodes,
        cols: 1,
        starts: (0..=nodes).collect(),
        columns: vec![0; nodes],
        values: vec![weight; nodes],
    };
    let cpu = Cpu::<f32>::new(2).unwrap();
    let graph = Adjacency::new(&cpu, GraphOperator::Hyperedges { incidence, own: vec![0.5; nodes] }).unwrap();
    let map = GraphMap::new(Map::named("hyper-appnp", Layout::Graph).unwrap()).unwrap();
    let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 1).unwrap();
    let f: Vec<f32> = (0..nodes).map(|node| if node % 2 == 0 { 1.0 } else { 3.0 }).collect();
    let f = NodeMatrix::from_rows(nodes, 1, &f).unwrap();
    let mut z = f.clone();
    assert!(propagation.solve_linear(&graph.edges(), &f, 1e-6, 100, &mut z).unwrap().converged());
    // z = 0.45 z + 0.45 mean + 0.1 f, and the mean of z is that of f, 2.
    let wanted = |f: f32| (0.9 + 0.1 * f) / 0.55;
    for node in [0, 1, 50_000, 99_999] {
        let (found, wanted) = (z.row(node)[0], wanted(f.row(node)[0]));
        assert!((found - wanted).abs() < 1e-3, "{node}: {found} {wanted}");
    }
}

#[test]
fn odd_hyperedges_are_right_or_refused() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    // A node listed twice in a hyperedge: its weights are added up.
    let twice = Csr { rows: 1, cols: 1, starts: vec![0, 2], columns: vec![0, 0], values: vec![0.3, 0.4] };
    let graph = Adjacency::new(&cpu, GraphOperator::Hyperedges { incidence: twice, own: vec![0.0] }).unwrap();
    assert_eq!(graph.operator().stored().values, [0.7]);
    // Nothing of hyperedges is dropped.
    let error = ThinnedEdges::default().refresh(&cpu, &graph, Dropout::new(0.5, 1, 1)).unwrap_err();
    assert!(error.to_string().contains("hyperedges cannot be dropped"), "{error}");
    let incidence =
        Csr { rows: 2, cols: 1, starts: vec![0, 1, 2], columns: vec![0, 0], values: vec![0.5; 2] };
    let refused = |incidence: &Csr<f64>, own: Vec<f64>| {
        let operator = GraphOperator::Hyperedges { incidence: incidence.clone(), own };
        Adjacency::new(&cpu, operator).unwrap_err().to_string()
    };
    assert!(refused(&incidence, vec![1.0]).contains("2 nodes, but 1 numbers"));
    assert!(refused(&incidence, vec![1.0, f64::NAN]).contains("keep of themselves"));
    let outside = Csr { columns: vec![0, 1], ..incidence };
    assert!(refused(&outside, vec![1.0; 2]).contains("column 1 of 1"));
}
