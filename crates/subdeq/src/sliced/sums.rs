//! Sums over the slices of a batch, on all ranks.

use std::collections::HashMap;
use std::ops::Range;

use subdeq_engine::Backend;
use subdeq_engine::network::Rows;

use super::tree::{self, Subtrees, subtrees};
use super::{Engine, Sliced};

/// Fewer numbers are sent to everybody at once; of more, each rank adds up a part.
const FEW: usize = 1024;

/// Arrays that stay from call to call, so that a training step allocates nothing.
pub(super) struct Room<A> {
    pub copies: Copies<A>,
    /// Sums of subtrees, for each combination of lengths that occurs.
    stacks: HashMap<Vec<usize>, Vec<Vec<A>>>,
}

impl<A> Default for Room<A> {
    fn default() -> Self {
        Self { copies: Copies([None, None, None, None]), stacks: HashMap::new() }
    }
}

/// Room for what a call reads and writes about one slice.
pub(super) struct Copies<A>([Option<(usize, A)>; 4]);

impl<A> Copies<A> {
    /// Four arrays of at least these lengths.
    pub fn reserved<D: Backend<Array = A>>(&mut self, device: &D, lens: [usize; 4]) -> Engine<[&mut A; 4]> {
        for (copy, len) in self.0.iter_mut().zip(lens) {
            if copy.as_ref().is_none_or(|(has, _)| *has < len) {
                *copy = None; // its memory may be needed for the larger one
                *copy = Some((len, device.zeros(len)?));
            }
        }
        let Copies([Some(a), Some(b), Some(c), Some(d)]) = self else {
            return Err(subdeq_engine::EngineError::Invalid("no room was made".into()));
        };
        Ok([&mut a.1, &mut b.1, &mut c.1, &mut d.1])
    }
}

/// Some samples of an array, `each` numbers per sample, to the beginning of another.
pub(super) fn take<D: Backend>(
    device: &D,
    each: usize,
    samples: &Range<usize>,
    from: &D::Array,
    to: &mut D::Array,
) -> Engine<()> {
    let from = Rows { array: from, stride: each, offset: samples.start * each };
    device.copy_rows(samples.len(), each, from, Rows { array: to, stride: each, offset: 0 })
}

/// The way back of [`take`].
pub(super) fn put<D: Backend>(
    device: &D,
    each: usize,
    samples: &Range<usize>,
    from: &D::Array,
    to: &mut D::Array,
) -> Engine<()> {
    let to = Rows { array: to, stride: each, offset: samples.start * each };
    device.copy_rows(samples.len(), each, Rows { array: from, stride: each, offset: 0 }, to)
}

impl<D: Backend<Elem = f32>> Sliced<D> {
    /// Adds to arrays (with their lengths) what the slices contribute. `of_slice` adds to arrays of zeros what one slice does: its
    /// number among this rank's, and the places of its samples; a slice without samples contributes nothing.
    pub(super) fn add_slices(
        &self,
        sums: &mut [(&mut D::Array, usize)],
        of_slice: impl FnMut(&D, &mut Copies<D::Array>, usize, Range<usize>, &mut [D::Array]) -> Engine<()>,
    ) -> Engine<()> {
        self.noting(self.try_to_add_slices(sums, of_slice))
    }

