//! A training that is killed at any moment and continued ends with the same bits as one that was left alone.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::stopped::signal;

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

/// The note of a run's checkpoint, if there is one.
fn checkpoint(run: &Path) -> Option<serde_json::Value> {
    let bytes = std::fs::read(run.join("checkpoint.safetensors")).ok()?;
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let header: serde_json::Value =
        serde_json::from_slice(&rest[..u64::from_le_bytes(*length) as usize]).unwrap();
    Some(serde_json::from_str(header["__metadata__"]["subdeq"].as_str().unwrap()).unwrap())
}

/// Updates that a run's checkpoint has behind it.
fn steps(run: &Path) -> u64 {
    checkpoint(run).map_or(0, |note| note["step"].as_u64().unwrap())
}

/// The lines of metrics that the checkpoint of a run counts as completed, with their times: an epoch that is trained again
/// takes another time.
pub fn completed(run: &Path) -> Vec<String> {
    let Some(note) = checkpoint(run) else { return Vec::new() };
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    text.lines().take(note["epoch"].as_u64().unwrap() as usize).map(str::to_owned).collect()
}

/// The metrics without the times.
pub fn metrics(path: &Path) -> Vec<serde_json::Value> {
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
    let (mut kept, mut done) = (Vec::<String>::new(), 0);
    while killed < kills() {
        let mut child = train(path, "killed", "1", &often).spawn().unwrap();
        sleep(Duration::from_micros(rng.next_u64() % 400_000));
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            // It came to its end before the kill: compare, and begin again.
            compare(path);
            assert!(completed(&path.join("killed")).starts_with(&kept), "epochs were trained again");
            std::fs::remove_dir_all(path.join("killed")).unwrap();
            (kept, done) = (Vec::new(), 0);
            ended += 1;
            assert!(ended < 10 * (1 + killed), "{ended} runs ended before a kill");
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        killed += 1;
        let now = completed(&path.join("killed"));
        assert!(now.starts_with(&kept), "epochs were trained again: {kept:?} became {now:?}");
        kept = now;
        let steps = steps(&path.join("killed"));
        assert!(steps >= done, "the work of {done} updates was thrown away, {steps} are done");
        done = steps;
    }
    let last = train(path, "killed", "1", &often).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    compare(path);
    assert!(completed(&path.join("killed")).starts_with(&kept), "epochs were trained again");
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
fn a_monotone_model_with_a_number_among_its_parameters() {
    survives(&["--model", "monotone-tied"], 3);
}

#[test]
fn a_subhomogeneous_model_with_warm_starts() {
    survives(&["--model", "split-sign", "--warm-start"], 2);
}

/// What was trained before a kill is not trained again; and while one process trains, no other does.
#[test]
fn a_continued_run_keeps_its_epochs_and_a_folder_has_one_trainer() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let train = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_subdeq"));
        let usual = ["train", "--resume", "--quiet", "--certify", "0", "--epochs", "60", "--out", "run"];
        command.args(usual).args(more).current_dir(folder.path());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let mut child = train(&["--checkpoint-seconds", "0"]).spawn().unwrap();
    while completed(&run).len() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it could be killed");
        sleep(Duration::from_millis(1));
    }
    // The second one waits some seconds for a folder; the first one must not end meanwhile, however fast the machine is.
    signal("-STOP", child.id());
    let second = train(&[]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("another process trains in run"), "{said}");
    let done = completed(&run).len();
    signal("-CONT", child.id());
    while completed(&run).len() == done {
        assert!(child.try_wait().unwrap().is_none(), "the first one goes on");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = completed(&run);
    assert!((3..60).contains(&kept.len()), "{}", kept.len());
    let last = train(&[]).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    let now = completed(&run);
    assert!(now.len() == 60 && now.starts_with(&kept), "epochs were trained again");
}
