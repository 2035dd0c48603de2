//! The neural differential equation: against known solutions, a fine fixed-step integration, and differences.

use crate::common::{CIRCULAR, CONV, DENSE, convert, linear, random, relative_error};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use subdeq_engine::cpu::{Isa, SimdReal};
use subdeq_engine::{
    Activation, Cpu, Device, EngineError, Integrate, OdeOutcome, OdeReport, OdeTolerance, Operator, Padding,
};

const TIGHT: OdeTolerance = OdeTolerance { relative: 1e-10, absolute: 1e-12, max_steps: 10_000 };

fn slope(operator: &Operator, w: &[f64], z: &[f64], tanh: bool) -> Vec<f64> {
    linear(operator, w, z).into_iter().map(|u| if tanh { u.tanh() } else { u.max(0.0) }).collect()
}

/// Runge and Kutta's classical method with many steps.
fn fine(operator: &Operator, w: &[f64], z: &[f64], tanh: bool) -> Vec<f64> {
    let (mut z, steps) = (z.to_vec(), 2000);
    let h = 1.0 / f64::from(steps);
    let moved =
        |z: &[f64], k: &[f64], h: f64| -> Vec<f64> { z.iter().zip(k).map(|(z, k)| z + h * k).collect() };
    for _ in 0..steps {
        let k1 = slope(operator, w, &z, tanh);
        let k2 = slope(operator, w, &moved(&z, &k1, h / 2.0), tanh);
        let k3 = slope(operator, w, &moved(&z, &k2, h / 2.0), tanh);
        let k4 = slope(operator, w, &moved(&z, &k3, h), tanh);
        for i in 0..z.len() {
            z[i] += h / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]);
        }
    }
    z
}

#[test]
fn agrees_with_a_fine_integration() {
    for operator in [DENSE, CONV, CIRCULAR] {
        for (activation, tanh) in [(Activation::Tanh, true), (Activation::Relu, false)] {
            let mut rng = ChaCha8Rng::seed_from_u64(3);
            let (batch, len) = (3, operator.state_len());
            let w = random(&mut rng, operator.weight_len(), -0.5, 0.5);
            let start = random(&mut rng, batch * len, 0.0, 1.0);
            let cpu = Cpu::<f64>::new(2).unwrap();
            let mut plan = cpu.ode_plan(operator, activation, batch).unwrap();
            cpu.ode_load(&mut plan, &cpu.upload(&w).unwrap()).unwrap();
            let (mut end, mut reports) = (cpu.zeros(batch * len).unwrap(), vec![OdeReport::default(); 3]);
            cpu.integrate(&mut plan, batch, &cpu.upload(&start).unwrap(), &TIGHT, &mut end, &mut reports)
                .unwrap();
            assert!(reports.iter().all(|r| r.outcome == OdeOutcome::Finished && r.time == 1.0));
            let single = Cpu::<f32>::new(1).unwrap();
            let mut plan = single.ode_plan(operator, activation, batch).unwrap();
            single.ode_load(&mut plan, &single.upload(&convert::<f32>(&w)).unwrap()).unwrap();
            let usual = OdeTolerance { relative: 1e-5, absolute: 1e-6, max_steps: 1000 };
            let mut end32 = single.zeros(batch * len).unwrap();
            let start32 = single.upload(&convert::<f32>(&start)).unwrap();
            single.integrate(&mut plan, batch, &start32, &usual, &mut end32, &mut reports).unwrap();
            assert!(
                reports.iter().all(|r| r.outcome == OdeOutcome::Finished && r.accepted < 60),
                "{reports:?}"
            );
            for sample in 0..batch {
                let range = sample * len..(sample + 1) * len;
                let expected = fine(&operator, &w, &start[range.clone()], tanh);
                for ((found, single), expected) in end[range.clone()].iter().zip(&end32[range]).zip(expected)
                {
                    // Where a ReLU switches, the classical method loses digits too.
                    let error = if tanh { 1e-9 } else { 1e-6 };
                    assert!(
                        (found - expected).abs() < error,
                        "{operator:?} {activation:?}: {found} {expected}"
                    );
                    assert!((f64::from(*single) - expected).abs() < 1e-3 * expected.abs().max(1.0));
                }
            }
        }
    }
}

