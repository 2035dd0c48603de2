//! Graphs of one's own, from every form a folder may have.

use std::fs;
use std::path::Path;

use subdeq_data::graph::GraphDataset;
use subdeq_data::npy::{NpyArray, NpyData};
use subdeq_data::npz::Npz;

fn load(folder: &Path) -> subdeq_data::Result<GraphDataset> {
    GraphDataset::load(folder.to_str().unwrap(), None)
}

#[test]
fn edge_list_with_dense_features() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("edges.txt"), "0 1\n1 0\n1 2\n2 2\n").unwrap();
    fs::write(dir.path().join("labels.txt"), "0\n1\n1\n0\n").unwrap();
    fs::write(dir.path().join("features.csv"), "0,1.5\n2,0\n0,0\n1,1\n").unwrap();
    let graph = load(dir.path()).unwrap();
    assert_eq!(
        (graph.report.edges, graph.report.duplicates, graph.report.self_loops, graph.report.isolated),
        (2, 1, 1, 1)
    );
    assert_eq!((graph.features.nnz(), graph.classes), (4, 2));

    fs::write(dir.path().join("edges.txt"), "0 1\n1 4\n").unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("edge 1 (1, 4)") && error.contains("not below 4"), "{error}");
    fs::write(dir.path().join("edges.txt"), "0 1\n").unwrap();
    fs::write(dir.path().join("labels.txt"), "0\n1\n1\n").unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("4 rows of features but 3 labels"), "{error}");
    fs::write(dir.path().join("labels.txt"), "").unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("no nodes"));
    fs::remove_file(dir.path().join("labels.txt")).unwrap();
    let error = load(dir.path()).unwrap_err().to_string();
    assert!(error.contains("labels.txt") && error.contains("one class per line and node, from 0"), "{error}");
}

#[test]
fn npz_with_edges_or_a_matrix() {
    let dir = tempfile::tempdir().unwrap();
    let ints = |shape: &[usize], v: &[i64]| NpyArray::new(shape.to_vec(), NpyData::I64(v.to_vec())).unwrap();
    let mut npz = Npz::new("t");
    npz.insert("labels", ints(&[3], &[0, 1, 0]));
    npz.insert("edges", ints(&[2, 2], &[0, 1, 2, 1]));
    npz.write(&dir.path().join("graph.npz")).unwrap();
    let by_edges = load(dir.path()).unwrap();
    // The file by its path is the same graph.
    let by_path = load(&dir.path().join("graph.npz")).unwrap();
    assert_eq!((&by_path.adjacency, &by_path.labels), (&by_edges.adjacency, &by_edges.labels));
    // No features: one-hot.
    assert_eq!((by_edges.features.rows(), by_edges.features.nnz()), (3, 3));

    let mut npz = Npz::new("t");
    npz.insert("labels", ints(&[3], &[0, 1, 0]));
    npz.insert("adj_shape", ints(&[2], &[3, 3]));
    npz.insert("adj_indptr", ints(&[4], &[0, 1, 3, 4]));
    npz.insert("adj_indices", ints(&[4], &[1, 0, 2, 1]));
    npz.insert("adj_data", NpyArray::new(vec![4], NpyData::F32(vec![1.0; 4])).unwrap());
    npz.write(&dir.path().join("graph.npz")).unwrap();
    let by_matrix = load(dir.path()).unwrap();
    assert_eq!(by_matrix.adjacency, by_edges.adjacency);

    npz.insert("adj_indices", ints(&[4], &[1, 0, 3, 1]));
    npz.write(&dir.path().join("graph.npz")).unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("column 3"));
    npz.insert("adj_indptr", ints(&[4], &[0, 3, 1, 4]));
    npz.write(&dir.path().join("graph.npz")).unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("ends before it starts"));
}

#[test]
fn hypergraph_with_splits() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("hyperedges-own.txt"), "1, 2, 3\n2, 3\n").unwrap();
    fs::write(dir.path().join("node-labels-own.txt"), "1\n2\n2\n1\n").unwrap();
    fs::write(dir.path().join("splits.json"), r#"{"num_nodes": 4, "index_base": 0, "train": {"1": [0, 2]}}"#)
        .unwrap();
    let graph = load(dir.path()).unwrap();
    assert_eq!(
        (graph.report.edges, graph.report.duplicates, graph.labels.as_slice()),
        (3, 1, &[0, 1, 1, 0][..])
    );
    assert_eq!(graph.given_splits[0].test, [1, 3]);
    fs::write(dir.path().join("splits.json"), r#"{"num_nodes": 4, "train": {"1": [0, 4]}}"#).unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("node id 4 is out of range"));
    fs::write(dir.path().join("splits.json"), "{").unwrap();
    assert!(load(dir.path()).is_err());
}

#[test]
fn unknown_names_and_empty_folders() {
    assert!(GraphDataset::load("cora-cti", None).unwrap_err().to_string().contains("cora-cit"));
    let dir = tempfile::tempdir().unwrap();
    assert!(load(dir.path()).unwrap_err().to_string().contains("graph.npz"));
}
