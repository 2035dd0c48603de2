//! `model.safetensors`: a trained classifier, for this software and for any other (docs/model-file.md).

use std::path::Path;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use subdeq_engine::{Backend, Operator, ShapedMap};

use super::checkpoint::{NOTE, note_in, note_text, with_shapes};
use super::model_description::description;
use super::stored_arrays::{ArrayToStore, StoredArray, read_arrays, read_texts, write_arrays};
use super::trainer::selected;
use super::{ArrayShapes, ArraySizes, TrainConfig, array_shapes, check_arrays, model_arrays, restore};
use crate::model::{Classifier, NetworkCertificate, block_prefix};
use crate::{Equilibrium, Error, Result};

/// Prefix of the weights that the equation has, beside the free parameters that they are made of.
pub(super) const EQUATION: &str = "equation.";
/// How far the weights of a file may be from those that are made of its free parameters here, as a share of the largest: they
/// may have been made on other hardware.
const ROUNDING: f32 = 1e-4;

/// How a model was trained and what is proved about it: the text `subdeq` in the metadata of its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelNote {
    /// How it was trained.
    pub config: TrainConfig,
    /// The epoch (from 1) and validation error, in percent, that it was selected by.
    pub selected: (usize, f64),
    /// What is proved about it for all inputs that it is meant for; none for models without a fixed point.
    #[serde(default, deserialize_with = "understood")]
    pub certificate: Option<NetworkCertificate>,
}

/// A certificate of this program's; none in place of one that an older program wrote, which did not say for which inputs and
/// among which states it holds: whoever needs it computes it anew.
pub(crate) fn understood<'de, D: Deserializer<'de>, C: DeserializeOwned>(
    file: D,
) -> Result<Option<C>, D::Error> {
    Ok(serde_json::from_value(serde_json::Value::deserialize(file)?).ok())
}

/// The weights that a layer multiplies with, as they are named in its equation: `W`; `W_plus` and `W_minus`; or, for the
/// gains, also `P` and `N`. Matrices have a row per output, kernels are output x input x row x column.
///
/// # Errors
/// Parameters that are not finite.
#[allow(clippy::type_complexity)] // name, shape and numbers
pub fn effective_weights<D: Backend>(
    layer: &mut Equilibrium<D>,
) -> Result<Vec<(String, Vec<usize>, Vec<D::Elem>)>> {
    let shapes = weight_shapes(layer.map());
    let weights = layer.weights()?;
    Ok(shapes.into_iter().zip(weights).map(|((name, shape), data)| (name, shape, data)).collect())
}

/// Names and shapes of [`effective_weights`].
pub(super) fn weight_shapes(map: &ShapedMap) -> ArrayShapes {
    let units = map.operator().units();
    let full = match map.operator() {
        Operator::Dense { n } => vec![n, n],
        Operator::Conv { channels, kernel, .. } => vec![channels, channels, kernel, kernel],
    };
    let names: &[&str] = match map.weight_count() {
        1 => &["W"],
        2 => &["W_plus", "W_minus"],
        _ => &["W_plus", "W_minus", "P", "N"],
    };
    let shape = |k| if map.weight_len(k) == units * units { vec![units, units] } else { full.clone() };
    names.iter().enumerate().map(|(k, &name)| (name.to_owned(), shape(k))).collect()
}

/// Writes a model: its parameters, the weights that its equation has, and texts that say how to compute with them.
///
/// # Errors
/// A device that cannot be read; a disk that is full or a folder that cannot be written.
pub fn save_model<D: Backend<Elem = f32>>(
    path: &Path,
    model: &mut Classifier<D>,
    note: &ModelNote,
) -> Result<()> {
    let shapes = array_shapes(&model_arrays(model.spec())?, model.spec().pool.is_some());
    let parameters = selected(model.state()?);
    let mut texts = description(model, note)?;
    texts.insert(NOTE.to_owned(), note_text(path, note)?);
    let weights = equation_weights(model)?;
    let mut arrays = with_shapes(&parameters, &shapes);
    arrays.extend(weights.iter().map(|(name, shape, data)| ArrayToStore {
        name,
        shape: shape.clone(),
        data,
    }));
    write_arrays(path, &texts, arrays)
}

/// Whether a file is one that [`save_model`] wrote, by its metadata alone.
#[must_use]
pub fn is_model_file(path: &Path) -> bool {
    read_texts(path).is_ok_and(|texts| note_in::<ModelNote>(path, &texts).is_ok())
}

