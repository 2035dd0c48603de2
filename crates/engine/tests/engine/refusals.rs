//! What cannot be computed is said so: typed errors before a solve, outcomes after one.

use crate::common::*;
use subdeq_engine::{
    Activation, Cpu, Device, EngineError, Extent, Form, Measure, Operator, Outcome, PNorm, Padding,
    SampleReport, ShapedMap, Solver, Start, Stopping,
};
use subdeq_engine::{CustomMap, CustomMaps, Equilibria};
use subdeq_map::{Groups, Layout, Map as Equation, Parts};

fn cpu() -> Cpu<f32> {
    Cpu::new(2).unwrap()
}

#[test]
fn weights_and_inputs_must_be_finite() {
    let cpu = cpu();
    let mut plan = cpu.plan(&plain(DENSE), 2).unwrap();
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let mut w = cpu.zeros(169).unwrap();
        w[40] = bad;
        let error = cpu.load(&mut plan, &[&w]).unwrap_err();
        assert_eq!(error, EngineError::NotFinite { what: "weights[0]", index: 40, value: shown.into() });
    }
    let problem = contracting(plain(DENSE), 2, 1);
    load(&cpu, &mut plan, &problem);
    let (mut y, mut z) = (cpu.upload(&convert::<f32>(&problem.y)).unwrap(), cpu.zeros(26).unwrap());
    y[25] = f32::NAN;
    let mut reports = vec![SampleReport::default(); 2];
    let stop = stopping(1e-3, 10);
    let error =
        cpu.solve(&mut plan, 2, &y, &Solver::Picard, &stop, Start::Constant(1.0), &mut z, &mut reports);
    assert!(matches!(error, Err(EngineError::NotFinite { what: "y", index: 25, .. })), "{error:?}");
    // A batch of one does not look at the second sample.
    cpu.solve(&mut plan, 1, &y, &Solver::Picard, &stop, Start::Constant(1.0), &mut z, &mut reports).unwrap();
}

/// Weights that are refused leave a plan that takes good ones, with the bits of a plan that never saw others.
#[test]
fn a_failed_load_leaves_nothing_behind() {
    let cpu = cpu();
    let problem = contracting(plain(DENSE), 2, 1);
    let (y, stop) = (cpu.upload(&convert::<f32>(&problem.y)).unwrap(), stopping(1e-5, 200));
    let solved = |spoil: bool| {
        let mut plan = cpu.plan(&plain(DENSE), 2).unwrap();
        let (mut z, mut reports) = (cpu.zeros(26).unwrap(), vec![SampleReport::default(); 2]);
        if spoil {
            let mut w = cpu.zeros(169).unwrap();
            w[168] = f32::NAN;
            cpu.load(&mut plan, &[&w]).unwrap_err();
        }
        load(&cpu, &mut plan, &problem);
        cpu.solve(&mut plan, 2, &y, &Solver::Picard, &stop, Start::Constant(1.0), &mut z, &mut reports)
            .unwrap();
        assert!(reports.iter().all(|report| report.converged()), "{reports:?}");
        let mut host = vec![0.0; 26];
        cpu.read(&z, 0, &mut host).unwrap();
        host
    };
    assert_eq!(solved(true), solved(false));
}

