//! Convolutions: how their images and weights are laid out, and the kernels that multiply them on tensor cores.

use std::sync::Arc;

use super::gpu::{Block, Gpu, Grid, Memory, THREADS};
use super::kernel::{Argument, Passed, address, launch};
use super::plan::MapConstants;
use super::product::{Axis, Factor, add_parts, sum_in_parts};
use super::solve::Distance;
use crate::{Padding, Result};

/// Channels of a slab, pixels of a block and of its halo, as in `kernels/convolutions.cu`.
const SLAB: usize = 16;
const PIXELS: usize = 256;
const HALO: usize = 448;
/// The largest side of a kernel: the halo of one pixel fits.
pub(super) const LARGEST_SIDE: usize = 21;
/// Columns that a block may have, by eights.
const BLOCK_COLUMNS: [usize; 3] = [6, 4, 2];
/// Channels that there are kernels for with warpgroups' products, the threads of their blocks, how many tiles these have at a time, and how many
/// such blocks an H200 runs at once: `kernels/warpgroup_convolutions.cu`.
const WARPGROUP_CHANNELS: [usize; 2] = [48, 32];
const WARPGROUP_THREADS: u32 = 512;
const WARPGROUP_TILES: u32 = 2;
const WARPGROUP_BLOCKS: u32 = 132;
/// Height and width that their tiles of [`PIXELS`] pixels may have, and pixels of a halo that there is room for.
const WARPGROUP_TILE_SIZES: [(usize, usize); 2] = [(16, 16), (32, 8)];
const WARPGROUP_HALO: usize = 345;

/// The kernels that do one thing with the sums: for each number of columns of a block, and of channels with warpgroups' products.
type Kernels = ([&'static str; BLOCK_COLUMNS.len()], [&'static str; WARPGROUP_CHANNELS.len()]);

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
    /// Whether the columns of an image are divided by their largest entries: then a block has whole ones, if they fit.
    pub normalised: bool,
}

/// `Convolution` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    height: u32,
    width: u32,
    inputs: u32,
    outputs: u32,
    planes_in: u32,
    planes_out: u32,
    side: u32,
    circular: u32,
    tile_height: u32,
    tile_width: u32,
    across: u32,
    tiles: u32,
    column_tiles: u32,
    unused: u32,
}

/// What is done with the sums: `Keep`, `Apply`, `Linearise` and `Pull` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Keep {
    bias: u64,
    out: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Apply {
    map: MapConstants,
    y: u64,
    argument: u64,
    out: u64,
    distances: u64,
    normalised: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Linearise {
    map: MapConstants,
    y: u64,
    slopes: u64,
    out: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Pull {
    planes: u32,
    unused: u32,
    v: u64,
    slopes: u64,
    argument: u64,
    out: u64,
    distances: u64,
    norm: Norm,
    norm_slopes: u64,
    pulled: u64,
    pulled_planes: u64,
}

/// `Norm` of the kernels: the derivative of a normalisation.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(super) struct Norm {
    states: u64,
    gradients: u64,
    inverses: u64,
}

impl Norm {
    pub fn new(states: &Memory<f32>, gradients: &Memory<f32>, inverses: &Memory<f32>) -> Self {
        let [states, gradients, inverses] = [states, gradients, inverses].map(|array| array.address_of(0));
        Self { states, gradients, inverses }
    }
}

// SAFETY: `repr(C)`, the fields of the structs of the same names (`Convolution` for `Shape`) in `convolutions.cu`, no padding:
// 56, 16, 104, 88, 96 and 24 bytes are the sums of their fields.
unsafe impl Passed for Norm {}
// SAFETY: as above.
unsafe impl Passed for Shape {}
// SAFETY: as above.
unsafe impl Passed for Keep {}
// SAFETY: as above.
unsafe impl Passed for Apply {}
// SAFETY: as above.
unsafe impl Passed for Linearise {}
// SAFETY: as above.
unsafe impl Passed for Pull {}

/// How a convolution is shared out over blocks; by its shape alone, so that the bits of a sample do not depend on the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sharing {
    /// Pixels of a block.
    tile: (usize, usize),
    /// Tiles of an image: below each other, next to each other.
    tiles: (usize, usize),
    /// Columns of a block, by eights, and how many such groups of columns there are.
    columns: usize,
    groups: usize,
}

impl Convolution {
    fn area(&self) -> usize {
        self.height * self.width
    }

