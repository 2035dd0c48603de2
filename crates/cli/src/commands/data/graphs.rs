//! The graphs among the data sets.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use subdeq::graph::{Joined, ShardedGraph};
use subdeq_data::graph::{GRAPH_NAMES, GraphDataset, GraphSplitRule, folder_of};

use super::found;
use crate::commands::train::SplitOfShards;
use crate::failure::Failure;
use crate::graph::{Graph, default_split};
use crate::options::{DataDir, Output};

/// Says which graphs are known and where they were found.
pub fn list(data_dir: &DataDir, output: Output) {
    for &name in GRAPH_NAMES {
        let embedded = name == "karate";
        let place = found(&folder_of(name), data_dir);
        let about = match name {
            "karate" => "Zachary's karate club, a graph",
            _ if name.starts_with("planetoid-") => "a graph, Planetoid's files",
            _ => "a graph, hyperedges expanded to cliques",
        };
        if output.json() {
            let available = embedded || place.is_some();
            println!("{}", json!({ "name": name, "about": about, "available": available, "path": place }));
            continue;
        }
        let state = match place {
            _ if embedded => "inside the program".to_owned(),
            Some(path) => path.display().to_string(),
            None => format!("not here; it would be in {}/", folder_of(name)),
        };
        println!("{name:14} {about:44} {state}");
    }
}

/// Reads a graph and says how large it is.
pub fn read(name: &str, data_dir: &DataDir) -> subdeq_data::Result<String> {
    let graph = GraphDataset::load(name, data_dir.path())?;
    Ok(format!("{} nodes and {} edges read", graph.nodes(), graph.report.edges))
}

/// Shows what is in a graph: sizes, what was merged or left out, classes.
pub fn show(name: &str, data_dir: &DataDir, output: Output) -> Result<(), Failure> {
    let graph = GraphDataset::load(name, data_dir.path()).map_err(Failure::other)?;
    let mut counts = vec![0; graph.classes];
    graph.labels.iter().for_each(|&label| counts[label as usize] += 1);
    let (features, report) = (&graph.features, graph.report);
    if output.json() {
        println!(
            "{}",
            json!({
                "name": graph.name, "origin": graph.origin, "nodes": graph.nodes(), "edges": report,
                "features": features.columns(), "feature_entries": features.nnz(), "counts": counts,
                "given_splits": graph.given_splits.len(),
            })
        );
        return Ok(());
    }
    println!(
        "{}: a graph of {} nodes and {} edges ({} repeated ones merged, {} self-loops left out, {} isolated nodes), from {}",
        graph.name,
        graph.nodes(),
        report.edges,
        report.duplicates,
        report.self_loops,
        report.isolated,
        graph.origin
    );
    println!(
        "{} features with {} entries, {} classes, {} splits come with it",
        features.columns(),
        features.nnz(),
        graph.classes,
        graph.given_splits.len()
    );
    for (class, count) in counts.iter().enumerate() {
        println!("  {count:>6}  class {class}");
    }
    Ok(())
}

/// What is cut, how, and where to.
#[derive(clap::Args)]
pub struct ShardArgs {
    /// A name, a folder or an .npz.
    name: String,
    /// At most so many shards. Any number of processes can read them; as many as there are shards read nothing twice.
    #[arg(long, value_name = "N")]
    parts: usize,
    /// Where to: a folder without shards.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Share of the nodes that is labelled [default: the paper's, else the division given with the data, else 0.1].
    #[arg(long, value_name = "SHARE")]
    labelled: Option<f64>,
    /// Divide the nodes as the data's given division number K says.
    #[arg(long, value_name = "K", conflicts_with = "labelled")]
    given_split: Option<usize>,
    /// Seed of the division.
    #[arg(long, default_value_t = 0)]
    split_seed: u64,
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    output: Output,
}

/// Cuts a graph into shards.
pub fn shard(args: &ShardArgs) -> Result<ExitCode, Failure> {
    if args.parts == 0 {
        return Err(Failure::usage("--parts must be at least 1"));
    }
    let graph = Graph::load(&args.name, Joined::Pairs, args.data_dir.path())?;
    let given = args.given_split.map(|index| GraphSplitRule::Given { index });
    let asked = args.labelled.map(|labelled| GraphSplitRule::Share { labelled }).or(given);
    let rule = asked.unwrap_or_else(|| default_split(&graph.dataset));
    let split = graph.split(rule, args.split_seed)?;
    let name = (&graph.dataset.name[..], json!(SplitOfShards { rule, seed: args.split_seed }));
    let sharded =
        ShardedGraph::write(&graph.problem, &split, name, args.parts, &args.out).map_err(Failure::other)?;
    let manifest = sharded.manifest();
    if args.output.json() {
        println!("{}", json!({ "folder": args.out.display().to_string(), "parts": manifest.parts.len() }));
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "{}: {} nodes and {} entries in {} shards",
        args.out.display(),
        manifest.facts.nodes,
        manifest.entries,
        manifest.parts.len()
    );
    Ok(ExitCode::SUCCESS)
}
