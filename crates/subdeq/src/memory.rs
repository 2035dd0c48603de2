//! Whether something fits into a device, asked before anything is allocated on the host for it.

use subdeq_engine::{Device, EngineError};

use crate::Result;

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