    pub fn taps(&self) -> usize {
        self.side * self.side
    }

    /// Tiles of at most so many pixels, and of so many with their halo: height and width of each; how many below and next to
    /// each other. `columns`: only one below the other, if that can be.
    fn tiling(&self, pixels: usize, halo: usize, columns: bool) -> ((usize, usize), (usize, usize)) {
        let reach = self.side - 1;
        // For each number of tiles next to each other: the highest that fit, then as even as possible. As few tiles as
        // possible, and of those the ones with the least halo.
        let candidate = |across: usize| {
            let width = self.width.div_ceil(across);
            let most = (pixels / width).min((halo / (width + reach)).saturating_sub(reach)).min(self.height);
            let down = self.height.div_ceil(most.max(1));
            let height = self.height.div_ceil(down);
            let cost = (columns && down > 1, down * across, (height + reach) * (width + reach));
            (most > 0).then_some((cost, (height, width), (down, across)))
        };
        let best = (1..=self.width).filter_map(candidate).min();
        let (_, tile, tiles) = best.expect("the halo of one pixel fits");
        (tile, tiles)
    }

    fn sharing(&self) -> Sharing {
        let (tile, tiles) = self.tiling(PIXELS, HALO, self.normalised);
        let needed = self.planes_out * self.outputs.div_ceil(8);
        // Every group of columns reads the images again, which costs about as much as two more eights.
        let cost = |&columns: &usize| needed.div_ceil(columns) * (columns + 2);
        let columns = BLOCK_COLUMNS.into_iter().min_by_key(cost).unwrap_or(2);
        Sharing { tile, tiles, columns, groups: needed.div_ceil(columns) }
    }

    fn shape(&self, sharing: Sharing) -> Shape {
        Shape {
            height: self.height as u32,
            width: self.width as u32,
            inputs: self.inputs as u32,
            outputs: self.outputs as u32,
            planes_in: self.planes_in as u32,
            planes_out: self.planes_out as u32,
            side: self.side as u32,
            circular: u32::from(self.padding == Padding::Circular),
            tile_height: sharing.tile.0 as u32,
            tile_width: sharing.tile.1 as u32,
            across: sharing.tiles.1 as u32,
            tiles: (sharing.tiles.0 * sharing.tiles.1) as u32,
            column_tiles: (sharing.columns * sharing.groups) as u32,
            unused: 0,
        }
    }

    /// Numbers in the packed weights.
    pub fn packed_len(&self) -> usize {
        let Sharing { columns, groups, .. } = self.sharing();
        let depth = self.planes_in * self.inputs.div_ceil(SLAB) * SLAB * self.taps();
        (depth + 1) * columns * groups * 8
    }

    /// How it is shared out over kernels with warpgroups' products, if they do it: by its shape and the GPU alone.
    fn by_warpgroups(&self, gpu: &Gpu) -> Option<Sharing> {
        if gpu.is_hopper() { self.warpgroup_sharing() } else { None }
    }

    fn warpgroup_sharing(&self) -> Option<Sharing> {
        let channels = WARPGROUP_CHANNELS.contains(&self.inputs) && self.inputs == self.outputs;
        let single = [self.planes_in, self.planes_out, self.side] == [1, 1, 3];
        let tiles = |tile: (usize, usize)| (self.height.div_ceil(tile.0), self.width.div_ceil(tile.1));
        // Columns that are normalised have to be whole.
        let candidates = WARPGROUP_TILE_SIZES.into_iter().map(|tile| (tile, tiles(tile)));
        let fitting = candidates.filter(|(_, tiles)| !self.normalised || tiles.0 == 1);
        let (tile, tiles) = fitting.min_by_key(|(_, tiles)| tiles.0 * tiles.1)?;
        // What hangs over the image is computed for nothing: at most a third.
        let hardly_over = tiles.0 * tiles.1 * PIXELS * 2 <= self.area() * 3;
        let sharing = Sharing { tile, tiles, columns: self.outputs / 8, groups: 1 };
        (channels && single && hardly_over).then_some(sharing)
    }

    /// Whether a block has whole columns, and normalises them. (Of columns of one entry it would have too many.)
    pub fn normalises(&self) -> bool {
        self.normalised && self.height > 1 && self.sharing().tiles.0 == 1
    }

