//! Matrix products and convolutions: how their operands are laid out, and which kernel multiplies them.

use super::gpu::{Gpu, Grid, Memory};
use super::kernel::{Argument, Passed, launch};
use crate::{Padding, Result};

/// Side of the tiles of a product, as in `kernels/product.cuh`.
const TILE: usize = 64;
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

/// Stacks of images that a convolution reads.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Images {
    address: u64,
    sample_stride: u64,
    plane_stride: u64,
    height: u32,
    width: u32,
    channels: u32,
    side: u32,
    circular: u32,
    unused: u32,
}

#[repr(C)]
struct Sizes {
    rows: u32,
    columns: u32,
    depth: u32,
    part: u32,
    part_stride: u64,
    rows_per_sample: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of the structs of the same names in `product.cuh` and `products.cu`, no padding: 24, 56, 56, 48 and
// 32 bytes are the sums of their fields.
unsafe impl Passed for Factor {}
// SAFETY: as above.
unsafe impl Passed for Target {}
// SAFETY: as above.
unsafe impl Passed for Images {}
// SAFETY: as above.
unsafe impl Passed for Sizes {}

/// Which way the factors of a product lie.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Lie {
    /// Both along the sum.
    Along,
    /// The first along, the second across.
    Mixed,
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
    gpu: &Gpu,
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
    let sizes = whole(rows, columns, depth, active);
    let grid = tiles(rows, columns, 1);
    let flags = active.map(|active| active.flags);
    match lie {
        Lie::Along => launch!(gpu, "product_nt", grid, &a, &b, bias, &c, &sizes, flags),
        Lie::Mixed => launch!(gpu, "product_nn", grid, &a, &b, bias, &c, &sizes, flags),
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

fn tiles(rows: usize, columns: usize, parts: usize) -> Grid {
    Grid(rows.div_ceil(TILE) as u32, columns.div_ceil(TILE) as u32, parts as u32)
}

/// Images that are convolved with kernels of `side x side` taps.
#[derive(Clone, Copy)]
pub(super) struct Convolution {
    pub batch: usize,
    pub height: usize,
    pub width: usize,
    pub side: usize,
    pub padding: Padding,
    /// Channels of each image that goes in and of each that comes out.
    pub inputs: usize,
    pub outputs: usize,
    /// Images per sample that go in and that come out.
    pub planes_in: usize,
    pub planes_out: usize,
}

impl Convolution {
    fn area(&self) -> usize {
        self.height * self.width
    }

    pub fn taps(&self) -> usize {
        self.side * self.side
    }

    /// Numbers in the packed weights.
    pub fn packed_len(&self) -> usize {
        self.taps() * self.inputs * self.outputs * self.planes_in * self.planes_out
    }

    fn images(&self, memory: &Memory<f32>) -> Images {
        let len = self.area() * self.inputs;
        Images {
            address: memory.address_of(0),
            sample_stride: (self.planes_in * len) as u64,
            plane_stride: len as u64,
            height: self.height as u32,
            width: self.width as u32,
            channels: self.inputs as u32,
            side: self.side as u32,
            circular: u32::from(self.padding == Padding::Circular),
            unused: 0,
        }
    }

    /// `c = packed * images`, plus a bias for each output channel.
    pub fn convolve(
        &self,
        gpu: &Gpu,
        images: &Memory<f32>,
        packed: &Memory<f32>,
        bias: Option<&Memory<f32>>,
        c: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (rows, columns) = (self.batch * self.area(), self.planes_out * self.outputs);
        let len = self.area() * self.outputs;
        let target = Target::new(
            c,
            0,
            Axis::grouped(self.area(), self.planes_out * len, self.outputs),
            Axis::grouped(self.outputs, len, 1),
        );
        let weights = Factor::new(packed, 0, Axis::plain(1), Axis::plain(columns));
        let active = active.map(|flags| Active { flags, rows: self.area() });
        let sizes = whole(rows, columns, self.planes_in * self.taps() * self.inputs, active);
        let flags = active.map(|active| active.flags);
        let images = self.images(images);
        launch!(gpu, "convolve", tiles(rows, columns, 1), &images, &weights, bias, &target, &sizes, flags)
    }

    /// Adds the gradient for the weights `[out][in][tap]` of each output plane to `sums`.
    pub fn add_gradient(
        &self,
        gpu: &std::sync::Arc<Gpu>,
        gradients: &Memory<f32>,
        images: &Memory<f32>,
        sums: &mut [&mut Memory<f32>],
    ) -> Result<()> {
        let (rows, columns) = (self.planes_out * self.outputs, self.taps() * self.inputs);
        let (depth, len) = (self.batch * self.area(), self.area() * self.outputs);
        let factor = Factor::new(
            gradients,
            0,
            Axis::grouped(self.outputs, len, 1),
            Axis::grouped(self.area(), self.planes_out * len, self.outputs),
        );
        let (part, count) = parts(depth);
        let mut partial = Memory::room(gpu, count * rows * columns)?;
        let target = Target::new(&mut partial, 0, Axis::plain(columns), Axis::plain(1));
        let sizes = Sizes {
            part: part as u32,
            part_stride: (rows * columns) as u64,
            ..whole(rows, columns, depth, None)
        };
        let images = self.images(images);
        launch!(gpu, "convolve_gradient", tiles(rows, columns, count), &factor, &images, &target, &sizes)?;
        let each = self.outputs * columns;
        for (plane, sums) in sums.iter_mut().enumerate() {
            launch!(
                gpu,
                "add_parts",
                Grid::entries(each),
                partial.at(plane * each),
                count as u32,
                rows * columns,
                each,
                self.taps() as u32,
                self.inputs as u32,
                1.0f32,
                &mut **sums,
            )?;
        }
        Ok(())
    }
}

/// Packs weights `[out][in][tap]`, one after the other for each plane, for [`Convolution::convolve`]: for a convolution from one
/// image to `planes`, or, transposed, from `planes` images to one.
pub(super) fn pack(
    gpu: &Gpu,
    weights: &[Argument],
    [outputs, inputs, taps]: [usize; 3],
    transposed: bool,
    packed: &mut Memory<f32>,
) -> Result<()> {
    let planes = weights.len() as u32;
    for (plane, &w) in weights.iter().enumerate() {
        launch!(
            gpu,
            "pack_weights",
            Grid::entries(outputs * inputs * taps),
            w,
            &mut *packed,
            outputs as u32,
            inputs as u32,
            taps as u32,
            plane as u32,
            planes,
            transposed,
        )?;
    }
    Ok(())
}

/// A sum of outer products over a batch: `gradients[k] += sign sum over i of a(row, i) b(i, column)`, the rows of `a` shared out
/// over the gradients.
pub(super) fn add_outer_products(
    gpu: &std::sync::Arc<Gpu>,
    a: Factor,
    b: Factor,
    [rows, columns, depth]: [usize; 3],
    sign: f32,
    gradients: &mut [&mut Memory<f32>],
) -> Result<()> {
    if rows * columns * depth == 0 {
        return Ok(());
    }
    let (part, count) = parts(depth);
    let mut partial = Memory::room(gpu, count * rows * columns)?;
    let c = Target::new(&mut partial, 0, Axis::plain(columns), Axis::plain(1));
    let sizes = Sizes {
        part: part as u32,
        part_stride: (rows * columns) as u64,
        ..whole(rows, columns, depth, None)
    };
    let (bias, flags) = (None::<&Memory<f32>>, None::<&Memory<u32>>);
    launch!(gpu, "product_tn", tiles(rows, columns, count), &a, &b, bias, &c, &sizes, flags)?;
    let each = rows * columns / gradients.len();
    for (k, gradient) in gradients.iter_mut().enumerate() {
        launch!(
            gpu,
            "add_parts",
            Grid::entries(each),
            partial.at(k * each),
            count as u32,
            rows * columns,
            each,
            1u32,
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
