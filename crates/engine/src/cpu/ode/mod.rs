//! `dz/dt = s(W z)` on `[0, 1]`: adaptive Dormand-Prince 5(4), each sample with steps of its own, and the gradient by
//! backpropagation through the accepted steps.
//!
//! The gradient is that of the numbers that were computed (discretise, then differentiate), with the step sizes held fixed. For
//! it, the state before each accepted step is kept: `steps x state` numbers per sample (about 10 to 40 steps at the usual
//! tolerances); the stages are computed again. Where the tolerance is far above their rounding, forward and back, products are the
//! fast ones that solves at that tolerance end with ([`Accuracy`]).

mod combination;
pub(crate) mod tableau;

use self::combination::{Combine, Errors, Terms};
use self::tableau::{A, STAGES};
use crate::cpu::Cpu;
use crate::cpu::activation::{activate, activate_with_slope};
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Accuracy;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::linear::{Linear, LinearScratch, OuterProducts, outer_products};
use crate::cpu::memory::reserved;
use crate::cpu::packed::{Packed, check_finite, check_len};
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::vector::add_scaled;
use crate::{
    Activation, EngineError, Integrate, Measure, OdeOutcome, OdeReport, OdeTolerance, Operator, Result,
    ShapedMap, Summary,
};

/// A new step is this much smaller than what the error estimate would allow.
const CAUTION: f64 = 0.9;
/// How much a step may shrink and grow.
const CHANGE: std::ops::RangeInclusive<f64> = 0.2..=5.0;
/// Chunks of a batch whose weight gradients are summed separately, at most.
const CHUNKS: usize = 16;
/// Samples of a dense block.
const DENSE_BLOCK: usize = 32;

/// An equation with its weights and the trajectories of the last integration.
///
/// ```
/// use subdeq_engine::{Activation, Cpu, Device, Integrate, OdeTolerance, Operator};
///
/// // dz/dt = -z
/// let cpu = Cpu::<f64>::new(1)?;
/// let mut plan = cpu.ode_plan(Operator::Dense { n: 1 }, Activation::Identity, 1)?;
/// cpu.ode_load(&mut plan, &cpu.upload(&[-1.0])?)?;
/// let tolerance = OdeTolerance { relative: 1e-9, absolute: 1e-12, max_steps: 1000 };
/// let (mut z, mut reports) = (cpu.zeros(1)?, cpu.ode_reports(1)?);
/// cpu.integrate(&mut plan, 1, &cpu.upload(&[1.0])?, &tolerance, &mut z, &mut reports)?;
/// assert!((z[0] - (-1.0f64).exp()).abs() < 1e-8);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
pub struct OdePlan<T: SimdReal> {
    packed: Packed<T>,
    batch: usize,
    loaded: bool,
    workers: Vec<Block<T>>,
    trajectories: Vec<Trajectory<T>>,
    /// Samples of the last integration, and how accurately the operator was applied in it.
    integrated: usize,
    accuracy: Accuracy,
    accumulators: Buffer<T>,
}

/// What is remembered of a sample's integration.
struct Trajectory<T> {
    /// States before each accepted step, one after the other.
    states: Vec<T>,
    steps: Vec<f64>,
}

/// Memory of one thread: states and stages of a block of samples, one state per sample each.
struct Block<T: SimdReal> {
    samples: usize,
    forward: LinearScratch<T>,
    transposed: LinearScratch<T>,
    z: Buffer<T>,
    /// Where the stages are taken; the last is the new state.
    points: [Buffer<T>; STAGES + 1],
    /// The stages `k_i`; in the reverse pass the gradients of their points.
    stages: [Buffer<T>; STAGES + 1],
    slopes: [Buffer<T>; STAGES],
    /// What is fed to the transposed operator.
    q: Buffer<T>,
    active: Vec<usize>,
    /// Step size, and time or number of steps left, of each sample.
    clocks: Vec<Clock>,
}

#[derive(Clone, Copy, Default)]
struct Clock {
    step: f64,
    left: usize,
}

impl<T: SimdReal> Block<T> {
    fn new(packed: &Packed<T>, samples: usize) -> Self {
        let len = samples * packed.map.operator.state_len();
        let state = || Buffer::zeros(len);
        Self {
            samples,
            forward: packed.forward.scratch(),
            transposed: packed.transposed.scratch(),
            z: state(),
            points: std::array::from_fn(|_| state()),
            stages: std::array::from_fn(|_| state()),
            slopes: std::array::from_fn(|_| state()),
            q: state(),
            active: Vec::with_capacity(samples),
            clocks: vec![Clock::default(); samples],
        }
    }

