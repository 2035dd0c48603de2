//! The real graphs, where they are there: `SUBDEQ_DATA`, or `../shared/data` beside the workspace.

use subdeq_data::graph::{GraphDataset, GraphSplitRule, Hypergraph, Multiplicity};

use crate::real::data;
use crate::skipped::skipped;

/// Name, nodes, hyperedges, covered nodes, features, non-zeros, classes, labelled nodes of a given split.
const TABLE: [(&str, [usize; 7]); 5] = [
    ("cora-cit", [2708, 1579, 2314, 1433, 49216, 7, 140]),
    ("cora-author", [2708, 1072, 2388, 1433, 49216, 7, 140]),
    ("citeseer", [3312, 1079, 2140, 3703, 105165, 6, 138]),
    ("dblp", [41302, 22363, 41302, 1425, 1602890, 6, 1740]),
    ("pubmed", [19717, 7963, 10688, 500, 988031, 3, 78]),
];

#[test]
fn the_five_graphs_are_the_published_ones() {
    let Some(root) = data("the_five_graphs_are_the_published_ones", "graphs") else { return };
    for (name, [nodes, hyperedges, covered, features, nonzeros, classes, labelled]) in TABLE {
        let graph = GraphDataset::load(name, Some(&root)).unwrap();
        let found = (graph.nodes(), graph.features.columns(), graph.features.nnz(), graph.classes);
        assert_eq!(found, (nodes, features, nonzeros, classes), "{name}");
        let text =
            std::fs::read_to_string(root.join(format!("graphs/{name}/hyperedges-{name}.txt"))).unwrap();
        let hypergraph = Hypergraph::parse(&text, nodes, name).unwrap();
        assert_eq!(
            (hypergraph.hyperedges.len(), hypergraph.covered_nodes()),
            (hyperedges, covered),
            "{name}"
        );
        assert_eq!(graph.given_splits.len(), 10, "{name}");
        for split in &graph.given_splits {
            assert_eq!((split.train.len(), split.test.len()), (labelled, nodes - labelled), "{name}");
        }
        // A hyperedge of one node gives no edge, so at least the uncovered nodes are isolated.
        assert!(
            graph.report.isolated >= nodes - covered && graph.report.self_loops == 0,
            "{name}: {:?}",
            graph.report
        );
        let propagation = graph.propagation().unwrap();
        assert_eq!(propagation.nnz(), 2 * graph.report.edges + nodes, "{name}");
        assert_eq!(propagation, propagation.transpose(), "{name}");
        println!("{name}: {:?}, labels {:?}", graph.report, graph.labels.len());
    }
}

#[test]
fn counted_cliques_weigh_more() {
    let Some(root) = data("counted_cliques_weigh_more", "graphs") else { return };
    let binary = GraphDataset::load("cora-author", Some(&root)).unwrap();
    let counted = GraphDataset::load_with("cora-author", Some(&root), Multiplicity::Counted).unwrap();
    assert_eq!(binary.adjacency.column_indices(), counted.adjacency.column_indices());
    assert!(binary.adjacency.values().iter().all(|&v| v == 1.0));
    let extra: f32 = counted.adjacency.values().iter().map(|v| v - 1.0).sum();
    assert_eq!(extra as usize, 2 * counted.report.duplicates);
}

#[test]
fn splits_of_the_paper_and_its_appendix() {
    let Some(root) = data("splits_of_the_paper_and_its_appendix", "graphs") else { return };
    let graph = GraphDataset::load("citeseer", Some(&root)).unwrap();
    let main = graph.split(GraphSplitRule::Main, 5).unwrap();
    // ceil(3312 * 0.042) = 140, then the rest halved, the odd one to validation.
    assert_eq!((main.train.len(), main.test.len(), main.validation.len()), (140, 1586, 1586));
    let first = graph.split(GraphSplitRule::AppendixPaper { test_seed: 3 }, 0).unwrap();
    let second = graph.split(GraphSplitRule::AppendixPaper { test_seed: 3 }, 1).unwrap();
    assert_eq!(first.test, second.test);
    assert_ne!(first.train, second.train);
    // ceil(1726 * 0.078) and ceil(1726 * 0.063) of the nodes that do not test.
    assert_eq!(first.train.len(), 135);
    assert_eq!(graph.split(GraphSplitRule::AppendixRelease { test_seed: 3 }, 0).unwrap().train.len(), 109);
    for split in [main, first, graph.split(GraphSplitRule::Given { index: 9 }, 2).unwrap()] {
        let mut all = [split.train, split.validation, split.test].concat();
        all.sort_unstable();
        assert_eq!(all, (0..3312).collect::<Vec<u32>>());
    }
    assert!(graph.split(GraphSplitRule::Given { index: 10 }, 2).is_err());
    assert!(graph.split(GraphSplitRule::Share { labelled: 1.0 }, 2).is_err());
}

#[test]
fn planetoid_files() {
    let Some(root) = data("planetoid_files", "planetoid") else { return };
    // Nodes, features, classes, labelled, test nodes, undirected edges without loops: the well-known figures.
    for (name, nodes, features, classes, labelled, test, edges) in [
        ("cora", 2708, 1433, 7, 140, 1000, 5278),
        ("citeseer", 3327, 3703, 6, 120, 1000, 4552),
        ("pubmed", 19717, 500, 3, 60, 1000, 44324),
    ] {
        let graph = GraphDataset::load(&format!("planetoid-{name}"), Some(&root)).unwrap();
        assert_eq!(
            (graph.nodes(), graph.features.columns(), graph.classes),
            (nodes, features, classes),
            "{name}"
        );
        assert_eq!(graph.report.edges, edges, "{name}");
        let split = graph.split(GraphSplitRule::GivenAsIs { index: 0 }, 0).unwrap();
        assert_eq!(
            (split.train.len(), split.validation.len(), split.test.len()),
            (labelled, 500, test),
            "{name}"
        );
    }
}

/// Two ways to the same features: the Planetoid pickles and the re-ordered .npz of the hypergraph data.
#[test]
fn planetoid_pubmed_agrees_with_the_npz() {
    let name = "planetoid_pubmed_agrees_with_the_npz";
    let Some(root) = data(name, "planetoid") else { return };
    let rows = root.join("graphs/pubmed/planetoid-row.txt");
    let Ok(rows) = std::fs::read_to_string(&rows) else {
        skipped(format!("{name}: no data at {}", rows.display()));
        return;
    };
    let raw = GraphDataset::load("planetoid-pubmed", Some(&root)).unwrap();
    let hyper = GraphDataset::load("pubmed", Some(&root)).unwrap();
    let sorted = |graph: &GraphDataset, node: usize| {
        let (columns, values) = graph.features.row(node);
        let mut row: Vec<(u32, u32)> = columns.iter().zip(values).map(|(&c, v)| (c, v.to_bits())).collect();
        row.sort_unstable();
        row
    };
    for (node, line) in rows.lines().enumerate() {
        let row: usize = line.trim().parse().unwrap();
        assert_eq!(sorted(&hyper, node), sorted(&raw, row), "node {node}");
    }
}
