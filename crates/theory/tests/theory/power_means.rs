//! The theorem on power means: attacked with drawn hyperedges, weights and states, and its premises.

use proptest::prelude::*;
use subdeq_map::{Layout, Map, Overrides};
use subdeq_theory::certificate::Verdict;
use subdeq_theory::power_mean::{hyperedge, prove};

const NODES: usize = 5;

/// `n^(1-1/p) ||u||_p`, not rounded in any direction.
fn norm(u: &[f64], p: f64) -> f64 {
    let top = u.iter().map(|u| u.abs()).fold(f64::MIN_POSITIVE, f64::max);
    let powers: f64 = u.iter().map(|u| (u.abs() / top).powf(p)).sum();
    (u.len() as f64).powf(1.0 - 1.0 / p) * top * powers.powf(1.0 / p)
}

/// `B h(z) + own z` for hyperedges that hold every node with some weight.
fn propagated(hyperedges: &[Vec<f64>], own: &[f64], z: &[f64], h: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let given = |b: &Vec<f64>| b.iter().zip(z).map(|(b, z)| b * z).collect::<Vec<f64>>();
    let made: Vec<f64> = hyperedges.iter().map(|b| h(&given(b))).collect();
    let node = |i: usize| hyperedges.iter().zip(&made).map(|(b, h)| b[i] * h).sum::<f64>() + own[i] * z[i];
    (0..NODES).map(node).collect()
}

fn draw(range: std::ops::Range<f64>) -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec(range, NODES)
}

fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, f64::max)
}

proptest! {
    /// States of any sign: the absolute values in the map make it a contraction there too.
    #[test]
    fn no_two_states_are_stretched_beyond_the_gain(
        hyperedges in prop::collection::vec(draw(0.0..1.0), 0..4),
        own in draw(0.0..1.0),
        v in draw(0.01..10.0),
        x in draw(-3.0..3.0),
        y in draw(-3.0..3.0),
        p in prop_oneof![Just(1.0), Just(2.0), Just(100.0), 1.0..20.0f64],
    ) {
        let bound = propagated(&hyperedges, &own, &v, |u| hyperedge(u, p));
        let gain = largest(bound.iter().zip(&v).map(|(h, v)| h / v));
        let distance = |x: &[f64], y: &[f64]| largest(x.iter().zip(y).zip(&v).map(|((x, y), v)| (x - y).abs() / v));
        let images = [&x, &y].map(|z| propagated(&hyperedges, &own, z, |u| norm(u, p)));
        let (before, after) = (distance(&x, &y), distance(&images[0], &images[1]));
        prop_assert!(after <= gain * before * (1.0 + 1e-12) + 1e-13, "{after} > {gain} * {before}");
    }

    #[test]
    fn what_a_hyperedge_makes_is_bounded_above_and_closely(u in draw(0.0..1e3), p in 1.0..100.0f64) {
        let (bound, value) = (hyperedge(&u, p), norm(&u, p));
        prop_assert!(bound >= value * (1.0 - 1e-13) && bound <= value * (1.0 + 1e-12), "{bound} {value}");
        prop_assert!(bound >= u.iter().sum::<f64>() * (1.0 - 1e-13), "a power mean is at least the mean");
        prop_assert!(bound <= NODES as f64 * largest(u.iter().copied()) * (1.0 + 1e-14));
    }
}

#[test]
fn premises_are_asked_for() {
    let map = Map::named("hyper-power", Layout::Graph).unwrap();
    let proved = |gain: f64, v: f64, y_min: f64| prove(&map, gain, vec![v; 3], y_min);
    let Ok(Verdict::Proven { factor: Some(factor), .. }) = proved(1.0, 1.0, 0.0) else { panic!("no proof") };
    assert!((0.9..0.9 + 1e-9).contains(&factor));
    for (gain, v, y_min) in [
        (1.2, 1.0, 0.0),
        (f64::NAN, 1.0, 0.0),
        (-1.0, 1.0, 0.0),
        (1.0, 0.0, 0.0),
        (1.0, f64::INFINITY, 0.0),
        (1.0, 1.0, -1.0),
        (1.0, 1.0, f64::NAN),
    ] {
        assert!(proved(gain, v, y_min).is_err(), "gain {gain}, weights {v}, inputs from {y_min}");
    }
    let other = Map::named("hyper-appnp", Layout::Graph).unwrap();
    assert!(prove(&other, 1.0, vec![1.0], 0.0).is_err());
    for power in [0.99, f64::NAN, f64::INFINITY, 100.1] {
        let overrides = Overrides { power: Some(power), ..Overrides::default() };
        let refused = map.with(&overrides, Layout::Graph).unwrap_err().to_string();
        assert!(refused.contains("must lie between 1 and 100"), "{refused}");
    }
}
