//! Graphs with node features and classes.
//!
//! A hypergraph becomes a graph by clique expansion: any two nodes of a hyperedge are joined. The published code gives
//! such a pair the weight 1 however many hyperedges it shares, and removes self-loops before it adds one to each node;
//! that is [`Multiplicity::Binary`], the default here. [`Multiplicity::Counted`] counts the shared hyperedges instead.

mod adjacency;
mod block_model;
mod csr;
pub mod edge_list;
mod graph_split;
mod hypergraph;
pub mod karate;
pub mod pickle;
pub mod planetoid;

use std::path::{Path, PathBuf};

use serde::Deserialize;

pub use adjacency::{EdgeReport, Multiplicity, adjacency, normalised};
pub use block_model::BlockModel;
pub use csr::Csr;
pub use graph_split::{GraphSplitRule, LABELLED_SHARES, LabelledShares};
pub use hypergraph::Hypergraph;

use crate::class_count;
use crate::csv::for_each_row;
use crate::data_dir;
use crate::error::{DataError, Place, Result};
use crate::npz::Npz;
use crate::source;

/// Text files of a graph are at most this long.
const MAX_TEXT: u64 = 1 << 33;
/// Splits that any `splits.json` may have; beyond, all their test lists together have at most this many nodes.
const MANY_SPLITS: usize = 16;
const MAX_TEST_NODES: usize = 1 << 24;

/// Node lists that come with a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GivenSplit {
    /// Labelled nodes.
    pub train: Vec<u32>,
    /// Validation nodes; may be empty.
    pub validation: Vec<u32>,
    /// Test nodes.
    pub test: Vec<u32>,
}

/// A graph with node features, classes and the splits that come with it.
///
/// ```
/// use subdeq_data::graph::{GraphDataset, GraphSplitRule};
/// let karate = GraphDataset::load("karate", None).unwrap();
/// assert_eq!((karate.nodes(), karate.report.edges, karate.classes), (34, 78, 2));
/// let a = karate.propagation().unwrap();
/// assert_eq!(a.nnz(), 2 * 78 + 34);
/// let split = karate.split(GraphSplitRule::GivenAsIs { index: 0 }, 0).unwrap();
/// assert_eq!(split.train, [0, 33]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct GraphDataset {
    /// The name asked for, or the folder.
    pub name: String,
    /// Where it came from.
    pub origin: String,
    /// Symmetric adjacency, no self-loops, rows sorted; empty if hyperedges are too large to be expanded.
    pub adjacency: Csr,
    /// What was merged or left out on the way.
    pub report: EdgeReport,
    /// The hyperedges, where nodes are joined by such.
    pub hypergraph: Option<Hypergraph>,
    /// Why hyperedges were not expanded, if they were not.
    not_expanded: Option<String>,
    /// One row per node.
    pub features: Csr,
    /// One class per node.
    pub labels: Vec<u32>,
    /// The number of classes.
    pub classes: usize,
    /// Splits that come with the data.
    pub given_splits: Vec<GivenSplit>,
}

/// What a data set is put together from.
struct GraphParts {
    edges: Vec<(u32, u32)>,
    hypergraph: Option<Hypergraph>,
    not_expanded: Option<String>,
    multiplicity: Multiplicity,
    features: Option<Csr>,
    labels: Vec<u32>,
    classes: Option<usize>,
    given: Vec<GivenSplit>,
}

/// The graphs known by name.
///
/// The co-citation graphs are the SubDEQ authors', where a hyperedge is a citing paper with the papers that it cites. HyperGCN's
/// own, which others compare on, leave the citing paper out: these are `hypergcn-` and the name.
pub const GRAPH_NAMES: &[&str] = &[
    "karate",
    "cora-cit",
    "cora-author",
    "citeseer",
    "dblp",
    "pubmed",
    "hypergcn-cora-cit",
    "hypergcn-citeseer",
    "hypergcn-pubmed",
    "planetoid-cora",
    "planetoid-citeseer",
    "planetoid-pubmed",
];

/// Where the files of a graph known by name are, below a data folder.
///
/// ```
/// assert_eq!(subdeq_data::graph::folder_of("dblp"), "graphs/dblp");
/// assert_eq!(subdeq_data::graph::folder_of("planetoid-cora"), "planetoid");
/// ```
pub fn folder_of(name: &str) -> String {
    let graph = name.strip_prefix(CITED_ONLY).unwrap_or(name);
    if name.starts_with("planetoid-") { "planetoid".to_owned() } else { format!("graphs/{graph}") }
}

