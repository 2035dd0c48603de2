//! A reader that knows its name, its position and how much can still come, so that every parser can say
//! where it stopped and none allocates more than the data can justify.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use crate::error::{DataError, GET_AGAIN, Place, Result};

/// Deflate cannot expand by more than this (258 bytes out of two bits), so a compressed file of `n` bytes
/// justifies at most `n` times this much memory.
pub(crate) const DEFLATE_MAX_EXPANSION: u64 = 1032;

const GZIP: &[u8] = &[0x1f, 0x8b];

/// Bytes handled at a time when elements are converted while reading.
const CHUNK: usize = 1 << 16;

/// Named bytes being read front to back.
pub(crate) struct Source<R> {
    reader: BufReader<R>,
    name: String,
    position: u64,
    /// Upper bound on the bytes still to come.
    remaining: u64,
    /// Whether `remaining` is exact, i.e. whether all of it may be reserved at once.
    exact: bool,
}

impl<'a> Source<&'a [u8]> {
    /// Bytes in memory.
    pub fn from_bytes(bytes: &'a [u8], name: &str) -> Self {
        Source { exact: true, ..Source::bounded(bytes, name, bytes.len() as u64) }
    }
}

impl<R: Read> Source<R> {
    /// A reader that will give at most `limit` bytes, e.g. a decompressor.
    pub fn bounded(reader: R, name: &str, limit: u64) -> Self {
        let reader = BufReader::with_capacity(1 << 13, reader);
        Source { reader, name: name.to_owned(), position: 0, remaining: limit, exact: false }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn position(&self) -> u64 {
        self.position
    }

    /// An error at the current position.
    pub fn error(&self, problem: impl Into<String>, remedy: impl Into<String>) -> DataError {
        DataError::malformed(&self.name, Place::Byte(self.position), problem, remedy)
    }

    fn read_error(&self, error: io::Error, wanted: u64) -> DataError {
        let problem = if error.kind() == io::ErrorKind::UnexpectedEof {
            format!("ends in the middle of a value ({wanted} bytes wanted)")
        } else {
            format!("cannot be read or decompressed ({error})")
        };
        self.error(problem, GET_AGAIN)
    }

    /// Fails if `count` more bytes cannot possibly come.
    pub fn require(&self, count: u64, what: &str) -> Result<()> {
        if count > self.remaining {
            let problem = format!("{what} needs {count} bytes but at most {} are left", self.remaining);
            return Err(self.error(problem, GET_AGAIN));
        }
        Ok(())
    }

    fn advance(&mut self, count: u64) {
        self.position += count;
        self.remaining = self.remaining.saturating_sub(count);
    }

    /// Fills `buffer` completely.
    pub fn fill(&mut self, buffer: &mut [u8]) -> Result<()> {
        let wanted = buffer.len() as u64;
        self.require(wanted, "the next value")?;
        self.reader.read_exact(buffer).map_err(|e| self.read_error(e, wanted))?;
        self.advance(wanted);
        Ok(())
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// The next `count` bytes; memory grows with what really arrives.
    pub fn bytes(&mut self, count: usize, what: &str) -> Result<Vec<u8>> {
        self.require(count as u64, what)?;
        let mut bytes = Vec::new();
        if self.exact {
            bytes.reserve_exact(count);
        }
        let read = (&mut self.reader).take(count as u64).read_to_end(&mut bytes);
        read.map_err(|e| self.read_error(e, count as u64))?;
        if bytes.len() < count {
            let problem = format!("{what} needs {count} bytes but only {} are there", bytes.len());
            return Err(self.error(problem, GET_AGAIN));
        }
        self.advance(count as u64);
        Ok(bytes)
    }

    /// The next `count` elements of `W` bytes each, converted as they come.
    pub fn elements<T, const W: usize>(
        &mut self,
        count: usize,
        what: &str,
        convert: impl Fn([u8; W]) -> T,
    ) -> Result<Vec<T>> {
        let total = count.checked_mul(W).map_or(u64::MAX, |n| n as u64);
        self.require(total, what)?;
        let mut elements = Vec::new();
        if self.exact {
            elements.reserve_exact(count);
        }
        let mut buffer = vec![0; CHUNK / W * W];
        let mut left = count * W;
        while left > 0 {
            let part = left.min(buffer.len());
            self.fill(&mut buffer[..part])?;
            elements.extend(buffer[..part].as_chunks::<W>().0.iter().map(|bytes| convert(*bytes)));
            left -= part;
        }
        Ok(elements)
    }

    /// Everything up to the end, if that is at most `limit` bytes.
    pub fn rest(&mut self, limit: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let read = (&mut self.reader).take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|e| self.read_error(e, limit))?;
        if bytes.len() as u64 > limit {
            return Err(self.error(format!("more than {limit} bytes follow"), GET_AGAIN));
        }
        self.advance(bytes.len() as u64);
        Ok(bytes)
    }

    /// Throws away `count` bytes.
    pub fn skip(&mut self, count: u64) -> Result<()> {
        self.require(count, "the next part")?;
        let skipped = io::copy(&mut (&mut self.reader).take(count), &mut io::sink());
        let skipped = skipped.map_err(|e| self.read_error(e, count))?;
        if skipped < count {
            return Err(self.error(format!("ends {} bytes too early", count - skipped), GET_AGAIN));
        }
        self.advance(count);
        Ok(())
    }

    /// Whether everything has been read.
    pub fn at_end(&mut self) -> Result<bool> {
        let ended = self.reader.fill_buf().map(<[u8]>::is_empty);
        ended.map_err(|e| self.read_error(e, 1))
    }

    /// Fails unless everything has been read.
    pub fn expect_end(&mut self) -> Result<()> {
        if self.at_end()? {
            return Ok(());
        }
        Err(self.error("there is more data than the header announces", GET_AGAIN))
    }
}

/// Opens a file; one that starts like a gzip file is decompressed on the way, whatever its name.
pub(crate) fn open(path: &Path) -> Result<Source<Box<dyn Read>>> {
    let file = File::open(path).map_err(DataError::io("open", path))?;
    let meta = file.metadata().map_err(DataError::io("open", path))?;
    if meta.is_dir() {
        return Err(DataError::request(
            format!("{} is a folder, a file was expected", path.display()),
            "give the path of a file",
        ));
    }
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(DataError::io("read", path))?;
    let gzip = start.starts_with(GZIP);
    let name = path.display().to_string();
    if gzip {
        let limit = meta.len().saturating_mul(DEFLATE_MAX_EXPANSION);
        return Ok(Source::bounded(Box::new(GzDecoder::new(reader)), &name, limit));
    }
    Ok(Source { exact: true, ..Source::bounded(Box::new(reader), &name, meta.len()) })
}

/// Bytes in memory, decompressed on the way if they start like a gzip file.
pub(crate) fn maybe_gzip<'a>(bytes: &'a [u8], name: &str) -> Source<Box<dyn Read + 'a>> {
    let length = bytes.len() as u64;
    if bytes.starts_with(GZIP) {
        let limit = length.saturating_mul(DEFLATE_MAX_EXPANSION);
        return Source::bounded(Box::new(GzDecoder::new(bytes)), name, limit);
    }
    Source { exact: true, ..Source::bounded(Box::new(bytes), name, length) }
}

/// The number of elements of a shape, or an error that names the shape.
pub(crate) fn element_count(shape: &[usize], name: &str) -> Result<usize> {
    // A zero anywhere makes the product zero however large the others are.
    if shape.contains(&0) {
        return Ok(0);
    }
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or_else(|| {
        let field = Place::Field("shape".to_owned());
        DataError::malformed(name, field, format!("the shape {shape:?} is too large"), GET_AGAIN)
    })
}
