//! Tensors with a note in a `.safetensors` file, and what of a training run goes into one.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Running;
use super::stored_arrays::{ArrayToStore, StoredArray, Texts, read_arrays, read_texts, write_arrays};
use crate::{Error, Result};

/// Key under which the note stands in the file's metadata.
pub(super) const NOTE: &str = "subdeq";

/// Named arrays, flat, and a note: what a checkpoint is. A trained model has shapes and more texts ([`super::save_model`]).
#[derive(Clone, Debug, PartialEq)]
pub struct TensorFile<N> {
    /// What the arrays are.
    pub note: N,
    /// The arrays.
    pub tensors: Vec<(String, Vec<f32>)>,
}

impl<N: Serialize + DeserializeOwned> TensorFile<N> {
    /// Replaces `path` atomically.
    ///
    /// # Errors
    /// A disk that is full or a folder that cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_shaped(path, &[])
    }

    /// The same with the shapes of the arrays, for those that read them without this software.
    pub(crate) fn write_shaped(&self, path: &Path, shapes: &[(String, Vec<usize>)]) -> Result<()> {
        let texts = Texts::from([(NOTE.to_owned(), note_text(path, &self.note)?)]);
        write_arrays(path, &texts, with_shapes(&self.tensors, shapes))
    }

    /// Reads what [`TensorFile::write`] wrote.
    ///
    /// # Errors
    /// A file that is not there or larger than 4 GB, is damaged, holds numbers that are not finite, or was written by something else.
    pub fn read(path: &Path) -> Result<Self> {
        let (note, arrays) = read_arrays(path, |texts| note_in(path, texts))?;
        let flat = |StoredArray { name, data, .. }| (name, data);
        Ok(Self { note, tensors: arrays.into_iter().map(flat).collect() })
    }
}

/// Arrays with the shapes of their names, flat where there is none.
pub(super) fn with_shapes<'a>(
    tensors: &'a [(String, Vec<f32>)],
    shapes: &[(String, Vec<usize>)],
) -> Vec<ArrayToStore<'a>> {
    let shaped = |(name, data): &'a (String, Vec<f32>)| {
        let known = shapes.iter().find(|(given, _)| given == name);
        let shape = known.map_or_else(|| vec![data.len()], |(_, shape)| shape.clone());
        ArrayToStore { name, shape, data }
    };
    tensors.iter().map(shaped).collect()
}

/// The note of a file, of which no more is read: its arrays may be gigabytes.
///
/// # Errors
/// As [`TensorFile::read`], but for what is wrong with the arrays.
pub(super) fn read_note<N: DeserializeOwned>(path: &Path) -> Result<N> {
    note_in(path, &read_texts(path)?)
}

/// The text of a note.
pub(super) fn note_text(path: &Path, note: &impl Serialize) -> Result<String> {
    let fault = |why| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
    serde_json::to_string(note).map_err(fault)
}

/// The note among the texts of a file.
pub(super) fn note_in<N: DeserializeOwned>(path: &Path, texts: &Texts) -> Result<N> {
    let fault = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
    let note = texts
        .get(NOTE)
        .ok_or_else(|| fault("was not written by subdeq (its metadata have no such note)".into()))?;
    serde_json::from_str(note).map_err(|why| fault(format!("its note cannot be understood: {why}")))
}

/// The position of a training run, beside its tensors; the default is its beginning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Epochs completed.
    pub epoch: usize,
    /// Updates made.
    pub step: u64,
    /// Batches of the present epoch that are done.
    pub batches: usize,
    /// Sums over those batches.
    pub running: Running,
    /// The lowest validation error so far (or the last training error) and its epoch (from 1), if an epoch was completed.
    pub best: Option<(f64, usize)>,
    /// The step of the first equilibrium's splitting solvers.
    pub splitting_step: Option<f64>,
    /// Those of the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deeper_steps: Vec<Option<f64>>,
    /// Lines of the metrics file that belong to completed epochs.
    pub metrics_lines: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.safetensors");
        let file = TensorFile {
            note: "hello".to_owned(),
            tensors: vec![("a".to_owned(), vec![1.0, -0.0, f32::MIN_POSITIVE]), ("b".to_owned(), vec![])],
        };
        file.write(&path).unwrap();
        assert_eq!(TensorFile::<String>::read(&path).unwrap(), file);
        assert_eq!(read_note::<String>(&path).unwrap(), "hello");
        let bytes = std::fs::read(&path).unwrap();
        for cut in [0, 4, 20] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let error = read_note::<String>(&path).unwrap_err().to_string();
            assert!(error.contains("x.safetensors: is damaged"), "{error}");
        }
        std::fs::write(&path, [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
        let error = read_note::<String>(&path).unwrap_err().to_string();
        assert!(error.contains("x.safetensors: was not written by subdeq"), "{error}");
        for cut in [0, 4, 20, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let error = TensorFile::<String>::read(&path).unwrap_err().to_string();
            assert!(error.contains("x.safetensors"), "{error}");
        }
        for wrong in [f32::NAN, f32::INFINITY] {
            let tensors = vec![("weight".to_owned(), vec![1.0, wrong])];
            TensorFile { note: "hello".to_owned(), tensors }.write(&path).unwrap();
            let error = TensorFile::<String>::read(&path).unwrap_err().to_string();
            assert!(error.contains("entry 1 of the array `weight`"), "{error}");
        }
    }
}
