//! Sums, scaled sums and the like on plain slices.

use super::scratch::with_scratch;
use super::vectorised::vectorised;
use crate::Real;
use crate::cpu::isa::Isa;
use crate::cpu::team::Team;

/// Entries that one task handles.
pub(super) const CHUNK: usize = 1 << 14;
/// Rows that one task of a column sum handles.
const ROWS: usize = 256;

/// `y <- f(x, y)` entry by entry.
pub(super) fn combine<T: Real>(team: &Team, isa: Isa, x: &[T], y: &mut [T], f: impl Fn(T, T) -> T + Sync) {
    team.for_each(y.chunks_mut(CHUNK).zip(x.chunks(CHUNK)), |(y, x)| {
        vectorised(isa, || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = f(x, *y);
            }
        });
    });
}

/// `x <- f(x)` entry by entry.
pub(super) fn transform<T: Real>(team: &Team, isa: Isa, x: &mut [T], f: impl Fn(T) -> T + Sync) {
    team.for_each(x.chunks_mut(CHUNK), |x| {
        vectorised(isa, || {
            for x in x {
                *x = f(*x);
            }
        });
    });
}

/// Adds `b` to each row of `x`.
pub(super) fn add_to_rows<T: Real>(team: &Team, isa: Isa, cols: usize, b: &[T], x: &mut [T]) {
    if cols == 0 {
        return;
    }
    team.for_each(x.chunks_mut(ROWS * cols), |rows| {
        vectorised(isa, || {
            for row in rows.chunks_exact_mut(cols) {
                for (x, &b) in row.iter_mut().zip(b) {
                    *x += b;
                }
            }
        });
    });
}

/// `sums +=` the sum of the rows of `x`: blocks of rows, then the blocks in order.
pub(super) fn sum_rows<T: Real>(team: &Team, isa: Isa, cols: usize, x: &[T], sums: &mut [T]) {
    if cols == 0 || x.is_empty() {
        return;
    }
    let blocks = x.len().div_ceil(ROWS * cols);
    with_scratch(blocks * cols, |partial: &mut [T]| {
        team.for_each(partial.chunks_mut(cols).zip(x.chunks(ROWS * cols)), |(partial, rows)| {
            partial.fill(T::ZERO);
            vectorised(isa, || add_rows(cols, rows, partial));
        });
        add_rows(cols, partial, sums);
    });
}

#[inline(always)]
fn add_rows<T: Real>(cols: usize, rows: &[T], sums: &mut [T]) {
    for row in rows.chunks_exact(cols) {
        for (sum, &x) in sums.iter_mut().zip(row) {
            *sum += x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_their_definitions() {
        let (cols, rows) = (6, 2 * ROWS + 3);
        let x: Vec<f64> = (0..rows * cols).map(|i| (i % 7) as f64).collect();
        let team = Team::new(1).unwrap();
        let mut sums = vec![1.0; cols];
        sum_rows(&team, Isa::detect(), cols, &x, &mut sums);
        for (col, &sum) in sums.iter().enumerate() {
            assert_eq!(sum, 1.0 + (0..rows).map(|r| x[r * cols + col]).sum::<f64>());
        }
    }
}