    /// `points[i] = z + h sum_j A[i][j] k_j` for the active samples.
    fn set_point(&mut self, isa: Isa, len: usize, i: usize) {
        for &sample in &self.active {
            let range = sample * len..(sample + 1) * len;
            let step = self.clocks[sample].step;
            let stages = self.stages.iter().zip(&A[i]).take(i);
            let terms = Terms::new(stages.map(|(stage, &a)| (step * a, &stage[range.clone()])));
            let (start, slope, out) = (Some(&self.z[range.clone()]), None, &mut self.points[i][range]);
            isa.dispatch(Combine { start, terms, slope, out });
        }
    }

    /// `k_i = s(W points[i])` for the active samples.
    fn set_stage(&mut self, packed: &Packed<T>, i: usize) {
        let len = packed.map.operator.state_len();
        let stage = &mut self.stages[i];
        packed.forward.apply(
            &self.active,
            &self.points[i],
            &mut self.forward,
            &mut |sample, offset, row, _| {
                packed.isa.dispatch(Activate { map: &packed.map, row });
                stage[sample * len + offset..][..row.len()].copy_from_slice(row);
            },
        );
    }

    /// The same with the slopes.
    fn set_stage_and_slope(&mut self, packed: &Packed<T>, i: usize) {
        let len = packed.map.operator.state_len();
        let (stage, slope) = (&mut self.stages[i], &mut self.slopes[i]);
        packed.forward.apply(
            &self.active,
            &self.points[i],
            &mut self.forward,
            &mut |sample, offset, row, _| {
                let range = sample * len + offset..sample * len + offset + row.len();
                packed.isa.dispatch(ActivateWithSlope {
                    map: &packed.map,
                    row,
                    slope: &mut slope[range.clone()],
                });
                stage[range].copy_from_slice(row);
            },
        );
    }

    /// The error estimate of a sample's step in units of what is allowed (root mean square).
    fn error(&self, isa: Isa, sample: usize, len: usize, tolerance: &OdeTolerance) -> f64 {
        let range = sample * len..(sample + 1) * len;
        let OdeTolerance { relative, absolute, .. } = *tolerance;
        let errors = Errors {
            step: self.clocks[sample].step,
            relative,
            absolute,
            stages: self.stages.each_ref().map(|stage| &stage[range.clone()]),
            before: &self.z[range.clone()],
            after: &self.points[STAGES][range],
        };
        (isa.dispatch(errors) / len as f64).sqrt()
    }

    /// Integrates a block from `start`; the answers go to `end`.
    fn integrate(&mut self, packed: &Packed<T>, tolerance: &OdeTolerance, job: Job<'_, T>) {
        let Job { start, end, trajectories, reports } = job;
        let (isa, len) = (packed.isa, packed.map.operator.state_len());
        self.z[..start.len()].copy_from_slice(start);
        self.points[0][..start.len()].copy_from_slice(start);
        self.active.clear();
        self.active.extend(0..reports.len());
        self.clocks.fill(Clock { step: tolerance.first_step(), left: tolerance.max_steps });
        reports.fill(OdeReport::default());
        for trajectory in trajectories.iter_mut() {
            trajectory.states.clear();
            trajectory.steps.clear();
        }
        self.set_stage(packed, 0);
        while !self.active.is_empty() {
            for i in 1..=STAGES {
                self.set_point(isa, len, i);
                self.set_stage(packed, i);
            }
            let mut active = std::mem::take(&mut self.active);
            active.retain(|&sample| {
                let error = self.error(isa, sample, len, tolerance);
                let ended = self.judge(sample, len, error, &mut reports[sample], &mut trajectories[sample]);
                if let Some(outcome) = ended {
                    reports[sample].outcome = outcome;
                    let range = sample * len..(sample + 1) * len;
                    end[range.clone()].copy_from_slice(&self.z[range]);
                }
                ended.is_none()
            });
            self.active = active;
        }
    }

