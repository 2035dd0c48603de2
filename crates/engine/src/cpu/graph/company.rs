//! Processes that share a graph, each with a contiguous block of its rows.

use std::ops::Range;

use super::chunks::{divide, divide_by};
use super::encoder::divide_features;
use crate::network::Csr;
use crate::{EngineError, Result};

/// What a process of several that share a graph can say to the others. All of them must say the same things in the same order.
///
/// A message that fails leaves numbers that are not finite behind and is remembered ([`Company::failure`]): kernels cannot end
/// with an error in the middle, but whoever called them can.
pub trait Company<T>: Send + Sync {
    /// Which of them this is, from 0.
    fn rank(&self) -> usize;
    /// How many they are.
    fn size(&self) -> usize;
    /// Gives list `k` to rank `k`; returns the list that each rank gave to this one.
    fn lists(&self, give: Vec<Vec<u32>>) -> Vec<Vec<u32>>;
    /// Sends to some ranks and receives from some, while `meanwhile` works. Messages of one rank to another arrive in the order in
    /// which they are listed.
    fn exchange(
        &self,
        give: &[(usize, &[T])],
        take: &mut [(usize, &mut [T])],
        meanwhile: &mut (dyn FnMut() + Send),
    );
    /// The numbers of all ranks, one rank's after the other's, on all of them; rank `k` has `counts[k]` of them.
    fn gather(&self, mine: &[f64], counts: &[usize]) -> Vec<f64>;
    /// Takes over the numbers of one rank.
    fn broadcast(&self, from: usize, numbers: &mut [T]);
    /// One rank after the other works on the same numbers, which all have in the end: a sum goes on where the rank before ended,
    /// so that its bits are those of one process.
    fn relay(&self, baton: &mut [f64], work: &mut dyn FnMut(&mut [f64]));
    /// The first message that failed.
    fn failure(&self) -> Option<String>;
}

/// The numbers of all ranks, of which each has as many.
pub(crate) fn gather_alike<T>(company: &dyn Company<T>, mine: &[f64]) -> Vec<f64> {
    company.gather(mine, &vec![mine.len(); company.size()])
}

/// How a whole graph is divided, whatever the number of processes: the sums of a propagation are taken over blocks of rows and
/// those of the encoder's gradients over slices, each in its order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Division {
    /// Consecutive ranges that cover all rows.
    pub blocks: Vec<Range<usize>>,
    /// The same for the encoder's gradients.
    pub slices: Vec<Range<usize>>,
}

impl Division {
    /// Of a graph with these entries and features.
    #[must_use]
    pub fn new<T>(matrix: &Csr<T>, features: &Csr<T>) -> Division {
        Division { blocks: divide(&matrix.starts), slices: divide_features(&features.starts, features.cols) }
    }

    /// Of a graph without features whose first `row` rows have `before(row)` entries: nobody needs to have them all.
    #[must_use]
    pub fn by_lengths(rows: usize, before: impl Fn(usize) -> usize) -> Division {
        Division { blocks: divide_by(rows, before), slices: Vec::new() }
    }

    /// Refuses ranges that do not follow each other from row 0 on: kernels rely on it.
    pub(crate) fn check(&self) -> Result<()> {
        let follow = |ranges: &[Range<usize>]| {
            let starts = std::iter::once(0).chain(ranges.iter().map(|range| range.end));
            ranges.iter().zip(starts).all(|(range, start)| range.start == start && range.end > start)
        };
        let end = self.slices.last().map_or(self.nodes(), |slice| slice.end);
        if !(follow(&self.blocks) && follow(&self.slices) && end == self.nodes()) {
            return Err(EngineError::Invalid(
                "a division of a graph whose blocks or slices of rows do not follow each other".into(),
            ));
        }
        Ok(())
    }

    /// Rows in all.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.end)
    }

    /// The blocks of one rank of several. With more ranks than blocks, the last ranks have none.
    #[must_use]
    pub fn blocks_of(&self, rank: usize, size: usize) -> Range<usize> {
        let (count, at_work) = (self.blocks.len(), size.min(self.blocks.len()).max(1));
        let at = |rank: usize| rank.min(at_work) * count / at_work;
        at(rank)..at(rank + 1)
    }

    /// The rows of one rank of several.
    #[must_use]
    pub fn rows_of(&self, rank: usize, size: usize) -> Range<usize> {
        let blocks = self.blocks_of(rank, size);
        let at = |block: usize| self.blocks.get(block).map_or(self.nodes(), |block| block.start);
        at(blocks.start)..at(blocks.end)
    }
}
