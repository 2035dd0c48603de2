//! A fixed division of rows into chunks of about equal work.
//!
//! The division depends on the matrix only, never on the number of threads, and partial results are merged in the
//! order of the chunks: so every sum has the same bits on every machine with the same instructions.

use std::ops::Range;

use rayon::prelude::*;

use crate::cpu::Cpu;
use crate::cpu::simd::SimdReal;

/// Work of a row besides its entries, in entries.
const ROW_WORK: usize = 4;
/// Chunks of a large matrix: enough to balance the threads of any machine, few enough to merge quickly.
const MOST_CHUNKS: usize = 64;
/// Smallest work of a chunk, in entries: below it, handing a chunk to a thread costs more than the chunk.
const LEAST_WORK: usize = 8192;

/// Divides rows that start at `starts[i]` and end at `starts[i + 1]` into consecutive ranges.
pub(crate) fn divide(starts: &[usize]) -> Vec<Range<usize>> {
    divide_into(starts, MOST_CHUNKS, LEAST_WORK)
}

/// The same of so many rows, of which the first `row` have `before(row)` entries.
pub(crate) fn divide_by(rows: usize, before: impl Fn(usize) -> usize) -> Vec<Range<usize>> {
    divide_rows(rows, before, MOST_CHUNKS, LEAST_WORK)
}

/// The same into at most `most` ranges of at least `least` work each.
pub(crate) fn divide_into(starts: &[usize], most: usize, least: usize) -> Vec<Range<usize>> {
    divide_rows(starts.len() - 1, |row| starts[row] - starts[0], most, least)
}

fn divide_rows(rows: usize, before: impl Fn(usize) -> usize, most: usize, least: usize) -> Vec<Range<usize>> {
    let work = |row: usize| before(row) + ROW_WORK * row;
    let target = (work(rows) / most.max(1)).max(least).max(1);
    let mut chunks = Vec::with_capacity(most + 1);
    let mut first = 0;
    for row in 1..=rows {
        if work(row) - work(first) >= target || row == rows {
            chunks.push(first..row);
            first = row;
        }
    }
    chunks
}

/// Calls `work(k, &mut states[k])` for every chunk `k`, on the threads of `cpu`.
pub(crate) fn for_each_chunk<T: SimdReal, S: Send>(
    cpu: &Cpu<T>,
    states: &mut [S],
    work: impl Fn(usize, &mut S) + Sync + Send,
) {
    if cpu.threads() == 1 || states.len() <= 1 {
        states.iter_mut().enumerate().for_each(|(k, state)| work(k, state));
    } else {
        cpu.install(|| {
            states.par_iter_mut().enumerate().with_max_len(1).for_each(|(k, state)| work(k, state));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::divide_into;

    #[test]
    fn chunks_cover_the_rows_in_order() {
        let starts: Vec<usize> = (0..1000)
            .map(|row: usize| row * (row % 7))
            .scan(0, |sum, x| {
                *sum += x;
                Some(*sum)
            })
            .collect();
        for most in [1, 2, 7, 64] {
            let chunks = divide_into(&starts, most, 1);
            assert!(chunks.len() <= most + 1);
            assert_eq!(chunks.first().map(|c| c.start), Some(0));
            assert_eq!(chunks.last().map(|c| c.end), Some(999));
            assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
        assert!(divide_into(&[0], 4, 1).is_empty());
    }
}
