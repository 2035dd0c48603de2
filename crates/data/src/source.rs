//! A reader that knows its name, its position and how much can still come, so that every parser can say
//! where it stopped and none allocates more than the data can justify.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::budget::{Budget, TOO_MUCH_REMEDY};
use crate::error::{DataError, GET_AGAIN, Place, Result};

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
    /// What the file may unpack to; `None` for data that are as large as they say.
    budget: Option<Budget>,
}

impl<'a> Source<&'a [u8]> {
    /// Bytes in memory.
    pub fn from_bytes(bytes: &'a [u8], name: &str) -> Self {
        Source::plain(bytes, name, bytes.len() as u64)
    }
}

impl<'a, R: Read + 'a> Source<R> {
    /// A decompressor that will give at most `limit` bytes and draws on the budget of its file.
    pub fn unpacked(reader: R, name: &str, limit: u64, budget: &Budget) -> Source<Box<dyn Read + 'a>> {
        let limit = limit.min(budget.left());
        let source: Source<Box<dyn Read + 'a>> = Source::plain(Box::new(budget.meter(reader)), name, limit);
        Source { budget: Some(budget.clone()), ..source }
    }
}

impl<R: Read> Source<R> {
    /// A reader of `length` bytes that are there as they are.
    fn plain(reader: R, name: &str, length: u64) -> Self {
        let reader = BufReader::with_capacity(1 << 13, reader);
        Source { reader, name: name.to_owned(), position: 0, remaining: length, budget: None }
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

    /// The budget of the file if it is a compressed one: what is compressed inside it draws on the same.
    pub fn budget(&self) -> Option<&Budget> {
        self.budget.as_ref()
    }

    fn read_error(&self, error: io::Error, wanted: u64) -> DataError {
        if let Some(budget) = self.budget.as_ref().filter(|budget| budget.exceeded()) {
            return self.error(budget.problem(), TOO_MUCH_REMEDY);
        }
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
            if let Some(budget) = self.budget.as_ref().filter(|budget| budget.left() <= self.remaining) {
                let problem = format!("{what} needs {count} bytes; it {}", budget.problem());
                return Err(self.error(problem, TOO_MUCH_REMEDY));
            }
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
        if self.budget.is_none() {
            bytes.try_reserve_exact(count).map_err(|_| self.no_room(count as u64, what))?;
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
        if self.budget.is_none() {
            elements.try_reserve_exact(count).map_err(|_| self.no_room(total, what))?;
        }
        let mut buffer = vec![0; CHUNK / W * W];
        let mut left = count * W;
        while left > 0 {
            let part = left.min(buffer.len());
            self.fill(&mut buffer[..part])?;
            if elements.capacity() - elements.len() < part / W {
                // Twice as many as have come, never more than are announced.
                let more = elements.len().max(part / W).min(count - elements.len());
                elements.try_reserve_exact(more).map_err(|_| self.no_room(total, what))?;
            }
            elements.extend(buffer[..part].as_chunks::<W>().0.iter().map(|bytes| convert(*bytes)));
            left -= part;
        }
        Ok(elements)
    }

    fn no_room(&self, count: u64, what: &str) -> DataError {
        self.error(
            format!("{what} needs {count} bytes, more memory than there is"),
            "free memory or use less data",
        )
    }

    /// The next line without its end, if it has at most `limit` bytes; `None` at the end of the data.
    pub fn line<'b>(&mut self, buffer: &'b mut Vec<u8>, limit: u64) -> Result<Option<&'b [u8]>> {
        buffer.clear();
        let read = (&mut self.reader).take(limit.saturating_add(1)).read_until(b'\n', buffer);
        let read = read.map_err(|e| self.read_error(e, limit))? as u64;
        if read > limit {
            return Err(self.error(format!("a line of more than {limit} bytes"), "break it into several"));
        }
        self.advance(read);
        if read == 0 {
            return Ok(None);
        }
        let line = buffer.strip_suffix(b"\n").unwrap_or(buffer);
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
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

/// Opens a regular file and says how long it is. A pipe would be waited for without end, a device has no end.
pub(crate) fn open_regular(path: &Path) -> Result<(File, u64)> {
    let meta = std::fs::metadata(path).map_err(DataError::io("open", path))?;
    if !meta.is_file() {
        let kind = if meta.is_dir() { "a folder" } else { "a pipe or a device" };
        return Err(DataError::request(
            format!("{} is {kind}, a file was expected", path.display()),
            "give the path of a file",
        ));
    }
    Ok((File::open(path).map_err(DataError::io("open", path))?, meta.len()))
}

/// Everything that is in a regular file.
pub(crate) fn read_whole(path: &Path) -> Result<Vec<u8>> {
    let (mut file, length) = open_regular(path)?;
    let mut bytes = Vec::new();
    let reserved = usize::try_from(length).map_err(|_| io::ErrorKind::OutOfMemory.into());
    reserved
        .and_then(|length| bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory.into()))
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(DataError::io("read", path))?;
    Ok(bytes)
}

/// Opens a file of arrays; one that starts like a gzip file is decompressed on the way, whatever its name.
pub(crate) fn open(path: &Path) -> Result<Source<Box<dyn Read>>> {
    open_with(path, Budget::arrays)
}

/// The same for a file of text.
pub(crate) fn open_text(path: &Path) -> Result<Source<Box<dyn Read>>> {
    open_with(path, Budget::text)
}

fn open_with(path: &Path, budget: fn(u64) -> Budget) -> Result<Source<Box<dyn Read>>> {
    let (file, length) = open_regular(path)?;
    let mut reader = BufReader::with_capacity(1 << 16, file);
    let start = reader.fill_buf().map_err(DataError::io("read", path))?;
    let gzip = start.starts_with(GZIP);
    let name = path.display().to_string();
    if gzip {
        return Ok(Source::unpacked(MultiGzDecoder::new(reader), &name, u64::MAX, &budget(length)));
    }
    Ok(Source::plain(Box::new(reader), &name, length))
}

/// Bytes in memory, decompressed on the way if they start like a gzip file.
pub(crate) fn maybe_gzip<'a>(bytes: &'a [u8], name: &str) -> Source<Box<dyn Read + 'a>> {
    let length = bytes.len() as u64;
    if bytes.starts_with(GZIP) {
        let budget = Budget::arrays(length);
        return Source::unpacked(MultiGzDecoder::new(bytes), name, u64::MAX, &budget);
    }
    Source::plain(Box::new(bytes), name, length)
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
