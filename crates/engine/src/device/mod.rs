//! What a layer asks of the hardware: small traits, each built on memory.

mod custom;
mod data_sets;
mod equilibria;
mod graphs;
mod integrate;
mod layers;
mod parametrise;
mod room;
mod spectra;
mod summary;

pub use custom::{CustomMap, CustomMaps};
pub use data_sets::{DataSets, Images, MIRRORED, Order, Picks, View};
pub use equilibria::Equilibria;
pub use graphs::{
    EncoderShape, GraphDropout, GraphSpec, Graphs, LabelledNodes, NodeArray, Opinion, Propagate,
};
pub use integrate::{Integrate, OdeOutcome, OdeReport, OdeTolerance};
pub use layers::Layers;
pub use parametrise::{Parametrise, free_parameters};
pub use room::Room;
pub use spectra::Spectra;
pub use summary::{Pass, Summary};

use crate::network::Rows;
use crate::{Real, Result};

/// Hardware that holds arrays of numbers.
///
/// Arrays are contiguous and may be longer than a call needs. Every call may fail (memory that does not suffice, a device that
/// stops answering) and says so. A device may carry calls out later than they return, in their order; what reads waits.
pub trait Device: Send + Sync {
    /// The number type.
    type Elem: Real;
    /// Contiguous numbers on the device.
    type Array: Send + Sync;
    /// Contiguous whole numbers on the device: labels, and which samples make up a batch.
    type Integers: Send + Sync;
    /// Counters on the device: what happened since the last [`Device::finish`].
    type Tally: Send;

    /// What it is, for people: `2 threads, amx`.
    fn name(&self) -> String;
    /// Bytes that it has for arrays, where that is known.
    fn memory(&self) -> Option<u64>;
    /// The most bytes that arrays took at one time since the device was opened; `None` where arrays are in the memory of the
    /// process, of which the system keeps account.
    fn peak_memory(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// How many training steps may pass before the host looks at a [`Summary`]: one where looking costs nothing, more where
    /// it means waiting for the device.
    fn steps_per_summary(&self) -> usize {
        1
    }

    /// An array of `len` zeros.
    fn zeros(&self, len: usize) -> Result<Self::Array>;
    /// A copy of host numbers on the device.
    fn upload(&self, host: &[Self::Elem]) -> Result<Self::Array>;
    /// Writes host numbers to an array, from number `at` on.
    fn write(&self, array: &mut Self::Array, at: usize, host: &[Self::Elem]) -> Result<()>;
    /// Writes host numbers to the beginning of an array; refuses what is not finite (`what` names it in the error).
    fn write_finite(&self, what: &'static str, array: &mut Self::Array, host: &[Self::Elem]) -> Result<()>;
    /// Reads numbers of an array, from number `at` on.
    fn read(&self, array: &Self::Array, at: usize, host: &mut [Self::Elem]) -> Result<()>;
    /// A copy of whole numbers on the device.
    fn integers(&self, host: &[u32]) -> Result<Self::Integers>;
    /// Writes whole numbers to the beginning of an array.
    fn write_integers(&self, array: &mut Self::Integers, host: &[u32]) -> Result<()>;

    /// `x <- value`.
    fn fill(&self, len: usize, value: f64, x: &mut Self::Array) -> Result<()>;
    /// `y <- x`.
    fn copy(&self, len: usize, x: &Self::Array, y: &mut Self::Array) -> Result<()>;
    /// Copies `rows` pieces of `len` numbers from one array to another, each with its own spacing.
    fn copy_rows(
        &self,
        rows: usize,
        len: usize,
        from: Rows<&Self::Array>,
        to: Rows<&mut Self::Array>,
    ) -> Result<()>;
    /// Row `k` of `to` becomes the row of `from` that is picked as `k`-th, rows of `len` numbers.
    fn gather_rows(
        &self,
        len: usize,
        from: &Self::Array,
        picks: Picks<'_, Self::Integers>,
        to: &mut Self::Array,
    ) -> Result<()>;
    /// The row of `to` that is picked as `k`-th becomes row `k` of `from`: the way back of [`Device::gather_rows`].
    fn scatter_rows(
        &self,
        len: usize,
        from: &Self::Array,
        picks: Picks<'_, Self::Integers>,
        to: &mut Self::Array,
    ) -> Result<()>;

    /// Counters at zero.
    fn tally(&self) -> Result<Self::Tally>;
    /// Waits for everything that was asked for, reads the counters and sets them to zero: the one thing of a training step
    /// that is read.
    fn finish(&self, tally: &mut Self::Tally) -> Result<Summary>;
}

/// Everything that an image classifier needs.
pub trait Backend: Equilibria + Parametrise + Spectra + Layers + Integrate + DataSets {}
impl<D: Equilibria + Parametrise + Spectra + Layers + Integrate + DataSets> Backend for D {}
