//! The Planetoid citation graphs (Cora, CiteSeer, PubMed) from their raw files, unpacked or in an archive.

use std::collections::BTreeMap;
use std::path::Path;

use super::adjacency::Multiplicity;
use super::csr::Csr;
use super::pickle::{self, Pickled};
use super::{GivenSplit, GraphDataset, GraphParts};
use crate::archive;
use crate::class_count;
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::source;

/// Nodes behind the labelled ones that validate, by convention.
const VALIDATION: usize = 500;

/// Loads `ind.NAME.*` from a folder (also from `planetoid/` in it, or from an archive in it).
pub fn load(folder: &Path, name: &str) -> Result<GraphDataset> {
    Files::find(folder, name)?.assemble()
}

struct Files {
    name: String,
    origin: String,
    contents: BTreeMap<String, Vec<u8>>,
}

impl Files {
    fn find(folder: &Path, name: &str) -> Result<Self> {
        let prefix = format!("ind.{name}.");
        let mut contents = BTreeMap::new();
        for place in [folder.to_path_buf(), folder.join("planetoid")] {
            for part in ["x", "y", "tx", "ty", "allx", "ally", "graph", "test.index"] {
                let path = place.join(format!("{prefix}{part}"));
                if path.is_file() {
                    contents.insert(part.to_owned(), source::read_whole(&path)?);
                }
            }
        }
        if contents.is_empty() {
            let entries = std::fs::read_dir(folder).map_err(DataError::io("list", folder))?;
            for path in entries.filter_map(|entry| entry.ok().map(|e| e.path())) {
                if archive::is_archive(&path.to_string_lossy()) {
                    let wanted = |file: &str| file.rsplit('/').next().is_some_and(|f| f.starts_with(&prefix));
                    archive::for_each_file(&path, wanted, |file, bytes| {
                        let part =
                            file.rsplit('/').next().and_then(|f| f.strip_prefix(&prefix)).unwrap_or(file);
                        contents.insert(part.to_owned(), bytes);
                        Ok(())
                    })?;
                }
            }
        }
        Ok(Files { name: name.to_owned(), origin: folder.display().to_string(), contents })
    }

    fn file(&self, part: &str) -> Result<&[u8]> {
        self.contents.get(part).map(Vec::as_slice).ok_or_else(|| DataError::Missing {
            what: format!("Planetoid file ind.{}.{part}", self.name),
            searched: vec![self.origin.clone().into()],
            remedy: "put the raw files or an archive of them there".to_owned(),
        })
    }

    fn wrong(&self, part: &str, problem: impl Into<String>) -> DataError {
        let place = Place::Field(format!("ind.{}.{part}", self.name));
        DataError::malformed(&self.origin, place, problem, GET_AGAIN)
    }

    fn pickled(&self, part: &str) -> Result<Pickled> {
        pickle::read(self.file(part)?, &format!("{}, ind.{}.{part}", self.origin, self.name))
    }

    fn matrix(&self, part: &str) -> Result<Csr> {
        match self.pickled(part)? {
            Pickled::Sparse(matrix) => Ok(matrix),
            _ => Err(self.wrong(part, "is not a sparse matrix")),
        }
    }

    /// One-hot rows to classes; `None` for a row of zeros.
    fn classes(&self, part: &str) -> Result<(usize, Vec<Option<u32>>)> {
        let Pickled::Array(array) = self.pickled(part)? else {
            return Err(self.wrong(part, "is not an array"));
        };
        let &[_, classes] = array.shape() else { return Err(self.wrong(part, "is not a matrix")) };
        let place = format!("ind.{}.{part}", self.name);
        class_count::believable(&self.origin, &place, classes, array.shape()[0])?;
        let values = array.numbers(&self.origin, &place)?;
        let labels = values
            .chunks_exact(classes.max(1))
            .map(|row| row.iter().position(|&v| v != 0.0).map(|c| c as u32));
        Ok((classes, labels.collect()))
    }

