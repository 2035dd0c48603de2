//! The program `subdeq`.
#![forbid(unsafe_code)]

mod chart;
mod commands;
mod dataset;
mod device;
mod failure;
mod graph;
mod named_map;
mod options;
mod paper;
mod pictures;
mod progress;
mod recipe;
mod report;
mod statistics;
mod stop;
mod trained;
mod weights;

use std::process::ExitCode;

use clap::Parser;

/// Whoever reads our output may stop reading (`subdeq .. | head`): that is an end, not a fault of the program.
fn end_with_the_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let gone =
            |message: &str| message.starts_with("failed printing to std") && message.contains("Broken pipe");
        if panic.payload().downcast_ref::<String>().is_some_and(|message| gone(message)) {
            std::process::exit(0);
        }
        usual(panic);
    }));
}

fn main() -> ExitCode {
    end_with_the_reader();
    let program = commands::Program::parse();
    match program.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("subdeq: {failure}");
            failure.exit_code()
        }
    }
}
