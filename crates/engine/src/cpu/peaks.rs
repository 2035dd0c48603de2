//! What this machine can do at best: the roof of the roofline.

// Loops over sums are counted by hand, so that the sums stay in registers.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;
use std::time::Instant;

use super::Cpu;
use super::buffer::Buffer;
use super::isa::{Isa, Vectorised};
use super::simd::Lanes;

/// Rates of all threads of a device together, as measured; a machine that does other things too shows less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Multiplications and additions of `f32` vectors, in units of 1e9 per second.
    pub vector_gflops: f64,
    /// The same of bf16 tiles, where there are any.
    pub tile_gflops: Option<f64>,
    /// Reading what lies in the second-level cache, in units of 1e9 bytes per second.
    pub cache_gb: f64,
    /// Reading memory.
    pub memory_gb: f64,
}

/// Independent sums: more than the latency of a fused multiply-add times their rate, fewer than registers.
const SUMS: usize = 12;
/// Repeats of each measurement; the fastest counts.
const REPEATS: usize = 5;
/// Bytes that fit into the second-level cache of any recent core, and bytes that fit into no cache.
const CACHED: usize = 1 << 18;
const UNCACHED: usize = 1 << 28;

impl Cpu<f32> {
    /// Measures the machine with this device's threads and instructions; takes about a second.
    ///
    /// ```no_run
    /// let peaks = subdeq_engine::Cpu::<f32>::new(0)?.peaks();
    /// println!("{:.0} GFLOP/s", peaks.vector_gflops);
    /// # Ok::<(), subdeq_engine::EngineError>(())
    /// ```
    #[must_use]
    pub fn peaks(&self) -> Peaks {
        let isa = self.isa();
        let vector = 1e-9 * self.rate(|| isa.dispatch(MultiplyAdd { steps: 4_000_000 }));
        Peaks {
            vector_gflops: vector,
            tile_gflops: self.tile_rate().map(|rate| 1e-9 * rate),
            cache_gb: 1e-9 * self.read_rate(isa, CACHED, 4000),
            memory_gb: 1e-9 * self.read_rate(isa, UNCACHED / self.threads(), 1),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn tile_rate(&self) -> Option<f64> {
        let proof = super::tiles::AmxProof::of(self.isa())?;
        Some(self.rate(|| super::tiles::multiply_only(proof, 2_000_000)))
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn tile_rate(&self) -> Option<f64> {
        None
    }

    /// Bytes per second when every thread reads memory of its own, `times` times over.
    fn read_rate(&self, isa: Isa, bytes: usize, times: usize) -> f64 {
        let numbers = bytes / size_of::<f32>();
        let memory = &vec![Buffer::<f32>::zeros(numbers); self.threads()];
        self.rate(|| {
            let own = &memory[rayon::current_thread_index().unwrap_or(0)];
            for _ in 0..times {
                black_box(isa.dispatch(Sum { numbers: black_box(&own[..]) }));
            }
            (times * bytes) as f64
        })
    }

    /// How much is done per second by all threads at once, where `work` returns how much one has done.
    fn rate(&self, work: impl Fn() -> f64 + Sync) -> f64 {
        (0..REPEATS)
            .map(|_| {
                self.install(|| {
                    let clock = Instant::now();
                    let done: f64 = rayon::broadcast(|_| work()).into_iter().sum();
                    done / clock.elapsed().as_secs_f64()
                })
            })
            .fold(0.0, f64::max)
    }
}

/// Nothing but fused multiply-adds; returns their operations.
struct MultiplyAdd {
    steps: usize,
}

impl Vectorised<f32> for MultiplyAdd {
    type Output = f64;

    #[inline(always)]
    fn run<V: Lanes<Elem = f32>>(self) -> f64 {
        let (factor, term) = (V::splat(black_box(0.999)), V::splat(black_box(1.0)));
        let mut sums = [V::zero(); SUMS];
        for _ in 0..self.steps {
            for k in 0..SUMS {
                sums[k] = sums[k].fma(factor, term);
            }
        }
        let mut out = [0.0; 64];
        for sum in sums {
            sum.store(&mut out[..V::N]);
            black_box(&out);
        }
        (2 * self.steps * SUMS * V::N) as f64
    }
}

/// The sum of numbers, as fast as they can be read.
struct Sum<'a> {
    numbers: &'a [f32],
}

impl Vectorised<f32> for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<V: Lanes<Elem = f32>>(self) -> f32 {
        let mut sums = [V::zero(); 4];
        for numbers in self.numbers.chunks_exact(4 * V::N) {
            for k in 0..4 {
                sums[k] = sums[k] + V::load(&numbers[k * V::N..]);
            }
        }
        ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_is_a_positive_number() {
        let peaks = Cpu::<f32>::with_isa(1, Isa::detect()).unwrap().peaks();
        let rates = [peaks.vector_gflops, peaks.cache_gb, peaks.memory_gb];
        for rate in rates.into_iter().chain(peaks.tile_gflops) {
            assert!(rate.is_finite() && rate > 0.0, "{peaks:?}");
        }
        assert_eq!(peaks.tile_gflops.is_some(), Isa::detect().has_amx());
    }
}
