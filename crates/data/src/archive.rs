//! Archives read front to back without unpacking: `.tar`, `.tar.gz`, `.tar.xz`, `.zip`.

use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;

use crate::budget::{Budget, TOO_MUCH_REMEDY};
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::source;

/// No single file of a dataset is larger than this; a header that says so is damaged.
const MAX_MEMBER: u64 = 4 << 30;
/// `xz -9` needs 65 MiB to decompress; a header that asks for more asks for it before any data have come.
const MAX_XZ_DICTIONARY_KIB: u32 = 72 << 10;

/// Whether a file name looks like an archive that [`for_each_file`] can read.
pub fn is_archive(name: &str) -> bool {
    [".tar", ".tar.gz", ".tgz", ".tar.xz", ".zip"].iter().any(|end| name.ends_with(end))
}

/// Calls `visit` with the path (inside the archive) and the contents of every regular file that `wanted` accepts.
pub fn for_each_file(
    archive: &Path,
    wanted: impl Fn(&str) -> bool,
    visit: impl FnMut(&str, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let (file, _) = source::open_regular(archive)?;
    for_each_in(BufReader::with_capacity(1 << 16, file), &archive.display().to_string(), wanted, visit)
}

/// The same for an archive that is open already; its kind is told from `name`, which is also used in errors.
pub fn for_each_in<R: Read + Seek>(
    mut reader: R,
    name: &str,
    wanted: impl Fn(&str) -> bool,
    mut visit: impl FnMut(&str, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let ends = reader.seek(SeekFrom::End(0)).and_then(|length| reader.rewind().map(|()| length));
    // One budget for the whole archive, for what is skipped as well: skipping takes its time, too.
    let budget = Budget::arrays(ends.map_err(|e| damaged(name, e))?);
    let read = if name.ends_with(".zip") {
        for_each_in_zip(reader, name, &budget, wanted, visit)
    } else if name.ends_with(".xz") {
        let limited = XzReader::new_mem_limit(reader, true, MAX_XZ_DICTIONARY_KIB);
        for_each_in_tar(budget.meter(limited), name, Some(&budget), wanted, &mut visit)
    } else if name.ends_with("gz") {
        let unpacked = budget.meter(MultiGzDecoder::new(reader));
        for_each_in_tar(unpacked, name, Some(&budget), wanted, &mut visit)
    } else {
        for_each_in_tar(reader, name, None, wanted, &mut visit)
    };
    match read {
        Err(_) if budget.exceeded() => {
            Err(DataError::malformed(name, Place::Whole, budget.problem(), TOO_MUCH_REMEDY))
        }
        // The decoder says it in its own words, and the file may be in order.
        Err(DataError::Malformed { problem, .. }) if problem.contains("mem_limit") => {
            let problem = format!("asks for more than {} MiB before it unpacks", MAX_XZ_DICTIONARY_KIB >> 10);
            let remedy = "pack it again with `xz -9` or less";
            Err(DataError::malformed(name, Place::Whole, problem, remedy))
        }
        other => other,
    }
}

fn damaged(archive: &str, error: impl std::fmt::Display) -> DataError {
    DataError::malformed(archive, Place::Whole, format!("not a readable archive ({error})"), GET_AGAIN)
}

/// The bytes of a member that announces `size` of them; `budget` is what a compressed archive may still unpack to.
fn contents(
    mut reader: impl Read,
    size: u64,
    budget: Option<&Budget>,
    archive: &str,
    path: &str,
) -> Result<Vec<u8>> {
    let wrong = |problem: String| {
        DataError::malformed(archive, Place::Field(format!("member {path}")), problem, GET_AGAIN)
    };
    if size > MAX_MEMBER {
        return Err(wrong(format!("a size of {size} bytes")));
    }
    if let Some(budget) = budget.filter(|budget| budget.left() < size) {
        let problem = format!("announces {size} bytes; the archive {}", budget.problem());
        let place = Place::Field(format!("member {path}"));
        return Err(DataError::malformed(archive, place, problem, TOO_MUCH_REMEDY));
    }
    let mut bytes = Vec::new();
    // Bounded by what is announced, grown by what arrives.
    let read = (&mut reader)
        .take(size + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| wrong(format!("cannot be read ({e})")))?;
    if read as u64 != size {
        return Err(wrong(format!("{read} bytes or more where {size} are announced")));
    }
    Ok(bytes)
}

fn for_each_in_zip<R: Read + Seek>(
    reader: R,
    name: &str,
    budget: &Budget,
    wanted: impl Fn(&str) -> bool,
    mut visit: impl FnMut(&str, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let mut zip = zip::ZipArchive::new(reader).map_err(|e| damaged(name, e))?;
    for i in 0..zip.len() {
        let member = zip.by_index(i).map_err(|e| damaged(name, e))?;
        let path = member.name().map_err(|e| damaged(name, e))?.into_owned();
        if member.is_file() && wanted(&path) {
            let size = member.size();
            visit(&path, contents(budget.meter(member), size, Some(budget), name, &path)?)?;
        }
    }
    Ok(())
}

fn for_each_in_tar<R: Read>(
    reader: R,
    name: &str,
    budget: Option<&Budget>,
    wanted: impl Fn(&str) -> bool,
    visit: &mut dyn FnMut(&str, Vec<u8>) -> Result<()>,
) -> Result<()> {
    let mut tar = tar::Archive::new(reader);
    for entry in tar.entries().map_err(|e| damaged(name, e))? {
        let entry = entry.map_err(|e| damaged(name, e))?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if entry.header().entry_type().is_file() && wanted(&path) {
            let size = entry.size();
            visit(&path, contents(entry, size, budget, name, &path)?)?;
        }
    }
    Ok(())
}
