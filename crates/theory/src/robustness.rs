//! How far an input may move before the predicted class can change.
//!
//! A map `H(z) + y` with the uniform factor `c` in Thompson's metric moves its fixed point by at most
//! `max_i |ln(1 + D_i/z_i)| / (1 - c)` when `y` moves by `D`. The logits are `C z + d`, batch norm folded in.

use subdeq_map::{Activation, Operator};

use crate::activation::Enclosure;
use crate::bound::Upper;
use crate::bounds::Contraction;
use crate::degree::Domain;
use crate::interval::Interval;
use crate::operator::Products;

/// One class against another: the margin is `sum_i w_i z_i + offset`, `w = C_t - C_k`, `offset = d_t - d_k`.
#[derive(Clone, Debug, PartialEq)]
pub struct Margin {
    /// `C_t - C_k`.
    pub weights: Vec<f64>,
    /// `d_t - d_k`.
    pub offset: f64,
}

impl Margin {
    /// The lower end of the margin over a box that contains the fixed point for every input considered (the sharper,
    /// interval form): positive means that no input of the set changes the class.
    #[must_use]
    pub fn over_box(&self, state: &[Interval]) -> f64 {
        let terms = self.weights.iter().zip(state).map(|(&w, &z)| Interval::point(w) * z);
        terms.fold(Interval::point(self.offset), |sum, term| sum + term).lo
    }

    /// The Thompson distance by which `z` may move before the margin can vanish, rounded down: `r_k` of
    /// `p e^-r - q e^r + offset > 0`. Zero where the margin is not positive to begin with.
    #[must_use]
    pub fn thompson_radius(&self, z: &[f64]) -> f64 {
        let part = |positive: bool| {
            let chosen = self.weights.iter().zip(z).filter(|(w, _)| (**w > 0.0) == positive && **w != 0.0);
            chosen.fold(Interval::point(0.0), |sum, (w, z)| {
                sum + Interval::point(w.abs()) * Interval::point(*z)
            })
        };
        let (p, q) = (part(true), part(false));
        let holds = |r: f64| {
            let r = Interval::point(r);
            (p * (-r).exp() - q * r.exp() + Interval::point(self.offset)).lo > 0.0
        };
        largest_holding(holds)
    }
}

