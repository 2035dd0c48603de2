//! The sharpest test for one input: secant slopes from the computed fixed point to anywhere in the box. One end of the
//! secant being known, they are often much smaller than the tangent slopes on the box.

use subdeq_map::Activation;

use crate::activation::Enclosure;
use crate::bound::Upper;
use crate::ibp::Propagated;
use crate::interval::Interval;
use crate::operator::Products;
use crate::response::{LEAST_SLOPE, Layer};

/// Within this distance of the anchor's preactivation, tangent slopes count as well: what makes uniqueness strict.
pub(crate) const NEIGHBOURHOOD: f64 = 1e-3;
/// Added to every secant slope, so that it also bounds secants from the exact fixed point, which is this close.
pub(crate) const INFLATION: f64 = 1e-6;
/// Slopes are stated so much larger: where the response is saturated, they change by as much with the last digits of a
/// preactivation, and a re-check computes those by other code.
const SLACK: f64 = 1e-6;

/// The preactivations at an anchor `z_k`, its image `zt = F(z_k)`, and how far the two are apart.
pub(crate) struct Anchor {
    /// `W z_k + y'`, as intervals that contain the exact numbers.
    pub(crate) preactivations: Vec<Interval>,
    /// Bounds of `|F(z_k) - z_k|`, entry by entry.
    pub(crate) residual: Vec<f64>,
}

impl Anchor {
    /// Evaluates the layer at `z_k` with outward rounding.
    pub(crate) fn at(layer: &Layer<'_>, point: &[f64]) -> Anchor {
        let (lower, upper) = layer.operator.enclose(point, point);
        let mut preactivations = Vec::with_capacity(point.len());
        let mut residual = Vec::with_capacity(point.len());
        for i in 0..point.len() {
            let u = Interval::new(lower[i], upper[i]) + layer.inner.at(i);
            let image = layer.response.enclose(u) + layer.outer.at(i);
            residual.push((image - Interval::point(point[i])).magnitude());
            preactivations.push(u);
        }
        Anchor { preactivations, residual }
    }
}

/// Damped iteration from the middle of the box: an approximation of a fixed point, if there is one to be had this way.
/// Rigour comes later.
pub(crate) fn approximate_fixed_point(layer: &Layer<'_>, propagated: &Propagated) -> Vec<f64> {
    let mut z: Vec<f64> =
        propagated.lower.iter().zip(&propagated.upper).map(|(l, h)| 0.5 * l + 0.5 * h).collect();
    let mut next = z.clone();
    let mut damping = 1.0f64;
    let mut last = f64::INFINITY;
    for _ in 0..400 {
        layer.apply(&z, &mut next);
        let step = z.iter().zip(&next).map(|(a, b)| (a - b).abs());
        let step = Upper::largest(step).get();
        if !(step > 1e-15 * next.iter().fold(1.0, |m: f64, x| m.max(x.abs()))) {
            break;
        }
        // Oscillation is what uniqueness without contraction looks like: average more.
        if step > 0.9 * last {
            damping = (0.7 * damping).max(0.05);
        }
        last = step;
        for (z, f) in z.iter_mut().zip(&next) {
            *z += damping * (f - *z);
        }
    }
    z
}

/// An upper bound `S_i` of every slope that the test must allow for in one entry: secants from `at` to points of `on`,
/// tangents near `at`.
pub(crate) fn slope_bound(layer: &Layer<'_>, at: Interval, on: Interval) -> f64 {
    let on = on.hull(at);
    let tangents = layer.response.slope(on).magnitude();
    let known = matches!(layer.response.activation(), Activation::Tanh | Activation::Softsign);
    if !(known && layer.response.is_plain()) {
        return (tangents * (1.0 + SLACK)).max(LEAST_SLOPE);
    }
    let near = Interval::new((at.lo - NEIGHBOURHOOD).next_down(), (at.hi + NEIGHBOURHOOD).next_up());
    let tangents_near = layer.response.slope(near).magnitude();
    let secants = secant_slope(layer.response.activation(), at, on) + INFLATION;
    let slope = secants.next_up().max(tangents_near).min(tangents.max(tangents_near));
    (slope * (1.0 + SLACK)).max(LEAST_SLOPE)
}

