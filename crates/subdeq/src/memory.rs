//! Room on a device: whether something fits, asked before anything is allocated on the host for it, and what was made.

use subdeq_engine::{Device, EngineError};

use crate::{Error, Result};

/// Refuses more numbers than the device has memory for.
pub(crate) fn fits<D: Device>(device: &D, numbers: u64) -> Result<()> {
    let needed = numbers.saturating_mul(size_of::<D::Elem>() as u64);
    match device.memory() {
        Some(installed) if needed > installed => {
            Err(EngineError::OutOfMemory { needed, installed: Some(installed) }.into())
        }
        _ => Ok(()),
    }
}

/// The arrays of a layer or model that made room for a batch before.
pub(crate) fn made<R>(room: &mut Option<R>) -> Result<&mut R> {
    room.as_mut().ok_or_else(|| Error::invalid("no room was made for a batch yet"))
}
