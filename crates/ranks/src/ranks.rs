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
    pub(crate) world: Option<Arc<ferrompi::Communicator>>,
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
        let mut counts = vec![0u64; self.size()];
        counts[self.rank()] = mine.len() as u64;
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            world.allgather(&[mine.len() as u64], &mut counts)?;
        }
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        self.gather_parts(mine, &counts)
    }

    /// The same where every rank knows how many numbers each of them gives.
    ///
    /// # Errors
    /// MPI failed.
    pub fn gather_parts<T: Number>(&self, mine: &[T], counts: &[usize]) -> Result<Vec<T>> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            let (counts, starts, total) = layout(counts)?;
            let mut all = vec![T::default(); total];
            world.allgatherv(mine, &mut all, &counts, &starts)?;
            return Ok(all);
        }
        let _ = counts;
        Ok(mine.to_vec())
    }

    /// Sends every rank a piece of `mine`, the pieces one after the other, `to[rank]` numbers long; returns the pieces that the ranks
    /// sent to this one, `from[rank]` numbers long.
    ///
    /// # Errors
    /// MPI failed.
    pub fn exchange<T: Number>(&self, mine: &[T], to: &[usize], from: &[usize]) -> Result<Vec<T>> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            let (to, sent, _) = layout(to)?;
            let (from, received, total) = layout(from)?;
            let mut all = vec![T::default(); total];
            world.alltoallv(mine, &to, &sent, &mut all, &from, &received)?;
            return Ok(all);
        }
        let _ = (to, from);
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

    /// The text of rank 0, on every rank; what the others give is not looked at.
    ///
    /// # Errors
    /// MPI failed.
    pub fn tell(&self, text: &str) -> Result<String> {
        let mut len = [text.len() as u64];
        self.broadcast(&mut len, 0)?;
        let mut bytes = if self.is_first() { text.as_bytes().to_vec() } else { vec![0; len[0] as usize] };
        self.broadcast(&mut bytes, 0)?;
        String::from_utf8(bytes).map_err(|_| Error::Mpi("a text arrived damaged".into()))
    }

    /// Whether it holds on any rank, on every rank.
    ///
    /// # Errors
    /// MPI failed.
    pub fn any(&self, holds: bool) -> Result<bool> {
        Ok(self.gather_parts(&[u8::from(holds)], &vec![1; self.size()])?.contains(&1))
    }

    /// Makes sure that all ranks hold the same bytes (of a file, a version, a configuration).
    ///
    /// # Errors
    /// [`Error::Differs`] on every rank, naming the first rank that differs from rank 0.
    pub fn agree(&self, what: &str, mine: &[u8], hint: &str) -> Result<()> {
        let all = self.gather_parts(&fingerprint(mine), &vec![2; self.size()])?;
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

/// Counts of pieces that follow each other, where each begins, and where the last ends, as MPI takes them.
#[cfg(feature = "mpi")]
fn layout(counts: &[usize]) -> Result<(Vec<i32>, Vec<i32>, usize)> {
    let fits = |count: usize| {
        i32::try_from(count).map_err(|_| Error::Mpi(format!("{count} numbers are too many for one message")))
    };
    let (mut starts, mut total) = (Vec::with_capacity(counts.len()), 0);
    for &count in counts {
        starts.push(fits(total)?);
        total += count;
    }
    fits(total)?;
    let counts = counts.iter().map(|&count| fits(count)).collect::<Result<_>>()?;
    Ok((counts, starts, total))
}

/// Two numbers that differ, with near certainty, where bytes do: after FNV-1a, from two starts, word by word, with the high bits brought
/// down.
fn fingerprint(bytes: &[u8]) -> [u64; 2] {
    let words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let mix = |hash: u64, word: u64| {
        let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        product ^ (product >> 29)
    };
    let start = [0xcbf2_9ce4_8422_2325, 0x6c62_272e_07bb_0142].map(|start| mix(start, bytes.len() as u64));
    words.fold(start, |hashes, word| hashes.map(|hash| mix(hash, word)))
}
