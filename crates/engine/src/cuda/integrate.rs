//! Neural differential equations on a GPU: the method of `cpu/ode`, all samples of a batch side by side, each with time and step
//! size of its own. The host looks now and then whether any sample is left.
//!
//! The state before each accepted step is kept on the GPU, in pieces that are added as samples need them and kept for the next integration.
//! So are the stages of the first few steps, where slopes are known by the values of the activation; other stages are computed again on the
//! way back. Some shapes have kernels that do all of this on chip (`onchip_ode.rs`).

use std::sync::Arc;

use super::Cuda;
use super::gpu::{Gpu, Grid, Memory, THREADS};
use super::kernel::{Passed, launch};
use super::memory::CudaTally;
use super::onchip_ode::OnChip;
use super::plan::CudaPlan;
use super::product::{Axis, Factor, add_outer_products};
use crate::cpu::ode::tableau::{A, ERROR, STAGES};
use crate::cpu::packed::check_len;
use crate::{
    Activation, EngineError, Integrate, OdeOutcome, OdeReport, OdeTolerance, Operator, Result, ShapedMap,
};

/// Steps that are tried between two looks, but for the first one of an integration.
const LOOK: usize = 2;
/// The most before the first one.
const MOST_AHEAD: usize = 8;
/// Steps whose stages are kept: six states for each sample and step.
const KEPT: usize = 8;

/// How the integrations of a batch ended, in a GPU's memory.
#[derive(Debug)]
pub struct CudaOdeReports(Memory<ReportRow>);

/// `OdeReport` of `ode.cu`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct ReportRow {
    accepted: u32,
    rejected: u32,
    pub outcome: u32,
    unused: u32,
    time: f64,
}

/// The outcome of a sample that is still worked on.
const RUNNING: u32 = 3;
/// Of one that was left because it needs more steps than there is room for.
pub(super) const NO_ROOM: u32 = 4;

impl ReportRow {
    fn read(self) -> Result<OdeReport> {
        let outcome = match self.outcome {
            0 => OdeOutcome::Finished,
            1 => OdeOutcome::StepLimit,
            2 => OdeOutcome::NotFinite,
            other => {
                return Err(EngineError::DeviceFailed(format!("a report with the unknown outcome {other}")));
            }
        };
        Ok(OdeReport { accepted: self.accepted, rejected: self.rejected, time: self.time, outcome })
    }
}

/// `OdeClock` and `OdePart` of `ode.cu`: the host never looks into them.
type Clock = [f64; 2];
type Part = [f64; 3];

/// An equation with its weights on a GPU, and the trajectories of the last integration.
#[derive(Debug)]
pub struct CudaOdePlan {
    plan: CudaPlan,
    state: State,
    trajectory: Vec<Piece>,
    /// Addresses of the pieces, for the kernels.
    table: Memory<[u64; 3]>,
    reports: Memory<ReportRow>,
    clocks: Memory<Clock>,
    active: Memory<u32>,
    parts: Memory<Part>,
    /// Samples of the last integration, and the most steps that one of them accepted.
    integrated: (usize, usize),
    /// The most steps that one of them tried: as many will do for the next one, more often than not.
    tried: usize,
    /// Where there are kernels for all of it.
    on_chip: Option<OnChip>,
}

/// What a step works in: a state per sample each.
#[derive(Debug)]
struct State {
    u: Memory<f32>,
    z: Memory<f32>,
    /// Where the stages are taken; an integration needs one of them.
    points: [Memory<f32>; STAGES],
    /// The stages; on the way back the gradients of the points.
    stages: [Memory<f32>; STAGES + 1],
    slopes: [Memory<f32>; STAGES],
    q: Memory<f32>,
}

/// An accepted step of every sample: the states before it, its sizes, and all stages but the last, or nothing of them.
#[derive(Debug)]
struct Piece {
    states: Memory<f32>,
    steps: Memory<f64>,
    stages: Memory<f32>,
}

/// `OdeSamples` of `ode.cu`.
#[repr(C)]
struct Samples {
    clocks: u64,
    reports: u64,
    active: u64,
    bad: u64,
}

/// `Trajectory` of `ode.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Trajectory {
    pieces: u64,
    batch: u64,
}

/// `Points` of `ode.cu`.
#[repr(C)]
struct Points {
    points: [u64; STAGES],
    factors: [[f64; STAGES]; STAGES],
}

