//! The counterexamples E1 to E8 to the published uniqueness theorem: none may ever come out proven, and those with a finite
//! proof of several fixed points must come out refuted, with the fixed points.

use subdeq_map::{Activation, Groups, Map, Operator, PNorm, Padding};
use subdeq_theory::certificate::{Certificate, Refutation, Scope, Verdict};
use subdeq_theory::certify::Certifier;
use subdeq_theory::degree::{Domain, Nonlinearity};

fn tanh(shift: f64) -> Map {
    Map::single(Activation::Tanh, shift).unwrap()
}

fn normalised(map: Map, p: PNorm, groups: Groups) -> Map {
    map.normalised(p, groups).unwrap()
}

fn sample(y: &[f64]) -> Scope {
    Scope::Sample { y: y.to_vec() }
}

fn balanced(c: f64) -> Operator {
    Operator::dense(2, vec![c, -c, -c, c]).unwrap()
}

/// The verified fixed points; panics unless refuted by at least two.
fn refuting_points(certificate: &Certificate) -> Vec<Vec<f64>> {
    match &certificate.verdict {
        Verdict::Refuted { witness: Refutation::FixedPoints { points, .. } } => points.clone(),
        other => panic!("expected two verified fixed points, got {other:?}"),
    }
}

/// Whether each found point is one of the known ones, and at least two are.
fn assert_among(found: &[Vec<f64>], known: &[&[f64]]) {
    assert!(found.len() >= 2);
    for point in found {
        let near = |k: &&&[f64]| k.iter().zip(point).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(known.iter().any(|k| near(&k)), "{point:?} is not one of {known:?}");
    }
}

#[test]
fn e1_signed_weights_have_three_fixed_points_for_every_shift() {
    let w = Operator::dense(2, vec![2.0, -2.0, 0.0, 0.0]).unwrap();
    for shift in [1.2, 1.603, 3.0] {
        let known = |offset: f64| [shift + offset, shift];
        let (a, b, c) = (known(0.0), known(0.957_504_02), known(-0.957_504_02));
        for certificate in [
            Certifier::new().certify(&tanh(shift), &w, &Scope::NonnegativeInputs).unwrap(),
            Certifier::new().certify(&tanh(shift), &w, &sample(&[0.0, 0.0])).unwrap(),
        ] {
            assert_among(&refuting_points(&certificate), &[&a, &b, &c]);
        }
    }
    let points = refuting_points(
        &Certifier::new().certify(&tanh(1.2), &balanced(1.0), &Scope::NonnegativeInputs).unwrap(),
    );
    assert_among(&points, &[&[1.2, 1.2], &[2.157_504_02, 0.242_495_98], &[0.242_495_98, 2.157_504_02]]);
}

#[test]
fn e2_normalised_signed_weights_have_three_fixed_points() {
    let map = |p| normalised(tanh(1.603), p, Groups::WholeVector);
    for (c, s) in [(1.0, 0.663_169_16), (2.0, 0.285_179_61), (5.0, 0.232_093_33)] {
        let known: [&[f64]; 3] = [&[1.0, 1.0], &[1.0, s], &[s, 1.0]];
        for certificate in [
            Certifier::new().certify(&map(PNorm::Inf), &balanced(c), &Scope::NonnegativeInputs).unwrap(),
            Certifier::new().certify(&map(PNorm::Inf), &balanced(c), &sample(&[0.0; 2])).unwrap(),
        ] {
            assert_among(&refuting_points(&certificate), &known);
        }
    }
    for (p, c) in [(PNorm::Inf, 0.8016), (PNorm::Finite(2.0), 1.134), (PNorm::Finite(1.0), 1.604)] {
        for factor in [1.0, 2.0, 5.0] {
            let w = balanced(c * factor);
            assert!(
                !Certifier::new()
                    .certify(&map(p), &w, &Scope::NonnegativeInputs)
                    .unwrap()
                    .verdict
                    .is_proven()
            );
            assert!(!Certifier::new().certify(&map(p), &w, &sample(&[0.0; 2])).unwrap().verdict.is_proven());
        }
        // Whoever proves nothing at all would pass the above: far below the threshold there is one fixed point, and a proof.
        let w = balanced(0.05 * c);
        assert!(
            Certifier::new().certify(&map(p), &w, &sample(&[0.0; 2])).unwrap().verdict.is_proven(),
            "{p:?}"
        );
    }
}

