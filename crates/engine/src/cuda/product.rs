//! Matrix products: how their operands are laid out, and which kernel multiplies them.

use std::sync::Arc;

use super::gpu::{Gpu, Grid, Memory};
use super::kernel::{Passed, launch};
use crate::Result;

/// Terms of a sum that one block adds up at most.
const DEPTH: usize = 256;
/// Tiles below which smaller ones are taken: two for each multiprocessor of an H200.
const FEW_TILES: u64 = 264;
/// Terms that one part of a gradient's sum adds up, and the most parts: fixed, so that sums do not depend on the GPU.
const PART: usize = 512;
const PARTS: usize = 128;

/// Where the entries of an index lie: in groups of `group`, `stride` apart within a group.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Axis {
    group_stride: u64,
    stride: u64,
    group: u32,
    unused: u32,
}

impl Axis {
    /// All `stride` apart.
    pub fn plain(stride: usize) -> Self {
        Self { group_stride: 0, stride: stride as u64, group: u32::MAX, unused: 0 }
    }

    /// Groups of `group`, from one to the next `group_stride`, `stride` within.
    pub fn grouped(group: usize, group_stride: usize, stride: usize) -> Self {
        Self { group_stride: group_stride as u64, stride: stride as u64, group: group as u32, unused: 0 }
    }
}

/// A factor: `outer` is the index that the product keeps, `inner` the one that is summed over.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Factor {
    address: u64,
    outer: Axis,
    inner: Axis,
}

impl Factor {
    pub fn new(memory: &Memory<f32>, at: usize, outer: Axis, inner: Axis) -> Self {
        Self { address: memory.address_of(at), outer, inner }
    }
}

/// Where a product goes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Target {
    address: u64,
    row: Axis,
    column: Axis,
}

impl Target {
    pub fn new(memory: &mut Memory<f32>, at: usize, row: Axis, column: Axis) -> Self {
        Self { address: memory.address_of(at), row, column }
    }
}

#[repr(C)]
pub(super) struct Sizes {
    rows: u32,
    columns: u32,
    depth: u32,
    part: u32,
    part_stride: u64,
    rows_per_sample: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of the structs of the same names in `product.cuh` and `products.cu`, no padding: 56, 56 and 32
// bytes are the sums of their fields.
unsafe impl Passed for Factor {}
// SAFETY: as above.
unsafe impl Passed for Target {}
// SAFETY: as above.
unsafe impl Passed for Sizes {}

/// Which way the factors of a product lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lie {
    /// Both along the sum.
    Along,
    /// The first along, the second across.
    Mixed,
    /// Both across.
    Across,
}

/// Samples that are still worked on; the rest need not be computed.
#[derive(Clone, Copy)]
pub(super) struct Active<'a> {
    pub flags: &'a Memory<u32>,
    /// Rows of the product that belong to one sample.
    pub rows: usize,
}

/// `c = a b`, plus a bias for each column.
#[allow(clippy::too_many_arguments)] // two factors, a result, three sizes
pub(super) fn multiply(
    gpu: &Arc<Gpu>,
    lie: Lie,
    a: Factor,
    b: Factor,
    bias: Option<&Memory<f32>>,
    c: Target,
    [rows, columns, depth]: [usize; 3],
    active: Option<Active>,
) -> Result<()> {
    if rows * columns == 0 {
        return Ok(());
    }
    let flags = active.map(|active| active.flags);
    let parts = depth.div_ceil(DEPTH);
    if parts <= 1 {
        let sizes = whole(rows, columns, depth, active);
        return lie.launch(gpu, &a, &b, bias, &c, &sizes, 1, flags);
    }
    // A deep sum is cut into even parts, by its depth alone: the bits of a row must not depend on the other rows.
    let (part, part_len) = (depth.div_ceil(parts), rows * columns);
    let mut partial = Memory::room(gpu, parts * part_len)?;
    let target = Target::new(&mut partial, 0, Axis::plain(columns), Axis::plain(1));
    let sizes =
        Sizes { part: part as u32, part_stride: part_len as u64, ..whole(rows, columns, depth, active) };
    lie.launch(gpu, &a, &b, None, &target, &sizes, parts, flags)?;
    let (grid, per_sample) = (Grid::entries(part_len), sizes.rows_per_sample);
    let [rows, columns, parts] = [rows, columns, parts].map(|size| size as u32);
    launch!(gpu, "join_parts", grid, &partial, parts, rows, columns, bias, &c, per_sample, flags)
}