/// A model from its `model.safetensors`.
///
/// # Errors
/// No such file (a run has one from its first epoch on), or one that is damaged.
pub fn load_model<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    path: &Path,
) -> Result<(Classifier<D>, ModelNote)> {
    let (mut note, arrays) = read_arrays(path, |texts| note_in::<ModelNote>(path, texts))?;
    // Nothing is made before the file has shown that it holds what its note speaks of.
    let fault = |why: Error| Error::Invalid(format!("{}: {why}", path.display()));
    note.config.check().map_err(fault)?;
    let (weights, parameters): (Vec<_>, Vec<_>) =
        arrays.into_iter().partition(|array| array.name.starts_with(EQUATION));
    let sizes = model_arrays(&note.config.model).map_err(fault)?;
    let shapes = array_shapes(&sizes, note.config.model.pool.is_some());
    let parameters = shaped(&sizes, &shapes, parameters).map_err(fault)?;
    let mut model = build(device, &note.config, &parameters).map_err(fault)?;
    check_weights(&mut model, weights).map_err(fault)?;
    // Only what holds for the very equations, weights and inputs of this model is taken over.
    let known = match &note.certificate {
        Some(known) => model.confirms(known)?,
        None => false,
    };
    if !known {
        note.certificate = model.certify()?;
    }
    Ok((model, note))
}

/// Name, shape and numbers.
type Weights<T> = (String, Vec<usize>, Vec<T>);

/// What the name of a weight begins with: `equation.`, and the block's where it is not the first.
pub(super) fn equation_prefix(block: usize) -> String {
    format!("{EQUATION}{}", block_prefix(block))
}

/// The weights of all blocks' equations, under their names in the file.
fn equation_weights<D: Backend>(model: &mut Classifier<D>) -> Result<Vec<Weights<D::Elem>>> {
    let mut all = Vec::new();
    for block in 0..model.block_count() {
        let Some(layer) = model.equilibrium_of(block) else { continue };
        let prefix = equation_prefix(block);
        let named = |(name, shape, data)| (format!("{prefix}{name}"), shape, data);
        all.extend(effective_weights(layer)?.into_iter().map(named));
    }
    Ok(all)
}

/// The arrays that are expected, of their shapes or flat, as older programs wrote them.
fn shaped(
    sizes: &[(String, u64)],
    shapes: &[(String, Vec<usize>)],
    found: Vec<StoredArray>,
) -> Result<Vec<(String, Vec<f32>)>> {
    for StoredArray { name, shape, data } in &found {
        let expected = shapes.iter().find(|(given, _)| given == name);
        if let Some((_, expected)) = expected
            && shape != expected
            && *shape != [data.len()]
        {
            return Err(Error::invalid(format!(
                "the array `{name}` has the shape {shape:?}, its configuration says {expected:?}"
            )));
        }
    }
    let flat: Vec<(String, Vec<f32>)> = found.into_iter().map(|array| (array.name, array.data)).collect();
    check_arrays(sizes, &flat)?;
    Ok(flat)
}

/// Refuses weights that are not those of the free parameters, which are what counts: somebody else may read the weights.
fn check_weights<D: Backend<Elem = f32>>(model: &mut Classifier<D>, found: Vec<StoredArray>) -> Result<()> {
    // Older programs wrote none.
    if found.is_empty() {
        return Ok(());
    }
    let made = equation_weights(model)?;
    let sizes: ArraySizes = made.iter().map(|(name, _, data)| (name.clone(), data.len() as u64)).collect();
    let shapes: ArrayShapes = made.iter().map(|(name, shape, _)| (name.clone(), shape.clone())).collect();
    let found = shaped(&sizes, &shapes, found)?;
    for ((name, _), (_, _, made)) in shapes.iter().zip(&made) {
        let Some((_, stored)) = found.iter().find(|(given, _)| given == name) else { continue };
        let largest = made.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        if stored.iter().zip(made).any(|(stored, made)| (stored - made).abs() > ROUNDING * largest) {
            return Err(Error::invalid(format!(
                "the array `{name}` is not what its free parameters stand for: one of them was changed without the other. \
                 Leave the arrays `{EQUATION}*` out after changing parameters; they are made again"
            )));
        }
    }
    Ok(())
}

/// A model with these parameters.
pub(super) fn build<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    config: &TrainConfig,
    tensors: &[(String, Vec<f32>)],
) -> Result<Classifier<D>> {
    let mut rng = ChaCha8Rng::seed_from_u64(config.seed);
    let mut model = Classifier::new(device.clone(), config.model.clone(), &mut rng)?;
    restore(&mut model, tensors)?;
    Ok(model)
}
