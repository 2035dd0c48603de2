//! Peaceman-Rachford's splitting of circular convolutions of square images of some sizes: a block of the GPU has whole images, so that an
//! iteration is the products at each frequency and one kernel for everything else.

use super::equilibria::ReportRow;
use super::fourier::{Iteration, Waters, Waves};
use super::gpu::{Block, Grid, Memory};
use super::kernel::{Argument, Passed, address, launch};
use super::solve::{LOOK, Problem, Rule, SampleMemory, Samples};
use crate::{Activation, Extent, Measure, Result, Stopping};

/// The kernels for images of one size.
pub(super) struct Planes {
    size: usize,
    /// Channels of a block.
    channels: usize,
    /// An iteration of an adjoint, of a kinked activation, and of tanh with step 1.
    steps: [&'static str; 3],
    forth: &'static str,
    back: &'static str,
}

macro_rules! planes {
    ($size:literal, $channels:literal) => {
        Planes {
            size: $size,
            channels: $channels,
            steps: [
                concat!("fourier_plane_slopes_", $size),
                concat!("fourier_plane_kinked_", $size),
                concat!("fourier_plane_tanh_", $size),
            ],
            forth: concat!("fourier_forth_", $size),
            back: concat!("fourier_back_", $size),
        }
    };
}
const PLANES: [Planes; 4] = [planes!(8, 32), planes!(16, 16), planes!(28, 8), planes!(32, 8)];

/// Threads of a block, as in `fourier.cu`.
const THREADS: u32 = 128;
/// The least tolerance at which samples may send changes: rounding to `f16` would show below.
const LEAST_TOLERANCE: f64 = 1e-6;

/// `Course` of `fourier.cu`.
#[repr(C)]
struct Course {
    rule: Rule,
    samples: Samples,
    parts: u64,
    arrived: u64,
    flows: u64,
}

// SAFETY: `repr(C)`, the fields of the struct of the same name in `fourier.cu`, no padding: 24, 40 and three times 8 bytes.
unsafe impl Passed for Course {}

impl Planes {
    /// `Frame` of `fourier.cu`: the row spectra and the images of a block's channels, in rows that are a little longer.
    fn block(&self) -> Block {
        let spectra = self.size * (self.size / 2 * self.channels + 8) * size_of::<[f32; 2]>();
        let images = self.size * (self.size + 1) * self.channels * size_of::<f32>();
        Block { threads: THREADS, shared: (spectra + images) as u32 }
    }

    /// Blocks that share a sample.
    fn groups(&self, channels: usize) -> usize {
        channels.div_ceil(self.channels)
    }
}

impl Iteration<'_> {
    /// The kernels for whole images, and the one of these that does an iteration, if there are such.
    pub fn planes(&self) -> Option<(&'static Planes, &'static str)> {
        let kind = match self.operators.map.activation {
            _ if self.slopes.is_some() => 0,
            Activation::Relu | Activation::LeakyRelu { .. } | Activation::Identity => 1,
            Activation::Tanh if self.step == 1.0 => 2,
            _ => return None,
        };
        let shape = &self.resolvent.shape;
        let fits = |planes: &&Planes| {
            [shape.height, shape.width] == [planes.size; 2] && shape.units.is_multiple_of(2)
        };
        PLANES.iter().find(fits).map(|planes| (planes, planes.steps[kind]))
    }

    fn launch_planes(&self, planes: &Planes, name: &'static str, arguments: &[Argument]) -> Result<()> {
        let blocks = self.batch * planes.groups(self.resolvent.shape.units);
        self.gpu.launch_blocks(name, Grid::blocks(blocks), planes.block(), arguments)
    }

    /// `to <- C (a x + b) + c x + d`, for all samples; to `second` too, if it is given.
    pub fn image_of_planes(
        &self,
        planes: &Planes,
        waves: &mut Waves,
        x: &Memory<f32>,
        [(a, b), (c, d)]: [(f32, f32); 2],
        to: &mut Memory<f32>,
        second: Option<&mut Memory<f32>>,
    ) -> Result<()> {
        let plane = self.plane();
        let spectra = Argument::from(&waves.spectra[0]);
        let arguments = [(&plane).into(), a.into(), x.into(), b.into(), spectra];
        self.launch_planes(planes, planes.forth, &arguments)?;
        self.product(waves, false, None)?;
        let (spectra, second) = (Argument::from(&waves.spectra[0]), Argument::from(second.as_deref()));
        let arguments = [(&plane).into(), spectra, c.into(), x.into(), d.into(), to.into(), second];
        self.launch_planes(planes, planes.back, &arguments)
    }

    /// Iterates from `g` until every sample has ended.
    #[allow(clippy::too_many_arguments)] // a solve has this many sides
    pub fn run_planes(
        &self,
        (planes, step): (&Planes, &'static str),
        problem: &Problem,
        samples: &mut SampleMemory,
        reports: &mut Memory<ReportRow>,
        waves: &mut Waves,
        k: &Memory<f32>,
        g: &mut Memory<f32>,
    ) -> Result<()> {
        let (rule, table) = problem.begin(samples, reports)?;
        let (gpu, n) = (self.gpu, self.batch as u32);
        let changes = sends_changes(problem.stopping);
        waves.begin(self, changes)?;
        waves.parts.reserve(self.batch * planes.groups(self.resolvent.shape.units))?;
        waves.arrived.reserve(self.batch)?;
        let (grid, flows) = (Grid::threads(self.batch), changes.then_some(&waves.flows));
        launch!(gpu, "begin_flows", grid, flows, &waves.arrived, n)?;
        let (parts, arrived) = (waves.parts.address_of(0), waves.arrived.address_of(0));
        let course = Course { rule, samples: table, parts, arrived, flows: address(flows) };
        let (plane, by) = (self.plane(), self.reflection());
        let advance = |iteration: u32, waves: &Waters| {
            let arguments: [Argument; 8] = [
                (&plane).into(),
                (&course).into(),
                iteration.into(),
                (&by).into(),
                waves.into(),
                k.into(),
                self.slopes.into(),
                (&*g).into(),
            ];
            self.launch_planes(planes, step, &arguments)
        };
        advance(0, &waves.waters()[0])?;
        for iteration in 1..=rule.max_iterations {
            self.product(waves, changes, Some(&samples.active))?;
            advance(iteration, &waves.waters()[0])?;
            if problem.stopping.extent == Extent::WholeBatch {
                launch!(gpu, "conclude_together", Grid::blocks(1), &rule, iteration, &table, n)?;
            }
            if iteration.is_multiple_of(LOOK) && samples.all_ended()? {
                break;
            }
        }
        Ok(())
    }
}

/// Whether most iterations send only changes: where every sample ends by itself on its relative residual.
fn sends_changes(stopping: &Stopping) -> bool {
    stopping.extent == Extent::PerSample
        && stopping.measure == Measure::Relative
        && stopping.tolerance >= LEAST_TOLERANCE
}
