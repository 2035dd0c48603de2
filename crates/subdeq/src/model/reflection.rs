//! The reflected states `2 m z - y` of a block whose gain is bounded (see [`super::lipschitz`]).

use subdeq_engine::Backend;

use crate::Result;
use crate::memory::made;

/// The reflection of a block's states.
pub(super) struct Reflection<A> {
    /// `2 m`.
    factor: f64,
    buffers: Option<Buffers<A>>,
}

struct Buffers<A> {
    reflected: A,
    /// Its gradient, kept for the injections.
    gradient: A,
}

impl<A: Send + Sync> Reflection<A> {
    /// For a core of this margin.
    pub fn new(margin: f64) -> Self {
        Self { factor: 2.0 * margin, buffers: None }
    }

    /// `2 m`.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Makes room for so many numbers.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, len: usize) -> Result<()> {
        self.buffers = None; // its memory may be needed for the larger one
        self.buffers = Some(Buffers { reflected: device.zeros(len)?, gradient: device.zeros(len)? });
        Ok(())
    }

    /// The reflected states of the last batch, once they were made.
    pub fn reflected(&self) -> Option<&A> {
        self.buffers.as_ref().map(|buffers| &buffers.reflected)
    }

    /// Reflects states.
    pub fn forward<D: Backend<Array = A>>(&mut self, device: &D, len: usize, z: &A, y: &A) -> Result<()> {
        let Buffers { reflected, .. } = made(&mut self.buffers)?;
        device.fill(len, 0.0, reflected)?;
        device.axpy(len, self.factor, z, reflected)?;
        Ok(device.axpy(len, -1.0, y, reflected)?)
    }

    /// Turns the gradient of the reflected states into that of the states.
    pub fn pull_to_states<D: Backend<Array = A>>(&mut self, device: &D, len: usize, g: &mut A) -> Result<()> {
        let Buffers { gradient, .. } = made(&mut self.buffers)?;
        device.copy(len, g, gradient)?;
        Ok(device.axpy(len, self.factor - 1.0, gradient, g)?)
    }

    /// Adds to the gradient of the injections what does not come through the states.
    pub fn pull_to_injections<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        len: usize,
        gy: &mut A,
    ) -> Result<()> {
        Ok(device.axpy(len, -1.0, &made(&mut self.buffers)?.gradient, gy)?)
    }
}
