//! A training that is asked to end, is used meanwhile, goes on, and becomes longer.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::killed::completed;

fn subdeq(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_subdeq"));
    command.args(args).current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Sends a signal by the system's own program.
pub fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

#[test]
fn a_signal_ends_a_training_after_the_step_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let alone =
        subdeq(path, &["train", "--epochs", "40", "--certify", "0", "--out", "alone"]).output().unwrap();
    assert!(alone.status.success(), "{}", said(&alone));
    for (name, status, epochs) in [("-INT", 130, 2), ("-TERM", 143, 4)] {
        let mut child = subdeq(
            path,
            &["train", "--resume", "--epochs", "40", "--certify", "0", "--out", "run", "--data-dir", "data"],
        )
        .spawn()
        .unwrap();
        while completed(&path.join("run")).len() < epochs {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was asked to");
            sleep(Duration::from_millis(1));
        }
        signal(name, child.id());
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(status), "{}", said(&ended));
        assert!(
            said(&ended).contains("go on with `subdeq train --resume --out run --data-dir data`"),
            "{}",
            said(&ended)
        );
    }
    // Its best model so far can be used.
    let tested = subdeq(path, &["eval", "run", "--samples", "0"]).output().unwrap();
    assert!(tested.status.success() && said(&tested).contains("test error"), "{}", said(&tested));
    let last = subdeq(path, &["train", "--resume", "--out", "run", "--certify", "0"]).output().unwrap();
    assert!(last.status.success(), "{}", said(&last));
    assert!(said(&last).contains("goes on after "), "{}", said(&last));
    let model = |run: &str| std::fs::read(path.join(run).join("model.safetensors")).unwrap();
    assert!(model("alone") == model("run"), "the models differ");
}

#[test]
fn a_run_becomes_longer_and_contradictions_are_named_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let train = |options: &[&str]| {
        let usual = ["train", "--resume", "--out", "run", "--certify", "0"];
        subdeq(path, &[&usual, options].concat()).output().unwrap()
    };
    assert!(train(&["--epochs", "3", "--model", "rational", "--channels", "20"]).status.success());
    let longer = train(&["--epochs", "5", "--model", "rational"]);
    assert!(longer.status.success(), "{}", said(&longer));
    assert!(said(&longer).contains("5 epochs instead of 3: from epoch 4 on"), "{}", said(&longer));
    assert_eq!(completed(&path.join("run")).len(), 5);
    let config = std::fs::read_to_string(path.join("run/config.toml")).unwrap();
    assert!(config.contains("epochs = 5"), "{config}");

    let shorter = train(&["--epochs", "2"]);
    assert_eq!(shorter.status.code(), Some(1));
    assert!(said(&shorter).contains("run has begun epoch 5"), "{}", said(&shorter));
    let other = train(&["--lr", "0.01", "--channels", "20"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(said(&other).contains("(--lr 0.01 where it has 0.001)"), "{}", said(&other));
    assert_eq!(std::fs::read_to_string(path.join("run/config.toml")).unwrap(), config);
}

#[test]
fn a_result_is_printed_where_it_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let trained = subdeq(path, &["train", "--epochs", "1", "--quiet", "--out", "run"]).output().unwrap();
    assert!(trained.status.success(), "{}", said(&trained));
    // A folder in the place of the file: even those who may write everywhere cannot replace it.
    std::fs::remove_file(path.join("run/evaluation.json")).unwrap();
    std::fs::create_dir_all(path.join("run/evaluation.json/in-the-way")).unwrap();
    let tested = subdeq(path, &["eval", "run"]).output().unwrap();
    assert!(tested.status.success(), "{}", said(&tested));
    assert!(
        said(&tested).contains("test error") && said(&tested).contains("cannot be written"),
        "{}",
        said(&tested)
    );
}
