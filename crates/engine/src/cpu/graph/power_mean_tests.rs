//! Power means against the formula written out, their gradients against differences, odd hyperedges and sizes of numbers.

use subdeq_map::{Layout, Map, Overrides};

use super::hyperedge_tests::{Hypergraph, gap, numbers, stopping};
use super::*;
use crate::cpu::{Cpu, Isa};
use crate::network::Csr;
use crate::{GraphMap, GraphOperator, Solver};

const POWERS: [f64; 5] = [1.0, 1.5, 2.0, 3.0, 7.3];
const ANDERSON: Solver = Solver::Anderson { window: 5, ridge: 1e-6, mixing: 1.0 };

fn power_map(p: f64) -> GraphMap {
    let overrides = Overrides { power: Some(p), ..Overrides::default() };
    let equation = Map::named("hyper-power", Layout::Graph).unwrap().with(&overrides, Layout::Graph).unwrap();
    GraphMap::new(equation).unwrap()
}

fn nonnegative(seed: u64, count: usize) -> Vec<f64> {
    numbers(seed, count).into_iter().map(|x| x.max(0.0)).collect()
}

/// `F(z; f)` by the formula, hyperedge by hyperedge.
fn written_out(hypergraph: &Hypergraph, p: f64, channels: usize, z: &[f64], f: &[f64]) -> Vec<f64> {
    let mut image: Vec<f64> = (0..z.len()).map(|k| 0.9 * hypergraph.own[k / channels] * z[k]).collect();
    for hyperedge in &hypergraph.hyperedges {
        for channel in 0..channels {
            let powers = hyperedge.iter().map(|&(i, b)| (b * z[i * channels + channel].abs()).powf(p));
            let sum: f64 = powers.sum();
            let h = (hyperedge.len() as f64).powf(1.0 - 1.0 / p) * sum.powf(1.0 / p);
            hyperedge.iter().for_each(|&(i, b)| image[i * channels + channel] += 0.9 * b * h);
        }
    }
    image.iter().zip(f).map(|(image, f)| image + 0.1 * f).collect()
}

/// A propagation over a hypergraph with its edges at hand.
struct Case {
    graph: Adjacency<f64>,
    propagation: Propagation<f64>,
    channels: usize,
}

impl Case {
    fn new(hypergraph: &Hypergraph, map: &GraphMap, channels: usize) -> Self {
        let cpu = Cpu::<f64>::new(1).unwrap();
        let graph = Adjacency::new(&cpu, hypergraph.operator()).unwrap();
        let propagation = Propagation::new(&cpu, map, &graph.edges(), channels).unwrap();
        Self { graph, propagation, channels }
    }

    fn matrix(&self, rows: &[f64]) -> NodeMatrix<f64> {
        NodeMatrix::from_rows(self.graph.nodes(), self.channels, rows).unwrap()
    }

    /// The equilibrium, and the gradient of `v . z`.
    fn solved(&mut self, f: &[f64], v: &[f64], solver: &Solver) -> [Vec<f64>; 2] {
        let (f, v) = (self.matrix(f), self.matrix(v));
        let (mut z, mut gradient) = (f.clone(), f.clone());
        let (edges, to) = (self.graph.edges(), stopping(1e-15));
        self.propagation.solve(&edges, &f, solver, &to, &mut z).unwrap();
        self.propagation.adjoint(&edges, &f, &z, &v, solver, &to, &mut gradient).unwrap();
        [z.to_rows(), gradient.to_rows()]
    }

    /// The same after some steps.
    fn unrolled(&mut self, f: &[f64], v: &[f64], steps: usize) -> [Vec<f64>; 2] {
        let (f, v) = (self.matrix(f), self.matrix(v));
        let mut gradient = f.clone();
        let edges = self.graph.edges();
        let z = self.propagation.unroll(&edges, &f, steps).unwrap().to_rows();
        self.propagation.unroll_backward(&edges, &f, &v, &mut gradient).unwrap();
        [z, gradient.to_rows()]
    }
}

