//! What was run: one JSON file per table or column of a table, written anew after each run, so that nothing is run twice.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use subdeq::train::replace_file;

use crate::failure::Failure;

/// A finished run, as a ledger keeps it.
pub trait Run: Serialize + DeserializeOwned {
    /// Whether both are runs of the same thing, of which a ledger keeps the last.
    fn repeats(&self, other: &Self) -> bool;
    /// Their order in the file; equal ones stay in the order in which they were run.
    fn order(&self, other: &Self) -> Ordering;
}

/// The runs of one file.
#[derive(Debug)]
pub struct Ledger<R> {
    path: PathBuf,
    runs: Vec<R>,
}

impl<R: Run> Ledger<R> {
    /// Reads `NAME.json` of the folder, if there is one yet.
    pub fn open(folder: &Path, name: &str) -> Result<Self, Failure> {
        let path = folder.join(format!("{name}.json"));
        Ok(Self { runs: read(&path)?, path })
    }

    /// What was run.
    pub fn runs(&self) -> &[R] {
        &self.runs
    }

    /// Adds a run and writes the file. Other processes may add to the same file: what they wrote is read again first.
    pub fn add(&mut self, run: R) -> Result<(), Failure> {
        let fault =
            |why: std::io::Error| Failure::other(format!("{} cannot be written: {why}", self.path.display()));
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(fault)?;
        }
        let lock = File::create(self.path.with_extension("lock")).map_err(fault)?;
        lock.lock().map_err(fault)?;
        let mut runs: Vec<R> = read(&self.path)?;
        runs.retain(|old| !run.repeats(old));
        runs.push(run);
        runs.sort_by(R::order);
        // A run per line: that is what people and version control compare.
        let lines: Result<Vec<String>, _> = runs.iter().map(serde_json::to_string).collect();
        let text = format!("[\n{}\n]\n", lines.map_err(Failure::other)?.join(",\n"));
        replace_file(&self.path, |out| out.write_all(text.as_bytes())).map_err(fault)?;
        self.runs = runs;
        Ok(())
    }
}

fn read<R: Run>(path: &Path) -> Result<Vec<R>, Failure> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|why| {
            Failure::other(format!(
                "{}: {why}; if another version of the program wrote it, move it aside",
                path.display()
            ))
        }),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(why) => Err(Failure::other(format!("{} cannot be read: {why}", path.display()))),
    }
}
