//! Messages from some ranks to some, while work goes on.

use crate::{Number, Ranks, Result};

impl Ranks {
    /// Sends numbers to some ranks and receives some from others, while `meanwhile` works; done when all have arrived. Messages of one
    /// rank to another arrive in the order in which they are listed, and have the lengths that both know.
    ///
    /// # Errors
    /// MPI failed.
    pub fn travel<T: Number>(
        &self,
        give: &[(usize, &[T])],
        take: &mut [(usize, &mut [T])],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<()> {
        #[cfg(feature = "mpi")]
        if let Some(world) = &self.world {
            ferrompi::scope(|scope| {
                for (from, numbers) in take {
                    let _ = world.irecv(scope, numbers, *from as i32, TAG)?;
                }
                for (to, numbers) in give {
                    let _ = world.isend(scope, numbers, *to as i32, TAG)?;
                }
                meanwhile();
                Ok(())
            })?;
            return Ok(());
        }
        let _ = (give, take);
        meanwhile();
        Ok(())
    }

    /// Gives list `k` to rank `k`; returns the list that each rank gave to this one.
    ///
    /// # Errors
    /// MPI failed.
    pub fn lists(&self, give: &[Vec<u32>]) -> Result<Vec<Vec<u32>>> {
        let (rank, size) = (self.rank(), self.size());
        let counts: Vec<u64> = give.iter().map(|list| list.len() as u64).collect();
        let counts = self.all_gather(&counts)?;
        let mut lists: Vec<Vec<u32>> =
            (0..size).map(|from| vec![0; counts[from * size + rank] as usize]).collect();
        lists[rank].clone_from(&give[rank]);
        let others = |other: &usize| *other != rank;
        let give: Vec<(usize, &[u32])> = (0..size)
            .filter(others)
            .map(|to| (to, &give[to][..]))
            .filter(|(_, list)| !list.is_empty())
            .collect();
        let take = lists.iter_mut().enumerate().filter(|(from, list)| others(from) && !list.is_empty());
        let mut take: Vec<(usize, &mut [u32])> = take.map(|(from, list)| (from, &mut list[..])).collect();
        self.travel(&give, &mut take, &mut || ())?;
        Ok(lists)
    }

    /// One rank after the other works on the same numbers, which all have in the end.
    ///
    /// # Errors
    /// MPI failed.
    pub fn relay<T: Number>(&self, baton: &mut [T], work: &mut dyn FnMut(&mut [T])) -> Result<()> {
        let (rank, last) = (self.rank(), self.size() - 1);
        if rank > 0 {
            self.travel(&[], &mut [(rank - 1, &mut *baton)], &mut || ())?;
        }
        work(baton);
        if rank < last {
            self.travel(&[(rank + 1, &*baton)], &mut [], &mut || ())?;
        }
        self.broadcast(baton, last)
    }
}

/// All messages between two ranks come in an order that both know.
#[cfg(feature = "mpi")]
const TAG: i32 = 19;
