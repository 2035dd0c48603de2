//! Loads mutated data sets: `cargo run --release -p subdeq-data --example fuzz_datasets -- CASES [SEED] [LAYOUT]`.
//!
//! CASES are divided among the layouts (folders of npz, csv, idx, pictures, archives, graphs ..). The work is done by a
//! second process with 512 MiB of memory (`FUZZ_MEBIBYTES` changes that), so that a file that asks for more ends it; the
//! folder that ended it is kept and named.

#[path = "../fuzz/datasets.rs"]
mod datasets;
#[path = "../fuzz/limited.rs"]
mod limited;
#[allow(dead_code)]
#[path = "../fuzz/mutate.rs"]
mod mutate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let cases: u64 = arguments.first().and_then(|s| s.parse().ok()).unwrap_or(100_000);
    let seed: u64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let layout = arguments.get(2).map_or("all", String::as_str);
    if let Some(folder) = std::env::var_os("SUBDEQ_FUZZ_FOLDER") {
        work(&PathBuf::from(folder), layout, cases, seed);
        return ExitCode::SUCCESS;
    }
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let names: Vec<&str> = datasets::seeds(&corpus).iter().map(|seed| seed.name).collect();
    let chosen: Vec<&str> = names.iter().copied().filter(|name| layout == "all" || *name == layout).collect();
    if chosen.is_empty() {
        eprintln!("no layout '{layout}'; there are all, {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let memory = std::env::var("FUZZ_MEBIBYTES").ok().and_then(|s| s.parse().ok()).unwrap_or(512);
    let share = cases.div_ceil(chosen.len() as u64);
    for name in chosen {
        let scratch = limited::scratch();
        let folder = scratch.path().join(name);
        // A hundredth of a second for each case and a minute: more is a case that does not end.
        let time = Duration::from_secs(60) + Duration::from_millis(10) * share as u32;
        let arguments = [&share.to_string(), &seed.to_string(), name];
        let output = limited::run(memory, time, &arguments, &folder);
        let problem = match output {
            Some(output) if output.status.success() => {
                print!("{}", String::from_utf8_lossy(&output.stdout));
                continue;
            }
            Some(output) => format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr)),
            None => format!("no end after {time:?}"),
        };
        eprintln!("{name}: {problem}\nthe folder is kept: {}", scratch.keep().join(name).display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn work(folder: &Path, layout: &str, cases: u64, number: u64) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for seed in datasets::seeds(&corpus).iter().filter(|seed| seed.name == layout) {
        let mut fuzzer = datasets::Fuzzer::new(seed, folder, number);
        let (start, mut accepted, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
        for _ in 0..cases {
            let began = Instant::now();
            accepted += u64::from(fuzzer.case());
            slowest = slowest.max(began.elapsed());
        }
        println!(
            "{layout}: {cases} cases, {accepted} accepted, slowest {slowest:?}, {:.0} s, seed {number}",
            start.elapsed().as_secs_f64()
        );
    }
}
