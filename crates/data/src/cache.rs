//! Decoded images kept on disk: sheets and archives take many seconds to decode, the pixels a moment to read.
//!
//! A kept file is named by the SHA-256 of everything it was made from and ends with the SHA-256 of what it holds, so it is
//! either right or not used. A folder that cannot be written only costs the time of decoding again.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checksum::{hex, sha256};
use crate::class_count;
use crate::error::Result;
use crate::images::ImageSet;
use crate::source;
use crate::temporary::Temporary;

/// The environment variable that names the folder, or says `off`.
pub const CACHE_VARIABLE: &str = "SUBDEQ_CACHE";
/// To be changed with the format of the file or with what any decoder makes of its input.
const VERSION: &[u8] = b"subdeq decoded images 1\n";
const DIGEST: usize = 32;

/// Training images, test images, class names.
pub(crate) type Loaded = (ImageSet, ImageSet, Option<Vec<String>>);

/// What of an [`ImageSet`] is not an array.
#[derive(Serialize, Deserialize)]
struct Header {
    shape: [usize; 3],
    white: u8,
    classes: usize,
    counts: [usize; 2],
    names: Option<Vec<String>>,
}

/// What `decode` makes of the files, from the cache if it was made before.
pub(crate) fn decoded(files: &[PathBuf], decode: impl FnOnce() -> Result<Loaded>) -> Result<Loaded> {
    let Some(folder) = folder() else { return decode() };
    decoded_in(&folder, files, decode)
}

fn decoded_in(folder: &Path, files: &[PathBuf], decode: impl FnOnce() -> Result<Loaded>) -> Result<Loaded> {
    let path = folder.join(format!("{}.images", key(files)?));
    if let Some(found) = source::read_whole(&path).ok().and_then(|bytes| unpack(&bytes)) {
        return Ok(found);
    }
    let made = decode()?;
    // Without room for it, it is decoded again next time.
    let _ = keep(&path, &made);
    Ok(made)
}

/// `SUBDEQ_CACHE`, else the user's cache folder.
fn folder() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    match variable(CACHE_VARIABLE) {
        Some(path) if path.as_os_str() == "off" => None,
        Some(path) => Some(path),
        None => {
            let base = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
            Some(base.join("subdeq"))
        }
    }
}

/// A name for what these files hold, whatever their dates say.
fn key(files: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(VERSION);
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update(sha256(file)?.as_bytes());
    }
    Ok(hex(&hash.finalize()))
}

fn keep(path: &Path, (train, test, names): &Loaded) -> io::Result<()> {
    let header = Header {
        shape: [train.channels(), train.height(), train.width()],
        white: train.white(),
        classes: train.classes(),
        counts: [train.len(), test.len()],
        names: names.clone(),
    };
    let header = serde_json::to_vec(&header)?;
    let mut bytes = VERSION.to_vec();
    bytes.extend((header.len() as u64).to_le_bytes());
    bytes.extend(header);
    for set in [train, test] {
        bytes.extend_from_slice(set.images());
        set.labels().iter().for_each(|label| bytes.extend(label.to_le_bytes()));
    }
    let digest = Sha256::digest(&bytes);
    bytes.extend_from_slice(&digest);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    // Two processes may decode the same files at once: each writes its own, the last one stays.
    let (temporary, mut file) = Temporary::beside(path)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    temporary.put_in_place(path)
}

