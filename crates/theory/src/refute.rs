//! The search for several fixed points: many starts, Newton's method, and a proof of what it found.

use subdeq_map::{Injection, Map, Operator};

use crate::bound::Upper;
use crate::certificate::{Refutation, Scope, States};
use crate::interval::Interval;
use crate::krawczyk::{self, Verified};
use crate::lu;
use crate::model::Model;
use crate::newton;
use crate::operator::Products;
use crate::response::Layer;

/// Larger systems are not searched: each verification inverts a matrix.
const LIMIT: usize = 200;
/// Random starts per input.
const STARTS: usize = 40;
/// Plain iterations per start.
const ITERATIONS: usize = 300;
/// Fixed points closer than this count as one.
const DISTINCT: f64 = 1e-5;

/// Looks for an input of the scope with more than one fixed point among the states in question.
pub(crate) fn search(map: &Map, layer: &Layer<'_>, scope: &Scope) -> Option<Refutation> {
    if layer.len() > LIMIT {
        return None;
    }
    candidates(map, layer, scope).into_iter().find_map(|y| {
        let sample = Scope::Sample { y: y.clone() };
        let layer = Layer::new(map, layer.operator, &sample)?;
        let model = Model::new(&layer, map.normalisation(), LIMIT)?;
        search_input(&model, &y, States::of(map))
    })
}

/// Inputs worth trying.
fn candidates(map: &Map, layer: &Layer<'_>, scope: &Scope) -> Vec<Vec<f64>> {
    let n = layer.len();
    match scope {
        Scope::Sample { y } => vec![y.clone()],
        Scope::InputSet { ymax } => {
            vec![vec![0.0; n], ymax.clone(), ymax.iter().map(|y| 0.5 * y).collect()]
        }
        Scope::NonnegativeInputs | Scope::AllInputs => {
            let mut inputs = vec![vec![0.0; n]];
            inputs.extend(steepest_input(map, layer));
            inputs.extend(steepest_inner_input(map, layer).filter(|y| scope.contains(y)));
            inputs
        }
    }
}

/// The input `y >= 0` for which a point with preactivations as near zero as possible, where the response is steepest, is a
/// fixed point: `z` minimises `|W z|` over `z >= largest response`, `y = z - phi(W z)`.
fn steepest_input(map: &Map, layer: &Layer<'_>) -> Option<Vec<f64>> {
    if map.injection() != Injection::Outer || map.normalisation().is_some() {
        return None;
    }
    let n = layer.len();
    let floor = layer.response.enclose(Interval::ALL).hi;
    if !floor.is_finite() {
        return None;
    }
    let (w, transposed) = (layer.operator, layer.operator.transposed());
    let row_sum = |w: &Operator| Upper::largest(w.row_sums()).get();
    let step = 1.0 / (row_sum(w) * row_sum(&transposed)).max(1e-300);
    let (mut z, mut u, mut gradient) = (vec![floor; n], vec![0.0; n], vec![0.0; n]);
    for _ in 0..2000 {
        w.apply(&z, &mut u);
        transposed.apply(&u, &mut gradient);
        for (z, g) in z.iter_mut().zip(&gradient) {
            *z = (*z - step * g).max(floor);
        }
    }
    w.apply(&z, &mut u);
    Some(z.iter().zip(&u).map(|(z, &u)| (z - layer.response.value(u)).max(0.0)).collect())
}

/// The input inside the activation that brings every preactivation to zero, where the response is steepest, at the state
/// that is then a fixed point.
fn steepest_inner_input(map: &Map, layer: &Layer<'_>) -> Option<Vec<f64>> {
    if map.injection() != Injection::Inner || map.normalisation().is_some() {
        return None;
    }
    let n = layer.len();
    let mut u = vec![0.0; n];
    layer.operator.apply(&vec![layer.response.value(0.0); n], &mut u);
    Some(u.into_iter().map(|u| -u).collect())
}

