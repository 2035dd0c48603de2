//! Error bounds, iteration counts and robustness radii, against systems that are actually solved.

use proptest::prelude::*;
use subdeq_map::{Activation, Operator};
use subdeq_theory::bounds::{Contraction, relative_error};
use subdeq_theory::degree::forms::{rational, split_sign};
use subdeq_theory::degree::{Domain, Nonlinearity};
use subdeq_theory::interval::Interval;
use subdeq_theory::metric::thompson;
use subdeq_theory::robustness::{
    Margin, entrywise_shift, fixed_point_shift, injection_radii, inner_gain, input_radius, limit_box,
    split_sign_step,
};

const N: usize = 4;

/// Split-sign layer with softsign: `z = s(W+ z) - s(W- z) + y + 1.2`.
fn image(w: &[f64], y: &[f64], z: &[f64]) -> Vec<f64> {
    let s = |u: f64| u / (1.0 + u.abs());
    let row = |i: usize| {
        let part = |sign: f64| (0..N).map(|j| (sign * w[i * N + j]).max(0.0) * z[j]).sum::<f64>();
        s(part(1.0)) - s(part(-1.0)) + y[i] + 1.2
    };
    (0..N).map(row).collect()
}

fn solve(w: &[f64], y: &[f64]) -> Vec<f64> {
    let mut z = vec![1.0; N];
    for _ in 0..200 {
        z = image(w, y, &z);
    }
    z
}

fn softsign_factor() -> Contraction {
    Contraction::new(split_sign(Activation::Softsign, 1.2).unwrap().bound()).unwrap()
}

#[test]
fn worst_case_counts() {
    let count = |c: f64, least: f64, most: f64| {
        Contraction::new(c).unwrap().iterations_from_distance((most / least).ln(), 1e-6)
    };
    let positive =
        |a| Nonlinearity::shifted(Activation::Tanh, a).degree(Domain::Nonnegative).unwrap().bound();
    let split = |s, a| split_sign(s, a).unwrap().bound();
    assert_eq!(count(positive(1.2), 1.2, 2.2), 10);
    assert_eq!(count(split(Activation::Softsign, 1.2), 0.2, 2.2), 24);
    assert_eq!(count(split(Activation::Tanh, 1.603), 0.603, 2.603), 31);
    assert_eq!(count(rational(1.2).unwrap().bound(), 1.2, 2.2), 12);
    assert_eq!(count(split(Activation::Tanh, 1.2), 0.2, 2.2), 17373);
}

#[test]
fn gain_of_an_inner_input() {
    let real = inner_gain(Activation::Tanh, 1.2, Domain::Reals).unwrap();
    assert!((real - 1.073351).abs() < 1e-6);
    assert!((inner_gain(Activation::Tanh, 1.2, Domain::Nonnegative).unwrap() - 1.0 / 1.2).abs() < 1e-14);
    assert_eq!(inner_gain(Activation::Tanh, 1.0, Domain::Reals), None);
    for k in -400..400 {
        let u = f64::from(k) / 100.0;
        assert!(Activation::Tanh.derivative(u) / (u.tanh() + 1.2) <= real);
    }
}