#[test]
fn gradient_agrees_with_differences() {
    for operator in [DENSE, CONV, CIRCULAR] {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        let (batch, len) = (2, operator.state_len());
        let w = random(&mut rng, operator.weight_len(), -0.5, 0.5);
        let start = random(&mut rng, batch * len, 0.0, 1.0);
        let v = random(&mut rng, batch * len, -1.0, 1.0);
        let cpu = Cpu::<f64>::new(2).unwrap();
        let mut plan = cpu.ode_plan(operator, Activation::Tanh, batch).unwrap();
        let mut end_for = |w: &[f64], start: &[f64]| -> f64 {
            cpu.ode_load(&mut plan, &cpu.upload(w).unwrap()).unwrap();
            let (mut end, mut reports) = (cpu.zeros(batch * len).unwrap(), vec![OdeReport::default(); 2]);
            cpu.integrate(&mut plan, batch, &cpu.upload(start).unwrap(), &TIGHT, &mut end, &mut reports)
                .unwrap();
            end.iter().zip(&v).map(|(z, v)| z * v).sum()
        };
        let h = 1e-5;
        let mut checks = Vec::new();
        for i in (0..batch * len).step_by(7) {
            let mut at = |h: f64| {
                let mut start = start.clone();
                start[i] += h;
                end_for(&w, &start)
            };
            checks.push((false, i, (at(h) - at(-h)) / (2.0 * h)));
        }
        for i in (0..w.len()).step_by(13) {
            let mut at = |h: f64| {
                let mut w = w.clone();
                w[i] += h;
                end_for(&w, &start)
            };
            checks.push((true, i, (at(h) - at(-h)) / (2.0 * h)));
        }
        end_for(&w, &start);
        let (mut gz, mut gw) = (cpu.zeros(batch * len).unwrap(), cpu.zeros(w.len()).unwrap());
        cpu.integrate_adjoint(&mut plan, batch, &cpu.upload(&v).unwrap(), &mut gz, &mut gw).unwrap();
        for (of_weights, i, expected) in checks {
            let found = if of_weights { gw[i] } else { gz[i] };
            assert!(
                (found - expected).abs() < 1e-5 * expected.abs().max(0.1),
                "{operator:?}: {found} {expected}"
            );
        }
    }
}

/// The ends, the gradients for the starts, and that for the weights.
fn integrated<T: SimdReal>(
    cpu: &Cpu<T>,
    operator: Operator,
    [w, start, v]: [&[f64]; 3],
    tolerance: &OdeTolerance,
) -> [Vec<f64>; 3]
where
    Cpu<T>: Integrate<OdeReports = Vec<OdeReport>> + Device<Elem = T>,
{
    let batch = start.len() / operator.state_len();
    let up = |x: &[f64]| cpu.upload(&convert::<T>(x)).unwrap();
    let mut plan = cpu.ode_plan(operator, Activation::Tanh, batch).unwrap();
    cpu.ode_load(&mut plan, &up(w)).unwrap();
    let [mut end, mut gz, mut gw] = [start.len(), start.len(), w.len()].map(|len| cpu.zeros(len).unwrap());
    let mut reports = cpu.ode_reports(batch).unwrap();
    cpu.integrate(&mut plan, batch, &up(start), tolerance, &mut end, &mut reports).unwrap();
    assert!(reports.iter().all(|r| r.outcome == OdeOutcome::Finished), "{reports:?}");
    cpu.integrate_adjoint(&mut plan, batch, &up(v), &mut gz, &mut gw).unwrap();
    [(end, start.len()), (gz, start.len()), (gw, w.len())].map(|(array, len)| {
        let mut host = vec![T::ZERO; len];
        cpu.read(&array, 0, &mut host).unwrap();
        host.iter().map(|x| x.to_f64()).collect()
    })
}