/// Names of graphs whose hyperedges are read without their first node, the citing paper.
const CITED_ONLY: &str = "hypergcn-";

/// Whether a path is that of an `.npz` file with a graph in it: one that has edges, or an adjacency matrix.
#[must_use]
pub fn is_graph_npz(path: &Path) -> bool {
    let named = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("npz"));
    let names = if named { Npz::names(path).unwrap_or_default() } else { Vec::new() };
    names.iter().any(|name| name == "edges" || name == "adj_indices")
}

impl GraphDataset {
    /// Loads a graph by name (see [`GRAPH_NAMES`]), from a folder, or from an .npz file. `data_dir` is the user's
    /// `--data-dir`.
    pub fn load(name: &str, data_dir: Option<&Path>) -> Result<Self> {
        Self::load_with(name, data_dir, Multiplicity::Binary)
    }

    /// The same with a choice of what repeated edges weigh.
    pub fn load_with(name: &str, data_dir: Option<&Path>, multiplicity: Multiplicity) -> Result<Self> {
        if name == "karate" {
            return karate_club();
        }
        if let Some(planetoid_name) = name.strip_prefix("planetoid-").filter(|_| GRAPH_NAMES.contains(&name))
        {
            return planetoid::load(&data_dir::find(&folder_of(name), data_dir)?, planetoid_name);
        }
        if GRAPH_NAMES.contains(&name) {
            let folder = data_dir::find(&folder_of(name), data_dir)?;
            return Self::from_folder(&folder, name, multiplicity);
        }
        let path = Path::new(name);
        if path.is_dir() {
            return Self::from_folder(path, name, multiplicity);
        }
        if is_graph_npz(path) {
            return Self::assemble(name, name, npz_parts(path, multiplicity)?);
        }
        Err(DataError::request(
            format!("'{name}' is neither a known graph nor a folder nor an .npz file with one"),
            format!("use one of {} or the path of a folder or .npz file", GRAPH_NAMES.join(", ")),
        ))
    }

    /// Loads the graph of a folder: `hyperedges-*.txt` with `node-labels-*.txt` (ids and classes from 1), or `graph.npz`,
    /// or `edges.txt` / `edges.csv` with `labels.txt` (ids and classes from 0); features in `features.npz` (SciPy CSR) or
    /// `features.csv`, one-hot if there are none; `splits.json` if there is one.
    pub fn from_folder(folder: &Path, name: &str, multiplicity: Multiplicity) -> Result<Self> {
        let origin = folder.display().to_string();
        let parts = if let Some(path) = file_like(folder, "hyperedges-", ".txt")? {
            hypergraph_parts(
                folder,
                &path,
                multiplicity,
                GRAPH_NAMES.contains(&name) && name.starts_with(CITED_ONLY),
            )?
        } else if folder.join("graph.npz").exists() {
            npz_parts(&folder.join("graph.npz"), multiplicity)?
        } else if let Some(path) =
            ["edges.txt", "edges.csv"].map(|f| folder.join(f)).into_iter().find(|p| p.exists())
        {
            edge_list_parts(folder, &path, multiplicity)?
        } else {
            return Err(DataError::Missing {
                what: "graph".to_owned(),
                searched: vec![folder.to_path_buf()],
                remedy: "the folder should hold hyperedges-NAME.txt and node-labels-NAME.txt, or graph.npz, or edges.txt and \
                         labels.txt; and features.npz or features.csv"
                    .to_owned(),
            });
        };
        Self::assemble(name, &origin, parts)
    }

    fn assemble(name: &str, origin: &str, parts: GraphParts) -> Result<Self> {
        let nodes = parts.labels.len();
        let wrong = |problem: String| {
            DataError::malformed(origin, Place::Whole, problem, "check that the files belong together")
        };
        if nodes == 0 {
            return Err(wrong("the graph has no nodes".to_owned()));
        }
        // Ids are numbers of 32 bits.
        if u32::try_from(nodes).is_err() {
            return Err(wrong(format!("{nodes} nodes are too many")));
        }
        let features = parts.features.unwrap_or_else(|| Csr::identity(nodes));
        if features.rows() != nodes {
            return Err(wrong(format!("{} rows of features but {nodes} labels", features.rows())));
        }
        features.require_plausible_columns(origin)?;
        // Before anything is made that has as many rows as there are classes.
        let (_, found) = class_count::checked(origin, "labels", parts.labels.iter().copied())?;
        let classes = parts.classes.unwrap_or(found);
        class_count::believable(origin, "labels", classes, nodes)?;
        if found > classes {
            return Err(wrong(format!("a label {} with {classes} classes", found - 1)));
        }
        for (i, split) in parts.given.iter().enumerate() {
            let lists = [&split.train, &split.validation, &split.test];
            if let Some(node) = lists.into_iter().flatten().find(|&&node| node as usize >= nodes) {
                return Err(wrong(format!("split {i} has the node {node}, there are {nodes}")));
            }
        }
        let (adjacency, report) = adjacency(origin, nodes, &parts.edges, parts.multiplicity)?;
        Ok(GraphDataset {
            name: name.to_owned(),
            origin: origin.to_owned(),
            adjacency,
            report,
            hypergraph: parts.hypergraph,
            not_expanded: parts.not_expanded,
            features,
            labels: parts.labels,
            classes,
            given_splits: parts.given,
        })
    }

