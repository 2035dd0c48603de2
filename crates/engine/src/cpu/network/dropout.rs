//! Dropout whose pattern is a function of seed, stream and index.

use rayon::prelude::*;

use super::vector::CHUNK;
use super::vectorised::vectorised;
use crate::Real;
use crate::cpu::isa::Isa;

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of SplitMix64 (Steele, Lea and Flood): every bit of the argument moves every bit of the result.
#[inline(always)]
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Zeroes entries with probability `rate` and divides the others by `1 - rate`.
pub(super) fn dropout<T: Real>(isa: Isa, rate: f64, seed: u64, stream: u64, x: &mut [T]) {
    let key = mix(mix(seed.wrapping_add(GOLDEN)) ^ stream.wrapping_mul(GOLDEN));
    let threshold = (rate * (1u64 << 53) as f64) as u64;
    let keep = T::from_f64(1.0 / (1.0 - rate));
    x.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, x)| {
        vectorised(isa, || {
            for (i, x) in x.iter_mut().enumerate() {
                let index = (chunk * CHUNK + i) as u64;
                let dropped = mix(key.wrapping_add(index.wrapping_mul(GOLDEN))) >> 11 < threshold;
                *x = if dropped { T::ZERO } else { *x * keep };
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_mean_and_depends_on_seed_and_stream_only() {
        let run = |seed, stream, len| {
            let mut x = vec![1.0f64; len];
            dropout(Isa::detect(), 0.3, seed, stream, &mut x);
            x
        };
        let x = run(1, 2, 200_000);
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        // The standard deviation of the mean is sqrt(0.3 / 0.7 / 200000) = 0.0015.
        assert!((mean - 1.0).abs() < 0.007, "{mean}");
        assert!(x.iter().all(|&x| x == 0.0 || x == 1.0 / 0.7));
        assert_eq!(x[..1000], run(1, 2, 1000));
        for (seed, stream) in [(1, 3), (2, 2), (2, 1)] {
            let agree = run(seed, stream, 1000).iter().zip(&x).filter(|(a, b)| a == b).count();
            assert!(
                (520..640).contains(&agree),
                "independent patterns agree in 58 %, these in {agree} of 1000"
            );
        }
    }
}
