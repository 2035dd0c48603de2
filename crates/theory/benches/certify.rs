//! What a verdict costs: `cargo bench -p subdeq-theory`.

use divan::{Bencher, black_box};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Activation, Map, Operator, Padding};
use subdeq_theory::certificate::{Domain, Scope, Theorem};
use subdeq_theory::certify::Certifier;

fn main() {
    divan::main();
}

fn uniform(count: usize, scale: f64) -> Vec<f64> {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    (0..count).map(|_| scale * rng.random_range(-1.0..1.0)).collect()
}

fn map() -> Map {
    Map::single(Activation::Tanh, 1.2).unwrap()
}

/// Entries of standard deviation `gain / sqrt(n)`.
fn dense(n: usize, gain: f64) -> Operator {
    Operator::dense(n, uniform(n * n, gain * (3.0 / n as f64).sqrt())).expect("finite")
}

fn conv(gain: f64) -> Operator {
    let channels: usize = 48;
    let kernel = uniform(channels * channels * 9, gain * (3.0 / (9.0 * channels as f64)).sqrt());
    Operator::conv(channels, 32, 32, Padding::Zero, kernel).expect("finite")
}

/// n = 87, warm started. Gains: closed by T1, by T2, by T3, by nothing.
#[divan::bench(args = [0.1, 0.4, 0.6, 2.0])]
fn all_inputs_dense_87(bencher: Bencher, gain: f64) {
    let (map, w) = (map(), dense(87, gain));
    let mut certifier = Certifier::proofs_only();
    certifier.certify(&map, &w, &Scope::NonnegativeInputs).expect("a proper question");
    bencher.bench_local(|| certifier.certify(black_box(&map), black_box(&w), &Scope::NonnegativeInputs));
}

/// n = 87, one input: interval propagation and T1.
#[divan::bench(args = [0.1, 0.5, 1.0])]
fn sample_box_and_weighted_sup_87(bencher: Bencher, gain: f64) {
    let (map, w) = (map(), dense(87, gain));
    let scope = Scope::Sample { y: uniform(87, 1.0).iter().map(|x| x.abs()).collect() };
    let domain = Domain::Propagated { steps: 50 };
    let mut certifier = Certifier::proofs_only();
    bencher.bench_local(|| certifier.close(black_box(&map), &w, &scope, domain, Theorem::WeightedSup));
}

/// n = 87, one input, everything there is.
#[divan::bench(args = [0.1, 0.5, 1.0])]
fn sample_87(bencher: Bencher, gain: f64) {
    let (map, w) = (map(), dense(87, gain));
    let y: Vec<f64> = uniform(87, 1.0).iter().map(|x| x.abs()).collect();
    let mut certifier = Certifier::proofs_only();
    let scope = Scope::Sample { y };
    bencher.bench_local(|| certifier.certify(black_box(&map), &w, &scope));
}

/// 48 channels on 32 x 32, warm started. Gains: closed by T1, by T2, by T3, by nothing.
#[divan::bench(args = [0.03, 0.4, 0.6, 2.0])]
fn all_inputs_conv_48(bencher: Bencher, gain: f64) {
    let (map, w) = (map(), conv(gain));
    let mut certifier = Certifier::proofs_only();
    certifier.certify(&map, &w, &Scope::NonnegativeInputs).expect("a proper question");
    bencher.bench_local(|| certifier.certify(black_box(&map), black_box(&w), &Scope::NonnegativeInputs));
}

/// T3 alone over all frequencies of 48 channels on 32 x 32.
#[divan::bench]
fn frequencies_conv_48(bencher: Bencher) {
    let (map, w) = (map(), conv(0.6));
    let mut certifier = Certifier::proofs_only();
    bencher.bench_local(|| {
        certifier.close(
            &map,
            black_box(&w),
            &Scope::AllInputs,
            Domain::Everywhere,
            Theorem::DiagonalStability,
        )
    });
}

/// 48 channels on 32 x 32, one input, everything there is. Gains: closed by T1 on the box, by nothing.
#[divan::bench(args = [0.03, 0.1, 0.5], sample_count = 3, sample_size = 1)]
fn sample_conv_48(bencher: Bencher, gain: f64) {
    let (map, w) = (map(), conv(gain));
    let y: Vec<f64> = uniform(w.len(), 1.0).iter().map(|x| x.abs()).collect();
    let mut certifier = Certifier::proofs_only();
    let scope = Scope::Sample { y };
    bencher.bench_local(|| certifier.certify(black_box(&map), &w, &scope));
}