/// `Combination` of `ode.cu`.
#[repr(C)]
struct Combination {
    stages: [u64; STAGES + 1],
    factors: [f64; STAGES + 1],
    count: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of the structs in `ode.cu`, no padding: 32, 16, 120 and 336 bytes are the sums of their fields.
unsafe impl Passed for Samples {}
// SAFETY: as above.
unsafe impl Passed for Trajectory {}
// SAFETY: as above.
unsafe impl Passed for Combination {}
// SAFETY: as above.
unsafe impl Passed for Points {}

/// The first `count` stages with the first coefficients of a row.
fn combination(stages: &[Memory<f32>; STAGES + 1], row: &[f64], count: usize) -> Combination {
    let mut factors = [0.0; STAGES + 1];
    factors[..row.len()].copy_from_slice(row);
    let stages = stages.each_ref().map(|stage| stage.address_of(0));
    Combination { stages, factors, count: count as u32, unused: 0 }
}

impl Piece {
    fn addresses(&self) -> [u64; 3] {
        let stages = if self.stages.len() == 0 { 0 } else { self.stages.address_of(0) };
        [self.states.address_of(0), self.steps.address_of(0), stages]
    }
}

impl State {
    fn new(gpu: &Arc<Gpu>) -> Self {
        let empty = || Memory::empty(gpu);
        Self {
            u: empty(),
            z: empty(),
            points: std::array::from_fn(|_| empty()),
            stages: std::array::from_fn(|_| empty()),
            slopes: std::array::from_fn(|_| empty()),
            q: empty(),
        }
    }
}

impl CudaOdePlan {
    fn gpu(&self) -> &Arc<Gpu> {
        &self.plan.operators.gpu
    }

    fn len(&self) -> usize {
        self.plan.operators.len()
    }

    /// Blocks of a sample: they depend on the length of a state alone.
    fn blocks(&self) -> usize {
        self.len().div_ceil(THREADS as usize).clamp(1, 32)
    }

    fn check(&self, batch: usize) -> Result<usize> {
        if !self.plan.loaded {
            return Err(EngineError::Invalid("the plan has no weights yet: load them first".into()));
        }
        if batch == 0 || batch > self.plan.batch {
            return Err(EngineError::Invalid(format!(
                "a batch of {batch} samples, but the plan was made for 1 to {}",
                self.plan.batch
            )));
        }
        Ok(batch * self.len())
    }

    fn samples(&self) -> Samples {
        Samples {
            clocks: self.clocks.address_of(0),
            reports: self.reports.address_of(0),
            active: self.active.address_of(0),
            bad: self.plan.operators.bad.address_of(0),
        }
    }

    fn trajectory(&self, batch: usize) -> Trajectory {
        Trajectory { pieces: self.table.address_of(0), batch: batch as u64 }
    }

    /// How many steps' stages are kept: where slopes are known by them.
    fn kept_steps(&self) -> usize {
        match self.plan.operators.map.activation {
            Activation::Tanh | Activation::Relu => KEPT,
            _ => 0,
        }
    }

    /// Makes room for `steps` accepted steps of each sample, and for the first stage of the one after them. The pieces that there are keep
    /// what they hold.
    fn reserve_steps(&mut self, batch: usize, steps: usize) -> Result<()> {
        let (gpu, states) = (self.gpu().clone(), batch * self.len());
        let count = self.trajectory.len();
        for step in count..steps + 1 {
            let stages = if step < self.kept_steps() { STAGES * states } else { 0 };
            self.trajectory.push(Piece {
                states: Memory::room(&gpu, states)?,
                steps: Memory::room(&gpu, batch)?,
                stages: Memory::room(&gpu, stages)?,
            });
        }
        if self.trajectory.len() > count {
            let addresses: Vec<[u64; 3]> = self.trajectory.iter().map(Piece::addresses).collect();
            self.table = Memory::upload(&gpu, &addresses)?;
        }
        Ok(())
    }

    /// `k_i = s(W point)` for the samples that are worked on, and the next point.
    fn stage(&mut self, batch: usize, i: usize) -> Result<()> {
        let (grid, trajectory) = (Grid::blocks(batch * self.blocks()), self.trajectory(batch));
        let State { u, z, points, stages, .. } = &mut self.state;
        let operators = &self.plan.operators;
        let point = &mut points[0];
        operators.forward(batch, if i == 0 { &*z } else { &*point }, u, Some(&self.active))?;
        let row = A.get(i + 1).map_or(&[][..], |row| &row[..]);
        let by = combination(stages, row, i + 1);
        let next = (i < STAGES).then_some(&*point);
        let (none, active) = (None::<&Memory<f32>>, Some(&self.active));
        launch!(
            operators.gpu,
            "ode_stage",
            grid,
            &operators.constants,
            batch as u32,
            &self.clocks,
            active,
            Some(&self.reports),
            &trajectory,
            &*u,
            none,
            &*z,
            &by,
            next
        )
    }

