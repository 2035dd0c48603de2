//! NumPy's `.npz`: a zip archive of `.npy` arrays, stored or deflated.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Cursor, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::budget::Budget;
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::npy::NpyArray;
use crate::source::{self, Source};

/// The arrays of an `.npz` file by name (without `.npy`).
///
/// ```
/// use subdeq_data::{npy::{NpyArray, NpyData}, npz::Npz};
/// let mut npz = Npz::new("made here");
/// npz.insert("labels", NpyArray::new(vec![3], NpyData::U8(vec![0, 2, 1])).unwrap());
/// let bytes = npz.to_bytes().unwrap();
/// let back = Npz::from_bytes(&bytes, "labels.npz").unwrap();
/// assert_eq!(back.get("labels").unwrap().to_usize().unwrap(), [0, 2, 1]);
/// assert!(back.get("features").is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Npz {
    name: String,
    arrays: BTreeMap<String, NpyArray>,
}

impl Npz {
    /// An empty collection; `name` is used in errors.
    pub fn new(name: &str) -> Self {
        Npz { name: name.to_owned(), arrays: BTreeMap::new() }
    }

    /// Adds or replaces an array.
    pub fn insert(&mut self, name: &str, array: NpyArray) {
        self.arrays.insert(name.to_owned(), array);
    }

    /// The array of that name, or an error that lists the names there are.
    pub fn get(&self, name: &str) -> Result<&NpyArray> {
        self.arrays.get(name).ok_or_else(|| {
            let names: Vec<&str> = self.arrays.keys().map(String::as_str).collect();
            DataError::malformed(
                &self.name,
                Place::Whole,
                format!("has no array '{name}' (it has {names:?})"),
                "save the array under this name",
            )
        })
    }

    /// The array of that name, out of the collection.
    pub(crate) fn take(&mut self, name: &str) -> Result<NpyArray> {
        self.get(name)?;
        self.arrays.remove(name).ok_or_else(|| DataError::request(format!("no array '{name}'"), GET_AGAIN))
    }

    /// Whether there is an array of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.arrays.contains_key(name)
    }

    /// The arrays and their names, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &NpyArray)> {
        self.arrays.iter().map(|(name, array)| (name.as_str(), array))
    }

    /// Reads an `.npz` file.
    pub fn read(path: &Path) -> Result<Self> {
        let (file, length) = source::open_regular(path)?;
        Self::read_from(BufReader::new(file), length, &path.display().to_string())
    }

    /// The names of the arrays in an `.npz` file, without reading them.
    pub fn names(path: &Path) -> Result<Vec<String>> {
        let (file, _) = source::open_regular(path)?;
        let archive = ZipArchive::new(BufReader::new(file)).map_err(|error| {
            let problem = format!("not a readable zip archive ({error})");
            DataError::malformed(&path.display().to_string(), Place::Whole, problem, GET_AGAIN)
        })?;
        let array = |name: std::borrow::Cow<'_, str>| name.strip_suffix(".npy").map(str::to_owned);
        Ok(archive.file_names().filter_map(|name| array(name.ok()?)).collect())
    }

    /// Reads an `.npz` archive from memory; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        Self::read_from(Cursor::new(bytes), bytes.len() as u64, name)
    }

    fn read_from<R: Read + Seek>(reader: R, length: u64, name: &str) -> Result<Self> {
        let damaged = |place: Place, error: zip::result::ZipError| {
            DataError::malformed(name, place, format!("not a readable zip archive ({error})"), GET_AGAIN)
        };
        let mut archive = ZipArchive::new(reader).map_err(|e| damaged(Place::Whole, e))?;
        // One budget for all members: several of them may point at the same compressed bytes.
        let budget = Budget::arrays(length);
        let mut arrays = BTreeMap::new();
        for i in 0..archive.len() {
            let damaged = |e| damaged(Place::Field(format!("member {i}")), e);
            let member = archive.by_index(i).map_err(damaged)?;
            let member_name = member.name().map_err(damaged)?.into_owned();
            let Some(key) = member_name.strip_suffix(".npy") else { continue };
            let size = member.size();
            let mut source =
                Source::unpacked(member, &format!("{name}, member {member_name}"), size, &budget);
            arrays.insert(key.to_owned(), NpyArray::read_from(&mut source)?);
        }
        Ok(Npz { name: name.to_owned(), arrays })
    }

    /// The archive, deflated.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        self.write_to(Cursor::new(Vec::new())).map(Cursor::into_inner).map_err(|source| DataError::Io {
            file: self.name.clone().into(),
            doing: "write",
            source,
        })
    }

    /// Writes an `.npz` file, deflated.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(DataError::io("create", path))?;
        let written = self.write_to(BufWriter::new(file)).and_then(|mut w| w.flush());
        written.map_err(DataError::io("write", path))
    }

    fn write_to<W: Write + Seek>(&self, writer: W) -> std::io::Result<W> {
        let mut zip = ZipWriter::new(writer);
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Deflated);
        for (name, array) in &self.arrays {
            zip.start_file(format!("{name}.npy"), options.large_file(array.len() > 1 << 28))?;
            zip.write_all(&array.to_bytes())?;
        }
        Ok(zip.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::NpyData;

    #[test]
    fn a_cut_archive_is_an_error_at_every_length() {
        let mut npz = Npz::new("t");
        npz.insert("a", NpyArray::new(vec![2, 2], NpyData::I64(vec![1, 2, 3, -4])).unwrap());
        npz.insert("b", NpyArray::new(vec![], NpyData::F64(vec![0.25])).unwrap());
        let bytes = npz.to_bytes().unwrap();
        assert_eq!(Npz::from_bytes(&bytes, "t").unwrap(), npz);
        for cut in 0..bytes.len() {
            assert!(Npz::from_bytes(&bytes[..cut], "t").is_err(), "cut at {cut}");
        }
    }
}
