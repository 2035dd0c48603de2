//! `subdeq reproduce`: the paper's tables and figures.

mod figure1;
mod graphs;
mod images;
mod ledger;
mod table1;
mod table2;

use std::path::PathBuf;
use std::process::ExitCode;

use subdeq::Ranks;

use crate::device::DeviceName;
use crate::failure::Failure;
use crate::options::{DataDir, cores_each, cores_of_one};
use crate::together::on_ranks;

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
    /// Threads; 0 means all. Experiments that run side by side (--jobs) have their part of the cores each if nothing is said, those on a GPU
    /// for their certificates.
    #[arg(long)]
    threads: Option<usize>,
    /// Where experiments with images run: cpu, cuda (or cuda:N for GPU number N), or auto (a GPU if there is one).
    #[arg(long, default_value_t, value_name = "DEVICE")]
    device: DeviceName,
    /// Runs per cell of a table of experiments [default: 5; with --protocol half or given, 10 divisions of the nodes].
    #[arg(long)]
    seeds: Option<u64>,
    /// For graphs: HyperGCN's given divisions of the nodes, 50 / 25 / 25 % at random, or the paper's two tables.
    #[arg(long, value_enum, default_value_t = GraphProtocol::Half)]
    protocol: GraphProtocol,
    /// For graphs by others' protocols: choose teleport probability, width, dropout and weight decay on validation nodes.
    #[arg(long)]
    tune: bool,
    /// Only these parts of a table of experiments (several with commas): mnist-dense, mnist-conv, cifar10, svhn,
    /// tiny-imagenet; for graphs cora-cit, cora-author, citeseer, pubmed, dblp, and release, equilibrium, paper (given again, it
    /// narrows further).
    #[arg(long)]
    only: Vec<String>,
    /// Only these models (several with commas) [default: all rows].
    #[arg(long)]
    models: Vec<String>,
    /// Epochs of a training [default: the paper's].
    #[arg(long)]
    epochs: Option<usize>,
    /// Experiments at the same time; 0 means one per core.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Make no run: tables and figures of what the ledgers have.
    #[arg(long)]
    no_runs: bool,
    /// Where the run folders of experiments go; one that was begun is continued.
    #[arg(long, default_value = "runs")]
    runs: PathBuf,
    #[command(flatten)]
    data_dir: DataDir,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum GraphProtocol {
    Given,
    Half,
    Paper,
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
    /// Graphs by a --protocol: those that others report on, or both tables above (an experiment).
    Graphs,
    /// Validation accuracy per epoch: of the dense MNIST models, or of the columns of --only (an experiment; what was run is
    /// not run again).
    Figure2,
    /// Test errors on images, and the sound models beside them (an experiment).
    Table3,
    /// Test errors of the appendix's models on images (an experiment).
    Table5,
    /// Table 3 and Table 5 in one go.
    Images,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    on_ranks(|ranks| run_on(ranks, args))
}

/// The part of one of several ranks, who share the missing runs of experiments with images.
fn run_on(ranks: &Ranks, args: &Args) -> Result<ExitCode, Failure> {
    match args.what {
        What::Table1 | What::Table2 | What::Figure1 if !ranks.is_first() => {}
        What::Table1 => table1::print(),
        What::Table2 => table2::print()?,
        What::Figure1 => figure1::run(&args.out, args.seed, args.threads.unwrap_or(0))?,
        What::Table4 | What::Table6 | What::Graphs if ranks.size() > 1 => {
            return Err(Failure::usage(
                "experiments with graphs, some of which wait for others, run on one machine: start them without mpirun, several at a \
                 time with --jobs",
            ));
        }
        What::Table4 => graphs::run(graphs::Table::Four, &graph_options(args, 5))?,
        What::Table6 => graphs::run(graphs::Table::Six, &graph_options(args, 5))?,
        What::Graphs => graph_experiments(args)?,
        What::Figure2 => images::figure2(&image_options(ranks, args))?,
        What::Table3 => images::tables(&[images::Table::Three], &image_options(ranks, args))?,
        What::Table5 => images::tables(&[images::Table::Five], &image_options(ranks, args))?,
        What::Images => images::tables(&images::Table::ALL, &image_options(ranks, args))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn graph_experiments(args: &Args) -> Result<(), Failure> {
    let protocol = match args.protocol {
        GraphProtocol::Given => graphs::protocol::Protocol::Given,
        GraphProtocol::Half => graphs::protocol::Protocol::Half,
        GraphProtocol::Paper => {
            graphs::run(graphs::Table::Four, &graph_options(args, 5))?;
            return graphs::run(graphs::Table::Six, &graph_options(args, 5));
        }
    };
    graphs::protocol::run(protocol, args.tune, &graph_options(args, 10))
}

impl Args {
    /// Experiments at the same time.
    fn at_once(&self) -> usize {
        if self.jobs == 0 { cores_each() } else { self.jobs }
    }

    /// Threads of one of them.
    fn threads_each(&self) -> usize {
        self.threads.unwrap_or_else(|| cores_of_one(self.at_once()))
    }
}

fn graph_options(args: &Args, seeds: u64) -> graphs::Options<'_> {
    graphs::Options {
        only: &args.only,
        models: &args.models,
        seeds: args.seeds.unwrap_or(seeds),
        out: &args.out,
        data_dir: args.data_dir.path(),
        jobs: args.at_once(),
        threads: args.threads_each(),
        runs_missing: !args.no_runs,
    }
}

fn image_options<'a>(ranks: &'a Ranks, args: &'a Args) -> images::Options<'a> {
    images::Options {
        ranks,
        only: &args.only,
        models: &args.models,
        seeds: args.seeds.unwrap_or(5),
        epochs: args.epochs,
        out: &args.out,
        runs: &args.runs,
        data_dir: args.data_dir.path(),
        jobs: args.at_once(),
        device: if ranks.size() > 1 { args.device.shared() } else { args.device },
        threads: args.threads_each(),
        runs_missing: !args.no_runs,
    }
}
