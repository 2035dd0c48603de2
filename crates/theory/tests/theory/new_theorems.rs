//! A8 (tied monotone maps), gains, A9 (networks) and A10 (projections): proved where the theory says so, true when sampled, forgeries
//! refused.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Activation, Form, Groups, Layout, Map, Operator, Padding};
use subdeq_theory::certificate::{Certificate, Evidence, Scope, States, Theorem, Verdict};
use subdeq_theory::certify::Certifier;
use subdeq_theory::network::{Feedback, Sequence};

fn numbers(n: usize, scale: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    (0..n).map(|_| scale * rng.random_range(-1.0..1.0)).collect()
}

fn tied(s: Activation, margin: f64, skew: f64) -> Map {
    Map::of_form(Form::Tied { margin, skew }, s, 0.0).unwrap().inner().unwrap()
}

/// The solution by damped forward steps `z <- (1 - t) z + t F(z)`, small enough to converge for a monotone map.
fn solve(map: &Map, a: &Operator, y: &[f64], start: f64, step: f64) -> Vec<f64> {
    let mut z = vec![start; a.len()];
    for _ in 0..20_000 {
        let f = map.evaluate(a, None, &z, y).unwrap();
        z.iter_mut().zip(f).for_each(|(z, f)| *z += step * (f - *z));
    }
    z
}

#[test]
fn a8_is_proved_for_every_matrix_and_its_solution_is_unique_and_nonexpansive() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    for round in 0..12 {
        let n = 3;
        let a = Operator::dense(n, numbers(n * n, 1.0 + 0.2 * f64::from(round), &mut rng)).unwrap();
        let s = [Activation::Relu, Activation::Tanh, Activation::Softsign][round as usize % 3];
        let margin = [1.0, 0.5][round as usize % 2];
        let map = tied(s, margin, 1.0);
        let certificate = Certifier::new().certify(&map, &a, &Scope::AllInputs).unwrap();
        let Verdict::Proven {
            theorem: Theorem::MonotoneTied,
            states: States::Reals,
            starts: None,
            evidence,
            ..
        } = &certificate.verdict
        else {
            panic!("{certificate}");
        };
        certificate.recheck(&a).unwrap();
        let Evidence::Splitting { lipschitz, .. } = evidence else { panic!("{evidence:?}") };
        let step = 0.5 * margin / (lipschitz * lipschitz);
        let (y, other) = (numbers(n, 2.0, &mut rng), numbers(n, 2.0, &mut rng));
        let z = solve(&map, &a, &y, 0.0, step.max(1e-3));
        let again = solve(&map, &a, &y, 3.0, step.max(1e-3));
        let distance =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        assert!(distance(&z, &again) < 1e-6, "{z:?} {again:?}");
        let moved = solve(&map, &a, &other, 0.0, step.max(1e-3));
        let gain = certificate.gain().unwrap();
        assert!((gain - 1.0 / margin).abs() < 1e-12);
        assert!(distance(&z, &moved) <= gain * distance(&y, &other) + 1e-6);
        // Another margin, Lipschitz constant or factor is refused.
        for change in 0..3 {
            let mut forged = certificate.clone();
            if let Verdict::Proven {
                evidence: Evidence::Splitting { margin, lipschitz, factor, .. }, ..
            } = &mut forged.verdict
            {
                match change {
                    0 => *margin *= 1.01,
                    1 => *lipschitz *= 0.9,
                    _ => *factor *= 0.99,
                }
            }
            assert!(forged.recheck(&a).is_err(), "change {change}");
        }
        // So is the certificate of another A, larger or smaller, or with another b or m in the equation.
        for scale in [0.5, 0.9, 1.1, 2.0] {
            let other = a.clone().try_map(|a| scale * a).unwrap();
            assert!(certificate.recheck(&other).is_err(), "{scale} A");
        }
        for map in [tied(s, margin, 1.5), tied(s, 0.9 * margin, 1.0)] {
            let forged = Certificate { map, ..certificate.clone() };
            assert!(forged.recheck(&a).is_err(), "{map}");
        }
    }
    let kernel = numbers(36, 0.4, &mut rng);
    for padding in [Padding::Zero, Padding::Circular] {
        let a = Operator::conv(2, 4, 5, padding, kernel.clone()).unwrap();
        let certificate =
            Certifier::new().certify(&tied(Activation::Relu, 1.0, 1.0), &a, &Scope::AllInputs).unwrap();
        assert!(certificate.verdict.is_proven(), "{certificate}");
        certificate.recheck(&a).unwrap();
        let mut changed = kernel.clone();
        changed[4] += 1.0;
        let other = Operator::conv(2, 4, 5, padding, changed).unwrap();
        assert!(certificate.recheck(&other).is_err(), "another centre tap");
    }
    assert!(Map::of_form(Form::Tied { margin: 0.0, skew: 1.0 }, Activation::Relu, 0.0).is_err());
    assert!(
        Map::of_form(Form::Tied { margin: 1.0, skew: 1.0 }, Activation::LeakyRelu { slope: 2.0 }, 0.0)
            .is_err()
    );
}