    /// Parts in which the distance of each sample from its image is measured, where the kernels do that.
    pub fn parts(&self, gpu: &Gpu) -> Option<usize> {
        let Sharing { tiles, groups, .. } = self.sharing();
        self.by_warpgroups(gpu).is_none().then_some(tiles.0 * tiles.1 * groups)
    }

    /// Packs weights, `[out][in][tap]` of each plane. `transposed`: what they are the weights of goes the other way, from this
    /// convolution's outputs to its inputs.
    pub fn pack(
        &self,
        gpu: &Gpu,
        weights: &[Argument],
        transposed: bool,
        packed: &Memory<f32>,
    ) -> Result<()> {
        if self.by_warpgroups(gpu).is_some() {
            let (grid, channels) =
                (Grid((self.outputs as u32).div_ceil(THREADS / 32), 1, 1), self.outputs as u32);
            return launch!(gpu, "pack_for_warpgroups", grid, channels, weights[0], transposed, packed);
        }
        let shape = self.shape(self.sharing());
        let (first, second) = (weights[0], weights[weights.len() - 1]);
        let grid = Grid((shape.column_tiles * 8).div_ceil(THREADS / 32), 1, 1);
        launch!(gpu, "pack_convolution", grid, &shape, first, second, transposed, packed)
    }

    fn launch(
        &self,
        gpu: &Gpu,
        names: Kernels,
        images: &Memory<f32>,
        packed: &Memory<f32>,
        finish: Argument,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let kind = |of: &[usize], wanted: usize| {
            of.iter().position(|&number| number == wanted).expect("a sharing has one of those that there are")
        };
        if let Some(sharing) = self.by_warpgroups(gpu) {
            let shape = self.shape(sharing);
            let batch = self.batch as u32;
            let grid =
                Grid::blocks((batch * shape.tiles).div_ceil(WARPGROUP_TILES).min(WARPGROUP_BLOCKS) as usize);
            // Both halves of the weights, and for each tile those of its halo.
            let halves = [self.taps() * self.inputs, WARPGROUP_TILES as usize * WARPGROUP_HALO];
            let numbers: usize = halves.iter().map(|&rows| 2 * rows * self.outputs).sum();
            let block = Block { threads: WARPGROUP_THREADS, shared: (size_of::<u16>() * numbers) as u32 };
            let arguments =
                [(&shape).into(), batch.into(), images.into(), packed.into(), finish, active.into()];
            return gpu.launch_blocks(
                names.1[kind(&WARPGROUP_CHANNELS, self.outputs)],
                grid,
                block,
                &arguments,
            );
        }
        let sharing = self.sharing();
        let shape = self.shape(sharing);
        let grid = Grid(self.batch as u32 * shape.tiles, sharing.groups as u32, 1);
        // The next slab as it is; then what waits for whole columns.
        let waiting = if self.normalises() { PIXELS * 8 * sharing.columns } else { 0 };
        let block = Block { threads: THREADS, shared: (size_of::<f32>() * waiting.max(SLAB * HALO)) as u32 };
        let arguments = [(&shape).into(), images.into(), packed.into(), finish, active.into()];
        gpu.launch_blocks(names.0[kind(&BLOCK_COLUMNS, sharing.columns)], grid, block, &arguments)
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
        let keep = Keep { bias: address(bias), out: c.address_of(0) };
        let names =
            (["convolve_6", "convolve_4", "convolve_2"], ["warpgroup_convolve_48", "warpgroup_convolve_32"]);
        self.launch(gpu, names, images, packed, (&keep).into(), active)
    }

    /// `out <- F(z; y)` of a map without gains, normalised if this convolution [normalises](Self::normalises); parts of the distances
    /// from `z` to `distances`.
    #[allow(clippy::too_many_arguments)] // a map's arguments, its weights, what is measured, and whom it is for
    pub fn apply(
        &self,
        gpu: &Gpu,
        map: &MapConstants,
        z: &Memory<f32>,
        packed: &Memory<f32>,
        y: &Memory<f32>,
        out: &mut Memory<f32>,
        distances: Option<&Memory<Distance>>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let apply = Apply {
            map: *map,
            y: y.address_of(0),
            argument: z.address_of(0),
            out: out.address_of(0),
            distances: address(distances),
            normalised: u64::from(self.normalises()),
        };
        let names = (
            ["apply_convolution_6", "apply_convolution_4", "apply_convolution_2"],
            ["warpgroup_apply_48", "warpgroup_apply_32"],
        );
        self.launch(gpu, names, z, packed, (&apply).into(), active)
    }

