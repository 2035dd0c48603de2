//! Downloads from a server of our own that misbehaves in every way real ones do.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use subdeq_data::DataError;
use subdeq_data::checksum::{Checksum, sha256};
use subdeq_data::fetch::{Download, Fetched, fetch, fetch_up_to, part_of};

/// What the server does wrong.
#[derive(Clone, Copy)]
enum Fault {
    None,
    /// Closes every connection after this many bytes.
    CutAfter(usize),
    /// Knows nothing of ranges: always sends everything.
    NoRanges,
    /// This status, always.
    Status(&'static str),
    /// 503 to the first requests.
    BusyFor(usize),
    /// Answers a range with the wrong part.
    WrongRange,
    /// Does not say how long the file is.
    NoLength,
}

struct Server {
    url: String,
    requests: Arc<AtomicUsize>,
}

impl Server {
    fn start(body: Vec<u8>, fault: Fault) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/file.bin", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                // A client that goes away early is not the server's problem.
                let _ = answer(stream, &body, fault, number);
            }
        });
        Server { url, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: TcpStream, body: &[u8], fault: Fault, number: usize) -> std::io::Result<()> {
    let mut start = None;
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            start = range.trim_end_matches('-').parse::<usize>().ok();
        }
    }
    let status = match fault {
        Fault::Status(status) => Some(status),
        Fault::BusyFor(count) if number < count => Some("503 Service Unavailable"),
        _ => None,
    };
    if let Some(status) = status {
        return write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
    let start = start.filter(|_| !matches!(fault, Fault::NoRanges)).unwrap_or(0);
    if start >= body.len() {
        return write!(
            stream,
            "HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
    }
    let rest = &body[start..];
    if start > 0 {
        let said = if matches!(fault, Fault::WrongRange) { start + 1 } else { start };
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {said}-{}/{}\r\n",
            body.len() - 1,
            body.len()
        )?;
    } else {
        write!(stream, "HTTP/1.1 200 OK\r\n")?;
    }
    if !matches!(fault, Fault::NoLength) {
        write!(stream, "content-length: {}\r\n", rest.len())?;
    }
    write!(stream, "connection: close\r\n\r\n")?;
    let sent = match fault {
        Fault::CutAfter(limit) => &rest[..limit.min(rest.len())],
        _ => rest,
    };
    stream.write_all(sent)
}

fn body() -> Vec<u8> {
    (0..300_000u32).flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes()).collect()
}

/// The SHA-256 of [`body`], by way of a file.
fn body_sum(folder: &Path) -> String {
    let path = folder.join("reference");
    fs::write(&path, body()).unwrap();
    sha256(&path).unwrap()
}

#[test]
fn a_good_download_reports_progress_and_leaves_no_part() {
    let dir = tempfile::tempdir().unwrap();
    let (sum, server) = (body_sum(dir.path()), Server::start(body(), Fault::None));
    let target = dir.path().join("new/folder/file.bin");
    let download = Download { url: &server.url, size: None, checksum: Some(Checksum::Sha256(&sum)) };
    let mut seen = Vec::new();
    let fetched = fetch(&download, &target, &mut |p| seen.push(p)).unwrap();
    assert_eq!(fetched, Fetched::Downloaded { resumed_from: 0 });
    assert_eq!(fs::read(&target).unwrap(), body());
    assert!(!part_of(&target).exists());
    assert!(seen.windows(2).all(|pair| pair[0].received < pair[1].received));
    assert_eq!((seen.last().unwrap().received, seen.last().unwrap().total), (1_200_000, Some(1_200_000)));
    assert_eq!(fetch(&download, &target, &mut |_| ()).unwrap(), Fetched::AlreadyThere);
    assert_eq!(server.requests(), 1);
}

#[test]
fn cut_connections_are_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let (sum, server) = (body_sum(dir.path()), Server::start(body(), Fault::CutAfter(250_000)));
    let target = dir.path().join("file.bin");
    let download =
        Download { url: &server.url, size: Some(1_200_000), checksum: Some(Checksum::Sha256(&sum)) };
    fetch(&download, &target, &mut |_| ()).unwrap();
    assert_eq!(fs::read(&target).unwrap(), body());
    assert_eq!(server.requests(), 5);
}

#[test]
fn a_part_from_an_earlier_run_is_continued() {
    let dir = tempfile::tempdir().unwrap();
    let (sum, server) = (body_sum(dir.path()), Server::start(body(), Fault::None));
    let target = dir.path().join("file.bin");
    fs::write(part_of(&target), &body()[..700_001]).unwrap();
    let download =
        Download { url: &server.url, size: Some(1_200_000), checksum: Some(Checksum::Sha256(&sum)) };
    let mut first = None;
    let fetched = fetch(&download, &target, &mut |p| _ = first.get_or_insert(p.received)).unwrap();
    assert_eq!(fetched, Fetched::Downloaded { resumed_from: 700_001 });
    assert!(first.unwrap() > 700_001);
    assert_eq!(fs::read(&target).unwrap(), body());
}

