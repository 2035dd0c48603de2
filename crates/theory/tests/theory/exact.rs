//! The enclosure of a map contains what the exact evaluator computes, for every form, activation and kind of weights.

use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_map::{Activation, Form, Groups, Layout, Map, Operator, PNorm, Padding};
use subdeq_theory::exact::ExactMap;
use subdeq_theory::interval::Interval;

fn forms() -> Vec<Form> {
    vec![
        Form::Single,
        Form::SplitSign,
        Form::Divisive { q: 0.7 },
        Form::Rational { q: 0.5 },
        Form::PowerRatio { p: 0.4, e: 0.2 },
        Form::Gains,
        Form::Monomial,
        Form::Graph { teleport: 0.15 },
    ]
}

fn activations() -> Vec<Activation> {
    ["tanh", "sigmoid", "softplus(2)", "softsign", "hardtanh(-1,2)", "relu", "leaky-relu(-0.3)", "identity"]
        .map(|text| text.parse().unwrap())
        .to_vec()
}

fn operator(layout: Layout, rng: &mut ChaCha8Rng) -> Operator {
    let mut numbers = |n: usize| (0..n).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f64>>();
    match layout {
        Layout::Dense => Operator::dense(4, numbers(16)).unwrap(),
        Layout::Conv => {
            let padding = if numbers(1)[0] > 0.0 { Padding::Zero } else { Padding::Circular };
            Operator::conv(2, 3, 4, padding, numbers(36)).unwrap()
        }
        Layout::Graph => Operator::graph(2, vec![0, 2, 3], vec![0, 1, 0], numbers(3)).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn enclosures_contain_the_exact_value(
        form in 0usize..8, s in 0usize..8, conv in any::<bool>(), inner in any::<bool>(), norm in 0usize..4,
        power in any::<bool>(), hidden in any::<bool>(), seed in any::<u64>(),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let form = forms()[form];
        let (s, shift) = match form {
            Form::Rational { .. } => (Activation::Softsign, 0.4),
            Form::PowerRatio { .. } => (Activation::Identity, 0.0),
            _ => (activations()[s], rng.random_range(0.0..2.0)),
        };
        let layout = match form {
            Form::Graph { .. } => Layout::Graph,
            _ if conv => Layout::Conv,
            _ => Layout::Dense,
        };
        let map = if form == Form::Gains { Map::gains(s, shift) } else { Map::of_form(form, s, shift) }.unwrap();
        let chooses = matches!(form, Form::Single | Form::Graph { .. });
        let map = if inner && chooses { map.inner().unwrap() } else { map };
        let map = if power && form == Form::Single { map.with_power(0.7).unwrap() } else { map };
        let map = match norm {
            0 => map.normalised(PNorm::Inf, Groups::of_layout(layout)).unwrap(),
            1 => map.normalised(PNorm::Finite(2.0), Groups::of_layout(layout)).unwrap(),
            _ => map,
        };
        let w = operator(layout, &mut rng);
        let hidden = (hidden && form == Form::Gains).then(|| operator(layout, &mut rng));
        let n = w.len();
        let z: Vec<f64> = (0..n).map(|_| rng.random_range(0.01..2.0)).collect();
        let y: Vec<f64> = (0..n * form.injection_count()).map(|_| rng.random_range(0.0..1.0)).collect();
        let exact = map.evaluate(&w, hidden.as_ref(), &z, &y);
        let wide: Vec<Interval> = z.iter().map(|&z| Interval::new(z - 1e-3, z + 1e-3)).collect();
        let points: Vec<Interval> = z.iter().map(|&z| Interval::point(z)).collect();
        let enclosed = ExactMap::new(&map, &w, hidden.as_ref()).unwrap();
        for (on, tight) in [(&points, true), (&wide, false)] {
            if let Some(image) = enclosed.apply(on, &y) {
                let exact = exact.as_ref().expect("what is certainly defined is defined");
                for i in 0..n {
                    let slack = 1e-13 * (1.0 + exact[i].abs());
                    prop_assert!(image[i].lo - slack <= exact[i] && exact[i] <= image[i].hi + slack, "{map} entry {i}");
                    prop_assert!(!tight || image[i].width() < 1e-10 * (1.0 + exact[i].abs()), "{map}: {:?}", image[i]);
                }
            } else if tight {
                // Not certain only where something is at the edge of what is defined.
                let edge = exact.as_ref().map_or(true, |f| f.iter().any(|f| *f < 1e-6));
                prop_assert!(edge || map.power() != 1.0 || map.normalisation().is_some(), "{map}: {exact:?}");
            }
        }
    }
}
