//! The program's `report`, as a person calls it.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

fn subdeq(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(arguments).current_dir(folder).output().unwrap()
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A string that would do harm wherever it is not escaped.
const HOSTILE: &str = "</style><script>alert('x')</script>\"onload=\"";

fn evaluation(name: &str) -> Value {
    json!({
        "data": name, "model": name, "samples": 3, "error": 33.333, "accuracy": 66.667, "loss": 0.5, "converged": 1.0,
        "certified": 0.5, "certified_samples": 2, "median_factor": 0.7,
        "all_inputs": { "verdict": name, "theorem": name, "factor": 0.5, "metric": name, "words": format!("PROVEN: {name}") },
        "confusion": [[2, 0], [1, 0]], "class_names": [name, "b"],
        "iterations": [[5, 2], [9, 1]], "residuals": [[0.5, 0.1, 1e-3]],
        "examples": [{ "index": 0, "height": 1, "width": 2, "channels": 1, "pixels": [0, 255], "label": 0, "prediction": 1,
                       "probability": 0.75, "certified": true, "radius": 0.0123 }],
    })
}

fn write_run(folder: &Path, name: &str) {
    fs::create_dir_all(folder).unwrap();
    let config = format!("seed = 3\nepochs = 2\nmodel = {0}\n[data]\nname = {0}\n", json!(name));
    fs::write(folder.join("config.toml"), config).unwrap();
    let epochs: String = (1..=2)
        .map(|k| {
            json!({ "epoch": k, "train_loss": 1.0 / f64::from(k), "validation_error": 10.0, "seconds": 1.0 })
                .to_string()
                + "\n"
        })
        .collect();
    fs::write(folder.join("metrics.jsonl"), epochs).unwrap();
    fs::write(folder.join("evaluation.json"), evaluation(name).to_string()).unwrap();
    let graph = json!({ "nodes": [{ "x": 0, "y": 0, "label": 0, "prediction": 0 }, { "x": 1, "y": 2, "label": 1, "prediction": 0 }],
                        "edges": [[0, 1]] });
    fs::write(folder.join("graph.json"), graph.to_string()).unwrap();
}

#[test]
fn a_page_needs_nothing_but_itself_and_shows_everything() {
    let folder = tempfile::tempdir().unwrap();
    write_run(&folder.path().join("run"), "some-model");
    let output = subdeq(folder.path(), &["report", "run"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(folder.path().join("run/report.html")).unwrap();
    let without_namespace = page.replace("http://www.w3.org/2000/svg", "");
    assert!(!without_namespace.contains("http") && !page.contains("<script") && !page.contains("<link"));
    for what in [
        "33.33 %",
        "Learning",
        "Solving",
        "Certificate",
        "Confusion",
        "radius 0.0123",
        "data:image/png",
        "Graph",
        "seed = 3",
    ] {
        assert!(page.contains(what), "{what}");
    }
    assert!(!page.contains("NaN"));
}

#[test]
fn hostile_strings_are_text() {
    let folder = tempfile::tempdir().unwrap();
    for k in 0..2 {
        write_run(&folder.path().join(format!("runs/<b>{k}")), HOSTILE);
    }
    let output = subdeq(folder.path(), &["report", "runs", "--out", "page.html"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(!page.contains("<script") && !page.contains("\"onload") && !page.contains("<b>0"));
    assert_eq!(page.matches("</style>").count(), 1 + page.matches("<svg xmlns").count());
    assert!(page.contains("&lt;script&gt;"));
}

#[test]
fn a_young_run_has_a_page_that_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.toml"), "seed = 1\n").unwrap();
    assert!(subdeq(folder.path(), &["report", "."]).status.success());
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("No epoch is completed yet") && page.contains("subdeq eval"));
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    assert!(complaint(&subdeq(folder.path(), &["report", "run"])).contains("run cannot be read"));
    fs::create_dir(&run).unwrap();
    assert!(complaint(&subdeq(folder.path(), &["report", "run"])).contains("config.toml"));
    write_run(&run, "m");
    for (file, bytes, complains) in [
        ("evaluation.json", "{", "evaluation.json"),
        ("metrics.jsonl", "{}\nnonsense\n{}\n", "metrics.jsonl, line 2"),
        ("graph.json", r#"{"nodes": [], "edges": [[0, 1]]}"#, "node that is not there"),
        ("config.toml", "seed = ", "config.toml"),
    ] {
        let whole = fs::read(run.join(file)).unwrap();
        fs::write(run.join(file), bytes).unwrap();
        let complaint = complaint(&subdeq(folder.path(), &["report", "run"]));
        assert!(complaint.contains(complains), "{complaint}");
        fs::write(run.join(file), whole).unwrap();
    }
    let unwritable = subdeq(folder.path(), &["report", "run", "--out", "no/such/folder.html"]);
    assert!(complaint(&unwritable).contains("folder.html cannot be written"));
}
