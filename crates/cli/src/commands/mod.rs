//! The subcommands, one file each.

mod bench;
mod certify;
mod completions;
mod data;
mod degree;
mod devices;
mod eval;
mod man;
mod predict;
mod report;
mod reproduce;
mod solve;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Deep equilibrium models whose fixed point is provably unique.
#[derive(Parser)]
#[command(name = "subdeq", version = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SUBDEQ_COMMIT"), ")"), about)]
pub struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
#[allow(clippy::large_enum_variant)] // one of them exists per program
enum Command {
    Train(train::Args),
    Eval(eval::Args),
    Predict(predict::Args),
    Data(data::Args),
    Degree(degree::Args),
    Devices(devices::Args),
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
            Command::Train(args) => train::run(&args),
            Command::Eval(args) => eval::run(&args),
            Command::Predict(args) => predict::run(&args),
            Command::Data(args) => data::run(&args),
            Command::Degree(args) => degree::run(&args),
            Command::Devices(args) => devices::run(&args),
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
