//! Outward rounding: the exact result of every operation lies in the enclosure.

use crate::support::{Dd, dd};
use proptest::prelude::*;
use subdeq_map::Activation;
use subdeq_theory::activation::Enclosure;
use subdeq_theory::interval::Interval;

fn interval() -> impl Strategy<Value = (Interval, f64)> {
    let number = prop_oneof![-100.0..100.0f64, (-30.0..30.0f64).prop_map(f64::exp), Just(0.0)];
    (number.clone(), number, 0.0..=1.0f64).prop_map(|(a, b, t)| {
        let on = Interval::new(a.min(b), a.max(b));
        (on, (on.lo + t * (on.hi - on.lo)).clamp(on.lo, on.hi))
    })
}

fn activations() -> [Activation; 9] {
    [
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::Softplus { beta: 1.7 },
        Activation::Softsign,
        Activation::HardTanh { lo: -1.0, hi: 2.0 },
        Activation::Relu,
        Activation::LeakyRelu { slope: 0.1 },
        Activation::LeakyRelu { slope: -0.3 },
        Activation::Identity,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn basic_operations((x, a) in interval(), (y, b) in interval()) {
        // The difference to the exact result, in double-double, has the right sign at both ends.
        let within = |on: Interval, exact: Dd| {
            (on.lo.is_infinite() || (exact - dd(on.lo)).to_f64() >= 0.0)
                && (on.hi.is_infinite() || (dd(on.hi) - exact).to_f64() >= 0.0)
        };
        prop_assert!(within(x + y, dd(a) + dd(b)));
        prop_assert!(within(x - y, dd(a) - dd(b)));
        prop_assert!(within(x * y, dd(a) * dd(b)));
        prop_assert!(within(x.square(), dd(a) * dd(a)));
        if !y.contains(0.0) {
            prop_assert!(within(x / y, dd(a) / dd(b)));
        } else {
            prop_assert_eq!(x / y, Interval::ALL);
        }
        if x.hi < 300.0 {
            prop_assert!(within(x.exp(), dd(a).exp()));
        }
        if a > 0.0 {
            prop_assert!(x.sqrt().contains(a.sqrt()) && within(x.ln(), dd(a).ln()));
        }
        prop_assert!(x.hull(y).encloses(x) && x.hull(y).encloses(y));
        if let Some(both) = x.intersect(y) {
            prop_assert!(x.encloses(both) && y.encloses(both));
        }
    }

    #[test]
    fn activations_are_enclosed((x, a) in interval()) {
        for s in activations() {
            prop_assert!(s.enclose(x).contains(s.value(a)), "{s} at {a}");
            prop_assert!(s.image().encloses(s.enclose(x)) , "{s} on {x:?}");
            prop_assert!(s.slope_bound(x) >= s.derivative(a).abs() * (1.0 - 1e-15), "{s}' at {a} in {x:?}");
            // Secants are no steeper than the slope bound says.
            let rise = (s.value(x.hi) - s.value(x.lo)).abs();
            prop_assert!(rise <= s.slope_bound(x) * x.width() * (1.0 + 1e-9) + 1e-12, "{s} on {x:?}");
        }
    }

    /// Rounding may turn the computed ends of an interval of a few numbers around: that is no reason to know nothing.
    #[test]
    fn narrow_intervals_stay_narrow(start in -30.0..30.0f64, steps in 0u32..6) {
        let starts = (0..40).map(|k| start + 1e-3 * f64::from(k));
        let narrow = starts.map(|start| Interval::new(start, subdeq_theory::interval::up_by(start, steps)));
        for (x, s) in narrow.flat_map(|x| activations().into_iter().map(move |s| (x, s))) {
            prop_assert!(s.enclose(x).width() <= 1e-13 * (1.0 + x.magnitude()), "{s} on {x:?}: {:?}", s.enclose(x));
        }
    }

    #[test]
    fn sech_squared_is_tight(t in -20.0..20.0f64) {
        let found = Interval::point(t).sech_squared();
        let e = (dd(-2.0) * dd(t.abs())).exp();
        let exact = dd(4.0) * e / ((dd(1.0) + e) * (dd(1.0) + e));
        prop_assert!((exact - dd(found.lo)).to_f64() >= 0.0 && (dd(found.hi) - exact).to_f64() >= 0.0);
        prop_assert!(found.width() <= 1e-13 * found.hi.max(1e-300));
    }
}

#[test]
fn names_and_parameters() {
    for s in activations() {
        assert_eq!(s.to_string().parse::<Activation>().unwrap(), s);
        let json = serde_json::to_string(&s).unwrap();
        assert_eq!(serde_json::from_str::<Activation>(&json).unwrap(), s);
    }
    assert_eq!("leaky-relu".parse::<Activation>().unwrap(), Activation::LeakyRelu { slope: 0.01 });
    let message = |text: &str| text.parse::<Activation>().unwrap_err().to_string();
    assert!(
        message("gelu").contains("there is no activation `gelu`") && message("gelu").contains("softsign")
    );
    assert!(message("softplus(-1)").contains("beta is -1"));
    assert!(message("softplus(x)").contains("`x`"));
    assert!(message("tanh(2)").contains("1 parameters"));
    assert!(message("softplus(2").contains("parenthesis"));
}