#[test]
fn a_wrong_part_from_an_earlier_run_is_thrown_away() {
    for part in [vec![7; 1000], vec![7; 1_200_000], vec![7; 2_000_000]] {
        let dir = tempfile::tempdir().unwrap();
        let (sum, server) = (body_sum(dir.path()), Server::start(body(), Fault::None));
        let target = dir.path().join("file.bin");
        fs::write(part_of(&target), part).unwrap();
        let download =
            Download { url: &server.url, size: Some(1_200_000), checksum: Some(Checksum::Sha256(&sum)) };
        fetch(&download, &target, &mut |_| ()).unwrap();
        assert_eq!(fs::read(&target).unwrap(), body());
    }
}

#[test]
fn servers_without_ranges_or_with_wrong_ones() {
    for fault in [Fault::NoRanges, Fault::WrongRange] {
        let dir = tempfile::tempdir().unwrap();
        let (sum, server) = (body_sum(dir.path()), Server::start(body(), fault));
        let target = dir.path().join("file.bin");
        fs::write(part_of(&target), &body()[..500_000]).unwrap();
        let download = Download { url: &server.url, size: None, checksum: Some(Checksum::Sha256(&sum)) };
        fetch(&download, &target, &mut |_| ()).unwrap();
        assert_eq!(fs::read(&target).unwrap(), body());
    }
}

#[test]
fn a_busy_server_is_asked_again() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::BusyFor(2));
    let target = dir.path().join("file.bin");
    fetch(&Download { url: &server.url, size: None, checksum: None }, &target, &mut |_| ()).unwrap();
    assert_eq!((server.requests(), fs::read(&target).unwrap().len()), (3, 1_200_000));
}

#[test]
fn a_wrong_checksum_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::None);
    let target = dir.path().join("file.bin");
    let sum = "0".repeat(32);
    let download = Download { url: &server.url, size: None, checksum: Some(Checksum::Md5(&sum)) };
    let error = fetch(&download, &target, &mut |_| ()).unwrap_err();
    assert!(matches!(error, DataError::Checksum { kind: "MD5", .. }), "{error}");
    assert!(!target.exists() && !part_of(&target).exists());
}

#[test]
fn a_file_of_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::None);
    let target = dir.path().join("file.bin");
    let download = Download { url: &server.url, size: Some(1000), checksum: None };
    let error = fetch(&download, &target, &mut |_| ()).unwrap_err().to_string();
    assert!(error.contains("more than the 1000 bytes"), "{error}");
    assert!(!target.exists());
}

#[test]
fn missing_files_are_not_asked_for_twice() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::Status("404 Not Found"));
    let target = dir.path().join("file.bin");
    let error =
        fetch(&Download { url: &server.url, size: None, checksum: None }, &target, &mut |_| ()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("404") && text.contains("by hand") && text.contains(&server.url), "{text}");
    assert_eq!(server.requests(), 1);
    assert!(!target.exists());
}

/// Somebody put a link where the bytes of a download used to go.
#[cfg(unix)]
#[test]
fn links_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::None);
    let (target, victim) = (dir.path().join("file.bin"), dir.path().join("victim"));
    fs::write(&victim, b"precious").unwrap();
    std::os::unix::fs::symlink(&victim, part_of(&target)).unwrap();
    fetch(&Download { url: &server.url, size: None, checksum: None }, &target, &mut |_| ()).unwrap();
    assert_eq!(fs::read(&target).unwrap(), body());
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert!(!target.is_symlink());
}

#[cfg(unix)]
#[test]
fn a_second_name_of_another_file_is_not_written_to() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(body(), Fault::None);
    let (target, victim) = (dir.path().join("file.bin"), dir.path().join("victim"));
    fs::write(&victim, b"precious").unwrap();
    fs::hard_link(&victim, part_of(&target)).unwrap();
    fetch(&Download { url: &server.url, size: None, checksum: None }, &target, &mut |_| ()).unwrap();
    assert_eq!((fs::read(&target).unwrap(), fs::read(&victim).unwrap()), (body(), b"precious".to_vec()));
}

#[test]
fn a_download_of_unknown_size_has_a_limit() {
    for fault in [Fault::None, Fault::NoLength] {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(body(), fault);
        let target = dir.path().join("file.bin");
        let download = Download { url: &server.url, size: None, checksum: None };
        let error = fetch_up_to(&download, &target, 100_000, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("more than 100000 bytes") && error.contains("by hand"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left");
        assert_eq!(server.requests(), 1);
        fetch_up_to(&download, &target, 1_200_000, &mut |_| ()).unwrap();
        assert_eq!(fs::read(&target).unwrap(), body());
    }
}

/// Both write, neither into the file of the other, and what is there in the end is whole.
#[test]
fn two_downloads_of_one_file_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (sum, server) = (body_sum(dir.path()), Server::start(body(), Fault::CutAfter(250_000)));
    let target = dir.path().join("file.bin");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let download =
                    Download { url: &server.url, size: None, checksum: Some(Checksum::Sha256(&sum)) };
                fetch(&download, &target, &mut |_| ()).unwrap();
            });
        }
    });
    assert_eq!(fs::read(&target).unwrap(), body());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "the file and its reference");
}

#[test]
fn nobody_there() {
    let dir = tempfile::tempdir().unwrap();
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("http://127.0.0.1:{port}/file.bin");
    let error =
        fetch(&Download { url: &url, size: None, checksum: None }, &dir.path().join("f"), &mut |_| ())
            .unwrap_err();
    assert!(error.to_string().contains("run the same command again"), "{error}");
}
