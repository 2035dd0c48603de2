//! Whole solves in one launch, their state on chip: for the maps and shapes that there are such kernels for. All others, and all
//! GPUs that cannot run them, take the general path; answers are the same within the tolerance.
//!
//! Convolutions (`kernels/onchip.cuh`) have kernels for a few shapes, on compute capability 9.0; dense maps (`kernels/onchip_dense.cu`)
//! for up to 128 units, on every GPU. `SUBDEQ_CUDA_ONCHIP=0` in the environment leaves all to the general path.

use std::sync::Arc;

use super::equilibria::ReportRow;
use super::gpu::{Block, Gpu, Grid, Memory};
use super::kernel::{Argument, Passed};
use super::plan::MapConstants;
use super::solve::Rule;
use crate::map::Formula;
use crate::{
    Activation, Extent, Injection, Measure, Operator, Padding, Result, ShapedMap, Solver, Start, Stopping,
};

/// The kernels that a map's solves fit into.
#[derive(Debug)]
pub(super) enum Onchip {
    Convolution(Convolution),
    Dense(&'static DenseKernels),
}

/// A convolution's kernels, and its weights as they read them.
#[derive(Debug)]
pub(super) struct Convolution {
    kernels: &'static ConvolutionKernels,
    /// High and low halves, for the map and for its adjoint.
    forward: Memory<Chunk>,
    backward: Memory<Chunk>,
    /// What the weights make of a state of ones, by where a pixel lies.
    sums: Memory<f32>,
}

/// 16 bytes.
type Chunk = [u32; 4];

/// The kernels for one shape: `onchip_c48.cu` and its like.
#[derive(Debug)]
pub(super) struct ConvolutionKernels {
    channels: usize,
    height: usize,
    width: usize,
    module: &'static str,
    solve: &'static str,
    adjoint: &'static str,
    slopes: &'static str,
    pack: &'static str,
    /// Blocks of an image: a cluster.
    bands: u32,
    /// `THREADS` and `SHARED` of the shape in `onchip.cuh`.
    block: Block,
}

macro_rules! convolution {
    ($name:literal: $channels:literal x $height:literal x $width:literal, $bands:literal bands, $shared:literal bytes) => {
        ConvolutionKernels {
            channels: $channels,
            height: $height,
            width: $width,
            module: concat!("onchip_", $name),
            solve: concat!("onchip_solve_", $name),
            adjoint: concat!("onchip_adjoint_", $name),
            slopes: concat!("onchip_slopes_", $name),
            pack: concat!("onchip_pack_", $name),
            bands: $bands,
            block: Block { threads: 256, shared: $shared },
        }
    };
}
const CONVOLUTIONS: [ConvolutionKernels; 4] = [
    convolution!("c16": 16 x 28 x 28, 1 bands, 65_104 bytes),
    convolution!("c32": 32 x 28 x 28, 1 bands, 148_496 bytes),
    convolution!("c48": 48 x 32 x 32, 2 bands, 200_720 bytes),
    convolution!("c64": 64 x 64 x 64, 16 bands, 177_168 bytes),
];

/// The kernels for up to so many units.
#[derive(Debug)]
pub(super) struct DenseKernels {
    units: usize,
    solve: &'static str,
    adjoint: &'static str,
}

const DENSE: [DenseKernels; 4] = [
    DenseKernels { units: 32, solve: "onchip_dense_solve_32", adjoint: "onchip_dense_adjoint_32" },
    DenseKernels { units: 64, solve: "onchip_dense_solve_64", adjoint: "onchip_dense_adjoint_64" },
    DenseKernels { units: 96, solve: "onchip_dense_solve_96", adjoint: "onchip_dense_adjoint_96" },
    DenseKernels { units: 128, solve: "onchip_dense_solve_128", adjoint: "onchip_dense_adjoint_128" },
];

/// `OnchipArgs` of `onchip.cuh`.
#[repr(C)]
struct ConvolutionSolve {
    weights: u64,
    sums: u64,
    drive: u64,
    slope: u64,
    q: u64,
    bad: u64,
    state: u64,
    reports: u64,
    refreshes: u64,
    shift: f32,
    start: f32,
    tolerance: f32,
    max_iterations: u32,
    inner: u32,
    given: u32,
}

/// `OnchipSlopesArgs` of `onchip.cuh`.
#[repr(C)]
struct Slopes {
    weights: u64,
    y: u64,
    z: u64,
    slopes: u64,
    inner: u32,
    unused: u32,
}

/// `DenseSolve` of `onchip_dense.cu`.
#[repr(C)]
struct DenseSolve {
    weights: u64,
    drive: u64,
    at: u64,
    at_injection: u64,
    state: u64,
    reports: u64,
    bad: u64,
    stopping: Rule,
    start: f32,
    n: u32,
    given: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of `OnchipArgs`: 9 of 8 bytes and 6 of 4, without padding.
unsafe impl Passed for ConvolutionSolve {}
// SAFETY: `repr(C)`, the fields of `OnchipSlopesArgs`, 4 of 8 bytes and one of 4, and what that struct is padded with.
unsafe impl Passed for Slopes {}
// SAFETY: `repr(C)`, the fields of `DenseSolve`: 7 of 8 bytes, `Stopping` of 24, 4 of 4, without padding.
unsafe impl Passed for DenseSolve {}

/// What a solve is about, besides its arrays.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub gpu: &'a Gpu,
    pub map: &'a ShapedMap,
    pub constants: &'a MapConstants,
    pub weights: &'a Memory<f32>,
    /// Its one number is not 0 if a weight is not finite.
    pub bad: &'a Memory<u32>,
    pub batch: usize,
    pub stopping: &'a Stopping,
}

impl Onchip {
    /// The kernels for a map, if there are any that this GPU can run.
    pub fn of(gpu: &Arc<Gpu>, map: &ShapedMap) -> Result<Option<Self>> {
        let switched_off = std::env::var("SUBDEQ_CUDA_ONCHIP").is_ok_and(|value| value == "0");
        if switched_off || map.formula != Formula::Single || map.norm.is_some() {
            return Ok(None);
        }
        match map.operator {
            Operator::Dense { n } => Ok(DENSE.iter().find(|kernels| n <= kernels.units).map(Self::Dense)),
            Operator::Conv { channels, height, width, padding: Padding::Zero, kernel: 3 } => {
                let plain = map.activation == Activation::Tanh && map.power == 1.0;
                let shape = (channels, height, width);
                let kernels = CONVOLUTIONS.iter().find(|k| (k.channels, k.height, k.width) == shape);
                match kernels.filter(|_| plain && gpu.is_hopper()) {
                    Some(kernels) => Ok(Convolution::new(gpu, kernels)?.map(Self::Convolution)),
                    None => Ok(None),
                }
            }
            Operator::Conv { .. } => Ok(None),
        }
    }

