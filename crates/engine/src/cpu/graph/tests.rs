//! Graph maps against a dense `f64` reference, gradients against finite differences, equivariance, odd graphs.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Groups, Layout, Map, Overrides};

use super::*;
use crate::cpu::simd::SimdReal;
use crate::cpu::{Cpu, Isa};
use crate::network::Csr;
use crate::{
    Activation, EngineError, Extent, Form, GraphMap, GraphNorm, Injection, Measure, Outcome, PNorm, Solver,
    Stopping,
};

/// A graph and an injection, dense and in `f64`.
#[derive(Clone, Debug)]
struct Problem {
    nodes: usize,
    channels: usize,
    /// Row-major.
    a: Vec<f64>,
    f: Vec<f64>,
}

/// `D^-1/2 (A + I) D^-1/2` of a random graph; some nodes have no neighbours. Injections lie in `[low, low + 2]`.
fn random_problem(seed: u64, nodes: usize, channels: usize, low: f64) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut a = vec![0.0; nodes * nodes];
    for i in 0..nodes {
        a[i * nodes + i] = 1.0;
        for j in 0..i {
            if i % 5 != 0 && j % 5 != 0 && rng.random_bool((4.0 / nodes as f64).min(1.0)) {
                a[i * nodes + j] = 1.0;
                a[j * nodes + i] = 1.0;
            }
        }
    }
    let degrees: Vec<f64> = a.chunks(nodes).map(|row| row.iter().sum()).collect();
    for i in 0..nodes {
        for j in 0..nodes {
            a[i * nodes + j] /= (degrees[i] * degrees[j]).sqrt();
        }
    }
    let f = (0..nodes * channels).map(|_| low + 2.0 * rng.random::<f64>()).collect();
    Problem { nodes, channels, a, f }
}

impl Problem {
    fn csr<T: SimdReal>(&self) -> Csr<T> {
        let mut csr =
            Csr { rows: self.nodes, cols: self.nodes, starts: vec![0], columns: vec![], values: vec![] };
        for row in self.a.chunks(self.nodes) {
            for (j, &weight) in row.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                csr.columns.push(j as u32);
                csr.values.push(T::from_f64(weight));
            }
            csr.starts.push(csr.columns.len());
        }
        csr
    }

    fn matrix<T: SimdReal>(&self, rows: &[f64]) -> NodeMatrix<T> {
        let rows: Vec<T> = rows.iter().map(|&x| T::from_f64(x)).collect();
        NodeMatrix::from_rows(self.nodes, self.channels, &rows).unwrap()
    }

    /// `F(z; f)`, written as in the paper.
    fn apply(&self, map: &GraphMap, z: &[f64]) -> Vec<f64> {
        let (n, c, t) = (self.nodes, self.channels, map.teleport());
        let mut out = vec![0.0; n * c];
        for i in 0..n {
            for k in 0..c {
                let u: f64 = (1.0 - t) * (0..n).map(|j| self.a[i * n + j] * z[j * c + k]).sum::<f64>();
                let y = t * self.f[i * c + k];
                let s = |u: f64| if map.activation() == Activation::Tanh { u.tanh() } else { u };
                out[i * c + k] =
                    map.shift() + if map.injection() == Injection::Inner { s(u + y) } else { s(u) + y };
            }
        }
        let norm = |numbers: &mut dyn Iterator<Item = f64>| numbers.fold(0.0f64, |a, b| a.max(b.abs()));
        match map.normalisation() {
            None => {}
            Some(GraphNorm::Rows) => {
                for row in out.chunks_mut(c) {
                    let top = norm(&mut row.iter().copied());
                    row.iter_mut().for_each(|x| *x /= top);
                }
            }
            Some(GraphNorm::Columns) => {
                for k in 0..c {
                    let top = norm(&mut out.iter().copied().skip(k).step_by(c));
                    out.iter_mut().skip(k).step_by(c).for_each(|x| *x /= top);
                }
            }
        }
        if let Some(radius) = map.ball() {
            for row in out.chunks_mut(c) {
                let size = row.iter().map(|x| x * x).sum::<f64>().sqrt();
                row.iter_mut().for_each(|x| *x *= (radius / size).min(1.0));
            }
        }
        out
    }

    /// Iterates until nothing moves any more.
    fn rest(&self, map: &GraphMap, mut z: Vec<f64>) -> Vec<f64> {
        for _ in 0..5000 {
            let next = self.apply(map, &z);
            let moved = next.iter().zip(&z).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            z = next;
            if moved < 1e-15 {
                break;
            }
        }
        z
    }

    fn iterate(&self, map: &GraphMap, start: Vec<f64>, steps: usize) -> Vec<f64> {
        (0..steps).fold(start, |z, _| self.apply(map, &z))
    }
}

