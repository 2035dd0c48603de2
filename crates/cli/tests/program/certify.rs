//! The program as a user meets it: exit statuses, JSON, and what it says about bad input.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use subdeq_data::npy::{NpyArray, NpyData};
use tempfile::TempDir;

fn subdeq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args).output().expect("the program starts")
}

fn status(output: &Output) -> i32 {
    output.status.code().expect("the program ends by itself")
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|why| {
        panic!(
            "{why}: {} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

/// What the program complains about: one sentence on one line.
fn complaint(output: &Output) -> String {
    assert!(output.stdout.is_empty(), "a failure prints no result");
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.trim_end().lines().count(), 1, "one sentence: {text}");
    text
}

struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        Files { folder: TempDir::new().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn npy(&self, name: &str, shape: &[usize], data: &[f64]) -> String {
        let path = self.path(name);
        NpyArray::new(shape.to_vec(), NpyData::F64(data.to_vec())).unwrap().write(&path).unwrap();
        path.display().to_string()
    }

    fn square(&self, name: &str, data: &[f64]) -> String {
        let n = data.len().isqrt();
        self.npy(name, &[n, n], data)
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn the_example_tells_both_sides() {
    let output = subdeq(&["certify"]);
    assert_eq!(status(&output), 0);
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.contains("REFUTED") && story.contains("0.24249598") && story.contains("PROVEN"), "{story}");
    let object = json(&subdeq(&["certify", "--json"]));
    assert_eq!(object["example"][0]["verdict"], "refuted");
    assert_eq!(object["example"][1]["verdict"], "proven");
    // Another map on the same weights gives an ordinary verdict.
    assert_eq!(status(&subdeq(&["certify", "--map", "subdeq-tanh"])), 11);
    assert_eq!(status(&subdeq(&["certify", "--map", "divisive"])), 0);
}

#[test]
fn verdicts_for_all_inputs() {
    let files = Files::new();
    let positive = files.square("positive.npy", &[7.0, 0.5, 3.0, 50.0]);
    let one_sign = files.square("one-sign.npy", &[7.0, 0.5, -3.0, -50.0]);
    let signed = files.square("signed.npy", &[2.0, -2.0, 0.0, 0.0]);
    let ask = |weights: &str, map: &str| {
        let output = subdeq(&["certify", "--weights", weights, "--map", map, "--json"]);
        (status(&output), json(&output))
    };
    let (code, object) = ask(&positive, "subdeq-tanh");
    assert_eq!(
        (code, object["verdict"].as_str(), object["scope"].as_str()),
        (0, Some("proven"), Some("nonnegative-inputs"))
    );
    assert!((object["factor"].as_f64().unwrap() - 0.246994).abs() < 1e-6);
    assert_eq!(
        (object["metric"].as_str(), object["theorem"].as_str()),
        (Some("thompson"), Some("nonnegative-weights"))
    );
    let (code, object) = ask(&one_sign, "subdeq-tanh");
    assert!(code == 0 && (object["factor"].as_f64().unwrap() - 0.999124).abs() < 1e-6);
    let (code, object) = ask(&signed, "subdeq-tanh");
    assert_eq!((code, object["verdict"].as_str()), (11, Some("refuted")));
    assert!(object["witnesses"].as_array().unwrap().len() >= 2);
    assert_eq!(object["injection"].as_array().unwrap().len(), 2);
    for map in ["split-sign", "divisive", "rational", "power-ratio", "gains"] {
        let (code, object) = ask(&signed, map);
        assert_eq!((code, object["verdict"].as_str()), (0, Some("proven")), "{map}: {object}");
    }
}

#[test]
fn options_change_the_map() {
    let files = Files::new();
    let signed = files.square("w.npy", &[1.0, -1.0, -1.0, 1.0]);
    let factor = |options: &[&str]| {
        let output =
            subdeq(&[&["certify", "--weights", &signed, "--map", "split-sign", "--json"], options].concat());
        json(&output)["factor"].as_f64()
    };
    assert!((factor(&[]).unwrap() - 0.536676).abs() < 1e-6);
    assert!((factor(&["--activation", "tanh", "--shift", "1.603"]).unwrap() - 0.625977).abs() < 1e-6);
    assert!(
        (factor(&["--activation", "tanh", "--shift", "1.603", "--norm", "inf"]).unwrap() - 0.873753).abs()
            < 1e-6
    );
}

#[test]
fn verdicts_for_samples() {
    let files = Files::new();
    let weights = files.square("w.npy", &[2.0, -2.0, 0.0, 0.0]);
    // z_1 is held at 1.2 + y_1: y = 0 has three fixed points, a large difference of inputs only one.
    let injection = files.npy("y.npy", &[2, 2], &[0.0, 0.0, 9.0, 0.0]);
    let output = subdeq(&[
        "certify",
        "--weights",
        &weights,
        "--map",
        "subdeq-tanh",
        "--injection",
        &injection,
        "--json",
    ]);
    let object = json(&output);
    assert_eq!((status(&output), object["scope"].as_str()), (11, Some("samples")), "{object}");
    let samples = object["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2);
    assert_eq!(
        (samples[0]["verdict"].as_str(), samples[1]["verdict"].as_str()),
        (Some("refuted"), Some("proven"))
    );
}

#[test]
fn convolutions_and_f32() {
    let files = Files::new();
    let kernel: Vec<f32> = (0..2 * 2 * 9).map(|i| 0.01 * i as f32).collect();
    let path = files.path("kernel.npy");
    NpyArray::new(vec![2, 2, 3, 3], NpyData::F32(kernel)).unwrap().write(&path).unwrap();
    let output =
        subdeq(&["certify", "--weights", &text(&path), "--map", "subdeq-tanh", "--side", "4", "--json"]);
    let object = json(&output);
    assert_eq!(status(&output), 0, "{object}");
    assert!((object["factor"].as_f64().unwrap() - 0.246994).abs() < 1e-6);
}

#[test]
fn safetensors_files() {
    let files = Files::new();
    let bytes: Vec<u8> = [1f32, 0.5, 0.25, 2.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], &bytes).unwrap();
    let path = files.path("model.safetensors");
    std::fs::write(&path, safetensors::serialize([("layer.W", view()), ("other", view())], None).unwrap())
        .unwrap();
    let base = ["certify", "--weights", &text(&path), "--map", "subdeq-tanh"].map(str::to_owned);
    let ask = |extra: &[&str]| {
        let args: Vec<&str> = base.iter().map(String::as_str).chain(extra.iter().copied()).collect();
        subdeq(&args)
    };
    assert_eq!(status(&ask(&["--tensor", "layer.W"])), 0);
    let several = ask(&[]);
    assert_eq!(status(&several), 2);
    assert!(complaint(&several).contains("layer.W, other"));
    let missing = ask(&["--tensor", "V"]);
    assert!(status(&missing) == 2 && complaint(&missing).contains("`V`"));
}

#[test]
fn bad_input_gets_one_sentence() {
    let files = Files::new();
    let good = files.square("good.npy", &[0.1, 0.2, 0.3, 0.4]);
    let ask = |weights: &str, extra: &[&str]| {
        subdeq(&[&["certify", "--weights", weights, "--map", "subdeq-tanh"], extra].concat())
    };
    let expect = |output: Output, code: i32, parts: &[&str]| {
        assert_eq!(status(&output), code, "{}", String::from_utf8_lossy(&output.stderr));
        let said = complaint(&output);
        for part in parts {
            assert!(said.contains(part), "`{part}` is missing in: {said}");
        }
    };
    let oblong = files.npy("oblong.npy", &[2, 3], &[0.0; 6]);
    expect(ask(&oblong, &[]), 1, &["oblong.npy", "[2, 3]"]);
    let nan = files.square("nan.npy", &[0.1, f64::NAN, 0.3, 0.4]);
    expect(ask(&nan, &[]), 1, &["nan.npy", "[0, 1]", "NaN"]);
    let truncated = files.path("truncated.npy");
    let whole = std::fs::read(&good).unwrap();
    std::fs::write(&truncated, &whole[..whole.len() - 5]).unwrap();
    expect(ask(&text(&truncated), &[]), 1, &["truncated.npy"]);
    expect(ask(&text(&files.path("none.npy")), &[]), 1, &["none.npy"]);
    expect(ask("weights.txt", &[]), 1, &["weights.txt"]);
    let broken = files.path("broken.safetensors");
    std::fs::write(&broken, b"not one").unwrap();
    expect(ask(&text(&broken), &[]), 1, &["broken.safetensors"]);
    expect(subdeq(&["certify", "--weights", &text(&broken)]), 1, &["broken.safetensors", "not a valid"]);

    let long = files.npy("long.npy", &[1, 3], &[0.5; 3]);
    expect(ask(&good, &["--injection", &long]), 1, &["long.npy", "[1, 3]", "2 entries"]);
    expect(ask(&good, &["--activation", "gelu"]), 2, &["gelu"]);
    expect(ask(&good, &["--norm", "0.5"]), 2, &["0.5"]);
    expect(ask(&good, &["--power", "-1"]), 2, &["-1"]);
    expect(ask(&good, &["--teleport", "0.2"]), 2, &["teleport"]);
    let ratio = ["certify", "--weights", &good, "--map", "power-ratio", "--shift", "-0.5"];
    expect(subdeq(&ratio), 2, &["power ratio has no shift"]);
    let power = ["certify", "--weights", &good, "--map", "split-sign", "--power", "0.5"];
    expect(subdeq(&power), 2, &["takes a power"]);
    let power = ["certify", "--weights", &good, "--map", "monotone", "--power", "2"];
    expect(subdeq(&power), 2, &["monotone map has no power"]);
    expect(subdeq(&["certify", "--weights", &good, "--map", "subdeq-tahn"]), 2, &["subdeq-tahn"]);
    expect(subdeq(&["certify", "--weights", &good]), 2, &["--map"]);
    let signed = files.square("signed.npy", &[0.1, 0.2, -0.3, 0.4]);
    expect(
        subdeq(&["certify", "--weights", &signed, "--map", "row-signed"]),
        1,
        &["signed.npy", "[1, 1]", "0.4"],
    );
    assert_eq!(status(&subdeq(&["certify", "--no-such-option"])), 2);
}

/// A map of |W| is one whatever the signs in the file, and says so.
#[test]
fn absolute_weights_are_said_to_be() {
    let files = Files::new();
    let signed = files.square("signed.npy", &[0.1, 0.2, -0.3, 0.4]);
    let positive = files.square("positive.npy", &[0.1, 0.2, 0.3, 0.4]);
    for map in ["excitatory", "subdeq-abs-normalized-tanh"] {
        let ask = |weights: &str| json(&subdeq(&["certify", "--weights", weights, "--map", map, "--json"]));
        let (of_signed, of_positive) = (ask(&signed), ask(&positive));
        assert_eq!(of_signed["verdict"], "proven", "{map}");
        assert_eq!(of_signed["factor"], of_positive["factor"], "{map}");
        assert_eq!(of_signed["weights"], format!("|W| of {signed}"));
        assert_eq!(of_positive["weights"], positive);
        let said = subdeq(&["certify", "--weights", &signed, "--map", map]);
        assert!(String::from_utf8_lossy(&said.stdout).starts_with(&format!("weights: |W| of {signed}\n")));
    }
}

/// What is proven for y >= 0 is not proven for every y.
#[test]
fn the_inputs_are_asked_for() {
    let files = Files::new();
    let weights = files.square("w.npy", &[0.0, -5.0, -5.0, 0.0]);
    let ask = |map: &str, more: &[&str]| {
        let arguments = ["certify", "--weights", &weights, "--map", map, "--json"];
        json(&subdeq(&[&arguments[..], more].concat()))
    };
    let usual = ask("split-sign", &[]);
    assert_eq!((&usual["verdict"], &usual["scope"]), (&"proven".into(), &"nonnegative-inputs".into()));
    assert_eq!(usual["states"], "positive");
    assert_eq!(ask("split-sign", &["--inputs", "nonnegative"])["verdict"], "proven");
    let all = ask("split-sign", &["--inputs", "all"]);
    assert_eq!(all["scope"], "all-inputs");
    assert_ne!(all["verdict"], "proven", "{all}");
    let injection = files.npy("y.npy", &[2, 2], &[-1.2, -1.2, 0.0, 0.0]);
    let samples = ask("split-sign", &["--injection", &injection]);
    assert_ne!(samples["samples"][0]["verdict"], "proven", "{samples}");
    assert_eq!(samples["samples"][1]["verdict"], "proven", "{samples}");
    let mild = files.square("mild.npy", &[0.5, 0.2, -0.2, 0.5]);
    let monotone = json(&subdeq(&["certify", "--weights", &mild, "--map", "monotone", "--json"]));
    assert_eq!((&monotone["verdict"], &monotone["scope"]), (&"proven".into(), &"all-inputs".into()));
}