    /// Whether the kernels iterate and stop in this way.
    pub fn fits(solver: &Solver, stopping: &Stopping) -> bool {
        *solver == Solver::Picard
            && stopping.measure == Measure::Relative
            && stopping.extent == Extent::PerSample
    }

    /// After new weights.
    pub fn load(&mut self, gpu: &Gpu, weights: &Memory<f32>) -> Result<()> {
        match self {
            Self::Convolution(convolution) => convolution.pack(gpu, weights),
            Self::Dense(_) => Ok(()),
        }
    }

    /// `z = F(z; y)`.
    pub fn solve(
        &self,
        problem: &Problem,
        y: &Memory<f32>,
        start: Start,
        z: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let (given, start) = match start {
            Start::Given => (1, 0.0),
            Start::Constant(value) => (0, value as f32),
        };
        match self {
            Self::Convolution(convolution) => {
                let solve = ConvolutionSolve {
                    weights: convolution.forward.address_of(0),
                    given,
                    start,
                    ..convolution.problem(problem, y, z, reports)
                };
                convolution.launch(problem, convolution.kernels.solve, (&solve).into())
            }
            Self::Dense(kernels) => {
                let solve = DenseSolve { given, start, ..dense_problem(problem, y, z, reports) };
                kernels.launch(problem, kernels.solve, &solve)
            }
        }
    }

