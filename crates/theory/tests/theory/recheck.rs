//! Serialise, read back, check again: every kind of certificate passes against its weights and fails once it, or they, are
//! tampered with.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Activation, Groups, Layout, Map, Operator, PNorm, Padding};
use subdeq_theory::certificate::{
    Certificate, Domain, Evidence, Metric, Refutation, Scope, States, Theorem, Verdict,
};
use subdeq_theory::certify::Certifier;
use subdeq_theory::monotone;

fn sample(y: &[f64]) -> Scope {
    Scope::Sample { y: y.to_vec() }
}

fn gaussian(n: usize, gain: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let scale = gain / (n as f64).sqrt();
    (0..n * n).map(|_| scale * (0..12).map(|_| rng.random_range(-0.5..0.5)).sum::<f64>()).collect()
}

fn through_json(certificate: &Certificate) -> Certificate {
    let text = serde_json::to_string(certificate).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// A smaller factor is a lie as soon as the proof is tight; so is a test with other weights.
fn tampered(certificate: &Certificate) -> Vec<Certificate> {
    let mut lies = Vec::new();
    let Verdict::Proven { theorem, factor, metric, states, starts, evidence } = &certificate.verdict else {
        return lies;
    };
    let with = |factor: Option<f64>, evidence: Evidence| Certificate {
        verdict: Verdict::Proven {
            theorem: *theorem,
            factor,
            metric: metric.clone(),
            states: *states,
            starts: *starts,
            evidence,
        },
        ..certificate.clone()
    };
    if let Some(c) = factor {
        lies.push(with(Some(0.5 * c), evidence.clone()));
        lies.push(with(Some(1.0), evidence.clone()));
    }
    match evidence {
        Evidence::Closing { domain, weights } if !weights.is_empty() => {
            let mut negative = weights.clone();
            negative[0] = -negative[0];
            lies.push(with(*factor, Evidence::Closing { domain: *domain, weights: negative }));
        }
        Evidence::Secant { steps, anchor, slopes, weights } => {
            let elsewhere: Vec<f64> = anchor.iter().map(|x| x + 1e-3).collect();
            let smaller: Vec<f64> = slopes.iter().map(|s| 0.5 * s).collect();
            let evidence = |anchor: Vec<f64>, slopes: Vec<f64>| Evidence::Secant {
                steps: *steps,
                anchor,
                slopes,
                weights: weights.clone(),
            };
            lies.push(with(*factor, evidence(elsewhere, slopes.clone())));
            lies.push(with(*factor, evidence(anchor.clone(), smaller)));
        }
        Evidence::Splitting { weights, margin, lipschitz, step, factor: k } => {
            let evidence = |margin, lipschitz, factor| Evidence::Splitting {
                weights: weights.clone(),
                margin,
                lipschitz,
                step: *step,
                factor,
            };
            lies.push(with(None, evidence(1.01 * margin + 0.01, *lipschitz, *k)));
            lies.push(with(None, evidence(*margin, 0.9 * lipschitz, *k)));
            lies.push(with(None, evidence(*margin, *lipschitz, 0.9 * k)));
        }
        _ => {}
    }
    lies
}

fn assert_honest(certificate: &Certificate, weights: &Operator) {
    let read = through_json(certificate);
    assert_eq!(&read, certificate);
    if let Err(error) = read.recheck(weights) {
        panic!("{error}\n{certificate}\n{certificate:?}");
    }
    for lie in tampered(certificate) {
        assert!(lie.recheck(weights).is_err(), "a lie passed: {lie:?}");
    }
}

/// The closing tests do find something, so that there is something to re-check.
#[test]
fn every_closing_test_closes_some_layer() {
    use Theorem::*;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let map = Map::single(Activation::Tanh, 1.2).unwrap();
    let layers: Vec<(Operator, Vec<f64>)> = (0..12)
        .map(|k| {
            let w = Operator::dense(4, gaussian(4, 0.2 + 0.1 * f64::from(k), &mut rng)).unwrap();
            (w, (0..4).map(|_| rng.random_range(0.0..2.0)).collect())
        })
        .collect();
    let mut certifier = Certifier::new();
    for theorem in [
        WeightedSup,
        WeightedTwoNorm,
        DiagonalStability,
        SlopeInterval,
        LogJacobian,
        SecantWeightedSup,
        SecantTwoNorm,
        SecantDiagonalStability,
    ] {
        let mut closed = 0;
        for (w, y) in &layers {
            let (scope, domain) = (Scope::Sample { y: y.clone() }, Domain::Propagated { steps: 50 });
            closed += usize::from(certifier.close(&map, w, &scope, domain, theorem).unwrap().is_some());
        }
        assert!(closed >= 3, "{theorem:?} closes {closed} of {} layers", layers.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn certificates_of_random_layers_pass_and_their_forgeries_fail(
        n in 1usize..14,
        gain in 0.05f64..2.5,
        seed in any::<u64>(),
        softsign in any::<bool>(),
        inner in any::<bool>(),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let w = Operator::dense(n, gaussian(n, gain, &mut rng)).unwrap();
        let y: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..2.0)).collect();
        let map = Map::single(if softsign { Activation::Softsign } else { Activation::Tanh }, 1.2).unwrap();
        let map = if inner { map.inner().unwrap() } else { map };
        let mut certifier = Certifier::new();
        assert_honest(&certifier.certify(&map, &w, &Scope::NonnegativeInputs).unwrap(), &w);
        assert_honest(&certifier.certify(&map, &w, &sample(&y)).unwrap(), &w);
        assert_honest(&certifier.certify(&map, &w, &Scope::InputSet { ymax: y.clone() }).unwrap(), &w);
    }

    #[test]
    fn every_closing_test_passes_its_recheck(n in 2usize..10, gain in 0.2f64..1.6, seed in any::<u64>()) {
        use Theorem::*;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let w = Operator::dense(n, gaussian(n, gain, &mut rng)).unwrap();
        let y: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..2.0)).collect();
        let map = Map::single(Activation::Tanh, 1.2).unwrap();
        let boxed = [
            WeightedSup, WeightedTwoNorm, DiagonalStability, SlopeInterval, LogJacobian,
            SecantWeightedSup, SecantTwoNorm, SecantDiagonalStability,
        ];
        let mut certifier = Certifier::new();
        for theorem in boxed {
            for steps in [0, 5, 50] {
                let scope = Scope::Sample { y: y.clone() };
                let domain = Domain::Propagated { steps };
                if let Some(found) = certifier.close(&map, &w, &scope, domain, theorem).unwrap() {
                    assert_honest(&found, &w);
                }
            }
        }
        for theorem in &boxed[..3] {
            let found = certifier.close(&map, &w, &Scope::AllInputs, Domain::Everywhere, *theorem).unwrap();
            if let Some(found) = found {
                assert_honest(&found, &w);
            }
        }
    }

    #[test]
    fn normalised_certificates_pass(n in 2usize..8, gain in 0.05f64..0.6, p in 0usize..3, seed in any::<u64>()) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let w = Operator::dense(n, gaussian(n, gain, &mut rng)).unwrap();
        let y: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..1.0)).collect();
        let norm = [PNorm::Inf, PNorm::Finite(1.0), PNorm::Finite(2.0)][p];
        for groups in [Groups::WholeVector, Groups::Blocks { size: 2 }] {
            if matches!(groups, Groups::Blocks { size } if n % size != 0) {
                continue;
            }
            let s = if seed % 2 == 0 { Activation::Tanh } else { Activation::Softsign };
            let map = Map::single(s, 1.603).unwrap().normalised(norm, groups).unwrap();
            assert_honest(&Certifier::new().certify(&map, &w, &sample(&y)).unwrap(), &w);
        }
    }

    #[test]
    fn monotone_certificates_pass(n in 1usize..12, scale in 0.1f64..3.0, margin in 0.05f64..0.8, seed in any::<u64>()) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let map = Map::named("monotone", Layout::Dense).unwrap();
        let v = Operator::dense(n, gaussian(n, scale, &mut rng)).unwrap();
        let (w, _) = monotone::shifted(&v, margin).unwrap();
        let certificate = Certifier::new().certify(&map, &w, &Scope::AllInputs).unwrap();
        prop_assert!(certificate.verdict.is_proven());
        assert_honest(&certificate, &w);
        let (a, b) = (gaussian(n, scale, &mut rng), gaussian(n, scale, &mut rng));
        let w = monotone::from_factors(n, margin, &a, &b).unwrap();
        let certificate = Certifier::new().certify(&map, &w, &Scope::AllInputs).unwrap();
        prop_assert!(certificate.verdict.is_proven());
        assert_honest(&certificate, &w);
    }
}

