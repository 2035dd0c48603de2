//! The proximal step `prox_t` of an activation: the root `z` of `z + t (s^-1(z) - z) = g`.
//!
//! With `z = s(x)` it is the root `x` of `t x + (1 - t) s(x) = g`, which also covers activations without an inverse.
//! `prox_1 = s`; closed forms for ReLU, leaky ReLU, hard tanh, identity and softsign; Newton's method for the others.

use crate::cpu::activation::{Scalar, Sigmoid, Softplus, Tanh, activate_plain};
use crate::cpu::simd::{Lanes, for_vectors, get, put};
use crate::map::Formula;
use crate::{Activation, EngineError, Injection, Real, Result, ShapedMap};

/// The most Newton steps for smooth activations. From `Start::Middle`, 12 reach rounding level for every step `t` in
/// `[1/64, 64]` (tested); outside that range `check_splitting` refuses.
const NEWTON_STEPS: usize = 14;
/// A step of Newton's method is the last if it is smaller than this times the root of a number's rounding, relatively: what is
/// left is its square times `|1 - t| |s''| / (2 min(t, 1))`, below `32 |s''|` for those `t`.
const NEWTON_LAST: f64 = 1.0 / 32.0;
pub(crate) const STEP_RANGE: std::ops::RangeInclusive<f64> = 1.0 / 64.0..=64.0;

/// Refuses maps and steps for which the splittings make no sense.
pub(crate) fn check_splitting(map: &ShapedMap, step: f64) -> Result<()> {
    let refuse =
        |why: String| Err(EngineError::Invalid(format!("a splitting solver cannot run this map: {why}")));
    if !matches!(map.formula, Formula::Single) {
        return refuse(format!("its form must be Single, it is {:?}", map.formula));
    }
    if map.norm.is_some() || map.power != 1.0 {
        return refuse("normalisation and power are not monotone operators".into());
    }
    if !map.activation.slopes_in_unit_interval() {
        return refuse(format!("its slopes must lie in [0, 1], which those of {} do not", map.activation));
    }
    if !STEP_RANGE.contains(&step) {
        return refuse(format!("the step must lie in [1/64, 64], it is {step}"));
    }
    Ok(())
}

/// Whether a splitting's state that is zero stands for the answer zero and the proximal step leaves it there.
pub(crate) fn leaves_zero(map: &ShapedMap) -> bool {
    let is_fixed = match map.activation {
        Activation::HardTanh { lo, hi } => lo <= 0.0 && 0.0 <= hi,
        Activation::Softplus { .. } | Activation::Sigmoid => false,
        Activation::Relu
        | Activation::LeakyRelu { .. }
        | Activation::Identity
        | Activation::Softsign
        | Activation::Tanh => true,
    };
    is_fixed && map.injection == Injection::Inner && map.shift == 0.0
}

/// `row <- prox_t(row)`.
#[inline(always)]
pub(crate) fn prox_row<V: Lanes>(activation: Activation, t: f64, row: &mut [V::Elem]) {
    if t == 1.0 {
        return activate_plain::<V>(activation, row);
    }
    match activation {
        Activation::Relu => each::<V>(row, |g| g.max(V::zero())),
        Activation::LeakyRelu { slope } => {
            // Negative side: t x + (1 - t) slope x = g.
            let factor = V::constant(slope / (t + (1.0 - t) * slope));
            let flat = slope == 0.0;
            each::<V>(row, |g| V::select(V::zero().lt(g), g, if flat { V::zero() } else { g * factor }));
        }
        Activation::Identity => {}
        Activation::HardTanh { lo, hi } => each::<V>(row, |g| V::constant(lo).max(V::constant(hi).min(g))),
        Activation::Softsign => for_vectors!(V, row.len(), |at, count| {
            put(softsign::<V>(t, get::<V>(row, at, count)), row, at, count);
        }),
        Activation::Tanh => newton::<V, _>(t, row, Tanh, Start::Bent { slope: 1.0, bound: 1.0 }),
        Activation::Sigmoid => newton::<V, _>(t, row, Sigmoid, Start::Bent { slope: 0.25, bound: 0.5 }),
        Activation::Softplus { beta } => newton::<V, _>(t, row, Softplus { beta }, Start::Middle),
    }
}