/// Every map: activation x injection x normalisation, and projections.
fn all_maps() -> Vec<GraphMap> {
    let mut maps = Vec::new();
    for (activation, shift) in [(Activation::Identity, 0.0), (Activation::Tanh, 1.2)] {
        for injection in [Injection::Outer, Injection::Inner] {
            for normalisation in [None, Some(Groups::GraphRows), Some(Groups::GraphColumns)] {
                let mut map = Map::of_form(Form::Graph { teleport: 0.1 }, activation, shift).unwrap();
                if injection == Injection::Inner {
                    map = map.inner().unwrap();
                }
                if let Some(groups) = normalisation {
                    map = map.normalised(PNorm::Inf, groups).unwrap();
                }
                maps.push(GraphMap::new(map).unwrap());
            }
        }
    }
    // The published code's appnp-tanh: no shift.
    maps.push(shifted(maps[9], 0.0));
    // Rows projected onto balls that some of them lie in and some do not.
    for plain in [maps[0], shifted(maps[6], 0.0), shifted(maps[9], 0.0)] {
        maps.push(GraphMap::new(plain.equation().projected(Groups::GraphRows, 1.3).unwrap()).unwrap());
    }
    maps
}

fn shifted(map: GraphMap, shift: f64) -> GraphMap {
    GraphMap::new(map.equation().with_shift(shift).unwrap()).unwrap()
}

fn stopping(measure: Measure, tolerance: f64) -> Stopping {
    Stopping { measure, tolerance, max_iterations: 2000, extent: Extent::PerSample }
}

fn close(found: &[f64], wanted: &[f64], tolerance: f64, what: &str) {
    let worst = found.iter().zip(wanted).map(|(a, b)| (a - b).abs() / b.abs().max(1.0)).fold(0.0, f64::max);
    assert!(found.len() == wanted.len() && worst <= tolerance, "{what}: off by {worst:e}");
}

fn to_f64<T: SimdReal>(matrix: &NodeMatrix<T>) -> Vec<f64> {
    matrix.to_rows().into_iter().map(|x| x.to_f64()).collect()
}

#[test]
fn fixed_points_agree_with_a_long_f64_iteration() {
    for channels in [1, 3, 9, 33, 70] {
        let problem = random_problem(channels as u64, 30, channels, 0.05);
        for map in all_maps() {
            let wanted = problem.rest(&map, vec![1.0; 30 * channels]);
            for isa in Isa::available() {
                let cpu = Cpu::<f32>::with_isa(2, isa).unwrap();
                let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
                let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), channels).unwrap();
                let f = problem.matrix(&problem.f);
                let mut z = f.clone();
                let stopping = stopping(Measure::Relative, 1e-8);
                let report =
                    propagation.solve(&graph.edges(), &f, &Solver::Picard, &stopping, &mut z).unwrap();
                assert!(
                    matches!(report.outcome, Outcome::Converged | Outcome::Stagnated),
                    "{map:?} {report:?}"
                );
                close(&to_f64(&z), &wanted, 3e-6, &format!("{map:?} {} {channels}", isa.name()));
                let anderson = Solver::Anderson { window: 5, ridge: 1e-8, mixing: 1.0 };
                let faster = propagation.solve(&graph.edges(), &f, &anderson, &stopping, &mut z).unwrap();
                assert!(
                    matches!(faster.outcome, Outcome::Converged | Outcome::Stagnated),
                    "{map:?} {faster:?}"
                );
                close(&to_f64(&z), &wanted, 3e-6, &format!("Anderson {map:?} {} {channels}", isa.name()));
            }
            let cpu = Cpu::<f64>::new(1).unwrap();
            let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
            let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), channels).unwrap();
            let f = problem.matrix(&problem.f);
            let mut z = f.clone();
            let stopping = stopping(Measure::Relative, 1e-14);
            propagation.solve(&graph.edges(), &f, &Solver::Picard, &stopping, &mut z).unwrap();
            close(&to_f64(&z), &wanted, 1e-9, &format!("{map:?} f64 {channels}"));
        }
    }
}

