//! A training that is killed at any moment and continued ends with the same bits as one that was left alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Kills per case; `SUBDEQ_KILLS=120 cargo test --release -p subdeq-cli --test program killed` is the stress test.
fn kills() -> usize {
    std::env::var("SUBDEQ_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

fn train(folder: &Path, out: &str, threads: &str, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_subdeq"));
    command
        .args(["train", "--resume", "--quiet", "--certify", "0", "--epochs", "6", "--out", out])
        .args(["--threads", threads])
        .args(options)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// The metrics without the times.
fn metrics(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = |line: &str| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("seconds");
        value
    };
    text.lines().map(line).collect()
}

fn survives(options: &[&str], seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let left_alone = train(path, "alone", "2", options).output().unwrap();
    assert!(left_alone.status.success(), "{}", String::from_utf8_lossy(&left_alone.stderr));

    // Every batch is a checkpoint, so that most kills fall into the writing of one.
    let often = [options, &["--checkpoint-seconds", "0"]].concat();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut killed, mut ended) = (0, 0);
    while killed < kills() {
        let mut child = train(path, "killed", "1", &often).spawn().unwrap();
        sleep(Duration::from_micros(rng.next_u64() % 400_000));
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // It came to its end before the kill: compare, and begin again.
            compare(path);
            std::fs::remove_dir_all(path.join("killed")).unwrap();
            ended += 1;
            assert!(ended < 10 * (1 + killed), "{ended} runs ended before a kill");
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
    }
    let last = train(path, "killed", "1", &often).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    compare(path);
    println!("{options:?}: {killed} kills, {} runs compared", ended + 1);
}

fn compare(path: &Path) {
    let bytes = |run: &str| std::fs::read(path.join(run).join("model.safetensors")).unwrap();
    assert!(bytes("alone") == bytes("killed"), "the models differ");
    let metrics = |run: &str| metrics(&path.join(run).join("metrics.jsonl"));
    assert_eq!(metrics("alone"), metrics("killed"));
    assert_eq!(metrics("killed").len(), 6);
}

#[test]
fn a_monotone_model_with_a_chosen_step() {
    survives(&["--model", "monotone"], 1);
}

#[test]
fn a_subhomogeneous_model_with_warm_starts() {
    survives(&["--model", "split-sign", "--warm-start"], 2);
}
