//! Training on a graph that several processes share: the bits of one process, whatever their number and whatever happens to them.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::ranks::{alone, assert_same, ended, mpirun, program, ranks_of, run, said, signal, together};

/// A graph of several blocks of rows: two communities of near and a few far neighbours.
fn write_graph(folder: &Path) {
    let (mut edges, mut labels, mut features) = (String::new(), String::new(), String::new());
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut draw = |below: u64| rng.next_u64() % below;
    for node in 0..1500 {
        for _ in 0..9 {
            writeln!(edges, "{node} {}", (node + 1 + draw(60)).min(1499)).unwrap();
        }
        if draw(20) == 0 {
            writeln!(edges, "{node} {}", draw(1500)).unwrap();
        }
        writeln!(labels, "{}", node / 750).unwrap();
        let words = (0..20).map(|word| u8::from(draw(20) < 2 + word * (node / 750)).to_string());
        writeln!(features, "{}", words.collect::<Vec<String>>().join(",")).unwrap();
    }
    fs::create_dir_all(folder.join("mine")).unwrap();
    for (name, text) in [("edges.txt", edges), ("labels.txt", labels), ("features.csv", features)] {
        fs::write(folder.join("mine").join(name), text).unwrap();
    }
}

const USUAL: &str = "train --quiet --threads 1";

#[test]
fn the_bits_of_a_graph_model_do_not_depend_on_the_number_of_ranks() {
    let Some(program) = program("the bits of a graph model do not depend on the number of ranks") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    alone(path, &program, "data shard mine --parts 3 --out shards");
    for (name, options) in [
        ("linear", "--model appnp --epochs 12"),
        ("tanh", "--model appnp-tanh --epochs 12"),
        ("columns", "--model appnp-normalized-tanh --form paper --epochs 12"),
        ("unrolled", "--model appnp-tanh --form release --epochs 12"),
    ] {
        alone(path, &program, &format!("{USUAL} --data mine {options} --out {name}"));
        alone(path, &program, &format!("{USUAL} --data shards {options} --out {name}-shards"));
        assert_same(path, name, &format!("{name}-shards"));
        for (data, ranks) in [("mine", 2), ("mine", 4), ("shards", 2), ("shards", 4)] {
            let out = format!("{name}-{data}-{ranks}");
            let output =
                run(together(path, ranks, &program, &format!("{USUAL} --data {data} {options} --out {out}")));
            assert!(output.status.success(), "{out}: {}", said(&output));
            assert_same(path, name, &out);
        }
    }
}

#[test]
fn killed_ranks_of_a_graph_end_all_and_another_number_goes_on() {
    let Some(program) = program("killed ranks of a graph end all, and another number goes on") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    let options = "--data mine --epochs 200 --patience 200";
    alone(path, &program, &format!("{USUAL} {options} --out alone"));
    let resumed = format!("{USUAL} {options} --checkpoint-seconds 0 --resume --out killed");
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for ranks in [2, 4, 3] {
        let mut child = together(path, ranks, &program, &resumed).spawn().unwrap();
        while ranks_of(&child).len() < ranks && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(300 + rng.next_u64() % 1500));
        let victims = ranks_of(&child);
        if let Some(victim) = victims.get(rng.next_u64() as usize % victims.len().max(1)) {
            signal("-KILL", *victim);
        }
        ended(child);
    }
    let last = run(together(path, 2, &program, &resumed));
    assert!(last.status.success(), "{}", said(&last));
    assert_same(path, "alone", "killed");
}

#[test]
fn what_ranks_cannot_share_of_a_graph_is_said_in_a_sentence() {
    let Some(program) = program("what ranks cannot share of a graph is said in a sentence") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    write_graph(path);
    for (out, seed) in [("shards", 0), ("others", 1)] {
        alone(path, &program, &format!("data shard mine --parts 3 --split-seed {seed} --out {out}"));
    }
    let refused = |ranks: usize, options: &str, words: &str| {
        let output = run(together(path, ranks, &program, &format!("{USUAL} --epochs 2 --out run {options}")));
        assert!(!output.status.success() && said(&output).contains(words), "{options}: {}", said(&output));
    };
    fs::create_dir(path.join("tiny")).unwrap();
    fs::write(path.join("tiny/edges.txt"), "0 1\n1 2\n").unwrap();
    fs::write(path.join("tiny/labels.txt"), "0\n1\n0\n").unwrap();
    refused(4, "--data tiny", "4 ranks cannot share a graph of 3 nodes: start at most 3");
    refused(2, "--data mine --model hyper-appnp", "ranks cannot share a graph of hyperedges yet");
    refused(2, "--data mine --model hyper-power", "ranks cannot share a graph of hyperedges yet");
    fs::copy(path.join("others/part-1.safetensors"), path.join("shards/part-1.safetensors")).unwrap();
    refused(2, "--data shards", "is damaged or belongs to another graph");
    fs::remove_file(path.join("shards/part-1.safetensors")).unwrap();
    refused(2, "--data shards", "part-1.safetensors of rows");
    refused(2, "--data others --labelled 0.2", "were divided when the shards were made");
    // Each rank in a folder of its own: the same name, other files.
    let mut command = mpirun(path);
    for (rank, edge) in [("first", ""), ("second", "3 900\n")] {
        let own = path.join(rank);
        write_graph(&own);
        let edges = own.join("mine/edges.txt");
        fs::write(&edges, fs::read_to_string(&edges).unwrap() + edge).unwrap();
        let separator = (rank == "second").then_some(":");
        command.args(separator).args(["-n", "1", "-wdir"]).arg(&own).arg(&program);
        command.args(format!("{USUAL} --epochs 2 --data mine --out run").split(' '));
    }
    let words = said(&run(command));
    assert!(words.contains("ranks 0 and 1 do not agree about the graph"), "{words}");
}
