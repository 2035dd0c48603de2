//! A sample's bits depend on nothing but the sample: not on its batch, its position, the number of threads. Instruction sets agree
//! within rounding.

use crate::common::*;
use subdeq_engine::cpu::Isa;
use subdeq_engine::{
    Cpu, Device, Equilibria, Extent, Measure, Operator, Padding, SampleReport, Solver, Start, Stopping,
};

const SOLVERS: [Solver; 3] =
    [Solver::Picard, Solver::Anderson { window: 4, ridge: 1e-6, mixing: 1.0 }, Solver::Broyden { memory: 6 }];

fn operators() -> [Operator; 4] {
    [
        Operator::Dense { n: 37 },
        CONV,
        Operator::Conv { channels: 5, height: 6, width: 4, padding: Padding::Circular, kernel: 3 },
        // Enough channels for matrix tiles in the frequency domain.
        Operator::Conv { channels: 17, height: 3, width: 4, padding: Padding::Circular, kernel: 3 },
    ]
}

/// Answers and implicit gradients of chosen samples of a problem, as bits.
fn run(cpu: &Cpu<f32>, problem: &Problem, samples: &[usize], solver: &Solver) -> Vec<Vec<u32>> {
    let (len, injection) = (problem.map.operator().state_len(), problem.map.injection_len());
    let y: Vec<f64> =
        samples.iter().flat_map(|&s| problem.y[s * injection..(s + 1) * injection].to_vec()).collect();
    let part = Problem { y, batch: samples.len(), weights: problem.weights.clone(), map: problem.map };
    let mut plan = cpu.plan(&part.map, part.batch).unwrap();
    load(cpu, &mut plan, &part);
    let y = cpu.upload(&convert::<f32>(&part.y)).unwrap();
    let (mut z, mut g) = (cpu.zeros(part.batch * len).unwrap(), cpu.zeros(part.batch * len).unwrap());
    let mut reports = vec![SampleReport::default(); part.batch];
    let stop = stopping(1e-5, 300);
    cpu.solve(&mut plan, part.batch, &y, solver, &stop, Start::Constant(1.0), &mut z, &mut reports).unwrap();
    let v = z.clone();
    cpu.adjoint(&mut plan, part.batch, &z, &y, &v, solver, &stop, &mut g, &mut reports).unwrap();
    (0..part.batch)
        .map(|s| {
            z[s * len..(s + 1) * len].iter().chain(&g[s * len..(s + 1) * len]).map(|x| x.to_bits()).collect()
        })
        .collect()
}

#[test]
fn bits_do_not_depend_on_batch_order_or_threads() {
    for operator in operators() {
        for map in maps(operator).into_iter().step_by(3) {
            let problem = contracting(map, 41, 17);
            let everyone: Vec<usize> = (0..41).collect();
            let solvers = SOLVERS.into_iter().chain(
                [Solver::PeacemanRachford { step: 1.2 }]
                    .into_iter()
                    .filter(|_| is_monotone(&map) && operator != CONV),
            );
            for solver in solvers {
                let expected = run(&Cpu::new(1).unwrap(), &problem, &everyone, &solver);
                for threads in [2, 3] {
                    assert_eq!(
                        run(&Cpu::new(threads).unwrap(), &problem, &everyone, &solver),
                        expected,
                        "{map:?} {solver:?}"
                    );
                }
                let shuffled: Vec<usize> = (0..41).map(|i| i * 17 % 41).collect();
                for (found, &sample) in
                    run(&Cpu::new(2).unwrap(), &problem, &shuffled, &solver).iter().zip(&shuffled)
                {
                    assert_eq!(found, &expected[sample], "{map:?} by {solver:?}, shuffled");
                }
                let alone = run(&Cpu::new(1).unwrap(), &problem, &[23], &solver);
                assert_eq!(alone[0], expected[23], "{map:?} by {solver:?}, alone");
            }
        }
    }
}

#[test]
fn weight_gradients_do_not_depend_on_threads() {
    for operator in operators() {
        let problem = contracting(plain(operator), 70, 3);
        let len = operator.state_len();
        let gradient = |threads: usize| -> Vec<u32> {
            let cpu = Cpu::<f32>::new(threads).unwrap();
            let mut plan = cpu.plan(&problem.map, 70).unwrap();
            load(&cpu, &mut plan, &problem);
            let y = cpu.upload(&convert::<f32>(&problem.y)).unwrap();
            let mut gy = cpu.zeros(70 * len).unwrap();
            let mut gw = cpu.zeros(operator.weight_len()).unwrap();
            cpu.pullback(&mut plan, 70, &y, &y, &y, None, &mut gy, std::slice::from_mut(&mut gw)).unwrap();
            gw.iter().map(|x| x.to_bits()).collect()
        };
        assert_eq!(gradient(1), gradient(2));
        assert_eq!(gradient(1), gradient(5));
    }
}

#[test]
fn instruction_sets_agree() {
    for operator in operators() {
        for map in maps(operator) {
            let problem = contracting(map, 5, 9);
            let all: Vec<Vec<f64>> = Isa::available()
                .map(|isa| {
                    let cpu = Cpu::<f32>::with_isa(1, isa).unwrap();
                    solve(&cpu, &problem, &Solver::Picard, &stopping(1e-6, 500)).0
                })
                .collect();
            for other in &all[1..] {
                let error = relative_error(other, &all[0]);
                assert!(error < 4e-6, "{map:?}: {error:e}");
            }
        }
    }
}

/// The whole batch ends together, on the residual of the whole batch.
#[test]
fn whole_batch_rule() {
    let map = plain(DENSE);
    let problem = contracting(map, 37, 4);
    let rule = Stopping {
        measure: Measure::Relative,
        tolerance: 1e-4,
        max_iterations: 100,
        extent: Extent::WholeBatch,
    };
    let mut iterations = Vec::new();
    for threads in [1, 2] {
        for solver in SOLVERS {
            let (_, reports) = solve(&Cpu::<f64>::new(threads).unwrap(), &problem, &solver, &rule);
            assert!(reports.iter().all(|r| *r == reports[0]), "{solver:?}: {reports:?}");
            assert!(reports[0].converged() && reports[0].residual <= 1e-4);
            iterations.push(reports[0]);
        }
    }
    assert_eq!(iterations[..3], iterations[3..], "the number of threads must not show");
    // Picard: the residual of the whole batch, worked out by hand.
    let len = DENSE.state_len();
    let mut z = vec![1.0; 37 * len];
    for _ in 0..iterations[0].iterations {
        let f: Vec<f64> = (0..37).flat_map(|s| reference(&problem, s, &z[s * len..(s + 1) * len])).collect();
        let difference: f64 = f.iter().zip(&z).map(|(f, z)| (f - z).powi(2)).sum();
        let size: f64 = f.iter().map(|f| f * f).sum();
        let residual = difference.sqrt() / (1e-5 + size.sqrt());
        z = f;
        if residual <= 1e-4 {
            assert!((residual - iterations[0].residual).abs() < 1e-12);
            return;
        }
    }
    panic!("the batch ended too early");
}