/// `sum weights * z`, a loss to differentiate.
fn loss(weights: &[f64], z: &[f64]) -> f64 {
    weights.iter().zip(z).map(|(w, z)| w * z).sum()
}

/// Central differences of `value` in every entry of `at`.
fn differences(at: &[f64], value: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let h = 1e-5;
    (0..at.len())
        .map(|k| {
            let mut moved = at.to_vec();
            moved[k] = at[k] + h;
            let up = value(&moved);
            moved[k] = at[k] - h;
            (up - value(&moved)) / (2.0 * h)
        })
        .collect()
}

#[test]
fn gradients_agree_with_differences_in_every_mode() {
    for (low, nodes, channels) in [(0.1, 11, 3), (-1.0, 12, 2)] {
        let problem = random_problem(5, nodes, channels, low);
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        let weights: Vec<f64> = problem.f.iter().map(|_| rng.random::<f64>() - 0.5).collect();
        let cpu = Cpu::<f64>::new(1).unwrap();
        let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
        let edges = graph.edges();
        for map in all_maps() {
            let f = problem.matrix::<f64>(&problem.f);
            let v = problem.matrix::<f64>(&weights);
            let mut gradient = v.clone();
            let mut propagation = Propagation::new(&cpu, &map, &edges, channels).unwrap();
            let with = |f: &[f64]| Problem { f: f.to_vec(), ..problem.clone() };

            propagation.unroll(&edges, &f, 7).unwrap();
            propagation.unroll_backward(&edges, &f, &v, &mut gradient).unwrap();
            let wanted = differences(&problem.f, |f| loss(&weights, &with(f).iterate(&map, f.to_vec(), 7)));
            close(&to_f64(&gradient), &wanted, 1e-7, &format!("unrolled {map:?}"));

            let linear_normalised = map.activation() == Activation::Identity && map.normalisation().is_some();
            if linear_normalised && low < 0.0 {
                continue; // nothing is proved about it, and it need not converge
            }
            let stopping = stopping(Measure::Relative, 1e-14);
            let mut z = f.clone();
            propagation.solve(&edges, &f, &Solver::Picard, &stopping, &mut z).unwrap();
            propagation.adjoint(&edges, &f, &z, &v, &Solver::Picard, &stopping, &mut gradient).unwrap();
            let start = to_f64(&z);
            let wanted =
                differences(&problem.f, |f| loss(&weights, &with(f).iterate(&map, start.clone(), 400)));
            close(&to_f64(&gradient), &wanted, 1e-7, &format!("implicit {map:?}"));

            if map.is_linear() {
                propagation.adjoint_linear(&edges, &v, 1e-13, 500, &mut gradient).unwrap();
                close(&to_f64(&gradient), &wanted, 1e-7, "conjugate gradients, adjoint");
            }
        }
    }
}

#[test]
fn ties_share_the_gradient_of_a_norm() {
    // Equal injections: every entry of a row (column) has the norm. By symmetry the gradient must be symmetric too.
    let mut problem = random_problem(1, 4, 2, 0.0);
    problem.a = vec![0.25; 16];
    problem.f = vec![0.5; 8];
    let cpu = Cpu::<f64>::new(1).unwrap();
    let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
    for map in [all_maps()[7], all_maps()[8]] {
        let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 2).unwrap();
        let f = problem.matrix(&problem.f);
        propagation.unroll(&graph.edges(), &f, 3).unwrap();
        let mut gradient = f.clone();
        let v = problem.matrix(&[1.0; 8]);
        propagation.unroll_backward(&graph.edges(), &f, &v, &mut gradient).unwrap();
        // The normalised state is 1 everywhere, whatever f is: no entry may matter.
        close(&to_f64(&gradient), &[0.0; 8], 1e-12, "ties");
    }
}

