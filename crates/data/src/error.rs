//! What can go wrong with a dataset, said so that a person can act on it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, DataError>;

/// Where in a file a problem was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Offset in bytes from the start of the (decompressed) data.
    Byte(u64),
    /// Line number, counted from 1.
    Line(u64),
    /// A named part: a header field, an archive member, an array.
    Field(String),
    /// The file as a whole.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Byte(offset) => write!(f, ", byte {offset}"),
            Place::Line(line) => write!(f, ", line {line}"),
            Place::Field(name) => write!(f, ", {name}"),
            Place::Whole => Ok(()),
        }
    }
}

/// A problem with data: what, where, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused.
    #[error("cannot {doing} {}: {source}", file.display())]
    Io {
        /// The file concerned.
        file: PathBuf,
        /// What was being done, as a verb.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The contents are not what the format or the dataset asks for.
    #[error("{file}{place}: {problem}; {remedy}")]
    Malformed {
        /// The file (or archive member) concerned.
        file: String,
        /// Where in it.
        place: Place,
        /// What is wrong, with the value found.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A dataset or one of its files is not there.
    #[error("no {what}; looked for {}; {remedy}", list(searched))]
    Missing {
        /// What was asked for.
        what: String,
        /// The places searched.
        searched: Vec<PathBuf>,
        /// What to do.
        remedy: String,
    },
    /// A request that makes no sense for this data (a split larger than the set, an unknown name).
    #[error("{problem}; {remedy}")]
    Request {
        /// What is wrong, with the value found.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// A file does not have the checksum it should have.
    #[error("{file} has the {kind} {found}, expected {expected}; {remedy}", file = file.display())]
    Checksum {
        /// The file concerned.
        file: PathBuf,
        /// `MD5` or `SHA-256`.
        kind: &'static str,
        /// The checksum of the original, in hexadecimal.
        expected: String,
        /// The checksum computed.
        found: String,
        /// What to do.
        remedy: String,
    },
    /// A download failed.
    #[error("cannot download {url}: {problem}; {remedy}")]
    Download {
        /// The address.
        url: String,
        /// What went wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    names.join(", ")
}

impl DataError {
    /// An [`DataError::Io`] for use in `map_err`.
    pub(crate) fn io(doing: &'static str, file: &Path) -> impl FnOnce(io::Error) -> DataError {
        let file = file.to_path_buf();
        move |source| DataError::Io { file, doing, source }
    }

    pub(crate) fn malformed(
        file: &str,
        place: Place,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> DataError {
        DataError::Malformed { file: file.to_owned(), place, problem: problem.into(), remedy: remedy.into() }
    }

    pub(crate) fn request(problem: impl Into<String>, remedy: impl Into<String>) -> DataError {
        DataError::Request { problem: problem.into(), remedy: remedy.into() }
    }
}

/// The remedy for files that are cut short or otherwise damaged.
pub(crate) const GET_AGAIN: &str = "the file is damaged or not of this format: get it again";
