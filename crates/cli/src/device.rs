//! Where the program computes: the one place that names devices.

use std::sync::Arc;

use subdeq::Cpu;
use subdeq::subdeq_engine::cpu::Peaks;

use crate::failure::Failure;

/// A device for `f32`, whichever it is.
pub enum AnyDevice {
    /// The cores of this machine.
    Cpu(Arc<Cpu<f32>>),
}

impl AnyDevice {
    /// The cores of this machine, with that many threads (0: all).
    pub fn new(threads: usize) -> Result<Self, Failure> {
        Ok(Self::Cpu(Arc::new(Cpu::new(threads).map_err(Failure::other)?)))
    }
}

/// `on_device!(device, |d| body)`: the body with the device in it, compiled for each kind.
macro_rules! on_device {
    ($device:expr, |$d:ident| $body:expr) => {
        match $device {
            $crate::device::AnyDevice::Cpu($d) => $body,
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
