//! Affine layers: the launches of `kernels/linear.cu`.

use super::gpu::{Gpu, Grid, Memory};
use super::kernel::launch;
use crate::Result;
use crate::network::LinearShape;

/// Samples and outputs of a block going forward; sides of the tiles going back; as in `kernels/linear.cu`.
const SAMPLES: usize = 4;
const OUTPUTS: usize = 16;
const TILE: usize = 16;
const WIDE: usize = 64;

/// `y = W x + b`, or its positive part. The lengths are checked.
pub(super) fn forward(
    gpu: &Gpu,
    LinearShape { batch, inputs, outputs }: LinearShape,
    x: &Memory<f32>,
    w: &Memory<f32>,
    b: &Memory<f32>,
    rectified: bool,
    y: &mut Memory<f32>,
) -> Result<()> {
    if batch * outputs == 0 {
        return Ok(());
    }
    let grid = Grid(batch.div_ceil(SAMPLES) as u32, outputs.div_ceil(OUTPUTS) as u32, 1);
    let (batch, inputs, outputs) = (batch as u32, inputs as u32, outputs as u32);
    launch!(gpu, "linear", grid, x, w, b, rectified, batch, inputs, outputs, y)
}

/// All gradients in one launch. The lengths are checked.
#[allow(clippy::too_many_arguments)] // two factors, one gradient in, three out
pub(super) fn backward(
    gpu: &Gpu,
    LinearShape { batch, inputs, outputs }: LinearShape,
    x: &Memory<f32>,
    w: &Memory<f32>,
    rectified: Option<&Memory<f32>>,
    gy: &Memory<f32>,
    gx: Option<&mut Memory<f32>>,
    gw: &mut Memory<f32>,
    gb: &mut Memory<f32>,
) -> Result<()> {
    // Without inputs there are still biases.
    let weight_tiles = outputs.div_ceil(TILE) * inputs.div_ceil(TILE).max(1);
    let input_tiles = gx.as_ref().map_or(0, |_| batch.div_ceil(TILE) * inputs.div_ceil(WIDE));
    if weight_tiles + input_tiles == 0 {
        return Ok(());
    }
    launch!(
        gpu,
        "linear_backward",
        Grid::blocks(weight_tiles + input_tiles),
        x,
        w,
        rectified,
        gy,
        batch as u32,
        inputs as u32,
        outputs as u32,
        weight_tiles as u32,
        gx.as_deref(),
        gw,
        gb,
    )
}