#[test]
fn an_equilibrium_solves_the_equation_written_out() {
    for (seed, nodes, hyperedges, channels) in [(1, 40, 30, 3), (2, 7, 50, 9), (3, 25, 0, 1), (4, 60, 60, 17)]
    {
        let hypergraph = Hypergraph::random(seed, nodes, hyperedges);
        let f = nonnegative(seed, nodes * channels);
        for p in POWERS {
            let mut z = vec![0.0; f.len()];
            (0..600).for_each(|_| z = written_out(&hypergraph, p, channels, &z, &f));
            let mut case = Case::new(&hypergraph, &power_map(p), channels);
            for solver in [Solver::Picard, ANDERSON] {
                let [found, _] = case.solved(&f, &f, &solver);
                assert!(gap(&found, &z) < 1e-12, "p = {p}, {nodes} nodes, {solver:?}: {}", gap(&found, &z));
            }
            let steps = (0..4).fold(f.clone(), |z, _| written_out(&hypergraph, p, channels, &z, &f));
            assert!(gap(&case.unrolled(&f, &f, 4)[0], &steps) < 1e-13, "p = {p}");
        }
    }
}

#[test]
fn gradients_of_power_means_agree_with_differences() {
    let (nodes, channels, h) = (9, 2, 1e-6);
    let hypergraph = Hypergraph::random(5, nodes, 14);
    // Away from zero, where absolute values have no derivative.
    let f: Vec<f64> = numbers(6, nodes * channels).iter().map(|x| 0.05 + x.abs()).collect();
    let v = numbers(7, nodes * channels);
    for p in POWERS {
        let mut case = Case::new(&hypergraph, &power_map(p), channels);
        type Run = fn(&mut Case, &[f64], &[f64]) -> [Vec<f64>; 2];
        let runs: [(&str, Run); 2] = [
            ("equilibrium", |case, f, v| case.solved(f, v, &Solver::Picard)),
            ("unrolled", |case, f, v| case.unrolled(f, v, 3)),
        ];
        for (what, run) in runs {
            let [_, gradient] = run(&mut case, &f, &v);
            for (k, g) in gradient.iter().enumerate() {
                let mut value = |by: f64| -> f64 {
                    let mut moved = f.clone();
                    moved[k] += by;
                    run(&mut case, &moved, &v)[0].iter().zip(&v).map(|(z, v)| z * v).sum()
                };
                let wanted = (value(h) - value(-h)) / (2.0 * h);
                assert!((g - wanted).abs() < 1e-7, "p = {p}, {what}, {k}: {g} {wanted}");
            }
        }
    }
}

#[test]
fn with_the_power_one_it_is_the_linear_propagation() {
    let (nodes, channels) = (30, 5);
    let hypergraph = Hypergraph::random(8, nodes, 40);
    let (f, v) = (nonnegative(9, nodes * channels), numbers(10, nodes * channels));
    let linear = GraphMap::new(Map::named("hyper-appnp", Layout::Graph).unwrap()).unwrap();
    let [one, sum] = [power_map(1.0), linear]
        .map(|map| Case::new(&hypergraph, &map, channels).solved(&f, &v, &Solver::Picard));
    for (a, b) in one.iter().zip(&sum) {
        assert!(gap(a, b) < 1e-13, "{}", gap(a, b));
    }
}

#[test]
fn the_order_of_nodes_and_hyperedges_does_not_matter_to_power_means() {
    let (nodes, channels) = (30, 4);
    let hypergraph = Hypergraph::random(8, nodes, 40);
    let (f, v) = (nonnegative(9, nodes * channels), numbers(10, nodes * channels));
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
    for p in POWERS {
        let map = power_map(p);
        let plain = Case::new(&hypergraph, &map, channels).solved(&f, &v, &Solver::Picard);
        let other = Case::new(&permuted, &map, channels).solved(&rows(&f), &rows(&v), &Solver::Picard);
        for (a, b) in plain.iter().zip(&other) {
            assert!(gap(&rows(a), b) < 1e-12, "p = {p}");
        }
    }
}

