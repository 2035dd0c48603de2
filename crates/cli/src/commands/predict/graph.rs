//! `subdeq predict` of a run on a graph.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use subdeq::Outcome;
use subdeq::graph::Prediction;

use super::{Args, as_json, in_words, ranked};
use crate::colour::{bad, verdict};
use crate::failure::Failure;
use crate::graph::{self, GraphRunConfig};

/// Says what the model of a run gives to nodes of its own graph.
pub fn run(args: &Args, config: &GraphRunConfig) -> Result<ExitCode, Failure> {
    if args.resize {
        return Err(Failure::usage("--resize is for images, this is a graph"));
    }
    args.compute.cores_only()?;
    let classifier = graph::trained(&args.run)?;
    let (graph, _) = config.load(args.data_dir.path())?;
    let count = graph.problem.nodes();
    let nodes = match args.inputs.as_slice() {
        [] => (0..count).collect(),
        inputs => inputs.iter().map(|input| node(input, count)).collect::<Result<Vec<usize>, Failure>>()?,
    };
    let prediction = classifier.predict(&graph.problem, args.compute.count()).map_err(Failure::other)?;
    let certificate = graph::verdict(&classifier, &graph)?;
    let classes: Vec<String> = (0..graph.problem.classes()).map(|class| class.to_string()).collect();
    for &node in &nodes {
        let ranked = ranked(prediction.probabilities(node).into_iter(), args.top);
        if args.output.json() {
            let (class, probability) = ranked[0];
            println!(
                "{}",
                json!({
                    "node": node, "class": class, "probability": probability, "top": as_json(&ranked, &classes),
                    "converged": converged(&prediction),
                    "verdict": certificate.as_ref().map(|certificate| &certificate.verdict),
                })
            );
        } else {
            println!("node {node}: class {}", in_words(&ranked, &classes));
        }
    }
    if !args.output.json() {
        if !converged(&prediction) {
            anstream::println!("{}", bad("the solve did not converge"));
        }
        if let Some(certificate) = &certificate {
            anstream::println!("{}", verdict(&certificate.words));
        }
    }
    let unproven = certificate.is_some_and(|certificate| certificate.verdict != "proven");
    Ok(if unproven { ExitCode::from(10) } else { ExitCode::SUCCESS })
}

fn node(input: &Path, count: usize) -> Result<usize, Failure> {
    let text = input.to_string_lossy();
    text.parse().ok().filter(|&node| node < count).ok_or_else(|| {
        Failure::usage(format!(
            "`{text}` is no node of the run's graph: they are numbered from 0 to {}",
            count - 1
        ))
    })
}

/// Whether the equation was solved; an unrolled propagation has none.
fn converged(prediction: &Prediction) -> bool {
    prediction.report.is_none_or(|report| report.outcome == Outcome::Converged)
}
