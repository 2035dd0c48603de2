//! Expressions built at random: the measured `|J| z / F` never exceeds the degree that the calculus gives.

use proptest::prelude::*;
use subdeq_map::{Activation, PNorm};
use subdeq_theory::calculus::{Expr, NotPositive, PositiveMap};
use subdeq_theory::degree::Nonlinearity;

const VARIABLES: usize = 3;

/// `sum_j |d ln f / d ln z_j|` by central differences.
fn measured_degree(f: &Expr, z: &[f64]) -> f64 {
    let step: f64 = 1e-5;
    let along = |j: usize| {
        let moved = |sign: f64| {
            let mut z = z.to_vec();
            z[j] *= (sign * step).exp();
            f.value(&z).ln()
        };
        ((moved(1.0) - moved(-1.0)) / (2.0 * step)).abs()
    };
    (0..z.len()).map(along).sum()
}

fn expression() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        4 => (0..VARIABLES).prop_map(Expr::coordinate),
        1 => (0.01..10.0).prop_map(|c| Expr::constant(c).unwrap()),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        let several = || prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            (prop::collection::vec((0.01..5.0, inner.clone()), 1..4), 0.0..2.0)
                .prop_map(|(terms, constant)| Expr::sum(terms, constant).unwrap()),
            (inner.clone(), inner.clone()).prop_map(|(f, g)| f.times(g)),
            (inner.clone(), inner.clone()).prop_map(|(f, g)| f.over(g)),
            (inner.clone(), -2.0..2.0).prop_map(|(f, p)| f.power(p)),
            several().prop_map(|parts| Expr::max(parts).unwrap()),
            several().prop_map(|parts| Expr::min(parts).unwrap()),
            several().prop_map(|parts| Expr::norm(PNorm::Finite(3.0), parts).unwrap()),
            several().prop_map(|parts| Expr::log_sum_exp(parts).unwrap()),
            (inner.clone(), 0.05..3.0, 0.3..1.5).prop_map(|(f, shift, power)| {
                f.apply(Nonlinearity { activation: Activation::Tanh, shift, power }).unwrap()
            }),
            (inner.clone(), 0.0..3.0).prop_map(|(f, shift)| {
                f.apply(Nonlinearity::shifted(Activation::Sigmoid, shift)).unwrap()
            }),
            (inner.clone(), inner.clone(), 1.05..3.0).prop_map(|(f, g, a)| Expr::split_sign(
                Activation::Softsign,
                f,
                g,
                a
            )
            .unwrap()),
            (inner.clone(), prop::collection::vec(inner, VARIABLES))
                .prop_map(|(outer, inside)| outer.compose(&inside)),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_degree_is_never_exceeded(f in expression(), logs in prop::collection::vec(-2.0..2.0f64, VARIABLES)) {
        let z: Vec<f64> = logs.iter().map(|x| x.exp()).collect();
        let value = f.value(&z);
        // Nested powers overflow quickly; there is nothing to measure then.
        prop_assume!((1e-12..1e12).contains(&value));
        let measured = measured_degree(&f, &z);
        prop_assume!(measured.is_finite());
        let degree = f.degree().bound();
        prop_assert!(measured <= degree + 1e-5 * (1.0 + degree), "measured {measured}, degree {degree}: {f:?}");
    }
}

#[test]
fn rules_are_tight() {
    let z = |j| Expr::coordinate(j);
    let at = [0.7, 1.9, 3.0];
    let product = z(0).times(z(1)).over(z(2));
    let bound = product.degree().bound();
    assert!((3.0..3.0 + 1e-12).contains(&bound), "{bound}");
    assert!((measured_degree(&product, &at) - 3.0).abs() < 1e-9);
    let root = z(0).times(z(1)).power(-0.5);
    assert!((root.degree().bound() - 1.0).abs() < 1e-12 && (measured_degree(&root, &at) - 1.0).abs() < 1e-9);
}

#[test]
fn what_has_no_degree_is_refused() {
    let z = Expr::coordinate(0);
    assert_eq!(Expr::sum([(-1.0, z.clone())], 1.0).unwrap_err(), NotPositive::Coefficient(-1.0));
    assert!(Expr::sum([(f64::NAN, z.clone())], 1.0).is_err());
    assert!(Expr::constant(0.0).is_err());
    assert_eq!(Expr::max(Vec::new()).unwrap_err(), NotPositive::Empty);
    let below_zero = Nonlinearity::shifted(Activation::Tanh, -0.5);
    assert!(matches!(z.clone().apply(below_zero).unwrap_err(), NotPositive::Scalar { .. }));
    // A difference of unbounded parts.
    assert!(Expr::split_sign(Activation::Relu, z.clone(), z, 5.0).is_err());
}

#[test]
fn a_users_own_map_gets_its_verdict() {
    let tanh = |shift| Nonlinearity::shifted(Activation::Tanh, shift);
    let layer = |a: f64| {
        let mixed = Expr::sum([(3.0, Expr::coordinate(0)), (8.0, Expr::coordinate(1))], 0.0).unwrap();
        PositiveMap::new(vec![mixed.clone().apply(tanh(a)).unwrap(), mixed.apply(tanh(a)).unwrap()])
    };
    assert!(layer(1.2).verdict().is_proven());
    assert!(!layer(0.0).verdict().is_proven());
    let twice = layer(1.2).after(&layer(1.2));
    assert!(twice.degree().bound() <= layer(1.2).degree().bound().powi(2) * (1.0 + 1e-12));
    // Picard from two far starts meets.
    let run = |mut z: Vec<f64>| {
        for _ in 0..60 {
            z = layer(1.2).value(&z);
        }
        z
    };
    let (x, y) = (run(vec![1e-6, 1e-6]), run(vec![1e6, 1.0]));
    assert!((x[0] - y[0]).abs() < 1e-14 && (x[1] - y[1]).abs() < 1e-14);
}
