//! Training on a graph that several processes share, over MPI: the bits of one process, whatever their number.
//!
//! Skipped where the program was built without MPI or `mpirun` is not there.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_subdeq");
/// Seconds after which a run counts as hanging.
const PATIENCE: &str = "300";

/// Whether several processes can be started; says so if not.
fn can_share(test: &str) -> bool {
    let mpirun = Command::new("mpirun").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let can = cfg!(feature = "mpi") && mpirun.is_ok_and(|status| status.success());
    if !can {
        eprintln!("skipped: {test} (needs --features mpi and mpirun)");
    }
    can
}

/// Starts a program so many times together.
fn together(ranks: usize, folder: &Path, program: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg(PATIENCE).current_dir(folder);
    // As root in containers, and with more processes than cores; MPICH knows none of this and needs none of it.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("OMPI_MCA_mpi_yield_when_idle", "1");
    command.args(["mpirun", "-n", &ranks.to_string()]).args(program);
    command
}

fn subdeq(ranks: usize, folder: &Path, arguments: &[&str]) -> Command {
    if ranks > 1 {
        return together(ranks, folder, &[&[PROGRAM], arguments].concat());
    }
    let mut command = Command::new("timeout");
    command.args([PATIENCE, PROGRAM]).args(arguments).current_dir(folder);
    command
}

fn finish(mut command: Command) -> Output {
    command.output().unwrap()
}

fn succeed(ranks: usize, folder: &Path, arguments: &[&str]) {
    let output = finish(subdeq(ranks, folder, arguments));
    assert!(output.status.success(), "{arguments:?} on {ranks}: {}", String::from_utf8_lossy(&output.stderr));
}

fn refused(ranks: usize, folder: &Path, arguments: &[&str], words: &str) {
    let output = finish(subdeq(ranks, folder, arguments));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && output.status.code() != Some(124), "{arguments:?}: {errors}");
    assert!(errors.contains(words), "{arguments:?}: {errors}");
}

/// A graph of five blocks of rows: two communities of near and a few far neighbours.
fn write_graph(folder: &Path) {
    let (mut edges, mut labels, mut features) = (String::new(), String::new(), String::new());
    let mut random = 7u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for node in 0..1500u64 {
        for _ in 0..9 {
            writeln!(edges, "{node} {}", (node + 1 + draw(60)).min(1499)).unwrap();
        }
        if draw(20) == 0 {
            writeln!(edges, "{node} {}", draw(1500)).unwrap();
        }
        writeln!(labels, "{}", node / 750).unwrap();
        let words: Vec<String> =
            (0..20).map(|word| u64::from(draw(20) < 2 + word * (node / 750)).to_string()).collect();
        writeln!(features, "{}", words.join(",")).unwrap();
    }
    fs::create_dir(folder.join("mine")).unwrap();
    for (name, text) in [("edges.txt", edges), ("labels.txt", labels), ("features.csv", features)] {
        fs::write(folder.join("mine").join(name), text).unwrap();
    }
}

/// The numbers of a trained model and its metrics without times.
fn trained(run: &Path) -> (Vec<u8>, Vec<serde_json::Value>) {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut value: serde_json::Value = serde_json::from_str(line).unwrap();
        value.as_object_mut().unwrap().remove("seconds");
        value
    };
    let bytes = fs::read(run.join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (bytes[8 + header..].to_vec(), text.lines().map(line).collect())
}

#[test]
fn ranks_that_share_a_graph_train_the_bits_of_one_process() {
    if !can_share("ranks_that_share_a_graph_train_the_bits_of_one_process") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    succeed(1, path, &["data", "shard", "mine", "--parts", "3", "--out", "shards"]);
    for (model, form) in
        [("appnp", "equilibrium"), ("appnp-tanh", "equilibrium"), ("appnp-normalized-tanh", "paper")]
    {
        let train = |ranks: usize, data: &str, out: &str| {
            let options = [
                "train", "--data", data, "--model", model, "--form", form, "--epochs", "12", "--quiet",
                "--out", out,
            ];
            succeed(ranks, path, &options);
            trained(&path.join(out))
        };
        let alone = train(1, "mine", &format!("{model}-alone"));
        for ranks in [2, 4] {
            assert!(train(ranks, "mine", &format!("{model}-{ranks}")) == alone, "{model} on {ranks} ranks");
        }
        for ranks in [1, 2, 4] {
            assert!(
                train(ranks, "shards", &format!("{model}-shards-{ranks}")) == alone,
                "{model}: shards on {ranks}"
            );
        }
    }
}

#[test]
fn killed_and_continued_by_another_number_of_ranks_it_ends_with_the_same_bits() {
    if !can_share("killed_and_continued_by_another_number_of_ranks_it_ends_with_the_same_bits") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    let options = |out: &'static str| {
        [
            "train",
            "--data",
            "mine",
            "--epochs",
            "300",
            "--patience",
            "300",
            "--quiet",
            "--resume",
            "--checkpoint-seconds",
            "0",
            "--out",
            out,
        ]
    };
    succeed(1, path, &options("alone"));
    for (ranks, wait) in [(2, 900), (4, 1500), (3, 1200)] {
        let mut child = subdeq(ranks, path, &options("killed")).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(wait));
        // The launcher takes its processes with it; a second start must not meet the first.
        child.kill().unwrap();
        child.wait().unwrap();
        sleep(Duration::from_millis(1500));
    }
    succeed(2, path, &options("killed"));
    assert!(trained(&path.join("killed")) == trained(&path.join("alone")), "other bits after kills");
}

#[test]
fn what_cannot_be_shared_is_said_in_a_sentence() {
    if !can_share("what_cannot_be_shared_is_said_in_a_sentence") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    let shard = |out: &str, seed: &str| {
        succeed(1, path, &["data", "shard", "mine", "--parts", "3", "--split-seed", seed, "--out", out]);
    };
    shard("shards", "0");
    shard("others", "1");
    let train = |data: &'static str| ["train", "--data", data, "--epochs", "2", "--quiet", "--out", "run"];
    fs::create_dir(path.join("tiny")).unwrap();
    fs::write(path.join("tiny/edges.txt"), "0 1\n1 2\n").unwrap();
    fs::write(path.join("tiny/labels.txt"), "0\n1\n0\n").unwrap();
    refused(4, path, &train("tiny"), "4 ranks cannot share a graph of 3 nodes: start at most 3");
    fs::copy(path.join("others/part-1.safetensors"), path.join("shards/part-1.safetensors")).unwrap();
    refused(2, path, &train("shards"), "is damaged or belongs to another graph");
    fs::remove_file(path.join("shards/part-1.safetensors")).unwrap();
    refused(2, path, &train("shards"), "the shard shards/part-1.safetensors of rows");
    refused(
        2,
        path,
        &[&train("others")[..], &["--labelled", "0.2"]].concat(),
        "were divided when the shards were made",
    );
    // Each rank in a folder of its own: the same name, other files.
    for (rank, edge) in [("0", ""), ("1", "3 900\n")] {
        let own = path.join(format!("rank-{rank}"));
        fs::create_dir(&own).unwrap();
        write_graph(&own);
        let edges = own.join("mine/edges.txt");
        fs::write(&edges, fs::read_to_string(&edges).unwrap() + edge).unwrap();
    }
    let script = format!("cd rank-$OMPI_COMM_WORLD_RANK && exec {PROGRAM} \"$@\"");
    let command = together(2, path, &[&["sh", "-c", &script, "sh"], &train("mine")[..]].concat());
    let output = finish(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("the graph is not the same on all ranks: rank 1 differs from rank 0"),
        "{errors}"
    );
}