#[test]
fn conjugate_gradients_solve_linear_propagation_exactly() {
    let problem = random_problem(3, 300, 7, -1.0);
    let map = shifted(all_maps()[0], 0.3);
    let wanted = problem.rest(&map, vec![0.0; 2100]);
    let cpu = Cpu::<f32>::new(2).unwrap();
    let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
    let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 7).unwrap();
    let f = problem.matrix(&problem.f);
    let mut z = f.clone();
    let report = propagation.solve_linear(&graph.edges(), &f, 1e-7, 100, &mut z).unwrap();
    assert!(report.converged() && report.iterations < 45, "{report:?}");
    close(&to_f64(&z), &wanted, 1e-6, "conjugate gradients");
    // A nonlinear map and dropped edges are refused.
    let mut thinned = ThinnedEdges::default();
    thinned.refresh(&cpu, &graph, Dropout::new(0.5, 1, 1)).unwrap();
    assert!(propagation.solve_linear(&thinned.edges(&graph), &f, 1e-7, 100, &mut z).is_err());
    let mut nonlinear = Propagation::new(&cpu, &all_maps()[6], &graph.edges(), 7).unwrap();
    assert!(nonlinear.solve_linear(&graph.edges(), &f, 1e-7, 100, &mut z).is_err());
}

#[test]
fn threads_and_edge_dropout_leave_the_bits_alone() {
    // Large enough for several chunks.
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let (nodes, channels) = (6000, 5);
    let mut csr = Csr::<f32> { rows: nodes, cols: nodes, starts: vec![0], columns: vec![], values: vec![] };
    for _ in 0..nodes {
        let mut row: Vec<u32> = (0..8).map(|_| rng.random_range(0..nodes as u32)).collect();
        row.sort_unstable();
        row.dedup();
        csr.values.extend(row.iter().map(|_| rng.random::<f32>() / 8.0));
        csr.columns.extend(row);
        csr.starts.push(csr.columns.len());
    }
    let f: Vec<f32> = (0..nodes * channels).map(|_| rng.random()).collect();
    let f = NodeMatrix::from_rows(nodes, channels, &f).unwrap();
    for map in all_maps() {
        let run = |threads: usize| {
            let cpu = Cpu::<f32>::new(threads).unwrap();
            let graph = Adjacency::new(&cpu, csr.clone()).unwrap();
            assert!(!graph.is_symmetric());
            let mut thinned = ThinnedEdges::default();
            thinned.refresh(&cpu, &graph, Dropout::new(0.3, 4, 2)).unwrap();
            let edges = thinned.edges(&graph);
            let mut propagation = Propagation::new(&cpu, &map, &edges, channels).unwrap();
            let mut gradient = f.clone();
            let end = propagation.unroll(&edges, &f, 4).unwrap().to_rows();
            propagation.unroll_backward(&edges, &f, &f, &mut gradient).unwrap();
            let mut z = f.clone();
            let stopping = Stopping { max_iterations: 20, ..stopping(Measure::Relative, 1e-6) };
            let report = propagation.solve(&edges, &f, &Solver::Picard, &stopping, &mut z).unwrap();
            (end, gradient.to_rows(), z.to_rows(), report)
        };
        let one = run(1);
        assert!(one == run(2) && one == run(3), "{map:?}");
    }
}

