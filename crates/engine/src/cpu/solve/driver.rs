//! Drivers: they advance a method and decide when each sample, or the whole batch, has ended.

use super::{Iterates, Method};
use crate::cpu::conv::{Accuracy, Graded, GradedScratch, set_accuracy};
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;
use crate::{Measure, Outcome, SampleReport, Stopping};

/// Iterations without a smaller residual after which a residual near the rounding level counts as stagnated.
const PATIENCE: u32 = 12;
/// The rounding level, in units of the number type's epsilon: a residual above it may still fall.
const ROUNDING_LEVEL: f64 = 1000.0;

/// Memory that a solve of one block needs besides that of the map and of the method; kept between solves.
#[derive(Default)]
pub(crate) struct Workspace<T: SimdReal> {
    /// Arguments and images.
    pub iterates: Iterates<T>,
    active: Vec<usize>,
    done: Vec<usize>,
    distances: Vec<Distance>,
    progress: Vec<Progress>,
    graded: GradedScratch,
}

/// The smallest residual of a sample so far, and for how long it has not become smaller.
#[derive(Clone, Copy)]
struct Progress {
    best: f64,
    since: u32,
}

impl Progress {
    const NONE: Progress = Progress { best: f64::INFINITY, since: 0 };

    fn see(&mut self, residual: f64) {
        if residual < self.best {
            *self = Progress { best: residual, since: 0 };
        } else {
            self.since += 1;
        }
    }

    fn stagnated<T: SimdReal>(&self, measure: Measure, size: f64) -> bool {
        let unit = match measure {
            Measure::Relative | Measure::Thompson | Measure::Hilbert => 1.0,
            Measure::Absolute | Measure::Sup => size.sqrt().max(1.0),
        };
        self.since >= PATIENCE && self.best <= ROUNDING_LEVEL * T::EPSILON.to_f64() * unit
    }
}

impl<T: SimdReal> Workspace<T> {
    /// Makes room for `samples` states of `state_len` numbers.
    pub fn reserve(&mut self, samples: usize, state_len: usize) {
        self.iterates.argument.reserve_zeros(samples * state_len);
        self.iterates.image.reserve_zeros(samples * state_len);
        self.active.reserve(samples);
        self.done.reserve(samples);
        self.distances.resize(self.distances.len().max(samples), Distance::EMPTY);
        self.progress.resize(self.progress.len().max(samples), Progress::NONE);
    }

    fn begin(&mut self, samples: usize) {
        self.active.clear();
        self.active.extend(0..samples);
        self.progress[..samples].fill(Progress::NONE);
    }
}

/// One block of samples to solve. The start must be in `workspace.iterates.image`.
pub(crate) struct Block<'a, T: SimdReal> {
    /// The problem.
    pub step: &'a mut dyn FixedPointStep<T>,
    /// The method.
    pub method: &'a mut dyn Method<T>,
    /// Memory, with the start in its images.
    pub workspace: &'a mut Workspace<T>,
    /// One answer per sample.
    pub answers: &'a mut [T],
    /// One report per sample.
    pub reports: &'a mut [SampleReport],
}

/// How a sample stands after an application of its map, if it has ended.
fn outcome<T: SimdReal>(
    distance: &Distance,
    progress: &mut Progress,
    stopping: &Stopping,
    iteration: usize,
) -> Option<Outcome> {
    let residual = distance.value(stopping.measure);
    progress.see(residual);
    if !distance.is_finite() || residual.is_nan() {
        Some(Outcome::NotFinite)
    } else if residual <= stopping.tolerance {
        Some(Outcome::Converged)
    } else if progress.stagnated::<T>(stopping.measure, distance.size) {
        Some(Outcome::Stagnated)
    } else if iteration >= stopping.max_iterations {
        Some(Outcome::IterationLimit)
    } else {
        None
    }
}

/// Iterates each sample of a block until it ends by itself.
pub(crate) fn solve_block<T: SimdReal>(block: Block<'_, T>, stopping: &Stopping) {
    let Block { step, method, workspace, answers, reports } = block;
    let samples = reports.len();
    workspace.begin(samples);
    method.begin(samples, step.state_len());
    let Workspace { iterates, active, done, distances, progress, graded } = workspace;
    let mut graded_step;
    let step: &mut dyn FixedPointStep<T> = if step.grade().is_some() {
        graded_step = Graded::begin(step, graded, samples, stopping.measure, stopping.tolerance);
        &mut graded_step
    } else {
        step
    };
    let mut iteration = 0;
    while !active.is_empty() {
        iteration += 1;
        method.advance(step, active, iterates, stopping.measure, distances);
        done.clear();
        active.retain(|&sample| {
            let ended = outcome::<T>(&distances[sample], &mut progress[sample], stopping, iteration);
            if let Some(outcome) = ended {
                let residual = distances[sample].value(stopping.measure);
                reports[sample] = SampleReport { iterations: iteration as u32, residual, outcome };
                done.push(sample);
            }
            ended.is_none()
        });
        if !done.is_empty() {
            step.finish(done, &iterates.image, answers);
        }
    }
}

/// Iterates all blocks together until the residual of the whole batch ends the solve, as the paper's code does.
///
/// `each` applies a function to every block (in parallel, if it likes).
pub(crate) fn solve_lockstep<T: SimdReal>(
    blocks: &mut [Block<'_, T>],
    stopping: &Stopping,
    each: impl Fn(&mut [Block<'_, T>], &(dyn Fn(&mut Block<'_, T>) + Sync)),
) {
    // Samples that end together are all computed as accurately as the last residual has to be.
    let required = Accuracy::required(stopping.measure, stopping.tolerance);
    each(blocks, &|block| {
        set_accuracy(block.step, required);
        block.workspace.begin(block.reports.len());
        block.method.begin(block.reports.len(), block.step.state_len());
    });
    let mut progress = Progress::NONE;
    for iteration in 1.. {
        each(blocks, &|Block { step, method, workspace: w, .. }| {
            method.advance(*step, &w.active, &mut w.iterates, stopping.measure, &mut w.distances);
        });
        let mut total = Distance::EMPTY;
        for block in blocks.iter() {
            for &sample in &block.workspace.active {
                total.merge(block.workspace.distances[sample]);
            }
        }
        if let Some(outcome) = outcome::<T>(&total, &mut progress, stopping, iteration) {
            let residual = total.value(stopping.measure);
            each(blocks, &|Block { step, workspace, answers, reports, .. }| {
                reports.fill(SampleReport { iterations: iteration as u32, residual, outcome });
                step.finish(&workspace.active, &workspace.iterates.image, answers);
                set_accuracy(*step, Accuracy::Full);
            });
            return;
        }
    }
}