#[test]
fn errors_and_gains_go_through_a_sequence() {
    let map = Map::named("monotone", Layout::Dense).unwrap();
    let w = Operator::dense(2, vec![0.5, -9.0, 9.0, 0.5]).unwrap();
    let layer = Certifier::new().certify(&map, &w, &Scope::AllInputs).unwrap();
    let sequence = Sequence { layers: vec![layer.clone(), layer.clone()] };
    assert!(sequence.is_proven());
    let errors = sequence.error_bounds(&[0.1, 0.01], &[1.0, 3.0]);
    // 0.01 + 2 * 3 * 0.1.
    assert!((errors[1].unwrap() - 0.61).abs() < 1e-3, "{errors:?}");
    assert!((sequence.lipschitz(&[1.0, 3.0]).unwrap() - 12.0).abs() < 1e-2);
    let split = Map::named("split-sign", Layout::Dense).unwrap();
    let other = Certifier::new().certify(&split, &w, &Scope::NonnegativeInputs).unwrap();
    let mixed = Sequence { layers: vec![layer, other] };
    assert!(mixed.is_proven() && mixed.lipschitz(&[1.0, 1.0]).is_none());
    assert_eq!(mixed.error_bounds(&[0.1, 0.1], &[1.0, 1.0])[1], None);
    assert!(!Sequence { layers: Vec::<Certificate>::new() }.is_proven());
}

#[test]
fn feedback_is_proved_exactly_where_margins_outweigh_couplings() {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    for _ in 0..200 {
        let n = rng.random_range(2..5);
        let margins: Vec<f64> = (0..n).map(|_| rng.random_range(0.1..2.0)).collect();
        let couplings: Vec<f64> =
            (0..n * n).map(|k| if k / n == k % n { 0.0 } else { rng.random_range(0.0..1.0) }).collect();
        // The spectral radius by a long power iteration.
        let mut v = vec![1.0; n];
        let mut rho = 0.0;
        for _ in 0..3000 {
            let image: Vec<f64> = (0..n)
                .map(|i| {
                    0.5 * v[i] + 0.5 * (0..n).map(|j| couplings[i * n + j] * v[j]).sum::<f64>() / margins[i]
                })
                .collect();
            let top = image.iter().copied().fold(0.0, f64::max);
            rho = 2.0 * top - 1.0;
            v = image.iter().map(|x| x / top).collect();
        }
        for scale in [0.97 / rho, 1.001 / rho] {
            let couplings = couplings.iter().map(|c| scale * c).collect();
            let feedback = Feedback { margins: margins.clone(), couplings };
            assert_eq!(feedback.certify().is_ok(), scale * rho < 1.0, "{feedback:?}");
        }
    }
    assert!(Feedback { margins: vec![1.0], couplings: vec![f64::NAN] }.certify().is_err());
    assert!(Feedback { margins: vec![1.0, -1.0], couplings: vec![0.0; 4] }.certify().is_err());
}

