//! Convolutions of images with few channels: the launches of `kernels/few_channels.cu`.

use std::sync::Arc;

use super::gpu::{Gpu, Grid, Memory};
use super::kernel::{Passed, launch};
use crate::network::ConvShape;
use crate::{Padding, Result};

/// What fits into a block's memory, outputs that a block has threads for (at least two each), rows of a tile, and blocks, whose sums of
/// gradients are kept apart: as in `kernels/few_channels.cu`.
const MOST_WIDTH: usize = 64;
const MOST_OUTPUTS: usize = 128;
const ROWS: usize = 8;
const PARTS: usize = 264;
/// Sums that one block of the total takes.
const COLUMNS: usize = 32;

/// A shape that these kernels take.
#[repr(C)]
pub(super) struct FewChannels {
    batch: u32,
    height: u32,
    width: u32,
    outputs: u32,
    circular: u32,
    /// Bands of all images.
    tiles: u32,
    inputs: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, eight fields of four bytes, as `Few` in `few_channels.cu`.
unsafe impl Passed for FewChannels {}

impl FewChannels {
    /// `None` for shapes that they do not take.
    pub fn of(shape: ConvShape) -> Option<Self> {
        let ConvShape { batch, height, width, inputs, outputs, padding } = shape;
        let tiles = batch * height.div_ceil(ROWS);
        let taken = matches!(inputs, 1 | 3) && width <= MOST_WIDTH && outputs <= MOST_OUTPUTS && tiles > 0;
        taken.then(|| Self {
            batch: batch as u32,
            height: height as u32,
            width: width as u32,
            outputs: outputs as u32,
            circular: u32::from(padding == Padding::Circular),
            tiles: tiles as u32,
            inputs: inputs as u32,
            unused: 0,
        })
    }

    /// `y = w * x + b`, or its positive part. The lengths are checked.
    pub fn convolve(
        &self,
        gpu: &Gpu,
        x: &Memory<f32>,
        w: &Memory<f32>,
        b: &Memory<f32>,
        rectified: bool,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        let grid = Grid::blocks(PARTS.min(self.tiles as usize));
        match self.inputs {
            1 => launch!(gpu, "convolve_few_1", grid, self, x, w, b, rectified, y),
            _ => launch!(gpu, "convolve_few_3", grid, self, x, w, b, rectified, y),
        }
    }

    /// The gradients of weights and biases; `rectified` is the output where it is the positive part. The lengths are checked.
    #[allow(clippy::too_many_arguments)] // an input, an output, one gradient in, two out
    pub fn gradient(
        &self,
        gpu: &Arc<Gpu>,
        x: &Memory<f32>,
        rectified: Option<&Memory<f32>>,
        gy: &Memory<f32>,
        gw: &mut Memory<f32>,
        gb: &mut Memory<f32>,
    ) -> Result<()> {
        let (parts, taps) = (PARTS.min(self.tiles as usize), 9 * self.inputs);
        let sums = (taps + 1) as usize * self.outputs as usize;
        // Not kept: solves need the room.
        let mut partial = Memory::<f32>::room(gpu, parts * sums)?;
        let grid = Grid::blocks(parts);
        match self.inputs {
            1 => launch!(gpu, "few_gradient_1", grid, self, x, rectified, gy, &mut partial)?,
            _ => launch!(gpu, "few_gradient_3", grid, self, x, rectified, gy, &mut partial)?,
        }
        let grid = Grid::blocks(sums.div_ceil(COLUMNS));
        launch!(gpu, "few_gradient_total", grid, &partial, parts as u32, taps, self.outputs, gw, gb)
    }
}