/// E3 (an activation that is not monotone) and E5 (a power) are not activations of this software; what would have to go
/// wrong is the rule that turns a degree into a factor for the normalised map.
#[test]
fn e3_and_e5_twice_the_degree_is_needed_beyond_hilberts_metric() {
    // E3: exp(0.9 sin ln u) has degree 0.9 > 1/2 and is not monotone; fixed points p = 1.8 sin p.
    let fixed = |p: f64| (1.8 * p.sin() - p).abs() < 1e-7;
    assert!(fixed(0.0) && fixed(1.765_862_66) && fixed(-1.765_862_66));
    // E5: delta contracts by 1.8 = 2 mu, not by mu = 0.9, under z -> (z1^.9, 1000 z2^.9)/max.
    let g = |z: [f64; 2]| {
        let f = [z[0].powf(0.9) + 1e-6 * z[1], 1000.0 * z[1].powf(0.9) + 1e-6 * z[0]];
        let top = f[0].max(f[1]);
        [f[0] / top, f[1] / top]
    };
    let delta =
        |x: [f64; 2], y: [f64; 2]| x.iter().zip(&y).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max);
    let (x, y) = ([1.0, 0.2], [0.2, 1.0]);
    let ratio = delta(g(x), g(y)) / delta(x, y);
    assert!((ratio - 1.799_995).abs() < 1e-4, "{ratio}");
    // The same shape within the software's reach: interacting groups and degree 0.80485 need 2c < 1, which fails.
    let degree = Nonlinearity::shifted(Activation::Tanh, 0.05).degree(Domain::Nonnegative).unwrap();
    assert!((degree.bound() - 0.804_85).abs() < 1e-5, "{}", degree.bound());
    let verdict = |shift: f64| {
        let map = normalised(tanh(shift), PNorm::Inf, Groups::Blocks { size: 2 });
        let w = Operator::dense(4, (0..16).map(|i| 0.1 + 0.05 * f64::from(i % 5)).collect()).unwrap();
        Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap().verdict
    };
    assert!(!verdict(0.05).is_proven(), "twice the degree is above one");
    assert!(verdict(1.2).is_proven(), "twice the degree is below one");
}

#[test]
fn e4_interacting_normalised_columns_have_several_fixed_points() {
    let map = normalised(tanh(0.05), PNorm::Inf, Groups::Blocks { size: 2 });
    let mut w = vec![0.003; 16];
    for (row, column, extra) in [(0, 0, 0.36), (1, 2, 0.58), (2, 2, 0.36), (3, 0, 0.58)] {
        w[row * 4 + column] += extra;
    }
    let w = Operator::dense(4, w).unwrap();
    let known: [&[f64]; 3] = [
        &[1.0, 0.523_521_23, 0.265_155_23, 1.0],
        &[0.265_155_23, 1.0, 1.0, 0.523_521_23],
        &[0.690_419, 1.0, 0.690_419, 1.0],
    ];
    let certificate = Certifier::new().certify(&map, &w, &sample(&[0.0; 4])).unwrap();
    assert_among(&refuting_points(&certificate), &known);
    let certificate = Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap();
    assert_among(&refuting_points(&certificate), &known);
}

#[test]
fn e6_a_negative_injection_breaks_the_theorem_for_nonnegative_weights() {
    let map = tanh(1.2).inner().unwrap();
    let w = Operator::dense(1, vec![5.0]).unwrap();
    let certificate = Certifier::new().certify(&map, &w, &sample(&[-6.0])).unwrap();
    assert_among(&refuting_points(&certificate), &[&[0.200_090_88], &[1.2], &[2.199_909_12]]);
    // With y >= 0 the same weights are fine, and provably so.
    assert!(Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap().verdict.is_proven());
}