/// Where the tolerance allows it, products are rounded: far below what a step may be off, and the same whoever is beside a sample.
#[test]
fn usual_tolerances_at_real_sizes() {
    let conv = |channels, side| Operator::Conv {
        channels,
        height: side,
        width: side,
        padding: Padding::Zero,
        kernel: 3,
    };
    for (operator, scale) in [(conv(32, 28), 0.1), (Operator::Dense { n: 87 }, 0.2)] {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let (batch, len) = (3, operator.state_len());
        let w = random(&mut rng, operator.weight_len(), -scale, scale);
        let start = random(&mut rng, batch * len, -1.0, 1.0);
        let v = random(&mut rng, batch * len, -1.0, 1.0);
        for (tolerance, bound) in [(1e-3, 2e-5), (1e-6, 5e-6)] {
            let rule = OdeTolerance { relative: tolerance, absolute: tolerance, max_steps: 1000 };
            let expected = integrated(&Cpu::<f64>::new(2).unwrap(), operator, [&w, &start, &v], &rule);
            for isa in Isa::available() {
                let of = |threads, start: &[f64], v: &[f64]| {
                    let cpu = Cpu::<f32>::with_isa(threads, isa).unwrap();
                    integrated(&cpu, operator, [&w, start, v], &rule)
                };
                let found = of(2, &start, &v);
                for (name, (found, expected)) in ["end", "gz", "gw"].iter().zip(found.iter().zip(&expected)) {
                    let error = relative_error(found, expected);
                    assert!(error < bound, "{name} of {operator:?}, {tolerance}, {isa:?}: {error}");
                }
                let last = (batch - 1) * len;
                let alone = of(1, &start[last..], &v[last..]);
                for k in 0..2 {
                    assert!(alone[k] == found[k][last..], "{operator:?}, {tolerance}, {isa:?}: other bits");
                }
                assert!(of(1, &start, &v) == found, "{operator:?}, {tolerance}, {isa:?}: bits by threads");
            }
        }
    }
}

#[test]
fn limits_and_refusals() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    let operator = Operator::Dense { n: 1 };
    let mut plan = cpu.ode_plan(operator, Activation::Identity, 1).unwrap();
    let (start, mut end, mut reports) =
        (cpu.upload(&[1.0]).unwrap(), cpu.zeros(1).unwrap(), vec![OdeReport::default()]);
    assert!(cpu.integrate(&mut plan, 1, &start, &TIGHT, &mut end, &mut reports).is_err(), "no weights yet");
    cpu.ode_load(&mut plan, &cpu.upload(&[-1.0]).unwrap()).unwrap();
    let few = OdeTolerance { max_steps: 2, ..TIGHT };
    cpu.integrate(&mut plan, 1, &start, &few, &mut end, &mut reports).unwrap();
    assert_eq!(reports[0].outcome, OdeOutcome::StepLimit);
    assert!(reports[0].time < 1.0);
    // dz/dt = 1000 z leaves the numbers of f64 before t = 1 only beyond e^709.
    cpu.ode_load(&mut plan, &cpu.upload(&[1000.0]).unwrap()).unwrap();
    let rough = OdeTolerance { relative: 1e-3, absolute: 1e-6, max_steps: 100_000 };
    cpu.integrate(&mut plan, 1, &start, &rough, &mut end, &mut reports).unwrap();
    assert_eq!(reports[0].outcome, OdeOutcome::NotFinite, "{reports:?}");
    assert!(matches!(
        cpu.ode_load(&mut plan, &cpu.upload(&[f64::NAN]).unwrap()),
        Err(EngineError::NotFinite { .. })
    ));
    assert!(cpu.ode_plan(operator, Activation::Tanh, 0).is_err());
}