#[test]
fn thinned_edges_are_the_same_forward_and_backward() {
    let problem = random_problem(8, 50, 4, 0.0);
    let cpu = Cpu::<f64>::new(1).unwrap();
    let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
    let dropout = Dropout::new(0.4, 3, 3);
    let mut thinned = ThinnedEdges::default();
    thinned.refresh(&cpu, &graph, dropout).unwrap();
    // The same by hand, as a dense problem.
    let mut dense = problem.clone();
    for i in 0..50 {
        for j in 0..50 {
            let factor = if dropout.keeps(i as u32, j as u32) { dropout.scale() } else { 0.0 };
            dense.a[i * 50 + j] *= factor;
        }
    }
    assert_ne!(dense.a, problem.a);
    let map = all_maps()[6];
    let edges = thinned.edges(&graph);
    let mut propagation = Propagation::new(&cpu, &map, &edges, 4).unwrap();
    let f = problem.matrix(&problem.f);
    let end = propagation.unroll(&edges, &f, 3).unwrap();
    close(&to_f64(end), &dense.iterate(&map, problem.f.clone(), 3), 1e-12, "thinned forward");
    let weights: Vec<f64> = (0..200).map(|k| (k as f64).sin()).collect();
    let mut gradient = f.clone();
    propagation.unroll_backward(&edges, &f, &problem.matrix(&weights), &mut gradient).unwrap();
    let wanted = differences(&problem.f, |f| {
        loss(&weights, &Problem { f: f.to_vec(), ..dense.clone() }.iterate(&map, f.to_vec(), 3))
    });
    close(&to_f64(&gradient), &wanted, 1e-8, "thinned backward");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Renumbering the nodes renumbers the answer and its gradient, and does nothing else.
    #[test]
    fn propagation_is_equivariant_under_permutations(
        seed in 0u64..1000, nodes in 1usize..40, channels in 1usize..12, which in 0usize..16, low in -1.0f64..0.5,
    ) {
        let map = all_maps()[which];
        let problem = random_problem(seed, nodes, channels, low);
        let mut order: Vec<usize> = (0..nodes).collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed + 1);
        for k in (1..nodes).rev() {
            order.swap(k, rng.random_range(0..=k));
        }
        let rows = |rows: &[f64]| -> Vec<f64> {
            order.iter().flat_map(|&i| rows[i * channels..(i + 1) * channels].to_vec()).collect()
        };
        let permuted = Problem {
            a: order.iter().flat_map(|&i| order.iter().map(move |&j| (i, j))).map(|(i, j)| problem.a[i * nodes + j]).collect(),
            f: rows(&problem.f),
            ..problem
        };
        let run = |problem: &Problem| {
            let cpu = Cpu::<f64>::new(1).unwrap();
            let graph = Adjacency::new(&cpu, problem.csr()).unwrap();
            let edges = graph.edges();
            let f = problem.matrix(&problem.f);
            let mut propagation = Propagation::new(&cpu, &map, &edges, channels).unwrap();
            let end = to_f64(propagation.unroll(&edges, &f, 5).unwrap());
            let mut gradient = f.clone();
            propagation.unroll_backward(&edges, &f, &f, &mut gradient).unwrap();
            (end, to_f64(&gradient))
        };
        let (plain, moved) = (run(&problem), run(&permuted));
        close(&moved.0, &rows(&plain.0), 1e-10, "state");
        // Ties of a norm are broken by rounding, which a permutation may change; they do not occur at random.
        close(&moved.1, &rows(&plain.1), 1e-8, "gradient");
    }
}