#[test]
fn convolutions_pass_by_channels_frequencies_and_boxes() {
    let map = Map::single(Activation::Tanh, 1.2).unwrap();
    let monotone = Map::named("monotone", Layout::Conv).unwrap();
    let mut seen = std::collections::HashSet::new();
    for seed in 0..60 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scale = rng.random_range(0.02..0.35);
        let kernel: Vec<f64> = (0..2 * 2 * 9).map(|_| rng.random_range(-scale..scale)).collect();
        let padding = if seed % 2 == 0 { Padding::Zero } else { Padding::Circular };
        let w = Operator::conv(2, 4, 5, padding, kernel).unwrap();
        let y: Vec<f64> = (0..w.len()).map(|_| rng.random_range(0.0..2.0)).collect();
        let (shifted, _) = monotone::shifted(&w, 0.3).unwrap();
        for (certificate, w) in [
            (Certifier::proofs_only().certify(&map, &w, &Scope::NonnegativeInputs).unwrap(), &w),
            (Certifier::proofs_only().certify(&map, &w, &sample(&y)).unwrap(), &w),
            (
                Certifier::proofs_only().certify(&monotone, &shifted, &Scope::NonnegativeInputs).unwrap(),
                &shifted,
            ),
        ] {
            if let Verdict::Proven { theorem, .. } = certificate.verdict {
                seen.insert(theorem);
            }
            assert_honest(&certificate, w);
        }
    }
    for theorem in
        [Theorem::WeightedSup, Theorem::WeightedTwoNorm, Theorem::DiagonalStability, Theorem::Monotone]
    {
        assert!(seen.contains(&theorem), "{theorem} was never used: {seen:?}");
    }
}