    /// The slopes of a map without gains at `(z, y)`; its image before the normalisation to `out`.
    #[allow(clippy::too_many_arguments)] // as above
    pub fn linearise(
        &self,
        gpu: &Gpu,
        map: &MapConstants,
        z: &Memory<f32>,
        packed: &Memory<f32>,
        y: &Memory<f32>,
        slopes: &mut Memory<f32>,
        out: Option<&Memory<f32>>,
    ) -> Result<()> {
        let linearise =
            Linearise { map: *map, y: y.address_of(0), slopes: slopes.address_of(0), out: address(out) };
        let names = (
            ["linearise_convolution_6", "linearise_convolution_4", "linearise_convolution_2"],
            ["warpgroup_linearise_48", "warpgroup_linearise_32"],
        );
        self.launch(gpu, names, z, packed, (&linearise).into(), None)
    }

    /// `out <- D (packed * q + v)`, `D` the slopes, or 1 without them; parts of the distances from `q` to `distances`.
    #[allow(clippy::too_many_arguments)] // as above
    pub fn pull(
        &self,
        gpu: &Gpu,
        q: &Memory<f32>,
        packed: &Memory<f32>,
        v: &Memory<f32>,
        slopes: Option<&Memory<f32>>,
        out: &mut Memory<f32>,
        distances: Option<&Memory<Distance>>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let pull = Pull {
            planes: if slopes.is_some() { self.planes_in as u32 } else { 1 },
            unused: 0,
            v: v.address_of(0),
            slopes: address(slopes),
            argument: q.address_of(0),
            out: out.address_of(0),
            distances: address(distances),
            norm: Norm::default(),
            norm_slopes: 0,
            pulled: 0,
            pulled_planes: 0,
        };
        self.launch(gpu, PULL, q, packed, (&pull).into(), active)
    }

    /// `image <- D N' (packed * q + v)` for a convolution that [normalises](Self::normalises): `N` the normalisation, `D` the slopes
    /// before it.
    #[allow(clippy::too_many_arguments)] // as above
    pub fn pull_through(
        &self,
        gpu: &Gpu,
        q: &Memory<f32>,
        packed: &Memory<f32>,
        v: &Memory<f32>,
        norm: Norm,
        slopes: &Memory<f32>,
        image: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let pull = Pull {
            planes: 1,
            unused: 0,
            v: v.address_of(0),
            slopes: 0,
            argument: q.address_of(0),
            out: 0,
            distances: 0,
            norm,
            norm_slopes: slopes.address_of(0),
            pulled: image.address_of(0),
            pulled_planes: self.planes_in as u64,
        };
        self.launch(gpu, PULL, q, packed, (&pull).into(), active)
    }
}

const PULL: Kernels = (
    ["pull_convolution_6", "pull_convolution_4", "pull_convolution_2"],
    ["warpgroup_pull_48", "warpgroup_pull_32"],
);

/// Pixels of a tile of the gradient's kernels and of its halo, as in `kernels/convolution_gradients.cu`.
const GRADIENT_PIXELS: usize = 64;
const GRADIENT_HALO: usize = 136;
/// Blocks of a gradient: as many as an H200 runs at once. Fixed, so that sums do not depend on the GPU.
const GRADIENT_BLOCKS: usize = 256;
/// Height and width of the window of taps that a block of them has.
const WINDOW: usize = 3;
/// Outputs by sixteens and inputs by eights of the blocks that there are.
const GRADIENT_KERNELS: [(&str, usize, usize); 4] =
    [("gradient_3_6", 3, 6), ("gradient_2_4", 2, 4), ("gradient_1_2", 1, 2), ("gradient_3_1", 3, 1)];

/// `Gradient` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Gradient {
    height: u32,
    width: u32,
    inputs: u32,
    outputs: u32,
    planes: u32,
    circular: u32,
    tile_height: u32,
    tile_width: u32,
    across: u32,
    tiles: u32,
    count: u32,
    part: u32,
    side: u32,
    windows: u32,
}

// SAFETY: `repr(C)`, the fields of `Gradient` in `convolution_gradients.cu`, 14 of 4 bytes.
unsafe impl Passed for Gradient {}

