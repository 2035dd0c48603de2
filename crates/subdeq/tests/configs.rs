//! Stored configs keep their meaning: what was written years ago reads, and writes back, as it is.

use std::path::Path;

use serde_json::{Value, json};
use subdeq::map::Architecture;
use subdeq::train::TrainConfig;

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
        let config: TrainConfig =
            serde_json::from_value(stored.clone()).unwrap_or_else(|error| panic!("{error}: {stored}"));
        assert_eq!(json!(config), stored);
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<TrainConfig>(&text).unwrap(), config);
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
    let error = toml::from_str::<Architecture>(text).unwrap_err().to_string();
    assert!(error.contains("power = 0.5") && error.contains("write power = 1.0"), "{error}");
    let mended = text.replace("base = 1.2", "base = 0.0").replace("power = 0.5", "power = 1.0");
    let mended = mended.replace("shift = 0.0", "shift = 1.2");
    let architecture: Architecture = toml::from_str(&mended).unwrap();
    assert_eq!(architecture, Architecture::named("split-sign", subdeq::Layout::Dense).unwrap());
}
