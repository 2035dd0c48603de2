//! What a trained model computes, in texts that any program can read: equation, layers in their order, classes.

use serde_json::{Value, json};
use subdeq_engine::network::NORM_EPSILON;
use subdeq_engine::{Backend, Operator};
use subdeq_map::Padding;

use super::DataConfig;
use super::model_file::{EQUATION, ModelNote, weight_shapes};
use super::stored_arrays::Texts;
use crate::model::{Classifier, CoreSpec};
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
            ("equation", equation(model)?),
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

/// What is between injection and batch norm.
fn equation<D: Backend>(model: &mut Classifier<D>) -> Result<String> {
    if let Some(layer) = model.equilibrium() {
        return Ok(layer.equation()?.to_string());
    }
    let text = match &model.spec().core {
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
    let (pool, rectified, normed) =
        (model.spec().pool, model.rectifies_injection(), model.spec().injection_norm);
    let images = |padding: Padding| pool.map(|_| padding);
    let injection = |k: usize| {
        json!({
            "layer": "injection", "weight": format!("injection{k}.weight"), "bias": format!("injection{k}.bias"),
            "padding": images(Padding::Zero), "norm": normed.then(|| batch_norm(&format!("injection{k}.norm"))),
            "rectified": rectified,
        })
    };
    let mut layers = vec![json!({ "layer": "standardise" })];
    if pool.is_none() {
        layers.push(json!({ "layer": "flatten", "order": FLATTENED }));
    }
    layers.extend((0..model.injection_count()).map(injection));
    layers.push(core(model)?);
    let reflected = model.reflection();
    match reflected {
        None => layers.push(batch_norm("norm")),
        Some(factor) => layers.push(json!({ "layer": "reflect", "equation": "factor z - y", "factor": factor })),
    }
    if let Some(window) = pool {
        layers.push(json!({ "layer": "average-pool", "window": window }));
        let order = if reflected.is_some() { PIXEL_BY_PIXEL } else { FLATTENED };
        layers.push(json!({ "layer": "flatten", "order": order }));
    }
    layers.push(json!({ "layer": "linear", "weight": "head.weight", "bias": "head.bias" }));
    Ok(layers)
}

/// A batch norm by the name of its arrays.
fn batch_norm(name: &str) -> Value {
    let array = |part: &str| format!("{name}.{part}");
    json!({
        "layer": "batch-norm", "mean": array("running_mean"), "variance": array("running_variance"),
        "epsilon": NORM_EPSILON, "scale": array("scale"), "offset": array("offset"),
    })
}

/// The layer between injection and batch norm.
fn core<D: Backend>(model: &mut Classifier<D>) -> Result<Value> {
    let equation = equation(model)?;
    let images = model.spec().pool.is_some();
    let Some(layer) = model.equilibrium() else {
        let kind = match model.spec().core {
            CoreSpec::NeuralOde { .. } => "neural-ode",
            _ => "explicit",
        };
        return Ok(json!({
            "layer": kind, "equation": equation, "weights": { "W": "core.weight" },
            "padding": images.then_some(Padding::Zero),
        }));
    };
    let padding = match layer.map().operator() {
        Operator::Conv { padding, .. } => Some(padding),
        Operator::Dense { .. } => None,
    };
    let names = weight_shapes(layer.map());
    let weights: serde_json::Map<String, Value> =
        names.into_iter().map(|(name, _)| (name.clone(), format!("{EQUATION}{name}").into())).collect();
    Ok(json!({
        "layer": "equilibrium", "equation": equation, "map": layer.equation()?, "weights": weights,
        "padding": padding, "start": layer.start(),
    }))
}
