//! A short run of the fuzzer of whole data sets, the same folders every time, with 256 MiB of memory.
//! `examples/fuzz_datasets.rs` runs as long as one likes.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{datasets, limited};

const CASES: usize = 1000;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

#[test]
fn every_seed_is_a_data_set() {
    for seed in datasets::seeds(&corpus()) {
        let dir = tempfile::tempdir().unwrap();
        seed.write(dir.path());
        // The archives are decoded by way of the cache, which is of no use here.
        if !seed.name.starts_with("picture-") {
            datasets::load_and_use(seed.kind, dir.path()).unwrap_or_else(|e| panic!("{}: {e}", seed.name));
        }
    }
}

#[test]
fn no_data_set_panics_aborts_or_hangs() {
    let dir = limited::scratch();
    let arguments = ["--exact", "fuzz_datasets::child", "--ignored", "--nocapture", "--test-threads=1"];
    let output = limited::run(256, Duration::from_secs(300), &arguments, dir.path()).expect("an end");
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(
        output.status.success() && text.contains("all data sets done"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[ignore = "run by no_data_set_panics_aborts_or_hangs"]
fn child() {
    let Some(folder) = std::env::var_os("SUBDEQ_FUZZ_FOLDER").map(PathBuf::from) else { return };
    for seed in datasets::seeds(&corpus()) {
        let place = folder.join(seed.name);
        let start = std::time::Instant::now();
        let mut fuzzer = datasets::Fuzzer::new(&seed, &place, 1);
        let accepted = (0..CASES).filter(|_| fuzzer.case()).count();
        println!("{}: {accepted} of {CASES} accepted, {:?}", seed.name, start.elapsed());
        assert!(accepted < CASES && accepted > 0, "{} is not fuzzed", seed.name);
    }
    println!("all data sets done");
}
