//! Files that people name: read whole, but only if they are files, and not larger than what they are for.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// Refuses what is not a regular file (a pipe would be waited for without end, a device has no end), and one of more than
/// `limit` bytes; gives its length.
///
/// # Errors
/// A sentence that names the file.
pub fn check_regular_file(path: &Path, limit: u64) -> Result<u64> {
    let fault = |why: String| Error::Invalid(format!("{} {why}", path.display()));
    let meta = fs::metadata(path).map_err(|why| fault(format!("cannot be read: {why}")))?;
    if !meta.is_file() {
        let kind = if meta.is_dir() { "a folder" } else { "a pipe or a device" };
        return Err(fault(format!("is {kind}, a file was expected")));
    }
    if meta.len() > limit {
        return Err(fault(too_large(limit)));
    }
    Ok(meta.len())
}

/// Everything that is in a regular file of at most `limit` bytes.
///
/// # Errors
/// As for [`check_regular_file`].
pub fn read_regular_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let fault = |why: String| Error::Invalid(format!("{} {why}", path.display()));
    let unreadable = |why: &dyn std::fmt::Display| fault(format!("cannot be read: {why}"));
    let length = check_regular_file(path, limit)?;
    let mut bytes = Vec::new();
    let reserve = usize::try_from(length).map_err(|why| unreadable(&why))?;
    bytes.try_reserve_exact(reserve).map_err(|why| unreadable(&why))?;
    // It may grow while it is read.
    let file = File::open(path).map_err(|why| unreadable(&why))?;
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes).map_err(|why| unreadable(&why))?;
    if bytes.len() as u64 > limit {
        return Err(fault(too_large(limit)));
    }
    Ok(bytes)
}

/// The same as text.
///
/// # Errors
/// As for [`check_regular_file`], and bytes that are no text.
pub(super) fn read_regular_text(path: &Path, limit: u64) -> Result<String> {
    String::from_utf8(read_regular_file(path, limit)?)
        .map_err(|why| Error::Invalid(format!("{} is no text: {why}", path.display())))
}

fn too_large(limit: u64) -> String {
    format!("has more than {} MB, which is too much for such a file", limit >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_a_reasonable_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let said = |path: &Path, limit| read_regular_file(path, limit).unwrap_err().to_string();
        assert!(said(&path, 10).contains("cannot be read"));
        assert!(said(folder.path(), 10).contains("is a folder"));
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read_regular_file(&path, 10).unwrap(), [7; 10]);
        assert!(said(&path, 9).contains("too much"));
        // Nothing is read of a file that only says to be large.
        File::options().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        assert!(said(&path, 1 << 32).contains("has more than 4096 MB"));
        #[cfg(target_os = "linux")]
        assert!(said(Path::new("/dev/zero"), 10).contains("a pipe or a device"));
    }
}
