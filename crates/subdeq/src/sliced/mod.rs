//! Batches cut into slices, so that the bits of a training do not depend on how many processes share it.
//!
//! [`Sliced`] is a device around another one. Whoever works with it speaks of whole batches; it computes, with the device inside, what
//! the samples of this process's slices need. What is a sum over samples (gradients of weights, moments of batch norm, losses) it
//! takes slice by slice, and adds the slices in a fixed binary tree, of which the ranks compute subtrees and exchange them: no order
//! of additions is left to the network. Everything else is about one sample at a time and does not depend on the batch anyway.
//!
//! Arrays with something for each sample are as long as the whole batch, but hold this rank's samples alone, from the beginning on.
//! A batch begins with [`DataSets::gather`](subdeq_engine::DataSets::gather).

mod cut;
mod data_sets;
mod equilibria;
mod integrate;
mod layers;
mod memory;
mod sums;
mod tree;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use subdeq_engine::{Backend, EngineError};
use subdeq_ranks::Ranks;

use crate::{Error, Result};
use cut::Cut;
use sums::Room;

/// Slices of a batch where several processes share a training and nobody says another number: as many as the ranks that can help.
pub const USUAL_SLICES: usize = 16;
/// More slices than batches have samples, or clusters machines for one.
const MOST_SLICES: usize = 1024;

/// Refuses a number of slices that makes no binary tree.
///
/// # Errors
/// Not a power of two from 2 to 1024.
pub fn check_slices(slices: usize) -> Result<()> {
    if !slices.is_power_of_two() || !(2..=MOST_SLICES).contains(&slices) {
        return Err(Error::Invalid(format!(
            "batches cannot be cut into {slices} slices: a power of two from 2 to {MOST_SLICES} is needed"
        )));
    }
    Ok(())
}

/// Refuses ranks that cannot share batches of so many slices (0 for none).
///
/// # Errors
/// As [`check_slices`]; several ranks and no slices, or fewer slices than ranks.
pub fn check_ranks(slices: usize, ranks: usize) -> Result<()> {
    match slices {
        0 if ranks == 1 => Ok(()),
        0 => Err(Error::Invalid(format!(
            "this run was begun by one process, with batches that are not cut into slices: {ranks} ranks cannot share it; continue it \
             without mpirun, or begin another"
        ))),
        _ if ranks > slices => Err(Error::Invalid(format!(
            "{ranks} ranks cannot share batches of {slices} slices: start at most {slices}, or begin another run with --slices {}",
            ranks.next_power_of_two()
        ))),
        _ => check_slices(slices),
    }
}

/// A device that computes this rank's part of every batch with another device (see the [module](self)).
pub struct Sliced<D: Backend<Elem = f32>> {
    device: Arc<D>,
    ranks: Ranks,
    slices: usize,
    cut: Cut,
    /// Samples of the present batch, on all ranks together.
    batch: AtomicUsize,
    room: Mutex<Room<D::Array>>,
    /// Whether this rank failed: from then on it exchanges nothing, and the others learn of it when it ends.
    failed: AtomicBool,
}

impl<D: Backend<Elem = f32>> Sliced<D> {
    /// Around a device, for batches of so many slices.
    ///
    /// # Errors
    /// As [`check_slices`] and [`check_ranks`].
    pub fn new(device: Arc<D>, ranks: Ranks, slices: usize) -> Result<Self> {
        check_slices(slices)?;
        check_ranks(slices, ranks.size())?;
        let cut = Cut::new(slices, &ranks);
        let (batch, room, failed) = (AtomicUsize::new(0), Mutex::default(), AtomicBool::new(false));
        Ok(Self { device, ranks, slices, cut, batch, room, failed })
    }

    /// Samples of the present batch.
    fn batch(&self) -> usize {
        self.batch.load(Ordering::Relaxed)
    }

    /// How much of `total`, which is about the whole batch, each sample has.
    fn each(&self, total: usize) -> Engine<usize> {
        match self.batch() {
            batch if batch > 0 && total.is_multiple_of(batch) => Ok(total / batch),
            batch => Err(EngineError::Invalid(format!(
                "{total} is not as much for each of the {batch} samples of the present batch"
            ))),
        }
    }

    /// How much of `total` is this rank's.
    fn own(&self, total: usize) -> Engine<usize> {
        Ok(self.each(total)? * self.cut.share(self.batch()).len())
    }

    /// What `work` with this rank's part of `total` comes to, if it has any.
    fn on_own(&self, total: usize, work: impl FnOnce(&D, usize) -> Engine<()>) -> Engine<()> {
        match self.own(total)? {
            0 => Ok(()),
            own => self.noting(work(&self.device, own)),
        }
    }

    /// A result; if it is an error, this rank takes part in nothing any more.
    fn noting<T>(&self, result: Engine<T>) -> Engine<T> {
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// The same for what the ranks do together.
    fn together<T>(&self, result: subdeq_ranks::Result<T>) -> Engine<T> {
        self.noting(result.map_err(|why| EngineError::DeviceFailed(why.to_string())))
    }

    fn room(&self) -> std::sync::MutexGuard<'_, Room<D::Array>> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of an engine's call.
type Engine<T> = subdeq_engine::Result<T>;
