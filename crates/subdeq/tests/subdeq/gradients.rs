//! Every map x adjoint x {dense, convolution}: gradients for the parameters and the injection against central
//! differences in `f64`.

use crate::common::{builder, cpu, describe, injections, maps, random, rng};
use subdeq::map::ParametrisedMap;
use subdeq::{
    Adjoint, Anderson, Broyden, Cpu, Equilibrium, ForwardBackward, Layout, PeacemanRachford, Picard, Solver,
    Stopping,
};

use subdeq::subdeq_engine::cpu::Buffer;

type Layer = Equilibrium<Cpu<f64>>;

const H: f64 = 1e-5;

fn layer(map: &ParametrisedMap, layout: Layout, adjoint: Adjoint) -> Layer {
    let solver: Solver = if map.is_monotone() { PeacemanRachford::default().into() } else { Picard.into() };
    let stopping = Stopping::absolute(1e-13).max_iterations(20_000);
    builder(layout)
        .map(map.clone())
        .solver(solver)
        .stopping(stopping)
        .adjoint(adjoint)
        .build_on(cpu::<f64>(), &mut rng(7))
        .unwrap()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Entries spread over an array: enough to catch a wrong formula, few enough to be quick.
fn some(len: usize) -> impl Iterator<Item = usize> {
    (0..len).step_by((len / 12).max(1))
}

/// Compares gradients with central differences of `objective(layer, y)`.
fn check(
    layer: &mut Layer,
    y: &[f64],
    v: &[f64],
    what: &str,
    mut objective: impl FnMut(&mut Layer, &[f64]) -> f64,
) {
    let (gy, parameters) = layer.gradients(y, v).unwrap_or_else(|error| panic!("{what}: {error}"));
    let close = |found: f64, difference: f64, name: &str, i: usize| {
        let tolerance = 1e-5 * (1.0 + difference.abs());
        assert!(
            (found - difference).abs() < tolerance,
            "{what}: {name}[{i}] is {found}, differences say {difference}"
        );
    };
    for i in some(y.len()) {
        let mut moved = y.to_vec();
        moved[i] = y[i] + H;
        let above = objective(layer, &moved);
        moved[i] = y[i] - H;
        let below = objective(layer, &moved);
        close(gy[i], (above - below) / (2.0 * H), "y", i);
    }
    for (k, gradient) in parameters.iter().enumerate() {
        let mut value = vec![0.0; gradient.len()];
        subdeq::Device::read(&**layer.device(), &layer.parameters()[k].value, 0, &mut value).unwrap();
        for i in some(gradient.len()) {
            let mut moved = value.clone();
            let mut at = |x: f64| {
                moved[i] = x;
                layer.set_parameter(k, &moved).unwrap();
                objective(layer, y)
            };
            let difference = (at(value[i] + H) - at(value[i] - H)) / (2.0 * H);
            layer.set_parameter(k, &value).unwrap();
            close(gradient[i], difference, &layer.parameters()[k].name, i);
        }
    }
}

fn matrix(layout: Layout, run: impl Fn(&ParametrisedMap, &[f64], &[f64], &str)) {
    for map in maps(layout) {
        let operator = *builder(layout).map(map.clone()).build_on(cpu::<f64>(), &mut rng(7)).unwrap().map();
        let y = injections(operator.injection_len(), 3);
        let v = random(2 * operator.operator().state_len(), 4);
        run(&map, &y, &v, &describe(&map, layout));
    }
}

fn implicit(layout: Layout) {
    matrix(layout, |map, y, v, what| {
        // Plain iteration of the adjoint, and what falls back on it, need not converge for the monotone maps.
        let solvers: Vec<Solver> = if map.is_monotone() {
            vec![PeacemanRachford::default().into(), ForwardBackward { step: Some(0.3) }.into()]
        } else {
            let anderson = Anderson { ridge: 1e-14, ..Anderson::default() };
            vec![Picard.into(), anderson.into(), Broyden::default().into()]
        };
        for solver in solvers {
            let stopping = Stopping::absolute(1e-12).max_iterations(20_000);
            let mut layer = layer(map, layout, Adjoint::Implicit { solver, stopping });
            check(&mut layer, y, v, &format!("implicit {solver:?} {what}"), |layer, y| {
                dot(&layer.solve(y).unwrap().require_converged().unwrap().z, v)
            });
            layer.gradients(y, v).unwrap();
            assert!(
                layer.adjoint_reports().unwrap().iter().all(|r| r.converged()),
                "{what}: {:?}",
                layer.adjoint_reports()
            );
        }
    });
}

#[test]
fn implicit_dense() {
    implicit(Layout::Dense);
}

#[test]
fn implicit_conv() {
    implicit(Layout::Conv);
}

fn unrolled(layout: Layout) {
    matrix(layout, |map, y, v, what| {
        let mut layer = layer(map, layout, Adjoint::Unrolled { steps: 3 });
        check(&mut layer, y, v, &format!("unrolled {what}"), |layer, y| {
            let solution = layer.solve(y).unwrap();
            assert!(solution.samples.iter().all(|s| s.iterations == 3));
            dot(&solution.z, v)
        });
    });
}

#[test]
fn unrolled_dense() {
    unrolled(Layout::Dense);
}

#[test]
fn unrolled_conv() {
    unrolled(Layout::Conv);
}

/// The phantom gradient is that of `<g, F(z*; y)>` at fixed `z*` and `g = v + J'v + .. + (J')^(steps-1) v`.
fn phantom(layout: Layout, steps: usize) {
    matrix(layout, |map, y, v, what| {
        let mut layer = layer(map, layout, Adjoint::Phantom { steps });
        let z = layer.solve(y).unwrap().require_converged().unwrap().z;
        let mut g = v.to_vec();
        for _ in 1..steps {
            let mut next = v.to_vec();
            for j in 0..z.len() {
                let mut moved = z.clone();
                moved[j] = z[j] + H;
                let above = layer.apply(y, &moved).unwrap();
                moved[j] = z[j] - H;
                let below = layer.apply(y, &moved).unwrap();
                next[j] += (dot(&above, &g) - dot(&below, &g)) / (2.0 * H);
            }
            g = next;
        }
        check(&mut layer, y, v, &format!("phantom {steps} {what}"), |layer, y| {
            dot(&layer.apply(y, &z).unwrap(), &g)
        });
    });
}

#[test]
fn phantom_dense() {
    phantom(Layout::Dense, 1);
    phantom(Layout::Dense, 3);
}

#[test]
fn phantom_conv() {
    phantom(Layout::Conv, 1);
    phantom(Layout::Conv, 3);
}

/// Gradients in `f32` are those in `f64`, of every form.
fn in_single_precision(layout: Layout) {
    matrix(layout, |map, y, v, what| {
        let solver: Solver =
            if map.is_monotone() { PeacemanRachford::default().into() } else { Picard.into() };
        let stopping = Stopping::relative(1e-6).max_iterations(20_000);
        let mut single: Equilibrium<Cpu<f32>> = builder(layout)
            .map(map.clone())
            .solver(solver)
            .stopping(stopping)
            .adjoint(Adjoint::Implicit { solver, stopping })
            .build_on(cpu(), &mut rng(7))
            .unwrap();
        let stopping = Stopping::absolute(1e-12).max_iterations(20_000);
        let mut double = layer(map, layout, Adjoint::Implicit { solver, stopping });
        for k in 0..single.parameters().len() {
            let mut value = vec![0.0f32; single.parameters()[k].len];
            subdeq::Device::read(&**single.device(), &single.parameters()[k].value, 0, &mut value).unwrap();
            double.set_parameter(k, &value.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()).unwrap();
        }
        let narrow = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
        let widen = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let (y, v) = (narrow(y), narrow(v));
        let (gy, parameters) = single.gradients(&y, &v).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (expected_gy, expected) = double.gradients(&widen(&y), &widen(&v)).unwrap();
        let pairs = parameters.iter().zip(&expected).chain([(&gy, &expected_gy)]);
        for (k, (found, expected)) in pairs.enumerate() {
            let size = dot(expected, expected).sqrt();
            let off: Vec<f64> = found.iter().zip(expected).map(|(f, e)| f64::from(*f) - e).collect();
            let error = dot(&off, &off).sqrt();
            assert!(size > 0.0 && error <= 1e-4 * size, "{what}: array {k} is off by {error:e} of {size:e}");
        }
    });
}

#[test]
fn in_single_precision_dense() {
    in_single_precision(Layout::Dense);
}

#[test]
fn in_single_precision_conv() {
    in_single_precision(Layout::Conv);
}

/// Layers that are functions of their arguments: other batches, other parameters and other sizes may come between.
#[test]
fn gradients_at_given_states_are_those_of_the_pass() {
    for layout in [Layout::Dense, Layout::Conv] {
        matrix(layout, |map, y, v, what| {
            let solver: Solver =
                if map.is_monotone() { PeacemanRachford::default().into() } else { Picard.into() };
            let stopping = Stopping::absolute(1e-12).max_iterations(20_000);
            for adjoint in [Adjoint::Implicit { solver, stopping }, Adjoint::Unrolled { steps: 3 }] {
                let mut layer = layer(map, layout, adjoint);
                let (gy, gradients) = layer.gradients(y, v).unwrap();
                let states = layer.read_states().unwrap();
                let parameters: Vec<Vec<f64>> = read(&layer, |p| &p.value);
                let slices: Vec<&[f64]> = parameters.iter().map(Vec::as_slice).collect();
                let (y_lent, v_lent) = (Buffer::lend(y), Buffer::lend(v));
                let mut z = vec![0.0; v.len()];
                let reports = Buffer::lend_mut(&mut z, |z| layer.solve_into(2, &y_lent, z)).unwrap();
                assert!(z == states && reports.len() == 2, "{what}");

                let halves: Vec<Vec<f64>> =
                    parameters.iter().map(|p| p.iter().map(|x| x / 2.0).collect()).collect();
                layer.set_parameters(&halves.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
                layer.solve(&y[..y.len() / 2]).unwrap();
                layer.set_parameters(&slices).unwrap();
                assert!(layer.has_parameters(&slices).unwrap());
                let mut found = vec![0.0; y.len()];
                let lent = Buffer::lend(&z);
                Buffer::lend_mut(&mut found, |gy| layer.pull_back_at(2, &y_lent, &lent, &v_lent, gy))
                    .unwrap();
                let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
                assert!(close(&found, &gy), "{what}");
                let pulled = read(&layer, |p| &p.gradient);
                assert!(pulled.iter().zip(&gradients).all(|(a, b)| close(a, b)), "{what}");
                assert!(layer.set_parameters(&[]).is_err());
            }
        });
    }
}

fn read(layer: &Layer, which: impl Fn(&subdeq::Parameter<Buffer<f64>>) -> &Buffer<f64>) -> Vec<Vec<f64>> {
    layer.parameters().iter().map(|p| which(p)[..p.len].to_vec()).collect()
}