#[test]
fn odd_graphs_are_right_or_refused() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    let map = all_maps()[6];
    // No nodes at all.
    let nothing = Csr::<f64> { rows: 0, cols: 0, starts: vec![0], columns: vec![], values: vec![] };
    let graph = Adjacency::new(&cpu, nothing).unwrap();
    let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 3).unwrap();
    let f = NodeMatrix::zeros(0, 3);
    let mut z = f.clone();
    let stop = stopping(Measure::Relative, 1e-10);
    assert!(propagation.solve(&graph.edges(), &f, &Solver::Picard, &stop, &mut z).unwrap().converged());
    // Nodes without any entry: the injection is all they get.
    let isolated = Csr::<f64> { rows: 2, cols: 2, starts: vec![0, 0, 0], columns: vec![], values: vec![] };
    let graph = Adjacency::new(&cpu, isolated).unwrap();
    let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 1).unwrap();
    let f = NodeMatrix::from_rows(2, 1, &[2.0, 0.0]).unwrap();
    let mut z = f.clone();
    propagation.solve(&graph.edges(), &f, &Solver::Picard, &stop, &mut z).unwrap();
    close(&to_f64(&z), &[1.4, 1.2], 1e-12, "isolated");
    // Entries out of order and given twice are added up.
    let twice = Csr {
        rows: 2,
        cols: 2,
        starts: vec![0, 3, 4],
        columns: vec![1, 0, 1, 0],
        values: vec![0.2, 0.5, 0.3, 0.5],
    };
    let graph = Adjacency::new(&cpu, twice).unwrap();
    assert_eq!(graph.operator().stored().columns, [0, 1, 0]);
    assert_eq!(graph.operator().stored().values, [0.5, 0.5, 0.5]);
    assert!(graph.is_symmetric());
    // What is refused, and how.
    let outside = Csr { rows: 2, cols: 2, starts: vec![0, 1, 1], columns: vec![2], values: vec![1.0] };
    assert!(Adjacency::new(&cpu, outside).unwrap_err().to_string().contains("column 2 of 2"));
    let oblong = Csr::<f64> { rows: 1, cols: 2, starts: vec![0, 0], columns: vec![], values: vec![] };
    assert!(Adjacency::new(&cpu, oblong).unwrap_err().to_string().contains("square"));
    let nan = Csr { rows: 1, cols: 1, starts: vec![0, 1], columns: vec![0], values: vec![f64::NAN] };
    assert!(matches!(Adjacency::new(&cpu, nan), Err(EngineError::NotFinite { index: 0, .. })));
    let mut small = NodeMatrix::zeros(1, 1);
    assert!(propagation.solve(&graph.edges(), &f, &Solver::Picard, &stop, &mut small).is_err());
    let relu = Map::of_form(Form::Graph { teleport: 0.1 }, Activation::Relu, 0.0).unwrap();
    assert!(GraphMap::new(relu).unwrap_err().to_string().contains("identity and tanh"));
    let long =
        relu.with(&Overrides { activation: Some(Activation::Tanh), ..Overrides::default() }, Layout::Graph);
    let long = long.unwrap().normalised(PNorm::Finite(2.0), Groups::GraphRows).unwrap();
    assert!(GraphMap::new(long).unwrap_err().to_string().contains("largest entry"));
    let projected = map.equation().projected(Groups::GraphColumns, 1.0).unwrap();
    assert!(GraphMap::new(projected).unwrap_err().to_string().contains("projects rows only"));
    assert!(Propagation::<f64>::new(&cpu, &map, &graph.edges(), 0).is_err());
}

/// The network with dropout, written plainly.
fn encoder_by_hand(
    x: &Csr<f64>,
    w: &Encoder<f64>,
    dropout: Option<EncoderDropout>,
    activation: OutputActivation,
) -> Vec<f64> {
    let kept = |mask: Option<Dropout>, row: usize, column: usize| match mask {
        Some(mask) if mask.keeps(row as u32, column as u32) => mask.scale(),
        Some(_) => 0.0,
        None => 1.0,
    };
    let mut out = Vec::new();
    for row in 0..x.rows {
        let mut units = w.hidden_bias.row(0).to_vec();
        for k in x.starts[row]..x.starts[row + 1] {
            let column = x.columns[k] as usize;
            let value = x.values[k] * kept(dropout.map(|d| d.features), row, column);
            units.iter_mut().zip(w.hidden.row(column)).for_each(|(unit, w)| *unit += value * w);
        }
        let mut classes = w.output_bias.row(0).to_vec();
        for (k, unit) in units.iter().enumerate() {
            let unit = unit.max(0.0) * kept(dropout.map(|d| d.hidden), row, k);
            classes.iter_mut().zip(w.output.row(k)).for_each(|(class, w)| *class += unit * w);
        }
        out.extend(classes.into_iter().map(|x| match activation {
            OutputActivation::Signed => x,
            OutputActivation::Relu => x.max(0.0),
            OutputActivation::Softplus => x.exp().ln_1p(),
        }));
    }
    out
}

