//! How a batch is cut into slices, and which of them are whose.

use std::ops::Range;

use subdeq_ranks::Ranks;

/// A batch cut into a fixed number of slices, seen from one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    slices: usize,
    /// The slices of this rank.
    own: Range<usize>,
}

impl Cut {
    pub fn new(slices: usize, ranks: &Ranks) -> Self {
        Self { slices, own: ranks.share(slices) }
    }

    /// The slices of this rank.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Where slice `k` of a batch of `count` samples begins.
    fn start(&self, k: usize, count: usize) -> usize {
        k * count / self.slices
    }

    /// This rank's samples of a batch of `count`.
    pub fn share(&self, count: usize) -> Range<usize> {
        self.start(self.own.start, count)..self.start(self.own.end, count)
    }

    /// The slices of this rank, by the places of their samples among the rank's own.
    pub fn own_slices(&self, count: usize) -> impl Iterator<Item = Range<usize>> {
        let first = self.start(self.own.start, count);
        let place = move |cut: &Self, k: usize| cut.start(k, count) - first;
        let cut = self.clone();
        self.own().map(move |k| place(&cut, k)..place(&cut, k + 1))
    }

    /// The most samples of this rank in batches of up to `count`.
    pub fn largest_share(&self, count: usize) -> usize {
        (self.own.len() * count).div_ceil(self.slices).max(1)
    }

    /// The most samples of one slice in batches of up to `count`.
    pub fn largest_slice(&self, count: usize) -> usize {
        count.div_ceil(self.slices).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_those_of_the_batch_whoever_owns_them() {
        for count in [0, 2, 7, 16, 100, 128, 1000] {
            let all = Cut { slices: 16, own: 0..16 };
            let slices: Vec<_> = all.own_slices(count).collect();
            assert_eq!(slices.iter().map(ExactSizeIterator::len).sum::<usize>(), count);
            for own in [0..4, 5..10, 15..16] {
                let cut = Cut { slices: 16, own: own.clone() };
                let (share, first) = (cut.share(count), slices[own.start].start);
                assert!(share.len() <= cut.largest_share(count));
                for (slice, of_all) in cut.own_slices(count).zip(&slices[own]) {
                    assert_eq!((slice.start + first, slice.end + first), (of_all.start, of_all.end));
                    assert!(slice.len() <= cut.largest_slice(count));
                }
            }
        }
    }
}
