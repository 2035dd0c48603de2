//! Loads mutated model files and checkpoints: `cargo run --release -p subdeq --example fuzz_model_files -- CASES [SEED] [NAME]`.
//!
//! CASES are divided among the kinds of files (layers, layouts, graphs; models and checkpoints). The work is done by a
//! second process with 512 MiB of memory (`FUZZ_MEBIBYTES` changes that), so that a file that asks for more ends it; the
//! folder that ended it is kept and named.

#[path = "../../data/fuzz/limited.rs"]
mod limited;
#[path = "../fuzz/model_files.rs"]
mod model_files;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let cases: u64 = arguments.first().and_then(|s| s.parse().ok()).unwrap_or(100_000);
    let seed: u64 = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    let chosen = arguments.get(2).map_or("all", String::as_str);
    if let Some(folder) = std::env::var_os("SUBDEQ_FUZZ_FOLDER") {
        work(&PathBuf::from(folder), chosen, cases, seed);
        return ExitCode::SUCCESS;
    }
    let names: Vec<String> = model_files::World::new().seeds().into_iter().map(|seed| seed.name).collect();
    let chosen: Vec<&String> = names.iter().filter(|name| chosen == "all" || *name == chosen).collect();
    if chosen.is_empty() {
        eprintln!("no such file; there are all, {}", names.join(", "));
        return ExitCode::FAILURE;
    }
    let memory = std::env::var("FUZZ_MEBIBYTES").ok().and_then(|s| s.parse().ok()).unwrap_or(512);
    let share = cases.div_ceil(chosen.len() as u64);
    for name in chosen {
        let scratch = limited::scratch();
        // Some hundredths of a second for each case and five minutes: more is a case that does not end.
        let time = Duration::from_secs(300) + Duration::from_millis(50) * share as u32;
        let output =
            limited::run(memory, time, &[&share.to_string(), &seed.to_string(), name], scratch.path());
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

fn work(folder: &Path, name: &str, cases: u64, number: u64) {
    let world = model_files::World::new();
    for seed in world.seeds().iter().filter(|seed| seed.name == name) {
        let mut fuzzer = model_files::Fuzzer::new(&world, seed, folder, number);
        let (start, mut accepted, mut slowest) = (Instant::now(), 0u64, Duration::ZERO);
        for _ in 0..cases {
            let began = Instant::now();
            accepted += u64::from(fuzzer.case());
            slowest = slowest.max(began.elapsed());
        }
        println!(
            "{name}: {cases} cases, {accepted} accepted, slowest {slowest:?}, {:.0} s, seed {number}",
            start.elapsed().as_secs_f64()
        );
    }
}