impl Convolution {
    /// Adds the gradient for the weights `[out][in][tap]` of each output plane to `sums`.
    pub fn add_gradient(
        &self,
        gpu: &Arc<Gpu>,
        gradients: &Memory<f32>,
        images: &Memory<f32>,
        sums: &mut [&mut Memory<f32>],
    ) -> Result<()> {
        let len = self.planes_out * self.outputs * self.taps() * self.inputs;
        let (partial, count) = if self.side >= WINDOW {
            self.gradient_parts(gpu, gradients, images, len)?
        } else {
            self.plain_gradient_parts(gpu, gradients, images)?
        };
        add_parts(gpu, &partial, count, len, (self.taps(), self.inputs), 1.0, sums)
    }

    /// Parts of the gradient `[plane][out][tap][in]` of kernels from 3x3 on, and how many.
    fn gradient_parts(
        &self,
        gpu: &Arc<Gpu>,
        gradients: &Memory<f32>,
        images: &Memory<f32>,
        len: usize,
    ) -> Result<(Memory<f32>, usize)> {
        let (tile, tiles) =
            Convolution { side: WINDOW, ..*self }.tiling(GRADIENT_PIXELS, GRADIENT_HALO, false);
        let groups = |&(_, outputs, inputs): &(&'static str, usize, usize)| {
            (self.outputs.div_ceil(16 * outputs), self.inputs.div_ceil(8 * inputs))
        };
        // Each group reads its channels of both sides again, which costs about as much as four products more.
        let cost = |kernel: &(&'static str, usize, usize)| {
            let ((down, across), (_, outputs, inputs)) = (groups(kernel), *kernel);
            down * across * (outputs * (9 * inputs).div_ceil(8) + 4)
        };
        let kernel =
            GRADIENT_KERNELS.iter().min_by_key(|kernel| cost(kernel)).unwrap_or(&GRADIENT_KERNELS[0]);
        let (outputs, inputs) = groups(kernel);
        let windows = self.side.div_ceil(WINDOW);
        let count = self.batch * tiles.0 * tiles.1;
        let blocks = self.planes_out * outputs * inputs * windows * windows;
        let part = count.div_ceil((GRADIENT_BLOCKS / blocks).max(1));
        let parts = count.div_ceil(part);
        let shape = Gradient {
            height: self.height as u32,
            width: self.width as u32,
            inputs: self.inputs as u32,
            outputs: self.outputs as u32,
            planes: self.planes_out as u32,
            circular: u32::from(self.padding == Padding::Circular),
            tile_height: tile.0 as u32,
            tile_width: tile.1 as u32,
            across: tiles.1 as u32,
            tiles: (tiles.0 * tiles.1) as u32,
            count: count as u32,
            part: part as u32,
            side: self.side as u32,
            windows: windows as u32,
        };
        let mut partial = Memory::room(gpu, parts * len)?;
        let grid =
            Grid((parts * windows * windows) as u32, (self.planes_out * outputs) as u32, inputs as u32);
        // The next tile, in fours of `f32`.
        let fours = GRADIENT_HALO * 2 * kernel.2 + GRADIENT_PIXELS * 4 * kernel.1;
        let block = Block { threads: THREADS, shared: 16 * fours as u32 };
        let arguments = [(&shape).into(), gradients.into(), images.into(), (&mut partial).into()];
        gpu.launch_blocks(kernel.0, grid, block, &arguments)?;
        Ok((partial, parts))
    }

    /// The same for smaller kernels, without tensor cores.
    fn plain_gradient_parts(
        &self,
        gpu: &Arc<Gpu>,
        gradients: &Memory<f32>,
        images: &Memory<f32>,
    ) -> Result<(Memory<f32>, usize)> {
        let (rows, columns) = (self.planes_out * self.outputs, self.taps() * self.inputs);
        let plane = self.area() * self.outputs;
        let factor = Factor::new(
            gradients,
            0,
            Axis::grouped(self.outputs, plane, 1),
            Axis::grouped(self.area(), self.planes_out * plane, self.outputs),
        );
        let images = Images {
            address: images.address_of(0),
            sample_stride: (self.planes_in * self.area() * self.inputs) as u64,
            plane_stride: (self.area() * self.inputs) as u64,
            height: self.height as u32,
            width: self.width as u32,
            channels: self.inputs as u32,
            side: self.side as u32,
            circular: u32::from(self.padding == Padding::Circular),
            unused: 0,
        };
        sum_in_parts(gpu, [rows, columns, self.batch * self.area()], |target, sizes, count| {
            let grid = Grid(rows.div_ceil(64) as u32, columns.div_ceil(64) as u32, count as u32);
            launch!(gpu, "convolve_gradient", grid, &factor, &images, target, sizes)
        })
    }
}