    /// Tries a step of every sample that is worked on.
    fn try_step(&mut self, batch: usize, tolerance: &OdeTolerance) -> Result<()> {
        for i in 1..=STAGES {
            self.stage(batch, i)?;
        }
        let (len, blocks, n) = (self.len(), self.blocks(), batch as u32);
        let (grid, threads) = (Grid::blocks(batch * blocks), Grid::threads(batch));
        let (samples, trajectory) = (self.samples(), self.trajectory(batch));
        let Self { plan, state: State { z, points, stages, .. }, parts, .. } = self;
        let (gpu, point) = (&plan.operators.gpu, &mut points[0]);
        let OdeTolerance { relative, absolute, .. } = *tolerance;
        let error = combination(stages, &ERROR, STAGES + 1);
        let first = combination(stages, &A[1], 1);
        launch!(
            gpu,
            "ode_error",
            grid,
            n,
            len,
            absolute,
            relative,
            &samples,
            &trajectory,
            &*z,
            &*point,
            &error,
            &mut *parts
        )?;
        launch!(gpu, "ode_judge", threads, n, len, &samples, &*parts, blocks as u32, &trajectory)?;
        launch!(gpu, "ode_advance", grid, n, len, &samples, &trajectory, &first, z, point)?;
        launch!(gpu, "ode_end", threads, &samples, n)
    }

    /// How the samples stand: whether all have ended. Notes the most steps that one of them accepted and tried. Waits for the GPU.
    fn look(&mut self, batch: usize) -> Result<bool> {
        let mut rows = vec![ReportRow::default(); batch];
        self.reports.read(0, &mut rows)?;
        self.note(&rows);
        Ok(rows.iter().all(|row| row.outcome != RUNNING))
    }

    fn note(&mut self, rows: &[ReportRow]) {
        let most = |count: fn(&ReportRow) -> u32| rows.iter().map(count).max().unwrap_or(0) as usize;
        self.integrated = (rows.len(), most(|row| row.accepted));
        self.tried = most(|row| row.accepted + row.rejected);
    }

    fn run(
        &mut self,
        batch: usize,
        start: &Memory<f32>,
        tolerance: &OdeTolerance,
        end: &mut Memory<f32>,
    ) -> Result<()> {
        if let Some(on_chip) = &mut self.on_chip {
            let reports = &mut self.reports;
            let rows = on_chip.integrate(&self.plan.operators, batch, start, tolerance, end, reports)?;
            self.note(&rows);
            return Ok(());
        }
        self.run_in_launches(batch, start, tolerance)?;
        end.copy_from(&self.state.z, batch * self.len())
    }

    fn run_in_launches(&mut self, batch: usize, start: &Memory<f32>, tolerance: &OdeTolerance) -> Result<()> {
        let (states, gpu) = (batch * self.len(), self.gpu().clone());
        let State { z, points, stages, .. } = &mut self.state;
        z.reserve(states)?;
        points[0].reserve(states)?;
        stages.iter_mut().try_for_each(|stage| stage.reserve(states))?;
        z.copy_from(start, states)?;
        self.reports.reserve(batch)?;
        self.clocks.reserve(batch)?;
        self.active.reserve(batch)?;
        self.parts.reserve(batch * self.blocks())?;
        // Pieces are laid out for one number of samples.
        if self.integrated.0 != batch {
            self.trajectory.clear();
        }
        self.integrated = (batch, 0);
        let mut ahead = self.tried.clamp(LOOK, MOST_AHEAD);
        self.reserve_steps(batch, ahead)?;
        let (first, tries) = (tolerance.first_step(), u32::try_from(tolerance.max_steps).unwrap_or(u32::MAX));
        launch!(gpu, "ode_begin", Grid::threads(batch), &self.samples(), first, tries, batch as u32)?;
        self.stage(batch, 0)?;
        loop {
            for _ in 0..ahead {
                self.try_step(batch, tolerance)?;
            }
            if self.look(batch)? {
                return Ok(());
            }
            ahead = LOOK;
            self.reserve_steps(batch, self.integrated.1 + ahead)?;
        }
    }

