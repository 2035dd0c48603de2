//! Seeded randomness that gives the same result for ever: a named generator and our own shuffle, so that no update
//! of a library changes a split.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The generator of a purpose: `stream` keeps different uses of one seed independent.
pub(crate) fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    generator.set_stream(stream);
    generator
}

/// A number below `bound` (which must be positive); the bias is below `bound / 2^64`.
pub(crate) fn below(generator: &mut ChaCha8Rng, bound: u64) -> u64 {
    ((u128::from(generator.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// A number in (0, 1].
pub(crate) fn unit(generator: &mut ChaCha8Rng) -> f64 {
    ((generator.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

/// Fisher-Yates.
pub(crate) fn shuffle<T>(items: &mut [T], generator: &mut ChaCha8Rng) {
    for i in (1..items.len()).rev() {
        items.swap(i, below(generator, i as u64 + 1) as usize);
    }
}

/// The numbers below `count` in random order.
pub(crate) fn permutation(count: u32, generator: &mut ChaCha8Rng) -> Vec<u32> {
    let mut items: Vec<u32> = (0..count).collect();
    shuffle(&mut items, generator);
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_is_one_and_never_changes() {
        let order = permutation(10, &mut generator(3, 0));
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<u32>>());
        // Recorded once: a change here changes every published split.
        assert_eq!(order, RECORDED);
        assert_ne!(permutation(10, &mut generator(3, 1)), RECORDED);
    }

    const RECORDED: [u32; 10] = [1, 7, 5, 9, 4, 3, 8, 2, 0, 6];
}
