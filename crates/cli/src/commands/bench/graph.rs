//! Time and memory of an epoch of a graph model: one full-batch training step and one evaluation.

use serde_json::{Value, json};
use subdeq::graph::{GraphConfig, GraphModel, GraphTrainer, Joined};
use subdeq_data::graph::GraphSplitRule;

use super::{Args, READINGS, WARM_UP, median_ms, peak_mib};
use crate::failure::Failure;
use crate::graph::Graph;

/// The model of the PyTorch peer, in the released form: ten unrolled steps, dropout of features, hidden units and edges.
const MODEL: &str = "appnp-normalized-tanh";
/// What the peer and the paper use.
const TELEPORT: f64 = 0.1;

/// Epochs of a model on a named graph.
pub fn measure(args: &Args, case: &str, name: &str) -> Result<Value, Failure> {
    let graph = Graph::load(name, Joined::Pairs, args.data_dir.as_deref())?;
    let split = graph.split(GraphSplitRule::Main, args.seed)?;
    let model = args.model.as_deref().unwrap_or(MODEL);
    let model = GraphModel::release_main(model, TELEPORT).map_err(Failure::usage)?;
    let epochs = WARM_UP + args.repeats.unwrap_or(READINGS[1]);
    let config =
        GraphConfig { epochs, seed: args.seed, threads: args.threads, ..GraphConfig::new(model.clone()) };
    let mut trainer = GraphTrainer::new(&graph.problem, &split, &config).map_err(Failure::other)?;
    let (mut train, mut eval) = (Vec::new(), Vec::new());
    while let Some(epoch) = trainer.next_epoch().map_err(Failure::other)? {
        if epoch.epoch > WARM_UP {
            let [step, evaluation] = trainer.seconds();
            train.push(step);
            eval.push(evaluation);
        }
    }
    Ok(json!({
        "case": case,
        "variant": "subdeq",
        "model": model.name,
        "device": "cpu",
        "batch": graph.problem.nodes(),
        "train_ms": median_ms(&mut train),
        "eval_ms": median_ms(&mut eval),
        "forward_iters": 10,
        "backward_iters": 10,
        "converged": Value::Null,
        "peak_mib": peak_mib(),
    }))
}
