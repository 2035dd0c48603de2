//! Normalised maps `F / norm(F)` for given inputs: boxes of normalised vectors, then Theorem 4 (one vector, or groups that
//! do not interact: `kappa`; interacting groups: twice the strong degree on the box).

use subdeq_map::{Normalisation, PNorm};

use crate::bound::Upper;
use crate::certificate::{Attempt, Theorem};
use crate::certify::stated_norm;
use crate::closing::log_jacobian;
use crate::ibp;
use crate::interval::Interval;
use crate::operator::{BoxProduct, Products};
use crate::response::Layer;

/// A box that contains every fixed point and every iterate from the second on.
struct NormalisedBox {
    lower: Vec<f64>,
    upper: Vec<f64>,
    steps: usize,
}

/// The theorem, the factor in Hilbert's metric, and the number of propagation steps behind it.
pub(crate) fn prove(
    layer: &Layer<'_>,
    norm: Normalisation,
    tried: &mut Vec<Attempt>,
) -> Option<(Theorem, f64, usize)> {
    let interact = norm.groups.interact(layer.operator);
    let theorem = if interact { Theorem::NormalisedInteracting } else { Theorem::NormalisedGeneral };
    let Some((found, groups)) = propagate(layer, norm, ibp::MAX_STEPS) else {
        tried.push(Attempt::new(theorem.to_string(), "the map is not bounded and positive", f64::NAN));
        return None;
    };
    let kappa = factor(layer, interact.then_some(&groups), &found);
    let Some(factor) = stated_norm(kappa) else {
        tried.push(Attempt::new(theorem.to_string(), "the factor is not below 1", kappa));
        return None;
    };
    Some((theorem, factor, found.steps))
}

/// `max P + max N`, or for interacting groups `2 max c` or the sharper bound for log-Jacobians without negative entries.
fn factor(layer: &Layer<'_>, interacting: Option<&Vec<Vec<usize>>>, on: &NormalisedBox) -> f64 {
    let drives = log_jacobian::drives(layer, &on.lower, &on.upper);
    let rows = drives.into_iter().enumerate().map(|(i, drive)| log_jacobian::row_sums(layer, i, drive));
    let rows: Vec<log_jacobian::RowSums> = rows.collect();
    let largest = rows.iter().copied().fold(log_jacobian::RowSums::ZERO, log_jacobian::RowSums::max);
    let Some(groups) = interacting else { return (largest.positive + largest.negative).get() };
    let twice = Upper::new(2.0) * largest.absolute;
    twice.min(by_groups(layer, groups, on, &rows).unwrap_or(twice)).get()
}

/// `max_g max_{i,k in g} sum_g' max(r_i^g', r_k^g')`, `r_i^g'` a bound of row `i`'s sum over group `g'`: at most the whole row's sum,
/// and at most the steepest `phi'/F` times what the group contributes.
fn by_groups(
    layer: &Layer<'_>,
    groups: &[Vec<usize>],
    on: &NormalisedBox,
    rows: &[log_jacobian::RowSums],
) -> Option<Upper> {
    let n = layer.len();
    let nonnegative = layer.response.is_increasing() && layer.operator.weights().iter().all(|w| *w >= 0.0);
    if !nonnegative || n > GROUPED_LIMIT {
        return None;
    }
    let (lower, upper) = layer.operator.enclose(&on.lower, &on.upper);
    let mut group_of = vec![0; n];
    groups.iter().enumerate().for_each(|(g, group)| group.iter().for_each(|&i| group_of[i] = g));
    let shares: Vec<Vec<Upper>> = (0..n)
        .map(|i| {
            let u = Interval::new(lower[i], upper[i]) + layer.inner.at(i);
            let value = layer.response.enclose(u) + layer.outer.at(i);
            let steepest = Upper::new(layer.response.slope(u).magnitude()).over(value.lo);
            let mut parts = vec![Upper::ZERO; groups.len()];
            for (j, w) in layer.operator.row(i) {
                parts[group_of[j]] = parts[group_of[j]] + Upper::new(w) * Upper::new(on.upper[j]);
            }
            parts.into_iter().map(|part| (steepest * part).min(rows[i].absolute)).collect()
        })
        .collect();
    let pair = |i: usize, k: usize| shares[i].iter().zip(&shares[k]).map(|(a, b)| a.max(*b)).sum::<Upper>();
    let pairs =
        groups.iter().flat_map(|group| group.iter().flat_map(|&i| group.iter().map(move |&k| (i, k))));
    Some(pairs.map(|(i, k)| pair(i, k)).fold(Upper::ZERO, Upper::max))
}

/// Unknowns up to which rows are compared pair by pair.
const GROUPED_LIMIT: usize = 256;

