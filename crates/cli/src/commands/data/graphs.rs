//! The graphs among the data sets.

use serde_json::json;
use subdeq_data::graph::{GRAPH_NAMES, GraphDataset, folder_of};

use super::found;
use crate::failure::Failure;
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