/// The adjoint's proximal step: `row <- d row / (d + t (1 - d))` with the slopes `d` in `[0, 1]`.
#[inline(always)]
pub(crate) fn adjoint_prox_row<V: Lanes>(t: f64, slope: &[V::Elem], row: &mut [V::Elem]) {
    let t = V::constant(t);
    for_vectors!(V, row.len(), |at, count| {
        let d = get::<V>(slope, at, count);
        let weight = d + t * (V::one() - d);
        put(d * get::<V>(row, at, count) / weight.first(count, V::one()), row, at, count);
    });
}

#[inline(always)]
fn each<V: Lanes>(row: &mut [V::Elem], f: impl Fn(V) -> V) {
    for_vectors!(V, row.len(), |at, count| put(f(get::<V>(row, at, count)), row, at, count));
}

/// For `g >= 0`: `t x + (1 - t) x / (1 + x) = g`, i.e. `t x^2 + (1 - g) x - g = 0`; odd in `g`.
#[inline(always)]
fn softsign<V: Lanes>(t: f64, g: V) -> V {
    let size = g.abs().min(V::constant(1e15));
    let b = V::one() - size;
    let root = (b * b + V::constant(4.0 * t) * size).sqrt();
    // The form without cancellation on either side.
    let near = (size + size) / (b + root).max(V::constant(1e-30));
    let far = (root - b) * V::constant(0.5 / t);
    let x = V::select(V::zero().lt(b), near, far);
    (x / (V::one() + x)).copysign(g)
}

/// Where Newton's method begins for an activation, `gap` from the value at 0.
#[derive(Clone, Copy)]
enum Start {
    /// In the middle of what its slopes allow.
    Middle,
    /// For a function that is odd around its value at 0, with that slope there, and bends towards a bound that is so far away: where
    /// the lines of both meet `gap`. From there steps go one way.
    Bent { slope: f64, bound: f64 },
}

impl Start {
    #[inline(always)]
    fn at<V: Lanes>(self, t: f64, gap: V) -> V {
        match self {
            Self::Middle => gap * V::constant(0.5 / t.min(1.0) + 0.5 / t.max(1.0)),
            Self::Bent { slope, bound } => {
                let size = gap.abs();
                let near = size * V::constant(1.0 / (t + (1.0 - t) * slope));
                let far = (size - V::constant((1.0 - t) * bound)) * V::constant(1.0 / t);
                (if t < 1.0 { near.max(far) } else { near.min(far) }).copysign(gap)
            }
        }
    }
}

/// Vectors whose roots are looked for at once: the steps of one wait for each other.
const ABREAST: usize = 2;

