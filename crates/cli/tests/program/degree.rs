//! `subdeq degree`, `reproduce`, `completions`, `man`.

use std::process::{Command, Output};

use serde_json::Value;

fn subdeq(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_subdeq")).args(args).output().expect("the program starts")
}

fn printed(args: &[&str]) -> String {
    let output = subdeq(args);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn degree(args: &[&str]) -> Value {
    serde_json::from_str(&printed(&[&["degree"], args, &["--json"]].concat())).unwrap()
}

#[test]
fn degrees_as_json() {
    let object = degree(&["tanh", "--shift", "1.2"]);
    assert!((object["degree"].as_f64().unwrap() - 0.999124).abs() < 1e-6);
    assert_eq!((object["domain"].as_str(), object["strong"].as_bool()), (Some("reals"), Some(true)));
    let object = degree(&["tanh", "--shift", "1.2", "--power", "0.5", "--domain", "nonnegative"]);
    assert!((object["degree"].as_f64().unwrap() - 0.123497).abs() < 1e-6);
    assert!(degree(&["sigmoid"])["degree"].is_null());
    assert!(degree(&["tanh", "--shift", "-0.5"])["degree"].is_null());
    assert_eq!(degree(&["softplus", "--beta", "2", "--domain", "nonnegative"])["degree"], 1.0);
    assert_eq!(degree(&["log-sum-exp", "--domain", "nonnegative"])["degree"], 1.0);
}

#[test]
fn degrees_in_words() {
    assert!(printed(&["degree", "tanh", "--shift", "1.2"]).contains("0.99912316"));
    assert!(printed(&["degree", "sigmoid"]).contains("infinite"));
    assert!(printed(&["degree", "relu"]).contains("needs a shift"));
}

#[test]
fn bad_requests() {
    for (args, part) in [
        (vec!["degree", "gelu"], "gelu"),
        (vec!["degree", "tanh", "--beta", "2"], "--beta"),
        (vec!["degree", "softplus", "--beta", "-1"], "-1"),
        (vec!["degree", "tanh", "--power", "0"], "--power"),
        (vec!["degree", "tanh", "--shift", "NaN"], "NaN"),
    ] {
        let output = subdeq(&args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{args:?}");
    }
}

#[test]
fn the_papers_tables() {
    let first = printed(&["reproduce", "table1"]);
    for value in ["0.278465", "0.999124", "0.499196", "0.246994", "not positive"] {
        assert!(first.contains(value), "{value}: {first}");
    }
    let second = printed(&["reproduce", "table2"]);
    assert_eq!(second.matches("REFUTED").count(), 2, "{second}");
    assert_eq!(second.matches("PROVEN").count(), 7, "{second}");
}

#[test]
fn completions_and_manual() {
    assert!(printed(&["completions", "bash"]).contains("certify"));
    assert!(printed(&["man"]).contains("subdeq"));
}
