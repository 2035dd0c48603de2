//! Graphs, each read once, when the first run needs it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use subdeq::graph::Joined;

use crate::failure::Failure;
use crate::graph::Graph;

/// A graph's name, and how its nodes are joined.
type Name = (String, Joined);

/// The graphs that were read.
pub struct Shelf<'a> {
    data_dir: Option<&'a Path>,
    read: Mutex<Vec<(Name, Arc<Graph>)>>,
}

impl<'a> Shelf<'a> {
    /// Of a data folder; nothing is read yet.
    pub fn new(data_dir: Option<&'a Path>) -> Self {
        Self { data_dir, read: Mutex::new(Vec::new()) }
    }

    /// The graph of that name, for models whose nodes are joined like that.
    pub fn graph(&self, name: &str, joined: Joined) -> Result<Arc<Graph>, Failure> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), joined);
        if let Some((_, graph)) = read.iter().find(|(found, _)| *found == key) {
            return Ok(graph.clone());
        }
        let graph = Arc::new(Graph::load(name, joined, self.data_dir)?);
        read.push((key, graph.clone()));
        Ok(graph)
    }
}
