//! Pullbacks and implicit adjoints of every map against central differences in `f64`.

use crate::common::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use subdeq_engine::{Cpu, Device, Equilibria, SampleReport, ShapedMap, Solver};

const BATCH: usize = 2;
const STEP: f64 = 1e-5;

/// Away from where a map has no derivative (ReLU at 0, the largest entry changing hands), differences tell the truth.
fn close(name: &str, map: &ShapedMap, found: f64, expected: f64, size: f64) {
    assert!(
        (found - expected).abs() <= 1e-5 * size.max(1e-3),
        "{name} of {map:?}: {found} by the engine, {expected} by differences"
    );
}

/// `sum v F(z; y, W)` by the reference.
fn scalar(problem: &Problem, z: &[f64], v: &[f64]) -> f64 {
    let len = problem.map.operator().state_len();
    (0..problem.batch)
        .flat_map(|s| reference(problem, s, &z[s * len..(s + 1) * len]))
        .zip(v)
        .map(|(f, v)| f * v)
        .sum()
}

fn derivative(f: impl Fn(f64) -> f64) -> f64 {
    (f(STEP) - f(-STEP)) / (2.0 * STEP)
}

/// Some of the indices below `len`: all where there are few.
fn some(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by((len / 17).max(1))
}

#[test]
fn pullback_of_every_map() {
    let cpu = Cpu::<f64>::new(2).unwrap();
    for operator in [DENSE, CONV, CIRCULAR] {
        for map in maps(operator) {
            let mut problem = contracting(map, BATCH, 21);
            let len = operator.state_len();
            let mut rng = ChaCha8Rng::seed_from_u64(5);
            let z = random(&mut rng, BATCH * len, 0.5, 1.5);
            let v = random(&mut rng, BATCH * len, -1.0, 1.0);
            let mut plan = cpu.plan(&map, BATCH).unwrap();
            load(&cpu, &mut plan, &problem);
            let (mut gz, mut gy) =
                (cpu.zeros(BATCH * len).unwrap(), cpu.zeros(BATCH * map.injection_len()).unwrap());
            let mut gw: Vec<_> =
                (0..problem.weights.len()).map(|k| cpu.zeros(map.weight_len(k)).unwrap()).collect();
            let (za, ya, va) =
                (cpu.upload(&z).unwrap(), cpu.upload(&problem.y).unwrap(), cpu.upload(&v).unwrap());
            cpu.pullback(&mut plan, BATCH, &za, &ya, &va, Some(&mut gz), &mut gy, &mut gw).unwrap();

            for i in some(BATCH * len) {
                let expected = derivative(|h| {
                    let mut z = z.clone();
                    z[i] += h;
                    scalar(&problem, &z, &v)
                });
                close("gz", &map, gz[i], expected, 1.0);
            }
            for i in some(problem.y.len()) {
                let kept = problem.y[i];
                let mut at = |h: f64| {
                    problem.y[i] = kept + h;
                    scalar(&problem, &z, &v)
                };
                let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                problem.y[i] = kept;
                close("gy", &map, gy[i], expected, 1.0);
            }
            for (k, gw) in gw.iter().enumerate() {
                for i in some(problem.weights[k].len()) {
                    let kept = problem.weights[k][i];
                    let mut at = |h: f64| {
                        problem.weights[k][i] = kept + h;
                        scalar(&problem, &z, &v)
                    };
                    let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
                    problem.weights[k][i] = kept;
                    close("gw", &map, gw[i], expected, 1.0);
                }
            }
        }
    }
}

