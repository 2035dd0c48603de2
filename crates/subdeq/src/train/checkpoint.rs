//! Tensors with a note in a `.safetensors` file, and what of a training run goes into one.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{Running, check_regular_file, read_regular_file, replace_file};
use crate::{Error, Result};

/// A larger file is not one of ours.
const MAX_BYTES: u64 = 4 << 30;
/// Nor is one with a longer header, which safetensors does not allow.
const MAX_HEADER: u64 = 100_000_000;
/// Key under which the note stands in the file's metadata.
const NOTE: &str = "subdeq";

/// Named arrays and a note.
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
        let fault = |why: String| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
        let note = serde_json::to_string(&self.note).map_err(|why| fault(why.to_string()))?;
        let bytes: Vec<Vec<u8>> = self
            .tensors
            .iter()
            .map(|(_, data)| data.iter().flat_map(|x| x.to_le_bytes()).collect())
            .collect();
        let mut views = Vec::with_capacity(bytes.len());
        for ((name, data), bytes) in self.tensors.iter().zip(&bytes) {
            let view =
                TensorView::new(Dtype::F32, vec![data.len()], bytes).map_err(|why| fault(why.to_string()))?;
            views.push((name.as_str(), view));
        }
        let metadata = HashMap::from([(NOTE.to_owned(), note)]);
        let file = safetensors::serialize(views, Some(metadata)).map_err(|why| fault(why.to_string()))?;
        replace_file(path, |out| out.write_all(&file)).map_err(|why| fault(why.to_string()))
    }

    /// Reads what [`TensorFile::write`] wrote.
    ///
    /// # Errors
    /// A file that is not there or larger than 4 GB, is damaged, holds numbers that are not finite, or was written by something else.
    pub fn read(path: &Path) -> Result<Self> {
        let fault = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
        let bytes = read_regular_file(path, MAX_BYTES)?;
        let damaged =
            |why: safetensors::SafeTensorError| fault(format!("is damaged or no .safetensors file: {why}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        let note = note_in(path, header.metadata().as_ref())?;
        let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
        let mut tensors = Vec::new();
        for (name, view) in file.iter() {
            if view.dtype() != Dtype::F32 {
                return Err(fault(format!("the array `{name}` holds {:?}, not F32", view.dtype())));
            }
            let (bytes, _) = view.data().as_chunks::<4>();
            let numbers: Vec<f32> = bytes.iter().map(|b| f32::from_le_bytes(*b)).collect();
            if let Some(at) = numbers.iter().position(|x| !x.is_finite()) {
                return Err(fault(format!(
                    "entry {at} of the array `{name}` is {}, not a finite number: the file is damaged, or its training had \
                     diverged",
                    numbers[at]
                )));
            }
            tensors.push((name.to_owned(), numbers));
        }
        tensors.sort_by(|a: &(String, Vec<f32>), b| a.0.cmp(&b.0));
        Ok(Self { note, tensors })
    }
}

/// The note of a file, of which no more is read: its arrays may be gigabytes.
///
/// # Errors
/// As [`TensorFile::read`], but for what is wrong with the arrays.
pub(super) fn read_note<N: DeserializeOwned>(path: &Path) -> Result<N> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        metadata: Option<HashMap<String, String>>,
    }
    let damaged = |why: String| {
        Error::Invalid(format!("{}: is damaged or no .safetensors file: {why}", path.display()))
    };
    check_regular_file(path, MAX_BYTES)?;
    let mut file = File::open(path).map_err(|why| damaged(why.to_string()))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|why| damaged(why.to_string()))?;
    let mut header = Vec::new();
    file.take(u64::from_le_bytes(length).min(MAX_HEADER))
        .read_to_end(&mut header)
        .map_err(|why| damaged(why.to_string()))?;
    let header: Header = serde_json::from_slice(&header).map_err(|why| damaged(why.to_string()))?;
    note_in(path, header.metadata.as_ref())
}

/// The note in the metadata of a file.
fn note_in<N: DeserializeOwned>(path: &Path, metadata: Option<&HashMap<String, String>>) -> Result<N> {
    let fault = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
    let note = metadata
        .and_then(|metadata| metadata.get(NOTE))
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
    /// The step of the splitting solvers.
    pub splitting_step: Option<f64>,
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
