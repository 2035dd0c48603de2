//! Newton's method for fixed points, in plain floating point: good approximations for others to verify.

use crate::bound::Upper;
use crate::interval::Interval;
use crate::lu::{inverse, matvec};
use crate::model::Model;
use crate::response::Layer;

/// Unknowns up to which a Newton step is worth its cubic cost.
const LIMIT: usize = 512;

/// A few Newton steps from `z`, each kept only if the residual shrinks.
pub(crate) fn polish(layer: &Layer<'_>, z: &mut Vec<f64>) {
    if let Some(model) = Model::new(layer, None, LIMIT) {
        refine(&model, z, 6);
    }
}

/// `max |G(z) - z|`.
pub(crate) fn residual(model: &Model<'_>, z: &[f64]) -> f64 {
    let mut image = vec![0.0; z.len()];
    model.apply(z, &mut image);
    Upper::largest(image.iter().zip(z).map(|(g, z)| (g - z).abs())).get()
}

/// At most `steps` Newton steps, each kept only if the residual shrinks; returns the residual.
pub(crate) fn refine(model: &Model<'_>, z: &mut Vec<f64>, steps: usize) -> f64 {
    let n = model.len();
    let mut best = residual(model, z);
    let (mut image, mut step) = (vec![0.0; n], vec![0.0; n]);
    for _ in 0..steps {
        if best < 1e-16 || !best.is_finite() {
            break;
        }
        let here: Vec<Interval> = z.iter().map(|&x| Interval::point(x)).collect();
        let Some(c) = model.one_minus_jacobian(&here).and_then(|ball| inverse(&ball.centre, n)) else {
            break;
        };
        model.apply(z, &mut image);
        image.iter_mut().zip(z.iter()).for_each(|(g, z)| *g -= z);
        matvec(&c, &image, &mut step);
        let next: Vec<f64> = z.iter().zip(&step).map(|(z, s)| z + s).collect();
        let after = residual(model, &next);
        if !(after < best) {
            break;
        }
        (*z, best) = (next, after);
    }
    best
}
