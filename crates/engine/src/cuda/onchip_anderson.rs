//! Whole solves by Anderson's method in one launch, everything of a sample on chip (`kernels/onchip_anderson.cuh`): for maps by a tanh of
//! 48 channels of 32 x 32 or 32 of 28 x 28, zero padded, on compute capability 9.0. All others, and other windows and mixings,
//! take the general path; answers are the same within the tolerance. `SUBDEQ_CUDA_ONCHIP=0` in the environment leaves all to it.
//!
//! Where samples end together, each is solved without knowledge of the others: for some iterations more than the last batch needed, the
//! images of the last few being kept. Then the batch is judged, and where that was too short or much too long it is solved again. What comes out does
//! not depend on how many were tried.

use std::sync::Arc;

use super::convolution::Norm;
use super::equilibria::ReportRow;
use super::gpu::{Block, Gpu, Grid, Memory};
use super::kernel::{Passed, launch};
use super::plan::{Linearisation, Operators};
use super::solve::{Method, NARROW_RIDGE, Rule};
use crate::map::Formula;
use crate::{Activation, Extent, Injection, Measure, Operator, PNorm, Padding, Result, ShapedMap, Stopping};

const WINDOW: usize = 5;
/// `ANSWERS` and `MOST_TOGETHER` of `kernels/solve.cu`.
const ANSWERS: usize = 4;
const MOST_TOGETHER: usize = 256;
/// How often a batch that ends together is solved at most, as `judge_together` says why.
const ATTEMPTS: usize = 3;

/// The kernels for one shape of states.
#[derive(Debug)]
pub(super) struct Kernels {
    file: &'static str,
    shape: Operator,
    /// Blocks that have a sample together: `AndersonOnChip::CL`.
    cluster: u32,
    /// `AndersonOnChip::THREADS` and `SHARED`.
    block: Block,
    /// Of maps and normalised maps, and of their transposed derivatives.
    names: [&'static str; 4],
}

const fn convolution(channels: usize, side: usize) -> Operator {
    Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 }
}

static KERNELS: [Kernels; 2] = [
    Kernels {
        file: "onchip_anderson_48_32",
        shape: convolution(48, 32),
        cluster: 8,
        block: Block { threads: 512, shared: 230_560 },
        names: [
            "onchip_anderson_solve_48_32",
            "onchip_anderson_solve_normalised_48_32",
            "onchip_anderson_adjoint_48_32",
            "onchip_anderson_adjoint_normalised_48_32",
        ],
    },
    Kernels {
        file: "onchip_anderson_32_28",
        shape: convolution(32, 28),
        cluster: 4,
        block: Block { threads: 512, shared: 214_944 },
        names: [
            "onchip_anderson_solve_32_28",
            "onchip_anderson_solve_normalised_32_28",
            "onchip_anderson_adjoint_32_28",
            "onchip_anderson_adjoint_normalised_32_28",
        ],
    },
];

/// What solves need whose samples end together.
#[derive(Debug)]
pub(super) struct TogetherMemory {
    /// Two `Together` of the kernels: of maps, and of derivatives.
    marks: Memory<u32>,
    /// `[iteration][sample]`: difference and size.
    gaps: Memory<[f64; 2]>,
    /// `[iteration % ANSWERS]`: states.
    answers: Memory<f32>,
}

impl TogetherMemory {
    const MARKS: usize = 3;

    pub fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let marks = Memory::zeros(gpu, 2 * Self::MARKS)?;
        Ok(Self { marks, gaps: Memory::empty(gpu), answers: Memory::empty(gpu) })
    }
}

/// `OnchipAnderson` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Solve {
    weights: u64,
    drive: u64,
    slope: u64,
    norm: Norm,
    start: u64,
    state: u64,
    reports: u64,
    together: u64,
    gaps: u64,
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

// SAFETY: `repr(C)`, the fields of `OnchipAnderson`: 12 addresses, three of them in `Norm`, 2 of 8 bytes and 6 of 4, without padding.
unsafe impl Passed for Solve {}

