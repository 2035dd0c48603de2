//! `subdeq reproduce`: the paper's tables and figures.

mod figure1;
mod table1;
mod table2;

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;

/// Make a table or figure of the paper again; the theory tables stand beside what is true.
#[derive(clap::Args)]
pub struct Args {
    /// Which.
    #[arg(value_enum)]
    what: What,
    /// Where figures go.
    #[arg(long, default_value = "results")]
    out: PathBuf,
    /// Seed of weights and inputs.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads; 0 means all.
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Degrees of activation functions.
    Table1,
    /// Conditions for a unique fixed point.
    Table2,
    /// Residual per iteration of SubDEQ and MonDEQ, dense and convolutional.
    Figure1,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Table1 => table1::print(),
        What::Table2 => table2::print()?,
        What::Figure1 => figure1::run(&args.out, args.seed, args.threads)?,
    }
    Ok(ExitCode::SUCCESS)
}
