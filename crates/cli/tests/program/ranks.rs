//! Several processes that share a training (`mpirun -n 4 subdeq train ..`): the bits of one, whatever happens to them.
//!
//! They need a program with the feature `mpi`, which `SUBDEQ_MPI_PROGRAM` names (`.ci/run` builds it), and `mpirun`; where there is
//! none, the tests are skipped by name.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::killed::{completed, metrics};
use crate::reproduce::write_mnist;
use crate::skipped::skipped;

/// Longer than anything here takes, even on a busy machine: who waits that long hangs.
const PATIENCE: Duration = Duration::from_secs(240);

/// The program with MPI, or a note that the test is skipped.
pub fn program(test: &str) -> Option<PathBuf> {
    let program = match std::env::var_os("SUBDEQ_MPI_PROGRAM") {
        Some(path) => Some(PathBuf::from(path)),
        None => cfg!(feature = "mpi").then(|| PathBuf::from(env!("CARGO_BIN_EXE_subdeq"))),
    };
    if program.is_none() {
        skipped(format!("{test} (SUBDEQ_MPI_PROGRAM names no program with the feature mpi)"));
    }
    program
}

/// `mpirun` with what it needs on one small machine: as many processes as asked for, wherever, as root too.
pub fn mpirun(folder: &Path) -> Command {
    let mut command = Command::new("mpirun");
    command
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--mca",
            "mpi_yield_when_idle",
            "1",
        ])
        // Containers forbid one process to read another's memory; the copy through shared memory does as well.
        .args(["--mca", "btl_vader_single_copy_mechanism", "none"])
        .current_dir(folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// One program with so many ranks.
pub fn together(folder: &Path, ranks: usize, program: &Path, arguments: &str) -> Command {
    let mut command = mpirun(folder);
    command.args(["-n", &ranks.to_string()]).arg(program).args(arguments.split(' '));
    command
}

/// Waits for a process, but not for ever.
pub fn ended(mut child: Child) -> Output {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            let mut said = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut said);
            panic!("it hangs; it said: {said}");
        }
        sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

pub fn run(mut command: Command) -> Output {
    ended(command.spawn().expect("mpirun cannot be started: install openmpi-bin"))
}

pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub fn alone(folder: &Path, program: &Path, arguments: &str) {
    let mut command = Command::new(program);
    command.args(arguments.split(' ')).current_dir(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = run(command);
    assert!(output.status.success(), "{arguments}: {}", said(&output));
}

pub fn assert_same(folder: &Path, one: &str, other: &str) {
    let model = |run: &str| fs::read(folder.join(run).join("model.safetensors")).unwrap();
    assert!(model(one) == model(other), "the models of {one} and {other} differ");
    let metrics = |run: &str| metrics(&folder.join(run).join("metrics.jsonl"));
    assert_eq!(metrics(one), metrics(other), "{one} and {other}");
}

const USUAL: &str = "train --quiet --certify 0 --threads 1";

#[test]
fn the_bits_do_not_depend_on_the_number_of_ranks() {
    let Some(program) = program("the bits do not depend on the number of ranks") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (name, options) in [
        ("monotone", "--epochs 2 --model monotone"),
        ("subdeq", "--epochs 2 --model subdeq-tanh --batch 100 --injection-norm --dropout-head 0.1"),
        (
            "conv",
            "--epochs 1 --arch conv --model split-sign --channels 6 --pool 4 --warm-start --augment crop1",
        ),
        ("tied", "--epochs 1 --model monotone-tied"),
        ("ode", "--epochs 1 --model node-tanh --channels 16"),
    ] {
        alone(path, &program, &format!("{USUAL} {options} --slices 16 --out {name}-1"));
        for ranks in [2, 3, 4] {
            let out = format!("{name}-{ranks}");
            let output = run(together(path, ranks, &program, &format!("{USUAL} {options} --out {out}")));
            assert!(output.status.success(), "{out}: {}", said(&output));
            assert_same(path, &format!("{name}-1"), &out);
        }
    }
}

/// The processes that `mpirun` has started.
pub fn ranks_of(mpirun: &Child) -> Vec<u32> {
    let id = mpirun.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    children.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

pub fn signal(name: &str, process: u32) {
    let _ = Command::new("kill").args([name, &process.to_string()]).stderr(Stdio::null()).status();
}

#[test]
fn killed_ranks_end_all_and_the_run_goes_on_with_another_number() {
    let Some(program) = program("killed ranks end all, and the run goes on with another number") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let options = "--epochs 4 --model monotone --slices 16";
    alone(path, &program, &format!("{USUAL} {options} --out alone"));
    let resumed = format!("{USUAL} {options} --checkpoint-seconds 0 --resume --out killed");
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (mut killed, mut kept) = (0, Vec::<String>::new());
    for ranks in [4, 2, 3, 4].into_iter().cycle().take(40) {
        let mut child = together(path, ranks, &program, &resumed).spawn().unwrap();
        while ranks_of(&child).len() < ranks && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(rng.next_u64() % 2500));
        let victims = ranks_of(&child);
        if let Some(victim) = victims.get(rng.next_u64() as usize % victims.len().max(1)) {
            signal("-KILL", *victim);
        }
        let began = Instant::now();
        let output = ended(child);
        if output.status.success() {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "the others went on: {}", said(&output));
        killed += 1;
        let now = completed(&path.join("killed"));
        assert!(now.starts_with(&kept), "epochs were trained again: {kept:?} became {now:?}");
        kept = now;
        if killed == 4 {
            break;
        }
    }
    let last = run(together(path, 2, &program, &resumed));
    assert!(last.status.success(), "{}", said(&last));
    assert_same(path, "alone", "killed");
}

#[test]
fn a_signal_to_one_rank_stops_all_after_the_same_step() {
    let Some(program) = program("a signal to one rank stops all after the same step") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let options = "--epochs 30 --model explicit-tanh --slices 8";
    alone(path, &program, &format!("{USUAL} {options} --out alone"));
    let child = together(path, 2, &program, &format!("{USUAL} {options} --out stopped")).spawn().unwrap();
    while completed(&path.join("stopped")).len() < 2 {
        sleep(Duration::from_millis(2));
    }
    signal("-TERM", ranks_of(&child)[1]);
    let output = ended(child);
    assert_eq!(output.status.code(), Some(143), "{}", said(&output));
    assert!(said(&output).contains("go on with `subdeq train --resume --out stopped`"), "{}", said(&output));
    // One process goes on where two have stopped.
    alone(path, &program, &format!("{USUAL} --resume --out stopped"));
    assert_same(path, "alone", "stopped");
}

#[test]
fn what_ranks_do_not_share_is_told_in_a_sentence() {
    let Some(program) = program("what ranks do not share is told in a sentence") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let refused = |command: Command, sentence: &str| {
        let output = run(command);
        assert!(!output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(sentence), "{sentence}: {}", said(&output));
    };
    let train =
        |out: &str, more: &str| format!("{USUAL} --epochs 1 --out {out} {more}").trim_end().to_owned();
    // Two programs, each with its own arguments.
    let pair = |first: (&Path, &str), second: (&Path, &str), set: Option<&str>| {
        let mut command = mpirun(path);
        command.args(["-n", "1"]).arg(first.0).args(first.1.split(' ')).args([":", "-n", "1"]);
        if let Some(set) = set {
            command.args(["-x", set]);
        }
        command.arg(second.0).args(second.1.split(' '));
        command
    };
    for data in ["a", "b", "c"] {
        fs::create_dir(path.join(data)).unwrap();
    }
    write_mnist(&path.join("a"));
    write_mnist(&path.join("b"));
    let file = path.join("b/mnist/train-images-idx3-ubyte");
    let mut bytes = fs::read(&file).unwrap();
    bytes[5000] ^= 1;
    fs::write(&file, bytes).unwrap();
    let of = |data: &str| train("files", &format!("--data mnist --data-dir {data}"));
    let sentence = "ranks 0 and 1 do not agree about the training images: give every machine the same files";
    refused(pair((&program, &of("a")), (&program, &of("b")), None), sentence);
    // A machine without the data.
    refused(
        pair((&program, &train("none", "--data mnist --data-dir a")), (&program, &of("c")), None),
        "rank 1: ",
    );
    let other = path.join("other");
    fs::copy(&program, &other).unwrap();
    let mut longer = fs::OpenOptions::new().append(true).open(&other).unwrap();
    std::io::Write::write_all(&mut longer, b"x").unwrap();
    drop(longer);
    refused(
        pair((&program, &train("versions", "")), (&other, &train("versions", "")), None),
        "ranks 0 and 1 do not agree about the program: install the same build",
    );
    refused(
        pair((&program, &train("isa", "")), (&program, &train("isa", "")), Some("SUBDEQ_ISA=portable")),
        "ranks 0 and 1 do not agree about what they compute with: start it on machines of one kind",
    );
    refused(
        together(path, 3, &program, &train("few", "--slices 2")),
        "3 ranks cannot share batches of 2 slices",
    );
    refused(together(path, 2, &program, &train("odd", "--slices 12")), "a power of two");
    alone(path, &program, &train("whole", ""));
    refused(
        together(path, 2, &program, &train("whole", "--resume")),
        "batches that are not cut into slices: 2 ranks cannot share it",
    );
}

#[test]
fn mpirun_of_a_program_without_mpi_is_told() {
    if cfg!(feature = "mpi") || program("mpirun of a program without MPI is told").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for arguments in ["train --epochs 1 --out run", "reproduce table3"] {
        let plain = Path::new(env!("CARGO_BIN_EXE_subdeq"));
        let output = run(together(folder.path(), 2, plain, arguments));
        assert!(!output.status.success());
        let sentence = "2 processes were started together, but this program was built without MPI";
        assert!(said(&output).contains(sentence), "{}", said(&output));
    }
    assert!(!folder.path().join("run").exists());
}

#[test]
fn missing_runs_of_a_table_are_shared() {
    let Some(program) = program("missing runs of a table are shared") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_mnist(path);
    let table = "reproduce table3 --data-dir . --only mnist-dense --models subdeq-tanh,explicit-tanh,split-sign --seeds 2 --epochs 1";
    let first = run(together(path, 2, &program, &format!("{table} --jobs 1")));
    assert!(first.status.success(), "{}", said(&first));
    assert!(said(&first).contains("6 of 6 runs to make, 2 at a time"), "{}", said(&first));
    let ledger = |folder: &Path| -> Vec<serde_json::Value> {
        let text = fs::read_to_string(folder.join("results/mnist-dense.json")).unwrap();
        let mut runs: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        for run in &mut runs {
            for key in ["seconds_per_epoch", "machine", "ended"] {
                run.as_object_mut().unwrap().remove(key);
            }
        }
        runs
    };
    assert_eq!(ledger(path).len(), 6);
    let written = fs::read_to_string(path.join("results/table3.md")).unwrap();
    assert_eq!(
        said(&first).matches(written.lines().next().unwrap()).count(),
        1,
        "one rank prints: {}",
        said(&first)
    );
    // Each works alone on its runs: they are those of one process.
    let other = tempfile::tempdir().unwrap();
    write_mnist(other.path());
    alone(other.path(), &program, &format!("{table} --jobs 1"));
    assert_eq!(ledger(path), ledger(other.path()));
    let again = run(together(path, 3, &program, table));
    assert!(again.status.success() && !said(&again).contains("runs to make"), "{}", said(&again));
}