#[test]
fn a_lost_margin_has_no_radius() {
    let margin = Margin { weights: vec![1.0, -1.0], offset: 0.0 };
    assert_eq!(margin.thompson_radius(&[1.0, 2.0]), 0.0);
    let radii = injection_radii(&[1.0, 2.0], &[margin], softsign_factor());
    assert_eq!(radii, vec![0.0, 0.0]);
    assert_eq!(input_radius(&radii, &[1.0, 1.0]), 0.0);
    // Closed form: ln((d0 + sqrt(d0^2 + 4 p q))/(2 q)).
    let margin = Margin { weights: vec![2.0, -1.0], offset: 0.3 };
    let (p, q, d0) = (2.0 * 1.5, 0.7, 0.3f64);
    let closed = ((d0 + (d0 * d0 + 4.0 * p * q).sqrt()) / (2.0 * q)).ln();
    let found = margin.thompson_radius(&[1.5, 0.7]);
    assert!(found <= closed && found > closed - 1e-10, "{found} against {closed}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn posterior_bounds_hold(
        w in prop::collection::vec(-8.0..8.0f64, N * N),
        y in prop::collection::vec(0.0..2.0f64, N),
        start in prop::collection::vec(0.1..4.0f64, N),
    ) {
        let c = softsign_factor();
        let exact = solve(&w, &y);
        let z = image(&w, &y, &start);
        let next = image(&w, &y, &z);
        let residual = thompson(&z, &next);
        prop_assert!(thompson(&z, &exact) <= c.error_before(residual) + 1e-14);
        prop_assert!(thompson(&next, &exact) <= c.error_after(residual) + 1e-14);
        let worst = z.iter().zip(&exact).map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max);
        prop_assert!(worst <= relative_error(c.error_before(residual)) + 1e-14);
        let (mut z, mut k) = (start.clone(), 0);
        let promised = c.iterations_from_residual(thompson(&z, &image(&w, &y, &z)), 1e-9);
        while k < promised {
            z = image(&w, &y, &z);
            k += 1;
        }
        prop_assert!(thompson(&z, &exact) <= 1e-9);
    }

    #[test]
    fn certified_inputs_keep_their_class(
        w in prop::collection::vec(-8.0..8.0f64, N * N),
        y in prop::collection::vec(0.0..2.0f64, N),
        class in prop::collection::vec(-1.0..1.0f64, N),
        offset in -1.0..1.0f64,
        direction in prop::collection::vec(-1.0..=1.0f64, N),
    ) {
        let c = softsign_factor();
        let z = solve(&w, &y);
        let margin = Margin { weights: class, offset };
        let score = |z: &[f64]| margin.weights.iter().zip(z).map(|(a, b)| a * b).sum::<f64>() + margin.offset;
        let radii = injection_radii(&z, std::slice::from_ref(&margin), c);
        prop_assert_eq!(radii.iter().all(|r| *r > 0.0), score(&z) > 1e-12 || radii[0] > 0.0);
        let moved: Vec<f64> = (0..N).map(|i| (y[i] + direction[i] * radii[i]).max(0.0)).collect();
        let other = solve(&w, &moved);
        let change: Vec<f64> = (0..N).map(|i| moved[i] - y[i]).collect();
        prop_assert!(thompson(&z, &other) <= fixed_point_shift(&z, &change, c) + 1e-13);
        if radii[0] > 0.0 {
            prop_assert!(score(&other) > -1e-12, "margin lost inside the certified radius");
        }

        // The interval form: the limit box of the inputs holds both solutions, so its margin is below both scores.
        let dense = |sign: f64| Operator::dense(N, w.iter().map(|w| (sign * w).max(0.0)).collect()).unwrap();
        let (plus, minus) = (dense(1.0), dense(-1.0));
        let inputs: Vec<Interval> = (0..N).map(|i| Interval::new(y[i].min(moved[i]), y[i].max(moved[i]))).collect();
        let start = inputs.iter().map(|y| Interval::new(y.lo + 0.2 - 1e-9, y.hi + 2.2 + 1e-9)).collect();
        let step = |state: &[Interval]| split_sign_step(&plus, &minus, Activation::Softsign, 1.2, &inputs, state);
        let limit = limit_box(start, step, 300);
        for i in 0..N {
            prop_assert!(limit[i].lo <= z[i] + 1e-12 && z[i] <= limit[i].hi + 1e-12);
            prop_assert!(limit[i].lo <= other[i] + 1e-12 && other[i] <= limit[i].hi + 1e-12);
        }
        prop_assert!(margin.over_box(&limit) <= score(&z).min(score(&other)) + 1e-12);
    }

    #[test]
    fn entrywise_shifts_hold(
        w in prop::collection::vec(-0.2..0.2f64, N * N),
        y in prop::collection::vec(0.0..2.0f64, N),
        change in prop::collection::vec(-0.5..0.5f64, N),
    ) {
        // tanh(W z) + y, slopes at most one, row sums at most 0.8: v = 1, theta = 0.8.
        let solve = |y: &[f64]| {
            let mut z = y.to_vec();
            for _ in 0..300 {
                z = (0..N).map(|i| (0..N).map(|j| w[i * N + j] * z[j]).sum::<f64>().tanh() + y[i]).collect();
            }
            z
        };
        let moved: Vec<f64> = y.iter().zip(&change).map(|(a, b)| a + b).collect();
        let (before, after) = (solve(&y), solve(&moved));
        let operator = Operator::dense(N, w.clone()).unwrap();
        let theta = Contraction::new(0.8 + 1e-12).unwrap();
        let bound = entrywise_shift(&operator, &[1.0; N], &[1.0; N], theta, &change);
        for i in 0..N {
            prop_assert!((before[i] - after[i]).abs() <= bound[i] + 1e-13);
        }
    }
}
