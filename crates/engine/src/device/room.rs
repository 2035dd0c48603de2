//! Memory that may never be wanted.

use super::Device;
use crate::Result;

/// An array that is made when it is first needed, and then kept.
///
/// ```
/// use subdeq_engine::{Cpu, Device, Room};
/// let (device, mut room) = (Cpu::<f32>::new(1)?, Room::new(2));
/// let mut numbers = [1.0; 2];
/// device.read(room.made(&device)?, 0, &mut numbers)?;
/// assert_eq!(numbers, [0.0; 2]);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Debug)]
pub struct Room<A> {
    len: usize,
    array: Option<A>,
}

impl<A> Room<A> {
    /// Room for `len` numbers.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self { len, array: None }
    }

    /// The array: zeros at first, then whatever was left in it.
    ///
    /// # Errors
    /// A device without enough memory.
    pub fn made<D: Device<Array = A> + ?Sized>(&mut self, device: &D) -> Result<&mut A> {
        Ok(match &mut self.array {
            Some(array) => array,
            none => none.insert(device.zeros(self.len)?),
        })
    }
}
