//! Shards hold the graph that they were made of.

use std::fs;

use subdeq_ranks::Ranks;

use super::{
    Csr, GraphConfig, GraphModel, GraphProblem, GraphSplit, MANIFEST, ShardedGraph, normalised_adjacency,
    train_graph,
};

fn problem() -> (GraphProblem, GraphSplit) {
    let nodes = 2000u32;
    let edges: Vec<(u32, u32)> =
        (0..nodes).flat_map(|i| (1..8).map(move |k| (i, (i * 31 + k * k * 7) % nodes))).collect();
    let features = Csr {
        rows: nodes as usize,
        cols: 10,
        starts: (0..=nodes as usize).collect(),
        columns: (0..nodes).map(|i| (i * 7 + i / 1000) % 10).collect(),
        values: vec![1.0; nodes as usize],
    };
    let labels = (0..nodes).map(|i| i / 1000).collect();
    let problem =
        GraphProblem::new(normalised_adjacency(nodes as usize, &edges).unwrap(), features, labels, 2)
            .unwrap();
    let every = |first: u32| (first..nodes).step_by(9).collect();
    (problem, GraphSplit { train: every(0), validation: every(1), test: every(2) })
}

fn made(problem: &GraphProblem, split: &GraphSplit, folder: &std::path::Path) -> ShardedGraph {
    ShardedGraph::write(problem, split, ("mine", serde_json::Value::Null), 3, folder).unwrap()
}

#[test]
fn trained_from_shards_and_certified_as_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, split) = problem();
    let manifest = made(&whole, &split, folder.path()).manifest().clone();
    assert_eq!(manifest.parts.len(), 3);
    let sharded = ShardedGraph::open(folder.path()).unwrap();
    assert_eq!(*sharded.manifest(), manifest);
    let (problem, found) = sharded.load(&Ranks::alone()).unwrap();
    assert_eq!((found.train.len(), problem.nodes()), (split.train.len(), whole.nodes()));
    for name in GraphModel::NAMES {
        let models = [
            GraphModel::paper(name, 0.1),
            GraphModel::release(name, 0.1),
            GraphModel::equilibrium(name, 0.1),
        ];
        for model in models.map(Result::unwrap) {
            assert_eq!(problem.certify(&model), whole.certify(&model), "{name}");
            assert_eq!(
                whole.share(&Ranks::alone()).unwrap().certify(&model),
                whole.certify(&model),
                "{name}"
            );
        }
    }
    let config =
        GraphConfig { epochs: 5, ..GraphConfig::new(GraphModel::equilibrium("appnp-tanh", 0.1).unwrap()) };
    let alone = train_graph(&whole, &split, &config, |_| ()).unwrap();
    let from_shards = train_graph(&problem, &found, &config, |_| ()).unwrap();
    assert_eq!(alone.classifier.weights, from_shards.classifier.weights);
    assert_eq!(alone.epochs, from_shards.epochs);
    let evaluated = alone.classifier.evaluate(&whole, &split.test, 1).unwrap().0;
    let shared = from_shards.classifier.evaluate_shared(&Ranks::alone(), &problem, &found, 1).unwrap();
    assert_eq!((evaluated.confusion, evaluated.accuracy), (shared.confusion, shared.accuracy));
    assert_eq!(evaluated.all_inputs, shared.all_inputs);
}

#[test]
fn shards_that_are_missing_damaged_or_foreign_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, split) = problem();
    let sharded = made(&whole, &split, folder.path());
    let refused = |words: &str| {
        let why = sharded.load(&Ranks::alone()).unwrap_err().to_string();
        assert!(why.contains(words), "{why}");
    };
    let path = folder.path().join("part-1.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    refused("is damaged or belongs to another graph");
    fs::remove_file(&path).unwrap();
    refused("is missing: copy it here");
    let again = ShardedGraph::write(&whole, &split, ("mine", serde_json::Value::Null), 3, folder.path());
    assert!(again.unwrap_err().to_string().contains("holds shards already"));
    let manifest = folder.path().join(MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap().replace("version 1", "version 7");
    fs::write(&manifest, text).unwrap();
    assert!(ShardedGraph::open(folder.path()).unwrap_err().to_string().contains("version 7"));
}
