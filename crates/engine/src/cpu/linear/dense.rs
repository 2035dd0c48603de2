//! Matrix products with the states of a block of samples.
//!
//! Weights are packed as panels: `[panel][input entry][vectors of outputs]`, so that the inner loop reads them in a
//! straight line. A group of up to four samples goes through a panel together, its sums in registers: with 512-bit vectors
//! 4 samples x 6 vectors, 24 sums, 10 loads for 24 products. A sample's sums are formed in the same order in every group.

#![allow(clippy::needless_range_loop)] // plain loops over registers, see `multiply_add`

use super::Emit;
#[cfg(target_arch = "x86_64")]
use super::tiled::{self, Tiled, TiledScratch};
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Grade;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::same::{is_f32, same, same_mut};
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal, get, put};
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::{AmxProof, Passes};

/// Samples that go through a panel together.
const GROUP: usize = 4;

/// A packed matrix of `outputs * n` rows and `inputs * n` columns.
pub(crate) struct Dense<T: SimdReal> {
    isa: Isa,
    n: usize,
    inputs: usize,
    outputs: usize,
    weights: Buffer<T>,
    /// The same in bf16, for what need not be computed to full accuracy.
    #[cfg(target_arch = "x86_64")]
    tiled: Option<Tiled>,
}

/// What a product works in; one per thread.
pub(crate) struct DenseScratch<T: SimdReal> {
    /// Rows of outputs of one group of samples.
    rows: Buffer<T>,
    /// How accurate the products have to be, where there is a choice.
    grade: Option<Grade>,
    #[cfg(target_arch = "x86_64")]
    tiled: TiledScratch,
}

impl<T: SimdReal> DenseScratch<T> {
    /// How accurate the products have to be, where there is a choice.
    pub fn grade(&mut self) -> Option<&mut Grade> {
        self.grade.as_mut()
    }
}

/// The most vectors in a panel: what leaves registers for the weights and a factor.
#[inline(always)]
const fn panel_vectors<V: Lanes>() -> usize {
    if V::N == 16 { 6 } else { 3 }
}

/// The panels of a row of `vectors` vectors: first vector and number of vectors of each, as even as possible.
#[inline(always)]
pub(crate) fn panels<V: Lanes>(vectors: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = vectors.div_ceil(panel_vectors::<V>()).max(1);
    (0..count).map(move |i| {
        let (first, next) = (i * vectors / count, (i + 1) * vectors / count);
        (first, next - first)
    })
}

impl<T: SimdReal> Dense<T> {
    pub fn new(isa: Isa, n: usize, inputs: usize, outputs: usize) -> Self {
        let lanes = isa.dispatch::<T, _>(LaneCount);
        let weights = Buffer::zeros(inputs * n * outputs * n.next_multiple_of(lanes));
        Self {
            isa,
            n,
            inputs,
            outputs,
            weights,
            #[cfg(target_arch = "x86_64")]
            tiled: AmxProof::of(isa)
                .filter(|_| is_f32::<T>())
                .and_then(|proof| Tiled::new(proof, n, inputs, outputs)),
        }
    }

