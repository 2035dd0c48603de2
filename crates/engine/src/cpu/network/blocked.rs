//! Products of matrices in blocks that stay in the first-level cache, with all sums of a tile in registers.

#![allow(clippy::needless_range_loop)] // plain loops over registers keep the sums there

use crate::cpu::isa::Vectorised;
use crate::cpu::linear::panels;
use crate::cpu::simd::{Lanes, SimdReal, get, put};

/// Rows of the result in a tile.
const GROUP: usize = 4;
/// Terms of the sums that are added before the next rows have their turn: so many rows of a panel of `b` (6 vectors of 64
/// bytes) fit into the cache.
const DEPTH: usize = 96;

/// `c[r][j] += sum over k of a[r * row + k * column] * b[k * b_stride + j]`, for some rows `c` of `width` numbers.
///
/// An entry of `c` is summed in the order of `k`, whatever the number of rows: it depends on its own row of `a` only.
pub(super) struct AddProduct<'a, T> {
    pub a: &'a [T],
    /// From a row of `a` to the next.
    pub row: usize,
    /// From a column of `a` to the next.
    pub column: usize,
    pub b: &'a [T],
    /// From a row of `b` to the next.
    pub b_stride: usize,
    /// Columns of `a`, rows of `b`.
    pub depth: usize,
    pub width: usize,
    pub c: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for AddProduct<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(mut self) {
        let Self { row, column, depth, width, b_stride, .. } = self;
        if depth == 0 || width == 0 || self.c.len() < width {
            return;
        }
        let rows = self.c.len() / width;
        // Entry `(i, j)` at these strides; none where it lies beyond the address space.
        let entry = |(i, row): (usize, usize), (j, column): (usize, usize)| {
            i.checked_mul(row)?.checked_add(j.checked_mul(column)?)
        };
        assert!(entry((rows - 1, row), (depth - 1, column)).is_some_and(|last| last < self.a.len()));
        assert!(width <= b_stride);
        assert!(entry((depth - 1, b_stride), (width - 1, 1)).is_some_and(|last| last < self.b.len()));
        let mut start = 0;
        while start < depth {
            let terms = (start, DEPTH.min(depth - start));
            for (first, vectors) in panels::<V>(width.div_ceil(V::N)) {
                let at = first * V::N;
                let mut first_row = 0;
                while first_row < rows {
                    // SAFETY: the assertions above cover all indices of all tiles.
                    unsafe {
                        match vectors {
                            1 => self.tile::<V, 1>(terms, at, first_row),
                            2 => self.tile::<V, 2>(terms, at, first_row),
                            3 => self.tile::<V, 3>(terms, at, first_row),
                            4 => self.tile::<V, 4>(terms, at, first_row),
                            5 => self.tile::<V, 5>(terms, at, first_row),
                            _ => self.tile::<V, 6>(terms, at, first_row),
                        }
                    }
                    first_row += GROUP;
                }
            }
            start += DEPTH;
        }
    }
}

impl<T: SimdReal> AddProduct<'_, T> {
    /// Up to [`GROUP`] rows and `VECTORS` vectors of columns, of which the last may reach beyond `width`.
    ///
    /// # Safety
    /// `a` must hold the entries of the rows of `c` at the `terms` (first, number), and `b` those rows.
    #[inline(always)]
    unsafe fn tile<V: Lanes<Elem = T>, const VECTORS: usize>(
        &mut self,
        (start, terms): (usize, usize),
        at: usize,
        first_row: usize,
    ) {
        let count = GROUP.min(self.c.len() / self.width - first_row);
        let tail = (self.width - at - (VECTORS - 1) * V::N).min(V::N);
        let len = (VECTORS - 1) * V::N + tail;
        let mut sums = [[V::zero(); VECTORS]; GROUP];
        // Rows beyond `count` repeat the last one; their sums are dropped.
        let mut left = [self.a.as_ptr(); GROUP];
        for r in 0..GROUP {
            let row = first_row + r.min(count - 1);
            left[r] = left[r].wrapping_add(row * self.row + start * self.column);
            let old = &self.c[row * self.width + at..][..len];
            for v in 0..VECTORS {
                sums[r][v] = get::<V>(old, v * V::N, if v + 1 < VECTORS { V::N } else { tail });
            }
        }
        for k in 0..terms {
            // SAFETY: row `start + k` of `b` from `at` on, as the caller vouches.
            let right = unsafe {
                std::slice::from_raw_parts(self.b.as_ptr().add((start + k) * self.b_stride + at), len)
            };
            let mut vectors = [V::zero(); VECTORS];
            for v in 0..VECTORS {
                vectors[v] = get::<V>(right, v * V::N, if v + 1 < VECTORS { V::N } else { tail });
            }
            for r in 0..GROUP {
                // SAFETY: an entry of a row of `a`, as the caller vouches.
                let x = V::splat(unsafe { *left[r].add(k * self.column) });
                for v in 0..VECTORS {
                    sums[r][v] = x.fma(vectors[v], sums[r][v]);
                }
            }
        }
        for r in 0..count {
            let new = &mut self.c[(first_row + r) * self.width + at..][..len];
            for v in 0..VECTORS {
                put(sums[r][v], new, v * V::N, if v + 1 < VECTORS { V::N } else { tail });
            }
        }
    }
}

/// `transposed[k * stride + r] = rows[r * len + k]`, in tiles that both sides read and write in whole cache lines.
pub(super) struct Transpose<'a, T> {
    /// Rows of `len` numbers.
    pub rows: &'a [T],
    pub len: usize,
    /// The first of the columns that are wanted; as many as `transposed` has rows.
    pub first: usize,
    pub transposed: &'a mut [T],
    /// From a row of `transposed` to the next.
    pub stride: usize,
}

impl<T: SimdReal> Vectorised<T> for Transpose<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        const TILE: usize = 16;
        let Self { rows, len, first, transposed, stride } = self;
        for (block, transposed) in transposed.chunks_mut(TILE * stride).enumerate() {
            let columns = transposed.len() / stride;
            let first = first + block * TILE;
            for (block, rows) in rows.chunks(TILE * len).enumerate() {
                let at = block * TILE;
                let mut tile = [[T::ZERO; TILE]; TILE];
                for (r, row) in rows.chunks_exact(len).enumerate() {
                    for (k, &x) in row[first..first + columns].iter().enumerate() {
                        tile[k][r] = x;
                    }
                }
                let count = rows.len() / len;
                for (tile, transposed) in tile.iter().zip(transposed.chunks_exact_mut(stride)) {
                    transposed[at..at + count].copy_from_slice(&tile[..count]);
                }
            }
        }
    }
}
