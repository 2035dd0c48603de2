//! A graph in a folder of shards, of which every rank reads its own: no process has the whole.
//!
//! `shards.json` says how the graph is ordered and divided and what is known of its matrix; `part-K.safetensors` holds some rows of
//! matrix and features with the nodes' classes. Nodes are numbered by their rows; a shard says what they were called before.

use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subdeq_engine::cpu::graph::Division;
use subdeq_ranks::Ranks;

use super::share::{Nodes, check_ranks, rows_of};
use super::{Csr, GraphFacts, GraphOperator, GraphProblem, GraphSplit};
use crate::{Error, Result};

/// The file that describes the shards of a folder.
pub const MANIFEST: &str = "shards.json";
/// What its `format` says.
const FORMAT: &str = "subdeq graph shards, version 1";
/// What a node is for, as shards have it.
const ROLES: [&str; 3] = ["train", "validation", "test"];
/// A node without a role.
const NO_ROLE: u8 = 3;

/// What `shards.json` holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ShardManifest {
    format: String,
    /// The graph's name.
    pub name: String,
    /// In which order its nodes became rows.
    pub order: String,
    /// What is known of the matrix.
    pub facts: GraphFacts,
    /// Entries of the matrix.
    pub entries: usize,
    /// Features of a node.
    pub features: usize,
    /// Number of classes.
    pub classes: usize,
    /// Nodes to train, select and test.
    pub split: [usize; 3],
    /// How that division was made, for whoever made it.
    pub split_rule: serde_json::Value,
    /// Ends of the blocks of rows over which propagations add up.
    blocks: Vec<usize>,
    /// The same of the encoder's gradients.
    slices: Vec<usize>,
    /// The shards.
    pub parts: Vec<Shard>,
}

/// One file of some rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Its name in the folder.
    pub file: String,
    /// Its rows.
    pub rows: Range<usize>,
    /// The SHA-256 of its bytes.
    pub sha256: String,
}

/// A folder of shards.
#[derive(Clone, Debug)]
pub struct ShardedGraph {
    folder: PathBuf,
    manifest: ShardManifest,
}

fn ends(ranges: &[Range<usize>]) -> Vec<usize> {
    ranges.iter().map(|range| range.end).collect()
}

fn ranges(ends: &[usize]) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts.zip(ends).map(|(start, &end)| start..end).collect()
}