#[test]
fn every_start_leads_to_the_same_solution_at_the_proved_rate() {
    let (nodes, channels) = (40, 3);
    let hypergraph = Hypergraph::random(11, nodes, 60);
    let f = nonnegative(12, nodes * channels);
    for p in POWERS {
        let mut case = Case::new(&hypergraph, &power_map(p), channels);
        let [solution, _] = case.solved(&f, &f, &Solver::Picard);
        assert!(solution.iter().all(|z| *z >= 0.0));
        let injection = case.matrix(&f);
        // own = 1/d, and distances are divided by sqrt(d).
        let distance = |z: &NodeMatrix<f64>| {
            let scaled =
                |k: usize| (z.to_rows()[k] - solution[k]).abs() * hypergraph.own[k / channels].sqrt();
            (0..solution.len()).map(scaled).fold(0.0, f64::max)
        };
        for start in 0..20 {
            let spread = 10f64.powi(start - 8);
            let numbers: Vec<f64> = numbers(100 + start as u64, f.len()).iter().map(|x| spread * x).collect();
            let (mut z, mut image) = (case.matrix(&numbers), case.matrix(&f));
            for _ in 0..40 {
                case.propagation.apply(&case.graph.edges(), Some(&z), &injection, None, &mut image).unwrap();
                let (before, after) = (distance(&z), distance(&image));
                assert!(after <= 0.9 * before * (1.0 + 1e-12) + 1e-13, "p = {p}: {before} {after}");
                std::mem::swap(&mut z, &mut image);
            }
        }
    }
}

/// Steps from a multiple of an injection lead to the multiple; powers of very small or large numbers may not leave the range of `f32`
/// on the way.
#[test]
fn powers_neither_overflow_nor_vanish() {
    let nodes = 50;
    let operator = narrow(Hypergraph::random(13, nodes, 60).operator());
    let f = nonnegative(14, nodes * 3);
    let cpu = Cpu::<f32>::new(1).unwrap();
    let graph = Adjacency::new(&cpu, operator).unwrap();
    for p in [1.5, 2.0, 3.0, 100.0] {
        let mut propagation = Propagation::new(&cpu, &power_map(p), &graph.edges(), 3).unwrap();
        let mut solved = |scale: f64| {
            let scaled: Vec<f32> = f.iter().map(|x| (scale * x) as f32).collect();
            let f = NodeMatrix::from_rows(nodes, 3, &scaled).unwrap();
            let (edges, mut gradient) = (graph.edges(), f.clone());
            let ones = NodeMatrix::from_rows(nodes, 3, &vec![1.0; nodes * 3]).unwrap();
            let z = propagation.unroll(&edges, &f, 40).unwrap().clone();
            propagation.unroll_backward(&edges, &f, &ones, &mut gradient).unwrap();
            [z, gradient].map(|matrix| matrix.to_rows().iter().map(|&x| f64::from(x)).collect::<Vec<f64>>())
        };
        let [z, gradient] = solved(1.0);
        for scale in [1e-30, 1e-20, 1e20, 1e30] {
            let [other, other_gradient] = solved(scale);
            let other: Vec<f64> = other.iter().map(|z| z / scale).collect();
            assert!(gap(&z, &other) < 1e-4, "p = {p}, scale {scale:e}: {}", gap(&z, &other));
            // Slopes lose as many digits as p has.
            let apart = gap(&gradient, &other_gradient);
            assert!(apart < 2e-4 * p, "p = {p}, scale {scale:e}: {apart}");
        }
        // Nothing gives nothing, and a gradient that is one.
        let [nothing, gradient] = solved(0.0);
        assert!(nothing.iter().all(|z| *z == 0.0) && gradient.iter().all(|g| g.is_finite()));
    }
}

