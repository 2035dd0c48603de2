//! `subdeq eval` of a run on a graph.

use std::path::Path;
use std::process::ExitCode;

use subdeq::train::{Evaluation, RunFolder};

use super::Args;
use crate::colour;
use crate::failure::Failure;
use crate::graph::{self, GraphRunConfig};
use crate::waiting::Waiting;

/// Tests the model of a run on the test nodes of its own graph.
pub fn run(args: &Args, config: &GraphRunConfig) -> Result<ExitCode, Failure> {
    if args.data.is_some() {
        return Err(Failure::usage("a graph model belongs to its graph: leave --data out"));
    }
    args.compute.cores_only()?;
    let waiting = Waiting::begin(args.output.progress(), "reading the graph and testing");
    let folder = open(&args.run)?;
    let classifier = graph::trained(&args.run)?;
    let (graph, split) = config.load(args.data_dir.path())?;
    let evaluation =
        graph::evaluate(&folder, &config.data, (&graph, &split), &classifier, args.compute.count())?;
    drop(waiting);
    if args.output.json() {
        println!("{}", serde_json::to_string(&evaluation).map_err(Failure::other)?);
    } else {
        print(&evaluation);
    }
    Ok(ExitCode::SUCCESS)
}

fn open(path: &Path) -> Result<RunFolder, Failure> {
    RunFolder::open_as::<GraphRunConfig>(path).map(|(folder, _)| folder).map_err(Failure::other)
}

/// The evaluation in a few lines.
pub fn print(evaluation: &Evaluation) {
    let Evaluation { samples, accuracy, iterations, all_inputs, .. } = evaluation;
    let right = (accuracy * *samples as f64 / 100.0).round();
    let solved = match iterations.first() {
        Some((iterations, _)) if evaluation.converged == 1.0 => format!("solved in {iterations} iterations"),
        Some((iterations, _)) => format!("NOT solved after {iterations} iterations"),
        None => "a fixed number of steps, no equation solved".to_owned(),
    };
    println!("test accuracy {accuracy:.2} % ({right} of {samples} nodes right), {solved}");
    if let Some(verdict) = all_inputs {
        anstream::println!("certificate: {}", colour::verdict(&verdict.words));
    }
}
