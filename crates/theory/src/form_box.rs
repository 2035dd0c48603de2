//! A3 to A5 for given inputs: boxes of positive states by the map's own interval embedding, then the strong degree on the box. It proves
//! what the form alone does not, where the shift is too small for all weights but not for these.

use subdeq_map::{Form, Map, Operator};

use crate::activation::Enclosure;
use crate::bound::Upper;
use crate::exact::ExactMap;
use crate::ibp;
use crate::interval::Interval;
use crate::operator::Products;

/// The factor and the number of steps of propagation behind it; `None` for another form or an unbounded one.
pub(crate) fn prove(map: &Map, weights: &Operator, y: &[Interval]) -> Option<(f64, usize)> {
    if map.normalisation().is_some() {
        return None;
    }
    let exact = ExactMap::new(map, weights, None).ok()?;
    let mut state = image_of_the_orthant(map, y)?;
    let mut width = f64::INFINITY;
    let mut steps = 0;
    while steps < ibp::MAX_STEPS {
        let before = width;
        width = state.iter().map(|z| z.width()).sum();
        if !(width < before * (1.0 - 1e-4)) {
            break;
        }
        let image = exact.apply_inputs(&state, y)?;
        steps += 1;
        for (z, image) in state.iter_mut().zip(image) {
            *z = z.intersect(image)?;
        }
    }
    let degree = degree(map, weights, &state, &exact.apply_inputs(&state, y)?)?;
    Some((degree.get(), steps))
}

/// States smaller than this are not told apart from what underflow may cost.
const LEAST_STATE: f64 = 1e-250;

/// A box that holds the image of every positive state; `None` unless all of it is positive, so that iteration stays among such states.
fn image_of_the_orthant(map: &Map, y: &[Interval]) -> Option<Vec<Interval>> {
    let s = map.activation();
    let (least, most) = (s.enclose(Interval::point(0.0)), Interval::point(s.range().1));
    let values = match map.form() {
        Form::SplitSign => (least - most).hull(most - least),
        Form::Divisive { .. } | Form::Monomial => least.hull(most),
        Form::Rational { .. } => Interval::new(0.0, 1.0),
        _ => return None,
    };
    let start: Vec<Interval> = y.iter().map(|&y| values + Interval::point(map.shift()) + y).collect();
    start.iter().all(|z| z.is_bounded() && z.lo > LEAST_STATE).then_some(start)
}

/// `max_i (|J| z)_i / F_i` over the box with the image `f`.
fn degree(map: &Map, weights: &Operator, state: &[Interval], f: &[Interval]) -> Option<Upper> {
    if state.iter().chain(f).any(|z| !(z.lo > 0.0)) {
        return None;
    }
    let s = map.activation();
    // u s'(u), at least zero for an increasing s and u >= 0.
    let scaled_slope = |u: Interval| Upper::new((u * s.slopes(u)).magnitude());
    let part = |sign: f64| -> Option<Vec<Interval>> {
        let part = weights.clone().try_map(|w| (sign * w).max(0.0)).ok()?;
        let nonnegative = |u: Interval| Interval::new(u.lo.max(0.0), u.hi);
        Some(part.image(state).into_iter().map(nonnegative).collect())
    };
    let (excitation, inhibition) = (part(1.0)?, part(-1.0)?);
    let (powers, row_sums) = if map.form() == Form::Monomial {
        let logs: Vec<Interval> = state.iter().map(|z| z.ln()).collect();
        (weights.image(&logs).into_iter().map(Interval::exp).collect(), weights.row_sums())
    } else {
        (Vec::new(), Vec::new())
    };
    let mut largest = Upper::ZERO;
    for i in 0..state.len() {
        let (u, w) = (excitation[i], inhibition[i]);
        let numerator = match map.form() {
            Form::SplitSign => scaled_slope(u) + scaled_slope(w),
            Form::Divisive { q } => {
                let below = Interval::point(q) + w;
                let share = Upper::new((w / below).hi).min(Upper::new(1.0));
                scaled_slope(u / below) * (Upper::new(1.0) + share)
            }
            Form::Rational { q } => {
                let below = Interval::point(q) + u + w;
                let twice = Interval::point(q) + Interval::point(2.0) * w;
                Upper::new((u / below * (twice / below)).hi)
            }
            Form::Monomial => scaled_slope(powers[i]) * Upper::new(row_sums[i]),
            _ => return None,
        };
        largest = largest.max(numerator.over(f[i].lo));
    }
    Some(largest)
}
