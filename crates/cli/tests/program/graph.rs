//! Training on graphs through the program: run folders, evaluation, drawing, continuation, refusals.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use subdeq_data::npy::{NpyArray, NpyData};

use crate::killed::completed;

fn subdeq(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(arguments).output().unwrap()
}

fn succeed(arguments: &[&str]) -> String {
    let output = subdeq(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn refused(arguments: &[&str], status: i32, words: &str) {
    let output = subdeq(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {errors}");
    assert!(errors.contains(words), "{arguments:?}: {errors}");
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn the_karate_club_from_training_to_evaluation_and_drawing() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let path = run.to_str().unwrap();
    let told = succeed(&["train", "--data", "karate", "--epochs", "150", "--out", path, "--json"]);
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["samples"], 16);
    assert_eq!(told["certified"], 1.0);

    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 150);
    let line: Value = serde_json::from_str(metrics.lines().last().unwrap()).unwrap();
    assert_eq!((&line["epoch"], &line["converged"]), (&Value::from(150), &Value::from(1.0)));

    let evaluation = json(&run.join("evaluation.json"));
    let again: Value = serde_json::from_str(&succeed(&["eval", path, "--json"])).unwrap();
    assert_eq!(evaluation, again);
    assert_eq!(evaluation["accuracy"], told["accuracy"]);
    assert_eq!(evaluation["all_inputs"]["verdict"], "proven");
    assert!((evaluation["all_inputs"]["factor"].as_f64().unwrap() - 0.9).abs() < 1e-6);
    assert!(succeed(&["eval", path]).contains("of 16 nodes right"));

    let drawing = json(&run.join("graph.json"));
    assert_eq!(drawing["nodes"].as_array().unwrap().len(), 34);
    assert_eq!(drawing["edges"].as_array().unwrap().len(), 78);
    assert_eq!(drawing["nodes"][33]["part"], "train");

    refused(&["train", "--data", "karate", "--out", path], 1, "holds a run already");
    refused(&["train", "--data", "karate", "--out", path, "--resume"], 2, "epochs was 150, not 2000");
}

#[test]
fn a_killed_run_continues_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["train", "--data", "karate", "--model", "appnp-tanh", "--form", "release", "--quiet"];
    let length = ["--epochs", "1500", "--patience", "1500", "--out"];
    let (whole, cut) = (folder.path().join("whole"), folder.path().join("cut"));
    let train = |out: &Path, more: &[&str]| {
        let out = out.to_str().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_subdeq"));
        command.args(options).args(length).arg(out).args(more);
        command
    };
    assert!(train(&whole, &[]).status().unwrap().success());
    // A checkpoint after every epoch, and killed at one of the first hundred or so.
    let mut child = train(&cut, &["--checkpoint-seconds", "0"]).spawn().unwrap();
    let epochs = || fs::read_to_string(cut.join("metrics.jsonl")).map_or(0, |text| text.lines().count());
    while epochs() < 20 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!cut.join("model.safetensors").exists());
    let kept = completed(&cut);
    assert!(kept.len() >= 19, "{}", kept.len());
    assert!(train(&cut, &["--resume"]).status().unwrap().success());
    for file in ["model.safetensors", "checkpoint.safetensors", "evaluation.json"] {
        assert_eq!(fs::read(cut.join(file)).unwrap(), fs::read(whole.join(file)).unwrap(), "{file}");
    }
    assert_eq!(epochs(), 1500);
    assert!(completed(&cut).starts_with(&kept), "epochs were trained again");
}

#[test]
fn a_folder_of_ones_own_and_several_seeds() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("mine");
    fs::create_dir(&data).unwrap();
    // Two cliques of ten with one edge between them; a listed self-loop and an edge given twice do no harm.
    let clique = |first: usize| {
        (0..10).flat_map(move |i| (0..i).map(move |j| format!("{} {}\n", first + i, first + j)))
    };
    let edges: String = clique(0).chain(clique(10)).chain(["0 10\n3 3\n10 0\n".to_owned()]).collect();
    fs::write(data.join("edges.txt"), edges).unwrap();
    fs::write(data.join("labels.txt"), "0\n".repeat(10) + &"1\n".repeat(10)).unwrap();
    let (data, out) = (data.to_str().unwrap().to_owned(), folder.path().join("runs"));
    let out = out.to_str().unwrap();
    let told = succeed(&[
        "train",
        "--data",
        &data,
        "--model",
        "appnp",
        "--labelled",
        "0.3",
        "--epochs",
        "80",
        "--seeds",
        "3",
        "--out",
        out,
        "--json",
    ]);
    let last: Value = serde_json::from_str(told.lines().last().unwrap()).unwrap();
    assert_eq!(last["seeds"], 3);
    assert!(last["mean_accuracy"].as_f64().unwrap() > 95.0, "{told}");

    fs::write(folder.path().join("mine/labels.txt"), "0\n".repeat(5)).unwrap();
    refused(&["train", "--data", &data], 1, "5");
}

#[test]
fn what_makes_no_sense_is_refused_with_a_sentence() {
    refused(
        &["train", "--data", "karate", "--model", "appnp-relu"],
        2,
        "there is no graph model `appnp-relu`",
    );
    refused(&["train", "--data", "karate", "--pool", "4"], 2, "--pool is for images");
    refused(&["train", "--data", "karate", "--teleport", "1.5"], 2, "between 0 and 1");
    refused(&["train", "--data", "digits", "--teleport", "0.2"], 2, "--teleport is for graphs");
}