/// The gradient of `<v, z*>` for the injection, through the fixed point: adjoint, then pullback.
#[test]
fn implicit_adjoint_of_every_map_and_solver() {
    let cpu = Cpu::<f64>::new(2).unwrap();
    let solvers = [
        Solver::Picard,
        Solver::Anderson { window: 4, ridge: 1e-10, mixing: 1.0 },
        Solver::Broyden { memory: 10 },
        Solver::PeacemanRachford { step: 0.8 },
        Solver::ForwardBackward { step: 0.7 },
    ];
    for operator in [DENSE, CONV, CIRCULAR] {
        for map in maps(operator) {
            let problem = contracting(map, BATCH, 31);
            let len = operator.state_len();
            let mut rng = ChaCha8Rng::seed_from_u64(6);
            let v = random(&mut rng, BATCH * len, -1.0, 1.0);
            let exact = stopping(1e-13, 3000);
            let solution = |problem: &Problem| solve(&cpu, problem, &Solver::Picard, &exact).0;
            let z = solution(&problem);
            let inner = |z: &[f64]| -> f64 { z.iter().zip(&v).map(|(z, v)| z * v).sum() };
            for solver in &solvers {
                let splitting =
                    matches!(solver, Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. });
                if splitting
                    && (!is_monotone(&map)
                        || operator == CONV && matches!(solver, Solver::PeacemanRachford { .. }))
                {
                    continue;
                }
                let mut plan = cpu.plan(&map, BATCH).unwrap();
                load(&cpu, &mut plan, &problem);
                let (za, ya, va) =
                    (cpu.upload(&z).unwrap(), cpu.upload(&problem.y).unwrap(), cpu.upload(&v).unwrap());
                let mut g = cpu.zeros(BATCH * len).unwrap();
                let mut reports = vec![SampleReport::default(); BATCH];
                let within = stopping(1e-11, 3000);
                cpu.adjoint(&mut plan, BATCH, &za, &ya, &va, solver, &within, &mut g, &mut reports).unwrap();
                assert!(reports.iter().all(|r| r.converged()), "{map:?} by {solver:?}: {reports:?}");
                let mut gy = cpu.zeros(BATCH * map.injection_len()).unwrap();
                let mut gw: Vec<_> =
                    (0..problem.weights.len()).map(|k| cpu.zeros(map.weight_len(k)).unwrap()).collect();
                cpu.pullback(&mut plan, BATCH, &za, &ya, &g, None, &mut gy, &mut gw).unwrap();
                for i in [0, gy.len() / 2, gy.len() - 1] {
                    let moved = |h: f64| {
                        let mut y = problem.y.clone();
                        y[i] += h;
                        inner(&solution(&Problem { y, weights: problem.weights.clone(), ..problem }))
                    };
                    close("implicit gy", &map, gy[i], derivative(moved), 1.0);
                }
                for (k, gw) in gw.iter().enumerate() {
                    for i in [0, gw.len() / 2, gw.len() - 1] {
                        let moved = |h: f64| {
                            let mut weights = problem.weights.clone();
                            weights[k][i] += h;
                            inner(&solution(&Problem { weights, y: problem.y.clone(), ..problem }))
                        };
                        close("implicit gw", &map, gw[i], derivative(moved), 1.0);
                    }
                }
            }
        }
    }
}

/// `g` is given to `pullback` and added to what the gradients hold.
#[test]
fn weight_gradients_are_added() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    let problem = contracting(plain(DENSE), BATCH, 1);
    let len = DENSE.state_len();
    let mut plan = cpu.plan(&problem.map, BATCH).unwrap();
    load(&cpu, &mut plan, &problem);
    let (z, y, v) = (
        cpu.upload(&vec![1.0; BATCH * len]).unwrap(),
        cpu.upload(&problem.y).unwrap(),
        cpu.upload(&vec![1.0; BATCH * len]).unwrap(),
    );
    let mut gy = cpu.zeros(BATCH * len).unwrap();
    let mut gw = cpu.zeros(len * len).unwrap();
    cpu.pullback(&mut plan, BATCH, &z, &y, &v, None, &mut gy, std::slice::from_mut(&mut gw)).unwrap();
    let once = gw.clone();
    cpu.pullback(&mut plan, BATCH, &z, &y, &v, None, &mut gy, std::slice::from_mut(&mut gw)).unwrap();
    for (twice, once) in gw.iter().zip(once.iter()) {
        assert!((twice - 2.0 * once).abs() < 1e-14);
    }
}
