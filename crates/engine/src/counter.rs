//! Random numbers by counting: a function of a key and a few whole numbers, in 32-bit arithmetic that every device has, so that
//! nothing depends on order, threads or device. `kernels/data_sets.cu` has the same functions.

/// Spreads consecutive numbers over the 32-bit integers (2^32 over the golden ratio, odd).
pub(crate) const SPREAD: u32 = 0x9e37_79b1;

/// Mixes all bits of a number into all others: a bijection (the finaliser of MurmurHash3).
#[inline(always)]
pub(crate) fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x85eb_ca6b);
    x ^= x >> 13;
    x = x.wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// The number at a place of the sequence that a key stands for.
#[inline(always)]
pub(crate) fn at(key: u32, place: u32) -> u32 {
    mix(key.wrapping_add(place.wrapping_mul(SPREAD)))
}

/// The key of a stream of a seed; streams of one seed are independent.
pub(crate) fn key(seed: u64, stream: u64) -> u32 {
    let fold = |x: u64| mix(mix(x as u32).wrapping_add((x >> 32) as u32 ^ SPREAD));
    mix(fold(seed) ^ fold(stream).rotate_left(16))
}