impl Lie {
    /// In small tiles where there would be too few large ones.
    #[allow(clippy::too_many_arguments)] // as above
    fn launch(
        self,
        gpu: &Gpu,
        a: &Factor,
        b: &Factor,
        bias: Option<&Memory<f32>>,
        c: &Target,
        sizes: &Sizes,
        parts: usize,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let grid = |tile: u32| Grid(sizes.rows.div_ceil(tile), sizes.columns.div_ceil(tile), parts as u32);
        let large = grid(64);
        let tile = if u64::from(large.0) * u64::from(large.1) * parts as u64 >= FEW_TILES { 64 } else { 32 };
        let name = match (self, tile) {
            (Self::Along, 64) => "product_nt_64",
            (Self::Along, _) => "product_nt_32",
            (Self::Mixed, 64) => "product_nn_64",
            (Self::Mixed, _) => "product_nn_32",
            (Self::Across, 64) => "product_tn_64",
            (Self::Across, _) => "product_tn_32",
        };
        let arguments = [a.into(), b.into(), bias.into(), c.into(), sizes.into(), active.into()];
        gpu.launch(name, grid(tile), &arguments)
    }
}

fn whole(rows: usize, columns: usize, depth: usize, active: Option<Active>) -> Sizes {
    Sizes {
        rows: rows as u32,
        columns: columns as u32,
        depth: depth as u32,
        part: depth.max(1) as u32,
        part_stride: 0,
        rows_per_sample: active.map_or(1, |active| active.rows) as u32,
        unused: 0,
    }
}

/// A sum of outer products over a batch: `gradients[k] += sign sum over i of a(row, i) b(i, column)`, the rows of `a` shared out
/// over the gradients.
pub(super) fn add_outer_products(
    gpu: &Arc<Gpu>,
    a: Factor,
    b: Factor,
    [rows, columns, depth]: [usize; 3],
    sign: f32,
    gradients: &mut [&mut Memory<f32>],
) -> Result<()> {
    if rows * columns * depth == 0 {
        return Ok(());
    }
    let (partial, count) = sum_in_parts(gpu, [rows, columns, depth], |c, sizes, count| {
        Lie::Across.launch(gpu, &a, &b, None, c, sizes, count, None)
    })?;
    add_parts(gpu, &partial, count, rows * columns, (1, columns), sign, gradients)
}

/// A product whose sum is cut into parts, one whole product after the other, and how many.
pub(super) fn sum_in_parts(
    gpu: &Arc<Gpu>,
    [rows, columns, depth]: [usize; 3],
    multiply: impl FnOnce(&Target, &Sizes, usize) -> Result<()>,
) -> Result<(Memory<f32>, usize)> {
    let (part, count) = parts(depth);
    let mut partial = Memory::room(gpu, count * rows * columns)?;
    let c = Target::new(&mut partial, 0, Axis::plain(columns), Axis::plain(1));
    let sizes = Sizes {
        part: part as u32,
        part_stride: (rows * columns) as u64,
        ..whole(rows, columns, depth, None)
    };
    multiply(&c, &sizes, count)?;
    Ok((partial, count))
}

/// `gradients[k] += sign` times the sum of the parts, of `len` numbers each, which are shared out over the gradients. Their rows are
/// `(taps, columns)`, the gradients' the other way round.
pub(super) fn add_parts(
    gpu: &Gpu,
    partial: &Memory<f32>,
    count: usize,
    len: usize,
    (taps, columns): (usize, usize),
    sign: f32,
    gradients: &mut [&mut Memory<f32>],
) -> Result<()> {
    let each = len / gradients.len();
    for (k, gradient) in gradients.iter_mut().enumerate() {
        launch!(
            gpu,
            "add_parts",
            Grid::threads(8 * each),
            partial.at(k * each),
            count as u32,
            len,
            each,
            taps as u32,
            columns as u32,
            sign,
            &mut **gradient,
        )?;
    }
    Ok(())
}

/// Terms of each part of a sum, and how many parts.
fn parts(depth: usize) -> (usize, usize) {
    let part = PART.max(depth.div_ceil(PARTS));
    (part, depth.div_ceil(part))
}
