//! A short run of the fuzzer of model files and checkpoints, the same mutants every time, with 512 MiB of memory.
//! `examples/fuzz_model_files.rs` runs as long as one likes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{limited, model_files};

const CASES: usize = 300;

#[test]
fn no_model_file_panics_aborts_or_hangs() {
    let dir = limited::scratch();
    let arguments = ["--exact", "fuzz_model_files::child", "--ignored", "--nocapture", "--test-threads=1"];
    let output = limited::run(512, Duration::from_secs(300), &arguments, dir.path()).expect("an end");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success() && text.contains("all model files done"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "run by no_model_file_panics_aborts_or_hangs"]
fn child() {
    let Some(folder) = std::env::var_os("SUBDEQ_FUZZ_FOLDER").map(PathBuf::from) else { return };
    let world = model_files::World::new();
    for seed in world.seeds() {
        let start = Instant::now();
        let mut fuzzer = model_files::Fuzzer::new(&world, &seed, &folder, 1);
        let accepted = (0..CASES).filter(|_| fuzzer.case()).count();
        println!("{}: {accepted} of {CASES} accepted, {:?}", seed.name, start.elapsed());
        assert!(accepted < CASES && accepted > 0, "{} is not fuzzed", seed.name);
    }
    println!("all model files done");
}
