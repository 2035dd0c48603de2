//! Attacks a million certified systems and prints how many were certified by what.
//!
//!     cargo run --release -p subdeq-theory --example attack -- --draws 1500000
//!
//! Options: `--draws N` systems to draw (default 100000), `--first K` number of the first one (to repeat a violation),
//! `--starts K` starts for each certified one (default 6), `--thorough P` percent of the systems that are also refuted and
//! forged (default 5), `--seed S`, `--threads T`, `--table M` systems per row of the table
//! of fractions (default 100; 0 for none).

mod campaign;
mod evaluate;
mod forge;
mod table;

use std::process::ExitCode;
use std::time::Instant;

use campaign::Settings;

fn main() -> ExitCode {
    let mut settings = Settings { first: 0, draws: 100_000, starts: 6, seed: 1, thorough: 0.05 };
    let (mut threads, mut per_row) = (0, 100);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let Some(number) = arguments.next().and_then(|text| text.parse::<usize>().ok()) else {
            eprintln!("{option} needs a number");
            return ExitCode::from(2);
        };
        match option.as_str() {
            "--first" => settings.first = number,
            "--draws" => settings.draws = number,
            "--starts" => settings.starts = number,
            "--seed" => settings.seed = number as u64,
            "--thorough" => settings.thorough = (number as f64 / 100.0).min(1.0),
            "--threads" => threads = number,
            "--table" => per_row = number,
            _ => {
                eprintln!("there is no option {option}; see the top of this example");
                return ExitCode::from(2);
            }
        }
    }
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        eprintln!("no threads: {error}");
        return ExitCode::FAILURE;
    }
    if per_row > 0 {
        table::print(per_row, settings.seed);
    }
    let begin = Instant::now();
    let report = campaign::run(settings);
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "\n{} systems drawn, {} certified and attacked with {} starts each, in {seconds:.0} s ({:.0} per second)",
        report.drawn,
        report.certified,
        settings.starts,
        report.certified as f64 / seconds
    );
    println!("\ncertificates by theorem");
    for (theorem, count) in &report.by_theorem {
        println!("  {count:>9}  {theorem}");
    }
    println!("certified systems by family of weights");
    for (family, count) in &report.by_family {
        println!("  {count:>9}  {family}");
    }
    println!("{} refutations checked", report.refuted);
    println!("{} certificates re-checked, {} forged ones refused", report.rechecked, report.forged);
    println!("violations: {}", report.violations.len());
    for violation in report.violations.iter().take(20) {
        println!("  {violation}");
    }
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
