//! Arrays with names and shapes, and texts beside them: a `.safetensors` file.
//!
//! Written here and not by the crate of that name, which orders texts at random: equal models are equal files.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{check_regular_file, read_regular_file, replace_file};
use crate::{Error, Result};

/// A larger file is not one of ours.
const MAX_BYTES: u64 = 4 << 30;
/// Nor is one with a longer header, which safetensors does not allow.
const MAX_HEADER: u64 = 100_000_000;
/// The header ends at a multiple of so many bytes, so that arrays can be used where they lie.
const ALIGNMENT: usize = 8;
/// Numbers that are written at a time.
const PIECE: usize = 1 << 16;
/// Key of the texts in a header.
const TEXTS: &str = "__metadata__";

/// Texts of a file by their keys.
pub(super) type Texts = BTreeMap<String, String>;

/// An array that was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StoredArray {
    pub name: String,
    pub shape: Vec<usize>,
    pub data: Vec<f32>,
}

/// An array that is to be written.
pub(super) struct ArrayToStore<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    pub data: &'a [f32],
}

/// Replaces `path` atomically by arrays, sorted by name, and texts.
///
/// # Errors
/// A disk that is full or a folder that cannot be written.
pub(super) fn write_arrays(path: &Path, texts: &Texts, mut arrays: Vec<ArrayToStore<'_>>) -> Result<()> {
    let fault = |why: String| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
    arrays.sort_by_key(|array| array.name);
    let mut header = serde_json::Map::from_iter([(TEXTS.to_owned(), json!(texts))]);
    let mut end = 0;
    for ArrayToStore { name, shape, data } in &arrays {
        let begin = end;
        end += size_of_val(*data);
        header.insert(
            (*name).to_owned(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] }),
        );
    }
    let mut header = Value::from(header).to_string();
    let padding = header.len().next_multiple_of(ALIGNMENT) - header.len();
    header.extend(std::iter::repeat_n(' ', padding));
    let write = |out: &mut dyn Write| {
        out.write_all(&(header.len() as u64).to_le_bytes())?;
        out.write_all(header.as_bytes())?;
        let numbers = arrays.iter().flat_map(|array| array.data.chunks(PIECE));
        for piece in numbers {
            let bytes: Vec<u8> = piece.iter().flat_map(|x| x.to_le_bytes()).collect();
            out.write_all(&bytes)?;
        }
        Ok(())
    };
    replace_file(path, write).map_err(|why| fault(why.to_string()))
}

/// What `note` reads in the texts of a file, which it may refuse before the arrays are looked at; and these, sorted by name.
///
/// # Errors
/// A file that is not there or larger than 4 GB, is damaged, or holds numbers that are not finite.
pub(super) fn read_arrays<N>(
    path: &Path,
    note: impl FnOnce(&Texts) -> Result<N>,
) -> Result<(N, Vec<StoredArray>)> {
    let fault = |why: String| Error::Invalid(format!("{}: {why}", path.display()));
    let bytes = read_regular_file(path, MAX_BYTES)?;
    let damaged =
        |why: safetensors::SafeTensorError| fault(format!("is damaged or no .safetensors file: {why}"));
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    let texts = header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone()));
    let note = note(&texts.collect())?;
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut arrays = Vec::new();
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(fault(format!("the array `{name}` holds {:?}, not F32", view.dtype())));
        }
        let (bytes, _) = view.data().as_chunks::<4>();
        let data: Vec<f32> = bytes.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if let Some(at) = data.iter().position(|x| !x.is_finite()) {
            return Err(fault(format!(
                "entry {at} of the array `{name}` is {}, not a finite number: the file is damaged, or its training had \
                 diverged",
                data[at]
            )));
        }
        arrays.push(StoredArray { name: name.to_owned(), shape: view.shape().to_vec(), data });
    }
    arrays.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((note, arrays))
}

/// The texts of a file, of which no more is read: its arrays may be gigabytes.
///
/// # Errors
/// As [`read_arrays`], but for what is wrong with the arrays.
pub(super) fn read_texts(path: &Path) -> Result<Texts> {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "__metadata__")]
        texts: Option<HashMap<String, String>>,
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
    Ok(header.texts.into_iter().flatten().collect())
}
