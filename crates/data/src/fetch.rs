//! Downloads: resumed where they stopped, checked, and put in place in one step.
//!
//! A file is written to `NAME.part`, made durable, checked against its checksum and only then renamed, so that a file
//! under its own name is always complete. A cut connection is taken up again where it broke; so is a `.part` left by
//! an earlier run.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use ureq::Agent;
use ureq::http::StatusCode;

use crate::checksum::Checksum;
use crate::error::{DataError, Result};

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
    if target.exists() {
        check(download, target)?;
        return Ok(Fetched::AlreadyThere);
    }
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(DataError::io("create", folder))?;
    }
    let part = part_of(target);
    let resumed_from = length(&part);
    let mut transfer = Transfer::new(download, &part);
    transfer.run(progress)?;
    if let Err(error) = check(download, &part) {
        fs::remove_file(&part).map_err(DataError::io("delete", &part))?;
        if resumed_from == 0 {
            return Err(error);
        }
        // What was left from an earlier run may have been of another version: once more from the beginning.
        transfer.run(progress)?;
        check(download, &part).inspect_err(|_| drop(fs::remove_file(&part)))?;
        put_in_place(&part, target)?;
        return Ok(Fetched::Downloaded { resumed_from: 0 });
    }
    put_in_place(&part, target)?;
    Ok(Fetched::Downloaded { resumed_from })
}

/// Where the bytes of an unfinished download are.
pub fn part_of(target: &Path) -> PathBuf {
    let mut name = target.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

fn check(download: &Download<'_>, path: &Path) -> Result<()> {
    if let Some(size) = download.size.filter(|&size| size != length(path)) {
        return Err(DataError::Download {
            url: download.url.to_owned(),
            problem: format!("{} has {} bytes instead of {size}", path.display(), length(path)),
            remedy: "delete the file and try again".to_owned(),
        });
    }
    download.checksum.map_or(Ok(()), |checksum| checksum.check(path))
}

fn put_in_place(part: &Path, target: &Path) -> Result<()> {
    let file = OpenOptions::new().append(true).open(part).map_err(DataError::io("open", part))?;
    file.sync_all().map_err(DataError::io("flush", part))?;
    fs::rename(part, target).map_err(DataError::io("rename", part))?;
    // The rename itself is durable once the folder is; not every system can open a folder, then it is as it is.
    if let Some(Ok(folder)) = target.parent().map(File::open) {
        drop(folder.sync_all());
    }
    Ok(())
}

/// Why an attempt stopped.
enum Stop {
    /// Trying again may help.
    Again(String),
    /// It will not.
    Final(DataError),
}

struct Transfer<'a> {
    download: &'a Download<'a>,
    part: &'a Path,
    agent: Agent,
}

impl<'a> Transfer<'a> {
    fn new(download: &'a Download<'a>, part: &'a Path) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .user_agent(concat!("subdeq/", env!("CARGO_PKG_VERSION")))
            .build();
        Transfer { download, part, agent: config.into() }
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
            let before = length(self.part);
            match self.attempt(progress) {
                Ok(()) => return Ok(()),
                Err(Stop::Final(error)) => return Err(error),
                Err(Stop::Again(problem)) => {
                    fruitless = if length(self.part) > before { 0 } else { fruitless + 1 };
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
        let have = length(self.part);
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
                    self.discard()?;
                    return Err(Stop::Again(format!(
                        "the server answered with another part than asked for ({start:?})"
                    )));
                }
                true
            }
            // What we have is as long as the file or longer, and not complete: it cannot be right.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                self.discard()?;
                return Err(Stop::Again("the server has no more than what is here already".to_owned()));
            }
            status => return Err(self.refused(status)),
        };
        let start = if resumed { have } else { 0 };
        let total = self.download.size.or(announced.map(|rest| rest + start));
        let mut file = self.open(resumed)?;
        let mut reader = response.body_mut().with_config().limit(u64::MAX).reader();
        let received = self.copy(&mut reader, &mut file, start, total, progress)?;
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

    fn discard(&self) -> std::result::Result<(), Stop> {
        fs::remove_file(self.part).map_err(|e| Stop::Final(DataError::io("delete", self.part)(e)))
    }

    fn open(&self, append: bool) -> std::result::Result<File, Stop> {
        let mut options = OpenOptions::new();
        options.create(true);
        if append {
            options.append(true)
        } else {
            options.write(true).truncate(true)
        };
        options.open(self.part).map_err(|e| Stop::Final(DataError::io("create", self.part)(e)))
    }

    fn copy(
        &self,
        reader: &mut impl Read,
        file: &mut File,
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
            if let Some(size) = self.download.size.filter(|&size| received > size) {
                drop(fs::remove_file(self.part));
                let problem = format!("the server sends more than the {size} bytes of the file");
                return Err(Stop::Final(
                    self.failed(problem, "the file there is another one: get it by hand"),
                ));
            }
            file.write_all(&buffer[..read]).map_err(|e| Stop::Final(self.unwritable(e)))?;
            progress(Progress { received, total });
        }
    }

    fn unwritable(&self, error: io::Error) -> DataError {
        let (file, full) = (self.part.display(), error.kind() == io::ErrorKind::StorageFull);
        let what = if full { "the disk is full" } else { "it cannot be written" };
        let remedy = "make room or choose another place with --data-dir, then run the same command again";
        self.failed(format!("{file}: {what} ({error})"), remedy)
    }
}

/// The first byte of `bytes 5-9/10`.
fn range_start(text: &str) -> Option<u64> {
    text.trim().strip_prefix("bytes")?.trim().split('-').next()?.parse().ok()
}
