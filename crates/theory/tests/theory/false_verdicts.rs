//! Every false verdict that an attack on the certifier once found, with the right answer.

use subdeq_map::{Activation, Groups, Layout, Map, Operator, Overrides, PNorm, Padding, Parts, WeightClass};
use subdeq_theory::activation::Enclosure;
use subdeq_theory::bound::Upper;
use subdeq_theory::calculus::{Expr, NotPositive, PositiveMap};
use subdeq_theory::certificate::{
    Certificate, Domain, Evidence, Metric, Refutation, Scope, States, Theorem, Verdict,
};
use subdeq_theory::certify::{Certifier, NOT_CONFIRMED};
use subdeq_theory::degree::Nonlinearity;
use subdeq_theory::interval::Interval;
use subdeq_theory::metric::weighted_sup;
use subdeq_theory::monotone;

fn dense(n: usize, entries: &[f64]) -> Operator {
    Operator::dense(n, entries.to_vec()).unwrap()
}

fn sample(y: &[f64]) -> Scope {
    Scope::Sample { y: y.to_vec() }
}

fn certify(map: &Map, w: &Operator, scope: &Scope) -> Certificate {
    let certificate = Certifier::new().certify(map, w, scope).unwrap();
    if let Verdict::Unproven { why, .. } = &certificate.verdict {
        assert!(!why.starts_with(NOT_CONFIRMED), "{certificate}");
    }
    certificate.recheck(w).unwrap();
    certificate
}

fn named(name: &str) -> Map {
    Map::named(name, Layout::Dense).unwrap()
}

fn tanh(shift: f64) -> Map {
    Map::single(Activation::Tanh, shift).unwrap()
}

/// Section 1: an equation can only be described where it is defined, and is described once.
#[test]
fn equations_that_are_not_defined_cannot_be_described() {
    let power = Overrides { power: Some(2.0), ..Overrides::default() };
    assert!(named("monotone").with(&power, Layout::Dense).is_err(), "A7 has no power");
    let half = Overrides { power: Some(0.5), ..Overrides::default() };
    assert!(named("split-sign").with(&half, Layout::Dense).is_err());
    let shift = Overrides { shift: Some(-0.5), ..Overrides::default() };
    assert!(named("power-ratio").with(&shift, Layout::Dense).is_err(), "it has no shift");
    let parts = Parts::from(named("monotone"));
    let json = serde_json::to_string(&Parts { power: 2.0, ..parts }).unwrap();
    assert!(serde_json::from_str::<Map>(&json).is_err(), "{json}");
    let unknown = serde_json::to_string(&parts).unwrap().replacen('{', "{\"interacting\":false,", 1);
    assert!(serde_json::from_str::<Map>(&unknown).is_err());
    assert!(
        Map::single(Activation::LeakyRelu { slope: 2.0 }, 0.0)
            .unwrap()
            .for_weights(WeightClass::Monotone { margin: 0.0 })
            .is_err()
    );
    // Groups that the weights do not have are no groups.
    let blocks = tanh(0.05).normalised(PNorm::Inf, Groups::Blocks { size: 2 }).unwrap();
    assert!(Certifier::new().certify(&blocks, &dense(3, &[0.1; 9]), &Scope::NonnegativeInputs).is_err());
}

/// z = softsign(V+ z) - softsign(V- z) + y with the base 1.2 inside the power 0.5 is another map, with three fixed points; negative
/// inputs void the proof of the one that is described.
#[test]
fn split_sign_with_negative_inputs_is_not_proven() {
    let w = dense(2, &[0.0, -5.0, -5.0, 0.0]);
    let certificate = certify(&named("split-sign"), &w, &sample(&[-1.2, -1.2]));
    assert!(!certificate.verdict.is_proven(), "{certificate}");
    assert!(certify(&named("split-sign"), &w, &Scope::NonnegativeInputs).verdict.is_proven());
    assert!(!certify(&named("split-sign"), &w, &Scope::AllInputs).verdict.is_proven());
    // What is left of the shift still proves: 1.2 - 0.1 > 1.
    assert!(certify(&named("split-sign"), &w, &sample(&[-0.1, 0.3])).verdict.is_proven());
}