#[test]
fn shapes_must_fit() {
    let cpu = cpu();
    assert!(matches!(cpu.plan(&plain(DENSE), 0), Err(EngineError::Invalid(_))));
    let mut plan = cpu.plan(&plain(DENSE), 2).unwrap();
    let (y, mut z, mut reports) =
        (cpu.zeros(26).unwrap(), cpu.zeros(26).unwrap(), vec![SampleReport::default(); 2]);
    let stop = stopping(1e-3, 10);
    let solve = |plan: &mut _, batch, y: &_, z: &mut _, reports: &mut Vec<SampleReport>| {
        cpu.solve(plan, batch, y, &Solver::Picard, &stop, Start::Constant(1.0), z, reports)
    };
    let error = solve(&mut plan, 2, &y, &mut z, &mut reports).unwrap_err();
    assert!(error.to_string().contains("load"), "{error}");
    assert!(matches!(
        cpu.load(&mut plan, &[&cpu.zeros(168).unwrap()]),
        Err(EngineError::Length { needed: 169, found: 168, .. })
    ));
    assert!(matches!(cpu.load(&mut plan, &[]), Err(EngineError::Invalid(_))));
    cpu.load(&mut plan, &[&cpu.zeros(169).unwrap()]).unwrap();
    assert!(matches!(solve(&mut plan, 0, &y, &mut z, &mut reports), Err(EngineError::Invalid(_))));
    assert!(matches!(solve(&mut plan, 3, &y, &mut z, &mut reports), Err(EngineError::Invalid(_))));
    assert!(matches!(
        solve(&mut plan, 2, &cpu.zeros(25).unwrap(), &mut z, &mut reports),
        Err(EngineError::Length { what: "y", .. })
    ));
    assert!(matches!(
        solve(&mut plan, 2, &y, &mut cpu.zeros(25).unwrap(), &mut reports),
        Err(EngineError::Length { what: "z", .. })
    ));
    assert!(matches!(
        solve(&mut plan, 2, &y, &mut z, &mut vec![SampleReport::default()]),
        Err(EngineError::Length { what: "reports", .. })
    ));
    solve(&mut plan, 2, &y, &mut z, &mut reports).unwrap();
}

#[test]
fn maps_without_kernels() {
    let single = Equation::single(Activation::Tanh, 1.2).unwrap();
    let refused = |operator: Operator, equation: Equation, why: &str| {
        let error = ShapedMap::new(operator, equation).unwrap_err();
        assert!(matches!(error, EngineError::Invalid(_)) && error.to_string().contains(why), "{error}");
    };
    refused(Operator::Dense { n: 0 }, single, "empty state");
    refused(DENSE, Equation::named("monomial", Layout::Dense).unwrap(), "logarithms");
    let tied = Equation::of_form(Form::Tied { margin: 0.1, skew: 1.0 }, Activation::Relu, 0.0).unwrap();
    refused(DENSE, tied, "no kernels that make W");
    refused(DENSE, Equation::named("appnp-tanh", Layout::Graph).unwrap(), "GraphMap");
    let normalised = |groups: Groups| single.normalised(PNorm::Inf, groups).unwrap();
    refused(DENSE, normalised(Groups::AlongHeight), "the columns of each image channel");
    refused(CONV, normalised(Groups::WholeVector), "the whole vector");
    refused(DENSE, normalised(Groups::Blocks { size: 1 }), "blocks of 1");
    let wide = |padding: Padding| Operator::Conv { channels: 1, height: 7, width: 7, padding, kernel: 5 };
    refused(wide(Padding::Zero), single, "5x5 kernel");
    refused(wide(Padding::Circular), Equation::split_sign(Activation::Tanh, 1.2).unwrap(), "5x5 kernel");
    assert!(ShapedMap::new(wide(Padding::Circular), single).is_ok());
}

