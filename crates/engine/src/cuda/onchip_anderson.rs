//! Whole solves by Anderson's method in one launch, everything of a sample on chip (`kernels/onchip_anderson.cuh`): for maps by a tanh of
//! 48 channels of 32 x 32, zero padded, on compute capability 9.0. All others, other windows and mixings, and batches that stop as a whole
//! take the general path; answers are the same within the tolerance. `SUBDEQ_CUDA_ONCHIP=0` in the environment leaves all to it.

use super::convolution::Norm;
use super::equilibria::ReportRow;
use super::gpu::{Block, Gpu, Grid, Memory};
use super::kernel::Passed;
use super::plan::{Linearisation, Operators};
use super::solve::{Method, NARROW_RIDGE};
use crate::map::Formula;
use crate::{Activation, Extent, Injection, Measure, Operator, PNorm, Padding, Result, ShapedMap, Stopping};

const SHAPE: Operator =
    Operator::Conv { channels: 48, height: 32, width: 32, padding: Padding::Zero, kernel: 3 };
const WINDOW: usize = 5;
/// Blocks that have a sample together.
const CLUSTER: u32 = 8;
/// `AndersonOnChip::THREADS` and `SHARED`.
const BLOCK: Block = Block { threads: 512, shared: 230_232 };
const KERNELS: [&str; 4] = [
    "onchip_anderson_solve",
    "onchip_anderson_solve_normalised",
    "onchip_anderson_adjoint",
    "onchip_anderson_adjoint_normalised",
];

/// `OnchipAnderson` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Solve {
    weights: u64,
    drive: u64,
    slope: u64,
    norm: Norm,
    state: u64,
    reports: u64,
    bad: u64,
    tolerance: f64,
    ridge: f64,
    shift: f32,
    base: f32,
    power: f32,
    inner: u32,
    has_power: u32,
    max_iterations: u32,
}

// SAFETY: `repr(C)`, the fields of `OnchipAnderson`: 9 addresses, three of them in `Norm`, 2 of 8 bytes and 6 of 4, without padding.
unsafe impl Passed for Solve {}

/// What is iterated: the map with injections `y`, or its transposed derivative with gradients `v`.
#[derive(Clone, Copy)]
pub(super) enum Iterated<'a> {
    Map { y: &'a Memory<f32> },
    Derivative { v: &'a Memory<f32>, at: &'a Linearisation },
}

/// Whether this GPU has kernels for whole solves of this map.
pub(super) fn is_for(gpu: &Gpu, map: &ShapedMap) -> Result<bool> {
    let switched_off = std::env::var("SUBDEQ_CUDA_ONCHIP").is_ok_and(|value| value == "0");
    // As `is_short` of `kernels/convolutions.cuh`.
    let short = map.formula == Formula::Single
        && map.activation == Activation::Tanh
        && (map.power == 1.0 || map.base > 1.0);
    let columns = map.norm.is_none_or(|norm| norm == PNorm::Inf);
    if switched_off || !gpu.is_hopper() || map.operator != SHAPE || !short || !columns {
        return Ok(false);
    }
    gpu.load("onchip_anderson", BLOCK, CLUSTER)?;
    for kernel in KERNELS {
        if gpu.active_clusters(kernel, BLOCK, CLUSTER)? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Operators {
    /// The ridge of a solve that these kernels do.
    pub fn ridge_on_chip(&self, method: Method, stopping: &Stopping) -> Result<Option<f64>> {
        let Method::Anderson { window: WINDOW, ridge, mixing: 1.0 } = method else { return Ok(None) };
        let usual = stopping.measure == Measure::Relative && stopping.extent == Extent::PerSample;
        Ok((usual && ridge >= NARROW_RIDGE && self.has_anderson_on_chip()?).then_some(ridge))
    }

    /// Solves what is iterated from the start in `state`; there goes the answer.
    pub fn solve_on_chip(
        &self,
        batch: usize,
        iterated: Iterated,
        ridge: f64,
        stopping: &Stopping,
        state: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let map = &self.map;
        let derivative = matches!(iterated, Iterated::Derivative { .. });
        let (drive, slope, norm) = match iterated {
            Iterated::Map { y } => (y, 0, Norm::default()),
            Iterated::Derivative { v, at } => (v, at.slopes.address_of(0), at.norm()),
        };
        let solve = Solve {
            weights: self.packed_weights(batch, derivative)?.address_of(0),
            drive: drive.address_of(0),
            slope,
            norm,
            state: state.address_of(0),
            reports: reports.address_of(0),
            bad: self.bad.address_of(0),
            tolerance: stopping.tolerance,
            ridge,
            shift: map.shift as f32,
            base: map.base as f32,
            power: map.power as f32,
            inner: u32::from(map.injection == Injection::Inner),
            has_power: u32::from(map.power != 1.0),
            max_iterations: u32::try_from(stopping.max_iterations).unwrap_or(u32::MAX),
        };
        let kernel = KERNELS[2 * usize::from(derivative) + usize::from(map.norm.is_some())];
        let grid = Grid::blocks(batch * CLUSTER as usize);
        self.gpu.launch_blocks(kernel, grid, BLOCK, &[(&solve).into()])
    }
}