/// What [`keep`] wrote; `None` for anything else.
fn unpack(bytes: &[u8]) -> Option<Loaded> {
    let (content, digest) = bytes.split_last_chunk::<DIGEST>()?;
    if Sha256::digest(content)[..] != digest[..] {
        return None;
    }
    let (length, rest) = content.strip_prefix(VERSION)?.split_first_chunk::<8>()?;
    let (header, mut rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    let header: Header = serde_json::from_slice(header).ok()?;
    // The digest guards against damage, not against somebody who computes it: the header is checked as well.
    if header.names.as_ref().is_some_and(|names| names.len() != header.classes)
        || header.classes > class_count::limit(header.counts[0].checked_add(header.counts[1])?)
    {
        return None;
    }
    let size = header.shape.iter().try_fold(1usize, |n, &side| n.checked_mul(side))?;
    let mut part = |count: usize| {
        let pixels = count.checked_mul(size)?;
        let (images, after) = rest.split_at_checked(pixels)?;
        let (labels, after) = after.split_at_checked(count.checked_mul(4)?)?;
        rest = after;
        let labels = labels.as_chunks::<4>().0.iter().map(|label| u32::from_le_bytes(*label)).collect();
        ImageSet::new("the cache", images.to_vec(), header.shape, header.white, labels, header.classes).ok()
    };
    let [train, test] = header.counts;
    Some((part(train)?, part(test)?, header.names))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn decodes_once_and_again_when_anything_changed() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, source) = (folder.path().join("cache"), folder.path().join("sheet"));
        let decodings = Cell::new(0);
        let load = |first: u8| {
            let set = |pixels: Vec<u8>| ImageSet::new("x", pixels, [1, 1, 2], 255, vec![1], 3).unwrap();
            decoded_in(&cache, std::slice::from_ref(&source), || {
                decodings.set(decodings.get() + 1);
                Ok((set(vec![first, 7]), set(vec![8, 9]), Some(vec!["a".into(), "b".into(), "c".into()])))
            })
            .unwrap()
        };
        fs::write(&source, b"old").unwrap();
        let made = load(1);
        assert_eq!((load(2), decodings.get()), (made.clone(), 1));
        fs::write(&source, b"new").unwrap();
        assert_eq!((load(3).0.image(0)[0], decodings.get()), (3, 2));
        fs::write(&source, b"old").unwrap();
        assert_eq!((load(4), decodings.get()), (made, 2));
        // A damaged file is not believed, wherever the damage is.
        let kept = cache.join(format!("{}.images", key(std::slice::from_ref(&source)).unwrap()));
        let bytes = fs::read(&kept).unwrap();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert!(unpack(&damaged).is_none(), "byte {at}");
            assert!(unpack(&bytes[..at]).is_none(), "cut at {at}");
        }
    }

    #[test]
    fn a_header_that_lies_is_not_believed_even_with_the_right_digest() {
        let file = |shape: [usize; 3], classes: usize, counts: [usize; 2], names: Option<Vec<String>>| {
            let header = serde_json::to_vec(&Header { shape, white: 255, classes, counts, names }).unwrap();
            let mut bytes = VERSION.to_vec();
            bytes.extend((header.len() as u64).to_le_bytes());
            bytes.extend(header);
            bytes.extend([7, 0, 0, 0, 0]);
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            bytes
        };
        assert!(unpack(&file([1, 1, 1], 1, [1, 0], Some(vec!["a".into()]))).is_some());
        let huge = usize::MAX / 2 + 1;
        for bad in [
            file([huge, 2, 2], 1, [1, 0], None),
            file([1, 1, 1], 1, [huge, 0], None),
            file([1, 1, 1], 1, [huge, huge], None),
            file([1, 1, 1], huge, [1, 0], None),
            file([1, 1, 1], 2, [1, 0], Some(vec!["a".into()])),
        ] {
            assert!(unpack(&bad).is_none());
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_the_place_of_the_temporary_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("kept.images"), folder.path().join("victim"));
        fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, path.with_extension(std::process::id().to_string())).unwrap();
        let set = || ImageSet::new("x", vec![0, 7], [1, 1, 2], 255, vec![1], 3).unwrap();
        keep(&path, &(set(), set(), None)).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert!(unpack(&fs::read(&path).unwrap()).is_some());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("sheet");
        fs::write(&source, b"x").unwrap();
        let set = || ImageSet::new("x", vec![0, 7], [1, 1, 2], 255, vec![1], 3).unwrap();
        let made =
            decoded_in(&source.join("no folder"), std::slice::from_ref(&source), || Ok((set(), set(), None)));
        assert_eq!(made.unwrap().0, set());
    }
}