    /// Accepts or rejects a step and chooses the next one; says how the sample ended, if it has.
    fn judge(
        &mut self,
        sample: usize,
        len: usize,
        error: f64,
        report: &mut OdeReport,
        trajectory: &mut Trajectory<T>,
    ) -> Option<OdeOutcome> {
        let range = sample * len..(sample + 1) * len;
        let clock = &mut self.clocks[sample];
        clock.left -= 1;
        if error <= 1.0 {
            trajectory.states.extend_from_slice(&self.z[range.clone()]);
            trajectory.steps.push(clock.step);
            self.z[range.clone()].copy_from_slice(&self.points[STAGES][range.clone()]);
            let (first, last) = self.stages.split_at_mut(STAGES);
            first[0][range.clone()].copy_from_slice(&last[0][range.clone()]);
            report.accepted += 1;
            report.time += clock.step;
            if report.time >= 1.0 - 1e-12 {
                report.time = 1.0;
                return Some(OdeOutcome::Finished);
            }
        } else {
            report.rejected += 1;
        }
        let factor = if error.is_finite() { CAUTION * error.max(1e-10).powf(-0.2) } else { 0.0 };
        clock.step *= factor.clamp(*CHANGE.start(), *CHANGE.end());
        let rest = 1.0 - report.time;
        // A last step that would leave a crumb takes it along.
        if clock.step > rest * (1.0 - 1e-9) {
            clock.step = rest;
        }
        if !error.is_finite() && clock.step < 1e-9 || !self.z[range].iter().all(|x| x.is_finite()) {
            return Some(OdeOutcome::NotFinite);
        }
        (clock.left == 0).then_some(OdeOutcome::StepLimit)
    }

    /// Pulls `v` back to the start of a block; adds to the weight gradient's `accumulator`.
    fn pull_back(
        &mut self,
        packed: &Packed<T>,
        v: &[T],
        trajectories: &[Trajectory<T>],
        gradient: &mut [T],
        accumulator: &mut [T],
    ) {
        let (isa, len) = (packed.isa, packed.map.operator.state_len());
        gradient.copy_from_slice(v);
        for (clock, trajectory) in self.clocks.iter_mut().zip(trajectories) {
            clock.left = trajectory.steps.len();
        }
        loop {
            self.active.clear();
            self.active.extend((0..trajectories.len()).filter(|&sample| self.clocks[sample].left > 0));
            if self.active.is_empty() {
                return;
            }
            self.q.fill(T::ZERO);
            for &sample in &self.active {
                let clock = &mut self.clocks[sample];
                clock.left -= 1;
                clock.step = trajectories[sample].steps[clock.left];
                let state = &trajectories[sample].states[clock.left * len..][..len];
                self.z[sample * len..][..len].copy_from_slice(state);
            }
            for i in 0..STAGES {
                self.set_point(isa, len, i);
                self.set_stage_and_slope(packed, i);
            }
            for i in (0..STAGES).rev() {
                self.pull_back_stage(packed, i, gradient, accumulator);
            }
            for &sample in &self.active {
                let range = sample * len..(sample + 1) * len;
                let points = self.stages[..STAGES].iter().rev();
                let terms = Terms::new(points.map(|point| (1.0, &point[range.clone()])));
                let start = &mut self.q[range.clone()];
                start.copy_from_slice(&gradient[range.clone()]);
                isa.dispatch(Combine { start: Some(start), terms, slope: None, out: &mut gradient[range] });
            }
        }
    }

    /// From the gradient for the new state, and those for the points of later stages, to the gradient for this stage's point.
    fn pull_back_stage(&mut self, packed: &Packed<T>, i: usize, gradient: &[T], accumulator: &mut [T]) {
        let (isa, len) = (packed.isa, packed.map.operator.state_len());
        let Self { q, slopes, stages, points, active, clocks, forward, transposed, .. } = self;
        for &sample in &*active {
            let range = sample * len..(sample + 1) * len;
            let step = clocks[sample].step;
            let later = (i + 1..STAGES).rev().map(|j| (step * A[j][i], &stages[j][range.clone()]));
            let terms =
                Terms::new([(step * A[STAGES][i], &gradient[range.clone()])].into_iter().chain(later));
            let slope = Some(&slopes[i][range.clone()]);
            isa.dispatch(Combine { start: None, terms, slope, out: &mut q[range] });
        }
        match (&packed.forward, forward) {
            (Linear::Conv(kernel), LinearScratch::Conv(scratch)) => {
                for &sample in &*active {
                    let range = sample * len..(sample + 1) * len;
                    kernel.accumulate_gradient(&points[i][range.clone()], &q[range], scratch, accumulator);
                }
            }
            (Linear::Fourier(convolution), LinearScratch::Fourier(scratch)) => {
                convolution.accumulate_gradient(active, &points[i], q, scratch, accumulator);
            }
            _ => {
                let count = gradient.len();
                let (left, right) = (&q[..count], &points[i][..count]);
                let gradient = &mut *accumulator;
                let (left_len, width, first, sign) = (len, len, 0, T::ONE);
                outer_products(isa, OuterProducts { left, left_len, first, right, width, gradient, sign });
            }
        }
        let pulled = &mut stages[i];
        packed.transposed.apply(active, q, transposed, &mut |sample, offset, row, _| {
            pulled[sample * len + offset..][..row.len()].copy_from_slice(row);
        });
    }
}

