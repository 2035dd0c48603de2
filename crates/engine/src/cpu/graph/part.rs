//! One process's part of a graph that several share: its rows, and what they gather from those of others.
//!
//! Blocks of rows whose columns are all its own ("interior") gather from its own state. The others ("border") gather from a
//! patch: a copy of the rows that they need, their own ones and those that other processes send while interior blocks are
//! worked on. Every row is added up by its owner in the order of its columns, so that bits do not depend on the partition.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::company::{Company, Division, gather_alike};
use super::propagate::Source;
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;
use crate::network::Csr;
use crate::{EngineError, Result};

/// What a process knows of its own rows and of its neighbours.
#[derive(Clone)]
pub(crate) struct Part<T> {
    /// Which part this is of all that were ever made here: its column numbers mean nothing to another.
    pub id: u64,
    pub company: Arc<dyn Company<T>>,
    /// Its rows, among those of the whole graph.
    pub rows: Range<usize>,
    /// Rows of the whole graph.
    pub nodes: usize,
    /// How many blocks each process has.
    blocks: Vec<usize>,
    /// Which of its own gather from the patch.
    border: Vec<bool>,
    /// The rows of the patch, ascending, by their numbers in the whole graph.
    patch: Vec<u32>,
    /// Where its own rows are in the patch.
    own: Range<usize>,
    /// Own rows that others need, from 0.
    wanted: Vec<u32>,
    /// Who needs which of them.
    give: Vec<(usize, Range<usize>)>,
    /// Which rows of the patch come from whom.
    take: Vec<(usize, Range<usize>)>,
}

impl<T> std::fmt::Debug for Part<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rows {:?} of {}", self.rows, self.nodes)
    }
}

/// Numbers of parts, from 1 on.
static PARTS: AtomicU64 = AtomicU64::new(1);

/// Room for what travels.
#[derive(Default)]
pub(crate) struct Halo<T> {
    give: Vec<T>,
    patch: Vec<T>,
}

/// A set of rows that knows the place of each among its members.
struct RowSet {
    words: Vec<u64>,
    before: Vec<u32>,
}

impl RowSet {
    fn new(rows: usize) -> RowSet {
        RowSet { words: vec![0; rows / 64 + 1], before: Vec::new() }
    }

    fn insert(&mut self, row: u32) {
        self.words[row as usize / 64] |= 1 << (row % 64);
    }

    fn members(&mut self) -> Vec<u32> {
        let mut members = Vec::new();
        for (word, &bits) in self.words.iter().enumerate() {
            self.before.push(members.len() as u32);
            members.extend((0..64).filter(|bit| (bits >> bit) & 1 == 1).map(|bit| (64 * word) as u32 + bit));
        }
        members
    }

    fn place(&self, row: u32) -> u32 {
        let (word, below) = (row as usize / 64, (1 << (row % 64)) - 1);
        self.before[word] + (self.words[word] & below).count_ones()
    }
}

/// The column numbers of a block, as those of the whole graph.
#[derive(Clone, Copy)]
pub(crate) enum Names<'a> {
    /// Counted from this row on.
    From(u32),
    /// Places in a list of rows.
    Listed(&'a [u32]),
}

impl Names<'_> {
    /// Some columns as those of the whole graph.
    #[inline(always)]
    pub fn of<'a>(&self, columns: &'a [u32], named: &'a mut [u32]) -> &'a [u32] {
        match self {
            Names::From(0) => return columns,
            Names::From(first) => {
                named.iter_mut().zip(columns).for_each(|(name, column)| *name = first + column)
            }
            Names::Listed(rows) => {
                named.iter_mut().zip(columns).for_each(|(name, &column)| *name = rows[column as usize]);
            }
        }
        &named[..columns.len()]
    }
}

/// Gathers in the blocks that are named, from where their columns lie.
type Gathering<'a, T> = dyn FnMut(Source<'_, T>, &(dyn Fn(usize) -> bool + Sync)) + Send + 'a;

