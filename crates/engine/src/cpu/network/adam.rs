//! Adam with an L2 term, and AdamW, as PyTorch computes them.

use super::vectorised::vectorised;
use crate::cpu::isa::Isa;
use crate::cpu::team::Team;
use crate::network::Adam;
use crate::{EngineError, Real, Result};

/// Entries that one task handles: roots and quotients take their time.
const CHUNK: usize = 1 << 12;

/// One update; all arrays are as long as the parameter.
///
/// # Errors
/// A step that is not counted from 1.
pub(crate) fn adam<T: Real>(
    team: &Team,
    isa: Isa,
    adam: &Adam,
    parameter: &mut [T],
    gradient: &[T],
    mean: &mut [T],
    square: &mut [T],
) -> Result<()> {
    if adam.step == 0 {
        return Err(EngineError::Invalid("Adam counts its steps from 1".into()));
    }
    let correction = |beta: f64| 1.0 - beta.powf(adam.step as f64);
    let rate = T::from_f64(adam.rate / correction(adam.beta1));
    let root = T::from_f64(1.0 / correction(adam.beta2).sqrt());
    let (beta1, rest1) = (T::from_f64(adam.beta1), T::from_f64(1.0 - adam.beta1));
    let (beta2, rest2) = (T::from_f64(adam.beta2), T::from_f64(1.0 - adam.beta2));
    let (epsilon, l2, kept) = (T::from_f64(adam.epsilon), T::from_f64(adam.l2), T::from_f64(adam.kept()));
    let moments = mean.chunks_mut(CHUNK).zip(square.chunks_mut(CHUNK));
    let values = parameter.chunks_mut(CHUNK).zip(gradient.chunks(CHUNK));
    team.for_each(values.zip(moments), |((p, g), (m, v))| {
        vectorised(isa, || {
            for (((p, &g), m), v) in p.iter_mut().zip(g).zip(m).zip(v) {
                let g = g + l2 * *p;
                *m = beta1 * *m + rest1 * g;
                *v = beta2 * *v + rest2 * g * g;
                *p = kept * *p - rate * *m / (v.sqrt() * root + epsilon);
            }
        });
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        // First step: m = (1 - b1) g, v = (1 - b2) g^2, both divided by their corrections again, so p moves by
        // rate * g / (|g| + eps) with g = 0.5 + 0.1 * 2 = 0.7.
        let team = Team::new(0).unwrap();
        let (mut p, mut m, mut v) = ([2.0f64], [0.0], [0.0]);
        adam(&team, Isa::detect(), &Adam::new(0.1, 0.1, 1), &mut p, &[0.5], &mut m, &mut v).unwrap();
        assert!((p[0] - (2.0 - 0.1 * 0.7 / (0.7 + 1e-8))).abs() < 1e-15);
        assert!((m[0] - 0.07).abs() < 1e-15 && (v[0] - 0.00049).abs() < 1e-15);
        // Second step without decay and with gradient 0: m = 0.9 * 0.07, v = 0.999 * 0.00049.
        let before = p[0];
        adam(&team, Isa::detect(), &Adam::new(0.1, 0.0, 2), &mut p, &[0.0], &mut m, &mut v).unwrap();
        let (mean, square) = (0.063 / (1.0 - 0.81), 0.00048951 / (1.0 - 0.998001f64));
        assert!((p[0] - (before - 0.1 * mean / (square.sqrt() + 1e-8))).abs() < 1e-14);
    }

    #[test]
    fn decoupled_decay_does_not_pass_through_the_moments() {
        let team = Team::new(0).unwrap();
        let (mut p, mut m, mut v) = ([2.0f64], [0.0], [0.0]);
        adam(&team, Isa::detect(), &Adam::decoupled(0.1, 0.5, 1), &mut p, &[0.5], &mut m, &mut v).unwrap();
        // p (1 - 0.1 * 0.5) - 0.1 g / |g|.
        assert!((p[0] - (1.9 - 0.1 * 0.5 / (0.5 + 1e-8))).abs() < 1e-15);
        assert!((m[0] - 0.05).abs() < 1e-15 && (v[0] - 0.00025).abs() < 1e-15);
    }
}
