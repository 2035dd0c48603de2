//! `model.safetensors`: what is in it, and what is refused.

use std::path::Path;

use crate::common::{cpu, random, rng};
use safetensors::SafeTensors;
use serde_json::{Value, json};
use subdeq::map::ParametrisedMap;
use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
use subdeq::train::{
    ArrayShapes, Cosine, DataConfig, ModelNote, Recipe, TensorFile, TrainConfig, array_shapes,
    effective_weights, is_model_file, load_model, model_arrays, save_model,
};
use subdeq::{Cpu, Init, Layout};

type Model = Classifier<Cpu<f32>>;

fn model(name: &str, layout: Layout) -> (Model, ModelNote) {
    normed(name, layout, false)
}

fn normed(name: &str, layout: Layout, injection_norm: bool) -> (Model, ModelNote) {
    let spec = ClassifierSpec {
        height: 5,
        width: 6,
        channels: 2,
        hidden: 3,
        pool: (layout == Layout::Conv).then_some(2),
        injection_norm,
        classes: 2,
        core: CoreSpec::named(name, layout).unwrap(),
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    };
    let data = DataConfig {
        name: "none".into(),
        split: "none".into(),
        validation: 0,
        split_seed: 0,
        fingerprint: String::new(),
        white: 255,
        mean: vec![0.5, 0.25],
        deviation: vec![0.25, 0.5],
        class_names: vec!["cat".into(), "dog".into()],
        flips: false,
    };
    let config = TrainConfig {
        epochs: 1,
        batch: 2,
        weight_decay: 0.0,
        seed: 0,
        warm_start: false,
        slices: 0,
        rate: Cosine { start: 0.1, end: 0.1 },
        recipe: Recipe::default(),
        data,
        model: spec.clone(),
    };
    let mut model = Model::new(cpu(), spec, &mut rng(7)).unwrap();
    let certificate = model.certify().unwrap();
    (model, ModelNote { config, selected: (1, 10.0), certificate })
}

fn shapes(model: &Model) -> ArrayShapes {
    array_shapes(&model_arrays(model.spec()).unwrap(), model.spec().pool.is_some())
}

fn saved(name: &str, layout: Layout, path: &Path) -> (Model, ModelNote) {
    // Every second name with batch norm on its injection.
    let (mut model, note) = normed(name, layout, name.len() % 2 == 1);
    save_model(path, &mut model, &note).unwrap();
    (model, note)
}

/// A file for every kind of model: shapes, the weights of the equation, and texts that name only arrays that are there.
#[test]
fn files_say_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for layout in [Layout::Dense, Layout::Conv] {
        for name in CoreSpec::names() {
            let (mut model, note) = saved(name, layout, &path);
            let bytes = std::fs::read(&path).unwrap();
            let file = SafeTensors::deserialize(&bytes).unwrap();
            for (array, shape) in shapes(&model) {
                assert_eq!(file.tensor(&array).unwrap().shape(), shape, "{name} {array}");
            }
            let weights = model.equilibrium().map_or(Vec::new(), |layer| effective_weights(layer).unwrap());
            for (array, shape, data) in &weights {
                let stored = file.tensor(&format!("equation.{array}")).unwrap();
                let numbers: Vec<f32> =
                    stored.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                assert_eq!((stored.shape(), &numbers), (&shape[..], data), "{name} {array}");
            }
            let known = shapes(&model).len() + weights.len();
            assert_eq!(file.len(), known, "{name}");
            let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
            let texts = header.metadata().clone().unwrap();
            assert_eq!(serde_json::from_str::<Value>(&texts["classes"]).unwrap(), json!(["cat", "dog"]));
            let layers: Vec<Value> = serde_json::from_str(&texts["layers"]).unwrap();
            let kinds: Vec<&str> = layers.iter().filter_map(|layer| layer["layer"].as_str()).collect();
            assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("standardise", "linear"), "{name}");
            let norm = layers.iter().find(|layer| layer["layer"] == "batch-norm").unwrap();
            assert_eq!(norm["epsilon"], json!(1e-5));
            let core = layers.iter().find(|layer| layer["equation"].is_string()).unwrap();
            assert_eq!(core["equation"], texts["equation"].as_str());
            let norms = layers.iter().filter_map(|layer| layer["norm"].as_object());
            for part in norms.flat_map(|norm| norm.values()).filter_map(Value::as_str) {
                assert!(!part.contains('.') || file.tensor(part).is_ok(), "{name}: {part} is not there");
            }
            for array in core["weights"].as_object().unwrap().values() {
                assert!(file.tensor(array.as_str().unwrap()).is_ok(), "{name}: {array} is not there");
            }
            assert_eq!(texts.contains_key("certificate"), note.certificate.is_some(), "{name}");
            // What is read is what was written.
            assert!(is_model_file(&path));
            let (mut read, again) = load_model(&cpu::<f32>(), &path).unwrap();
            assert_eq!(read.named_parameters().unwrap(), model.named_parameters().unwrap(), "{name}");
            assert_eq!(again, note, "{name}");
            let x: Vec<f32> = random(3 * 60, 4).iter().map(|&x| x as f32).collect();
            assert_eq!(read.logits(&x).unwrap(), model.logits(&x).unwrap(), "{name}");
            let before = bytes;
            save_model(&path, &mut read, &again).unwrap();
            assert!(std::fs::read(&path).unwrap() == before, "{name}: equal models are equal files");
        }
    }
}