impl ShardedGraph {
    /// Cuts a graph into at most so many shards (no more than it has blocks of rows) and writes them to a new folder. Of the division of
    /// its nodes, `split_rule` is kept for the reader.
    ///
    /// # Errors
    /// Hyperedges, a matrix that is not symmetric, a folder that is there already or cannot be written.
    pub fn write(
        problem: &GraphProblem,
        split: &GraphSplit,
        (name, split_rule): (&str, serde_json::Value),
        parts: usize,
        folder: &Path,
    ) -> Result<ShardedGraph> {
        let GraphOperator::Pairs(matrix) = problem.operator() else {
            return Err(Error::invalid("hyperedges cannot be cut into shards yet"));
        };
        if !problem.graph.is_symmetric() {
            return Err(Error::invalid(
                "the weights of this graph differ between its two directions, and shards are of symmetric matrices",
            ));
        }
        let features = problem.features();
        let division = Division::new(matrix, features);
        let parts = parts.clamp(1, division.blocks.len());
        fs::create_dir_all(folder).map_err(|why| cannot("write", folder, &why))?;
        if folder.join(MANIFEST).exists() {
            return Err(Error::invalid(format!(
                "{} holds shards already: choose another folder",
                folder.display()
            )));
        }
        let mut node_of_row = vec![0u32; problem.nodes()];
        (0..problem.nodes() as u32).for_each(|node| node_of_row[problem.row(node)] = node);
        let mut roles = vec![NO_ROLE; problem.nodes()];
        for (role, nodes) in [&split.train, &split.validation, &split.test].into_iter().enumerate() {
            nodes.iter().for_each(|&node| roles[problem.row(node)] = role as u8);
        }
        let mut shards = Vec::new();
        for part in 0..parts {
            let rows = division.rows_of(part, parts);
            let nodes = &node_of_row[rows.clone()];
            let bytes = ShardContent {
                matrix: rows_of(matrix, &rows),
                features: rows_of(features, &rows),
                labels: nodes.iter().map(|&node| problem.labels[node as usize]).collect(),
                roles: roles[rows.clone()].to_vec(),
                nodes: nodes.to_vec(),
            }
            .to_bytes()?;
            let file = format!("part-{part}.safetensors");
            let path = folder.join(&file);
            fs::write(&path, &bytes).map_err(|why| cannot("write", &path, &why))?;
            shards.push(Shard { file, rows, sha256: sha256(&bytes) });
        }
        let ordered = node_of_row.windows(2).all(|pair| pair[0] < pair[1]);
        let manifest = ShardManifest {
            format: FORMAT.into(),
            name: name.into(),
            order: if ordered { "as given" } else { "reverse Cuthill-McKee" }.into(),
            facts: GraphFacts::of(problem.operator()),
            entries: matrix.columns.len(),
            features: features.cols,
            classes: problem.classes(),
            split: [&split.train, &split.validation, &split.test].map(Vec::len),
            split_rule,
            blocks: ends(&division.blocks),
            slices: ends(&division.slices),
            parts: shards,
        };
        let path = folder.join(MANIFEST);
        let text = serde_json::to_string_pretty(&manifest).map_err(|why| Error::invalid(why.to_string()))?;
        fs::write(&path, text).map_err(|why| cannot("write", &path, &why))?;
        Ok(ShardedGraph { folder: folder.to_owned(), manifest })
    }

