//! Boxes propagated again, row by row and operation by operation.

use super::Recheck;
use super::rows::{Scalar, injections, row, sum};
use crate::certificate::Scope;
use crate::interval::Interval;
use crate::map::{MapSpec, Normalisation, PNorm};
use crate::model::members;
use crate::operator::Operator;

/// A box and the preactivations over it.
pub(super) struct State {
    pub(super) on: Vec<Interval>,
    pub(super) preactivations: Vec<Interval>,
}

/// Bounds of the row sums of the log-Jacobian, largest over the rows.
pub(super) struct Sums {
    pub(super) absolute: f64,
    pub(super) positive: f64,
    pub(super) negative: f64,
}

/// The inputs allowed in entry `i`.
fn input(scope: &Scope, i: usize) -> Interval {
    match scope {
        Scope::AllInputs => Interval::new(0.0, f64::INFINITY),
        Scope::InputSet { ymax } => Interval::new(0.0, ymax[i]),
        Scope::Sample { y } => Interval::point(y[i]),
    }
}

/// Preactivations and values of the unnormalised map over a box.
pub(super) fn evaluate(
    map: &MapSpec,
    scope: &Scope,
    weights: &Operator,
    on: &[Interval],
) -> (Vec<Interval>, Vec<Interval>) {
    let scalar = Scalar::of(map);
    (0..on.len())
        .map(|i| {
            let (inner, outer) = injections(map, input(scope, i));
            let u = sum(&row(weights, i, map.absolute_weights), on) + inner;
            (u, scalar.value(u) + outer)
        })
        .unzip()
}

fn image_of_everything(map: &MapSpec, scope: &Scope, n: usize) -> Result<Vec<Interval>, Recheck> {
    let scalar = Scalar::of(map);
    if !scalar.is_increasing() {
        return Err(Recheck::new("boxes need an increasing activation"));
    }
    let range = scalar.value(Interval::ALL);
    let start: Vec<Interval> = (0..n).map(|i| range + injections(map, input(scope, i)).1).collect();
    let bounded = start.iter().all(|x| x.lo.is_finite() && x.hi.is_finite());
    if bounded { Ok(start) } else { Err(Recheck::new("the map is not bounded, so there is no box")) }
}

/// `steps` steps of interval propagation from the image of everything.
pub(super) fn propagate(
    map: &MapSpec,
    scope: &Scope,
    weights: &Operator,
    steps: usize,
) -> Result<State, Recheck> {
    let mut on = image_of_everything(map, scope, weights.len())?;
    // More steps than any certificate of ours has would only cost time.
    for _ in 0..steps.min(1000) {
        let (_, image) = evaluate(map, scope, weights, &on);
        for (on, image) in on.iter_mut().zip(image) {
            *on = on.intersect(image).unwrap_or(*on);
        }
    }
    let (preactivations, _) = evaluate(map, scope, weights, &on);
    Ok(State { on, preactivations })
}

/// The same for a normalised map.
pub(super) fn propagate_normalised(
    map: &MapSpec,
    scope: &Scope,
    weights: &Operator,
    norm: Normalisation,
    steps: usize,
) -> Result<State, Recheck> {
    let groups = members(norm.groups, weights);
    let start = image_of_everything(map, scope, weights.len())?;
    if start.iter().any(|x| !(x.lo > 0.0)) {
        return Err(Recheck::new("the map is not positive"));
    }
    let mut on = hull_of_quotients(norm.p, &groups, &start);
    for _ in 0..steps.min(1000) {
        let (_, image) = evaluate(map, scope, weights, &on);
        for (on, image) in on.iter_mut().zip(hull_of_quotients(norm.p, &groups, &image)) {
            *on = on.intersect(image).unwrap_or(*on);
        }
    }
    let (preactivations, _) = evaluate(map, scope, weights, &on);
    Ok(State { on, preactivations })
}

/// `{f_i / norm(f)}`: `1 / norm(f / f_i)`, where `f_i / f_i = 1` and the other quotients are independent of it.
fn hull_of_quotients(p: PNorm, groups: &[Vec<usize>], f: &[Interval]) -> Vec<Interval> {
    let mut out = f.to_vec();
    let one = Interval::point(1.0);
    for group in groups {
        for &i in group {
            let quotients = group.iter().filter(|&&k| k != i).map(|&k| f[k] / f[i]).chain([one]);
            let norm = match p {
                PNorm::Inf => quotients.fold(one, |a, b| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi))),
                PNorm::Finite(p) => {
                    quotients.fold(Interval::point(0.0), |sum, q| sum + q.powf(p)).powf(1.0 / p)
                }
            };
            out[i] = one / norm;
        }
    }
    out
}

/// The row sums over a box of positive vectors, each row's range of `W z` cut into many pieces.
pub(super) fn row_sums(map: &MapSpec, scope: &Scope, weights: &Operator, state: &State) -> Sums {
    const PIECES: usize = 256;
    let scalar = Scalar::of(map);
    let mut sums = Sums { absolute: 0.0, positive: 0.0, negative: 0.0 };
    for i in 0..state.on.len() {
        let row = row(weights, i, map.absolute_weights);
        let part = |positive: bool| {
            let entries: Vec<(usize, f64)> =
                row.iter().filter(|(_, w)| (*w > 0.0) == positive).map(|&(j, w)| (j, w.abs())).collect();
            sum(&entries, &state.on)
        };
        let (a, c) = (part(true), part(false));
        let range = a - c;
        let (inner, outer) = injections(map, input(scope, i));
        for piece in 0..PIECES {
            let cut = |k: usize| range.lo + (range.hi - range.lo) * (k as f64 / PIECES as f64);
            let end = if piece + 1 == PIECES { range.hi } else { cut(piece + 1) };
            // A hull, because in a very narrow range rounding can turn the two ends around.
            let t = Interval::point(cut(piece)).hull(Interval::point(end));
            let value = scalar.value(t + inner) + outer;
            let quotient = if value.lo > 0.0 {
                (scalar.slope(t + inner).magnitude() / value.lo).next_up()
            } else {
                f64::INFINITY
            };
            let largest = |x: f64, y: f64| (x.min(y).max(0.0) * quotient).next_up();
            let (a_top, c_top) = (Interval::point(a.hi), Interval::point(c.hi));
            sums.absolute = sums.absolute.max(largest((t + c_top + c_top).hi, (a_top + a_top - t).hi));
            sums.positive = sums.positive.max(largest(a.hi, (t + c_top).hi));
            sums.negative = sums.negative.max(largest(c.hi, (a_top - t).hi));
        }
    }
    sums
}
