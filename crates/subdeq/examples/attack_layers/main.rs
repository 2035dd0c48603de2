//! Attacks what layers claim, through the engine's own solves: hand-written configurations with every value drawn, weights and inputs of
//! every sign and size, many starts.
//!
//!     cargo run --release -p subdeq --example attack_layers -- --draws 1000000
//!
//! Options: `--draws N` (default 100000), `--first K` number of the first one (to repeat a violation), `--seed S`.

mod layers;

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let (mut first, mut draws, mut seed) = (0, 100_000, 1);
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let Some(number) = arguments.next().and_then(|text| text.parse::<u64>().ok()) else {
            eprintln!("{option} needs a number");
            return ExitCode::from(2);
        };
        match option.as_str() {
            "--first" => first = number,
            "--draws" => draws = number,
            "--seed" => seed = number,
            _ => {
                eprintln!("there is no option {option}; see the top of this example");
                return ExitCode::from(2);
            }
        }
    }
    let begin = Instant::now();
    let report = layers::run(seed, first..first + draws);
    println!("{report:#?}");
    println!("{draws} configurations in {:.0} s", begin.elapsed().as_secs_f64());
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