    /// Packs blocks of `n x n`, row = output; block `o * inputs + i` leads from input `i` to output `o`.
    pub fn pack(&mut self, blocks: &[&[T]]) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiled) = &mut self.tiled {
            let blocks: Vec<&[f32]> = blocks.iter().filter_map(|block| same(block)).collect();
            tiled.pack(&blocks);
        }
        self.isa.dispatch(Pack { dense: self, blocks });
    }

    pub fn scratch(&self) -> DenseScratch<T> {
        let lanes = self.isa.dispatch::<T, _>(LaneCount);
        DenseScratch {
            rows: Buffer::zeros(GROUP * self.outputs * self.n.next_multiple_of(lanes)),
            #[cfg(target_arch = "x86_64")]
            grade: self.tiled.as_ref().map(|_| Grade::default()),
            #[cfg(not(target_arch = "x86_64"))]
            grade: None,
            #[cfg(target_arch = "x86_64")]
            tiled: TiledScratch::default(),
        }
    }

    pub fn apply(&self, active: &[usize], states: &[T], scratch: &mut DenseScratch<T>, emit: Emit<T>) {
        let depth = self.inputs * self.n;
        if let Some(&last) = active.iter().max() {
            assert!((last + 1) * depth <= states.len(), "states of {} samples expected", last + 1);
        }
        #[cfg(target_arch = "x86_64")]
        if let (Some(tiled), Some(states)) = (&self.tiled, same::<T, f32>(states))
            && let Some(passes) = scratch.grade.and_then(|grade| grade.accuracy().passes())
        {
            return self.apply_tiled(tiled, passes, active, states, &mut scratch.tiled, emit);
        }
        for group in active.chunks(GROUP) {
            self.isa.dispatch(Apply { dense: self, group, states, rows: &mut scratch.rows });
            let stride = scratch.rows.len() / (GROUP * self.outputs);
            for (slot, &sample) in group.iter().enumerate() {
                let rows = &mut scratch.rows[slot * self.outputs * stride..][..self.outputs * stride];
                let (u, w) = rows.split_at_mut(stride);
                let second = w.len().min(self.n);
                emit(sample, 0, &mut u[..self.n], &mut w[..second]);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl<T: SimdReal> Dense<T> {
    fn apply_tiled(
        &self,
        tiled: &Tiled,
        passes: Passes,
        active: &[usize],
        states: &[f32],
        scratch: &mut TiledScratch,
        emit: Emit<T>,
    ) {
        let stride = tiled.stride();
        for group in active.chunks(tiled::SAMPLES) {
            tiled.apply(group, states, passes, scratch);
            let Some(rows) = same_mut::<f32, T>(&mut scratch.rows) else { return };
            for (&sample, rows) in group.iter().zip(rows.chunks_exact_mut(self.outputs * stride)) {
                let (u, w) = rows.split_at_mut(stride);
                let second = w.len().min(self.n);
                emit(sample, 0, &mut u[..self.n], &mut w[..second]);
            }
        }
    }
}

struct LaneCount;
impl<T: SimdReal> Vectorised<T> for LaneCount {
    type Output = usize;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> usize {
        V::N
    }
}

struct Pack<'a, T: SimdReal> {
    dense: &'a mut Dense<T>,
    blocks: &'a [&'a [T]],
}

impl<T: SimdReal> Vectorised<T> for Pack<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Dense { n, inputs, outputs, ref mut weights, .. } = *self.dense;
        let mut target = weights.iter_mut();
        for output in 0..outputs {
            for (first, count) in panels::<V>(n.div_ceil(V::N)) {
                for entry in 0..inputs * n {
                    let block = self.blocks[output * inputs + entry / n];
                    for (row, target) in (first * V::N..(first + count) * V::N).zip(&mut target) {
                        *target = if row < n { block[row * n + entry % n] } else { T::ZERO };
                    }
                }
            }
        }
    }
}

struct Apply<'a, T: SimdReal> {
    dense: &'a Dense<T>,
    group: &'a [usize],
    states: &'a [T],
    rows: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Apply<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        match self.group.len() {
            1 => self.group_of::<V, 1>(),
            2 => self.group_of::<V, 2>(),
            3 => self.group_of::<V, 3>(),
            _ => self.group_of::<V, 4>(),
        }
    }
}

impl<T: SimdReal> Apply<'_, T> {
    #[inline(always)]
    fn group_of<V: Lanes<Elem = T>, const S: usize>(self) {
        let Dense { n, inputs, outputs, ref weights, .. } = *self.dense;
        let depth = inputs * n;
        let states: [&[T]; S] = std::array::from_fn(|s| &self.states[self.group[s] * depth..][..depth]);
        let stride = n.next_multiple_of(V::N);
        let mut weights = &weights[..];
        for output in 0..outputs {
            for (first, count) in panels::<V>(n.div_ceil(V::N)) {
                let (panel, rest) = weights.split_at(depth * count * V::N);
                weights = rest;
                let at = output * stride + first * V::N;
                let rows = &mut self.rows[at..];
                let row_stride = outputs * stride;
                match count {
                    1 => product::<V, S, 1>(panel, states, rows, row_stride),
                    2 => product::<V, S, 2>(panel, states, rows, row_stride),
                    3 => product::<V, S, 3>(panel, states, rows, row_stride),
                    4 => product::<V, S, 4>(panel, states, rows, row_stride),
                    5 => product::<V, S, 5>(panel, states, rows, row_stride),
                    _ => product::<V, S, 6>(panel, states, rows, row_stride),
                }
            }
        }
    }
}

/// `rows[s] = sum over k of states[s][k] * panel[k]`.
#[inline(always)]
fn product<V: Lanes, const S: usize, const VECTORS: usize>(
    panel: &[V::Elem],
    states: [&[V::Elem]; S],
    rows: &mut [V::Elem],
    row_stride: usize,
) {
    let depth = panel.len() / (VECTORS * V::N);
    let mut left = [std::ptr::null(); S];
    for s in 0..S {
        assert!(states[s].len() == depth);
        left[s] = states[s].as_ptr();
    }
    // SAFETY: every state holds `depth` numbers, as asserted; the panel holds `depth` times `VECTORS` vectors.
    let sums = unsafe { multiply_add::<V, S, VECTORS>(left, panel.as_ptr(), depth) };
    for s in 0..S {
        for v in 0..VECTORS {
            sums[s][v].store(&mut rows[s * row_stride + v * V::N..]);
        }
    }
}

