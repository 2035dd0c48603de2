//! The binary version of CIFAR-10: records of one label byte and 3 x 32 x 32 pixels, planes R, G, B.

use std::io::Read;
use std::path::Path;

use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::source::{self, Source};

/// Width and height of an image.
pub const SIDE: usize = 32;
/// Bytes of an image.
pub const PIXELS: usize = 3 * SIDE * SIDE;
/// Number of classes.
pub const CLASSES: usize = 10;

/// Records of a file: the published ones have 10,000. The length is the system's word, and a file may be one large hole.
const MAX_RECORDS: u64 = 1 << 20;

/// Images (NCHW) and labels of one batch file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// `3 * 32 * 32` bytes per image.
    pub images: Vec<u8>,
    /// One label, 0 to 9, per image.
    pub labels: Vec<u32>,
}

/// Reads one batch file (`data_batch_1.bin`).
pub fn read(path: &Path) -> Result<Batch> {
    let length = path.metadata().map_err(DataError::io("open", path))?.len();
    read_from(&mut source::open(path)?, length)
}

/// Reads a batch from memory; `name` is used in errors.
pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Batch> {
    read_from(&mut Source::from_bytes(bytes, name), bytes.len() as u64)
}

fn read_from<R: Read>(source: &mut Source<R>, length: u64) -> Result<Batch> {
    let record = (PIXELS + 1) as u64;
    if length == 0 || !length.is_multiple_of(record) {
        let problem = format!("{length} bytes are not a whole number of {record}-byte records");
        return Err(DataError::malformed(source.name(), Place::Whole, problem, GET_AGAIN));
    }
    let count = length / record;
    if count > MAX_RECORDS {
        let problem = format!("{count} records, {MAX_RECORDS} are the most");
        return Err(DataError::malformed(
            source.name(),
            Place::Whole,
            problem,
            "divide it into several files",
        ));
    }
    let mut batch = Batch { images: Vec::new(), labels: Vec::new() };
    // Grows with what is really read.
    let mut image = [0; PIXELS];
    for _ in 0..count {
        let [label] = source.array()?;
        if usize::from(label) >= CLASSES {
            let problem = format!("record {} has the label {label}, not 0 to 9", batch.labels.len());
            return Err(source.error(problem, GET_AGAIN));
        }
        batch.labels.push(u32::from(label));
        source.fill(&mut image)?;
        batch.images.extend_from_slice(&image);
    }
    Ok(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_apart() {
        let mut bytes = vec![3];
        bytes.extend((0..PIXELS).map(|i| i as u8));
        bytes.push(9);
        bytes.extend(vec![7; PIXELS]);
        let batch = from_bytes(&bytes, "t").unwrap();
        assert_eq!(batch.labels, [3, 9]);
        assert_eq!((batch.images[1], batch.images[PIXELS]), (1, 7));
        assert!(from_bytes(&bytes[1..], "t").is_err());
        bytes[PIXELS + 1] = 10;
        let error = from_bytes(&bytes, "b.bin").unwrap_err().to_string();
        assert!(error.contains("record 1 has the label 10"), "{error}");
    }
}