fn propagate(
    layer: &Layer<'_>,
    norm: Normalisation,
    max_steps: usize,
) -> Option<(NormalisedBox, Vec<Vec<usize>>)> {
    let groups = norm.groups.members(layer.operator).ok()?;
    let (lower, upper) = layer.image_of_everything()?;
    if !lower.iter().all(|l| *l > 0.0) {
        return None;
    }
    let image: Vec<Interval> = lower.iter().zip(&upper).map(|(&l, &h)| Interval::new(l, h)).collect();
    let start = normalise(norm.p, &groups, &image);
    let mut state = NormalisedBox {
        lower: start.iter().map(|x| x.lo).collect(),
        upper: start.iter().map(|x| x.hi).collect(),
        steps: 0,
    };
    let n = layer.len();
    let mut product = BoxProduct::new(layer.operator);
    let (mut pre_lower, mut pre_upper) = (vec![0.0; n], vec![0.0; n]);
    let mut width = f64::INFINITY;
    while state.steps < max_steps {
        let before = width;
        width = state.lower.iter().zip(&state.upper).map(|(l, h)| h - l).sum();
        if !(width < before * (1.0 - 1e-4)) {
            break;
        }
        state.steps += 1;
        product.enclose(&state.lower, &state.upper, &mut pre_lower, &mut pre_upper);
        let image: Vec<Interval> = (0..n)
            .map(|i| {
                let u = Interval::new(pre_lower[i], pre_upper[i]) + layer.inner.at(i);
                layer.response.enclose(u) + layer.outer.at(i)
            })
            .collect();
        for (i, x) in normalise(norm.p, &groups, &image).into_iter().enumerate() {
            state.lower[i] = state.lower[i].max(x.lo);
            state.upper[i] = state.upper[i].min(x.hi).max(state.lower[i]);
        }
    }
    Some((state, groups))
}

/// The hull of `{f / norm(f)}` over a box of positive vectors: entry `i` increases in `f_i` and decreases in all others.
fn normalise(p: PNorm, groups: &[Vec<usize>], f: &[Interval]) -> Vec<Interval> {
    let mut out = f.to_vec();
    for group in groups {
        for (position, &i) in group.iter().enumerate() {
            let others = || group.iter().enumerate().filter(move |(k, _)| *k != position).map(|(_, &j)| f[j]);
            let norm = |own: f64, end: fn(Interval) -> f64| -> Interval {
                let values = others().map(end).chain([own]);
                match p {
                    PNorm::Inf => Interval::point(Upper::largest(values).get()),
                    PNorm::Finite(p) => values
                        .map(|x| Interval::point(x).powf(p))
                        .fold(Interval::point(0.0), |sum, x| sum + x)
                        .powf(1.0 / p),
                }
            };
            let lower = Interval::point(f[i].lo) / norm(f[i].lo, |x| x.hi);
            let upper = Interval::point(f[i].hi) / norm(f[i].hi, |x| x.lo);
            out[i] = Interval::new(lower.lo.max(0.0), upper.hi.min(1.0));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use subdeq_map::{Activation, Groups, Map, Operator};

    use super::*;
    use crate::certificate::Scope;

    #[test]
    fn mild_signed_weights_are_proved_and_strong_ones_are_not() {
        let norm = Normalisation { p: PNorm::Inf, groups: Groups::WholeVector };
        let map = Map::single(Activation::Tanh, 1.603).unwrap().normalised(norm.p, norm.groups).unwrap();
        let y = Scope::Sample { y: vec![0.0; 2] };
        let mut tried = Vec::new();
        let mut prove_scaled = |c: f64| {
            let w = Operator::dense(2, vec![c, -c, -c, c]).unwrap();
            let layer = Layer::new(&map, &w, &y).unwrap();
            prove(&layer, norm, &mut tried).map(|(_, factor, _)| factor)
        };
        assert!(prove_scaled(0.2).is_some());
        // E2: several fixed points for every c > 0.8015.
        assert!(prove_scaled(0.81).is_none());
        assert!(prove_scaled(5.0).is_none());
    }

    #[test]
    fn the_hull_contains_sampled_quotients() {
        let f = [Interval::new(0.5, 2.0), Interval::new(1.0, 1.5), Interval::new(0.1, 3.0)];
        for p in [PNorm::Inf, PNorm::Finite(1.0), PNorm::Finite(2.0), PNorm::Finite(10.0)] {
            let hull = normalise(p, &[vec![0, 1, 2]], &f);
            for k in 0..8 {
                let corner: Vec<f64> =
                    (0..3).map(|i| if k >> i & 1 == 0 { f[i].lo } else { f[i].hi }).collect();
                let norm = p.norm(&corner);
                for i in 0..3 {
                    assert!(hull[i].lo <= corner[i] / norm && corner[i] / norm <= hull[i].hi + 1e-15);
                }
            }
        }
    }
}