    /// Reads what a folder's `shards.json` says.
    ///
    /// # Errors
    /// A file that is not there, or is not the description of shards that cover a graph.
    pub fn open(folder: &Path) -> Result<ShardedGraph> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(|why| cannot("read", &path, &why))?;
        let refuse = |why: &str| Error::invalid(format!("{}: {why}", path.display()));
        let manifest: ShardManifest = serde_json::from_str(&text).map_err(|why| refuse(&why.to_string()))?;
        if manifest.format != FORMAT {
            return Err(refuse(&format!("this is `{}`, and this program reads `{FORMAT}`", manifest.format)));
        }
        let nodes = manifest.facts.nodes;
        let covers =
            |ends: &[usize]| ends.last() == Some(&nodes) && ends.windows(2).all(|pair| pair[0] < pair[1]);
        let parts: Vec<usize> = manifest.parts.iter().map(|part| part.rows.end).collect();
        let follow = ranges(&parts).iter().zip(&manifest.parts).all(|(rows, part)| *rows == part.rows);
        if !(follow && [&manifest.blocks, &manifest.slices, &parts].into_iter().all(|ends| covers(ends))) {
            return Err(refuse("its blocks, slices or shards do not cover the rows of the graph"));
        }
        Ok(ShardedGraph { folder: folder.to_owned(), manifest })
    }

    /// What `shards.json` says.
    #[must_use]
    pub fn manifest(&self) -> &ShardManifest {
        &self.manifest
    }

    /// Reads this rank's rows, and which nodes are learned from, select and test: of these, every rank has a list.
    ///
    /// # Errors
    /// More ranks than nodes, ranks with different descriptions, a shard that is missing, damaged or of another graph.
    pub fn load(&self, ranks: &Ranks) -> Result<(GraphProblem, GraphSplit)> {
        let manifest = &self.manifest;
        let nodes = manifest.facts.nodes;
        check_ranks(ranks, nodes)?;
        let text = serde_json::to_vec(manifest).map_err(|why| Error::invalid(why.to_string()))?;
        ranks.agree(MANIFEST, &text, "give every machine the same shards")?;
        let division = Division { blocks: ranges(&manifest.blocks), slices: ranges(&manifest.slices) };
        let rows = division.rows_of(ranks.rank(), ranks.size());
        let mut mine = ShardContent::empty(nodes, manifest.features);
        for part in &manifest.parts {
            let wanted = part.rows.start.max(rows.start)..part.rows.end.min(rows.end);
            if wanted.is_empty() {
                continue;
            }
            let content = self.read(part)?;
            mine.append(&content, &(wanted.start - part.rows.start..wanted.end - part.rows.start));
        }
        if let Some(label) = mine.labels.iter().find(|&&label| label as usize >= manifest.classes) {
            return Err(Error::invalid(format!("a node has class {label} of {}", manifest.classes)));
        }
        let role = |role: u8| -> Result<Vec<u32>> {
            let mine = mine.roles.iter().enumerate().filter(|(_, found)| **found == role);
            let rows: Vec<u32> = mine.map(|(row, _)| (rows.start + row) as u32).collect();
            Ok(ranks.all_gather(&rows)?)
        };
        let split = GraphSplit { train: role(0)?, validation: role(1)?, test: role(2)? };
        for (name, (found, said)) in
            ROLES.iter().zip([&split.train, &split.validation, &split.test].iter().zip(manifest.split))
        {
            if found.len() != said {
                return Err(Error::invalid(format!(
                    "the shards have {} {name} nodes, {MANIFEST} speaks of {said}",
                    found.len()
                )));
            }
        }
        let (labels, labels_from) = (std::mem::take(&mut mine.labels), rows.start);
        let nodes = Nodes { labels, labels_from, classes: manifest.classes, rows: Vec::new() };
        let problem =
            GraphProblem::of_part(ranks, &division, (mine.matrix, mine.features), manifest.facts, nodes)?;
        Ok((problem, split))
    }

    fn read(&self, part: &Shard) -> Result<ShardContent> {
        let path = self.folder.join(&part.file);
        let bytes = fs::read(&path).map_err(|why| match why.kind() {
            ErrorKind::NotFound => Error::invalid(format!(
                "the shard {} of rows {} to {} is missing: copy it here, or make the shards again with `subdeq data shard`",
                path.display(),
                part.rows.start,
                part.rows.end
            )),
            _ => cannot("read", &path, &why),
        })?;
        if sha256(&bytes) != part.sha256 {
            return Err(Error::invalid(format!(
                "{} is damaged or belongs to another graph: its SHA-256 is not the one that {MANIFEST} has",
                path.display()
            )));
        }
        let fault = |why: String| Error::invalid(format!("{}: {why}", path.display()));
        let content = ShardContent::of_bytes(&bytes, self.manifest.facts.nodes, self.manifest.features)
            .map_err(fault)?;
        if content.matrix.rows != part.rows.len() {
            return Err(fault(format!("{} rows in the place of {}", content.matrix.rows, part.rows.len())));
        }
        Ok(content)
    }
}

