//! Every constant that the theory prints, to the digits printed, and never below an evaluation that is independent of
//! the bisections: 31-digit arithmetic on a fine grid.

use crate::support::{Dd, dd, supremum};
use subdeq_map::Activation;
use subdeq_theory::activation::LogSumExp;
use subdeq_theory::degree::forms::{
    Gain, divisive, gains, normalised_row_signed, normalised_split_sign, rational, split_sign,
};
use subdeq_theory::degree::{
    Domain, NoDegree, Nonlinearity, Side, required_shift, required_shift_subtracted, tanh_above_threshold,
};
use subdeq_theory::interval::Interval;

use Activation::{HardTanh, Identity, LeakyRelu, Relu, Sigmoid, Softplus, Softsign, Tanh};

fn degree(s: Activation, shift: f64, domain: Domain) -> f64 {
    Nonlinearity::shifted(s, shift).degree(domain).unwrap().bound()
}

fn on_reals(s: Activation, shift: f64) -> f64 {
    degree(s, shift, Domain::Reals)
}

fn on_positive(s: Activation, shift: f64) -> f64 {
    degree(s, shift, Domain::Nonnegative)
}

/// `printed` has six decimals and was rounded up.
fn assert_printed(found: f64, printed: f64) {
    assert!((found - printed).abs() < 1.000001e-6, "found {found}, printed {printed}");
}

// s and s' in 31 digits, written down anew.
fn precise(s: Activation, u: f64) -> (Dd, Dd) {
    let one = dd(1.0);
    match s {
        Tanh => {
            let e = (dd(-2.0) * dd(u.abs())).exp();
            let t = (one - e) / (one + e);
            (if u < 0.0 { -t } else { t }, dd(4.0) * e / ((one + e) * (one + e)))
        }
        Sigmoid => {
            let e = dd(-u.abs()).exp();
            let value = if u < 0.0 { e / (one + e) } else { one / (one + e) };
            (value, e / ((one + e) * (one + e)))
        }
        Softplus { beta } => {
            let t = dd(beta) * dd(u);
            let e = (-t.abs()).exp();
            let positive = if u > 0.0 { t } else { dd(0.0) };
            let sigmoid = if u < 0.0 { e / (one + e) } else { one / (one + e) };
            ((positive + (one + e).ln()) / dd(beta), sigmoid)
        }
        Softsign => {
            let scale = one + dd(u.abs());
            (dd(u) / scale, one / (scale * scale))
        }
        _ => unreachable!("only smooth activations are checked this way"),
    }
}

/// `sup |u| s'(u)/(s(u) + a)` on one side of zero.
fn independent(s: Activation, a: f64, sign: f64, top: f64) -> f64 {
    supremum(top, 400, |t| {
        let (value, slope) = precise(s, sign * t);
        dd(t) * slope / (value + dd(a))
    })
}

#[test]
fn tanh_tables() {
    let shifts = [1.01, 1.05, 1.1, 1.2, 1.25, 1.3, 1.5, 1.603, 1.7, 2.0, 3.0, 5.0];
    let reals = [
        3.091725, 1.878035, 1.410812, 0.999124, 0.881374, 0.791168, 0.569009, 0.499196, 0.448085, 0.341598,
        0.192338, 0.103196,
    ];
    let positive = [
        0.276697, 0.269848, 0.261763, 0.246994, 0.240231, 0.233836, 0.211383, 0.201446, 0.192917, 0.170622,
        0.123311, 0.079428,
    ];
    for (i, &a) in shifts.iter().enumerate() {
        assert_printed(on_reals(Tanh, a), reals[i]);
        assert_printed(on_positive(Tanh, a), positive[i]);
    }
    let small = [
        (0.0, 1.0),
        (0.01, 0.926969),
        (0.05, 0.804850),
        (0.1, 0.713294),
        (0.2, 0.595055),
        (0.3, 0.516105),
        (0.5, 0.412279),
        (1.0, 0.278465),
    ];
    for (a, mu) in small {
        assert_printed(on_positive(Tanh, a), mu);
    }
}