/// The largest `r` seen to satisfy a property that holds up to some point and no further; zero where it never does.
fn largest_holding(holds: impl Fn(f64) -> bool) -> f64 {
    if !holds(0.0) {
        return 0.0;
    }
    // e^700 is near the largest number there is.
    let (mut low, mut high) = (0.0, 700.0);
    if holds(high) {
        return high;
    }
    while high - low > 1e-14 * high {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// The certified change of the injection, entry by entry: `|D_i| <= z_i (1 - e^(-(1-c) r))`, `r` the smallest
/// [`Margin::thompson_radius`] over the other classes. Rounded down.
///
/// ```
/// use subdeq_theory::{bounds::Contraction, robustness::{Margin, injection_radii}};
/// let margin = Margin { weights: vec![1.0, -1.0], offset: 0.0 };
/// let radii = injection_radii(&[2.0, 1.0], &[margin], Contraction::new(0.5).unwrap());
/// assert!(radii[0] > 0.29 && radii[1] > 0.14); // z = (2, 1): r = ln(2)/2, so 2 (1 - 2^-0.25) = 0.318...
/// ```
#[must_use]
pub fn injection_radii(z: &[f64], margins: &[Margin], c: Contraction) -> Vec<f64> {
    let radius = margins.iter().map(|margin| margin.thompson_radius(z)).fold(700.0, f64::min);
    let kept = (Interval::point(c.factor()) - Interval::point(1.0)) * Interval::point(radius);
    let share = Interval::point(1.0) - kept.exp();
    z.iter().map(|&z| (Interval::point(z) * share).lo.max(0.0)).collect()
}

/// The certified radius in the input `x` of `y = ReLU(U x + b)`: `min_i radii_i / ||U_i||_q`, with the dual norms of the
/// rows of `U` given (rounded up). ReLU moves no further than its argument.
#[must_use]
pub fn input_radius(radii: &[f64], dual_norms: &[f64]) -> f64 {
    radii
        .iter()
        .zip(dual_norms)
        .map(|(r, norm)| (r / norm).next_down().max(0.0))
        .fold(f64::INFINITY, f64::min)
}

/// An upper bound of the Thompson distance between the fixed points for `y` and `y + change`, where `z` is the exact fixed
/// point for `y`: infinite where an entry of `z + change` is not positive.
#[must_use]
pub fn fixed_point_shift(z: &[f64], change: &[f64], c: Contraction) -> f64 {
    let step = z.iter().zip(change).map(|(&z, &d)| {
        let moved = (Interval::point(z) + Interval::point(d)) / Interval::point(z);
        if moved.lo > 0.0 { moved.ln().magnitude() } else { f64::INFINITY }
    });
    c.error_before(Upper::largest(step).get())
}

/// `sup s'(u)/(s(u) + a)` for tanh, rounded up: by how much an input *inside* the activation moves `ln F`. It takes the
/// place of the logarithms in [`fixed_point_shift`] for maps `tanh(W z + y) + a`. `None` where it is infinite or not
/// known.
#[must_use]
pub fn inner_gain(s: Activation, a: f64, domain: Domain) -> Option<f64> {
    let shift = Interval::point(a);
    match (s, domain) {
        (Activation::Tanh, Domain::Nonnegative | Domain::UpTo { .. }) if a > 0.0 => {
            Some((Interval::point(1.0) / shift).hi)
        }
        (Activation::Tanh, Domain::Reals) if a > 1.0 => {
            let root = (shift.square() - Interval::point(1.0)).sqrt();
            Some((Interval::point(2.0) * (shift - root)).hi)
        }
        _ => None,
    }
}

/// A bound, entry by entry, of `|z*(y) - z*(y')|` for `|y - y'| <= change`, from slopes `d` on a box that contains both
/// fixed points and weights `v` with `d |W| v <= theta v`, `theta < 1`: `(I - d|W|)^-1 change`, approached from above.
#[must_use]
pub fn entrywise_shift(
    w: &Operator,
    slopes: &[f64],
    v: &[f64],
    theta: Contraction,
    change: &[f64],
) -> Vec<f64> {
    let worst = Upper::largest(change.iter().zip(v).map(|(d, v)| (d.abs() / v).next_up()));
    let scale = theta.error_before(worst.get());
    let mut bound: Vec<f64> = v.iter().map(|v| (v * scale).next_up()).collect();
    let mut product = vec![0.0; bound.len()];
    // M e + change stays a bound for every bound e; a few steps take most of what can be had.
    let slack = crate::round::gamma(w.terms() + 2);
    for _ in 0..30 {
        w.apply_abs(&bound, &mut product);
        for i in 0..bound.len() {
            let image = slopes[i] * product[i] * (1.0 + slack) * (1.0 + 4.0 * f64::EPSILON);
            bound[i] = bound[i].min((image + change[i].abs()).next_up());
        }
    }
    bound
}

/// One step of the interval embedding of the split-sign map `s(P z) - s(N z) + y + a`, `P = W+` and `N = W-` given as
/// operators: the image of the box under the map for every input in `y`.
#[must_use]
pub fn split_sign_step(
    excitatory: &Operator,
    inhibitory: &Operator,
    s: Activation,
    shift: f64,
    y: &[Interval],
    state: &[Interval],
) -> Vec<Interval> {
    let lower: Vec<f64> = state.iter().map(|z| z.lo).collect();
    let upper: Vec<f64> = state.iter().map(|z| z.hi).collect();
    let (excited, inhibited) = (excitatory.enclose(&lower, &upper), inhibitory.enclose(&lower, &upper));
    let image = |i: usize| {
        let plus = s.enclose(Interval::new(excited.0[i], excited.1[i]));
        let minus = s.enclose(Interval::new(inhibited.0[i], inhibited.1[i]));
        plus - minus + y[i] + Interval::point(shift)
    };
    (0..state.len()).map(image).collect()
}

/// The box that an interval embedding shrinks to: it contains the fixed point for every input of the set. `start` must
/// contain them all.
#[must_use]
pub fn limit_box(
    start: Vec<Interval>,
    step: impl Fn(&[Interval]) -> Vec<Interval>,
    steps: usize,
) -> Vec<Interval> {
    let mut state = start;
    for _ in 0..steps {
        let before: f64 = state.iter().map(|z| z.width()).sum();
        let image = step(&state);
        for (z, image) in state.iter_mut().zip(image) {
            // Fixed points lie in the box and in its image, so in both.
            *z = z.intersect(image).unwrap_or(*z);
        }
        let after: f64 = state.iter().map(|z| z.width()).sum();
        if after >= before * (1.0 - 1e-6) {
            break;
        }
    }
    state
}
