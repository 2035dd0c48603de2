//! Where the program computes: the one place that names devices.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use subdeq::subdeq_engine::cpu::Peaks;
use subdeq::subdeq_ranks::Neighbours;
use subdeq::{Cpu, Cuda, Device};

use crate::failure::Failure;

/// What `--device` names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceName {
    /// The cores of this machine.
    #[default]
    Cpu,
    /// A GPU, by its number.
    Cuda(usize),
    /// The first GPU if there is one, else the cores.
    Auto,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is not the number of a GPU"));
        match text.split_once(':') {
            None if text == "cpu" => Ok(Self::Cpu),
            None if text == "cuda" => Ok(Self::Cuda(0)),
            None if text == "auto" => Ok(Self::Auto),
            Some(("cuda", ordinal)) => number(ordinal).map(Self::Cuda),
            _ => Err("use cpu, cuda, cuda:N or auto".to_owned()),
        }
    }
}

impl DeviceName {
    /// That of one of several ranks on this machine: each has a GPU of its own, from the one that is named on.
    pub fn shared(self) -> Self {
        match self {
            Self::Cuda(first) => Self::Cuda(first + Neighbours::here().place),
            other => other,
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

/// A device for `f32`, whichever it is.
pub enum AnyDevice {
    /// The cores of this machine.
    Cpu(Arc<Cpu<f32>>),
    /// A GPU.
    Cuda(Arc<Cuda>),
}

impl AnyDevice {
    /// The device of a name; `threads` is for the cores (0: all).
    pub fn new(name: DeviceName, threads: usize) -> Result<Self, Failure> {
        match name {
            DeviceName::Cpu => Ok(Self::Cpu(Arc::new(Cpu::new(threads).map_err(Failure::other)?))),
            DeviceName::Cuda(ordinal) => {
                Ok(Self::Cuda(Arc::new(Cuda::new(ordinal).map_err(Failure::other)?)))
            }
            DeviceName::Auto if Cuda::available().is_empty() => Self::new(DeviceName::Cpu, threads),
            DeviceName::Auto => Self::new(DeviceName::Cuda(0), threads),
        }
    }

    /// What decides how it rounds: the instructions of the cores, or the GPU.
    pub fn kind(&self) -> String {
        match self {
            Self::Cpu(cpu) => cpu.isa().name().to_owned(),
            Self::Cuda(gpu) => gpu.name(),
        }
    }

    /// What it is, for people.
    pub fn name(&self) -> String {
        on_device!(self, |device| device.name())
    }
}

/// Every device of this machine, by the name that `--device` takes and in words.
pub fn all() -> Result<Vec<(DeviceName, String)>, Failure> {
    let mut devices = vec![(DeviceName::Cpu, AnyDevice::new(DeviceName::Cpu, 0)?.name())];
    let gpus = Cuda::available().into_iter().enumerate();
    devices.extend(gpus.map(|(ordinal, name)| (DeviceName::Cuda(ordinal), name)));
    Ok(devices)
}

/// `on_device!(device, |d| body)`: the body with the device in it, compiled for each kind.
macro_rules! on_device {
    ($device:expr, |$d:ident| $body:expr) => {
        match $device {
            $crate::device::AnyDevice::Cpu($d) => $body,
            $crate::device::AnyDevice::Cuda($d) => $body,
        }
    };
}
pub(crate) use on_device;

/// The device that computes in `f64`: for checks, not for speed.
pub fn in_f64(threads: usize) -> Result<Arc<Cpu<f64>>, Failure> {
    Ok(Arc::new(Cpu::new(threads).map_err(Failure::other)?))
}

/// What this machine can do at best, with which instructions and how many threads.
pub fn peaks(threads: usize) -> Result<(&'static str, usize, Peaks), Failure> {
    let cpu = Cpu::<f32>::new(threads).map_err(Failure::other)?;
    Ok((cpu.isa().name(), cpu.threads(), cpu.peaks()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (text, name) in
            [("cpu", DeviceName::Cpu), ("cuda:3", DeviceName::Cuda(3)), ("auto", DeviceName::Auto)]
        {
            assert_eq!(text.parse(), Ok(name));
            assert_eq!(name.to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for wrong in ["gpu", "cuda:", "cuda:x", "cpu:1", ""] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