#[test]
fn solvers_that_do_not_fit_a_map() {
    let cpu = cpu();
    let refused = |map: ShapedMap, solver: Solver, measure: Measure| {
        let problem = contracting(map, 1, 1);
        let mut plan = cpu.plan(&map, 1).unwrap();
        load(&cpu, &mut plan, &problem);
        let (y, mut z) = (
            cpu.upload(&convert::<f32>(&problem.y)).unwrap(),
            cpu.zeros(map.operator().state_len()).unwrap(),
        );
        let stop = Stopping { measure, ..stopping(1e-3, 10) };
        let mut reports = vec![SampleReport::default()];
        let result = cpu.solve(&mut plan, 1, &y, &solver, &stop, Start::Constant(1.0), &mut z, &mut reports);
        assert!(matches!(result, Err(EngineError::Invalid(_))), "{map:?} by {solver:?}: {result:?}");
    };
    let peaceman_rachford = Solver::PeacemanRachford { step: 1.0 };
    refused(plain(CONV), peaceman_rachford, Measure::Relative);
    refused(plain(DENSE), peaceman_rachford, Measure::Thompson);
    refused(plain(DENSE), Solver::PeacemanRachford { step: 0.0 }, Measure::Relative);
    refused(plain(DENSE), Solver::PeacemanRachford { step: f64::NAN }, Measure::Relative);
    refused(plain(DENSE), Solver::ForwardBackward { step: 1.5 }, Measure::Relative);
    refused(
        changed(DENSE, |plain| Parts { form: Form::SplitSign, ..plain }),
        peaceman_rachford,
        Measure::Relative,
    );
    refused(changed(DENSE, |plain| Parts { power: 0.9, ..plain }), peaceman_rachford, Measure::Relative);
    refused(
        changed(DENSE, |plain| Parts { activation: Activation::LeakyRelu { slope: 1.5 }, ..plain }),
        peaceman_rachford,
        Measure::Relative,
    );
    refused(plain(DENSE), Solver::Anderson { window: 0, ridge: 0.0, mixing: 1.0 }, Measure::Relative);
    refused(plain(DENSE), Solver::Anderson { window: 3, ridge: -1.0, mixing: 1.0 }, Measure::Relative);
    refused(plain(DENSE), Solver::Broyden { memory: 0 }, Measure::Relative);
}

/// Solves `z = activation(w z + y) + shift` in one dimension.
fn scalar(activation: Activation, w: f32, y: f32, solver: Solver, stopping: Stopping) -> (f32, SampleReport) {
    let cpu = Cpu::<f32>::new(1).unwrap();
    let equation = Equation::single(activation, 0.0).unwrap().inner().unwrap();
    let map = ShapedMap::new(Operator::Dense { n: 1 }, equation).unwrap();
    let mut plan = cpu.plan(&map, 1).unwrap();
    cpu.load(&mut plan, &[&cpu.upload(&[w]).unwrap()]).unwrap();
    let mut z = cpu.zeros(1).unwrap();
    let mut reports = vec![SampleReport::default()];
    cpu.solve(
        &mut plan,
        1,
        &cpu.upload(&[y]).unwrap(),
        &solver,
        &stopping,
        Start::Constant(1.0),
        &mut z,
        &mut reports,
    )
    .unwrap();
    (z[0], reports[0])
}

#[test]
fn diverging_maps_are_reported() {
    let solvers = [
        Solver::Picard,
        Solver::Anderson { window: 3, ridge: 0.0, mixing: 1.0 },
        Solver::Broyden { memory: 4 },
    ];
    // z = 3 z + 1 from 1: Picard runs away; the accelerated methods know better (its fixed point is -1/2).
    let (_, report) = scalar(Activation::Identity, 3.0, 1.0, solvers[0], stopping(1e-4, 1000));
    assert_eq!(report.outcome, Outcome::NotFinite);
    let (z, report) = scalar(Activation::Identity, 3.0, 1.0, solvers[2], stopping(1e-4, 1000));
    assert!(report.converged() && (z + 0.5).abs() < 1e-4, "{z} {report:?}");
    // z = -z + 1 turns in a circle.
    let (_, report) = scalar(Activation::Identity, -1.0, 0.5, Solver::Picard, stopping(1e-4, 50));
    assert_eq!((report.outcome, report.iterations), (Outcome::IterationLimit, 50));
    for solver in solvers {
        let (_, report) = scalar(Activation::Tanh, 0.5, 0.3, solver, stopping(1e-4, 1));
        assert_eq!((report.outcome, report.iterations), (Outcome::IterationLimit, 1), "{solver:?}");
    }
}

#[test]
fn a_tolerance_below_reach_is_reported() {
    for operator in [Operator::Dense { n: 40 }, CONV] {
        let problem = contracting(plain(operator), 3, 2);
        for solver in [
            Solver::Picard,
            Solver::Anderson { window: 4, ridge: 1e-6, mixing: 1.0 },
            Solver::Broyden { memory: 5 },
        ] {
            let (z, reports) = solve(&cpu(), &problem, &solver, &stopping(1e-12, 5000));
            // In f32 an iteration may also meet a fixed point of the rounded map, where the residual is 0.
            for report in &reports {
                let met =
                    report.outcome == Outcome::Stagnated || report.converged() && report.residual == 0.0;
                assert!(met && report.iterations < 500, "{operator:?} by {solver:?}: {report:?}");
            }
            assert!(relative_error(&z, &fixed_point(&problem, 1.0)) < 1e-5);
        }
    }
}

