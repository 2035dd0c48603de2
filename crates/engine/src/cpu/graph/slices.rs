//! Gradients of the encoder over slices of rows that several processes share.
//!
//! A slice that lies across a boundary is added up by one process after the other, each going on where the one before ended; all
//! others are added up at the same time. In the end every process has every slice's sum, with the bits that one process gives it.

use std::ops::Range;
use std::sync::Arc;

use super::chunks::for_each_chunk;
use super::company::{Company, Division};
use super::encoder::Partial;
use crate::cpu::Cpu;
use crate::cpu::simd::SimdReal;

/// Who works on which slice.
#[derive(Clone)]
pub(super) struct SharedSlices<T> {
    company: Arc<dyn Company<T>>,
    /// This process's rows.
    rows: Range<usize>,
    /// The process that ends each slice.
    owners: Vec<usize>,
}

impl<T: SimdReal> SharedSlices<T> {
    pub fn new(company: Arc<dyn Company<T>>, division: &Division) -> Self {
        let size = company.size();
        let ends = |slice: &Range<usize>| {
            (0..size).find(|&rank| division.rows_of(rank, size).contains(&(slice.end - 1))).unwrap_or(0)
        };
        let rows = division.rows_of(company.rank(), size);
        Self { rows, owners: division.slices.iter().map(ends).collect(), company }
    }

    /// Has `work` add up each slice's rows that are here, going on with what is there if told to, and then shares all sums.
    pub fn add_up(
        &self,
        cpu: &Cpu<T>,
        slices: &[Range<usize>],
        partials: &mut [Partial<T>],
        work: impl Fn(&mut Partial<T>, bool) + Sync + Send,
    ) {
        let (mut head, mut tail, mut rest) = (None, None, Vec::new());
        for (slice, partial) in
            slices.iter().zip(&mut *partials).filter(|(_, partial)| !partial.rows.is_empty())
        {
            let (begun_before, goes_on) = (slice.start < self.rows.start, slice.end > self.rows.end);
            match (begun_before, goes_on) {
                (true, true) => {
                    // One slice is all that is here.
                    self.pass(None, Some(&mut *partial), &mut || ());
                    work(partial, true);
                    self.pass(Some(partial), None, &mut || ());
                }
                (true, false) => head = Some(partial),
                (false, true) => tail = Some(partial),
                (false, false) => rest.push(partial),
            }
        }
        if let Some(tail) = &mut tail {
            work(tail, false);
        }
        self.pass(tail.as_deref(), head.as_deref_mut(), &mut || {
            for_each_chunk(cpu, &mut rest, |_, partial| work(partial, false));
        });
        if let Some(head) = head {
            work(head, true);
        }
        for (partial, &owner) in partials.iter_mut().zip(&self.owners) {
            partial.sums_mut().into_iter().for_each(|sum| self.company.broadcast(owner, sum.padded_mut()));
        }
    }

    /// Gives sums to the process after this one and takes some from the one before.
    fn pass(
        &self,
        give: Option<&Partial<T>>,
        take: Option<&mut Partial<T>>,
        meanwhile: &mut (dyn FnMut() + Send),
    ) {
        let rank = self.company.rank();
        let given = give.into_iter().flat_map(Partial::sums).map(|sum| (rank + 1, sum.padded()));
        let taken = take.into_iter().flat_map(Partial::sums_mut).map(|sum| (rank - 1, sum.padded_mut()));
        self.company.exchange(&given.collect::<Vec<_>>(), &mut taken.collect::<Vec<_>>(), meanwhile);
    }
}
