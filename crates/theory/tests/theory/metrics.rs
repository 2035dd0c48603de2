//! The axioms of the metrics, and how they bound one another.

use proptest::prelude::*;
use subdeq_theory::certificate::Metric;
use subdeq_theory::metric::{hilbert, thompson, weighted_sup};

fn positive() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((-10.0..10.0f64).prop_map(f64::exp), 6)
}

proptest! {
    #[test]
    fn axioms(x in positive(), y in positive(), z in positive(), v in positive(), factor in 0.01..100.0f64) {
        let weighted = |a: &[f64], b: &[f64]| weighted_sup(a, b, &v);
        let two = Metric::WeightedTwoNorm { t: v.clone() };
        let two = |a: &[f64], b: &[f64]| two.distance(a, b).unwrap();
        for d in [&thompson as &dyn Fn(&[f64], &[f64]) -> f64, &hilbert, &weighted, &two] {
            prop_assert_eq!(d(&x, &x), 0.0);
            let (forth, back) = (d(&x, &y), d(&y, &x));
            prop_assert!((forth - back).abs() <= 1e-12 * forth.max(1.0), "symmetry");
            prop_assert!(d(&x, &z) <= (d(&x, &y) + d(&y, &z)) * (1.0 + 1e-12) + 1e-12, "triangle");
        }
        prop_assert!(thompson(&x, &y) > 0.0 && weighted(&x, &y) > 0.0);
        // Hilbert's metric sees rays only, and is at most twice Thompson's.
        let scaled: Vec<f64> = y.iter().map(|b| factor * b).collect();
        prop_assert!((hilbert(&x, &scaled) - hilbert(&x, &y)).abs() < 1e-11);
        prop_assert!(hilbert(&x, &y) <= 2.0 * thompson(&x, &y) + 1e-12);
        // On the slice max = 1 the two are equivalent: delta <= dH.
        let on_slice = |z: &[f64]| {
            let top = z.iter().copied().fold(0.0, f64::max);
            z.iter().map(|a| a / top).collect::<Vec<f64>>()
        };
        let (p, q) = (on_slice(&x), on_slice(&y));
        prop_assert!(thompson(&p, &q) <= hilbert(&p, &q) + 1e-12);
    }
}

#[test]
fn the_boundary_is_infinitely_far() {
    assert_eq!(thompson(&[1.0, 0.0], &[1.0, 1.0]), f64::INFINITY);
    assert_eq!(hilbert(&[1.0, 0.0], &[1.0, 1.0]), f64::INFINITY);
    assert_eq!(thompson(&[1.0, f64::NAN], &[1.0, 1.0]), f64::INFINITY);
}

#[test]
fn close_points_keep_their_digits() {
    let d = thompson(&[1.0], &[1.0 + 1e-12]);
    assert!((d / 1e-12 - 1.0).abs() < 1e-3);
}

#[test]
fn one_weight_may_serve_a_channel() {
    let metric = Metric::WeightedSup { v: vec![1.0, 2.0] };
    assert_eq!(metric.distance(&[1.0, 0.0, 0.0, 3.0], &[0.0; 4]), Some(1.5));
    assert_eq!(Metric::None.distance(&[1.0], &[2.0]), None);
}