/// How accurately the operator is applied: well below what a step may be off.
fn accuracy(tolerance: &OdeTolerance) -> Accuracy {
    Accuracy::required(Measure::Relative, tolerance.relative)
}

/// One block of an integration.
struct Job<'a, T> {
    start: &'a [T],
    end: &'a mut [T],
    trajectories: &'a mut [Trajectory<T>],
    reports: &'a mut [OdeReport],
}

struct Activate<'a, T> {
    map: &'a ShapedMap,
    row: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Activate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        activate::<V>(self.map, self.row);
    }
}

struct ActivateWithSlope<'a, T> {
    map: &'a ShapedMap,
    row: &'a mut [T],
    slope: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for ActivateWithSlope<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        activate_with_slope::<V>(self.map, self.row, self.slope);
    }
}

/// The methods for a number type; compiled here, once.
macro_rules! integrate {
    ($($t:ident),*) => {$(
        impl Integrate for Cpu<$t> {
            type OdePlan = OdePlan<$t>;
            type OdeReports = Vec<OdeReport>;

            fn ode_plan(&self, operator: Operator, activation: Activation, batch: usize) -> Result<OdePlan<$t>> {
                OdePlan::make(self, operator, activation, batch)
            }

            fn ode_load(&self, plan: &mut OdePlan<$t>, w: &Buffer<$t>) -> Result<()> {
                plan.loaded = false;
                plan.packed.load(&[w])?;
                plan.loaded = true;
                Ok(())
            }

            fn ode_reports(&self, batch: usize) -> Result<Vec<OdeReport>> {
                reserved(batch)
            }

            fn read_ode_reports(&self, reports: &Vec<OdeReport>, host: &mut [OdeReport]) -> Result<()> {
                check_len("reports", reports.len(), host.len())?;
                host.copy_from_slice(&reports[..host.len()]);
                Ok(())
            }

            fn ode_count(&self, batch: usize, reports: &Vec<OdeReport>, tally: &mut Summary) -> Result<()> {
                check_len("reports", reports.len(), batch)?;
                tally.count_integrations(&reports[..batch]);
                Ok(())
            }

            fn integrate(
                &self,
                plan: &mut OdePlan<$t>,
                batch: usize,
                start: &Buffer<$t>,
                tolerance: &OdeTolerance,
                end: &mut Buffer<$t>,
                reports: &mut Vec<OdeReport>,
            ) -> Result<()> {
                plan.run(self, batch, start, tolerance, end, reports)
            }

            fn integrate_adjoint(
                &self,
                plan: &mut OdePlan<$t>,
                batch: usize,
                v: &Buffer<$t>,
                gradient: &mut Buffer<$t>,
                gw: &mut Buffer<$t>,
            ) -> Result<()> {
                // The order of the sum over the batch does not depend on the number of threads.
                plan.run_adjoint(self, batch, v, gradient, gw)
            }
        }
    )*};
}
integrate!(f32, f64);

