//! Peaceman-Rachford's splitting of circular convolutions of square images of some sizes: a block of the GPU has whole images, so that an
//! iteration is the products at each frequency and one kernel for everything else.

use super::equilibria::ReportRow;
use super::fourier::{Iteration, PART, Sent, Slopes, Waves};
use super::gpu::{Block, Grid, Memory};
use super::kernel::{Argument, Passed, address, launch};
use super::resolvent::Shape;
use super::solve::{LOOK, Problem, Rule, SampleMemory, Samples};
use crate::{Activation, Extent, Measure, Result, Stopping};

/// The kernels for images of one size.
pub(super) struct Planes {
    size: usize,
    /// Channels of a block.
    channels: usize,
    /// An iteration of an adjoint, of a kinked activation, of tanh with step 1, and of the adjoint of a kinked activation, by masks.
    steps: [&'static str; 4],
    /// The same for samples whose changes come back and that send changes, where there are such kernels (`ripples.cuh`).
    ripples: Option<[&'static str; 4]>,
    forth: &'static str,
    back: &'static str,
}

macro_rules! planes {
    ($size:literal, $channels:literal, $ripples:expr) => {
        Planes {
            size: $size,
            channels: $channels,
            steps: [
                concat!("fourier_plane_slopes_", $size),
                concat!("fourier_plane_kinked_", $size),
                concat!("fourier_plane_tanh_", $size),
                concat!("fourier_plane_masks_", $size),
            ],
            ripples: $ripples,
            forth: concat!("fourier_forth_", $size),
            back: concat!("fourier_back_", $size),
        }
    };
}
macro_rules! ripples {
    ($size:literal) => {
        Some([
            concat!("fourier_ripple_slopes_", $size),
            concat!("fourier_ripple_kinked_", $size),
            concat!("fourier_ripple_tanh_", $size),
            concat!("fourier_ripple_masks_", $size),
        ])
    };
}
const PLANES: [Planes; 4] =
    [planes!(8, 32, None), planes!(16, 16, None), planes!(28, 8, ripples!(28)), planes!(32, 8, ripples!(32))];

/// Threads of a block, as in `fourier.cu`.
const THREADS: u32 = 128;
/// The same of the kernels for ripples, and the channels of a block.
const RIPPLE_THREADS: u32 = 256;
const RIPPLE_CHANNELS: usize = 16;
/// Samples send all of their waves in multiples of this iteration, as in `fourier.cuh`.
const WHOLE_PERIOD: u32 = 4;
/// Where samples may send changes, one of so many iterations goes half of the way, which ends what changes its sign in every iteration, and the
/// others all of it. Nine tenths in each, as elsewhere, would need what is left of each step: that took a third more time an iteration.
const HALF_PERIOD: u32 = 8;
/// Which of these: in it and in the next one all samples that have not ended have changes coming back and send changes.
const HALF_PHASE: u32 = 6;
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

/// Who sends what in an iteration of a solve whose samples may send changes.
#[derive(Clone, Copy)]
struct Tide {
    iteration: u32,
    /// The first iteration in which samples may send changes.
    first: u32,
}

impl Tide {
    /// Whether samples may send all of their waves: those that do not send changes.
    fn may_be_whole(self) -> bool {
        self.must_be_whole() || self.iteration.is_multiple_of(WHOLE_PERIOD)
    }

    /// Whether all samples send all of them.
    fn must_be_whole(self) -> bool {
        self.iteration < self.first
    }

    /// Whether it goes half of the way.
    fn goes_half(self) -> bool {
        self.iteration % HALF_PERIOD == HALF_PHASE
    }

    fn sent(self) -> Sent {
        match (self.must_be_whole(), self.may_be_whole()) {
            (true, _) => Sent::All,
            (false, true) => Sent::Either,
            (false, false) if self.goes_half() => Sent::AfterHalf,
            (false, false) => Sent::Changes,
        }
    }
}

impl Shape {
    /// The kernels for whole images of this shape, if there are such.
    pub fn planes(&self) -> Option<&'static Planes> {
        let fits =
            |planes: &&Planes| [self.height, self.width] == [planes.size; 2] && self.units.is_multiple_of(2);
        PLANES.iter().find(fits)
    }
}

impl Planes {
    /// `Frame` of `fourier.cuh`: the row spectra and the images of a block's channels, in rows that are a little longer.
    fn block(&self) -> Block {
        let spectra = self.size * (self.size / 2 * self.channels + 8) * size_of::<[f32; 2]>();
        Block { threads: THREADS, shared: (spectra + self.images()) as u32 }
    }

    /// `Ripples` of `ripples.cuh`: the changes of two tiles of eight channels, in columns that are a little longer, and for each warp two rows
    /// of 16 channels of g, and of the slopes.
    fn ripple_block(&self, slopes: bool) -> Block {
        let changes = 2 * (self.size / 2 + 1) * (self.size * 8 + 8);
        let rows = RIPPLE_THREADS as usize / 32 * if slopes { 4 } else { 2 };
        let numbers = changes + rows * self.size * RIPPLE_CHANNELS;
        Block { threads: RIPPLE_THREADS, shared: (numbers * size_of::<f32>()) as u32 }
    }

    /// Bytes of the images of a block.
    fn images(&self) -> usize {
        self.size * (self.size + 1) * self.channels * size_of::<f32>()
    }

    /// Blocks that share a sample.
    fn groups(&self, channels: usize) -> usize {
        channels.div_ceil(self.channels)
    }
}

impl Iteration<'_> {
    /// The kernels for whole images, and the number of the ones that do an iteration, if there are such.
    pub fn planes(&self) -> Option<(&'static Planes, usize)> {
        let kind = match (self.slopes, self.operators.map.activation) {
            (Some(Slopes::Any(_)), _) => 0,
            (Some(Slopes::AtKink(_)), _) => 3,
            (None, Activation::Relu | Activation::LeakyRelu { .. } | Activation::Identity) => 1,
            (None, Activation::Tanh) if self.step == 1.0 => 2,
            _ => return None,
        };
        self.resolvent.shape.planes().map(|planes| (planes, kind))
    }

