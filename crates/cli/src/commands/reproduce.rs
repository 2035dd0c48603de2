//! `subdeq reproduce`: the paper's tables and figures.

mod figure1;
mod graphs;
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
    /// Runs per cell of a table of experiments.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Only cells with this graph, model or form (several with commas); may be given again to narrow further.
    #[arg(long)]
    only: Vec<String>,
    /// Folder of the data sets [default: SUBDEQ_DATA, else data].
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum What {
    /// Degrees of activation functions.
    Table1,
    /// Conditions for a unique fixed point.
    Table2,
    /// Residual per iteration of SubDEQ and MonDEQ, dense and convolutional.
    Figure1,
    /// Accuracy of the graph models (an experiment, run by run; what was run is not run again).
    Table4,
    /// The same with the teleport probability chosen on validation nodes (the appendix's table).
    Table6,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Table1 => table1::print(),
        What::Table2 => table2::print()?,
        What::Figure1 => figure1::run(&args.out, args.seed, args.threads)?,
        What::Table4 => graphs::run(graphs::Table::Four, &graph_options(args))?,
        What::Table6 => graphs::run(graphs::Table::Six, &graph_options(args))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn graph_options(args: &Args) -> graphs::Options<'_> {
    graphs::Options {
        only: &args.only,
        seeds: args.seeds,
        out: &args.out,
        data_dir: args.data_dir.as_deref(),
        threads: args.threads,
    }
}
