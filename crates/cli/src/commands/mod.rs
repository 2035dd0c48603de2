//! The subcommands, one file each.

mod bench;
mod certify;
mod completions;
mod degree;
mod man;
mod report;
mod reproduce;
mod solve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Deep equilibrium models whose fixed point is provably unique.
#[derive(Parser)]
#[command(name = "subdeq", version, about)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Degree(degree::Args),
    Certify(certify::Args),
    Solve(solve::Args),
    Bench(bench::Args),
    Report(report::Args),
    Reproduce(reproduce::Args),
    Completions(completions::Args),
    Man(man::Args),
}

impl Program {
    /// Does what the command line says.
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            Command::Degree(args) => degree::run(&args),
            Command::Certify(args) => certify::run(&args),
            Command::Solve(args) => solve::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Report(args) => report::run(&args),
            Command::Reproduce(args) => reproduce::run(&args),
            Command::Completions(args) => Ok(completions::run(&args)),
            Command::Man(args) => man::run(&args),
        }
    }
}
