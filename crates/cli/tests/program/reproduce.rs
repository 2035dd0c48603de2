//! The experiments of `reproduce`, on a data set small enough for a test.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// A folder laid out as MNIST with a few images: a bright row whose place is the class.
pub fn write_mnist(folder: &Path) {
    let folder = folder.join("mnist");
    fs::create_dir_all(&folder).unwrap();
    for (part, count) in [("train", 120u32), ("t10k", 40)] {
        let mut images = Vec::from([0, 0, 8, 3]);
        for n in [count, 28, 28] {
            images.extend(n.to_be_bytes());
        }
        let mut labels = Vec::from([0, 0, 8, 1]);
        labels.extend(count.to_be_bytes());
        for k in 0..count {
            let class = k % 10;
            labels.push(class as u8);
            let bright = |pixel: u32| (pixel / 28) / 3 == class;
            images.extend((0..784).map(|pixel| if bright(pixel) { 200 + (k % 50) as u8 } else { 0 }));
        }
        fs::write(folder.join(format!("{part}-images-idx3-ubyte")), images).unwrap();
        fs::write(folder.join(format!("{part}-labels-idx1-ubyte")), labels).unwrap();
    }
}

fn reproduce(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq"))
        .arg("reproduce")
        .args(arguments)
        .args(["--data-dir", ".", "--jobs", "2", "--epochs", "2"])
        .current_dir(folder)
        .output()
        .unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_was_run_is_not_run_again_and_what_is_missing_is() {
    let folder = tempfile::tempdir().unwrap();
    write_mnist(folder.path());
    let table = [
        "table3",
        "--only",
        "mnist-dense",
        "--models",
        "subdeq-tanh,explicit-tanh,split-sign",
        "--seeds",
        "2",
    ];
    let first = reproduce(folder.path(), &table);
    assert!(first.status.success(), "{}", stderr(&first));
    assert!(stderr(&first).contains("6 of 6 runs to make"), "{}", stderr(&first));
    let path = folder.path().join("results/mnist-dense.json");
    let ledger: Vec<Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(ledger.len(), 6);
    for entry in &ledger {
        assert_eq!(entry["validation_errors"].as_array().unwrap().len(), 2);
        assert_eq!(entry["config"]["epochs"], 2);
    }
    let markdown = fs::read_to_string(folder.path().join("results/table3.md")).unwrap();
    assert!(markdown.contains("| `subdeq-tanh` | 2 | ") && markdown.contains("1.92 ± 0.102"), "{markdown}");
    assert!(markdown.contains("`split-sign`"), "{markdown}");

    let again = reproduce(folder.path(), &table);
    assert!(again.status.success() && !stderr(&again).contains("runs to make"), "{}", stderr(&again));
    assert_eq!(first.stdout, again.stdout);

    // One entry is lost: that run alone is made good from its folder, with the same result.
    let lost = ledger[3].clone();
    let others: Vec<&Value> = ledger.iter().filter(|entry| **entry != lost).collect();
    fs::write(&path, serde_json::to_string(&others).unwrap()).unwrap();
    let repaired = reproduce(folder.path(), &table);
    assert!(stderr(&repaired).contains("1 of 6 runs to make"), "{}", stderr(&repaired));
    assert_eq!(first.stdout, repaired.stdout);
    let ledger: Vec<Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(ledger.iter().any(|entry| entry["error"] == lost["error"] && entry["seed"] == lost["seed"]));

    // The figure is of the same runs.
    let figure = ["figure2", "--models", "subdeq-tanh,explicit-tanh", "--seeds", "2"];
    let figure = reproduce(folder.path(), &figure);
    assert!(figure.status.success() && !stderr(&figure).contains("runs to make"), "{}", stderr(&figure));
    let csv = fs::read_to_string(folder.path().join("results/figure2.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 2 * 2 * 2);
    let png = fs::read(folder.path().join("results/figure2.png")).unwrap();
    assert_eq!(&png[1..4], b"PNG");

    // And so is the report.
    let report = Command::new(env!("CARGO_BIN_EXE_subdeq"))
        .args(["report", "runs", "--out", "page.html"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(report.status.success(), "{}", stderr(&report));
    let page = fs::read_to_string(folder.path().join("page.html")).unwrap();
    assert!(page.contains("6 runs") && page.contains("1.92 ± 0.102") && page.contains("PROVEN"));
}

#[test]
fn what_does_not_exist_is_refused_with_what_does() {
    let folder = tempfile::tempdir().unwrap();
    let column = reproduce(folder.path(), &["table3", "--only", "imagenet"]);
    assert_eq!(column.status.code(), Some(2));
    assert!(stderr(&column).contains("mnist-dense"), "{}", stderr(&column));
    let row = reproduce(folder.path(), &["table5", "--only", "mnist-dense", "--models", "transformer"]);
    assert_eq!(row.status.code(), Some(2));
    assert!(stderr(&row).contains("subdeq-power-tanh"), "{}", stderr(&row));
    let data = reproduce(folder.path(), &["table3", "--only", "svhn", "--seeds", "1"]);
    assert_eq!(data.status.code(), Some(1));
    assert!(stderr(&data).contains("svhn"), "{}", stderr(&data));
}
