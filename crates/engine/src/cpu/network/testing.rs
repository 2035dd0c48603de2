//! What the tests of the neighbouring files share.

use rand::{Rng, SeedableRng};

/// Numbers between -1 and 1.
pub(crate) fn random(len: usize, seed: u64) -> Vec<f64> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Compares a gradient with central differences of the objective.
pub(crate) fn assert_gradient(at: &[f64], gradient: &[f64], mut objective: impl FnMut(&[f64]) -> f64) {
    let mut x = at.to_vec();
    for i in 0..x.len() {
        let h = 1e-5;
        x[i] = at[i] + h;
        let above = objective(&x);
        x[i] = at[i] - h;
        let below = objective(&x);
        x[i] = at[i];
        let difference = (above - below) / (2.0 * h);
        assert!((difference - gradient[i]).abs() < 1e-7, "entry {i}: {} but {difference}", gradient[i]);
    }
}