#[test]
fn weights_that_break_the_proof_are_noticed() {
    let map = Map::single(Activation::Tanh, 1.2).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    // Rank one, balanced: several fixed points for equal inputs.
    let sign = |k: usize| if (k / 6 + k % 6).is_multiple_of(2) { 1.0 } else { -1.0 };
    let several = Operator::dense(6, (0..36).map(sign).collect()).unwrap();
    assert!(Certifier::new().certify(&map, &several, &sample(&[0.3; 6])).unwrap().verdict.is_refuted());
    for gain in [0.2, 0.6, 1.0] {
        let w = Operator::dense(6, gaussian(6, gain, &mut rng)).unwrap();
        let certificate = Certifier::new().certify(&map, &w, &sample(&[0.3; 6])).unwrap();
        assert!(certificate.verdict.is_proven());
        assert!(certificate.recheck(&several).is_err());
        let other_size = Operator::dense(5, vec![0.0; 25]).unwrap();
        assert!(certificate.recheck(&other_size).is_err());
    }
    // By form: a single negative weight voids the proof for nonnegative weights.
    let nonnegative = Operator::dense(2, vec![3.0, 1.0, 2.0, 5.0]).unwrap();
    let certificate = Certifier::new().certify(&map, &nonnegative, &Scope::NonnegativeInputs).unwrap();
    assert_honest(&certificate, &nonnegative);
    assert!(certificate.recheck(&Operator::dense(2, vec![3.0, -1.0, 2.0, 5.0]).unwrap()).is_err());
}

#[test]
fn refutations_pass_and_forged_fixed_points_fail() {
    let map = Map::single(Activation::Tanh, 1.2).unwrap();
    let w = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0]).unwrap();
    let certificate = Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap();
    assert_honest(&certificate, &w);
    let Verdict::Refuted { witness: Refutation::FixedPoints { y, points, radii } } = &certificate.verdict
    else {
        panic!("{certificate}");
    };
    let forged = |points: Vec<Vec<f64>>, radii: Vec<f64>| Certificate {
        verdict: Verdict::Refuted { witness: Refutation::FixedPoints { y: y.clone(), points, radii } },
        ..certificate.clone()
    };
    let twice = vec![points[0].clone(), points[0].clone()];
    assert!(forged(twice, radii[..2].to_vec()).recheck(&w).is_err());
    let moved = points.iter().map(|p| p.iter().map(|x| x + 1e-3).collect()).collect();
    assert!(forged(moved, radii.clone()).recheck(&w).is_err());
    let mild = Operator::dense(2, vec![0.1, -0.1, -0.1, 0.1]).unwrap();
    assert!(certificate.recheck(&mild).is_err());
}

/// Weights per channel claim something about every pixel: here the first is saturated, the other has three fixed points.
#[test]
fn weights_per_channel_are_checked_at_the_steepest_pixel() {
    let mut kernel = vec![0.0; 9];
    kernel[4] = 3.0;
    let w = Operator::conv(1, 1, 2, Padding::Zero, kernel).unwrap();
    let map = Map::single(Activation::Tanh, 1.2).unwrap().inner().unwrap();
    let forged = |y: Vec<f64>| Certificate {
        map,
        scope: Scope::Sample { y },
        verdict: Verdict::Proven {
            theorem: Theorem::WeightedSup,
            factor: Some(0.9),
            metric: Metric::WeightedSup { v: vec![1.0] },
            states: States::Reals,
            starts: Some(States::Reals),
            evidence: Evidence::Closing { domain: Domain::Propagated { steps: 50 }, weights: vec![1.0] },
        },
    };
    assert!(forged(vec![20.0, 20.0]).recheck(&w).is_ok());
    assert!(forged(vec![20.0, -3.6]).recheck(&w).is_err());
}
