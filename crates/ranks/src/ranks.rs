//! What ranks say to each other.

use std::ops::Range;
#[cfg(feature = "mpi")]
use std::sync::Arc;

use crate::{Error, Result};

/// A kind of number that travels.
#[cfg(feature = "mpi")]
pub trait Number: ferrompi::MpiDatatype + Copy + Default + Send + Sync + 'static {}
/// A kind of number that travels.
#[cfg(not(feature = "mpi"))]
pub trait Number: Copy + Default + Send + Sync + 'static {}
impl Number for f32 {}
impl Number for f64 {}
impl Number for u8 {}
impl Number for u32 {}
impl Number for u64 {}

/// The processes that work together, seen from one of them.
///
/// ```
/// use subdeq_ranks::Ranks;
/// let ranks = Ranks::alone();
/// assert_eq!((ranks.rank(), ranks.size(), ranks.share(10)), (0, 1, 0..10));
/// ```
#[derive(Clone)]
pub struct Ranks {
    #[cfg(feature = "mpi")]
    world: Option<Arc<ferrompi::Communicator>>,
}

impl Ranks {
    /// One process.
    #[must_use]
    pub fn alone() -> Ranks {
        Ranks {
            #[cfg(feature = "mpi")]
            world: None,
        }
    }

    #[cfg(feature = "mpi")]
    pub(crate) fn of_world(world: ferrompi::Communicator) -> Ranks {
        Ranks { world: Some(Arc::new(world)) }
    }

    /// Which of them this is, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            return world.rank() as usize;
        }
        0
    }

    /// How many they are.
    #[must_use]
    pub fn size(&self) -> usize {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            return world.size() as usize;
        }
        1
    }

    /// Whether this is the one that writes files and speaks to people.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// This rank's part of `count` things in a row.
    #[must_use]
    pub fn share(&self, count: usize) -> Range<usize> {
        self.share_of(self.rank(), count)
    }

    /// Any rank's part of `count` things in a row: parts follow each other and differ by at most one thing.
    #[must_use]
    pub fn share_of(&self, rank: usize, count: usize) -> Range<usize> {
        let at = |rank: usize| (rank as u128 * count as u128 / self.size() as u128) as usize;
        at(rank)..at(rank + 1)
    }

    /// Every rank's numbers, one rank's after the other's, on every rank. Ranks may give different counts.
    ///
    /// # Errors
    /// MPI failed.
    pub fn all_gather<T: Number>(&self, mine: &[T]) -> Result<Vec<T>> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            let fits = |count: usize| {
                i32::try_from(count).map_err(|_| Error::Mpi(format!("{count} numbers are too many")))
            };
            let mut counts = vec![0u64; self.size()];
            world.allgather(&[mine.len() as u64], &mut counts)?;
            let ends = counts.iter().scan(0, |end, &count| {
                *end += count as usize;
                Some(*end)
            });
            let starts = std::iter::once(0).chain(ends).map(fits).collect::<Result<Vec<i32>>>()?;
            let counts = counts.iter().map(|&count| fits(count as usize)).collect::<Result<Vec<i32>>>()?;
            let mut all = vec![T::default(); starts[self.size()] as usize];
            world.allgatherv(mine, &mut all, &counts, &starts[..self.size()])?;
            return Ok(all);
        }
        Ok(mine.to_vec())
    }

    /// The numbers of rank `from`, on every rank; all have room for as many.
    ///
    /// # Errors
    /// MPI failed.
    pub fn broadcast<T: Number>(&self, numbers: &mut [T], from: usize) -> Result<()> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            world.broadcast(numbers, from as i32)?;
        }
        let _ = (numbers, from);
        Ok(())
    }

    /// Whether it holds on any rank, on every rank.
    ///
    /// # Errors
    /// MPI failed.
    pub fn any(&self, holds: bool) -> Result<bool> {
        Ok(self.all_gather(&[u8::from(holds)])?.contains(&1))
    }

    /// Makes sure that all ranks hold the same bytes (of a file, a version, a configuration).
    ///
    /// # Errors
    /// [`Error::Differs`] on every rank, naming the first rank that differs from rank 0.
    pub fn agree(&self, what: &str, mine: &[u8], hint: &str) -> Result<()> {
        let all = self.all_gather(&fingerprint(mine))?;
        match all.chunks(2).position(|one| one != &all[..2]) {
            Some(rank) => Err(Error::Differs { what: what.to_owned(), rank, hint: hint.to_owned() }),
            None => Ok(()),
        }
    }

    /// Ends all ranks, for a reason that was said already.
    pub fn abort(&self, code: u8) -> ! {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            world.abort(i32::from(code));
        }
        std::process::exit(i32::from(code))
    }
}

/// Two numbers that differ, with near certainty, where bytes do (FNV-1a from two starts).
fn fingerprint(bytes: &[u8]) -> [u64; 2] {
    [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142].map(|start: u64| {
        bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    })
}
