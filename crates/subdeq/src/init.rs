//! Where training starts.

use rand::Rng;
use serde::{Deserialize, Serialize};
use subdeq_engine::Real;

/// How free parameters are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Init {
    /// Uniform between `-1/sqrt(fan_in)` and `1/sqrt(fan_in)`: PyTorch's default, which the authors' program ends up with.
    #[default]
    Release,
    /// Normal with mean 0 and standard deviation 0.01, as the paper says.
    Paper,
}

impl Init {
    /// Draws `len` numbers for units that add up `fan_in` terms.
    pub fn draw<T: Real>(self, len: usize, fan_in: usize, rng: &mut impl Rng) -> Vec<T> {
        let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
        let one = |rng: &mut _| match self {
            Self::Release => bound * (2.0 * uniform(rng) - 1.0),
            Self::Paper => 0.01 * normal(rng),
        };
        (0..len).map(|_| T::from_f64(one(rng))).collect()
    }
}

/// Uniform on `(0, 1)`.
fn uniform(rng: &mut impl Rng) -> f64 {
    ((rng.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Standard normal (Box and Muller).
fn normal(rng: &mut impl Rng) -> f64 {
    let (radius, angle) = ((-2.0 * uniform(rng).ln()).sqrt(), uniform(rng) * std::f64::consts::TAU);
    radius * angle.cos()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_draws_have_the_stated_spread() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(1);
        let variance = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let uniform: Vec<f64> = Init::Release.draw(40_000, 25, &mut rng);
        assert!(uniform.iter().all(|x| x.abs() < 0.2) && uniform.iter().any(|x| x.abs() > 0.199));
        assert!((variance(&uniform) / (0.04 / 3.0) - 1.0).abs() < 0.03);
        let normal: Vec<f64> = Init::Paper.draw(40_000, 25, &mut rng);
        assert!((variance(&normal) / 1e-4 - 1.0).abs() < 0.04);
    }
}
