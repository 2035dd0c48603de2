//! SHA-256 and MD5 of files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{DataError, Result};
use crate::source;

/// The checksum of an original file, in hexadecimal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Checksum<'a> {
    /// MD5: guards against accidents, not against malice.
    Md5(&'a str),
    /// SHA-256.
    Sha256(&'a str),
}

impl Checksum<'_> {
    /// Fails unless the file has this checksum.
    pub fn check(&self, path: &Path) -> Result<()> {
        self.check_open(&mut source::open_regular(path)?.0, path)
    }

    /// The same for a file that is open, from where it stands; `path` is used in errors.
    pub(crate) fn check_open(&self, file: &mut File, path: &Path) -> Result<()> {
        let (kind, expected, found) = match self {
            Checksum::Md5(expected) => ("MD5", expected, digest::<Md5>(file, path)?),
            Checksum::Sha256(expected) => ("SHA-256", expected, digest::<Sha256>(file, path)?),
        };
        if found.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(DataError::Checksum {
            file: path.to_path_buf(),
            kind,
            expected: expected.to_string(),
            found,
            remedy: "the file is damaged or another version: delete it and get it again".to_owned(),
        })
    }
}

/// The SHA-256 of a file, in hexadecimal.
pub fn sha256(path: &Path) -> Result<String> {
    digest::<Sha256>(&mut source::open_regular(path)?.0, path)
}

fn digest<D: Digest>(file: &mut File, path: &Path) -> Result<String> {
    let mut hash = D::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer).map_err(DataError::io("read", path))?;
        if read == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..read]);
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