#[test]
fn encoder_and_its_gradient() {
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    for (nodes, features, hidden, classes) in [(9, 7, 5, 3), (40, 300, 20, 11), (3, 2, 1, 1)] {
        let mut x =
            Csr::<f64> { rows: nodes, cols: features, starts: vec![0], columns: vec![], values: vec![] };
        for row in 0..nodes {
            // One row longer than a block of entries, one empty row.
            let share = if row == 0 {
                0.9
            } else if row == 1 {
                0.0
            } else {
                0.3
            };
            for column in 0..features as u32 {
                if rng.random_bool(share) {
                    x.columns.push(column);
                    x.values.push(rng.random::<f64>());
                }
            }
            x.starts.push(x.columns.len());
        }
        let mut weights = Encoder::<f64>::zeros(features, hidden, classes);
        for array in weights.arrays_mut() {
            for row in 0..array.nodes() {
                array.row_mut(row).iter_mut().for_each(|w| *w = rng.random::<f64>() - 0.4);
            }
        }
        let dropout = EncoderDropout { features: Dropout::new(0.5, 1, 1), hidden: Dropout::new(0.25, 1, 2) };
        let loss_weights: Vec<f64> = (0..nodes * classes).map(|k| (k as f64 + 0.5).sin()).collect();
        for activation in [OutputActivation::Signed, OutputActivation::Relu, OutputActivation::Softplus] {
            for dropout in [None, Some(dropout)] {
                let cpu = Cpu::<f64>::new(2).unwrap();
                let checked = Features::new(x.clone()).unwrap();
                let mut pass = EncoderPass::new(&cpu, &checked, hidden, classes, activation).unwrap();
                let mut f = NodeMatrix::zeros(nodes, classes);
                pass.forward(&checked, &weights, dropout, &mut f).unwrap();
                let value = |w: &Encoder<f64>| encoder_by_hand(&x, w, dropout, activation);
                close(&to_f64(&f), &value(&weights), 1e-12, "encoder");
                let g = NodeMatrix::from_rows(nodes, classes, &loss_weights).unwrap();
                let mut gradient = Encoder::zeros(features, hidden, classes);
                pass.backward(&checked, &weights, dropout, &f, &g, &mut gradient).unwrap();
                for array in 0..4 {
                    let at = to_f64(weights.arrays()[array]);
                    // All entries of small arrays, some of large ones.
                    let skip = at.len().div_ceil(40);
                    for k in (0..at.len()).step_by(skip) {
                        let width = weights.arrays()[array].channels();
                        let moved = |h: f64| {
                            let mut moved = weights.clone();
                            moved.arrays_mut()[array].row_mut(k / width)[k % width] += h;
                            loss(&loss_weights, &value(&moved))
                        };
                        let wanted = (moved(1e-6) - moved(-1e-6)) / 2e-6;
                        let found = gradient.arrays()[array].row(k / width)[k % width];
                        assert!(
                            (found - wanted).abs() < 1e-6 * wanted.abs().max(1.0),
                            "{array} {k}: {found} {wanted}"
                        );
                    }
                }
                // Single precision on every instruction set, and any number of threads, agree.
                let single = Csr {
                    rows: x.rows,
                    cols: x.cols,
                    starts: x.starts.clone(),
                    columns: x.columns.clone(),
                    values: x.values.iter().map(|&v| v as f32).collect(),
                };
                let single = Features::new(single).unwrap();
                let mut narrow = Encoder::<f32>::zeros(features, hidden, classes);
                for (to, from) in narrow.arrays_mut().into_iter().zip(weights.arrays()) {
                    for row in 0..from.nodes() {
                        to.row_mut(row)
                            .iter_mut()
                            .zip(from.row(row))
                            .for_each(|(to, &from)| *to = from as f32);
                    }
                }
                for isa in Isa::available() {
                    let cpu = Cpu::<f32>::with_isa(2, isa).unwrap();
                    let mut pass = EncoderPass::new(&cpu, &single, hidden, classes, activation).unwrap();
                    let mut f32s = NodeMatrix::zeros(nodes, classes);
                    pass.forward(&single, &narrow, dropout, &mut f32s).unwrap();
                    close(&to_f64(&f32s), &to_f64(&f), 1e-4, isa.name());
                    let g: Vec<f32> = loss_weights.iter().map(|&g| g as f32).collect();
                    let g = NodeMatrix::from_rows(nodes, classes, &g).unwrap();
                    let mut found = Encoder::zeros(features, hidden, classes);
                    pass.backward(&single, &narrow, dropout, &f32s, &g, &mut found).unwrap();
                    for (found, wanted) in found.arrays().into_iter().zip(gradient.arrays()) {
                        close(&to_f64(found), &to_f64(wanted), 1e-3, isa.name());
                    }
                }
            }
        }
    }
}