#[test]
fn thresholds() {
    let close = |found: f64, printed: f64, digits: f64| {
        assert!((found - printed).abs() <= digits, "found {found}, printed {printed}");
        assert!(found >= printed - digits);
    };
    let positive = Side::Positive { up_to: f64::INFINITY };
    close(required_shift(Tanh, Side::Negative, 1.0), 1.1996786402577338, 1e-14);
    close(required_shift(Tanh, Side::Negative, 0.5), 1.601_638_930_011_748, 1e-14);
    close(required_shift(Tanh, positive, 0.5), 0.3249792609166056, 1e-14);
    close(required_shift(Tanh, Side::Negative, 0.99), 1.203384, 1e-6);
    close(required_shift(Tanh, Side::Negative, 0.499), 1.603331, 1e-6);
    close(required_shift(Sigmoid, Side::Negative, 1.0), 0.0998393201, 1e-10);
    close(required_shift(Sigmoid, Side::Negative, 0.5), 0.3008194650, 1e-10);
    let split_half = required_shift(Tanh, positive, 0.5) + required_shift_subtracted(Tanh, 0.5);
    close(split_half, 1.926618191, 1e-9);
    // The shift from which the published inequality 0.199 > max{...} would have to hold.
    assert!(required_shift(Tanh, Side::Negative, 1.0) - 1.0 > 0.199);
}

#[test]
fn other_activations() {
    assert!((on_positive(Sigmoid, 0.0) - 0.2784645428).abs() < 1e-10);
    assert_eq!(Nonlinearity::shifted(Sigmoid, 0.0).degree(Domain::Reals), Err(NoDegree::Infinite));
    for beta in [0.5, 1.0, 7.0] {
        assert_eq!(on_positive(Softplus { beta }, 0.0), 1.0);
        assert_eq!(on_positive(Softplus { beta }, 0.3), 1.0);
        let no_shift = Nonlinearity::shifted(Softplus { beta }, 0.0);
        assert_eq!(no_shift.degree(Domain::Reals), Err(NoDegree::Infinite));
        assert_printed(degree(Softplus { beta }, 0.0, Domain::UpTo { bound: 1.0 / beta }), 0.556674);
        assert_printed(degree(Softplus { beta }, 0.0, Domain::UpTo { bound: 5.0 / beta }), 0.991975);
    }
    assert_eq!(on_positive(Tanh, 0.0), 1.0);
    assert_eq!(on_positive(Softsign, 0.0), 1.0);
    assert_printed(on_reals(Softsign, 1.2), 0.420205);
    assert_printed(on_positive(Softsign, 1.2), 0.150385);
    assert_printed(on_reals(Softsign, 1.603), 0.239675);
    assert_printed(on_positive(Softsign, 1.603), 0.120607);
    assert!(on_reals(Softsign, 1.0 + 1e-9) < 1.0, "softsign + a has a degree below one for every a > 1");
    assert_eq!(LogSumExp.degree().bound(), 1.0);
}

#[test]
fn piecewise_linear_activations() {
    let clip = HardTanh { lo: 0.5, hi: 2.0 };
    assert!((on_reals(clip, 0.0) - 1.0).abs() < 1e-12);
    assert!((on_reals(clip, 1.0) - 2.0 / 3.0).abs() < 1e-12);
    assert!((on_reals(HardTanh { lo: 0.0, hi: 1.0 }, 0.25) - 0.8).abs() < 1e-12);
    // Symmetric clipping: |lo|/(lo + a) on the negative side counts.
    assert!((on_reals(HardTanh { lo: -1.0, hi: 1.0 }, 3.0) - 0.5).abs() < 1e-12);
    assert_eq!(on_reals(Relu, 0.0), 1.0);
    assert!(!Nonlinearity::shifted(Relu, 0.0).is_strictly_positive(Domain::Reals));
    assert!(Nonlinearity::shifted(Relu, 0.1).is_strictly_positive(Domain::Reals));
    assert!((degree(Relu, 0.5, Domain::UpTo { bound: 2.0 }) - 0.8).abs() < 1e-12);
    assert_eq!(on_positive(LeakyRelu { slope: 0.01 }, 0.0), 1.0);
    assert_eq!(on_reals(LeakyRelu { slope: -0.5 }, 0.0), 1.0);
    for negative_somewhere in [LeakyRelu { slope: 0.01 }, Identity, Tanh, Softsign] {
        let h = Nonlinearity::shifted(negative_somewhere, 0.5);
        assert!(matches!(h.degree(Domain::Reals), Err(NoDegree::NotPositive { .. })), "{negative_somewhere}");
    }
    assert!(matches!(
        Nonlinearity::shifted(Tanh, -0.1).degree(Domain::Nonnegative),
        Err(NoDegree::NotPositive { .. })
    ));
    assert_eq!(Nonlinearity::shifted(Tanh, 1.0).degree(Domain::Reals), Err(NoDegree::Infinite));
}