#[test]
fn e7_convolutions_with_signed_kernels() {
    let row = vec![0.0, 0.0, 0.0, 0.0, 2.0, -2.0, 0.0, 0.0, 0.0];
    let w = Operator::conv(1, 1, 2, Padding::Zero, row).unwrap();
    let certificate = Certifier::new().certify(&tanh(1.2), &w, &sample(&[0.999_698_215_3, 0.0])).unwrap();
    let z2 = 2.199_698_215;
    let known = |offset: f64| [z2 + offset, z2];
    let (a, b, c) = (known(0.0), known(0.957_504_02), known(-0.957_504_02));
    assert_among(&refuting_points(&certificate), &[&a, &b, &c]);
    assert!(
        Certifier::new().certify(&tanh(1.2), &w, &Scope::NonnegativeInputs).unwrap().verdict.is_refuted()
    );

    let laplacian = |c: f64| [0.0, -1.0, 0.0, -1.0, 4.0, -1.0, 0.0, -1.0, 0.0].map(|k| c * k).to_vec();
    let zero_padded = Operator::conv(1, 3, 3, Padding::Zero, laplacian(0.5)).unwrap();
    let periodic = Operator::conv(1, 4, 4, Padding::Circular, laplacian(0.25)).unwrap();
    for w in [zero_padded, periodic] {
        let zero = vec![0.0; w.len()];
        assert!(
            refuting_points(&Certifier::new().certify(&tanh(1.2), &w, &Scope::NonnegativeInputs).unwrap())
                .len()
                >= 2
        );
        assert!(
            refuting_points(&Certifier::new().certify(&tanh(1.2), &w, &sample(&zero)).unwrap()).len() >= 2
        );
    }
}

#[test]
fn e8_a_power_does_not_save_a_shift_that_is_too_small() {
    let map = tanh(1.01).with_power(0.999).unwrap();
    for w in
        [Operator::dense(1, vec![-2.0]).unwrap(), Operator::dense(2, vec![0.0, -2.0, -2.0, 0.0]).unwrap()]
    {
        let zero = vec![0.0; w.len()];
        assert!(!Certifier::new().certify(&map, &w, &Scope::NonnegativeInputs).unwrap().verdict.is_proven());
        assert!(!Certifier::new().certify(&map, &w, &sample(&zero)).unwrap().verdict.is_proven());
    }
}

/// `W = c [[1, -1], [-1, 1]]`, tanh + 1.2: three fixed points (for y = 0) exactly for c > 1/2.
#[test]
fn the_balanced_family_is_proven_up_to_the_point_where_it_is_false() {
    let mut certifier = Certifier::new();
    for step in 0..=200 {
        let c = 0.005 * f64::from(step);
        for verdict in [
            certifier.certify(&tanh(1.2), &balanced(c), &Scope::NonnegativeInputs).unwrap().verdict,
            certifier.certify(&tanh(1.2), &balanced(c), &sample(&[0.0; 2])).unwrap().verdict,
            certifier
                .certify(&tanh(1.2), &balanced(c), &Scope::InputSet { ymax: vec![0.5; 2] })
                .unwrap()
                .verdict,
        ] {
            assert!(c > 0.49 || verdict.is_proven(), "c = {c}: {verdict:?}");
            assert!(c <= 0.5 || !verdict.is_proven(), "c = {c}: {verdict:?}");
            assert!(c < 0.51 || verdict.is_refuted(), "c = {c}: {verdict:?}");
        }
    }
    // Next to the boundary as well.
    for c in [0.5f64.next_up(), 0.5 + 1e-12, 0.5 + 1e-9, 0.5 + 1e-6] {
        assert!(
            !certifier
                .certify(&tanh(1.2), &balanced(c), &Scope::NonnegativeInputs)
                .unwrap()
                .verdict
                .is_proven()
        );
        assert!(
            !certifier.certify(&tanh(1.2), &balanced(c), &sample(&[0.0; 2])).unwrap().verdict.is_proven()
        );
    }
}
