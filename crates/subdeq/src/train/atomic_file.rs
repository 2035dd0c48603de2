//! Files that are either the old ones or the new ones, never something in between.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// End of the names of temporary files.
const ENDING: &str = ".new";
/// A temporary file of this age belongs to a process that was killed: no writing takes so long.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Replaces `path` by what `write` produces: written beside it, flushed to the disk, then renamed over it, then the
/// folder's entry flushed. If anything fails, or the process dies, the old file is untouched.
///
/// Processes that replace the same file at the same time do not disturb each other: each writes to a new file of its own,
/// the last one stays. What killed processes left is removed after an hour.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let (temporary, file) = create_beside(path)?;
    let outcome = write_flushed(file, write).and_then(|()| fs::rename(&temporary, path));
    if outcome.is_err() {
        // Best effort: the error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        return outcome;
    }
    remove_abandoned(path);
    flush_folder(path)
}

fn write_flushed(file: File, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut file = io::BufWriter::new(file);
    write(&mut file)?;
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

/// A new file in the folder of `path`, under a name that nothing has yet: one that another process makes at the same time,
/// and a link that somebody put there, are never opened.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    for _ in 0..16 {
        // The hasher's keys are random for every process; the number of calls is mixed in.
        let nonce = RandomState::new().build_hasher().finish();
        let mut name = beginning(path);
        name.push(format!("{}-{nonce:016x}{ENDING}", std::process::id()));
        let temporary = path.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => {}
            Err(why) => return Err(why),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// How the names of temporary files of `path` begin.
fn beginning(path: &Path) -> OsString {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".");
    name
}

/// Removes temporary files that killed processes left, as far as that is possible.
fn remove_abandoned(path: &Path) {
    let beginning = beginning(path);
    let folder = folder_of(path);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let ours = name.starts_with(beginning.as_encoded_bytes()) && name.ends_with(ENDING.as_bytes());
        let old = || {
            let meta = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some(meta.modified().ok()?.elapsed().ok()? > ABANDONED)
        };
        if ours && old() == Some(true) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A rename is durable only once the folder that holds it is.
fn flush_folder(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_fails_half_way_leaves_the_old_file_and_no_debris() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        replace(&path, |f| f.write_all(b"old")).unwrap();
        let full_disk = replace(&path, |f| {
            f.write_all(&[0; 100_000])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        });
        assert_eq!(full_disk.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn debris_of_a_killed_writer_is_removed_when_it_is_old_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        let age = |name: &str, age: Duration| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - age).unwrap();
        };
        let (old, young) = (ABANDONED * 2, ABANDONED / 2);
        age("model.12-0123456789abcdef.new", old);
        age("model.13-0123456789abcdef.new", young);
        age("model.toml", old);
        age("another.12-0123456789abcdef.new", old);
        replace(&path, |f| f.write_all(b"new")).unwrap();
        let mut left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(
            left,
            ["another.12-0123456789abcdef.new", "model", "model.13-0123456789abcdef.new", "model.toml"]
        );
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn writers_of_one_file_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        replace(path, |f| (0..50).try_for_each(|_| f.write_all(&[writer; 1000]))).unwrap();
                    }
                });
            }
            for _ in 0..200 {
                let bytes = fs::read(&path).unwrap_or_default();
                assert!(bytes.is_empty() || bytes.len() == 50_000 && bytes.iter().all(|b| *b == bytes[0]));
            }
        });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("model"), folder.path().join("victim"));
        fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, folder.path().join("model.new")).unwrap();
        replace(&path, |f| f.write_all(b"new")).unwrap();
        assert_eq!(
            (fs::read(&victim).unwrap(), fs::read(&path).unwrap()),
            (b"precious".to_vec(), b"new".to_vec())
        );
    }
}