#[test]
fn powers() {
    let release = Nonlinearity { activation: Tanh, shift: 1.01, power: 0.999 };
    assert_printed(release.degree(Domain::Reals).unwrap().bound(), 3.088633);
    assert_printed(release.degree(Domain::Nonnegative).unwrap().bound(), 0.276420);
    assert!((1.0 / on_reals(Tanh, 1.01) - 0.323444).abs() < 1e-6);
}

#[test]
fn negative_thresholds() {
    assert_printed(tanh_above_threshold(1.2, 0.5).unwrap().bound(), 0.491187);
    assert_printed(tanh_above_threshold(1.2, 1.0).unwrap().bound(), 0.838505);
    assert!(tanh_above_threshold(1.2, 1.1999).unwrap().bound() < 1.0);
    assert_eq!(tanh_above_threshold(1.2, 1.2), Err(NoDegree::NotBelowOne));
    assert_printed(tanh_above_threshold(1.2, 0.0).unwrap().bound(), 0.246994);
}

#[test]
fn split_sign_constants() {
    let printed = [
        (1.2, 0.999155),
        (1.25, 0.910557),
        (1.3, 0.847768),
        (1.5, 0.683573),
        (1.603, 0.625977),
        (2.0, 0.478770),
        (3.0, 0.306881),
    ];
    for (a, c) in printed {
        assert_printed(split_sign(Tanh, a).unwrap().bound(), c);
    }
    assert_printed(split_sign(Softsign, 1.2).unwrap().bound(), 0.536676);
    assert_printed(split_sign(Softsign, 1.603).unwrap().bound(), 0.350160);
    assert!(split_sign(Softsign, 1.0 + 1e-9).unwrap().is_contraction());
    assert!(!split_sign(Tanh, 1.1996786).unwrap().is_contraction());
    assert!(split_sign(Tanh, 1.1996787).unwrap().is_contraction());
    assert_eq!(split_sign(Relu, 10.0), Err(NoDegree::Infinite));
    // sigmoid(u) - sigmoid(w) + a is tanh at half the scale and twice the shift.
    assert!(
        (split_sign(Sigmoid, 0.75).unwrap().bound() - split_sign(Tanh, 1.5).unwrap().bound()).abs() < 1e-12
    );
}

#[test]
fn other_sound_architectures() {
    assert_printed(divisive(Tanh, 1.2).unwrap().bound(), 0.493988);
    assert!(divisive(Tanh, 0.324979262).unwrap().is_contraction());
    assert!(!divisive(Tanh, 0.324979260).unwrap().is_contraction());
    assert_printed(rational(1.2).unwrap().bound(), 0.300770);
    assert!(rational(0.1250001).unwrap().is_contraction() && !rational(0.1249999).unwrap().is_contraction());
    assert_printed(normalised_row_signed(Tanh, 1.603).unwrap().bound(), 0.700642);
    assert_printed(normalised_split_sign(Tanh, 1.603).unwrap().bound(), 0.873753);
    // The threshold is 1.4845328087.
    assert!(normalised_split_sign(Tanh, 1.48453281).unwrap().is_contraction());
    assert!(!normalised_split_sign(Tanh, 1.48453280).unwrap().is_contraction());
    assert!(normalised_split_sign(Softsign, 1.1250001).unwrap().is_contraction());
    assert!(!normalised_split_sign(Softsign, 1.1249999).unwrap().is_contraction());
}