    /// The number of nodes.
    pub fn nodes(&self) -> usize {
        self.labels.len()
    }

    /// D^-1/2 (A + I) D^-1/2, the matrix the models propagate with.
    ///
    /// # Errors
    /// Hyperedges that are too large to be expanded to cliques.
    pub fn propagation(&self) -> Result<Csr> {
        if let Some(why) = &self.not_expanded {
            let remedy =
                "leave out the hyperedges that join everything, or propagate over the hyperedges themselves";
            return Err(DataError::request(why.clone(), remedy));
        }
        normalised(&self.adjacency)
    }
}

fn karate_club() -> Result<GraphDataset> {
    // The usual task: only the two leaders are known.
    let given = GivenSplit { train: vec![0, 33], validation: Vec::new(), test: (1..33).collect() };
    let parts = GraphParts {
        edges: karate::EDGES.to_vec(),
        hypergraph: None,
        not_expanded: None,
        multiplicity: Multiplicity::Binary,
        features: None,
        labels: karate::FACTIONS.to_vec(),
        classes: Some(2),
        given: vec![given],
    };
    GraphDataset::assemble("karate", "inside the program", parts)
}

/// The first file of a folder, by name, with this beginning and end.
fn file_like(folder: &Path, start: &str, end: &str) -> Result<Option<PathBuf>> {
    let mut found: Option<PathBuf> = None;
    for entry in std::fs::read_dir(folder).map_err(DataError::io("list", folder))? {
        let path = entry.map_err(DataError::io("list", folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(start) && name.ends_with(end) && found.as_ref().is_none_or(|f| path < *f) {
            found = Some(path);
        }
    }
    Ok(found)
}

fn text(path: &Path) -> Result<String> {
    let bytes = source::open_text(path)?.rest(MAX_TEXT)?;
    String::from_utf8(bytes).map_err(|e| {
        let place = Place::Byte(e.utf8_error().valid_up_to() as u64);
        DataError::malformed(&path.display().to_string(), place, "is not text", "save the file as plain text")
    })
}

/// One class per line; `first` is the smallest.
fn labels(path: &Path, first: u32) -> Result<Vec<u32>> {
    let parse = |(i, line): (usize, &str)| {
        let label = line.trim().parse::<u32>().ok().and_then(|label| label.checked_sub(first));
        label.ok_or_else(|| {
            let shown: String = line.chars().take(40).collect();
            let problem = format!("'{shown}' is not a class from {first}");
            DataError::malformed(
                &path.display().to_string(),
                Place::Line(i as u64 + 1),
                problem,
                "write one class per line",
            )
        })
    };
    let text = text(path)?;
    let found: Vec<u32> = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(parse)
        .collect::<Result<_>>()?;
    let most = class_count::limit(found.len());
    if let Some(i) = found.iter().position(|&label| label as usize >= most) {
        let line = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).nth(i);
        let (number, class) = line.map_or((i, String::new()), |(n, line)| (n, line.trim().to_owned()));
        let problem = format!("class {class} is beyond the {most} that {} nodes can have", found.len());
        let remedy = format!("number the classes {first}, {}, .. without gaps", first + 1);
        return Err(DataError::malformed(
            &path.display().to_string(),
            Place::Line(number as u64 + 1),
            problem,
            remedy,
        ));
    }
    Ok(found)
}

/// The features of so many nodes.
fn features(folder: &Path, nodes: usize) -> Result<Option<Csr>> {
    if nodes == 0 {
        // That there are no nodes is the first thing to be said.
        return Ok(None);
    }
    let (sparse, dense) = (folder.join("features.npz"), folder.join("features.csv"));
    if sparse.exists() {
        let name = sparse.display().to_string();
        return Csr::from_npz(&Npz::read(&sparse)?, "", &name).map(Some);
    }
    if dense.exists() {
        // Row by row into the sparse form: most of a table of features is zeros.
        let (mut row_ptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        let name = dense.display().to_string();
        let columns = for_each_row(&dense, |i, row| {
            if i >= nodes {
                let problem = format!("at least {} rows of features but {nodes} labels", i + 1);
                let remedy = "check that the files belong together";
                return Err(DataError::malformed(&name, Place::Whole, problem, remedy));
            }
            for (column, value) in (0..).zip(row).filter(|(_, value)| **value as f32 != 0.0) {
                indices.push(column);
                values.push(*value as f32);
            }
            row_ptr.push(indices.len());
            Ok(())
        })?;
        return Csr::from_parts(&name, row_ptr.len() - 1, columns, row_ptr, indices, values).map(Some);
    }
    Ok(None)
}

fn hypergraph_parts(
    folder: &Path,
    path: &Path,
    multiplicity: Multiplicity,
    cited_only: bool,
) -> Result<GraphParts> {
    // `labels-all-NAME.txt` completes a label file that is too short (CiteSeer's has 3306 of 3312 lines).
    let label_file = match file_like(folder, "labels-all-", ".txt")? {
        Some(path) => Some(path),
        None => file_like(folder, "node-labels-", ".txt")?,
    };
    let Some(label_file) = label_file else {
        return Err(no_labels(folder.join("node-labels-NAME.txt"), 1));
    };
    let labels = labels(&label_file, 1)?;
    let name = path.display().to_string();
    let parse = if cited_only { Hypergraph::parse_without_first } else { Hypergraph::parse };
    let hypergraph = parse(&text(path)?, labels.len(), &name)?;
    let given = given_splits(&folder.join("splits.json"), labels.len())?;
    let (edges, not_expanded) = match hypergraph.clique_pairs(&name) {
        Ok(edges) => (edges, None),
        Err(why) => (Vec::new(), Some(why.to_string())),
    };
    Ok(GraphParts {
        edges,
        hypergraph: Some(hypergraph),
        not_expanded,
        multiplicity,
        features: features(folder, labels.len())?,
        labels,
        classes: None,
        given,
    })
}

fn no_labels(file: PathBuf, first: u32) -> DataError {
    let remedy = format!("write it: one class per line and node, from {first}");
    DataError::Missing { what: "label file".to_owned(), searched: vec![file], remedy }
}

fn edge_list_parts(folder: &Path, path: &Path, multiplicity: Multiplicity) -> Result<GraphParts> {
    let label_file = folder.join("labels.txt");
    if !label_file.exists() {
        return Err(no_labels(label_file, 0));
    }
    let labels = labels(&label_file, 0)?;
    let name = path.display().to_string();
    let edges = edge_list::parse(&text(path)?, &name)?;
    // A graph without any nodes is refused as such, later.
    let outside = |&(a, b): &(u32, u32)| a.max(b) as usize >= labels.len();
    if let Some(i) = edges.iter().position(outside).filter(|_| !labels.is_empty()) {
        let (a, b) = edges[i];
        let problem = format!("edge {i} ({a}, {b}) has a node id that is not below {}", labels.len());
        let remedy = "ids count from 0, and labels.txt has one line per node";
        return Err(DataError::malformed(&name, Place::Whole, problem, remedy));
    }
    let given = given_splits(&folder.join("splits.json"), labels.len())?;
    Ok(GraphParts {
        edges,
        hypergraph: None,
        not_expanded: None,
        multiplicity,
        features: features(folder, labels.len())?,
        labels,
        classes: None,
        given,
    })
}

/// `labels`, and either `edges` (E x 2) or a CSR matrix `adj_data`, `adj_indices`, `adj_indptr`, `adj_shape`; features as a
/// dense array `features` or a CSR matrix `attr_data`, ..; none of them: one-hot.
fn npz_parts(path: &Path, multiplicity: Multiplicity) -> Result<GraphParts> {
    let npz = Npz::read(path)?;
    let name = path.display().to_string();
    let wrong = |field: &str, problem: String| {
        DataError::malformed(
            &name,
            Place::Field(field.to_owned()),
            problem,
            "save edges as E x 2, features as N x F",
        )
    };
    let narrow = |value: usize, field: &str| {
        u32::try_from(value).map_err(|_| wrong(field, format!("{value} is too large")))
    };
    let labels = npz.get("labels")?.indices(&name, "labels")?;
    let (labels, _) = class_count::checked(&name, "labels", labels.into_iter())?;
    let mut edges = Vec::new();
    if npz.contains("edges") {
        let array = npz.get("edges")?;
        if array.shape().len() != 2 || array.shape()[1] != 2 {
            return Err(wrong("edges", format!("has the shape {:?}", array.shape())));
        }
        for (i, pair) in array.indices(&name, "edges")?.chunks_exact(2).enumerate() {
            // Here and not where the matrix is built, because here the file and the array are known.
            if let Some(id) = pair.iter().find(|&&id| id >= labels.len()) {
                let problem = format!("edge {i} has the node id {id}, but there are {} labels", labels.len());
                return Err(wrong("edges", problem));
            }
            edges.push((narrow(pair[0], "edges")?, narrow(pair[1], "edges")?));
        }
    } else {
        let matrix = Csr::from_npz(&npz, "adj_", &name)?;
        if matrix.rows() != labels.len() || matrix.columns() != labels.len() {
            let problem = format!("{} x {} for {} labels", matrix.rows(), matrix.columns(), labels.len());
            return Err(wrong("adj_shape", problem));
        }
        for i in 0..matrix.rows() {
            // Either triangle is enough; an entry in both is one edge, not two.
            let row = matrix.row(i).0.iter().map(|&j| (narrow(i, "adj_shape"), j));
            for (i, j) in row {
                let i = i?;
                edges.push((i.min(j), i.max(j)));
            }
        }
        edges.sort_unstable();
        edges.dedup();
    }
    let features = if npz.contains("features") {
        let array = npz.get("features")?;
        let &[rows, columns] = array.shape() else {
            return Err(wrong("features", format!("has the shape {:?}", array.shape())));
        };
        Some(Csr::from_dense(&name, rows, columns, &array.numbers(&name, "features")?)?)
    } else if npz.contains("attr_data") {
        Some(Csr::from_npz(&npz, "attr_", &name)?)
    } else {
        None
    };
    let given = Vec::new();
    let (hypergraph, not_expanded, classes) = (None, None, None);
    Ok(GraphParts { edges, hypergraph, not_expanded, multiplicity, features, labels, classes, given })
}

/// The layout of `splits.json`.
#[derive(Deserialize)]
struct SplitsFile {
    num_nodes: usize,
    #[serde(default)]
    index_base: u32,
    train: std::collections::BTreeMap<u32, Vec<u32>>,
}

/// The splits given with a graph: the labelled nodes of each; all others are test nodes.
fn given_splits(path: &Path, nodes: usize) -> Result<Vec<GivenSplit>> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    parse_splits(&text(path)?, nodes, &path.display().to_string())
}

/// Reads the text of a `splits.json`: the labelled nodes of each split; all other nodes test. `name` is used in errors.
pub fn parse_splits(text: &str, nodes: usize, name: &str) -> Result<Vec<GivenSplit>> {
    let wrong = |place: Place, problem: String| {
        DataError::malformed(name, place, problem, "check that it belongs to this graph")
    };
    let file: SplitsFile = serde_json::from_str(text)
        .map_err(|e| wrong(Place::Line(e.line() as u64), format!("is not readable ({e})")))?;
    if file.num_nodes != nodes {
        return Err(wrong(
            Place::Field("num_nodes".into()),
            format!("is {}, the graph has {nodes} nodes", file.num_nodes),
        ));
    }
    let tested = file.train.len().saturating_mul(nodes);
    if file.train.len() > MANY_SPLITS && tested > MAX_TEST_NODES {
        let problem = format!("{} splits of {nodes} nodes name {tested} test nodes", file.train.len());
        return Err(wrong(Place::Field("train".into()), problem));
    }
    let mut splits = Vec::new();
    for (key, ids) in file.train {
        let mut labelled = vec![false; nodes];
        let mut train = Vec::with_capacity(ids.len());
        for id in ids {
            let node = id.checked_sub(file.index_base).filter(|&node| (node as usize) < nodes);
            let Some(node) = node else {
                return Err(wrong(
                    Place::Field(format!("split {key}")),
                    format!("node id {id} is out of range"),
                ));
            };
            labelled[node as usize] = true;
            train.push(node);
        }
        let test = (0..nodes as u32).filter(|&node| !labelled[node as usize]).collect();
        splits.push(GivenSplit { train, validation: Vec::new(), test });
    }
    Ok(splits)
}