    /// Pulls `gradient` back through the accepted steps; adds to the weight gradient.
    fn pull_back(&mut self, gradient: &mut Memory<f32>, gw: &mut Memory<f32>) -> Result<()> {
        let (batch, steps) = self.integrated;
        if let Some(on_chip) = &mut self.on_chip {
            return on_chip.pull_back(&self.plan.operators, self.integrated, &self.reports, gradient, gw);
        }
        let states = batch * self.len();
        let State { points, slopes, q, .. } = &mut self.state;
        points.iter_mut().try_for_each(|point| point.reserve(states))?;
        slopes.iter_mut().try_for_each(|slope| slope.reserve(states))?;
        q.reserve(states)?;
        let (gpu, n) = (self.gpu().clone(), batch as u32);
        launch!(gpu, "ode_turn", Grid::threads(batch), n, &self.reports, &mut self.clocks)?;
        for step in (0..steps).rev() {
            // Of all samples: those that made fewer steps are at an earlier one.
            let kept = step < self.kept_steps();
            let sizes = self.trajectory(batch);
            launch!(gpu, "ode_recall_sizes", Grid::threads(batch), n, &mut self.clocks, &sizes)?;
            if kept {
                self.recall_points(batch)?;
            } else {
                self.recall_step(batch)?;
            }
            self.pull_step(batch, kept, gradient, gw)?;
        }
        Ok(())
    }

    /// The points of the last step that was not pulled back yet, whose stages are kept.
    fn recall_points(&mut self, batch: usize) -> Result<()> {
        let (len, n, grid) = (self.len(), batch as u32, Grid::blocks(batch * self.blocks()));
        let trajectory = self.trajectory(batch);
        let Self { plan, state: State { points, .. }, clocks, .. } = self;
        let mut to = Points {
            points: points.each_ref().map(|point| point.address_of(0)),
            factors: [[0.0; STAGES]; STAGES],
        };
        for (to, row) in to.factors.iter_mut().zip(A) {
            to.copy_from_slice(&row[..STAGES]);
        }
        launch!(plan.operators.gpu, "ode_recall_points", grid, n, len, &*clocks, &trajectory, &to)
    }

    /// The last step that was not pulled back yet: its points, stages and slopes.
    fn recall_step(&mut self, batch: usize) -> Result<()> {
        let (len, n, grid) = (self.len(), batch as u32, Grid::blocks(batch * self.blocks()));
        let trajectory = self.trajectory(batch);
        let Self { plan, state: State { u, points, stages, slopes, .. }, clocks, .. } = self;
        let operators = &plan.operators;
        let gpu = &operators.gpu;
        launch!(gpu, "ode_recall", grid, n, len, &*clocks, &trajectory, &mut points[0])?;
        for i in 0..STAGES {
            operators.forward(batch, &points[i], u, None)?;
            let by = combination(stages, &A[i + 1], i + 1);
            let (slope, next) = (Some(&slopes[i]), points.get(i + 1));
            launch!(
                gpu,
                "ode_stage",
                grid,
                &operators.constants,
                n,
                &*clocks,
                None::<&Memory<u32>>,
                None::<&Memory<ReportRow>>,
                &trajectory,
                &*u,
                slope,
                &points[0],
                &by,
                next
            )?;
        }
        Ok(())
    }

    /// Back through the step that was recalled, whose stages may be `kept`. A point's gradient takes the place of its stage where it is not.
    fn pull_step(
        &mut self,
        batch: usize,
        kept: bool,
        gradient: &mut Memory<f32>,
        gw: &mut Memory<f32>,
    ) -> Result<()> {
        let (len, n, grid) = (self.len(), batch as u32, Grid::blocks(batch * self.blocks()));
        let trajectory = self.trajectory(batch);
        let Self { plan, state: State { points, stages, slopes, q, .. }, clocks, .. } = self;
        let operators = &plan.operators;
        let gpu = &operators.gpu;
        for i in (0..STAGES).rev() {
            // A stage went into the points after it, and into the state after the step.
            let mut by = combination(stages, &A.map(|row| row[i]), STAGES + 1);
            by.stages[STAGES] = gradient.address_of(0);
            let (map, slope) = (&operators.constants, (!kept).then_some(&slopes[i]));
            launch!(gpu, "ode_weigh", grid, map, n, &*clocks, &trajectory, i as u32, &by, slope, &mut *q)?;
            if let Some(convolution) = operators.convolution(batch, 1, 1) {
                convolution.add_gradient(gpu, q, &points[i], &mut [&mut *gw])?;
            } else {
                let left = Factor::new(q, 0, Axis::plain(1), Axis::plain(len));
                let right = Factor::new(&points[i], 0, Axis::plain(1), Axis::plain(len));
                add_outer_products(gpu, left, right, [len, len, batch], 1.0, &mut [&mut *gw])?;
            }
            operators.transposed(batch, q, &mut stages[i], None)?;
        }
        let all = combination(stages, &[1.0; STAGES], STAGES);
        launch!(gpu, "ode_collect", grid, n, len, &all, gradient)
    }
}

impl Integrate for Cuda {
    type OdePlan = CudaOdePlan;
    type OdeReports = CudaOdeReports;

