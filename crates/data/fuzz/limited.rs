//! The same program again, with less memory: what asks for too much ends there instead of being served.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs this very program with these arguments and at most `mebibytes` of data (heap and stacks), no cache, and a limit of
/// time; `None` if the time was not enough.
pub fn run(mebibytes: u64, time: Duration, arguments: &[&str], folder: &Path) -> Option<Output> {
    let program = std::env::current_exe().expect("the name of this program");
    let mut child = Command::new("sh")
        .args(["-c", &format!("ulimit -d {} && exec \"$0\" \"$@\"", mebibytes << 10)])
        .arg(program)
        .args(arguments)
        .env("SUBDEQ_FUZZ_FOLDER", folder)
        .env("SUBDEQ_CACHE", "off")
        // One heap for all threads, and few threads: each would reserve some of the little there is.
        .env("MALLOC_ARENA_MAX", "1")
        .env("RAYON_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > time {
            child.kill().expect("a child to end");
            drop(child.wait());
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(child.wait_with_output().expect("a child"))
}

/// A folder that is deleted with its owner, in memory where the system has such a place: a case writes two files.
#[allow(dead_code)]
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}
