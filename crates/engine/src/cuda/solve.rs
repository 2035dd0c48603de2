//! The driver of a solve: it puts iterations on the stream and looks now and then whether any sample is left.

use std::sync::Arc;

use super::equilibria::ReportRow;
use super::gpu::{Block, Gpu, Grid, Memory};
use super::kernel::{Argument, Passed, launch};
use crate::{Extent, Measure, Result, Stopping};

/// Iterations between two looks: each look waits for the GPU, each iteration too many is wasted.
pub(super) const LOOK: u32 = 8;
/// Numbers of a part of a long state.
const PART: usize = 4096;
/// The largest window of Anderson's method, as in `kernels/anderson.cu`.
pub(super) const MOST: usize = 8;
/// Anderson's memory is kept in `f16` for states longer than this, where reading it is what takes time, and for ridges from this one
/// on: they change the weights more than rounding does.
const NARROW_LEN: usize = 8192;
pub(super) const NARROW_RIDGE: f64 = 1e-6;
/// Longer states have a multiprocessor for themselves, or (Hopper, windows up to this one) a cluster of so many blocks:
/// `kernels/anderson_clusters.cu`.
const WIDE_LEN: usize = 16384;
const CLUSTER_WINDOW: usize = 5;
const CLUSTER: usize = 2;

/// How the next argument is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    /// It is the last image.
    Picard,
    Anderson {
        window: usize,
        ridge: f64,
        mixing: f64,
    },
    Broyden {
        memory: usize,
    },
}

/// A stopping rule, for the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Rule {
    tolerance: f64,
    pub measure: u32,
    pub max_iterations: u32,
    together: u32,
    unused: u32,
}

impl Rule {
    pub fn of(stopping: &Stopping) -> Self {
        Self {
            tolerance: stopping.tolerance,
            measure: match stopping.measure {
                Measure::Relative => 0,
                Measure::Absolute => 1,
                Measure::Thompson => 2,
                Measure::Hilbert => 3,
                Measure::Sup => 4,
            },
            max_iterations: u32::try_from(stopping.max_iterations).unwrap_or(u32::MAX),
            together: u32::from(stopping.extent == Extent::WholeBatch),
            unused: 0,
        }
    }
}

/// Where the samples of a batch stand, for the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Samples {
    progress: u64,
    reports: u64,
    active: u64,
    remaining: u64,
    distances: u64,
}

/// Anderson's memory, for the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Anderson {
    images: u64,
    residuals: u64,
    gram: u64,
    histories: u64,
    ridge: f64,
    mixing: f64,
    len: u64,
    window: u32,
    eights: u32,
}

/// Broyden's memory, for the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Broyden {
    left: u64,
    right: u64,
    arguments: u64,
    images: u64,
    residuals: u64,
    moved: u64,
    changed: u64,
    standings: u64,
    memory: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of `Stopping` and `Samples` in `solve.cuh`, `Anderson` in `anderson.cu`, `Broyden` in `broyden.cu`,
// no padding.
unsafe impl Passed for Rule {}
// SAFETY: as above.
unsafe impl Passed for Samples {}
// SAFETY: as above.
unsafe impl Passed for Anderson {}
// SAFETY: as above.
unsafe impl Passed for Broyden {}

/// `Progress`, `Distance`, `History` and `Standing` of the kernels: the host never looks into them.
type Progress = [f64; 2];
pub(super) type Distance = [f64; 4];
type History = [f64; 11];
type Standing = [f64; 6];

/// Where the samples of a batch stand.
#[derive(Debug)]
pub(super) struct SampleMemory {
    progress: Memory<Progress>,
    pub active: Memory<u32>,
    remaining: Memory<u32>,
    distances: Memory<Distance>,
    /// Of parts of long states.
    part_distances: Memory<Distance>,
}