#[test]
fn graphs_are_listed_checked_and_shown_among_the_data_sets() {
    let listed = succeed(&["data", "list"]);
    for name in ["digits", "karate", "dblp"] {
        assert!(listed.lines().any(|line| line.starts_with(name)), "{listed}");
    }
    assert_eq!(succeed(&["data", "check", "karate"]), "karate: 34 nodes and 78 edges read\n");
    let shown: Value = serde_json::from_str(&succeed(&["data", "show", "karate", "--json"])).unwrap();
    assert_eq!((&shown["nodes"], &shown["edges"]["edges"]), (&34.into(), &78.into()));
    assert!(succeed(&["data", "show", "karate"]).contains("2 classes"));
    let folder = tempfile::tempdir().unwrap();
    refused(&["data", "show", "dblp", "--data-dir", folder.path().to_str().unwrap()], 1, "graphs/dblp");
}

/// One hyperedge holds everybody: its expansion would have 5e9 pairs, the hyperedge itself 1e5 nodes.
#[test]
fn hyperedges_of_very_many_nodes_are_propagated_over_and_not_expanded() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("large");
    fs::create_dir(&data).unwrap();
    let nodes = 100_000;
    let everybody: Vec<String> = (1..=nodes).map(|node| node.to_string()).collect();
    fs::write(data.join("hyperedges-large.txt"), format!("1,2,2\n\n3\n{}\n", everybody.join(","))).unwrap();
    let labels: String = (0..nodes).map(|node| format!("{}\n", 1 + node % 2)).collect();
    fs::write(data.join("node-labels-large.txt"), labels).unwrap();
    let features: String = (0..nodes).map(|node| if node % 2 == 0 { "1,0\n" } else { "0,1\n" }).collect();
    fs::write(data.join("features.csv"), features).unwrap();
    let (data, out) = (data.to_str().unwrap(), folder.path().join("run"));
    let train = ["train", "--data", data, "--labelled", "0.01", "--epochs", "3", "--json"];
    let told = succeed(&[&train[..], &["--model", "hyper-appnp", "--out", out.to_str().unwrap()]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["certified"], &told["converged"]), (&Value::from(1.0), &Value::from(1.0)));
    refused(&[&train[..], &["--model", "appnp"]].concat(), 1, "clique expansion");
}

#[test]
fn what_only_some_graph_models_have_is_refused_for_the_others() {
    let karate = ["train", "--data", "karate", "--model"];
    let own = [&karate[..], &["hyper-appnp", "--form", "paper"]].concat();
    refused(&own, 2, "is not a model of the paper");
    refused(&[&karate[..], &["appnp", "--power", "2"]].concat(), 2, "takes no power means");
    for power in ["0.5", "-1", "nan", "inf", "101"] {
        let hyper_power = [&karate[..], &["hyper-power", "--power", power]].concat();
        refused(&hyper_power, 2, "the power of its means must lie between 1 and 100");
    }
    refused(&["train", "--data", "digits", "--power", "2"], 2, "--power is for graphs");
    refused(&["reproduce", "graphs", "--only", "karate"], 2, "--only karate: known are");
    refused(&["reproduce", "graphs", "--models", "gcn"], 2, "--models gcn: known are");
}

#[test]
fn power_means_go_from_training_to_every_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (run, again) = (path("run"), path("again"));
    let train =
        ["train", "--data", "karate", "--model", "hyper-power", "--power", "3", "--epochs", "40", "--json"];
    let told = succeed(&[&train[..], &["--out", &run]].concat());
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["certified"], &told["converged"]), (&Value::from(1.0), &Value::from(1.0)));
    let verdict = &told["all_inputs"];
    assert_eq!((&verdict["theorem"], &verdict["metric"]), (&"power-means".into(), &"weighted-sup".into()));
    assert!((verdict["factor"].as_f64().unwrap() - 0.9).abs() < 1e-6);
    let words = verdict["words"].as_str().unwrap();
    assert!(words.contains("exactly one fixed point for every input y >= 0"), "{words}");

    let evaluation: Value = serde_json::from_str(&succeed(&["eval", &run, "--json"])).unwrap();
    assert_eq!(evaluation, json(&Path::new(&run).join("evaluation.json")));
    assert!(succeed(&["certify", &run]).starts_with("PROVEN"));
    assert!(succeed(&["predict", &run, "0", "33"]).lines().count() >= 2);
    // The same from its config, with another number of threads.
    let config = format!("{run}/config.toml");
    succeed(&["train", "--config", &config, "--threads", "2", "--quiet", "--out", &again]);
    assert_eq!(evaluation, json(&Path::new(&again).join("evaluation.json")));
    let changed = ["train", "--config", &config, "--power", "2", "--out", &path("other")];
    refused(&changed, 2, "--power makes another model");

    let written = fs::read_to_string(&config).unwrap();
    for (from, to, words) in [
        ("power = 3.0", "power = 0.5", "must lie between 1 and 100"),
        ("power = 3.0", "power = nan", "must lie between 1 and 100"),
        ("\"Softplus\"", "\"Signed\"", "Softplus or Relu"),
    ] {
        assert!(written.contains(from), "{written}");
        let bad = path("bad.toml");
        fs::write(&bad, written.replace(from, to)).unwrap();
        refused(&["train", "--config", &bad, "--out", &path("bad")], 1, words);
    }
    let weights = path("w.npy");
    let identity = NpyArray::new(vec![2, 2], NpyData::F64(vec![1.0, 0.0, 0.0, 1.0])).unwrap();
    identity.write(Path::new(&weights)).unwrap();
    refused(&["certify", "--weights", &weights, "--map", "hyper-power"], 2, "does not tell");
}