/// Anderson never takes many more applications than Picard, and stays positive where Thompson's metric needs it.
#[test]
fn anderson_is_safeguarded() {
    let mut fewer = 0;
    for seed in 0..40 {
        let problem = contracting(plain(DENSE), 1, seed);
        let rule = Stopping {
            measure: Measure::Thompson,
            tolerance: 1e-5,
            max_iterations: 500,
            extent: Extent::PerSample,
        };
        let anderson = Solver::Anderson { window: 5, ridge: 1e-8, mixing: 1.0 };
        let (_, picard) = solve(&cpu(), &problem, &Solver::Picard, &rule);
        let (_, report) = solve(&cpu(), &problem, &anderson, &rule);
        assert!(report[0].converged() && report[0].residual.is_finite());
        assert!(report[0].iterations <= 2 * picard[0].iterations + 1, "{report:?} {picard:?}");
        fewer += usize::from(report[0].iterations < picard[0].iterations);
    }
    assert!(fewer >= 30, "Anderson was faster in {fewer} of 40 cases only");
}

/// `z = 0.5 sin(z_next) + sample`, a user's own map.
struct Ring(usize);

impl CustomMap<f64> for Ring {
    fn state_len(&self) -> usize {
        self.0
    }
    fn apply(&self, sample: usize, z: &[f64], out: &mut [f64]) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = 0.5 * z[(i + 1) % self.0].sin() + sample as f64;
        }
    }
    fn vjp(&self, _: usize, z: &[f64], g: &[f64], out: &mut [f64]) {
        for (i, &g) in g.iter().enumerate() {
            out[(i + 1) % self.0] = 0.5 * z[(i + 1) % self.0].cos() * g;
        }
    }
}

#[test]
fn custom_maps_run_by_the_same_solvers() {
    let cpu = Cpu::<f64>::new(2).unwrap();
    let (batch, len) = (5, 7);
    for extent in [Extent::PerSample, Extent::WholeBatch] {
        for solver in [
            Solver::Picard,
            Solver::Anderson { window: 4, ridge: 1e-12, mixing: 1.0 },
            Solver::Broyden { memory: 6 },
        ] {
            let rule = Stopping { measure: Measure::Sup, tolerance: 1e-12, max_iterations: 500, extent };
            let mut z = vec![0.0; batch * len];
            let mut reports = vec![SampleReport::default(); batch];
            cpu.solve_custom(&Ring(len), batch, &solver, &rule, Start::Constant(0.3), &mut z, &mut reports)
                .unwrap();
            assert!(reports.iter().all(|r| r.converged()), "{solver:?}: {reports:?}");
            let mut out = vec![0.0; len];
            for (sample, z) in z.chunks(len).enumerate() {
                Ring(len).apply(sample, z, &mut out);
                assert!(z.iter().zip(&out).all(|(a, b)| (a - b).abs() < 1e-11));
            }
            let (v, mut g) = (vec![1.0; batch * len], vec![0.0; batch * len]);
            cpu.adjoint_custom(&Ring(len), batch, &z, &v, &solver, &rule, &mut g, &mut reports).unwrap();
            for (sample, (z, g)) in z.chunks(len).zip(g.chunks(len)).enumerate() {
                Ring(len).vjp(sample, z, g, &mut out);
                assert!(g.iter().zip(&out).all(|(g, jg)| (g - jg - 1.0).abs() < 1e-11), "{solver:?}");
            }
        }
    }
    let rule = stopping(1e-6, 10);
    let splitting = Solver::PeacemanRachford { step: 1.0 };
    let result = cpu.solve_custom(
        &Ring(3),
        1,
        &splitting,
        &rule,
        Start::Given,
        &mut [0.0; 3],
        &mut [SampleReport::default()],
    );
    assert!(matches!(result, Err(EngineError::Invalid(_))));
}
