//! What becomes of a row of preactivations, forward and backward, for every form of map.
//!
//! The linear kernels know nothing of forms, and nothing here knows where the rows came from. A row of a state comes with
//! `u` (and `w`, for the forms with two operators) still in the first-level cache.

use crate::cpu::activation::{activate, activate_with_slope};
use crate::cpu::simd::{Lanes, for_vectors, get, put};
use crate::map::Formula;
use crate::{Injection, ShapedMap};

/// Rows of one sample's injection: `y` and, for the power ratio, the second one.
#[derive(Clone, Copy)]
pub(crate) struct Injected<'a, T> {
    pub first: &'a [T],
    pub second: &'a [T],
}

/// `out <- f(u, w; y) + shift`, before any normalisation. Overwrites `u` and `w`.
///
/// For [`Formula::Gains`] `u` and `w` must already be the products `A h(P z)` and `B h(N z)`.
#[inline(always)]
pub(crate) fn forward_row<V: Lanes>(
    map: &ShapedMap,
    u: &mut [V::Elem],
    w: &mut [V::Elem],
    y: Injected<V::Elem>,
    out: &mut [V::Elem],
) {
    let len = out.len();
    let shift = V::constant(map.shift);
    match (map.formula, map.injection) {
        (Formula::Single, Injection::Inner) => add::<V>(u, y.first),
        (Formula::Divisive { q }, _) => {
            let q = V::constant(q);
            for_vectors!(V, len, |at, count| {
                put(get::<V>(u, at, count) / (q + get::<V>(w, at, count)), u, at, count);
            });
        }
        _ => {}
    }
    for row in [&mut *u, &mut *w].into_iter().take(activated_rows(map)) {
        activate::<V>(map, row);
    }
    match (map.formula, map.injection) {
        (Formula::Single, Injection::Inner) => {
            for_vectors!(V, len, |at, count| put(get::<V>(u, at, count) + shift, out, at, count));
        }
        (Formula::Single, Injection::Outer) | (Formula::Divisive { .. }, _) => {
            add_injection::<V>(u, y.first, shift, out);
        }
        (Formula::SplitSign | Formula::Gains, _) => add_difference::<V>(u, w, y.first, shift, out),
        (Formula::Rational { q }, _) => {
            let q = V::constant(q);
            for_vectors!(V, len, |at, count| {
                let a = get::<V>(u, at, count);
                let r = a / (q + a + get::<V>(w, at, count));
                put(r + (get::<V>(y.first, at, count) + shift), out, at, count);
            });
        }
        (Formula::PowerRatio { p, e }, _) => {
            let (p, e) = (V::constant(p), V::constant(e));
            for_vectors!(V, len, |at, count| {
                let a = get::<V>(u, at, count) + get::<V>(y.first, at, count) + e;
                let b = get::<V>(w, at, count) + get::<V>(y.second, at, count) + e;
                put((a / b).powf(p), out, at, count);
            });
        }
    }
}

/// How many of the two rows of preactivations pass through the activation here.
fn activated_rows(map: &ShapedMap) -> usize {
    match map.formula {
        Formula::Single | Formula::Divisive { .. } => 1,
        Formula::SplitSign => 2,
        Formula::Rational { .. } | Formula::PowerRatio { .. } | Formula::Gains => 0,
    }
}

