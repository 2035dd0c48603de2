//! Maps of a user's own: their gradients against differences.

use crate::common::random;
use subdeq::{Anderson, CustomLayer, CustomMap, Picard, Solver, Stopping};

const UNITS: usize = 3;

/// `z = tanh(A z + B y) / 2 + y`, with the 18 numbers of `A` and `B` as parameters.
#[derive(Clone)]
struct Mixed {
    parameters: Vec<f64>,
}

impl Mixed {
    fn slopes(&self, z: &[f64], y: &[f64]) -> Vec<f64> {
        self.preactivation(z, y).iter().map(|u| 0.5 * (1.0 - u.tanh().powi(2))).collect()
    }

    fn preactivation(&self, z: &[f64], y: &[f64]) -> Vec<f64> {
        let (a, b) = self.parameters.split_at(UNITS * UNITS);
        let row = |i: usize| (0..UNITS).map(|j| a[i * UNITS + j] * z[j] + b[i * UNITS + j] * y[j]).sum();
        (0..UNITS).map(row).collect()
    }
}

impl CustomMap<f64> for Mixed {
    fn state_len(&self) -> usize {
        UNITS
    }

    fn injection_len(&self) -> usize {
        UNITS
    }

    fn parameter_len(&self) -> usize {
        self.parameters.len()
    }

    fn apply(&self, z: &[f64], y: &[f64], out: &mut [f64]) {
        for (i, u) in self.preactivation(z, y).iter().enumerate() {
            out[i] = 0.5 * u.tanh() + y[i];
        }
    }

    fn vjp_state(&self, z: &[f64], y: &[f64], g: &[f64], gz: &mut [f64]) {
        let slopes = self.slopes(z, y);
        for (j, gz) in gz.iter_mut().enumerate() {
            *gz = (0..UNITS).map(|i| g[i] * slopes[i] * self.parameters[i * UNITS + j]).sum();
        }
    }

    fn vjp_injection(&self, z: &[f64], y: &[f64], g: &[f64], gy: &mut [f64]) {
        let (slopes, b) = (self.slopes(z, y), &self.parameters[UNITS * UNITS..]);
        for (j, gy) in gy.iter_mut().enumerate() {
            *gy = g[j] + (0..UNITS).map(|i| g[i] * slopes[i] * b[i * UNITS + j]).sum::<f64>();
        }
    }

    fn vjp_parameters(&self, z: &[f64], y: &[f64], g: &[f64], gp: &mut [f64]) {
        let slopes = self.slopes(z, y);
        for i in 0..UNITS {
            for j in 0..UNITS {
                gp[i * UNITS + j] += g[i] * slopes[i] * z[j];
                gp[(UNITS + i) * UNITS + j] += g[i] * slopes[i] * y[j];
            }
        }
    }
}

fn layer(parameters: Vec<f64>, solver: impl Into<Solver>) -> CustomLayer<subdeq::Cpu<f64>, Mixed> {
    let stopping = Stopping::absolute(1e-14).max_iterations(10_000);
    CustomLayer::new(Mixed { parameters }, solver, stopping).unwrap()
}

/// A loss of the equilibria, `v . z`, moves as the gradients say: for every parameter and every injection by itself.
#[test]
fn gradients_of_a_custom_map_are_those_of_differences() {
    const H: f64 = 1e-6;
    let (parameters, y, v) = (random(2 * UNITS * UNITS, 1), random(2 * UNITS, 2), random(2 * UNITS, 3));
    for solver in [Solver::from(Picard), Anderson::default().into()] {
        let loss = |parameters: &[f64], y: &[f64]| {
            let z = layer(parameters.to_vec(), solver).solve(y).unwrap().require_converged().unwrap().z;
            z.iter().zip(&v).map(|(z, v)| z * v).sum::<f64>()
        };
        let here = layer(parameters.clone(), solver);
        let z = here.solve(&y).unwrap().z;
        let found = here.gradients(&y, &z, &v).unwrap();
        let difference = |numbers: &[f64], at: usize, loss: &dyn Fn(&[f64]) -> f64| {
            let moved = |by: f64| {
                let mut numbers = numbers.to_vec();
                numbers[at] += by;
                loss(&numbers)
            };
            (moved(H) - moved(-H)) / (2.0 * H)
        };
        assert_eq!(found.parameters.len(), parameters.len());
        for (at, gradient) in found.parameters.iter().enumerate() {
            let expected = difference(&parameters, at, &|p| loss(p, &y));
            assert!((gradient - expected).abs() < 1e-8, "parameter {at}: {gradient} and {expected}");
        }
        for (at, gradient) in found.injections.iter().enumerate() {
            let expected = difference(&y, at, &|y| loss(&parameters, y));
            assert!((gradient - expected).abs() < 1e-8, "injection {at}: {gradient} and {expected}");
        }
    }
}

#[test]
fn gradients_of_other_lengths_are_refused() {
    let layer = layer(vec![0.1; 2 * UNITS * UNITS], Picard);
    let said = layer.gradients(&[0.5; UNITS], &[0.5; UNITS], &[1.0; 2]).unwrap_err().to_string();
    assert!(said.contains("1 samples have 3"), "{said}");
}