    fn ode_plan(&self, operator: Operator, activation: Activation, batch: usize) -> Result<CudaOdePlan> {
        let map = ShapedMap::new(operator, subdeq_map::Map::single(activation, 0.0)?)?;
        let gpu = &self.gpu;
        let on_chip = OnChip::new(gpu, &map)?;
        let mut plan = CudaPlan::new(gpu, &map, batch)?;
        // Of whole solves; their weights need not be packed.
        plan.operators.onchip = None;
        Ok(CudaOdePlan {
            plan,
            state: State::new(gpu),
            trajectory: Vec::new(),
            table: Memory::empty(gpu),
            reports: Memory::empty(gpu),
            clocks: Memory::empty(gpu),
            active: Memory::empty(gpu),
            parts: Memory::empty(gpu),
            integrated: (0, 0),
            tried: 0,
            on_chip,
        })
    }

    /// What is not finite is found out by the GPU, and the reports of every integration say so.
    fn ode_load(&self, plan: &mut CudaOdePlan, w: &Memory<f32>) -> Result<()> {
        plan.plan.loaded = false;
        plan.plan.operators.load(&[w])?;
        plan.plan.loaded = true;
        Ok(())
    }

    fn ode_reports(&self, batch: usize) -> Result<CudaOdeReports> {
        let row = ReportRow { outcome: 1, ..ReportRow::default() };
        Ok(CudaOdeReports(Memory::upload(&self.gpu, &vec![row; batch])?))
    }

    fn read_ode_reports(&self, reports: &CudaOdeReports, host: &mut [OdeReport]) -> Result<()> {
        check_len("reports", reports.0.len(), host.len())?;
        let mut rows = vec![ReportRow::default(); host.len()];
        reports.0.read(0, &mut rows)?;
        for (report, row) in host.iter_mut().zip(rows) {
            *report = row.read()?;
        }
        Ok(())
    }

    fn ode_count(&self, batch: usize, reports: &CudaOdeReports, tally: &mut CudaTally) -> Result<()> {
        check_len("reports", reports.0.len(), batch)?;
        launch!(self.gpu, "tally_integrations", Grid::blocks(1), &reports.0, batch as u32, &mut tally.0)
    }

    fn integrate(
        &self,
        plan: &mut CudaOdePlan,
        batch: usize,
        start: &Memory<f32>,
        tolerance: &OdeTolerance,
        end: &mut Memory<f32>,
        reports: &mut CudaOdeReports,
    ) -> Result<()> {
        let states = plan.check(batch)?;
        check_len("the start", start.len(), states)?;
        check_len("the end", end.len(), states)?;
        check_len("reports", reports.0.len(), batch)?;
        tolerance.check()?;
        plan.run(batch, start, tolerance, end)?;
        reports.0.copy_from(&plan.reports, batch)
    }

    fn integrate_adjoint(
        &self,
        plan: &mut CudaOdePlan,
        batch: usize,
        v: &Memory<f32>,
        gradient: &mut Memory<f32>,
        gw: &mut Memory<f32>,
    ) -> Result<()> {
        let states = plan.check(batch)?;
        if batch != plan.integrated.0 {
            return Err(EngineError::Invalid(format!(
                "{batch} samples to pull back, but the last integration was of {}",
                plan.integrated.0
            )));
        }
        check_len("v", v.len(), states)?;
        check_len("the gradient", gradient.len(), states)?;
        check_len("the weight gradient", gw.len(), plan.plan.operators.map.weight_len(0))?;
        gradient.copy_from(v, states)?;
        plan.pull_back(gradient, gw)
    }
}