/// Nothing that safe code can do makes a kernel read beyond a matrix.
#[test]
fn what_kernels_rely_on_cannot_be_taken_away() {
    let cpu = Cpu::<f32>::new(1).unwrap();
    let map = GraphMap::new(Map::named("appnp-tanh", Layout::Graph).unwrap()).unwrap();
    let small = Adjacency::new(&cpu, random_problem(1, 6, 2, 0.0).csr()).unwrap();
    let large = Adjacency::new(&cpu, random_problem(2, 9, 2, 0.0).csr()).unwrap();
    // Edges of a small graph, asked for in the name of a large one.
    let mut thinned = ThinnedEdges::default();
    thinned.refresh(&cpu, &small, Dropout::new(0.5, 1, 1)).unwrap();
    let mut propagation = Propagation::new(&cpu, &map, &small.edges(), 2).unwrap();
    let (f, mut z) = (NodeMatrix::zeros(6, 2), NodeMatrix::zeros(6, 2));
    let error = propagation.apply(&thinned.edges(&large), None, &f, None, &mut z).unwrap_err();
    assert!(error.to_string().contains("another graph"), "{error}");
    propagation.apply(&thinned.edges(&small), None, &f, None, &mut z).unwrap();
    // Weights whose public fields were exchanged.
    let x = Csr { rows: 6, cols: 9, starts: vec![0, 1, 1, 1, 1, 1, 1], columns: vec![8], values: vec![1.0] };
    let features = Features::new(x.clone()).unwrap();
    let mut pass = EncoderPass::new(&cpu, &features, 3, 2, OutputActivation::Signed).unwrap();
    let whole = Encoder::zeros(9, 3, 2);
    pass.forward(&features, &whole, None, &mut z).unwrap();
    let short = Encoder { hidden: NodeMatrix::zeros(2, 3), ..whole.clone() };
    assert!(pass.forward(&features, &short, None, &mut z).is_err());
    assert!(pass.backward(&features, &whole, None, &f, &z, &mut short.clone()).is_err());
    let adam = crate::network::Adam::new(0.1, 0.0, 1);
    let update = |gradient: &Encoder<f32>, moment: &Encoder<f32>| {
        whole.clone().adam(&cpu, &adam, gradient, &mut [whole.clone(), moment.clone()])
    };
    assert!(update(&whole, &whole).is_ok());
    assert!(update(&short, &whole).is_err() && update(&whole, &short).is_err());
    // Columns that could not be numbered, whose weights would wrap around to an empty matrix.
    let error = Features::new(Csr { cols: 1 << 61, ..x }).unwrap_err();
    assert!(error.to_string().contains("2^32"), "{error}");
}

#[test]
#[should_panic(expected = "larger than the address space")]
fn a_matrix_that_wraps_around_is_not_a_small_one() {
    let _ = NodeMatrix::<f32>::zeros(1 << 61, 8);
}

/// A propagation serves every graph of its size, also one with more chunks than the first.
#[test]
fn a_denser_graph_needs_no_new_propagation() {
    let (cpu, nodes) = (Cpu::<f32>::new(2).unwrap(), 300);
    let ring = |width: usize| {
        let columns = (0..nodes).flat_map(|i| {
            let mut row: Vec<u32> = (0..width).map(|k| ((i + k) % nodes) as u32).collect();
            row.sort_unstable();
            row
        });
        let values = vec![1.0 / width as f32; nodes * width];
        let starts = (0..=nodes).map(|i| i * width).collect();
        Adjacency::new(&cpu, Csr { rows: nodes, cols: nodes, starts, columns: columns.collect(), values })
            .unwrap()
    };
    let map = GraphMap::new(Map::named("appnp-tanh", Layout::Graph).unwrap()).unwrap();
    let (sparse, dense) = (ring(1), ring(150));
    assert!(sparse.edges().forward.chunks.len() < dense.edges().forward.chunks.len());
    let mut propagation = Propagation::new(&cpu, &map, &sparse.edges(), 1).unwrap();
    let (mut f, mut z) = (NodeMatrix::zeros(nodes, 1), NodeMatrix::zeros(nodes, 1));
    f.fill(1.0);
    propagation.apply(&dense.edges(), Some(&f), &f, None, &mut z).unwrap();
    assert!((z.row(7)[0] - (0.9f32.tanh() + 0.1 + 1.2)).abs() < 1e-5, "{}", z.row(7)[0]);
}
