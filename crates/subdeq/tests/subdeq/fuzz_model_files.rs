//! The fuzzer of model files and checkpoints, in a process with 512 MiB of memory: a short run of the same mutants every time,
//! or as long a one as the environment asks for (mutants of each kind of file, and a seed):
//! `SUBDEQ_FUZZ_CASES=50000 SUBDEQ_FUZZ_SEED=2 cargo test --release -p subdeq --test subdeq fuzz_model_files -- --nocapture`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::{limited, model_files};

/// A whole number of the environment.
fn asked(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Mutants of each kind of file.
fn cases() -> u64 {
    asked("SUBDEQ_FUZZ_CASES", 300)
}

#[test]
fn no_model_file_panics_aborts_or_hangs() {
    let dir = limited::scratch();
    // A second for each case and five minutes: more is a case that does not end.
    let time = Duration::from_secs(300 + cases());
    let arguments = ["--exact", "fuzz_model_files::child", "--ignored", "--nocapture", "--test-threads=1"];
    let output = limited::run(512, time, &arguments, dir.path()).expect("an end");
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
        let mut fuzzer = model_files::Fuzzer::new(&world, &seed, &folder, asked("SUBDEQ_FUZZ_SEED", 1));
        let accepted = (0..cases()).filter(|_| fuzzer.case()).count() as u64;
        println!("{}: {accepted} of {} accepted, {:?}", seed.name, cases(), start.elapsed());
        assert!(accepted < cases() && accepted > 0, "{} is not fuzzed", seed.name);
    }
    println!("all model files done");
}