    /// `g = J' g + v` at `(z, y)`; `slopes` are the convolution's there. With `q`, they become `q = D g`.
    #[allow(clippy::too_many_arguments)] // as `Equilibria::adjoint`
    pub fn adjoint(
        &self,
        problem: &Problem,
        (z, y): (&Memory<f32>, &Memory<f32>),
        slopes: &Memory<f32>,
        q: bool,
        v: &Memory<f32>,
        g: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        match self {
            Self::Convolution(convolution) => {
                let solve = ConvolutionSolve {
                    weights: convolution.backward.address_of(0),
                    slope: slopes.address_of(0),
                    q: if q { slopes.address_of(0) } else { 0 },
                    ..convolution.problem(problem, v, g, reports)
                };
                convolution.launch(problem, convolution.kernels.adjoint, (&solve).into())
            }
            Self::Dense(kernels) => {
                let solve = DenseSolve {
                    at: z.address_of(0),
                    at_injection: y.address_of(0),
                    ..dense_problem(problem, v, g, reports)
                };
                kernels.launch(problem, kernels.adjoint, &solve)
            }
        }
    }
}

impl Convolution {
    /// `None` where so large a cluster does not find room, as in a part of a GPU.
    fn new(gpu: &Arc<Gpu>, kernels: &'static ConvolutionKernels) -> Result<Option<Self>> {
        let ConvolutionKernels { module, block, bands, .. } = *kernels;
        gpu.load(module, block, bands)?;
        for kernel in [kernels.solve, kernels.adjoint, kernels.slopes] {
            if bands > 1 && gpu.active_clusters(kernel, block, bands)? == 0 {
                return Ok(None);
            }
        }
        // Two halves of 2 bytes for each weight.
        let chunks = 9 * kernels.channels * kernels.channels / 4;
        Ok(Some(Self {
            kernels,
            forward: Memory::room(gpu, chunks)?,
            backward: Memory::room(gpu, chunks)?,
            sums: Memory::room(gpu, 9 * kernels.channels)?,
        }))
    }

    fn pack(&mut self, gpu: &Gpu, weights: &Memory<f32>) -> Result<()> {
        let Self { kernels, forward, backward, sums } = self;
        // A thread for each chunk of 8 halves of either direction, a warp for each sum.
        let threads = (9 * kernels.channels * kernels.channels / 4).max(32 * kernels.channels);
        let arguments = [weights.into(), forward.into(), backward.into(), sums.into()];
        gpu.launch(kernels.pack, Grid::threads(threads), &arguments)
    }

    fn problem(
        &self,
        problem: &Problem,
        drive: &Memory<f32>,
        state: &Memory<f32>,
        reports: &Memory<ReportRow>,
    ) -> ConvolutionSolve {
        let Problem { map, bad, stopping, .. } = *problem;
        ConvolutionSolve {
            weights: 0,
            sums: self.sums.address_of(0),
            drive: drive.address_of(0),
            slope: 0,
            q: 0,
            bad: bad.address_of(0),
            state: state.address_of(0),
            reports: reports.address_of(0),
            refreshes: 0,
            shift: map.shift as f32,
            start: 0.0,
            // A little less, so that rounding does not call converged what is above it.
            tolerance: (stopping.tolerance * (1.0 - 1e-6)) as f32,
            max_iterations: u32::try_from(stopping.max_iterations).unwrap_or(u32::MAX),
            inner: u32::from(map.injection == Injection::Inner),
            given: 0,
        }
    }

    fn launch(&self, problem: &Problem, kernel: &'static str, argument: Argument) -> Result<()> {
        let grid = Grid::blocks(problem.batch * self.kernels.bands as usize);
        problem.gpu.launch_blocks(kernel, grid, self.kernels.block, &[argument])
    }

    /// The slopes of the activation at `(z, y)`.
    pub fn slopes(
        &self,
        gpu: &Gpu,
        inner: bool,
        batch: usize,
        (z, y): (&Memory<f32>, &Memory<f32>),
        slopes: &mut Memory<f32>,
    ) -> Result<()> {
        let arguments = Slopes {
            weights: self.forward.address_of(0),
            y: y.address_of(0),
            z: z.address_of(0),
            slopes: slopes.address_of(0),
            inner: u32::from(inner),
            unused: 0,
        };
        let grid = Grid::blocks(batch * self.kernels.bands as usize);
        gpu.launch_blocks(self.kernels.slopes, grid, self.kernels.block, &[(&arguments).into()])
    }
}

impl DenseKernels {
    fn launch(&self, problem: &Problem, kernel: &'static str, solve: &DenseSolve) -> Result<()> {
        let block = Block { threads: self.units as u32, shared: 0 };
        let arguments = [problem.constants.into(), solve.into()];
        problem.gpu.launch_blocks(kernel, Grid::blocks(problem.batch), block, &arguments)
    }
}

fn dense_problem(
    problem: &Problem,
    drive: &Memory<f32>,
    state: &Memory<f32>,
    reports: &Memory<ReportRow>,
) -> DenseSolve {
    DenseSolve {
        weights: problem.weights.address_of(0),
        drive: drive.address_of(0),
        at: 0,
        at_injection: 0,
        state: state.address_of(0),
        reports: reports.address_of(0),
        bad: problem.bad.address_of(0),
        stopping: Rule::of(problem.stopping),
        start: 0.0,
        n: problem.map.operator.units() as u32,
        given: 0,
        unused: 0,
    }
}