/// What is iterated: the map with injections `y`, or its transposed derivative with gradients `v`.
#[derive(Clone, Copy)]
pub(super) enum Iterated<'a> {
    Map { y: &'a Memory<f32> },
    Derivative { v: &'a Memory<f32>, at: &'a Linearisation },
}

/// This GPU's kernels for whole solves of this map.
pub(super) fn kernels_for(gpu: &Gpu, map: &ShapedMap) -> Result<Option<&'static Kernels>> {
    let switched_off = std::env::var("SUBDEQ_CUDA_ONCHIP").is_ok_and(|value| value == "0");
    // As `is_short` of `kernels/convolutions.cuh`.
    let short = map.formula == Formula::Single
        && map.activation == Activation::Tanh
        && (map.power == 1.0 || map.base > 1.0);
    let columns = map.norm.is_none_or(|norm| norm == PNorm::Inf);
    let Some(kernels) = KERNELS.iter().find(|kernels| kernels.shape == map.operator) else { return Ok(None) };
    if switched_off || !gpu.is_hopper() || !short || !columns {
        return Ok(None);
    }
    let Kernels { file, cluster, block, names, .. } = *kernels;
    gpu.load(file, block, cluster)?;
    for name in names {
        if gpu.active_clusters(name, block, cluster)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(kernels))
}

impl Operators {
    /// The ridge of a solve that these kernels do.
    pub fn ridge_on_chip(&self, method: Method, stopping: &Stopping) -> Result<Option<f64>> {
        let Method::Anderson { window: WINDOW, ridge, mixing: 1.0 } = method else { return Ok(None) };
        let few = stopping.extent == Extent::PerSample || stopping.max_iterations <= MOST_TOGETHER;
        let usual = stopping.measure == Measure::Relative && few;
        Ok((usual && ridge >= NARROW_RIDGE && self.anderson_on_chip()?.is_some()).then_some(ridge))
    }

    /// Solves what is iterated from the start in `state`; there goes the answer.
    #[allow(clippy::too_many_arguments)] // the problem, how it is solved, and where everything is
    pub fn solve_on_chip(
        &self,
        batch: usize,
        iterated: Iterated,
        ridge: f64,
        stopping: &Stopping,
        state: &mut Memory<f32>,
        together: &mut TogetherMemory,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let (gpu, map) = (&self.gpu, &self.map);
        let kernels = self.anderson_on_chip()?.expect("solves on chip are asked for where there are kernels");
        let derivative = matches!(iterated, Iterated::Derivative { .. });
        let (drive, slope, norm) = match iterated {
            Iterated::Map { y } => (y, 0, Norm::default()),
            Iterated::Derivative { v, at } => (v, at.slopes.address_of(0), at.norm()),
        };
        let mut solve = Solve {
            weights: self.packed_weights(batch, derivative)?.address_of(0),
            drive: drive.address_of(0),
            slope,
            norm,
            start: state.address_of(0),
            state: state.address_of(0),
            reports: reports.address_of(0),
            together: 0,
            gaps: 0,
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
        let kernel = kernels.names[2 * usize::from(derivative) + usize::from(map.norm.is_some())];
        let grid = Grid::blocks(batch * kernels.cluster as usize);
        let launch = |solve: &Solve| gpu.launch_blocks(kernel, grid, kernels.block, &[solve.into()]);
        if stopping.extent == Extent::PerSample {
            return launch(&solve);
        }
        let TogetherMemory { marks, gaps, answers } = together;
        let states = batch * self.len();
        gaps.reserve(batch * stopping.max_iterations)?;
        answers.reserve(ANSWERS * states)?;
        let place = TogetherMemory::MARKS * usize::from(derivative);
        solve.state = answers.address_of(0);
        solve.together = marks.address_of(place);
        solve.gaps = gaps.address_of(0);
        let (rule, one, count) = (Rule::of(stopping), Grid::blocks(1), batch as u32);
        for _ in 0..ATTEMPTS {
            launch(&solve)?;
            launch!(gpu, "judge_together", one, &rule, marks.at(place), &*gaps, count, &mut *reports)?;
        }
        launch!(gpu, "take_together", Grid::entries(states), marks.at(place), &*answers, states, state)
    }
}
