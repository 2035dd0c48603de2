//! Temporary files beside the file they are to become.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

/// A new file that is deleted again unless it is put in place.
#[derive(Debug)]
pub(crate) struct Temporary {
    path: PathBuf,
    kept: bool,
}

impl Temporary {
    /// Makes a file in the folder of `target` under a name that nothing has yet: one that another process makes at the
    /// same time, and a link that somebody put there, are never opened.
    pub fn beside(target: &Path) -> io::Result<(Self, File)> {
        for _ in 0..16 {
            // The hasher's keys are random for every process; the number of calls is mixed in.
            let nonce = RandomState::new().build_hasher().finish();
            let mut name = target.as_os_str().to_owned();
            name.push(format!(".{}-{nonce:016x}.part", std::process::id()));
            let path = PathBuf::from(name);
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((Temporary { path, kept: false }, file)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it the target, in one step.
    pub fn put_in_place(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.path, target)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.kept {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_nothing_stays_behind() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("f");
        let (a, _) = Temporary::beside(&target).unwrap();
        let (b, _) = Temporary::beside(&target).unwrap();
        assert_ne!(a.path(), b.path());
        b.put_in_place(&target).unwrap();
        drop(a);
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["f"]);
    }
}
