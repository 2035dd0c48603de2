//! Boxes propagated again.

use subdeq_map::{Map, Normalisation, Operator, PNorm};

use super::Recheck;
use super::rows::{box_product, drives};
use super::scalar::{Scalar, injections};
use crate::bound::Upper;
use crate::certificate::Scope;
use crate::interval::Interval;

/// A box and the preactivations over it.
pub(super) struct State {
    pub(super) on: Vec<Interval>,
    pub(super) preactivations: Vec<Interval>,
}

/// Bounds of the row sums of the log-Jacobian, largest over the rows.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) absolute: Upper,
    pub(super) positive: Upper,
    pub(super) negative: Upper,
}

/// Preactivations and values of the unnormalised map over a box.
pub(super) fn evaluate(
    map: &Map,
    scope: &Scope,
    weights: &Operator,
    on: &[Interval],
) -> (Vec<Interval>, Vec<Interval>) {
    let scalar = Scalar::of(map);
    box_product(weights, on)
        .into_iter()
        .enumerate()
        .map(|(i, product)| {
            let (inner, outer) = injections(map, scope.entry(i));
            let u = product + inner;
            (u, scalar.value(u) + outer)
        })
        .unzip()
}

/// The box that holds the image of every real state.
pub(super) fn image_of_everything(map: &Map, scope: &Scope, n: usize) -> Result<Vec<Interval>, Recheck> {
    let scalar = Scalar::of(map);
    let range = scalar.value(Interval::ALL);
    let start: Vec<Interval> = (0..n).map(|i| range + injections(map, scope.entry(i)).1).collect();
    let bounded = start.iter().all(|x| x.is_bounded());
    if bounded { Ok(start) } else { Err(Recheck::new("the map is not bounded, so there is no box")) }
}

/// `steps` steps of interval propagation from the image of everything.
pub(super) fn propagate(
    map: &Map,
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
    map: &Map,
    scope: &Scope,
    weights: &Operator,
    norm: Normalisation,
    steps: usize,
) -> Result<State, Recheck> {
    let groups = norm.groups.members(weights).map_err(|bad| Recheck::new(bad.to_string()))?;
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
            let quotient = one / norm;
            out[i] = quotient.intersect(Interval::new(0.0, 1.0)).unwrap_or(quotient);
        }
    }
    out
}

/// The row sums over a box of positive vectors. Each row's range of `W z` is cut into many pieces, unless none of its sums
/// exceeds `settled` without.
pub(super) fn row_sums(
    map: &Map,
    scope: &Scope,
    weights: &Operator,
    state: &State,
    settled: f64,
) -> Result<Vec<Sums>, Recheck> {
    // As many as the proof is found with: more would show smaller factors than are claimed.
    const PIECES: usize = 64;
    // Zero itself may be on its border: no image is zero, or a row sum would be unknown.
    if state.on.iter().any(|x| !(x.lo >= 0.0)) {
        return Err(Recheck::new("the box reaches states that are not positive"));
    }
    let (excitation, inhibition) = drives(weights, &state.on);
    let row = Rows { map, scope, scalar: Scalar::of(map) };
    Ok((0..state.on.len())
        .map(|i| {
            let uncut = row.sums(i, excitation[i], inhibition[i], 1);
            if uncut.absolute.get() <= settled {
                uncut
            } else {
                row.sums(i, excitation[i], inhibition[i], PIECES)
            }
        })
        .collect())
}

/// The sharper factor of interacting groups whose log-Jacobian has no negative entries: any two rows of a group, each group's share of
/// the larger of them.
pub(super) fn by_groups(
    map: &Map,
    scope: &Scope,
    weights: &Operator,
    state: &State,
    groups: &[Vec<usize>],
    rows: &[Sums],
) -> Option<Upper> {
    const MOST: usize = 256;
    let scalar = Scalar::of(map);
    let n = weights.len();
    if n > MOST || !scalar.is_increasing() || weights.weights().iter().any(|w| *w < 0.0) {
        return None;
    }
    let (u, f) = evaluate(map, scope, weights, &state.on);
    let mut shares = vec![Upper::ZERO; n * groups.len()];
    for i in 0..n {
        let steepest = Upper::new(scalar.slope(u[i]).magnitude()).over(f[i].lo);
        let row = weights.row(i);
        for (g, group) in groups.iter().enumerate() {
            let members = row.iter().filter(|(j, _)| group.contains(j));
            let part: Upper = members.map(|&(j, w)| Upper::new(w) * Upper::new(state.on[j].hi)).sum();
            shares[i * groups.len() + g] = (steepest * part).min(rows[i].absolute);
        }
    }
    let of = |i: usize| &shares[i * groups.len()..][..groups.len()];
    let mut largest = Upper::ZERO;
    for group in groups {
        for &i in group {
            for &k in group {
                largest = largest.max(of(i).iter().zip(of(k)).map(|(a, b)| a.max(*b)).sum());
            }
        }
    }
    Some(largest)
}

/// What is the same for every row.
struct Rows<'a> {
    map: &'a Map,
    scope: &'a Scope,
    scalar: Scalar,
}

impl Rows<'_> {
    fn sums(&self, i: usize, a: Interval, c: Interval, pieces: usize) -> Sums {
        let range = a - c;
        let mut sums = Sums { absolute: Upper::ZERO, positive: Upper::ZERO, negative: Upper::ZERO };
        if !range.is_bounded() {
            return Sums { absolute: Upper::UNKNOWN, positive: Upper::UNKNOWN, negative: Upper::UNKNOWN };
        }
        let (inner, outer) = injections(self.map, self.scope.entry(i));
        for piece in 0..pieces {
            let cut = |k: usize| range.lo + (range.hi - range.lo) * (k as f64 / pieces as f64);
            let end = if piece + 1 == pieces { range.hi } else { cut(piece + 1) };
            // A hull, because in a very narrow range rounding can turn the two ends around.
            let t = Interval::point(cut(piece)).hull(Interval::point(end));
            let value = self.scalar.value(t + inner) + outer;
            let quotient = Upper::new(self.scalar.slope(t + inner).magnitude()).over(value.lo);
            let least = |x: f64, y: f64| Upper::new(x).min(Upper::new(y)) * quotient;
            let (a_top, c_top) = (Interval::point(a.hi), Interval::point(c.hi));
            sums.absolute = sums.absolute.max(least((t + c_top + c_top).hi, (a_top + a_top - t).hi));
            sums.positive = sums.positive.max(least(a.hi, (t + c_top).hi));
            sums.negative = sums.negative.max(least(c.hi, (a_top - t).hi));
        }
        sums
    }
}