    fn test_index(&self) -> Result<Vec<usize>> {
        let text = String::from_utf8_lossy(self.file("test.index")?);
        let parse = |(i, line): (usize, &str)| {
            line.trim()
                .parse()
                .map_err(|_| self.wrong("test.index", format!("line {} is not a node id", i + 1)))
        };
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(parse).collect()
    }

    fn assemble(&self) -> Result<GraphDataset> {
        let (known, test) = (self.matrix("allx")?, self.matrix("tx")?);
        let ((classes, known_labels), (_, test_labels)) = (self.classes("ally")?, self.classes("ty")?);
        let test_index = self.test_index()?;
        if known.rows() != known_labels.len()
            || test.rows() != test_labels.len()
            || test.rows() != test_index.len()
        {
            let problem = format!(
                "{} and {} rows of features, {} and {} labels, {} test nodes do not fit together",
                known.rows(),
                test.rows(),
                known_labels.len(),
                test_labels.len(),
                test_index.len()
            );
            return Err(self.wrong("allx", problem));
        }
        let Pickled::Lists(lists) = self.pickled("graph")? else {
            return Err(self.wrong("graph", "is not a graph"));
        };
        let nodes = lists.len().max(known.rows());
        // Which row of `tx` a node has. CiteSeer lacks some test nodes: they keep no features and class 0.
        let mut test_row = vec![None; nodes - known.rows()];
        for (row, &node) in test_index.iter().enumerate() {
            match node.checked_sub(known.rows()).and_then(|at| test_row.get_mut(at)) {
                Some(slot) => *slot = Some(row),
                None => {
                    return Err(self.wrong(
                        "test.index",
                        format!("node {node} is not from {} to {}", known.rows(), nodes - 1),
                    ));
                }
            }
        }
        let features = stack(&known, &test, &test_row, &self.origin)?;
        let later = test_row.iter().map(|row| row.and_then(|r| test_labels[r]));
        let labels: Vec<u32> =
            known_labels.iter().copied().chain(later).map(|label| label.unwrap_or(0)).collect();
        let mut edges = Vec::new();
        for (node, neighbours) in lists {
            for neighbour in neighbours {
                match (u32::try_from(node), u32::try_from(neighbour)) {
                    (Ok(a), Ok(b)) if node.max(neighbour) < nodes => edges.push((a.min(b), a.max(b))),
                    _ => {
                        let problem = format!("edge ({node}, {neighbour}), but there are {nodes} nodes");
                        return Err(self.wrong("graph", problem));
                    }
                }
            }
        }
        let train = self.classes("y")?.1.len();
        let mut test: Vec<u32> = test_index.iter().map(|&node| node as u32).collect();
        test.sort_unstable();
        let given = GivenSplit {
            train: (0..train as u32).collect(),
            validation: (train as u32..(train + VALIDATION).min(known.rows()) as u32).collect(),
            test,
        };
        let parts = GraphParts {
            hypergraph: None,
            not_expanded: None,
            edges,
            multiplicity: Multiplicity::Binary,
            features: Some(features),
            labels,
            classes: Some(classes),
            given: vec![given],
        };
        GraphDataset::assemble(&format!("planetoid-{}", self.name), &self.origin, parts)
    }
}

/// The known rows, then the test rows in the order of their nodes; rows without any stay empty.
fn stack(known: &Csr, test: &Csr, test_row: &[Option<usize>], name: &str) -> Result<Csr> {
    let mut row_ptr = known.row_ptr().to_vec();
    let (mut columns, mut values) = (known.column_indices().to_vec(), known.values().to_vec());
    for row in test_row {
        if let Some(row) = row {
            let (c, v) = test.row(*row);
            columns.extend_from_slice(c);
            values.extend_from_slice(v);
        }
        row_ptr.push(columns.len());
    }
    Csr::from_parts(name, row_ptr.len() - 1, known.columns(), row_ptr, columns, values)
}