#[test]
fn infinities_do_not_become_small_factors() {
    let w = dense(2, &[2.0, -2.0, 0.0, 0.0]);
    for y in [[1e308, 1e308], [1e308, 0.0], [1.7e308, 1.7e308]] {
        // z1 - z2 = tanh(2 (z1 - z2)) has three solutions if both inputs are the same.
        let certificate = certify(&tanh(1.2), &w, &sample(&y));
        assert!(y[0] != y[1] || !certificate.verdict.is_proven(), "{certificate}");
    }
    // A partial sum that overflows is not the sum: 1e308 + 1e308 - 1.5e308.
    let w = dense(3, &[1.0, 1.0, -1.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let (lower, upper) = {
        use subdeq_theory::operator::Products;
        w.enclose(&[1e308; 3], &[1e308; 3])
    };
    assert!(lower[0] <= 0.5e308 && upper[0] >= 0.5e308);
    assert_eq!(Upper::largest([0.0, f64::NAN]).get(), f64::INFINITY);
    assert_eq!(weighted_sup(&[f64::NAN, 0.0], &[0.0, 0.0], &[1.0, 1.0]), f64::INFINITY);
    assert_eq!(Interval::point(0.0) * Interval::ALL, Interval::ALL);
    assert_eq!(Interval::new(f64::INFINITY, f64::INFINITY), Interval::ALL);
}

/// A saddle-node missed by 3e-10: the constant rows have the power of a base that is not positive.
#[test]
fn a_power_that_is_not_defined_refutes_nothing() {
    let w = dense(3, &[1.733_487_209_843_837_2, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let map = tanh(0.0).with_power(2.5).unwrap();
    let certificate = certify(&map, &w, &sample(&[0.0, 1.0, 1.0]));
    assert!(!certificate.verdict.is_refuted(), "{certificate}");
    // Where it is defined but not monotone, squares of negative numbers are none of these maps either.
    let square = tanh(0.3).with_power(2.0).unwrap();
    assert!(!certify(&square, &dense(1, &[-1.0]), &Scope::AllInputs).verdict.is_proven());
}

#[test]
fn inputs_that_are_not_asked_about_prove_nothing() {
    let map = named("monotone")
        .with(&Overrides { activation: Some(Activation::Sigmoid), ..Overrides::default() }, Layout::Dense)
        .unwrap();
    let w = dense(1, &[20.0]);
    let everywhere = certify(&map, &w, &Scope::AllInputs);
    assert!(everywhere.verdict.is_refuted(), "{everywhere}");
    assert!(certify(&map, &w, &Scope::NonnegativeInputs).verdict.is_proven());
    assert!(certify(&map, &w, &sample(&[-10.0])).verdict.is_refuted());
    let text = certify(&map, &w, &Scope::NonnegativeInputs).to_string();
    assert!(text.contains("for every input y >= 0"), "{text}");
}

/// z = tanh(5 z) + 0.3 has one positive solution and two negative ones.
#[test]
fn states_that_are_not_asked_about_neither_prove_nor_refute() {
    let nonnegative = certify(&tanh(0.3), &dense(2, &[5.0, 0.0, 0.0, 0.0]), &Scope::NonnegativeInputs);
    let Verdict::Proven { states, starts, .. } = nonnegative.verdict else { panic!("{nonnegative}") };
    assert_eq!((states, starts), (States::Positive, Some(States::Positive)));
    let text = nonnegative.to_string();
    assert!(
        text.contains("exactly one positive fixed point") && text.contains("every positive start"),
        "{text}"
    );
    // The same with a weight that is hardly negative: nothing is proved, and no negative solution refutes.
    for scope in [Scope::NonnegativeInputs, sample(&[0.0, 0.0])] {
        let mixed = certify(&tanh(0.3), &dense(2, &[5.0, -1e-300, 0.0, 0.0]), &scope);
        assert!(!mixed.verdict.is_refuted(), "{mixed}");
    }
    // tanh + 1.2 is positive everywhere: the proof is about all real states.
    let everywhere = certify(&tanh(1.2), &dense(2, &[5.0, 0.0, 0.0, 0.0]), &Scope::NonnegativeInputs);
    assert!(matches!(everywhere.verdict, Verdict::Proven { states: States::Reals, .. }), "{everywhere}");
}

/// Kernel centre 1, left tap -1e4: at the border the left tap is missing, and the bound is not monotone in the sums.
#[test]
fn gains_of_a_zero_padded_convolution_count_the_border() {
    let map = Map::gains(Activation::Tanh, 1e-6).unwrap();
    let mut kernel = vec![0.0; 9];
    (kernel[3], kernel[4]) = (-1e4, 1.0);
    let w = Operator::conv(1, 4, 4, Padding::Zero, kernel).unwrap();
    let certificate = certify(&map, &w, &Scope::NonnegativeInputs);
    let Verdict::Proven { factor: Some(c), .. } = certificate.verdict else { panic!("{certificate}") };
    assert!((0.999_834..0.999_836).contains(&c), "{c}");
}

#[test]
fn maps_that_vanish_are_not_proven() {
    let clipped = Activation::HardTanh { lo: -1.0, hi: 0.0 };
    let positive = dense(2, &[1.0, 2.0, 0.5, 0.1]);
    let map = Map::single(clipped, 0.0).unwrap().normalised(PNorm::Inf, Groups::WholeVector).unwrap();
    assert!(!certify(&map, &positive, &Scope::NonnegativeInputs).verdict.is_proven(), "0/0");
    let below = Activation::HardTanh { lo: -2.0, hi: -1.0 };
    let monomial = named("monomial")
        .with(&Overrides { activation: Some(below), shift: Some(1.0), ..Overrides::default() }, Layout::Dense)
        .unwrap();
    assert!(!certify(&monomial, &positive, &Scope::NonnegativeInputs).verdict.is_proven(), "ln 0");
    let split = Map::split_sign(below, 0.0).unwrap();
    assert!(!certify(&split, &positive, &Scope::NonnegativeInputs).verdict.is_proven(), "F = 0");
    let gains = Map::gains(Activation::Softsign, 0.0).unwrap();
    assert!(!certify(&gains, &dense(1, &[0.0]), &Scope::NonnegativeInputs).verdict.is_proven(), "F = y");
}

fn altered(certificate: &Certificate, change: impl Fn(&mut Verdict)) -> Certificate {
    let mut forged = certificate.clone();
    change(&mut forged.verdict);
    forged
}

#[test]
fn forgeries_that_were_once_accepted_are_refused() {
    // A metric or a flag changed on a proof by form.
    let w = dense(2, &[3.0, 1.0, 2.0, 5.0]);
    let honest = certify(&tanh(0.3), &w, &Scope::NonnegativeInputs);
    let metric = altered(&honest, |v| {
        if let Verdict::Proven { metric, .. } = v {
            *metric = Metric::WeightedSup { v: vec![1.0, 1.0] };
        }
    });
    assert!(metric.recheck(&w).is_err());
    let starts = altered(&honest, |v| {
        if let Verdict::Proven { starts, .. } = v {
            *starts = Some(States::Reals);
        }
    });
    assert!(starts.recheck(&w).is_err());
    // TL on a box with a negative coordinate.
    let map = tanh(-3.0);
    let w = dense(2, &[2.0, 0.8, 0.0, 0.0]);
    let forged = |theorem, metric, evidence| Certificate {
        map,
        scope: sample(&[4.2, 0.0]),
        verdict: Verdict::Proven {
            theorem,
            factor: Some(0.9),
            metric,
            states: States::Reals,
            starts: Some(States::Reals),
            evidence,
        },
    };
    for steps in [0, 1, 50] {
        let evidence = Evidence::Closing { domain: Domain::Propagated { steps }, weights: Vec::new() };
        assert!(forged(Theorem::LogJacobian, Metric::Thompson, evidence).recheck(&w).is_err());
    }
    // E4 cannot be said to have groups that do not interact: that is read off the weights.
    let e4 = tanh(0.05).normalised(PNorm::Inf, Groups::Blocks { size: 2 }).unwrap();
    let mut w = vec![0.003; 16];
    for (row, column, extra) in [(0, 0, 0.36), (1, 2, 0.58), (2, 2, 0.36), (3, 0, 0.58)] {
        w[row * 4 + column] += extra;
    }
    let w = dense(4, &w);
    let claim = Certificate {
        map: e4,
        scope: Scope::NonnegativeInputs,
        verdict: Verdict::Proven {
            theorem: Theorem::NormalisedMonotone,
            factor: Some(0.81),
            metric: Metric::Hilbert,
            states: States::Positive,
            starts: Some(States::Positive),
            evidence: Evidence::ByForm { signs: subdeq_map::SignStructure::Nonnegative, weight_norm: None },
        },
    };
    assert!(claim.recheck(&w).is_err());
    assert!(certify(&e4, &w, &sample(&[0.0; 4])).verdict.is_refuted());
}

fn refuted(map: Map, y: &[f64], points: &[&[f64]], radius: f64) -> Certificate {
    let witness = Refutation::FixedPoints {
        y: y.to_vec(),
        points: points.iter().map(|p| p.to_vec()).collect(),
        radii: vec![radius; points.len()],
    };
    Certificate { map, scope: sample(y), verdict: Verdict::Refuted { witness } }
}

#[test]
fn forged_refutations_are_refused() {
    // Slope -4 on the negative half-line, not -1: z = leaky(-z/2) + y is a contraction of neither.
    let leaky = Map::single(Activation::LeakyRelu { slope: -4.0 }, 0.0).unwrap();
    let w = dense(1, &[1.0]);
    assert!(refuted(leaky, &[1.0], &[&[0.2], &[0.21]], 1e-3).recheck(&w).is_err());
    // A normalised map where an entry is negative: its norm is the largest absolute value.
    let norm = tanh(-0.5).normalised(PNorm::Inf, Groups::WholeVector).unwrap();
    let w = dense(2, &[3.0, -3.0, -3.0, 3.0]);
    assert!(refuted(norm, &[0.0, 0.0], &[&[1.0, -0.5], &[-0.5, 1.0]], 1e-6).recheck(&w).is_err());
    // The index argument where the power does not exist everywhere.
    let power = tanh(0.3).with_power(0.5).unwrap();
    let witness = Refutation::Index { y: vec![0.0], point: vec![1.0], radius: 1e-6, determinant: -1.0 };
    let claim = Certificate { map: power, scope: sample(&[0.0]), verdict: Verdict::Refuted { witness } };
    assert!(claim.recheck(&dense(1, &[3.0])).is_err());
}

/// Refutations with activations that have kinks or saturate, and proofs that the check once refused.
#[test]
fn true_certificates_are_confirmed() {
    let mut seen = 0;
    for text in ["relu", "leaky-relu(0.1)", "softplus", "hardtanh(-1,1)", "hardtanh(0,2)", "sigmoid", "tanh"]
    {
        let s: Activation = text.parse().unwrap();
        for (gain, shift) in [(1.5, 1.2), (3.0, 1.2), (5.0, 0.8), (8.0, 2.0)] {
            for entries in
                [[gain, -gain, -gain, gain], [gain, -gain, 0.0, 0.0], [0.2 * gain, 0.0, gain, -1.0]]
            {
                let map = Map::single(s, shift).unwrap();
                for y in [[0.0, 0.0], [0.5, 0.1], [2.0, 0.0]] {
                    let found = certify(&map, &dense(2, &entries), &sample(&y));
                    seen += usize::from(found.verdict.is_refuted());
                }
            }
        }
    }
    assert!(seen > 40, "only {seen} refutations");
    // T1 with a power, T2 of a 1 x 1 image, A7 near its limit.
    let power = tanh(1.5).with_power(0.5).unwrap();
    let found = certify(&power, &dense(2, &[0.3, -0.2, 0.1, 0.2]), &sample(&[0.1, 0.2]));
    assert!(found.verdict.is_proven(), "{found}");
    let mut kernel = vec![0.0; 36];
    (kernel[4], kernel[13], kernel[22], kernel[31]) = (0.6, -0.7, 0.7, 0.6);
    let pixel = Operator::conv(2, 1, 1, Padding::Zero, kernel).unwrap();
    let found = certify(&tanh(1.2), &pixel, &Scope::AllInputs);
    assert!(found.verdict.is_proven(), "{found}");
    for margin in [1e-3, 1e-5, 2e-6, 1e-6] {
        let found =
            certify(&named("monotone"), &dense(2, &[1.0 - margin, 0.3, -0.3, 0.5]), &Scope::AllInputs);
        assert!(found.verdict.is_proven(), "{found}");
    }
}

#[test]
fn antisymmetric_weights_are_monotone() {
    for entries in [[0.0, 5.0, -5.0, 0.0], [0.0, 0.0, 0.0, 0.0]] {
        let found = certify(&named("monotone"), &dense(2, &entries), &Scope::AllInputs);
        let Verdict::Proven { evidence: Evidence::Splitting { margin, .. }, .. } = &found.verdict else {
            panic!("{found}");
        };
        assert!(*margin > 0.999_99);
        let (shifted, shift) = monotone::shifted(&dense(2, &entries), 0.5).unwrap();
        assert!(shift < 1e-9, "{shift}");
        assert!(certify(&named("monotone"), &shifted, &Scope::AllInputs).verdict.is_proven());
    }
}

/// Monotone in other units of measure: sym(W) has an eigenvalue above one, sym(T W T^-1) has none.
#[test]
fn a7_holds_in_a_diagonal_scaling() {
    let uneven = dense(2, &[-0.5, 400.0, 0.001, -0.5]);
    let found = certify(&named("monotone"), &uneven, &Scope::AllInputs);
    let Verdict::Proven { evidence: Evidence::Splitting { weights, .. }, .. } = &found.verdict else {
        panic!("{found}");
    };
    assert_eq!(weights.len(), 2);
    let forged = altered(&found, |v| {
        if let Verdict::Proven { evidence: Evidence::Splitting { weights, .. }, .. } = v {
            weights.clear();
        }
    });
    assert!(forged.recheck(&uneven).is_err());
    // The same for the channels of a convolution: T2 and T3.
    let mut kernel = vec![0.0; 36];
    (kernel[13], kernel[22]) = (40.0, 0.01);
    let conv = Operator::conv(2, 5, 5, Padding::Zero, kernel).unwrap();
    let mut certifier = Certifier::proofs_only();
    for theorem in [Theorem::WeightedTwoNorm, Theorem::DiagonalStability] {
        let found =
            certifier.close(&tanh(1.2), &conv, &Scope::AllInputs, Domain::Everywhere, theorem).unwrap();
        assert!(found.is_some_and(|found| found.verdict.is_proven()), "{theorem}");
    }
}

#[test]
fn inputs_above_a_threshold_prove_for_nonnegative_weights() {
    // c(1.2, 0.5) = 0.491187.
    let w = dense(2, &[5.0, 1.0, 0.3, 2.0]);
    let found = certify(&tanh(1.2).inner().unwrap(), &w, &sample(&[-0.5, 1.0]));
    let Verdict::Proven { factor: Some(c), .. } = found.verdict else { panic!("{found}") };
    assert!((c - 0.491_187).abs() < 2e-6, "{c}");
    // E6: y = -6.
    assert!(certify(&tanh(1.2).inner().unwrap(), &dense(1, &[5.0]), &sample(&[-6.0])).verdict.is_refuted());
    // Outside the activation: mu_p(1.2 - 0.2).
    let found = certify(&tanh(1.2), &w, &sample(&[-0.2, 0.0]));
    let Verdict::Proven { factor: Some(c), .. } = found.verdict else { panic!("{found}") };
    assert!((c - 0.278_465).abs() < 2e-6, "{c}");
}

#[test]
fn the_calculus_proves_nothing_about_what_is_not_a_map() {
    let z = Expr::coordinate;
    let root = |j| z(j).power(0.5);
    assert!(PositiveMap::new(vec![root(1), root(0)]).verdict().is_proven());
    assert!(!PositiveMap::new(vec![root(1)]).verdict().is_proven(), "no second coordinate");
    assert!(!PositiveMap::new(Vec::new()).verdict().is_proven());
    let dangling = root(1).compose(&[root(0)]);
    assert!(!PositiveMap::new(vec![dangling.clone(), dangling]).verdict().is_proven());
    let vanishing = Nonlinearity::shifted(Activation::HardTanh { lo: -1.0, hi: 0.0 }, 0.0);
    assert!(matches!(z(0).apply(vanishing), Err(NotPositive::Vanishes { .. })));
    assert!(!PositiveMap::new(vec![z(0).power(f64::NAN)]).verdict().is_proven());
}

#[test]
fn slopes_of_softsign_do_not_underflow_early() {
    let far = Interval::new(1e155, 1e156);
    let exact = 1e-310;
    assert!(Activation::Softsign.slope_bound(far) >= exact);
    assert!(Activation::Softsign.derivative(1e155) > 0.0);
}

#[test]
fn factors_just_below_one_are_not_printed_as_one() {
    let w = dense(1, &[1.0 - 1e-9]);
    let found = certify(&tanh(1.2), &dense(2, &[1.0 - 1e-9, 0.0, 0.0, -(1.0 - 1e-9)]), &Scope::AllInputs);
    let text = found.to_string();
    assert!(!text.contains("1.000000"), "{text}");
    assert!(!certify(&tanh(0.0), &w, &Scope::AllInputs).to_string().contains("1.000000"));
}
