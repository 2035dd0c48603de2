//! An architecture as it stands in a run's `config.toml` and in the ledgers.

use serde::{Deserialize, Serialize};
use subdeq_map::{Activation, Form, Groups, Injection, Map, Normalisation, PNorm, Parts};

use super::{ParametrisedMap, USUAL_KERNEL};
use crate::Parametrisation;
use crate::{Error, Result};

/// `F = norm( (s(..) + base)^power + shift + y )`: two places for what is one number in a [`Map`], inside a power or, without
/// one, outside. Whatever would be another equation is refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ParametrisedMapFile {
    name: String,
    form: Form,
    activation: Activation,
    injection: Injection,
    base: f64,
    power: f64,
    shift: f64,
    norm: Option<PNorm>,
    tie: f64,
    parametrisation: Parametrisation,
    #[serde(default = "usual_kernel", skip_serializing_if = "is_usual_kernel")]
    kernel: usize,
}

fn usual_kernel() -> usize {
    USUAL_KERNEL
}

#[allow(clippy::trivially_copy_pass_by_ref)] // as serde calls it
fn is_usual_kernel(side: &usize) -> bool {
    *side == USUAL_KERNEL
}

impl From<ParametrisedMap> for ParametrisedMapFile {
    fn from(architecture: ParametrisedMap) -> Self {
        let ParametrisedMap { name, map, parametrisation, kernel } = architecture;
        let (base, shift) = if map.power() == 1.0 { (0.0, map.shift()) } else { (map.shift(), 0.0) };
        Self {
            name,
            form: map.form(),
            activation: map.activation(),
            injection: map.injection(),
            base,
            power: map.power(),
            shift,
            norm: map.normalisation().map(|norm| norm.p),
            tie: map.tie(),
            parametrisation,
            kernel,
        }
    }
}

impl TryFrom<ParametrisedMapFile> for ParametrisedMap {
    type Error = Error;

    fn try_from(file: ParametrisedMapFile) -> Result<Self> {
        let ParametrisedMapFile { name, form, activation, injection, base, power, shift, norm, tie, .. } =
            file;
        let refuse = |why: String| Err(Error::invalid(format!("the architecture `{name}` has {why}")));
        let has_power = power != 1.0;
        if has_power && form != Form::Single {
            return refuse(format!(
                "power = {power}, but its form {form:?} takes none: write power = 1.0, or form = \"Single\""
            ));
        }
        if has_power && shift != 0.0 {
            return refuse(format!(
                "shift = {shift} outside the power {power}, which is no map of this software: write shift = 0.0, and what is \
                 to be added inside the power as base"
            ));
        }
        if !has_power && base != 0.0 {
            return refuse(format!(
                "base = {base}, but no power to take of it: write base = 0.0, and what is to be added as shift"
            ));
        }
        if matches!(form, Form::PowerRatio { .. }) && shift != 0.0 {
            return refuse(format!("shift = {shift}, but a power ratio has no shift: write shift = 0.0"));
        }
        if form != Form::Gains && tie != 0.0 {
            return refuse(format!(
                "tie = {tie}, but only the form Gains ties its shift to its weights: write tie = 0.0"
            ));
        }
        let map = Map::try_from(Parts {
            form,
            activation,
            injection,
            shift: if has_power { base } else { shift },
            power,
            tie,
            weights: file.parametrisation.weight_class(),
            normalisation: norm.map(|p| Normalisation { p, groups: Groups::WholeVector }),
            projection: None,
        });
        let map = match map {
            Ok(map) => map,
            Err(bad) => return refuse(format!("an equation that makes no sense: {bad}")),
        };
        ParametrisedMap::new(name, map, file.parametrisation)?.with_kernel(file.kernel)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Layout;

    fn read(config: Value) -> Result<ParametrisedMap, String> {
        serde_json::from_value(config).map_err(|error| error.to_string())
    }

    fn stored(name: &str) -> Value {
        json!(ParametrisedMap::named(name, Layout::Dense).unwrap())
    }

    /// What was once trained must not train again under another equation, nor be certified as one.
    #[test]
    fn other_equations_are_refused() {
        let refused = |name: &str, changes: Value, parts: &[&str]| {
            let mut config = stored(name);
            for (field, value) in changes.as_object().unwrap() {
                config[field] = value.clone();
            }
            let said = read(config).unwrap_err();
            parts.iter().for_each(|part| assert!(said.contains(part), "`{part}` is missing in: {said}"));
        };
        let power = json!({ "base": 1.2, "power": 0.5, "shift": 0.0 });
        refused("split-sign", power, &["`split-sign`", "power = 0.5", "SplitSign"]);
        refused("subdeq-tanh", json!({ "base": 1.2, "shift": 0.0 }), &["base = 1.2", "as shift"]);
        refused("subdeq-power-tanh", json!({ "shift": 0.1 }), &["shift = 0.1", "as base"]);
        refused("power-ratio", json!({ "shift": -0.5 }), &["shift = -0.5", "no shift"]);
        refused("split-sign", json!({ "tie": 1.0 }), &["tie = 1", "Gains"]);
        refused("split-sign", json!({ "injection": "Inner" }), &["split-sign", "outside"]);
        refused("split-sign", json!({ "parametrisation": { "name": "free" } }), &["Free", "SplitSign"]);
        refused("subdeq-tanh", json!({ "parametrisation": { "name": "split" } }), &["Split", "Single"]);
        refused("monotone", json!({ "power": 0.5 }), &["monotone", "power"]);
        refused("monotone", json!({ "norm": "Inf" }), &["monotone", "normalisation"]);
        refused("subdeq-tanh", json!({ "outer_shift": 0.3 }), &["outer_shift"]);
        refused("subdeq-tanh", json!({ "power": 0.0 }), &["power"]);
        refused("subdeq-tanh", json!({ "form": "Monomial" }), &["Monomial"]);
        refused("subdeq-tanh", json!({ "kernel": 5 }), &["subdeq-tanh", "3x3", "5x5"]);
        refused("monotone", json!({ "kernel": 4 }), &["4x4"]);
    }

    #[test]
    fn what_is_written_is_read() {
        for name in ParametrisedMap::NAMES {
            for layout in [Layout::Dense, Layout::Conv] {
                let architecture = ParametrisedMap::named(name, layout).unwrap();
                assert_eq!(read(json!(architecture)), Ok(architecture.clone()));
                let text = toml::to_string(&architecture).unwrap();
                assert_eq!(toml::from_str::<ParametrisedMap>(&text).unwrap(), architecture);
            }
        }
        let wide = ParametrisedMap::named("monotone-tied", Layout::Conv).unwrap().with_kernel(5).unwrap();
        assert_eq!(json!(wide)["kernel"], 5);
        assert_eq!(read(json!(wide)), Ok(wide));
        let fields: Vec<String> = stored("gains").as_object().unwrap().keys().cloned().collect();
        let mut expected =
            vec!["name", "form", "activation", "injection", "base", "power", "shift", "norm", "tie"];
        expected.push("parametrisation");
        expected.sort_unstable();
        assert_eq!(fields, expected);
    }
}
