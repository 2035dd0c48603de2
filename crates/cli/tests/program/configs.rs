//! `config.toml`: every key has its line in the documentation, and options take the place of what it says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PAGE: &str = include_str!("../../../../docs/config.md");

fn subdeq(folder: &Path, args: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args.split(' ')).current_dir(folder).output().unwrap()
}

fn succeed(folder: &Path, args: &str) {
    let output = subdeq(folder, args);
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
}

fn refused(folder: &Path, args: &str) -> String {
    let output = subdeq(folder, args);
    assert_eq!(output.status.code(), Some(2), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn config(folder: &Path, run: &str) -> toml::Table {
    fs::read_to_string(folder.join(run).join("config.toml")).unwrap().parse().unwrap()
}

/// The keys of a table and of those in it, with dots.
fn keys(prefix: &str, table: &toml::Table, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let path = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match value {
            toml::Value::Table(inner) => keys(&path, inner, found),
            // Blocks, whose cores have the keys of the first one's.
            toml::Value::Array(items) if items.first().is_some_and(toml::Value::is_table) => {
                let inner = items.iter().filter_map(toml::Value::as_table).flat_map(toml::Table::keys);
                found.extend(inner.map(|key| format!("{path}.{key}")));
            }
            _ => {
                found.insert(path);
            }
        }
    }
}

#[test]
fn the_page_has_every_key_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut real = BTreeSet::new();
    succeed(path, "data export digits own.npz --as npz");
    let runs = [
        "--model monotone",
        "--model monotone-tied --injection-norm --dropout-head 0.1",
        "--model monotone-tied --arch conv --blocks 4,6",
        "--model monotone-tied --arch conv --channels 4 --kernel 5",
        "--lipschitz 4",
        "--data own.npz --arch dense --split standard --validation 100",
        "--model subdeq-tanh --arch conv --pool 4 --channels 4",
        "--model subdeq-normalized-tanh --solver broyden",
        "--model subdeq-power-tanh --solver picard",
        "--model divisive",
        "--model rational --slices 4",
        "--model power-ratio",
        "--model gains",
        "--model node-tanh --channels 8",
        "--model explicit-tanh",
        "--data karate --labelled 0.5",
        "--data karate --solver anderson",
        "--data karate --form release",
        "--data karate --model hyper-power --power 3",
        "--data karate --teaching 1 --averaging 0.9",
        "--data karate --form paper --model appnp-normalized-tanh",
    ];
    for (k, options) in runs.iter().enumerate() {
        succeed(path, &format!("train {options} --epochs 1 --certify 0 --quiet --out run{k}"));
        keys("", &config(path, &format!("run{k}")), &mut real);
    }
    let row = |line: &str| line.strip_prefix("| `").and_then(|rest| Some(rest.split_once('`')?.0.to_owned()));
    let documented: BTreeSet<String> = PAGE.lines().filter_map(row).collect();
    let missing: Vec<&String> = real.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/config.md does not have {missing:?}");
    let foreign: Vec<&String> = documented.difference(&real).collect();
    assert!(foreign.is_empty(), "no config has {foreign:?}, which docs/config.md speaks of");
}

#[test]
fn options_take_the_place_of_what_a_config_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    succeed(path, "train --model split-sign --epochs 1 --channels 16 --certify 0 --quiet --out first");
    fs::copy(path.join("first/config.toml"), path.join("mine.toml")).unwrap();
    succeed(
        path,
        "train --config mine.toml --lr 0.002 --channels 12 --tol 0.01 --max-iterations 40 --certify 0 --quiet --out second",
    );
    let (first, second) = (config(path, "first"), config(path, "second"));
    assert_eq!(second["rate"]["start"].as_float(), Some(0.002));
    assert_eq!(second["model"]["hidden"].as_integer(), Some(12));
    let stopping = &second["model"]["core"]["stopping"];
    assert_eq!(stopping["max_iterations"].as_integer(), Some(40));
    assert_eq!(stopping["rule"]["relative"].as_float(), Some(0.01));
    assert_eq!(&second["model"]["core"]["adjoint"]["stopping"], stopping);
    // All else is the config's.
    assert_eq!(second["model"]["core"]["architecture"], first["model"]["core"]["architecture"]);
    assert_eq!((&second["data"], &second["epochs"]), (&first["data"], &first["epochs"]));

    // Nothing given: the same run, to the bit.
    succeed(path, "train --config mine.toml --certify 0 --quiet --out again");
    let bytes = |run: &str| fs::read(path.join(run).join("model.safetensors")).unwrap();
    assert!(bytes("first") == bytes("again"));
    // Another model, another architecture.
    succeed(
        path,
        "train --config mine.toml --arch conv --model rational --channels 4 --certify 0 --quiet --out conv",
    );
    assert_eq!(config(path, "conv")["model"]["core"]["architecture"]["name"].as_str(), Some("rational"));
    assert!(config(path, "conv")["model"]["pool"].is_integer());

    // A run goes on with its own solver.
    let said = refused(path, "train --resume --out first --tol 0.5");
    assert!(said.contains("leave --solver, --tol and --max-iterations out"), "{said}");
    assert!(
        refused(path, "train --model explicit-tanh --tol 0.1").contains("solves no fixed-point equation")
    );
    assert!(refused(path, "train --tol -1").contains("a number from 0"));

    // The same on a graph.
    succeed(path, "train --data karate --epochs 5 --quiet --out graph");
    fs::copy(path.join("graph/config.toml"), path.join("graph.toml")).unwrap();
    succeed(
        path,
        "train --config graph.toml --epochs 7 --solver anderson --tol 0.00001 --quiet --out graph2",
    );
    let training = &config(path, "graph2")["training"];
    assert_eq!(training["epochs"].as_integer(), Some(7));
    assert_eq!(training["model"]["mode"]["solver"]["name"].as_str(), Some("anderson"));
    assert_eq!(training["model"]["mode"]["tolerance"].as_float(), Some(1e-5));
    assert!(refused(path, "train --config graph.toml --teleport 0.3").contains("--teleport"));
}
