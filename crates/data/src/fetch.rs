//! Downloads: resumed where they stopped, checked, and put in place in one step.
//!
//! A file is written beside its place, made durable, checked against its checksum and only then renamed, so that a file
//! under its own name is always complete. A cut connection is taken up again where it broke; so is a `NAME.part` left by
//! an earlier run. A `NAME.part` that another process is writing, and one that is a link, is left alone: the download then
//! goes to a new file of its own, which is deleted if anything fails.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::http::StatusCode;

use crate::checksum::Checksum;
use crate::error::{DataError, Result};
use crate::source;
use crate::temporary::Temporary;

/// A file whose size is not known beforehand is downloaded up to this many bytes, whatever the server announces.
pub const MAX_UNKNOWN_SIZE: u64 = 1 << 30;

/// Attempts in a row that bring no new bytes before we give up.
const ATTEMPTS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(30);

/// A file to get.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Download<'a> {
    /// The address.
    pub url: &'a str,
    /// Its size in bytes, if known.
    pub size: Option<u64>,
    /// Its checksum, if known.
    pub checksum: Option<Checksum<'a>>,
}

/// How far a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes on disk.
    pub received: u64,
    /// Bytes in all, if known.
    pub total: Option<u64>,
}

/// How a file came to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetched {
    /// It was there, with the right checksum if one is known.
    AlreadyThere,
    /// It was downloaded; the first `resumed_from` bytes were there from an earlier attempt.
    Downloaded {
        /// Bytes that were not downloaded again.
        resumed_from: u64,
    },
}

/// Downloads a file to `target`, unless it is there already; `progress` is called after every piece.
pub fn fetch(download: &Download<'_>, target: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Fetched> {
    fetch_up_to(download, target, MAX_UNKNOWN_SIZE, progress)
}

