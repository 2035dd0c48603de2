//! The program `subdeq`.
#![forbid(unsafe_code)]

mod chart;
mod commands;
mod dataset;
mod failure;
mod graph;
mod options;
mod pictures;
mod progress;
mod recipe;
mod trained;
mod weights;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let program = commands::Program::parse();
    match program.run() {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("subdeq: {failure}");
            failure.exit_code()
        }
    }
}