/// `sums[s][v] = sum over k < depth of left[s][k] * right[k * VECTORS + v]`, `v` counting vectors: all sums stay in registers. Plain loops over pointers; with slices and iterators the compiler keeps the sums in memory.
///
/// # Safety
/// Each `left[s]` must be good for reading `depth` numbers, and `right` for `depth * VECTORS` vectors.
#[inline(always)]
unsafe fn multiply_add<V: Lanes, const S: usize, const VECTORS: usize>(
    left: [*const V::Elem; S],
    right: *const V::Elem,
    depth: usize,
) -> [[V; VECTORS]; S] {
    let mut sums = [[V::zero(); VECTORS]; S];
    for k in 0..depth {
        let mut vectors = [V::zero(); VECTORS];
        for v in 0..VECTORS {
            // SAFETY: within what the caller vouches for.
            let from = unsafe { std::slice::from_raw_parts(right.add((k * VECTORS + v) * V::N), V::N) };
            vectors[v] = V::load(from);
        }
        for s in 0..S {
            // SAFETY: within what the caller vouches for.
            let x = V::splat(unsafe { *left[s].add(k) });
            for v in 0..VECTORS {
                sums[s][v] = x.fma(vectors[v], sums[s][v]);
            }
        }
    }
    sums
}

/// Some rows of the weight gradient of a product, `sum over samples of left_s right_s^T`.
///
/// The samples are summed in their order, so the result does not depend on how the rows are shared among threads.
pub(crate) struct OuterProducts<'a, T> {
    /// `left_len` numbers per sample; row `r` of the gradient belongs to entry `first + r`.
    pub left: &'a [T],
    /// Numbers per sample on the left.
    pub left_len: usize,
    /// The entry that the first row of the gradient belongs to.
    pub first: usize,
    /// `width` numbers per sample.
    pub right: &'a [T],
    /// Numbers per sample on the right.
    pub width: usize,
    /// Added to: rows of `width` numbers.
    pub gradient: &'a mut [T],
    /// A factor, 1 or -1.
    pub sign: T,
}

/// See [`OuterProducts`].
pub(crate) fn outer_products<T: SimdReal>(isa: Isa, task: OuterProducts<T>) {
    isa.dispatch(task);
}

impl<T: SimdReal> Vectorised<T> for OuterProducts<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { left, left_len, first, right, width, gradient, sign } = self;
        for (group, rows) in gradient.chunks_mut(GROUP * width).enumerate() {
            let first = first + group * GROUP;
            let count = rows.len() / width;
            assert!(first + count <= left_len);
            for (vector, vectors) in panels::<V>(width.div_ceil(V::N)) {
                let panel =
                    OuterPanel { left, left_len, first, count, right, width, at: vector * V::N, sign };
                match vectors {
                    1 => panel.add::<V, 1>(rows),
                    2 => panel.add::<V, 2>(rows),
                    3 => panel.add::<V, 3>(rows),
                    4 => panel.add::<V, 4>(rows),
                    5 => panel.add::<V, 5>(rows),
                    _ => panel.add::<V, 6>(rows),
                }
            }
        }
    }
}

/// `count <= GROUP` rows and a few vectors of columns of a gradient.
struct OuterPanel<'a, T> {
    left: &'a [T],
    left_len: usize,
    first: usize,
    count: usize,
    right: &'a [T],
    width: usize,
    at: usize,
    sign: T,
}

impl<T: SimdReal> OuterPanel<'_, T> {
    #[inline(always)]
    fn add<V: Lanes<Elem = T>, const VECTORS: usize>(&self, rows: &mut [T]) {
        let samples = self.right.len() / self.width;
        let last = self.width - self.at - (VECTORS - 1) * V::N;
        let tail = last.min(V::N);
        assert!(self.left.len() >= samples * self.left_len && self.first + self.count <= self.left_len);
        let mut sums = [[V::zero(); VECTORS]; GROUP];
        // Rows beyond `count` repeat the last one; their sums are dropped.
        let mut left = [self.left.as_ptr(); GROUP];
        for r in 0..GROUP {
            left[r] = left[r].wrapping_add(self.first + r.min(self.count - 1));
        }
        for sample in 0..samples {
            let right = &self.right[sample * self.width + self.at..][..(VECTORS - 1) * V::N + tail];
            let mut vectors = [V::zero(); VECTORS];
            for v in 0..VECTORS {
                let count = if v + 1 < VECTORS { V::N } else { tail };
                vectors[v] = get::<V>(right, v * V::N, count);
            }
            for r in 0..GROUP {
                // SAFETY: entry `first + r` (`r` below `count`) of a sample's `left_len` numbers, as asserted.
                let x = V::splat(unsafe { *left[r].add(sample * self.left_len) });
                for v in 0..VECTORS {
                    sums[r][v] = x.fma(vectors[v], sums[r][v]);
                }
            }
        }
        let sign = V::splat(self.sign);
        for r in 0..self.count {
            let row = &mut rows[r * self.width + self.at..][..(VECTORS - 1) * V::N + tail];
            for v in 0..VECTORS {
                let count = if v + 1 < VECTORS { V::N } else { tail };
                let old = get::<V>(row, v * V::N, count);
                put(sign.fma(sums[r][v], old), row, v * V::N, count);
            }
        }
    }
}
