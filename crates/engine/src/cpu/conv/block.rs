//! The register-blocked product that the direct and the Winograd kernels share.

use crate::cpu::simd::Lanes;

/// Outputs of one plane in blocks of a few vectors: first vector and number of vectors of each block.
///
/// With 32 registers up to 4 vectors at a time, with 16 registers up to 2, so that together with the rows of
/// [`with_block`] the sums fill the register file.
pub fn vector_blocks<V: Lanes>(outputs: usize) -> impl Iterator<Item = (usize, usize)> {
    let vectors = outputs.div_ceil(V::N);
    let mut first = 0;
    std::iter::from_fn(move || {
        let left = vectors - first;
        let count = match (V::N, left) {
            (_, 0) => return None,
            (16, 4) => 4,
            (16, _) => left.min(3),
            _ => left.min(2),
        };
        first += count;
        Some((first - count, count))
    })
}

/// Calls `$function::<V, ROWS, VECTORS>` with the number of rows that suits `$vectors`.
macro_rules! with_block {
    ($lanes:ident, $vectors:expr, $function:ident($($argument:expr),* $(,)?)) => {
        if <$lanes as Lanes>::N == 16 {
            match $vectors {
                1 => $function::<$lanes, 14, 1>($($argument),*),
                2 => $function::<$lanes, 12, 2>($($argument),*),
                3 => $function::<$lanes, 8, 3>($($argument),*),
                _ => $function::<$lanes, 6, 4>($($argument),*),
            }
        } else {
            match $vectors {
                1 => $function::<$lanes, 8, 1>($($argument),*),
                _ => $function::<$lanes, 6, 2>($($argument),*),
            }
        }
    };
}
pub(super) use with_block;

/// The most rows of any block.
pub const MAX_ROWS: usize = 14;

/// Where the factors of a product lie: numbers from one row, resp. one summand, to the next.
#[derive(Clone, Copy)]
pub struct Strides {
    /// Of the left factor, from row to row.
    pub row: usize,
    /// Of the left factor, from summand to summand.
    pub depth: usize,
    /// Of the right factor, from summand to summand.
    pub right: usize,
}

/// `sums[r][v] += sum over k < depth of left[r, k] * right[k][v]`, `v` counting vectors.
///
/// # Safety
/// `left` must be good for reading entry `(ROWS - 1) * row + (depth - 1) * strides.depth`, and `right` for `VECTORS`
/// vectors from entry `(depth - 1) * strides.right`.
#[inline(always)]
#[allow(clippy::needless_range_loop)]
pub unsafe fn accumulate<V: Lanes, const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[V; VECTORS]; ROWS],
    left: *const V::Elem,
    right: *const V::Elem,
    depth: usize,
    strides: Strides,
) {
    // Plain loops: closures would not take on the instructions of the entry point.
    for k in 0..depth {
        let mut vectors = [V::zero(); VECTORS];
        for v in 0..VECTORS {
            // SAFETY: inside what the caller vouches for.
            vectors[v] = unsafe { read(right.add(k * strides.right + v * V::N)) };
        }
        for row in 0..ROWS {
            // SAFETY: inside what the caller vouches for.
            let x = V::splat(unsafe { *left.add(row * strides.row + k * strides.depth) });
            for v in 0..VECTORS {
                sums[row][v] = x.fma(vectors[v], sums[row][v]);
            }
        }
    }
}

/// A vector from memory.
///
/// # Safety
/// `from` must be good for reading `V::N` numbers.
#[inline(always)]
pub unsafe fn read<V: Lanes>(from: *const V::Elem) -> V {
    // SAFETY: passed on to the caller.
    V::load(unsafe { std::slice::from_raw_parts(from, V::N) })
}

/// A vector from the start of a slice, zeros where it ends early.
#[inline(always)]
pub fn load_lanes<V: Lanes>(from: &[V::Elem]) -> V {
    if from.len() >= V::N { V::load(from) } else { V::load_tail(from) }
}

/// A vector to the start of a slice, as far as it goes.
#[inline(always)]
pub fn store_lanes<V: Lanes>(vector: V, to: &mut [V::Elem]) {
    if to.len() >= V::N { vector.store(to) } else { vector.store_tail(to) }
}
