//! Options that several commands share.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use subdeq::subdeq_ranks::Neighbours;

use crate::device::{AnyDevice, DeviceName};
use crate::failure::Failure;

/// Where the data sets are.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct DataDir {
    /// Folder with the data sets (`mnist/`, `cifar10/`, `graphs/NAME/`, ..) [default: $SUBDEQ_DATA, else ./data,
    /// ../shared/data, the user's data folder].
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

impl DataDir {
    /// The folder, if one was named.
    pub fn path(&self) -> Option<&Path> {
        self.data_dir.as_deref()
    }
}

/// What computes.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Compute {
    /// Where: cpu, cuda (or cuda:N for GPU number N), or auto (a GPU if there is one).
    #[arg(long, default_value_t, value_name = "DEVICE")]
    device: DeviceName,
    /// Threads; 0 means all cores. Results do not depend on it.
    #[arg(long, default_value_t = 0, value_name = "N")]
    threads: usize,
}

impl Compute {
    /// The number asked for; 0 for all cores.
    pub fn count(self) -> usize {
        self.threads
    }

    /// The device's name, if it is not the usual one.
    pub fn named_device(self) -> Option<DeviceName> {
        (self.device != DeviceName::default()).then_some(self.device)
    }

    /// The device.
    pub fn device(self) -> Result<AnyDevice, Failure> {
        AnyDevice::new(self.device, self.threads)
    }

    /// The same for one of several ranks, who share the machine they are on: each has its part of the cores, or a GPU of its own, from
    /// the one that is named on.
    pub fn shared(self) -> Self {
        let threads = if self.threads == 0 { cores_each() } else { self.threads };
        Self { device: self.device.shared(), threads }
    }

    /// The same for one of several trainings of this process: each has its part of the cores if nobody said how many.
    pub fn one_of(self, jobs: usize) -> Self {
        let threads = if self.threads == 0 { cores_of_one(jobs) } else { self.threads };
        Self { threads, ..self }
    }

    /// Refuses everything but the cores, which are all that graphs run on so far.
    pub fn cores_only(self) -> Result<(), Failure> {
        match self.device {
            DeviceName::Cpu | DeviceName::Auto => Ok(()),
            DeviceName::Cuda(_) => Err(Failure::usage("graphs are not on the GPU yet: use --device cpu")),
        }
    }
}

/// Cores for one of so many trainings of this process.
pub fn cores_of_one(jobs: usize) -> usize {
    (cores_each() / jobs).max(1)
}

/// Cores for each of the ranks that are on this machine, and no more than the launcher has bound this one to.
pub fn cores_each() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, usize::from);
    (installed_cores().unwrap_or(allowed) / Neighbours::here().count).clamp(1, allowed)
}

/// Cores of this machine, whatever the process may use of them: `0-7` or `0-3,8` as Linux has it.
fn installed_cores() -> Option<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()?.checked_sub(first.parse().ok()?)? + 1)
    };
    text.trim().split(',').map(count).sum()
}

/// How much is said.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Say nothing until the end.
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON: one object per result on standard output, nothing else.
    #[arg(long)]
    json: bool,
}

impl Output {
    /// Whether results are printed as JSON.
    pub fn json(self) -> bool {
        self.json
    }

    /// Whether progress is told, and if so whether to a terminal.
    pub fn progress(self) -> Telling {
        if self.quiet { Telling::Nothing } else { Telling::usual(self.json) }
    }
}

impl Telling {
    /// How progress is told if nobody asked for quiet; it goes to standard error, results to standard output.
    pub fn usual(json: bool) -> Telling {
        if std::io::stderr().is_terminal() {
            Telling::Bar
        } else if json {
            Telling::Nothing
        } else {
            Telling::Lines
        }
    }
}

/// How progress is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// Not at all.
    Nothing,
    /// A line per epoch: no terminal.
    Lines,
    /// A bar, and a line per epoch above it.
    Bar,
}