/// The slopes `d0 = df/du`, `d1 = df/dw` of a row, and `out <- f + shift`. Overwrites `u` and `w`.
///
/// For [`Formula::Gains`] it gives `d0 = h'(u)`, `d1 = h'(w)` and leaves `h(u)`, `h(w)` in `u`, `w`; `out` is not written.
#[inline(always)]
pub(crate) fn slopes_row<V: Lanes>(
    map: &ShapedMap,
    u: &mut [V::Elem],
    w: &mut [V::Elem],
    y: Injected<V::Elem>,
    [d0, d1]: [&mut [V::Elem]; 2],
    out: &mut [V::Elem],
) {
    let len = out.len();
    let shift = V::constant(map.shift);
    match (map.formula, map.injection) {
        (Formula::Single, Injection::Inner) => add::<V>(u, y.first),
        (Formula::Divisive { q }, _) => {
            // w <- the denominator; u and d1 <- the quotient.
            let q = V::constant(q);
            for_vectors!(V, len, |at, count| {
                let b = q + get::<V>(w, at, count);
                let r = get::<V>(u, at, count) / b;
                put(b, w, at, count);
                put(r, u, at, count);
                put(r, d1, at, count);
            });
        }
        _ => {}
    }
    let rows = if matches!(map.formula, Formula::Gains) { 2 } else { activated_rows(map) };
    for (row, slope) in [(&mut *u, &mut *d0), (&mut *w, &mut *d1)].into_iter().take(rows) {
        activate_with_slope::<V>(map, row, slope);
    }
    match (map.formula, map.injection) {
        (Formula::Single, Injection::Inner) => {
            for_vectors!(V, len, |at, count| put(get::<V>(u, at, count) + shift, out, at, count));
        }
        (Formula::Single, Injection::Outer) => add_injection::<V>(u, y.first, shift, out),
        (Formula::SplitSign, _) => {
            for_vectors!(V, len, |at, count| put(-get::<V>(d1, at, count), d1, at, count));
            add_difference::<V>(u, w, y.first, shift, out);
        }
        (Formula::Gains, _) => {}
        (Formula::Divisive { .. }, _) => {
            for_vectors!(V, len, |at, count| {
                let slope = get::<V>(d0, at, count) / get::<V>(w, at, count);
                put(slope, d0, at, count);
                put(-slope * get::<V>(d1, at, count), d1, at, count);
            });
            add_injection::<V>(u, y.first, shift, out);
        }
        (Formula::Rational { q }, _) => {
            let q = V::constant(q);
            for_vectors!(V, len, |at, count| {
                let (a, b) = (get::<V>(u, at, count), q + get::<V>(w, at, count));
                let r = V::one() / (a + b);
                put(b * r * r, d0, at, count);
                put(-a * r * r, d1, at, count);
                put(a * r + (get::<V>(y.first, at, count) + shift), out, at, count);
            });
        }
        (Formula::PowerRatio { p, e }, _) => {
            let (p, e) = (V::constant(p), V::constant(e));
            for_vectors!(V, len, |at, count| {
                let a = get::<V>(u, at, count) + get::<V>(y.first, at, count) + e;
                let b = get::<V>(w, at, count) + get::<V>(y.second, at, count) + e;
                let f = (a / b).powf(p);
                put(p * f / a, d0, at, count);
                put(-p * f / b, d1, at, count);
                put(f, out, at, count);
            });
        }
    }
}

/// `x <- x + y`.
#[inline(always)]
pub(crate) fn add<V: Lanes>(x: &mut [V::Elem], y: &[V::Elem]) {
    for_vectors!(V, x.len(), |at, count| put(get::<V>(x, at, count) + get::<V>(y, at, count), x, at, count));
}

/// `out <- x * y`.
#[inline(always)]
pub(crate) fn multiply<V: Lanes>(x: &[V::Elem], y: &[V::Elem], out: &mut [V::Elem]) {
    for_vectors!(V, out.len(), |at, count| put(
        get::<V>(x, at, count) * get::<V>(y, at, count),
        out,
        at,
        count
    ));
}

#[inline(always)]
fn add_injection<V: Lanes>(s: &[V::Elem], y: &[V::Elem], shift: V, out: &mut [V::Elem]) {
    for_vectors!(V, out.len(), |at, count| {
        put(get::<V>(s, at, count) + (get::<V>(y, at, count) + shift), out, at, count);
    });
}

#[inline(always)]
fn add_difference<V: Lanes>(a: &[V::Elem], b: &[V::Elem], y: &[V::Elem], shift: V, out: &mut [V::Elem]) {
    for_vectors!(V, out.len(), |at, count| {
        let difference = get::<V>(a, at, count) - get::<V>(b, at, count);
        put(difference + (get::<V>(y, at, count) + shift), out, at, count);
    });
}