impl SampleMemory {
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            progress: Memory::empty(gpu),
            active: Memory::empty(gpu),
            remaining: Memory::empty(gpu),
            distances: Memory::empty(gpu),
            part_distances: Memory::empty(gpu),
        }
    }

    /// Whether no sample is worked on any more. Waits for the GPU.
    pub fn all_ended(&self) -> Result<bool> {
        all_ended(&self.remaining)
    }
}

fn all_ended(remaining: &Memory<u32>) -> Result<bool> {
    let mut left = [0];
    remaining.read(0, &mut left)?;
    Ok(left[0] == 0)
}

/// What the accelerated methods remember of every sample.
#[derive(Debug)]
pub(super) struct MethodMemory {
    /// Anderson's differences of images and residuals, which may be pairs of `f16`, or the two sides of Broyden's updates.
    pairs: [Memory<f32>; 2],
    /// Anderson's inner products of residuals.
    gram: Memory<f64>,
    histories: Memory<History>,
    /// Broyden's last argument, image and residual, and the changes of the current step.
    states: [Memory<f32>; 5],
    standings: Memory<Standing>,
}

impl MethodMemory {
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            pairs: [Memory::empty(gpu), Memory::empty(gpu)],
            gram: Memory::empty(gpu),
            histories: Memory::empty(gpu),
            states: [(); 5].map(|()| Memory::empty(gpu)),
            standings: Memory::empty(gpu),
        }
    }
}

/// The kernel that goes with how Anderson's memory is kept, the threads of its blocks, and how many of these a sample has.
struct AndersonKernel {
    name: &'static str,
    threads: u32,
    blocks: usize,
}

impl AndersonKernel {
    /// By the length of a state, the method and the GPU alone, so that the bits of a sample do not depend on the batch.
    fn of(gpu: &Gpu, len: usize, window: usize, narrow: bool) -> Self {
        match narrow {
            false => Self { name: "anderson_step", threads: 256, blocks: 1 },
            true if len <= WIDE_LEN => Self { name: "anderson_step_f16", threads: 256, blocks: 1 },
            true if gpu.is_hopper() && window <= CLUSTER_WINDOW => {
                Self { name: "anderson_step_clusters", threads: 512, blocks: CLUSTER }
            }
            true => Self { name: "anderson_step_f16_wide", threads: 512, blocks: 1 },
        }
    }
}

/// A method with its memory, for the kernels.
enum Choice {
    Picard,
    Anderson(Anderson, AndersonKernel),
    Broyden(Broyden),
}