    fn try_to_add_slices(
        &self,
        sums: &mut [(&mut D::Array, usize)],
        mut of_slice: impl FnMut(&D, &mut Copies<D::Array>, usize, Range<usize>, &mut [D::Array]) -> Engine<()>,
    ) -> Engine<()> {
        let device = &*self.device;
        let mut room = self.room();
        let Room { copies, stacks } = &mut *room;
        let lens: Vec<usize> = sums.iter().map(|(_, len)| *len).collect();
        let stack = stacks.entry(lens.clone()).or_default();
        let mut ready = Subtrees::default();
        let slices = self.cut.own().zip(self.cut.own_slices(self.batch()));
        for (number, (slice, samples)) in slices.enumerate() {
            let top = ready.len();
            if stack.len() == top {
                stack.push(lens.iter().map(|&len| device.zeros(len)).collect::<Engine<_>>()?);
            }
            for (array, &len) in stack[top].iter_mut().zip(&lens) {
                device.fill(len, 0.0, array)?;
            }
            if !samples.is_empty() {
                of_slice(device, copies, number, samples, &mut stack[top])?;
            }
            ready.push((slice, 1), |below| {
                let (lower, upper) = stack.split_at_mut(below + 1);
                let pairs = lower[below].iter_mut().zip(&upper[0]).zip(&lens);
                pairs.into_iter().try_for_each(|((sum, above), &len)| device.axpy(len, 1.0, above, sum))
            })?;
        }
        if self.ranks.size() > 1 {
            let mut mine = Vec::new();
            for arrays in &stack[..ready.len()] {
                for (array, &len) in arrays.iter().zip(&lens) {
                    let at = mine.len();
                    mine.resize(at + len, 0.0);
                    device.read(array, 0, &mut mine[at..])?;
                }
            }
            let all = self.total(lens.iter().sum(), &mine)?;
            let mut at = 0;
            for (array, &len) in stack[0].iter_mut().zip(&lens) {
                device.write(array, 0, &all[at..at + len])?;
                at += len;
            }
        }
        for ((sum, len), total) in sums.iter_mut().zip(&stack[0]) {
            device.axpy(*len, 1.0, total, sum)?;
        }
        Ok(())
    }

    /// The sums over all slices of `len` numbers that `of_slice` computes for the samples of one.
    pub(super) fn sum_slices(
        &self,
        len: usize,
        mut of_slice: impl FnMut(&D, Range<usize>, &mut [f64]) -> Engine<()>,
    ) -> Engine<Vec<f64>> {
        let mut leaves = vec![0.0; self.cut.own().len() * len];
        for (samples, sums) in self.cut.own_slices(self.batch()).zip(leaves.chunks_exact_mut(len)) {
            if !samples.is_empty() {
                self.noting(of_slice(&self.device, samples, sums))?;
            }
        }
        self.sum_leaves(len, &leaves)
    }

    /// The sums over all slices of `len` numbers, from those of this rank's slices.
    pub(super) fn sum_leaves(&self, len: usize, leaves: &[f64]) -> Engine<Vec<f64>> {
        let own = self.cut.own();
        let mut mine = Vec::new();
        for (first, count) in subtrees(own.clone()) {
            let under: Vec<_> = (first..first + count).map(|slice| (slice, 1)).collect();
            mine.extend(tree::total(&under, len, &leaves[(first - own.start) * len..]));
        }
        self.total(len, &mine)
    }

    /// The sum over all slices of `len` numbers, from the sums of this rank's subtrees.
    fn total<T: tree::Number + subdeq_ranks::Number>(&self, len: usize, mine: &[T]) -> Engine<Vec<T>> {
        let ranks = &self.ranks;
        let of_rank = |rank: usize| subtrees(ranks.share_of(rank, self.slices));
        let everyone = 0..ranks.size();
        let trees: Vec<_> = everyone.clone().flat_map(of_rank).collect();
        let counts: Vec<usize> = everyone.clone().map(|rank| of_rank(rank).len()).collect();
        if len < FEW || ranks.size() == 1 {
            let lens: Vec<usize> = counts.iter().map(|count| count * len).collect();
            return Ok(tree::total(&trees, len, &self.together(ranks.gather_parts(mine, &lens))?));
        }
        let parts: Vec<Range<usize>> = everyone.clone().map(|rank| ranks.share_of(rank, len)).collect();
        let pieces = parts.iter().flat_map(|part| mine.chunks_exact(len).map(|sums| &sums[part.clone()]));
        let sent: Vec<T> = pieces.flatten().copied().collect();
        let own = parts[ranks.rank()].len();
        let to: Vec<usize> = parts.iter().map(|part| counts[ranks.rank()] * part.len()).collect();
        let from: Vec<usize> = counts.iter().map(|count| count * own).collect();
        let sums = tree::total(&trees, own, &self.together(ranks.exchange(&sent, &to, &from))?);
        let lens: Vec<usize> = parts.iter().map(ExactSizeIterator::len).collect();
        self.together(ranks.gather_parts(&sums, &lens))
    }
}
