//! A map of one's own with parameters that learn: each of two populations grows like the root of what the other sends it,
//! `z_i = sqrt(p_i z_j) + y_i + 1`. Given equilibria that were observed, gradient descent finds the `p` that they came from.
//!
//!     cargo run --release -p subdeq --example custom_map

use subdeq::{CustomLayer, CustomMap, Picard, Result, Stopping};

const UNITS: usize = 2;

struct Exchange {
    p: [f64; UNITS],
}

impl CustomMap<f64> for Exchange {
    fn state_len(&self) -> usize {
        UNITS
    }

    fn injection_len(&self) -> usize {
        UNITS
    }

    fn parameter_len(&self) -> usize {
        UNITS
    }

    fn apply(&self, z: &[f64], y: &[f64], out: &mut [f64]) {
        for i in 0..UNITS {
            out[i] = (self.p[i] * z[1 - i]).sqrt() + y[i] + 1.0;
        }
    }

    fn vjp_state(&self, z: &[f64], _: &[f64], g: &[f64], gz: &mut [f64]) {
        for i in 0..UNITS {
            gz[1 - i] = g[i] * 0.5 * (self.p[i] / z[1 - i]).sqrt();
        }
    }

    fn vjp_injection(&self, _: &[f64], _: &[f64], g: &[f64], gy: &mut [f64]) {
        gy.copy_from_slice(g);
    }

    fn vjp_parameters(&self, z: &[f64], _: &[f64], g: &[f64], gp: &mut [f64]) {
        for i in 0..UNITS {
            gp[i] += g[i] * 0.5 * (z[1 - i] / self.p[i]).sqrt();
        }
    }

    /// A root has degree 1/2, and adding what is not negative lowers it.
    fn strong_degree(&self) -> Option<f64> {
        Some(0.5)
    }
}

fn main() -> Result<()> {
    let y = [0.0, 0.5, 1.0, 0.0, 0.3, 0.3];
    let layer = |p| CustomLayer::new(Exchange { p }, Picard, Stopping::certified(1e-10));
    let observed = layer([0.7, 1.9])?.solve(&y)?.require_converged()?.z;

    let mut model = layer([1.0, 1.0])?;
    println!("proved to have one equilibrium: {}", model.verdict().is_proven());
    for step in 0..=200 {
        let z = model.solve(&y)?.require_converged()?.z;
        // Half the squared distance, and its gradient for the states.
        let v: Vec<f64> = z.iter().zip(&observed).map(|(z, seen)| z - seen).collect();
        let loss = 0.5 * v.iter().map(|v| v * v).sum::<f64>();
        if step % 50 == 0 {
            println!("step {step}: loss {loss:.3e}, p = {:.5?}", model.map().p);
        }
        let gradient = model.gradients(&y, &z, &v)?.parameters;
        for (p, g) in model.map_mut().p.iter_mut().zip(gradient) {
            *p -= 0.1 * g;
        }
    }
    let p = model.map().p;
    assert!((p[0] - 0.7).abs() < 1e-4 && (p[1] - 1.9).abs() < 1e-4, "{p:?}");
    Ok(())
}