/// A fixed-point problem for a batch.
pub(super) struct Problem<'a> {
    pub gpu: &'a Gpu,
    pub batch: usize,
    /// Numbers in one state.
    pub len: usize,
    pub method: Method,
    pub stopping: &'a Stopping,
    /// What the equation is made of, and its length per sample: samples where it is not finite have no answer.
    pub given: (&'a Memory<f32>, usize),
    /// Whether the weights are not finite.
    pub bad: &'a Memory<u32>,
    /// Where every step leaves the distances of so many parts of each sample, if it does.
    pub measured: Option<(&'a Memory<Distance>, usize)>,
}

impl Problem<'_> {
    /// Forgets earlier solves: the rule, and where the samples stand.
    pub fn begin(
        &self,
        samples: &mut SampleMemory,
        reports: &mut Memory<ReportRow>,
    ) -> Result<(Rule, Samples)> {
        let Self { gpu, batch, stopping, .. } = *self;
        let SampleMemory { progress, active, remaining, distances, .. } = samples;
        progress.reserve(batch)?;
        active.reserve(batch)?;
        remaining.reserve(1)?;
        distances.reserve(batch)?;
        let rule = Rule::of(stopping);
        let table = Samples {
            progress: progress.address_of(0),
            reports: reports.address_of(0),
            active: active.address_of(0),
            remaining: remaining.address_of(0),
            distances: distances.address_of(0),
        };
        let (given, given_len) = self.given;
        launch!(gpu, "begin_solve", Grid::threads(batch), &table, batch as u32, self.bad)?;
        let shares = parts(given_len);
        let (grid, each) = (Grid(batch as u32, shares as u32, 1), given_len.div_ceil(shares));
        launch!(gpu, "check_given", grid, &table, given, given_len, each)?;
        Ok((rule, table))
    }

    /// Iterates until every sample has ended. The start is in `iterates[0]`; the last images go to `ends`. `step` writes the image
    /// of the argument for the samples that are flagged, and must leave the images of all others as they are.
    pub fn solve(
        &self,
        samples: &mut SampleMemory,
        memory: &mut MethodMemory,
        iterates: &mut [Memory<f32>; 2],
        ends: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
        mut step: impl FnMut(&Memory<f32>, &mut Memory<f32>, &Memory<u32>) -> Result<()>,
    ) -> Result<()> {
        let Self { gpu, batch, len, .. } = *self;
        iterates[1].reserve(batch * len)?;
        let (rule, table) = self.begin(samples, reports)?;
        let SampleMemory { active, remaining, part_distances, .. } = samples;
        let active = &*active;
        let blocks = Grid::blocks(batch);
        let choice = memory.begin(gpu, batch, len, self.method)?;
        let [first, second] = iterates;
        if let Choice::Anderson(memory, kernel) = &choice {
            // The start is the first argument. Images alternate, so that the one before is at hand: even ones are at their end.
            let (grid, block) =
                (Grid::blocks(batch * kernel.blocks), Block { threads: kernel.threads, shared: 0 });
            let argument = first;
            let (mut image, mut before) = (&mut *second, &mut *ends);
            for iteration in 1..=rule.max_iterations {
                step(argument, image, active)?;
                let arguments = [
                    Argument::from(&rule),
                    iteration.into(),
                    (&table).into(),
                    memory.into(),
                    (&mut *argument).into(),
                    (&mut *before).into(),
                    (&mut *image).into(),
                ];
                gpu.launch_blocks(kernel.name, grid, block, &arguments)?;
                if self.all_concluded(&rule, iteration, &table, remaining)? {
                    break;
                }
                std::mem::swap(&mut image, &mut before);
            }
            let even = Argument::from(&*ends);
            return self.take_answers(reports, second, even, ends);
        }
        let (mut argument, mut image) = (&mut *second, &mut *first);
        for iteration in 1..=rule.max_iterations {
            match &choice {
                Choice::Broyden(memory) => {
                    launch!(gpu, "propose_broyden", blocks, memory, len, active, &*image, &mut *argument)?;
                }
                _ => std::mem::swap(&mut argument, &mut image),
            }
            step(argument, image, active)?;
            let (z, f) = (&*argument, &mut *image);
            match &choice {
                Choice::Broyden(memory) => {
                    launch!(gpu, "judge_broyden", blocks, &rule, iteration, &table, memory, z, f, len)?;
                }
                _ => self.conclude(&rule, iteration, &table, active, part_distances, z, f)?,
            }
            if self.all_concluded(&rule, iteration, &table, remaining)? {
                break;
            }
        }
        match &choice {
            Choice::Broyden(_) => ends.copy_from(first, batch * len),
            // Its images alternate between the two.
            _ => self.take_answers(reports, second, (&*first).into(), ends),
        }
    }

    /// After an iteration: whether no sample is worked on any more, as far as it is looked.
    fn all_concluded(
        &self,
        rule: &Rule,
        iteration: u32,
        table: &Samples,
        remaining: &Memory<u32>,
    ) -> Result<bool> {
        if self.stopping.extent == Extent::WholeBatch {
            let (one, count) = (Grid::blocks(1), self.batch as u32);
            launch!(self.gpu, "conclude_together", one, rule, iteration, table, count)?;
        }
        Ok(iteration.is_multiple_of(LOOK) && all_ended(remaining)?)
    }

    /// The last images, where those of odd and of even iterations lie in two places.
    fn take_answers(
        &self,
        reports: &Memory<ReportRow>,
        odd: &Memory<f32>,
        even: Argument,
        ends: &mut Memory<f32>,
    ) -> Result<()> {
        let Self { gpu, batch, len, .. } = *self;
        let (grid, count) = (Grid::samples(batch, len), batch as u32);
        launch!(gpu, "take_answers", grid, count, reports, odd, even, len, ends)
    }

    /// Ends the samples whose images are near enough to their arguments.
    #[allow(clippy::too_many_arguments)] // the rule, where the samples stand, and two states of each
    fn conclude(
        &self,
        rule: &Rule,
        iteration: u32,
        table: &Samples,
        active: &Memory<u32>,
        part_distances: &mut Memory<Distance>,
        argument: &Memory<f32>,
        image: &Memory<f32>,
    ) -> Result<()> {
        let Self { gpu, batch, len, .. } = *self;
        let count = parts(len);
        let (distances, count) = match self.measured {
            Some(measured) => measured,
            None if count == 1 => {
                let blocks = Grid::blocks(batch);
                return launch!(gpu, "conclude_step", blocks, rule, iteration, table, argument, image, len);
            }
            None => {
                part_distances.reserve(batch * count)?;
                let (grid, part) = (Grid(batch as u32, count as u32, 1), len.div_ceil(count));
                let (measure, to) = (rule.measure, &mut *part_distances);
                launch!(gpu, "measure_parts", grid, measure, active, argument, image, len, part, to)?;
                (&*part_distances, count)
            }
        };
        let (warps, count) = (Grid::threads(32 * batch), count as u32);
        launch!(gpu, "conclude_parts", warps, rule, iteration, table, batch as u32, distances, count)
    }
}