#[test]
fn projections_keep_the_factor_of_a_graph_for_inputs_of_any_sign() {
    let third = 1.0 / 3.0;
    let a = Operator::graph(2, vec![0, 3, 6, 9], vec![0, 1, 2, 0, 1, 2, 0, 1, 2], vec![third; 9]).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(10);
    for name in ["appnp", "appnp-tanh", "appnp-tanh-2"] {
        for groups in [Groups::GraphRows, Groups::GraphColumns] {
            let map = Map::named(name, Layout::Graph).unwrap().projected(groups, 0.7).unwrap();
            let certificate = Certifier::new().certify(&map, &a, &Scope::AllInputs).unwrap();
            let Verdict::Proven { factor: Some(c), theorem: Theorem::GraphPropagation, .. } =
                certificate.verdict
            else {
                panic!("{certificate}");
            };
            assert!((c - 0.9).abs() < 1e-6, "{c}");
            for _ in 0..50 {
                let y = numbers(6, 5.0, &mut rng);
                let (x, z) = (numbers(6, 2.0, &mut rng), numbers(6, 2.0, &mut rng));
                let (fx, fz) =
                    (map.evaluate(&a, None, &x, &y).unwrap(), map.evaluate(&a, None, &z, &y).unwrap());
                let norm =
                    |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                assert!(norm(&fx, &fz) <= c * norm(&x, &z) + 1e-12);
            }
        }
    }
    let dense = Map::single(Activation::Tanh, 1.2).unwrap();
    assert!(dense.projected(Groups::WholeVector, 1.0).is_err(), "no proof is known for it here");
}

/// tanh with shift 1.1 has no factor for all weights (it needs 1.19968), but these weights and this input have one; A4 below its threshold
/// likewise; and where there are several fixed points, nothing is proved.
#[test]
fn forms_are_proved_on_boxes_where_the_form_alone_does_not_suffice() {
    let w = Operator::dense(2, vec![0.4, -0.3, -0.2, 0.5]).unwrap();
    let strong = Operator::dense(2, vec![0.0, -8.0, -8.0, 0.0]).unwrap();
    let maps = [
        Map::split_sign(Activation::Tanh, 1.1).unwrap(),
        Map::of_form(Form::Divisive { q: 1.0 }, Activation::Tanh, 0.2).unwrap(),
        Map::of_form(Form::Rational { q: 1.0 }, Activation::Softsign, 0.1).unwrap(),
    ];
    for map in maps {
        let scope = Scope::Sample { y: vec![0.0, 0.05] };
        assert!(!Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap().verdict.is_proven());
        let certificate = Certifier::new().certify(&map, &w, &scope).unwrap();
        assert!(
            matches!(certificate.verdict, Verdict::Proven { evidence: Evidence::FormBox { .. }, .. }),
            "{certificate}"
        );
        certificate.recheck(&w).unwrap();
        let mut forged = certificate.clone();
        if let Verdict::Proven { factor: Some(c), .. } = &mut forged.verdict {
            *c *= 0.999;
        }
        assert!(forged.recheck(&w).is_err());
        assert!(certificate.recheck(&strong).is_err() || map.form() != Form::SplitSign);
    }
    // Inputs that make some states negative leave the orthant, and with it the proof.
    let divisive =
        Map::of_form(Form::Divisive { q: 0.1 }, Activation::HardTanh { lo: 0.0, hi: 1.0 }, 1.2).unwrap();
    let w = Operator::dense(2, vec![-10.08, 22.03, 22.03, -4.65]).unwrap();
    let scope = Scope::Sample { y: vec![-1.3163, -1.0521] };
    assert!(!Certifier::new().certify(&divisive, &w, &scope).unwrap().verdict.is_proven());
    // z_1 = 1.05 - tanh(8 z_2) and the same the other way round: three fixed points.
    let several = Map::split_sign(Activation::Tanh, 1.05).unwrap();
    let found = Certifier::new().certify(&several, &strong, &Scope::Sample { y: vec![0.0, 0.0] }).unwrap();
    assert!(!found.verdict.is_proven(), "{found}");
}

/// Two normalised blocks that hardly depend on one another: twice the degree is not below one, the sharper bound is.
#[test]
fn interacting_groups_with_weak_coupling_have_a_sharper_factor() {
    use subdeq_map::PNorm;
    let map = Map::single(Activation::HardTanh { lo: 0.0, hi: 1.0 }, 0.5).unwrap();
    let map = map.normalised(PNorm::Inf, Groups::Blocks { size: 2 }).unwrap();
    let (a, b) = (0.35, 1e-3);
    let w = Operator::dense(4, vec![a, a, b, b, a, a, b, b, b, b, a, a, b, b, a, a]).unwrap();
    let y = vec![0.1; 4];
    let found = Certifier::new().certify(&map, &w, &Scope::Sample { y }).unwrap();
    let Verdict::Proven { theorem: Theorem::NormalisedInteracting, factor: Some(c), .. } = found.verdict
    else {
        panic!("{found}");
    };
    assert!(c > 0.3 && c < 0.95, "{c}");
}