fn cannot(what: &str, path: &Path, why: &std::io::Error) -> Error {
    Error::invalid(format!("cannot {what} {}: {why}", path.display()))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Some rows.
struct ShardContent {
    matrix: Csr<f32>,
    features: Csr<f32>,
    labels: Vec<u32>,
    roles: Vec<u8>,
    /// What the nodes were called before they were put in order.
    nodes: Vec<u32>,
}

impl ShardContent {
    fn empty(nodes: usize, features: usize) -> ShardContent {
        let none =
            |cols: usize| Csr { rows: 0, cols, starts: vec![0], columns: Vec::new(), values: Vec::new() };
        let (matrix, features) = (none(nodes), none(features));
        ShardContent { matrix, features, labels: Vec::new(), roles: Vec::new(), nodes: Vec::new() }
    }

    /// Adds some rows of another one.
    fn append(&mut self, other: &ShardContent, rows: &Range<usize>) {
        for (to, from) in [(&mut self.matrix, &other.matrix), (&mut self.features, &other.features)] {
            let part = rows_of(from, rows);
            let before = to.columns.len();
            to.rows += part.rows;
            to.starts.extend(part.starts[1..].iter().map(|start| before + start));
            to.columns.extend(part.columns);
            to.values.extend(part.values);
        }
        self.labels.extend_from_slice(&other.labels[rows.clone()]);
        self.roles.extend_from_slice(&other.roles[rows.clone()]);
        self.nodes.extend_from_slice(&other.nodes[rows.clone()]);
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let words = |numbers: &[u32]| numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut arrays = vec![
            ("labels".to_owned(), Dtype::U32, self.labels.len(), words(&self.labels)),
            ("nodes".to_owned(), Dtype::U32, self.nodes.len(), words(&self.nodes)),
            ("roles".to_owned(), Dtype::U8, self.roles.len(), self.roles.clone()),
        ];
        for (name, matrix) in [("graph", &self.matrix), ("features", &self.features)] {
            let starts = matrix.starts.iter().flat_map(|&start| (start as u64).to_le_bytes()).collect();
            let values = matrix.values.iter().flat_map(|x| x.to_le_bytes()).collect();
            arrays.push((format!("{name}.starts"), Dtype::U64, matrix.starts.len(), starts));
            arrays.push((
                format!("{name}.columns"),
                Dtype::U32,
                matrix.columns.len(),
                words(&matrix.columns),
            ));
            arrays.push((format!("{name}.values"), Dtype::F32, matrix.values.len(), values));
        }
        let fault = |why: safetensors::SafeTensorError| Error::invalid(why.to_string());
        let mut views = Vec::new();
        for (name, kind, len, bytes) in &arrays {
            views.push((name, TensorView::new(*kind, vec![*len], bytes).map_err(fault)?));
        }
        safetensors::serialize(views, None).map_err(fault)
    }

    fn of_bytes(bytes: &[u8], nodes: usize, features: usize) -> std::result::Result<ShardContent, String> {
        let file = SafeTensors::deserialize(bytes).map_err(|why| why.to_string())?;
        let array = |name: &str, kind: Dtype| {
            let view = file.tensor(name).map_err(|_| format!("it has no array `{name}`"))?;
            if view.dtype() == kind {
                Ok(view.data().to_vec())
            } else {
                Err(format!("`{name}` is of another kind"))
            }
        };
        let words = |name: &str| {
            let bytes = array(name, Dtype::U32)?;
            Ok::<_, String>(
                bytes
                    .chunks_exact(4)
                    .map(|x| u32::from_le_bytes([x[0], x[1], x[2], x[3]]))
                    .collect::<Vec<u32>>(),
            )
        };
        let matrix = |name: &str, cols: usize| {
            let starts = array(&format!("{name}.starts"), Dtype::U64)?;
            let mut word = [0; 8];
            let starts = starts.chunks_exact(8).map(|x| {
                word.copy_from_slice(x);
                u64::from_le_bytes(word) as usize
            });
            let starts: Vec<usize> = starts.collect();
            let values = array(&format!("{name}.values"), Dtype::F32)?;
            let values =
                values.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect();
            let columns = words(&format!("{name}.columns"))?;
            let matrix = Csr { rows: starts.len().saturating_sub(1), cols, starts, columns, values };
            matrix.check().map_err(|why| format!("`{name}` is {why}"))?;
            Ok::<_, String>(matrix)
        };
        let content = ShardContent {
            matrix: matrix("graph", nodes)?,
            features: matrix("features", features)?,
            labels: words("labels")?,
            roles: array("roles", Dtype::U8)?,
            nodes: words("nodes")?,
        };
        let rows = content.matrix.rows;
        let lengths = [content.features.rows, content.labels.len(), content.roles.len(), content.nodes.len()];
        if lengths.iter().any(|&len| len != rows) {
            return Err(format!("its arrays are of {rows} and of {lengths:?} rows"));
        }
        Ok(content)
    }
}
