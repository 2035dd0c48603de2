//! What a trained model computes, in texts that any program can read: equation, layers in their order, classes.

use serde_json::{Value, json};
use subdeq_engine::network::NORM_EPSILON;
use subdeq_engine::{Backend, Operator};
use subdeq_map::Padding;

use super::DataConfig;
use super::model_file::{ModelNote, equation_prefix, weight_shapes};
use super::stored_arrays::Texts;
use crate::model::{BlockSpec, Classifier, CoreSpec, block_prefix};
use crate::{OdeActivation, Result};

/// How images become the numbers of a dense layer, and pooled images those of the last.
const FLATTENED: &str = "channel x row x column";
/// The same of reflected states that are pooled.
const PIXEL_BY_PIXEL: &str = "row x column x channel";

/// The texts of a model's file, by their keys; those of lists and objects are JSON.
///
/// # Errors
/// Parameters that are not finite.
pub(super) fn description<D: Backend>(model: &mut Classifier<D>, note: &ModelNote) -> Result<Texts> {
    let DataConfig { white, mean, deviation, class_names, .. } = &note.config.data;
    let classes = match class_names.len() {
        0 => (0..model.spec().classes).map(|class| class.to_string()).collect(),
        _ => class_names.clone(),
    };
    let standardisation = json!({ "white": white, "mean": mean, "deviation": deviation });
    let layout = if model.spec().pool.is_some() { "conv" } else { "dense" };
    let mut texts = Texts::from(
        [
            ("equation", equations(model)?),
            ("layout", layout.to_owned()),
            ("layers", Value::from(layers(model)?).to_string()),
            ("standardisation", standardisation.to_string()),
            ("classes", json!(classes).to_string()),
        ]
        .map(|(key, text)| (key.to_owned(), text)),
    );
    if let Some(certificate) = &note.certificate {
        texts.insert("certificate".to_owned(), certificate.to_string());
    }
    Ok(texts)
}

/// What is between injection and pooling, block after block.
fn equations<D: Backend>(model: &mut Classifier<D>) -> Result<String> {
    let blocks: Result<Vec<String>> = (0..model.block_count()).map(|block| equation(model, block)).collect();
    Ok(blocks?.join("; then "))
}

/// That of one block.
fn equation<D: Backend>(model: &mut Classifier<D>, block: usize) -> Result<String> {
    if let Some(layer) = model.equilibrium_of(block) {
        return Ok(layer.equation()?.to_string());
    }
    let text = match &model.spec().blocks()[block].1.core {
        CoreSpec::NeuralOde { activation: OdeActivation::Relu, .. } => {
            "dz/dt = relu(W z), z(0) = y, output z(1)"
        }
        CoreSpec::NeuralOde { activation: OdeActivation::Tanh, .. } => {
            "dz/dt = tanh(W z), z(0) = y, output z(1)"
        }
        _ => "z = tanh(W y + b)",
    };
    Ok(text.to_owned())
}

/// The layers in the order of the forward pass, each with the names of its arrays.
fn layers<D: Backend>(model: &mut Classifier<D>) -> Result<Vec<Value>> {
    let blocks = model.spec().blocks();
    let images = model.spec().pool.is_some();
    let mut layers = vec![json!({ "layer": "standardise" })];
    if !images {
        layers.push(json!({ "layer": "flatten", "order": FLATTENED }));
    }
    for (index, (_, block)) in blocks.iter().enumerate() {
        let (count, rectified) = model.injections(index);
        layers.extend((0..count).map(|k| injection(index, k, block, rectified)));
        layers.push(core(model, index, &block.core)?);
        if let Some(factor) = model.reflection(index) {
            layers.push(json!({ "layer": "reflect", "equation": "factor z - y", "factor": factor }));
        } else if index + 1 == blocks.len() {
            layers.push(batch_norm("norm"));
        }
        layers.extend(block.pool.map(|window| json!({ "layer": "average-pool", "window": window })));
    }
    if images {
        let order = if model.spec().lipschitz.is_some() { PIXEL_BY_PIXEL } else { FLATTENED };
        layers.push(json!({ "layer": "flatten", "order": order }));
    }
    layers.push(json!({ "layer": "linear", "weight": "head.weight", "bias": "head.bias" }));
    Ok(layers)
}

/// An injection of a block.
fn injection(block: usize, k: usize, spec: &BlockSpec, rectified: bool) -> Value {
    let name = format!("{}injection{k}", block_prefix(block));
    let mut layer = json!({
        "layer": "injection", "weight": format!("{name}.weight"), "bias": format!("{name}.bias"),
        "padding": spec.pool.map(|_| Padding::Zero), "norm": spec.injection_norm.then(|| batch_norm(&format!("{name}.norm"))),
        "rectified": rectified,
    });
    if spec.stride > 1 {
        layer["stride"] = spec.stride.into();
    }
    layer
}

/// A batch norm by the name of its arrays.
fn batch_norm(name: &str) -> Value {
    let array = |part: &str| format!("{name}.{part}");
    json!({
        "layer": "batch-norm", "mean": array("running_mean"), "variance": array("running_variance"),
        "epsilon": NORM_EPSILON, "scale": array("scale"), "offset": array("offset"),
    })
}

/// The layer between injection and pooling.
fn core<D: Backend>(model: &mut Classifier<D>, block: usize, spec: &CoreSpec) -> Result<Value> {
    let equation = equation(model, block)?;
    let images = model.spec().pool.is_some();
    let Some(layer) = model.equilibrium_of(block) else {
        let kind = match spec {
            CoreSpec::NeuralOde { .. } => "neural-ode",
            _ => "explicit",
        };
        return Ok(json!({
            "layer": kind, "equation": equation, "weights": { "W": format!("{}core.weight", block_prefix(block)) },
            "padding": images.then_some(Padding::Zero),
        }));
    };
    let padding = match layer.map().operator() {
        Operator::Conv { padding, .. } => Some(padding),
        Operator::Dense { .. } => None,
    };
    let (names, prefix) = (weight_shapes(layer.map()), equation_prefix(block));
    let weights: serde_json::Map<String, Value> =
        names.into_iter().map(|(name, _)| (name.clone(), format!("{prefix}{name}").into())).collect();
    Ok(json!({
        "layer": "equilibrium", "equation": equation, "map": layer.equation()?, "weights": weights,
        "padding": padding, "start": layer.start(),
    }))
}
