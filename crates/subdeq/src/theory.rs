//! Weights and states of a layer in the order that equations are written in: images channel after channel.

use subdeq_engine as engine;
use subdeq_map::{Layout, Operator};

use crate::{Error, Result};

pub(crate) fn layout(operator: &engine::Operator) -> Layout {
    match operator {
        engine::Operator::Dense { .. } => Layout::Dense,
        engine::Operator::Conv { .. } => Layout::Conv,
    }
}

/// One weight array as an operator; `units x units` arrays of a convolution with 3x3 kernels become their centre taps.
pub(crate) fn operator(on: &engine::Operator, weights: &[f64]) -> Result<Operator> {
    let built = match *on {
        engine::Operator::Dense { n } => Operator::dense(n, weights.to_vec()),
        engine::Operator::Conv { channels, height, width, padding, kernel } => {
            let kernel = if kernel == 3 && weights.len() == channels * channels {
                let mut kernel = vec![0.0; 9 * weights.len()];
                weights.iter().enumerate().for_each(|(i, w)| kernel[9 * i + 4] = *w);
                kernel
            } else {
                weights.to_vec()
            };
            Operator::conv(channels, height, width, padding, kernel)
        }
    };
    built.map_err(|error| Error::invalid(error.to_string()))
}

/// The operators of a layer: the signed one of its form, and the hidden one of the gains. Where weights come as `P` and `N`, both
/// signs are read off one matrix.
pub(crate) fn operators(on: &engine::Operator, weights: &[Vec<f64>]) -> Result<(Operator, Option<Operator>)> {
    let joined = |p: &[f64], n: &[f64]| p.iter().zip(n).map(|(p, n)| p - n).collect::<Vec<f64>>();
    match weights {
        [w] => Ok((operator(on, w)?, None)),
        [p, n] => Ok((operator(on, &joined(p, n))?, None)),
        [a, b, p, n] => Ok((operator(on, &joined(a, b))?, Some(operator(on, &joined(p, n))?))),
        _ => Err(Error::invalid(format!("a layer with {} weight arrays", weights.len()))),
    }
}

/// A state in the theory's order: images are channel after channel there, pixel after pixel in the engine.
pub(crate) fn state(on: &engine::Operator, engine_order: &[f64]) -> Vec<f64> {
    match *on {
        engine::Operator::Dense { .. } => engine_order.to_vec(),
        engine::Operator::Conv { channels, height, width, .. } => {
            let pixels = height * width;
            // The power ratio's injections are two images after each other.
            let image = |at: usize| at / (channels * pixels) * channels * pixels;
            (0..engine_order.len())
                .map(|at| {
                    let within = at % (channels * pixels);
                    engine_order[image(at) + within % pixels * channels + within / pixels]
                })
                .collect()
        }
    }
}