impl<T: SimdReal> Part<T> {
    /// Renumbers the columns of a process's rows, which are given as those of the whole graph, and agrees with the others on what
    /// travels.
    pub fn new(company: Arc<dyn Company<T>>, division: &Division, matrix: &mut Csr<T>) -> Result<Self> {
        division.check()?;
        let (rank, size) = (company.rank(), company.size());
        let rows = division.rows_of(rank, size);
        let blocks = &division.blocks[division.blocks_of(rank, size)];
        let nodes = division.nodes();
        if (matrix.rows, matrix.cols) != (rows.len(), nodes) {
            return Err(EngineError::Invalid(format!(
                "rank {rank} of {size} has {} rows of {} columns, its part are rows {} to {} of {nodes}",
                matrix.rows, matrix.cols, rows.start, rows.end
            )));
        }
        let is_own = |column: u32| rows.contains(&(column as usize));
        let entries = |block: &Range<usize>| {
            matrix.starts[block.start - rows.start]..matrix.starts[block.end - rows.start]
        };
        let border: Vec<bool> = blocks
            .iter()
            .map(|block| !matrix.columns[entries(block)].iter().all(|&column| is_own(column)))
            .collect();
        let mut needed = RowSet::new(nodes);
        for (block, _) in blocks.iter().zip(&border).filter(|(_, border)| **border) {
            matrix.columns[entries(block)].iter().for_each(|&column| needed.insert(column));
        }
        let patch = needed.members();
        for (block, &border) in blocks.iter().zip(&border) {
            let range = entries(block);
            for column in &mut matrix.columns[range] {
                *column = if border { needed.place(*column) } else { *column - rows.start as u32 };
            }
        }
        matrix.cols = rows.len().max(patch.len());
        let place = |row: usize| patch.partition_point(|&found| (found as usize) < row);
        let span = |rank: usize| {
            let rows = division.rows_of(rank, size);
            place(rows.start)..place(rows.end)
        };
        let take: Vec<(usize, Range<usize>)> = (0..size)
            .filter(|&other| other != rank)
            .map(|other| (other, span(other)))
            .filter(|(_, span)| !span.is_empty())
            .collect();
        let wishes =
            (0..size).map(|other| if other == rank { Vec::new() } else { patch[span(other)].to_vec() });
        let mut wanted = Vec::new();
        let mut give = Vec::new();
        for (other, rows_wanted) in company.lists(wishes.collect()).into_iter().enumerate() {
            let begin = wanted.len();
            wanted.extend(rows_wanted.iter().map(|&row| row - rows.start as u32));
            if wanted.len() > begin {
                give.push((other, begin..wanted.len()));
            }
        }
        failed(&*company)?;
        let (id, own) = (PARTS.fetch_add(1, Ordering::Relaxed), span(rank));
        let blocks = (0..size).map(|rank| division.blocks_of(rank, size).len()).collect();
        Ok(Part { id, company, rows, nodes, blocks, border, patch, own, wanted, give, take })
    }

    /// Rows that come from others in one exchange.
    pub fn halo(&self) -> usize {
        self.patch.len() - self.own.len()
    }

    /// Rows that go to others in one exchange.
    pub fn given(&self) -> usize {
        self.wanted.len()
    }