fn narrow(operator: GraphOperator<f64>) -> GraphOperator<f32> {
    let GraphOperator::Hyperedges { incidence, own } = operator else { panic!("not hyperedges") };
    let numbers = |numbers: &[f64]| numbers.iter().map(|&x| x as f32).collect::<Vec<f32>>();
    let Csr { rows, cols, starts, columns, values } = incidence;
    let incidence = Csr { rows, cols, starts, columns, values: numbers(&values) };
    GraphOperator::Hyperedges { incidence, own: numbers(&own) }
}

#[test]
fn threads_and_instructions_agree_on_power_means() {
    // Large enough for several chunks of nodes and of hyperedges.
    let nodes = 9000;
    let operator = narrow(Hypergraph::random(11, nodes, 9000).operator());
    let f: Vec<f32> = nonnegative(12, nodes * 5).iter().map(|&x| x as f32).collect();
    let f = NodeMatrix::from_rows(nodes, 5, &f).unwrap();
    for p in POWERS {
        let run = |threads: usize, isa: Isa| {
            let cpu = Cpu::<f32>::with_isa(threads, isa).unwrap();
            let graph = Adjacency::new(&cpu, operator.clone()).unwrap();
            let edges = graph.edges();
            assert!(edges.forward.chunks.len() > 1);
            let mut propagation = Propagation::new(&cpu, &power_map(p), &edges, 5).unwrap();
            let (mut z, mut gradient) = (f.clone(), f.clone());
            propagation.solve(&edges, &f, &ANDERSON, &stopping(1e-6), &mut z).unwrap();
            propagation.adjoint(&edges, &f, &z, &f, &ANDERSON, &stopping(1e-6), &mut gradient).unwrap();
            (z.to_rows(), gradient.to_rows())
        };
        let best = Isa::available().last().unwrap();
        let one = run(1, best);
        assert!(one == run(2, best) && one == run(3, best), "p = {p}");
        for isa in Isa::available() {
            let wide = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
            assert!(gap(&wide(&one.0), &wide(&run(1, isa).0)) < 1e-4, "p = {p} {}", isa.name());
        }
    }
}

#[test]
fn a_node_listed_twice_counts_once_and_pairs_are_refused() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    // Node 0 twice: its weights are added up, and the hyperedge has two nodes.
    let twice =
        Csr { rows: 2, cols: 1, starts: vec![0, 2, 3], columns: vec![0; 3], values: vec![0.2, 0.2, 0.4] };
    let graph =
        Adjacency::new(&cpu, GraphOperator::Hyperedges { incidence: twice, own: vec![0.0; 2] }).unwrap();
    let mut propagation = Propagation::new(&cpu, &power_map(2.0), &graph.edges(), 1).unwrap();
    let z = NodeMatrix::from_rows(2, 1, &[3.0, 4.0]).unwrap();
    let (f, mut image) = (NodeMatrix::zeros(2, 1), NodeMatrix::zeros(2, 1));
    propagation.apply(&graph.edges(), Some(&z), &f, None, &mut image).unwrap();
    let wanted = 0.9 * 0.4 * 2f64.sqrt() * (0.4 * 5.0);
    assert!(gap(&image.to_rows(), &[wanted; 2]) < 1e-15);

    let pairs = Csr { rows: 2, cols: 2, starts: vec![0, 1, 2], columns: vec![1, 0], values: vec![1.0; 2] };
    let graph = Adjacency::new(&cpu, pairs).unwrap();
    let refused = Propagation::new(&cpu, &power_map(2.0), &graph.edges(), 1).err().unwrap().to_string();
    assert!(refused.contains("over hyperedges"), "{refused}");
    assert!(propagation.apply(&graph.edges(), Some(&z), &f, None, &mut image).is_err());
}
