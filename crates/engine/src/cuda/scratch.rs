//! Memory between the launches of one call: kept, so that a training step allocates nothing.

use std::sync::Arc;

use super::gpu::{Gpu, Memory};
use crate::Result;

/// Room for partial sums. Whoever holds it may put launches on the stream that use it; what comes later on the stream finds it free.
#[derive(Debug)]
pub(super) struct Scratch {
    sums: Memory<f64>,
    parts: Memory<f32>,
    /// Blocks of a launch that have ended: 0 between launches.
    arrived: Memory<u32>,
}

impl Scratch {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        Ok(Self { sums: Memory::empty(gpu), parts: Memory::empty(gpu), arrived: Memory::zeros(gpu, 1)? })
    }

    /// Room for `len` sums.
    pub fn sums(&mut self, len: usize) -> Result<&mut Memory<f64>> {
        self.sums.reserve(len)?;
        Ok(&mut self.sums)
    }

    /// Room for `len` numbers.
    pub fn parts(&mut self, len: usize) -> Result<&mut Memory<f32>> {
        self.parts.reserve(len)?;
        Ok(&mut self.parts)
    }

    /// Room for the loss and the hit of each sample, and the counter of blocks.
    pub fn scored(&mut self, batch: usize) -> Result<(&mut Memory<f64>, &mut Memory<u32>)> {
        self.sums.reserve(2 * batch)?;
        Ok((&mut self.sums, &mut self.arrived))
    }
}