/// `sup (s(a) - s(w))/(a - w)` over `w` in `on` for an odd `s` with slope decreasing in `|u|`: the tangent from `a` to the
/// branch on the other side of zero where the interval reaches its point of contact `-v`, else the secant to its end.
fn secant_slope(s: Activation, at: Interval, on: Interval) -> f64 {
    // By symmetry a >= 0, and `far` is the end on the other side of zero.
    let (at, far) = if at.lo + at.hi >= 0.0 { (at, on.lo) } else { (-at, -on.hi) };
    let a = at.lo.max(0.0);
    // Any lower bound of v will do: s' decreases.
    let contact = contact_point(s, a);
    if far <= -contact || !(at.lo > far) {
        return s.slope_bound(Interval::point(contact));
    }
    let rise = s.enclose(at) - s.enclose(Interval::point(far));
    (rise / (at - Interval::point(far))).hi
}

/// A lower bound of the `v >= 0` whose tangent at `-v` passes through `(a, s(a))`.
fn contact_point(s: Activation, a: f64) -> f64 {
    let guess = match s {
        Activation::Softsign => return softsign_contact(a),
        _ => tanh_contact(a),
    };
    // At `-v` the chord to `a` has exactly the slope there; at a smaller `v` the tangent is still steeper.
    let (at, from) = (Interval::point(a), Interval::point(-guess));
    let excess = at.tanh() - from.tanh() - from.sech_squared() * (at - from);
    if excess.hi <= 0.0 { guess } else { 0.0 }
}

/// `a (sqrt(2 + 2a) - 1)/(1 + 2a)`, rounded down.
fn softsign_contact(a: f64) -> f64 {
    let at = Interval::point(a);
    let (one, two) = (Interval::point(1.0), Interval::point(2.0));
    (at * ((two + two * at).sqrt() - one) / (one + two * at)).lo.max(0.0)
}

/// The root `v` of `tanh a + tanh v = sech^2(v) (a + v)` by bisection, a little too small on purpose.
fn tanh_contact(a: f64) -> f64 {
    let (mut low, mut high) = (0.0f64, a.min(20.0));
    let at_a = a.tanh();
    for _ in 0..40 {
        let v = 0.5 * (low + high);
        let at_v = v.tanh();
        if at_a + at_v <= (1.0 - at_v * at_v) * (a + v) {
            low = v;
        } else {
            high = v;
        }
    }
    low * (1.0 - 1e-9)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn unlimited_tanh_slopes_are_those_of_the_theory() {
        for (a, expected) in [
            (0.0, 1.0),
            (0.5, 0.942_725),
            (1.0, 0.816_219),
            (2.0, 0.581_573),
            (3.0, 0.439_234),
            (5.0, 0.295_750),
        ] {
            let found = secant_slope(Activation::Tanh, Interval::point(a), Interval::new(-30.0, 30.0));
            assert!((found - expected).abs() < 1e-6, "a = {a}: {found} but {expected} expected");
        }
    }

    proptest! {
        #[test]
        fn no_sampled_secant_is_steeper(a in -4.0f64..4.0, lo in -6.0f64..0.0, hi in 0.0f64..6.0, soft in any::<bool>()) {
            let s = if soft { Activation::Softsign } else { Activation::Tanh };
            let on = Interval::new(lo.min(a), hi.max(a));
            let bound = secant_slope(s, Interval::point(a), on);
            // The limit at `a`, a grid on the interval, and a fine one where the slope of softsign changes quickest.
            let mut steepest = s.slope_bound(Interval::point(a));
            for k in -2000..=2000 {
                let t = f64::from(k) / 2000.0;
                for w in [on.lo + (on.hi - on.lo) * t.abs(), a * t] {
                    let w = w.clamp(on.lo, on.hi);
                    if (w - a).abs() > 1e-6 {
                        steepest = steepest.max((s.value(a) - s.value(w)) / (a - w));
                    }
                }
            }
            prop_assert!(bound >= steepest - 1e-9, "{bound} {steepest}");
            prop_assert!(bound <= steepest + 1e-4, "{bound} {steepest}");
        }
    }
}