/// Newton's method for `r(x) = t x + (1 - t) s(x) - g`, kept inside a bracket. `r` increases with slopes between
/// `min(1, t)` and `max(1, t)`, so a step of Newton's method never needs more than a bisection to be kept inside.
/// A number stays where its last step led, however many its neighbours still need.
#[inline(always)]
fn newton<V: Lanes, S: Scalar>(t: f64, row: &mut [V::Elem], s: S, start: Start) {
    let (tv, rest) = (V::constant(t), V::constant(1.0 - t));
    let (shallow, steep) = (V::constant(1.0 / t.min(1.0)), V::constant(1.0 / t.max(1.0)));
    let at_zero = rest * s.value(V::zero());
    let last = V::constant(NEWTON_LAST * V::Elem::EPSILON.to_f64().sqrt());
    for group in row.chunks_mut(ABREAST * V::N) {
        let len = group.len();
        let place = |k: usize| {
            let at = len.min(k * V::N);
            (at, V::N.min(len - at))
        };
        let mut g = [V::zero(); ABREAST];
        let (mut lo, mut hi, mut x, mut moves) = (g, g, g, [V::one(); ABREAST]);
        for k in 0..ABREAST {
            let (at, count) = place(k);
            g[k] = get(group, at, count);
            // From the value at 0, the slopes bound the root.
            let gap = g[k] - at_zero;
            let (one, other) = (gap * shallow, gap * steep);
            (lo[k], hi[k]) = (one.min(other), one.max(other));
            x[k] = start.at(t, gap);
        }
        for _ in 0..NEWTON_STEPS {
            for k in 0..ABREAST {
                let value = s.value(x[k]);
                let r = rest.fma(value, tv.fma(x[k], -g[k]));
                let negative = r.lt(V::zero());
                lo[k] = V::select(negative, x[k], lo[k]);
                hi[k] = V::select(negative, hi[k], x[k]);
                let next = x[k] - r / rest.fma(s.slope(x[k], value), tv);
                let middle = V::constant(0.5) * (lo[k] + hi[k]);
                let (below, above) = (next.lt(lo[k]), hi[k].lt(next));
                let inside = V::select(below, middle, V::select(above, middle, next));
                let beyond = (next - x[k]).abs() - last * next.abs();
                let beyond = V::select(below, V::one(), V::select(above, V::one(), beyond));
                x[k] = V::select(V::zero().lt(moves[k]), inside, x[k]);
                moves[k] = V::select(V::zero().lt(beyond), moves[k], V::zero());
            }
            if moves.into_iter().fold(V::zero(), V::max).largest() == V::Elem::ZERO {
                break;
            }
        }
        for (k, &x) in x.iter().enumerate() {
            let (at, count) = place(k);
            put(s.value(x), group, at, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::prox_row;
    use crate::Activation;
    use crate::cpu::isa::{Isa, Vectorised};
    use crate::cpu::simd::{Lanes, SimdReal};

    struct Prox<'a, T> {
        activation: Activation,
        t: f64,
        row: &'a mut [T],
    }

    impl<T: SimdReal> Vectorised<T> for Prox<'_, T> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes<Elem = T>>(self) {
            prox_row::<V>(self.activation, self.t, self.row);
        }
    }

    /// Monotone in `g` with the root found by bisection of `t x + (1 - t) s(x) = g`, `z = s(x)`.
    fn by_bisection(s: impl Fn(f64) -> f64, t: f64, g: f64) -> f64 {
        let (mut lo, mut hi) = (-1e5, 1e5);
        for _ in 0..200 {
            let x = 0.5 * (lo + hi);
            if t * x + (1.0 - t) * s(x) < g { lo = x } else { hi = x }
        }
        s(lo)
    }

    #[test]
    fn the_root_of_its_equation() {
        type Scalar = fn(f64) -> f64;
        let cases: [(Activation, Scalar); 8] = [
            (Activation::Tanh, f64::tanh),
            (Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
            (Activation::Softplus { beta: 2.0 }, |x| {
                let x = 2.0 * x;
                0.5 * (x.max(0.0) + (-x.abs()).exp().ln_1p())
            }),
            (Activation::Softsign, |x| x / (1.0 + x.abs())),
            (Activation::HardTanh { lo: -0.5, hi: 1.5 }, |x| x.clamp(-0.5, 1.5)),
            (Activation::Relu, |x| x.max(0.0)),
            (Activation::LeakyRelu { slope: 0.1 }, |x| if x > 0.0 { x } else { 0.1 * x }),
            (Activation::Identity, |x| x),
        ];
        for (activation, s) in cases {
            for t in [1.0 / 64.0, 0.3, 1.0, 2.7, 64.0] {
                let g: Vec<f64> = (-120..=120).map(|k| f64::from(k) * 0.37).collect();
                let mut double = g.clone();
                Isa::detect().dispatch(Prox { activation, t, row: &mut double });
                let mut single: Vec<f32> = g.iter().map(|&g| g as f32).collect();
                Isa::detect().dispatch(Prox { activation, t, row: &mut single });
                for ((&g, &z), &z32) in g.iter().zip(&double).zip(&single) {
                    let exact = by_bisection(s, t, g);
                    assert!(
                        (z - exact).abs() < 1e-9 * (1.0 + exact.abs()),
                        "{activation:?}, t = {t}, g = {g}: {z} {exact}"
                    );
                    let from_single = by_bisection(s, t, f64::from(g as f32));
                    let error = (f64::from(z32) - from_single).abs();
                    assert!(
                        error < 4e-6 * (1.0 + from_single.abs()),
                        "{activation:?}, t = {t}, g = {g} in f32: {z32} {from_single}"
                    );
                }
            }
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_neighbours() {
        let g: Vec<f32> = (-40..=40).map(|k| (k as f32).powi(3) * 1e-4).collect();
        for activation in [Activation::Tanh, Activation::Sigmoid, Activation::Softplus { beta: 2.0 }] {
            for (isa, t) in Isa::available().flat_map(|isa| [0.05, 0.7, 20.0].map(|t| (isa, t))) {
                let mut row = g.clone();
                isa.dispatch(Prox { activation, t, row: &mut row });
                for (&g, &z) in g.iter().zip(&row) {
                    let mut alone = [g];
                    isa.dispatch(Prox { activation, t, row: &mut alone });
                    assert_eq!(alone[0].to_bits(), z.to_bits(), "{activation:?}, t = {t}, g = {g}");
                }
            }
        }
    }
}