    /// What the column numbers of a block mean.
    pub fn names(&self, block: usize) -> Names<'_> {
        if self.border[block] { Names::Listed(&self.patch) } else { Names::From(self.rows.start as u32) }
    }

    /// Has `work` gather from `x` in all blocks: in interior ones while rows travel, then in the others.
    pub fn gather(&self, halo: &mut Halo<T>, stride: usize, x: &[T], work: &mut Gathering<'_, T>) {
        let row = |row: u32| &x[row as usize * stride..][..stride];
        halo.give.clear();
        self.wanted.iter().for_each(|&wanted| halo.give.extend_from_slice(row(wanted)));
        halo.patch.resize(self.patch.len() * stride, T::ZERO);
        for place in self.own.clone() {
            let own = row(self.patch[place] - self.rows.start as u32);
            halo.patch[place * stride..][..stride].copy_from_slice(own);
        }
        let numbers = |rows: &Range<usize>| rows.start * stride..rows.end * stride;
        let give: Vec<(usize, &[T])> =
            self.give.iter().map(|(rank, rows)| (*rank, &halo.give[numbers(rows)])).collect();
        let mut take = Vec::with_capacity(self.take.len());
        let (mut rest, mut at) = (&mut halo.patch[..], 0);
        for (rank, rows) in &self.take {
            let (_, from_here) = rest.split_at_mut((rows.start - at) * stride);
            let (received, beyond) = from_here.split_at_mut(rows.len() * stride);
            take.push((*rank, received));
            (rest, at) = (beyond, rows.end);
        }
        let own = Source { gathered: x, own: None, slopes: None };
        self.company.exchange(&give, &mut take, &mut || work(own, &|block| !self.border[block]));
        let patch = Source { gathered: &halo.patch, own: None, slopes: None };
        work(patch, &|block| self.border[block]);
    }

    /// What all blocks of all processes measured, in their order.
    pub fn merge(&self, blocks: impl Iterator<Item = Distance>) -> Distance {
        let mine: Vec<f64> = blocks.flat_map(numbers).collect();
        let mut total = Distance::EMPTY;
        self.of_blocks(&mine, 4).chunks_exact(4).for_each(|part| total.merge(distance(part)));
        total
    }

    /// The sums over all blocks of all processes, in their order, of what each block has: as many numbers as there are sums.
    pub fn add_up<'a>(&self, blocks: impl Iterator<Item = &'a [f64]>, sums: &mut [f64]) {
        let mine: Vec<f64> = blocks.flatten().copied().collect();
        sums.fill(0.0);
        for block in self.of_blocks(&mine, sums.len()).chunks_exact(sums.len()) {
            sums.iter_mut().zip(block).for_each(|(sum, part)| *sum += part);
        }
    }

    /// The numbers of all blocks, so many for each.
    fn of_blocks(&self, mine: &[f64], each: usize) -> Vec<f64> {
        let counts: Vec<usize> = self.blocks.iter().map(|blocks| blocks * each).collect();
        self.company.gather(mine, &counts)
    }

    /// The sums of all processes, place by place.
    pub fn sum(&self, mine: &mut [f64]) {
        let gathered = gather_alike(&*self.company, mine);
        mine.fill(0.0);
        for other in gathered.chunks_exact(mine.len()) {
            mine.iter_mut().zip(other).for_each(|(sum, part)| *sum += part);
        }
    }

    /// The largest of all processes, place by place.
    pub fn largest(&self, mine: &mut [T]) {
        let numbers: Vec<f64> = mine.iter().map(|x| x.to_f64()).collect();
        for other in gather_alike(&*self.company, &numbers).chunks_exact(mine.len()) {
            mine.iter_mut().zip(other).for_each(|(top, &other)| *top = top.max(T::from_f64(other)));
        }
    }

    /// A distance that one process after the other goes on with.
    pub fn relay(&self, mut go_on: impl FnMut(&mut Distance)) -> Distance {
        let mut baton = numbers(Distance::EMPTY);
        self.company.relay(&mut baton, &mut |baton| {
            let mut so_far = distance(baton);
            go_on(&mut so_far);
            baton.copy_from_slice(&numbers(so_far));
        });
        distance(&baton)
    }
}

/// Whether a message was lost, as an error.
pub(crate) fn failed<T>(company: &dyn Company<T>) -> Result<()> {
    company.failure().map_or(Ok(()), |why| Err(EngineError::Invalid(why)))
}

fn numbers(distance: Distance) -> [f64; 4] {
    [distance.difference, distance.size, distance.high, distance.low]
}

fn distance(numbers: &[f64]) -> Distance {
    Distance { difference: numbers[0], size: numbers[1], high: numbers[2], low: numbers[3] }
}