    fn launch_planes(&self, planes: &Planes, name: &'static str, arguments: &[Argument]) -> Result<()> {
        self.gpu.launch_blocks(name, self.grid_of(planes), planes.block(), arguments)
    }

    fn grid_of(&self, planes: &Planes) -> Grid {
        Grid::blocks(self.batch * planes.groups(self.resolvent.shape.units))
    }

    /// `to <- k`, for all samples.
    pub fn image_of_planes(&self, planes: &Planes, waves: &mut Waves, to: &mut Memory<f32>) -> Result<()> {
        let (plane, x, [(a, b), (c, d)]) = (self.plane(), self.x, self.parts);
        let spectra = Argument::from(&waves.spectra[0]);
        let arguments = [(&plane).into(), a.into(), x.into(), b.into(), spectra];
        self.launch_planes(planes, planes.forth, &arguments)?;
        self.product(waves, Sent::All, None)?;
        let spectra = Argument::from(&waves.spectra[0]);
        let arguments = [(&plane).into(), spectra, c.into(), x.into(), d.into(), to.into()];
        self.launch_planes(planes, planes.back, &arguments)
    }

    /// Iterates from `g` until every sample has ended.
    #[allow(clippy::too_many_arguments)] // a solve has this many sides
    pub fn run_planes(
        &self,
        (planes, kind): (&Planes, usize),
        problem: &Problem,
        samples: &mut SampleMemory,
        reports: &mut Memory<ReportRow>,
        waves: &mut Waves,
        starts_at_k: bool,
        g: &mut Memory<f32>,
    ) -> Result<()> {
        let (rule, table) = problem.begin(samples, reports)?;
        let (gpu, n) = (self.gpu, self.batch as u32);
        let changes = sends_changes(problem.stopping);
        waves.begin(self, changes)?;
        waves.parts.reserve(self.batch * planes.groups(self.resolvent.shape.units))?;
        waves.arrived.reserve(self.batch)?;
        let (grid, flows) = (Grid::threads(self.batch), changes.then_some(&waves.flows));
        // How large the first change may be is known where an iteration starts at k: no larger than that.
        let first = if starts_at_k { 1 } else { 2 };
        launch!(gpu, "begin_flows", grid, flows, !starts_at_k, &waves.arrived, n)?;
        let (parts, arrived) = (waves.parts.address_of(0), waves.arrived.address_of(0));
        let course = Course { rule, samples: table, parts, arrived, flows: address(flows) };
        let (plane, source) = (self.plane(), self.source());
        let half = |iteration| changes && Tide { iteration, first }.goes_half();
        let by = |iteration| match (changes, half(iteration)) {
            (true, true) => self.reflection(0.5),
            (true, false) => self.reflection(1.0),
            (false, _) => self.reflection(PART),
        };
        // What has come, and where it goes.
        let waters = |iteration, waves: &Waves| {
            let [from, _] = waves.waters();
            (from, if half(iteration) { waves.beside(self) } else { from })
        };
        let slopes: Argument = match self.slopes {
            None => None::<&Memory<f32>>.into(),
            Some(Slopes::Any(slopes)) => slopes.into(),
            Some(Slopes::AtKink(z)) => {
                // Images are at most 32 wide: a mask is one number.
                let rows = self.batch * self.resolvent.shape.height * self.resolvent.shape.units;
                waves.masks.reserve(rows)?;
                launch!(gpu, "kink_masks", Grid::threads(rows), &plane, z, &waves.masks)?;
                (&waves.masks).into()
            }
        };
        // Channels in sixteens, as ripples are for.
        let ripples = planes.ripples.filter(|_| changes && self.changes_product().is_some());
        let advance = |iteration: u32, waves: &Waves, others: bool| {
            let (by, (from, to)) = (by(iteration), waters(iteration, waves));
            let arguments: [Argument; 10] = [
                (&plane).into(),
                (&course).into(),
                iteration.into(),
                (&by).into(),
                (&from).into(),
                (&to).into(),
                (&source).into(),
                slopes,
                (&*g).into(),
                others.into(),
            ];
            self.launch_planes(planes, planes.steps[kind], &arguments)
        };
        let ripple = |name: &'static str, iteration: u32, waves: &Waves| {
            let (by, (from, to)) = (by(iteration), waters(iteration, waves));
            let arguments: [Argument; 8] = [
                (&plane).into(),
                (&course).into(),
                iteration.into(),
                (&by).into(),
                (&from).into(),
                (&to).into(),
                slopes,
                (&*g).into(),
            ];
            let grid = Grid::blocks(self.batch * self.resolvent.shape.units / RIPPLE_CHANNELS);
            self.gpu.launch_blocks(name, grid, planes.ripple_block(kind == 0), &arguments)
        };
        advance(0, waves, false)?;
        for iteration in 1..=rule.max_iterations {
            let (before, now) = (Tide { iteration: iteration - 1, first }, Tide { iteration, first });
            self.product(waves, if changes { before.sent() } else { Sent::All }, Some(&samples.active))?;
            match ripples {
                Some(names) if !before.must_be_whole() => {
                    // First: of the samples it moves none is whole afterwards, as long as others may be.
                    ripple(names[kind], iteration, waves)?;
                    if before.may_be_whole() || now.may_be_whole() {
                        advance(iteration, waves, true)?;
                    }
                }
                _ => advance(iteration, waves, false)?,
            }
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