/// Parts of a state that several blocks share; by its length alone, so that its bits do not depend on the batch.
fn parts(len: usize) -> usize {
    if len <= 2 * PART { 1 } else { len.div_ceil(PART) }
}

impl MethodMemory {
    /// Forgets earlier solves.
    fn begin(&mut self, gpu: &Gpu, batch: usize, len: usize, method: Method) -> Result<Choice> {
        let Self { pairs, gram, histories, states, standings } = self;
        match method {
            Method::Picard => Ok(Choice::Picard),
            Method::Anderson { window, ridge, mixing } => {
                let narrow = len > NARROW_LEN && ridge >= NARROW_RIDGE;
                let eights = len.div_ceil(8);
                let room = batch * window * eights * if narrow { 4 } else { 8 };
                pairs.iter_mut().try_for_each(|pair| pair.reserve(room))?;
                gram.reserve(batch * window * window)?;
                histories.reserve(batch)?;
                let memory = Anderson {
                    images: pairs[0].address_of(0),
                    residuals: pairs[1].address_of(0),
                    gram: gram.address_of(0),
                    histories: histories.address_of(0),
                    ridge,
                    mixing,
                    len: len as u64,
                    window: window as u32,
                    eights: eights as u32,
                };
                launch!(gpu, "begin_anderson", Grid::threads(batch), &memory, batch as u32)?;
                Ok(Choice::Anderson(memory, AndersonKernel::of(gpu, len, window, narrow)))
            }
            Method::Broyden { memory } => {
                pairs.iter_mut().try_for_each(|pair| pair.reserve(batch * memory * len))?;
                states.iter_mut().try_for_each(|state| state.reserve(batch * len))?;
                standings.reserve(batch)?;
                let [arguments, images, residuals, moved, changed] =
                    states.each_ref().map(|m| m.address_of(0));
                let memory = Broyden {
                    left: pairs[0].address_of(0),
                    right: pairs[1].address_of(0),
                    arguments,
                    images,
                    residuals,
                    moved,
                    changed,
                    standings: standings.address_of(0),
                    memory: memory as u32,
                    unused: 0,
                };
                launch!(gpu, "begin_broyden", Grid::threads(batch), &memory, batch as u32)?;
                Ok(Choice::Broyden(memory))
            }
        }
    }
}