fn search_input(model: &Model<'_>, y: &[f64], states: States) -> Option<Refutation> {
    let mut uniform = SplitMix(0x5eed);
    let n = model.len();
    let (lower, upper) = model.layer.image_of_everything().unwrap_or_else(|| (vec![0.0; n], vec![4.0; n]));
    let mut found: Vec<Verified> = Vec::new();
    for start in 0..STARTS + 3 {
        let mut z: Vec<f64> = (0..n)
            .map(|i| match start {
                0 => upper[i],
                1 => lower[i],
                2 => 0.5 * (lower[i] + upper[i]),
                _ => lower[i] + (upper[i] - lower[i]) * uniform.next(),
            })
            .collect();
        // The middle goes straight to Newton, which also finds what plain iteration flees.
        iterate(model, &mut z, if start == 2 { 0 } else { ITERATIONS });
        add(model, z, states, &mut found);
        if found.len() >= 2 {
            return Some(several(y, &found));
        }
    }
    let alone = found.into_iter().next()?;
    // The indices of all real fixed points sum to one: all of them must be among the states in question.
    let image = model.layer.image_of_everything();
    let all_count = image.is_some_and(|(lower, _)| states == States::Reals || lower.iter().all(|l| *l > 0.0));
    if !(all_count && model.is_unnormalised() && krawczyk::has_negative_index(model, &alone)) {
        return None;
    }
    // Others must exist: follow the iteration that flees from this one.
    let mut found = vec![alone];
    for sign in [1.0, -1.0] {
        let mut z: Vec<f64> = found[0].point.iter().map(|x| x + sign * 1e-3 * uniform.next()).collect();
        iterate(model, &mut z, ITERATIONS);
        add(model, z, states, &mut found);
    }
    if found.len() >= 2 {
        return Some(several(y, &found));
    }
    let Verified { point, radius } = found.swap_remove(0);
    let determinant = determinant(model, &point);
    Some(Refutation::Index { y: y.to_vec(), point, radius, determinant })
}

fn several(y: &[f64], found: &[Verified]) -> Refutation {
    Refutation::FixedPoints {
        y: y.to_vec(),
        points: found.iter().map(|v| v.point.clone()).collect(),
        radii: found.iter().map(|v| v.radius).collect(),
    }
}

fn iterate(model: &Model<'_>, z: &mut Vec<f64>, iterations: usize) {
    let mut image = vec![0.0; z.len()];
    for _ in 0..iterations {
        model.apply(z, &mut image);
        let moved = Upper::largest(image.iter().zip(z.iter()).map(|(a, b)| (a - b).abs()));
        std::mem::swap(z, &mut image);
        if moved.get() < 1e-13 {
            break;
        }
    }
}

/// Newton's method from `z`; what it finds is kept if it is new, verified, and among the states in question.
fn add(model: &Model<'_>, mut z: Vec<f64>, states: States, found: &mut Vec<Verified>) {
    if !(newton::refine(model, &mut z, 30) < 1e-9) {
        return;
    }
    let far = |v: &Verified| v.point.iter().zip(&z).any(|(a, b)| (a - b).abs() > DISTINCT + v.radius);
    if found.iter().all(far)
        && let Some(verified) = krawczyk::verify(model, &z)
        && (states == States::Reals || verified.point.iter().all(|x| *x > 2.0 * verified.radius))
    {
        found.push(verified);
    }
}

/// `det(I - J)` in floating point: the sign is proved elsewhere, the size is for the reader.
fn determinant(model: &Model<'_>, point: &[f64]) -> f64 {
    let here: Vec<Interval> = point.iter().map(|&x| Interval::point(x)).collect();
    model.one_minus_jacobian(&here).map_or(f64::NAN, |ball| lu::determinant(&ball.centre, model.len()))
}

/// Steele, Lea and Flood's generator: starts need to be spread, not unpredictable.
struct SplitMix(u64);

impl SplitMix {
    /// Uniform on [0, 1).
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}
