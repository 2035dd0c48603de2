//! One row of a sparse matrix times a dense one: the inner loop of everything on graphs.

use crate::cpu::Isa;
use crate::cpu::simd::{Lanes, SimdReal};

/// A dense matrix of which rows are gathered.
#[derive(Clone, Copy)]
pub(crate) struct Gathered<'a, T> {
    numbers: &'a [T],
    stride: usize,
    /// Ask for rows before they are needed; pays once the matrix does not fit the second-level cache.
    prefetch: bool,
}

/// Bytes up to which a matrix counts as cached; beyond, rows are asked for in advance.
const CACHED: usize = 1 << 22;
/// How many entries ahead a row is asked for.
const AHEAD: usize = 12;

impl<'a, T: SimdReal> Gathered<'a, T> {
    /// `numbers` must hold whole rows of `stride` numbers.
    pub fn new(numbers: &'a [T], stride: usize) -> Self {
        Self { numbers, stride, prefetch: std::mem::size_of_val(numbers) > CACHED }
    }

    /// `out = sum of values[k] * row columns[k]`, `k` in `begin..end`; `out += ` that with `add`.
    ///
    /// # Safety
    /// Every column must be the number of a row, `stride` a multiple of the vector length and the length of `out`.
    #[inline(always)]
    pub unsafe fn row_product<V: Lanes<Elem = T>>(
        &self,
        columns: &[u32],
        values: &[T],
        (begin, end): (usize, usize),
        out: &mut [T],
        add: bool,
    ) {
        let ahead = &columns[begin..];
        let (columns, values) = (&columns[begin..end], &values[begin..end]);
        let mut at = 0;
        // SAFETY: the caller's promise; blocks stay within a row.
        unsafe {
            while at + 4 * V::N <= self.stride {
                self.block::<V, 4, 2>(columns, values, ahead, at, out, add);
                at += 4 * V::N;
            }
            while at + 2 * V::N <= self.stride {
                self.block::<V, 2, 2>(columns, values, ahead, at, out, add);
                at += 2 * V::N;
            }
            while at + V::N <= self.stride {
                self.block::<V, 1, 4>(columns, values, ahead, at, out, add);
                at += V::N;
            }
        }
    }

    /// `B` vectors of the row from `at` on. `U` entries at a time go to sums of their own, so that no addition waits
    /// for the one before.
    ///
    /// # Safety
    /// As for `row_product`, and `at + B * N <= stride`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments, clippy::needless_range_loop)]
    unsafe fn block<V: Lanes<Elem = T>, const B: usize, const U: usize>(
        &self,
        columns: &[u32],
        values: &[T],
        ahead: &[u32],
        at: usize,
        out: &mut [T],
        add: bool,
    ) {
        let mut sums = [[V::zero(); B]; U];
        // Counted by hand: iterators over pairs of chunks are not always inlined here, and then the sums leave the
        // registers.
        let len = columns.len().min(values.len());
        let mut k = 0;
        while k + U <= len {
            if self.prefetch && k + AHEAD + U <= ahead.len() {
                for u in 0..U {
                    self.prefetch_row(ahead[k + AHEAD + u], at, B * V::N);
                }
            }
            for u in 0..U {
                // SAFETY: `k + u < len`; the caller's promise.
                unsafe {
                    let (column, value) = (*columns.get_unchecked(k + u), *values.get_unchecked(k + u));
                    self.add::<V, B>(column, value, at, &mut sums[u]);
                }
            }
            k += U;
        }
        while k < len {
            // SAFETY: as above.
            unsafe {
                self.add::<V, B>(*columns.get_unchecked(k), *values.get_unchecked(k), at, &mut sums[0])
            };
            k += 1;
        }
        for b in 0..B {
            let mut total = sums[0][b];
            for sum in &sums[1..] {
                total = total + sum[b];
            }
            let out = &mut out[at + b * V::N..];
            (if add { V::load(out) + total } else { total }).store(out);
        }
    }

    /// # Safety
    /// As for `block`.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // as above
    unsafe fn add<V: Lanes<Elem = T>, const B: usize>(
        &self,
        row: u32,
        value: T,
        at: usize,
        sums: &mut [V; B],
    ) {
        let start = row as usize * self.stride + at;
        debug_assert!(start + B * V::N <= self.numbers.len());
        // SAFETY: `row` is the number of a row and the block lies within a row.
        let numbers = unsafe { std::slice::from_raw_parts(self.numbers.as_ptr().add(start), B * V::N) };
        let value = V::splat(value);
        for b in 0..B {
            sums[b] = value.fma(V::load(&numbers[b * V::N..]), sums[b]);
        }
    }

    /// Asks for `len` numbers of a row from `at` on.
    #[inline(always)]
    fn prefetch_row(&self, row: u32, at: usize, len: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let line = 64 / size_of::<T>();
            let start = self.numbers.as_ptr().wrapping_add(row as usize * self.stride + at);
            let mut k = 0;
            while k < len {
                // SAFETY: a hint touches nothing, whatever the address.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(k).cast()) };
                k += line;
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (row, at, len);
    }
}

/// The instruction set for rows of `stride` numbers: half a vector per entry would be wasted on rows of eight.
pub(crate) fn isa_for(isa: Isa, stride: usize) -> Isa {
    if stride.is_multiple_of(16) { isa } else { isa.without_avx512() }
}