#[test]
fn gains_follow_the_closed_form() {
    // softsign: c = K - sqrt(K^2 - 1), K = (2a + A - B)/(A + B); with a = B + eps, K = 1 + 2 eps/(A + B).
    let row = |a: f64, b: f64, tie, shift| Gain {
        excitatory: Interval::point(a),
        inhibitory: Interval::point(b),
        tie,
        shift,
    };
    for (a, b, eps) in [(1.0, 1.0, 0.2), (30.0, 2.0, 0.5), (0.01, 100.0, 0.1), (5.0, 0.0, 0.3)] {
        let k: f64 = 1.0 + 2.0 * eps / (a + b);
        let closed = k - (k * k - 1.0).sqrt();
        let found = gains(Softsign, &[row(a, b, 1.0, eps)]).unwrap().bound();
        assert!(found >= closed - 1e-12 && found < closed + 1e-7, "{found} against {closed}");
        assert!(found < 1.0);
    }
    // Unit gains are the split-sign map.
    let unit = gains(Tanh, &[row(1.0, 1.0, 0.0, 1.5)]).unwrap().bound();
    assert!((unit - split_sign(Tanh, 1.5).unwrap().bound()).abs() < 1e-12);
    assert!(!gains(Tanh, &[row(1.0, 2.0, 1.19967, 0.0)]).is_ok_and(|c| c.is_contraction()));
}

#[test]
fn never_below_the_truth_and_within_1e_9() {
    let cases = [
        (Tanh, vec![1.0001, 1.01, 1.2, 1.603, 2.5, 40.0], vec![1e-6, 0.01, 0.3, 1.2, 1.603, 100.0]),
        (Sigmoid, vec![0.001, 0.1, 0.3, 5.0], vec![-0.45, -0.1, 0.0, 0.2, 3.0]),
        (Softsign, vec![1.0001, 1.2, 1.603, 9.0], vec![1e-6, 0.1, 1.2, 1.603, 20.0]),
    ];
    for (s, real_shifts, positive_shifts) in cases {
        for a in real_shifts {
            let truth = independent(s, a, -1.0, 1e3).max(independent(s, a, 1.0, 1e3));
            check(on_reals(s, a), truth, s, a);
        }
        for a in positive_shifts {
            check(on_positive(s, a), independent(s, a, 1.0, 1e3), s, a);
        }
    }
    for beta in [0.3, 1.0, 4.0] {
        for a in [0.01 / beta, 0.05 / beta, 0.1 / beta] {
            let s = Softplus { beta };
            check(on_reals(s, a), independent(s, a, -1.0, 60.0 / beta).max(1.0), s, a);
        }
        for a in [-0.6 / beta, -0.1 / beta] {
            let s = Softplus { beta };
            check(on_positive(s, a), independent(s, a, 1.0, 60.0 / beta), s, a);
        }
    }
}

fn check(bound: f64, truth: f64, s: Activation, a: f64) {
    assert!(bound >= truth * (1.0 - 1e-15), "{s} + {a}: bound {bound:.17} is below {truth:.17}");
    assert!(bound <= truth + 1e-9 * truth.max(1.0), "{s} + {a}: bound {bound:.17} is far above {truth:.17}");
}

#[test]
fn split_sign_is_never_below_the_truth() {
    for (s, shifts) in [(Tanh, [1.2, 1.25, 1.603, 2.0, 3.0]), (Softsign, [1.05, 1.2, 1.603, 2.0, 3.0])] {
        for a in shifts {
            let truth = supremum(6.0, 40, |u| {
                let (su, du) = precise(s, u);
                let inner = supremum(60.0, 80, |w| {
                    let (sw, dw) = precise(s, w);
                    (dd(u) * du + dd(w) * dw) / (dd(a) + su - sw)
                });
                dd(inner)
            });
            check(split_sign(s, a).unwrap().bound(), truth, s, a);
        }
    }
}
