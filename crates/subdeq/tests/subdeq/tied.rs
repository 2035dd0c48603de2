//! Tied monotone layers (A8): the weights are what the equation says, solutions do not depend on the start, and certificates are those
//! of the very `A` and `b`.

use crate::common::{built, cpu, injections, random, rng};
use subdeq::map::{Monotone, ParametrisedMap};
use subdeq::subdeq_map::Operator;
use subdeq::subdeq_theory::certificate::{Evidence, Theorem, Verdict};
use subdeq::{Activation, Cpu, Device, Equilibrium, Form, Stopping};

type Layer = Equilibrium<Cpu<f64>>;

fn tied(margin: f64) -> ParametrisedMap {
    built(Monotone::new(Activation::Relu).tied(margin))
}

/// Vectors, or images with kernels of that side.
#[derive(Clone, Copy, Debug)]
enum On {
    Vectors,
    Images { side: usize },
}

const EVERYTHING: [On; 4] =
    [On::Vectors, On::Images { side: 1 }, On::Images { side: 3 }, On::Images { side: 5 }];

fn layer(on: On, margin: f64) -> Layer {
    let stopping = Stopping::relative(1e-12).max_iterations(20_000);
    let (builder, map) = match on {
        On::Vectors => (Equilibrium::dense(6), tied(margin)),
        On::Images { side } => {
            (Equilibrium::conv(2, 4 + side, 5 + side), tied(margin).with_kernel(side).unwrap())
        }
    };
    builder.map(map).stopping(stopping).build_on(cpu::<f64>(), &mut rng(7)).unwrap()
}

fn parameter(layer: &Layer, index: usize) -> Vec<f64> {
    let parameter = &layer.parameters()[index];
    let mut value = vec![0.0; parameter.len];
    layer.device().read(&parameter.value, 0, &mut value).unwrap();
    value
}

/// The matrix of a layer's array, dense or a kernel of the layer's images.
fn matrix(on: On, numbers: Vec<f64>) -> (usize, Vec<f64>) {
    let operator = match on {
        On::Vectors => Operator::dense(6, numbers),
        On::Images { side } => Operator::conv(2, 4 + side, 5 + side, subdeq::Padding::Circular, numbers),
    };
    let operator = operator.unwrap();
    (operator.len(), operator.to_dense(1000).unwrap())
}

#[test]
fn the_weights_are_those_of_the_equation() {
    for on in EVERYTHING {
        for margin in [1.0, 0.1] {
            let mut layer = layer(on, margin);
            assert_eq!(parameter(&layer, 1), [1.0], "b starts at 1");
            layer.set_parameter(1, &[-0.7]).unwrap();
            let (n, a) = matrix(on, parameter(&layer, 0));
            let (_, w) = matrix(on, layer.weights().unwrap().remove(0));
            for (i, j) in (0..n).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let product: f64 = (0..n).map(|k| a[k * n + i] * a[k * n + j]).sum();
                let identity = f64::from(i == j) * (1.0 - margin);
                let expected = identity - product - 0.7 * (a[i * n + j] - a[j * n + i]);
                assert!((w[i * n + j] - expected).abs() < 1e-13, "{on:?} {margin} ({i}, {j})");
            }
        }
    }
}

#[test]
fn every_start_ends_at_the_same_solution() {
    for on in EVERYTHING {
        for margin in [1.0, 0.1] {
            let mut layer = layer(on, margin);
            // Weights far from small, and a strong rotation.
            let large: Vec<f64> = parameter(&layer, 0).iter().map(|a| 3.0 * a).collect();
            layer.set_parameter(0, &large).unwrap();
            layer.set_parameter(1, &[2.0]).unwrap();
            let y: Vec<f64> = injections(layer.map().injection_len(), 3).iter().map(|y| y - 0.4).collect();
            let cold = layer.solve(&y).unwrap().require_converged().unwrap().z;
            let size = cold.iter().fold(0.0f64, |m, z| m.max(z.abs()));
            assert!(size > 0.0);
            for seed in 0..20 {
                let start: Vec<f64> = random(cold.len(), seed).iter().map(|z| 50.0 * z).collect();
                let found = layer.solve_from(&y, Some(&start)).unwrap().require_converged().unwrap().z;
                let error = found.iter().zip(&cold).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(error < 1e-8 * size, "{on:?} {margin} {seed}: {error:e} of {size:e}");
            }
        }
    }
}

/// The certificate speaks about `A`, `b` and `m`, and is refused as soon as one of them is another.
#[test]
fn certificates_are_those_of_their_parameters() {
    for on in EVERYTHING {
        let mut layer = layer(on, 0.5);
        layer.set_parameter(1, &[0.8]).unwrap();
        let scope = layer.scope();
        let certificate = layer.certify(scope.clone()).unwrap();
        assert!(matches!(certificate.verdict, Verdict::Proven { theorem: Theorem::MonotoneTied, .. }));
        assert_eq!(certificate.map, layer.equation().unwrap());
        assert_eq!(certificate.map.form(), Form::Tied { margin: 0.5, skew: 0.8 });
        assert!((certificate.gain().unwrap() - 2.0).abs() < 1e-12);
        assert!(layer.confirms(&certificate).unwrap());
        let (a, mut other) = (parameter(&layer, 0), parameter(&layer, 0));
        other.iter_mut().for_each(|a| *a *= 0.8);
        layer.set_parameter(0, &other).unwrap();
        assert!(!layer.confirms(&certificate).unwrap(), "{on:?}: of a smaller A");
        other.copy_from_slice(&a);
        other[0] += 2.0;
        layer.set_parameter(0, &other).unwrap();
        assert!(!layer.confirms(&certificate).unwrap(), "{on:?}: of another A");
        layer.set_parameter(0, &a).unwrap();
        assert!(layer.confirms(&certificate).unwrap());
        layer.set_parameter(1, &[0.81]).unwrap();
        assert!(!layer.confirms(&certificate).unwrap(), "{on:?}: of another b");
        layer.set_parameter(1, &[0.8]).unwrap();
        let mut forged = certificate.clone();
        if let Verdict::Proven { evidence: Evidence::Splitting { margin, .. }, .. } = &mut forged.verdict {
            *margin = 0.6;
        }
        assert!(!layer.confirms(&forged).unwrap(), "{on:?}: with another margin");
        let mut with_margin = self::layer(on, 0.6);
        with_margin.set_parameter(0, &a).unwrap();
        with_margin.set_parameter(1, &[0.8]).unwrap();
        assert!(!with_margin.confirms(&certificate).unwrap(), "{on:?}: of another m");
    }
}