/// Flat arrays without the equation's, and one text: what older programs wrote.
#[test]
fn older_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let (model, note) = model("monotone-product", Layout::Conv);
    let mut tensors = model.state().unwrap();
    tensors.retain(|(name, _)| !(name.ends_with(".mean") || name.ends_with(".square")));
    TensorFile { note: note.clone(), tensors }.write(&path).unwrap();
    let (read, again) = load_model(&cpu::<f32>(), &path).unwrap();
    assert_eq!((read.named_parameters().unwrap(), again), (model.named_parameters().unwrap(), note));
}

/// The header of a file and its arrays, to be changed.
fn changed(path: &Path, change: impl FnOnce(&mut Value, &mut Vec<u8>)) -> String {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut arrays = bytes[8 + length..].to_vec();
    change(&mut header, &mut arrays);
    let header = header.to_string();
    let other = path.with_file_name("changed.safetensors");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &arrays].concat();
    std::fs::write(&other, file).unwrap();
    load_model(&cpu::<f32>(), &other).map(|_| ()).map_or_else(|why| why.to_string(), |()| String::new())
}

#[test]
fn weights_that_are_not_those_of_the_parameters_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for (name, layout) in [("monotone", Layout::Dense), ("split-sign", Layout::Conv)] {
        saved(name, layout, &path);
        assert_eq!(changed(&path, |_, _| {}), "");
        let said = changed(&path, |header, arrays| {
            let at = header["core.weight"]["data_offsets"][0].as_u64().unwrap() as usize;
            arrays[at..at + 4].copy_from_slice(&5.0f32.to_le_bytes());
        });
        assert!(said.contains("not what its free parameters stand for"), "{name}: {said}");
        let said = changed(&path, |header, _| header["core.weight"]["shape"] = json!([1, 3, 3]));
        if layout == Layout::Dense {
            assert!(said.contains("`core.weight` has the shape [1, 3, 3]"), "{said}");
        }
        let said = changed(&path, |header, _| {
            let array = header.as_object_mut().unwrap().remove("norm.scale").unwrap();
            header["equation.V"] = array;
        });
        assert!(said.contains("`norm.scale` is missing"), "{said}");
    }
}

/// Dense and convolutional models take an image in one order: a convolution and a dense layer that both see one pixel of one
/// channel see the same one.
#[test]
fn images_are_channels_first_for_every_model() {
    for layout in [Layout::Dense, Layout::Conv] {
        let (mut model, _) = model("split-sign", layout);
        let spec = model.spec().clone();
        assert_eq!(
            model.equilibrium().unwrap().architecture(),
            &ParametrisedMap::named("split-sign", layout).unwrap()
        );
        // Injections see channel 1 alone, dense ones at pixel (2, 3).
        let mut parameters = model.named_parameters().unwrap();
        for (name, value) in &mut parameters {
            match name.as_str() {
                "injection0.weight" => {
                    value.fill(0.0);
                    let at = if spec.pool.is_some() { 9 + 4 } else { 30 + 2 * 6 + 3 };
                    value[at] = 1.0;
                }
                "injection0.bias" => value.fill(0.0),
                _ => {}
            }
        }
        model.set_parameters(&parameters).unwrap();
        let x: Vec<f32> = (0..60).map(|i| i as f32).collect();
        let y = model.injected(&x).unwrap();
        let seen = if spec.pool.is_some() { y[(2 * 6 + 3) * 3] } else { y[0] };
        assert_eq!(seen, 45.0, "{layout:?}");
    }
}