/// The same with a limit of one's own for files of unknown size.
pub fn fetch_up_to(
    download: &Download<'_>,
    target: &Path,
    limit: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Fetched> {
    if target.exists() {
        check(download, &mut source::open_regular(target)?.0, target)?;
        return Ok(Fetched::AlreadyThere);
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(DataError::io("create", folder))?;
    }
    let mut transfer = Transfer::new(download, limit, Part::claim(target)?)?;
    transfer.run(progress)?;
    if let Err(error) = transfer.check() {
        let resumed = transfer.resumed > 0;
        transfer.clear()?;
        if !resumed {
            return Err(error);
        }
        // What was left from an earlier run may have been of another version: once more from the beginning.
        transfer.run(progress)?;
        if let Err(error) = transfer.check() {
            transfer.clear()?;
            return Err(error);
        }
    }
    let resumed_from = transfer.resumed;
    transfer.part.put_in_place(target)?;
    Ok(Fetched::Downloaded { resumed_from })
}

/// Where the bytes of an unfinished download are kept for the next run.
pub fn part_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn check(download: &Download<'_>, file: &mut File, path: &Path) -> Result<()> {
    let length = file.metadata().map_err(DataError::io("read", path))?.len();
    if let Some(size) = download.size.filter(|&size| size != length) {
        return Err(DataError::Download {
            url: download.url.to_owned(),
            problem: format!("{} has {length} bytes instead of {size}", path.display()),
            remedy: "delete the file and try again".to_owned(),
        });
    }
    file.rewind().map_err(DataError::io("read", path))?;
    download.checksum.map_or(Ok(()), |checksum| checksum.check_open(file, path))
}

/// The file that a download is written to, which nobody else writes to.
struct Part {
    file: File,
    path: PathBuf,
    /// Set if it is not `NAME.part` but a file of our own that the next run would not find.
    temporary: Option<Temporary>,
    placed: bool,
}

impl Part {
    /// `NAME.part` if it is free (new, or left by a run that has ended), else a new file of our own.
    fn claim(target: &Path) -> Result<Self> {
        let path = part_of(target);
        // It may disappear while we look at it, when another process has finished with it.
        for _ in 0..8 {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            // Exclusive: what is there already, a link above all, is not opened by this.
            let opened = match options.clone().create_new(true).open(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match fs::symlink_metadata(&path) {
                    Ok(meta) if meta.is_file() => options.open(&path),
                    Ok(_) => break,
                    Err(e) => Err(e),
                },
                opened => opened,
            };
            let file = match opened {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => {
                    continue;
                }
                Err(e) => return Err(DataError::io("create", &path)(e)),
            };
            // The system frees the lock when its holder ends, however it ends.
            if file.try_lock().is_err() {
                break;
            }
            if is_still(&file, &path) {
                return Ok(Part { file, path, temporary: None, placed: false });
            }
        }
        let (temporary, file) = Temporary::beside(target).map_err(DataError::io("create", target))?;
        Ok(Part { file, path: temporary.path().to_path_buf(), temporary: Some(temporary), placed: false })
    }

    fn length(&self) -> Result<u64> {
        Ok(self.file.metadata().map_err(DataError::io("read", &self.path))?.len())
    }

    fn put_in_place(mut self, target: &Path) -> Result<()> {
        self.file.sync_all().map_err(DataError::io("flush", &self.path))?;
        // Still locked: nobody continues to write to what is the target now.
        match self.temporary.take() {
            Some(temporary) => temporary.put_in_place(target),
            None => fs::rename(&self.path, target),
        }
        .map_err(DataError::io("rename", &self.path))?;
        self.placed = true;
        // The rename itself is durable once the folder is; not every system can open a folder, then it is as it is.
        if let Some(Ok(folder)) = target.parent().map(File::open) {
            drop(folder.sync_all());
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Nothing that could be continued: nothing is left. A file of our own deletes itself.
        if !self.placed && self.temporary.is_none() && self.length().is_ok_and(|length| length == 0) {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Whether the name still belongs to the open file, and no other name does.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(ours), Ok(named)) = (file.metadata(), fs::symlink_metadata(path)) else { return false };
    named.is_file() && ours.nlink() == 1 && (ours.dev(), ours.ino()) == (named.dev(), named.ino())
}

/// Whether the name still belongs to a file.
#[cfg(not(unix))]
fn is_still(_: &File, path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|named| named.is_file())
}

/// Why an attempt stopped.
enum Stop {
    /// Trying again may help.
    Again(String),
    /// It will not.
    Final(DataError),
}

impl From<DataError> for Stop {
    fn from(error: DataError) -> Self {
        Stop::Final(error)
    }
}

struct Transfer<'a> {
    download: &'a Download<'a>,
    limit: u64,
    part: Part,
    /// Bytes that were there before.
    resumed: u64,
    agent: Agent,
}

impl<'a> Transfer<'a> {
    fn new(download: &'a Download<'a>, limit: u64, part: Part) -> Result<Self> {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .user_agent(concat!("subdeq/", env!("CARGO_PKG_VERSION")))
            .build();
        let resumed = part.length()?;
        Ok(Transfer { download, limit, part, resumed, agent: config.into() })
    }

    fn check(&mut self) -> Result<()> {
        check(self.download, &mut self.part.file, &self.part.path)
    }

    /// Back to the beginning.
    fn clear(&mut self) -> Result<()> {
        self.resumed = 0;
        self.part.file.set_len(0).map_err(DataError::io("empty", &self.part.path))
    }

    /// How long the file can be.
    fn most(&self) -> u64 {
        self.download.size.unwrap_or(self.limit)
    }

    fn too_much(&self, what: &str) -> DataError {
        match self.download.size {
            Some(size) => self.failed(
                format!("the server {what} more than the {size} bytes of the file"),
                "the file there is another one: get it by hand",
            ),
            None => self.failed(
                format!("the server {what} more than {} bytes for a file of unknown size", self.limit),
                "if it is really that large, get it by hand and put it into the data folder",
            ),
        }
    }

    fn failed(&self, problem: impl Into<String>, remedy: impl Into<String>) -> DataError {
        DataError::Download {
            url: self.download.url.to_owned(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    /// Attempts until everything is there, or nothing new has come for several attempts.
    fn run(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<()> {
        let mut fruitless = 0;
        loop {
            let before = self.part.length()?;
            match self.attempt(progress) {
                Ok(()) => return Ok(()),
                Err(Stop::Final(error)) => return Err(error),
                Err(Stop::Again(problem)) => {
                    fruitless = if self.part.length()? > before { 0 } else { fruitless + 1 };
                    if fruitless >= ATTEMPTS {
                        let remedy = "check the connection and run the same command again: it continues where it stopped";
                        return Err(self.failed(problem, remedy));
                    }
                    thread::sleep(Duration::from_millis(100 << (2 * fruitless)));
                }
            }
        }
    }

    fn attempt(&mut self, progress: &mut dyn FnMut(Progress)) -> std::result::Result<(), Stop> {
        if self.part.length()? > self.most() {
            self.clear()?;
        }
        let have = self.part.length()?;
        if self.download.size == Some(have) && have > 0 {
            return Ok(());
        }
        let mut request = self.agent.get(self.download.url);
        if have > 0 {
            request = request.header("Range", format!("bytes={have}-"));
        }
        let mut response = request.call().map_err(|e| self.classify(e))?;
        let header =
            |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let announced = header("content-length").and_then(|text| text.parse::<u64>().ok());
        let resumed = match response.status() {
            StatusCode::OK => false,
            StatusCode::PARTIAL_CONTENT => {
                let start = header("content-range").and_then(|text| range_start(&text));
                if start != Some(have) {
                    self.clear()?;
                    return Err(Stop::Again(format!(
                        "the server answered with another part than asked for ({start:?})"
                    )));
                }
                true
            }
            // What we have is as long as the file or longer, and not complete: it cannot be right.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.clear()?;
                return Err(Stop::Again("the server has no more than what is here already".to_owned()));
            }
            status => return Err(self.refused(status)),
        };
        let start = if resumed { have } else { 0 };
        let announced = announced.map(|rest| rest.saturating_add(start));
        if announced.is_some_and(|length| length > self.most()) {
            self.clear()?;
            return Err(Stop::Final(self.too_much("announces")));
        }
        let total = self.download.size.or(announced);
        if !resumed {
            self.clear()?;
        }
        self.part.file.seek(SeekFrom::End(0)).map_err(|e| DataError::io("write", &self.part.path)(e))?;
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let received = self.copy(&mut reader, start, total, progress)?;
        match total {
            Some(total) if received < total => {
                Err(Stop::Again(format!("the connection was cut after {received} of {total} bytes")))
            }
            _ => Ok(()),
        }
    }

    fn classify(&self, error: ureq::Error) -> Stop {
        match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::TooManyRedirects => {
                Stop::Final(self.failed(error.to_string(), "the address is wrong"))
            }
            other => Stop::Again(other.to_string()),
        }
    }

    fn refused(&self, status: StatusCode) -> Stop {
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Stop::Again(format!("the server answered {status}"));
        }
        let remedy = "the file may have moved: get it by hand and put it into the data folder";
        Stop::Final(self.failed(format!("the server answered {status}"), remedy))
    }

    fn copy(
        &mut self,
        reader: &mut impl Read,
        start: u64,
        total: Option<u64>,
        progress: &mut dyn FnMut(Progress),
    ) -> std::result::Result<u64, Stop> {
        let mut buffer = vec![0; 1 << 16];
        let mut received = start;
        loop {
            let read = match reader.read(&mut buffer) {
                Ok(0) => return Ok(received),
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => {
                    return Err(Stop::Again(format!("the connection was cut after {received} bytes ({e})")));
                }
            };
            received += read as u64;
            if received > self.most() {
                self.clear()?;
                return Err(Stop::Final(self.too_much("sends")));
            }
            self.part.file.write_all(&buffer[..read]).map_err(|e| Stop::Final(self.unwritable(e)))?;
            progress(Progress { received, total });
        }
    }

    fn unwritable(&self, error: io::Error) -> DataError {
        let (file, full) = (self.part.path.display(), error.kind() == io::ErrorKind::StorageFull);
        let what = if full { "the disk is full" } else { "it cannot be written" };
        let remedy = "make room or choose another place with --data-dir, then run the same command again";
        self.failed(format!("{file}: {what} ({error})"), remedy)
    }
}

/// The first byte of `bytes 5-9/10`.
fn range_start(text: &str) -> Option<u64> {
    text.trim().strip_prefix("bytes")?.trim().split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `/dev/full` refuses every write like a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_said_so() {
        let file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let part = Part { file, path: "f.part".into(), temporary: None, placed: true };
        let download = Download { url: "http://nowhere", size: None, checksum: None };
        let mut transfer = Transfer::new(&download, 100, part).unwrap();
        match transfer.copy(&mut &[1u8; 10][..], 0, None, &mut |_| ()) {
            Err(Stop::Final(error)) => assert!(error.to_string().contains("the disk is full"), "{error}"),
            _ => panic!("a full disk took the bytes"),
        }
    }

    #[test]
    fn a_part_has_one_owner_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("file.bin");
        let mut first = Part::claim(&target).unwrap();
        first.file.write_all(b"some").unwrap();
        let second = Part::claim(&target).unwrap();
        assert!(first.path == part_of(&target) && second.path != first.path);
        drop(second);
        drop(first);
        // Left for the next run, and free again.
        let third = Part::claim(&target).unwrap();
        assert_eq!((third.path.clone(), third.length().unwrap()), (part_of(&target), 4));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        third.put_in_place(&target).unwrap();
        drop(Part::claim(&target).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "an empty part is not left behind");
    }
}
