//! Stored configs keep their meaning: what was written years ago reads, and writes back, as it is.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use rand::SeedableRng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use subdeq::graph::GraphConfig;
use subdeq::map::ParametrisedMap;
use subdeq::model::Classifier;
use subdeq::train::{TensorFile, TrainConfig, load_model};
use subdeq::{Cpu, Scope, Verdict};

/// Every value that stands under the key `config`.
fn configs(value: &Value, found: &mut Vec<Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| configs(item, found)),
        Value::Object(fields) => {
            for (key, item) in fields {
                if key == "config" { found.push(item.clone()) } else { configs(item, found) }
            }
        }
        _ => {}
    }
}

fn assert_reads_and_writes_back<C: Serialize + DeserializeOwned + PartialEq + Debug>(stored: &Value) {
    let config: C =
        serde_json::from_value(stored.clone()).unwrap_or_else(|error| panic!("{error}: {stored}"));
    assert_eq!(json!(config), *stored);
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<C>(&text).unwrap(), config);
}

#[test]
fn every_stored_config_reads_and_writes_back() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let mut found = Vec::new();
    for entry in std::fs::read_dir(&results).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            configs(&serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(), &mut found);
        }
    }
    assert!(found.len() > 50, "the ledgers hold {} configs only", found.len());
    for stored in found {
        // Of a graph, nodes are joined by something.
        if stored["model"].get("joined").is_some() {
            assert_reads_and_writes_back::<GraphConfig>(&stored);
        } else {
            assert_reads_and_writes_back::<TrainConfig>(&stored);
        }
    }
    let text = std::fs::read_to_string(results.join("mnist-conv-16/config.toml")).unwrap();
    let stored: toml::Value = toml::from_str(&text).unwrap();
    let config: TrainConfig = toml::from_str(&text).unwrap();
    assert_eq!(toml::Value::try_from(&config).unwrap(), stored);
}

/// A split-sign layer whose config asks for a power: it once trained, and was proven about another equation.
#[test]
fn a_config_of_another_equation_is_refused() {
    let text = r#"
        name = "split-sign"
        form = "SplitSign"
        activation = "Softsign"
        injection = "Outer"
        base = 1.2
        power = 0.5
        shift = 0.0
        tie = 0.0
        parametrisation = { name = "split" }
    "#;
    let error = toml::from_str::<ParametrisedMap>(text).unwrap_err().to_string();
    assert!(error.contains("power = 0.5") && error.contains("write power = 1.0"), "{error}");
    let mended = text.replace("base = 1.2", "base = 0.0").replace("power = 0.5", "power = 1.0");
    let mended = mended.replace("shift = 0.0", "shift = 1.2");
    let architecture: ParametrisedMap = toml::from_str(&mended).unwrap();
    assert_eq!(architecture, ParametrisedMap::named("split-sign", subdeq::Layout::Dense).unwrap());
}

/// A model that an older program certified, in that program's words, is certified again when it is read.
#[test]
fn certificates_of_older_programs_are_made_anew() {
    let device = Arc::new(Cpu::<f32>::new(1).unwrap());
    let ledger = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/mnist-dense.json");
    let mut found = Vec::new();
    configs(&serde_json::from_slice(&std::fs::read(ledger).unwrap()).unwrap(), &mut found);
    let name = |config: &Value| config["model"]["core"]["architecture"]["name"].clone();
    let stored = found.into_iter().find(|config| name(config) == "split-sign").unwrap();
    let config: TrainConfig = serde_json::from_value(stored.clone()).unwrap();
    let rng = &mut rand_chacha::ChaCha8Rng::seed_from_u64(0);
    let mut tensors = Classifier::new(device.clone(), config.model, rng).unwrap().state().unwrap();
    // A model file is without the optimiser's moments.
    tensors.retain(|(name, _)| !(name.ends_with(".mean") || name.ends_with(".square")));
    let old = json!({
        "map": {
            "name": "split-sign", "form": "split-sign", "activation": "Softsign", "shift": 1.2, "power": 1.0,
            "injection": "Outer", "absolute_weights": false, "requires": null, "normalisation": null,
        },
        "scope": { "kind": "all-inputs" },
        "verdict": {
            "kind": "proven", "theorem": "split-sign", "factor": 0.1, "metric": { "name": "thompson" },
            "picard_converges": true,
            "evidence": { "kind": "by-form", "signs": "mixed", "weight_norm": null },
        },
    });
    let note = json!({ "config": stored, "selected": [1, 2.5], "certificate": old });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    TensorFile { note, tensors }.write(&path).unwrap();
    let (mut model, note) = load_model(&device, &path).unwrap();
    let stored = note.certificate;
    let certificate = stored.as_ref().unwrap().single().unwrap();
    let layer = model.equilibrium().unwrap();
    assert_eq!((&certificate.scope, certificate.map), (&Scope::NonnegativeInputs, layer.map().equation()));
    assert!(matches!(certificate.verdict, Verdict::Proven { factor: Some(factor), .. } if factor > 0.5));
    // A forged one in this program's words is not believed either.
    let mut forged = certificate.clone();
    if let Verdict::Proven { factor, .. } = &mut forged.verdict {
        *factor = Some(0.1);
    }
    assert!(layer.confirms(certificate).unwrap() && !layer.confirms(&forged).unwrap());
    let TensorFile { note, tensors } = TensorFile::<Value>::read(&path).unwrap();
    let note = json!({ "config": note["config"], "selected": [1, 2.5], "certificate": forged });
    TensorFile { note, tensors }.write(&path).unwrap();
    assert_eq!(load_model(&device, &path).unwrap().1.certificate, stored);
}
