//! The same map, as the theory speaks of it.

use subdeq_engine as engine;
use subdeq_engine::{Form, Injection, PNorm};
use subdeq_theory::activation::Activation;
use subdeq_theory::map::{self as spec, Layout, MapSpec};
use subdeq_theory::operator::{Operator, Padding};

use crate::map::Architecture;
use crate::{Error, Result};

pub(crate) fn layout(operator: &engine::Operator) -> Layout {
    match operator {
        engine::Operator::Dense { .. } => Layout::Dense,
        engine::Operator::Conv { .. } => Layout::Conv,
    }
}

macro_rules! activations {
    ($a:expr, $from:ident, $to:ident) => {
        match $a {
            $from::Tanh => $to::Tanh,
            $from::Sigmoid => $to::Sigmoid,
            $from::Softplus { beta } => $to::Softplus { beta },
            $from::Softsign => $to::Softsign,
            $from::HardTanh { lo, hi } => $to::HardTanh { lo, hi },
            $from::Relu => $to::Relu,
            $from::LeakyRelu { slope } => $to::LeakyRelu { slope },
            $from::Identity => $to::Identity,
        }
    };
}

pub(crate) fn activation(activation: engine::Activation) -> Activation {
    use engine::Activation as From;
    activations!(activation, From, Activation)
}

pub(crate) fn engine_activation(activation: Activation) -> engine::Activation {
    use engine::Activation as To;
    activations!(activation, Activation, To)
}

/// The map without its weights.
pub(crate) fn map_spec(architecture: &Architecture, layout: Layout) -> MapSpec {
    let form = match architecture.form {
        Form::Single if architecture.is_monotone() => spec::Form::Monotone { margin: 0.0 },
        Form::Single => spec::Form::Single,
        Form::SplitSign => spec::Form::SplitSign,
        Form::Divisive { q } => spec::Form::Divisive { q },
        Form::Rational { q } => spec::Form::Rational { q },
        Form::PowerRatio { p, e } => spec::Form::PowerRatio { p, e },
        Form::Gains => spec::Form::Gains { tie: architecture.tie },
    };
    let norm = |norm| match norm {
        PNorm::Inf => spec::PNorm::Inf,
        PNorm::P(p) => spec::PNorm::Finite(p),
    };
    let inner =
        architecture.injection == Injection::Inner || matches!(architecture.form, Form::PowerRatio { .. });
    MapSpec {
        name: architecture.name.clone(),
        form,
        activation: activation(architecture.activation),
        // The engine's base is inside the power and its shift outside; without a power they are one.
        shift: if architecture.power == 1.0 {
            architecture.base + architecture.shift
        } else {
            architecture.base
        },
        power: architecture.power,
        injection: if inner { spec::Injection::Inner } else { spec::Injection::Outer },
        absolute_weights: false,
        requires: None,
        normalisation: architecture.norm.map(|p| spec::Normalisation::of_layout(norm(p), layout)),
    }
}

/// One weight array as an operator; `units x units` arrays of a convolution become their centre taps.
pub(crate) fn operator(on: &engine::Operator, weights: &[f64]) -> Result<Operator> {
    let built = match *on {
        engine::Operator::Dense { n } => Operator::dense(n, weights.to_vec()),
        engine::Operator::Conv { channels, height, width, padding, .. } => {
            let kernel = if weights.len() == channels * channels {
                let mut kernel = vec![0.0; 9 * weights.len()];
                weights.iter().enumerate().for_each(|(i, w)| kernel[9 * i + 4] = *w);
                kernel
            } else {
                weights.to_vec()
            };
            let padding = match padding {
                engine::Padding::Zero => Padding::Zero,
                engine::Padding::Circular => Padding::Circular,
            };
            Operator::conv(channels, height, width, padding, kernel)
        }
    };
    built.map_err(|error| Error::invalid(error.to_string()))
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
