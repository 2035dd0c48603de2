//! Interval bound propagation: nested boxes that contain every fixed point (the tight mixed-monotone embedding).

use crate::interval::Interval;
use crate::operator::BoxProduct;
use crate::response::Layer;

/// The most steps that [`propagate`] takes.
pub(crate) const MAX_STEPS: usize = 50;
/// It stops when the total width shrinks by less than this share in a step.
const LEAST_SHRINKAGE: f64 = 1e-4;
/// A mean width at which a box serves every test: on a narrower one the slopes differ by less than any test resolves.
pub(crate) const SETTLED: f64 = 1e-7;

/// A box `B` with `F(B)` inside `B` that contains every fixed point of the layer, for each of its inputs.
pub(crate) struct Propagated {
    /// Lower corner of the box.
    pub(crate) lower: Vec<f64>,
    /// Upper corner.
    pub(crate) upper: Vec<f64>,
    /// The preactivations `W z + y'` over the box.
    pub(crate) preactivations: Vec<Interval>,
    /// Steps taken after the image of everything.
    pub(crate) steps: usize,
}

/// Propagates the image of everything until it stops shrinking or its mean width is at most `settled`; `None` where `F` is not
/// bounded. Every trajectory enters box `k` after `k + 1` iterations.
pub(crate) fn propagate(layer: &Layer<'_>, max_steps: usize, settled: f64) -> Option<Propagated> {
    let (lower, upper) = layer.image_of_everything()?;
    let n = layer.len();
    let mut product = BoxProduct::new(layer.operator);
    let (mut pre_lower, mut pre_upper) = (vec![0.0; n], vec![0.0; n]);
    let mut state = Propagated { lower, upper, preactivations: Vec::with_capacity(n), steps: 0 };
    let mut width = f64::INFINITY;
    loop {
        product.enclose(&state.lower, &state.upper, &mut pre_lower, &mut pre_upper);
        state.preactivations.clear();
        for i in 0..n {
            state.preactivations.push(Interval::new(pre_lower[i], pre_upper[i]) + layer.inner.at(i));
        }
        let before = width;
        width = state.lower.iter().zip(&state.upper).map(|(l, h)| h - l).sum();
        // Negated so that a width that is not a number stops as well.
        let shrinks = width < before * (1.0 - LEAST_SHRINKAGE);
        if !shrinks || width <= settled * n as f64 || state.steps == max_steps {
            return Some(state);
        }
        state.steps += 1;
        for i in 0..n {
            let image = layer.response.enclose(state.preactivations[i]) + layer.outer.at(i);
            // Both boxes contain every fixed point; the intersection undoes what rounding widened.
            state.lower[i] = state.lower[i].max(image.lo);
            state.upper[i] = state.upper[i].min(image.hi).max(state.lower[i]);
        }
    }
}

#[cfg(test)]
mod tests {
    use subdeq_map::{Activation, Map, Operator};

    use super::*;
    use crate::certificate::Scope;

    #[test]
    fn shrinks_to_the_fixed_point_of_a_mild_layer_and_stalls_around_several() {
        let map = Map::single(Activation::Tanh, 1.2).unwrap();
        let mild = Operator::dense(2, vec![0.3, -0.2, 0.1, 0.2]).unwrap();
        let zero = Scope::Sample { y: vec![0.0; 2] };
        let layer = Layer::new(&map, &mild, &zero).unwrap();
        let found = propagate(&layer, MAX_STEPS, 0.0).unwrap();
        let mut z = vec![1.0; 2];
        for _ in 0..200 {
            let mut next = vec![0.0; 2];
            layer.apply(&z, &mut next);
            z = next;
        }
        for ((lower, upper), z) in found.lower.iter().zip(&found.upper).zip(&z) {
            assert!(lower <= z && z <= upper && upper - lower < 1e-10);
        }
        let several = Operator::dense(2, vec![2.0, -2.0, 0.0, 0.0]).unwrap();
        let layer = Layer::new(&map, &several, &zero).unwrap();
        let found = propagate(&layer, MAX_STEPS, 0.0).unwrap();
        assert!(found.lower[0] < 0.2425 && found.upper[0] > 2.1575);
    }

    #[test]
    fn an_unbounded_activation_has_no_box() {
        let map = Map::single(Activation::Relu, 1.2).unwrap();
        let w = Operator::dense(1, vec![0.5]).unwrap();
        assert!(propagate(&Layer::new(&map, &w, &Scope::NonnegativeInputs).unwrap(), 5, 0.0).is_none());
    }
}
