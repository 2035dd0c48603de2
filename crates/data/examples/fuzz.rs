//! Throws mutated seed files at a reader: `cargo run --release -p subdeq-data --example fuzz -- READER SECONDS [SEED]`.
//!
//! `READER` is a folder of `fuzz/corpus` or `all`. An input that makes a reader panic is written to `fuzz-failure-*` and
//! ends the run with status 1.

#[path = "../fuzz/mutate.rs"]
mod mutate;

use std::panic;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let reader = arguments.first().map_or("all", String::as_str);
    let seconds = arguments.get(1).and_then(|s| s.parse().ok()).unwrap_or(10.0);
    let seed = arguments.get(2).and_then(|s| s.parse().ok()).unwrap_or(0);
    let readers: Vec<&str> =
        mutate::READERS.iter().copied().filter(|r| reader == "all" || *r == reader).collect();
    if readers.is_empty() {
        eprintln!("no reader '{reader}'; there are all, {}", mutate::READERS.join(", "));
        return ExitCode::FAILURE;
    }
    let clean = readers.iter().all(|reader| run(reader, Duration::from_secs_f64(seconds), seed));
    if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(reader: &str, time: Duration, seed: u64) -> bool {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut mutator = mutate::Mutator::new(seed, mutate::seeds(&corpus, reader));
    let start = Instant::now();
    let (mut runs, mut accepted, mut slowest) = (0u64, 0u64, Duration::ZERO);
    while start.elapsed() < time {
        let (bytes, variant) = mutator.next();
        let began = Instant::now();
        match panic::catch_unwind(|| mutate::read(reader, &bytes, variant)) {
            Ok(ok) => accepted += u64::from(ok),
            Err(_) => {
                let file = format!("fuzz-failure-{reader}-{seed}-{runs}");
                match std::fs::write(&file, &bytes) {
                    Ok(()) => eprintln!("{reader}: panic in run {runs} (variant {variant}); input in {file}"),
                    Err(e) => eprintln!(
                        "{reader}: panic in run {runs} (variant {variant}); cannot write {file}: {e}"
                    ),
                }
                return false;
            }
        }
        slowest = slowest.max(began.elapsed());
        runs += 1;
    }
    println!("{reader}: {runs} runs, {accepted} accepted, slowest {slowest:?}, seed {seed}");
    true
}
