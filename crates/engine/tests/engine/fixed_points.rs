//! Every map by every solver, dense and convolutional, against a long plain iteration in `f64`.

use crate::common::*;
use subdeq_engine::cpu::Isa;
use subdeq_engine::{Cpu, Device, Equilibria, Operator, Padding, SampleReport, Solver};

const SOLVERS: [Solver; 6] = [
    Solver::Picard,
    Solver::Anderson { window: 5, ridge: 1e-8, mixing: 1.0 },
    Solver::Anderson { window: 2, ridge: 1e-4, mixing: 0.7 },
    Solver::Broyden { memory: 12 },
    Solver::PeacemanRachford { step: 1.3 },
    Solver::ForwardBackward { step: 0.6 },
];

fn is_splitting(solver: &Solver) -> bool {
    matches!(solver, Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. })
}

fn has_resolvent(operator: &Operator) -> bool {
    !matches!(operator, Operator::Conv { padding: Padding::Zero, .. })
}

#[test]
fn one_application_is_the_map() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    for operator in [DENSE, CONV, CIRCULAR] {
        for map in maps(operator) {
            let problem = contracting(map, 3, 1);
            let len = operator.state_len();
            let mut plan = cpu.plan(&map, 3).unwrap();
            load(&cpu, &mut plan, &problem);
            let z: Vec<f64> = (0..3 * len).map(|i| 1.0 + 0.3 * (i as f64).sin()).collect();
            let mut out = cpu.zeros(3 * len).unwrap();
            cpu.apply(&mut plan, 3, &cpu.upload(&z).unwrap(), &cpu.upload(&problem.y).unwrap(), &mut out)
                .unwrap();
            for sample in 0..3 {
                let range = sample * len..(sample + 1) * len;
                let expected = reference(&problem, sample, &z[range.clone()]);
                let error = relative_error(&out[range], &expected);
                assert!(error < 1e-12, "{map:?}: {error:e}");
            }
        }
    }
}

#[test]
fn contracting_maps_by_every_solver() {
    let (single, double) = (Cpu::<f32>::new(2).unwrap(), Cpu::<f64>::new(1).unwrap());
    for operator in [DENSE, CONV, CIRCULAR] {
        for map in maps(operator) {
            let problem = contracting(map, 3, 7);
            let expected = fixed_point(&problem, 1.0);
            for solver in SOLVERS {
                let is_peaceman_rachford = matches!(solver, Solver::PeacemanRachford { .. });
                if is_splitting(&solver) && !is_monotone(&map)
                    || is_peaceman_rachford && !has_resolvent(&operator)
                {
                    continue;
                }
                let (z, reports) = solve(&single, &problem, &solver, &stopping(1e-6, 2000));
                assert!(reports.iter().all(|r| r.converged()), "{map:?} by {solver:?}: {reports:?}");
                let error = relative_error(&z, &expected);
                assert!(error < 1e-5, "{map:?} by {solver:?}: {error:e}, {reports:?}");
                let (z, reports) = solve(&double, &problem, &solver, &stopping(1e-12, 2000));
                assert!(reports.iter().all(|r| r.converged()), "{map:?} by {solver:?} in f64: {reports:?}");
                let error = relative_error(&z, &expected);
                assert!(error < 1e-9, "{map:?} by {solver:?} in f64: {error:e}");
            }
        }
    }
}

#[test]
fn monotone_maps_by_the_splittings() {
    let single = Cpu::<f32>::new(2).unwrap();
    for operator in [DENSE, CONV, CIRCULAR] {
        for map in maps(operator).into_iter().filter(is_monotone) {
            let problem = monotone(map, 2, 11);
            let expected = fixed_point(&problem, 0.05);
            let peaceman_rachford = [0.4, 1.0, 2.5].map(|step| Solver::PeacemanRachford { step });
            let forward_backward = [Solver::ForwardBackward { step: 0.1 }];
            for solver in
                peaceman_rachford.iter().filter(|_| has_resolvent(&operator)).chain(&forward_backward)
            {
                // A damped iteration moves by its share of the residual; a long step weighs it by less. Without fused products
                // rounding alone moves some states by 1.7e-7.
                let tolerance = match solver {
                    Solver::ForwardBackward { .. } if single.isa() == Isa::PORTABLE => 2e-7,
                    Solver::ForwardBackward { .. } => 1e-7,
                    _ => 5e-7,
                };
                let (z, reports) = solve(&single, &problem, solver, &stopping(tolerance, 5000));
                assert!(reports.iter().all(|r| r.converged()), "{map:?} by {solver:?}: {reports:?}");
                let error = relative_error(&z, &expected);
                assert!(error < 1e-5, "{map:?} by {solver:?}: {error:e}, {reports:?}");
            }
        }
    }
}

/// An iteration of all of the way would need 245 times, since what it reflects keeps 0.945 of its size.
#[test]
fn what_is_reflected_does_not_stay() {
    let cpu = Cpu::<f32>::new(2).unwrap();
    let (solver, rule) = (Solver::PeacemanRachford { step: 1.41 }, stopping(1e-6, 100));
    for operator in [DENSE, CIRCULAR] {
        let (problem, expected) = reflecting(operator, 2);
        let (z, reports) = solve(&cpu, &problem, &solver, &rule);
        assert!(reports.iter().all(|r| r.converged()), "{operator:?}: {reports:?}");
        let error = relative_error(&z, &expected);
        assert!(error < 2e-5, "{operator:?}: {error:e}");
        // Nor in the adjoint equation, whose slopes are 0 and 1.
        let mut plan = cpu.plan(&problem.map, 2).unwrap();
        load(&cpu, &mut plan, &problem);
        let upload = |x: &[f64]| cpu.upload(&convert::<f32>(x)).unwrap();
        let (z, y, mut g) = (upload(&expected), upload(&problem.y), cpu.zeros(expected.len()).unwrap());
        let mut reports = vec![SampleReport::default(); 2];
        cpu.adjoint(&mut plan, 2, &z, &y, &y, &solver, &rule, &mut g, &mut reports).unwrap();
        assert!(reports.iter().all(|r| r.converged()), "adjoint, {operator:?}: {reports:?}");
        let found: Vec<f64> = g.iter().map(|&x| f64::from(x)).collect();
        let error = relative_error(&found, &reflecting_gradient(&problem.y));
        assert!(error < 2e-5, "adjoint, {operator:?}: {error:e}");
    }
}

#[test]
fn real_sizes_in_f32() {
    let cpu = Cpu::<f32>::new(2).unwrap();
    let cases = [
        (Operator::Dense { n: 87 }, 70),
        (Operator::Dense { n: 150 }, 9),
        (Operator::Conv { channels: 16, height: 14, width: 14, padding: Padding::Zero, kernel: 3 }, 2),
        (Operator::Conv { channels: 17, height: 8, width: 9, padding: Padding::Circular, kernel: 3 }, 2),
    ];
    for (operator, batch) in cases {
        let problem = contracting(plain(operator), batch, 3);
        let expected = fixed_point(&problem, 1.0);
        let (z, reports) = solve(&cpu, &problem, &Solver::Picard, &stopping(1e-6, 500));
        assert!(reports.iter().all(|r| r.converged()));
        let error = relative_error(&z, &expected);
        assert!(error < 1e-5, "{operator:?}: {error:e}");
    }
}