impl<T: SimdReal> OdePlan<T> {
    fn make(cpu: &Cpu<T>, operator: Operator, activation: Activation, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(EngineError::Invalid("a plan for a batch of zero samples".into()));
        }
        let equation = subdeq_map::Map::single(activation, 0.0)?;
        let packed = Packed::new(cpu.isa(), &ShapedMap::new(operator, equation)?);
        let block = match operator {
            Operator::Dense { .. } => DENSE_BLOCK.min(batch),
            Operator::Conv { .. } => 1,
        };
        let workers = (0..cpu.threads()).map(|_| Block::new(&packed, block)).collect();
        let trajectories = (0..batch).map(|_| Trajectory { states: Vec::new(), steps: Vec::new() }).collect();
        let accumulators = Buffer::default();
        Ok(Self {
            packed,
            batch,
            loaded: false,
            workers,
            trajectories,
            integrated: 0,
            accuracy: Accuracy::Full,
            accumulators,
        })
    }

    fn check(&self, batch: usize) -> Result<usize> {
        if !self.loaded {
            return Err(EngineError::Invalid("the plan has no weights yet: load them first".into()));
        }
        if batch == 0 || batch > self.batch {
            return Err(EngineError::Invalid(format!(
                "a batch of {batch} samples, but the plan was made for 1 to {}",
                self.batch
            )));
        }
        Ok(self.packed.map.operator.state_len())
    }

    fn run(
        &mut self,
        cpu: &Cpu<T>,
        batch: usize,
        start: &[T],
        tolerance: &OdeTolerance,
        end: &mut [T],
        reports: &mut [OdeReport],
    ) -> Result<()> {
        let len = self.check(batch)?;
        check_len("the start", start.len(), batch * len)?;
        check_len("the end", end.len(), batch * len)?;
        check_len("reports", reports.len(), batch)?;
        check_finite(cpu.isa(), "the start", &start[..batch * len])?;
        tolerance.check()?;
        self.accuracy = accuracy(tolerance);
        let Self { packed, workers, trajectories, accuracy, .. } = self;
        workers.iter_mut().for_each(|worker| worker.forward.set_accuracy(*accuracy));
        let block = workers[0].samples;
        let queue = start[..batch * len]
            .chunks(block * len)
            .zip(end[..batch * len].chunks_mut(block * len))
            .zip(trajectories.chunks_mut(block))
            .zip(reports[..batch].chunks_mut(block))
            .map(|(((start, end), trajectories), reports)| Job { start, end, trajectories, reports });
        cpu.share(workers, queue, |worker, job| worker.integrate(packed, tolerance, job));
        self.integrated = batch;
        Ok(())
    }

    fn run_adjoint(
        &mut self,
        cpu: &Cpu<T>,
        batch: usize,
        v: &[T],
        gradient: &mut [T],
        gw: &mut [T],
    ) -> Result<()> {
        let len = self.check(batch)?;
        if batch != self.integrated {
            return Err(EngineError::Invalid(format!(
                "{batch} samples to pull back, but the last integration was of {}",
                self.integrated
            )));
        }
        check_len("v", v.len(), batch * len)?;
        check_len("the gradient", gradient.len(), batch * len)?;
        check_len("the weight gradient", gw.len(), self.packed.map.weight_len(0))?;
        check_finite(cpu.isa(), "v", &v[..batch * len])?;
        let Self { packed, workers, trajectories, accuracy, accumulators, .. } = self;
        for worker in &mut *workers {
            worker.forward.set_accuracy(*accuracy);
            worker.transposed.set_accuracy(*accuracy);
        }
        let block = workers[0].samples;
        // Chunks are made of whole blocks and do not depend on the number of threads.
        let chunk = batch.div_ceil(CHUNKS).next_multiple_of(block);
        let gradient_len = match &packed.forward {
            Linear::Conv(kernel) => kernel.gradient_len(),
            Linear::Fourier(convolution) => convolution.gradient_len(),
            Linear::Dense(_) => len * len,
        };
        let count = batch.div_ceil(chunk);
        accumulators.reserve_zeros(count * gradient_len);
        accumulators.fill(T::ZERO);
        let queue = v[..batch * len]
            .chunks(chunk * len)
            .zip(gradient[..batch * len].chunks_mut(chunk * len))
            .zip(trajectories.chunks(chunk))
            .zip(accumulators.chunks_mut(gradient_len));
        cpu.share(workers, queue, |worker, (((v, gradient), trajectories), accumulator)| {
            let parts =
                v.chunks(block * len).zip(gradient.chunks_mut(block * len)).zip(trajectories.chunks(block));
            for ((v, gradient), trajectories) in parts {
                let trajectories = &trajectories[..v.len() / len];
                worker.pull_back(packed, v, trajectories, gradient, accumulator);
            }
        });
        let (total, rest) = accumulators[..count * gradient_len].split_at_mut(gradient_len);
        for accumulator in rest.chunks_exact(gradient_len) {
            add_scaled(cpu.isa(), 1.0, accumulator, total);
        }
        let gw = &mut gw[..packed.map.weight_len(0)];
        match &packed.forward {
            Linear::Conv(kernel) => kernel.unpack_gradient(total, &mut [gw]),
            Linear::Fourier(convolution) => convolution.unpack_gradient(total, gw),
            Linear::Dense(_) => add_scaled(cpu.isa(), 1.0, total, gw),
        }
        Ok(())
    }
}