/// `Images` of `kernels/product.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Images {
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

// SAFETY: `repr(C)`, the fields of `Images` in `product.cuh`, 48 bytes without padding.
unsafe impl Passed for Images {}

#[cfg(test)]
mod tests {
    use super::*;

    fn convolution(
        height: usize,
        width: usize,
        channels: usize,
        planes_out: usize,
        side: usize,
    ) -> Convolution {
        let padding = Padding::Circular;
        let (inputs, outputs, planes_in) = (channels, channels, 1);
        let normalised = false;
        Convolution {
            batch: 1,
            height,
            width,
            side,
            padding,
            inputs,
            outputs,
            planes_in,
            planes_out,
            normalised,
        }
    }

    #[test]
    fn tiles_cover_the_image_and_fit() {
        for side in [1, 3, 5, 7, LARGEST_SIDE] {
            for (height, width) in
                [(32, 32), (28, 28), (64, 64), (7, 9), (1, 1), (3, 500), (500, 3), (33, 65)]
            {
                for (pixels, halo) in [(PIXELS, HALO), (GRADIENT_PIXELS, GRADIENT_HALO)] {
                    if (side, halo) == (LARGEST_SIDE, GRADIENT_HALO) {
                        continue;
                    }
                    let (tile, tiles) = convolution(height, width, 8, 1, side).tiling(pixels, halo, false);
                    assert!(tile.0 * tile.1 <= pixels && (tile.0 + side - 1) * (tile.1 + side - 1) <= halo);
                    assert!(tile.0 * tiles.0 >= height && tile.1 * tiles.1 >= width);
                    assert!(tile.0 * (tiles.0 - 1) < height && tile.1 * (tiles.1 - 1) < width);
                }
            }
        }
        assert_eq!(convolution(32, 32, 48, 1, 3).sharing().tile, (16, 16));
    }

    #[test]
    fn tiles_for_warpgroups_cover_the_image_and_hang_over_by_a_third_at_most() {
        let tiled = |height, width, channels, normalised| {
            let convolution = Convolution { normalised, ..convolution(height, width, channels, 1, 3) };
            convolution.warpgroup_sharing().map(|sharing| (sharing.tile, sharing.tiles))
        };
        assert_eq!(tiled(32, 32, 48, false), Some(((16, 16), (2, 2))));
        assert_eq!(tiled(32, 32, 48, true), Some(((32, 8), (1, 4))));
        assert_eq!(tiled(28, 28, 32, false), Some(((16, 16), (2, 2))));
        assert_eq!(tiled(28, 28, 32, true), Some(((32, 8), (1, 4))));
        assert_eq!(tiled(16, 16, 48, true), Some(((16, 16), (1, 1))));
        assert_eq!(tiled(32, 8, 48, false), Some(((32, 8), (1, 1))));
        // Too much of them would hang over, whole columns do not fit, or there is no kernel.
        for (height, width, channels, normalised) in [
            (8, 8, 48, false),
            (33, 33, 48, false),
            (40, 32, 48, true),
            (32, 32, 40, false),
            (32, 32, 64, false),
        ] {
            assert_eq!(tiled(height, width, channels, normalised), None, "{channels} x {height} x {width}");
        }
        for height in 1..70 {
            for width in 1..70 {
                let Some((tile, tiles)) = tiled(height, width, 32, false) else { continue };
                assert!(tile.0 * tiles.0 >= height && tile.1 * tiles.1 >= width);
                assert!((tile.0 + 2) * (tile.1 + 2) <= WARPGROUP_HALO);
                // What lies beyond a border comes from the other one by one step.
                assert!(tile.0 * tiles.0 < 2 * height && tile.1 * tiles.1 < 2 * width, "{height} x {width}");
            }
        }
    }

    #[test]
    fn columns_cover_the_channels_of_all_planes() {
        for channels in [1, 3, 8, 16, 17, 32, 40, 48, 64, 128] {
            for planes in [1, 2] {
                let Sharing { columns, groups, .. } = convolution(8, 8, channels, planes, 3).sharing();
                assert!(columns * groups >= planes * channels.div_ceil(8));
            }
        }
        let Sharing { columns, groups, .. } = convolution(32, 32, 48, 1, 3).sharing();
        assert_eq!((columns, groups), (6, 1));
    }
}
