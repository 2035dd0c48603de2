//! Equilibria on a GPU.

use super::fourier::Answer;
use super::gpu::{Grid, Memory};
use super::kernel::launch;
use super::memory::CudaTally;
use super::onchip::{self, Onchip};
use super::onchip_anderson::Iterated;
use super::plan::{CudaPlan, Operators, Work};
use super::product::{Axis, Factor, add_outer_products};
use super::solve::{MOST, Method, Problem};
use super::{Cuda, not_yet};
use crate::cpu::packed::{check_gradients, check_len};
use crate::cpu::{check_solver, check_splitting};
use crate::map::Formula;
use crate::{
    EngineError, Equilibria, Injection, Measure, Operator, Outcome, Padding, Pass, Result, Room,
    SampleReport, ShapedMap, Solver, Start, Stopping,
};

/// How the solves of a batch ended, in a GPU's memory.
#[derive(Debug)]
pub struct CudaReports(Memory<ReportRow>);

/// `Report` of `kernels/common.cuh`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct ReportRow {
    iterations: u32,
    outcome: u32,
    residual: f64,
}

impl ReportRow {
    fn read(self) -> Result<SampleReport> {
        let outcome = match self.outcome {
            0 => Outcome::Converged,
            1 => Outcome::IterationLimit,
            2 => Outcome::Stagnated,
            3 => Outcome::NotFinite,
            other => {
                return Err(EngineError::DeviceFailed(format!("a report with the unknown outcome {other}")));
            }
        };
        Ok(SampleReport { iterations: self.iterations, residual: self.residual, outcome })
    }
}

/// How the equation of a solve is iterated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scheme {
    /// On the map itself.
    Plain(Method),
    /// A dense map's.
    PeacemanRachford {
        step: f64,
    },
    /// A circular convolution's, in the frequency domain.
    Fourier {
        step: f64,
    },
    ForwardBackward {
        step: f64,
    },
}

/// What is known of the derivative where a gradient is pulled back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Derivative {
    Unknown,
    AtHand,
    /// Where the slopes were is `q = D g` already.
    Multiplied,
}

impl Equilibria for Cuda {
    type Plan = CudaPlan;
    type Reports = CudaReports;

    fn plan(&self, map: &ShapedMap, batch: usize) -> Result<CudaPlan> {
        CudaPlan::new(&self.gpu, map, batch)
    }

    fn load(&self, plan: &mut CudaPlan, weights: &[&Memory<f32>]) -> Result<()> {
        plan.loaded = false;
        plan.operators.load(weights)?;
        plan.loaded = true;
        Ok(())
    }

    fn reports(&self, batch: usize) -> Result<CudaReports> {
        let fresh = SampleReport::default();
        let row = ReportRow { iterations: fresh.iterations, outcome: 1, residual: fresh.residual };
        Ok(CudaReports(Memory::upload(&self.gpu, &vec![row; batch])?))
    }

    fn read_reports(&self, reports: &CudaReports, host: &mut [SampleReport]) -> Result<()> {
        check_len("reports", reports.0.len(), host.len())?;
        let mut rows = vec![ReportRow::default(); host.len()];
        reports.0.read(0, &mut rows)?;
        for (report, row) in host.iter_mut().zip(rows) {
            *report = row.read()?;
        }
        Ok(())
    }

    fn count(&self, pass: Pass, batch: usize, reports: &CudaReports, tally: &mut CudaTally) -> Result<()> {
        check_len("reports", reports.0.len(), batch)?;
        let backward = pass == Pass::Backward;
        launch!(self.gpu, "tally_reports", Grid::blocks(1), &reports.0, batch as u32, backward, &mut tally.0)
    }

    fn apply(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        y: &Memory<f32>,
        out: &mut Memory<f32>,
    ) -> Result<()> {
        let sizes = check_call(plan, batch)?;
        check_len("z", z.len(), sizes.states)?;
        check_len("y", y.len(), sizes.injections)?;
        check_len("out", out.len(), sizes.states)?;
        let Work { u, gained, .. } = &mut plan.work;
        plan.operators.apply(batch, z, y, out, u, gained, None, None)
    }

    fn compare(
        &self,
        state_len: usize,
        batch: usize,
        iterations: u32,
        stopping: &Stopping,
        before: &Memory<f32>,
        after: &Memory<f32>,
        reports: &mut CudaReports,
    ) -> Result<()> {
        check_len("the state before", before.len(), batch * state_len)?;
        check_len("the state after", after.len(), batch * state_len)?;
        check_len("reports", reports.0.len(), batch)?;
        if batch == 0 {
            return Ok(());
        }
        let relative = stopping.measure == Measure::Relative;
        let (tolerance, reports) = (stopping.tolerance, &mut reports.0);
        let grid = Grid::blocks(batch);
        launch!(self.gpu, "compare", grid, before, after, state_len, iterations, tolerance, relative, reports)
    }

    fn solve(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        y: &Memory<f32>,
        solver: &Solver,
        stopping: &Stopping,
        start: Start,
        z: &mut Memory<f32>,
        reports: &mut CudaReports,
    ) -> Result<()> {
        let sizes = check_call(plan, batch)?;
        check_solver(solver, stopping)?;
        check_len("reports", reports.0.len(), batch)?;
        check_len("y", y.len(), sizes.injections)?;
        check_len("z", z.len(), sizes.states)?;
        if let Some((onchip, problem)) = plan.operators.onchip(batch, solver, stopping) {
            return onchip.solve(&problem, y, start, z, &mut reports.0);
        }
        let scheme = prepare(&mut plan.operators, solver, Pass::Forward)?;
        let CudaPlan { operators, work, .. } = plan;
        let reports = &mut reports.0;
        match scheme {
            Scheme::Plain(method) => {
                let on_chip = operators.ridge_on_chip(method, stopping)?;
                let (grid, states) = (Grid::entries(sizes.states), sizes.states);
                if let Some(ridge) = on_chip {
                    if let Start::Constant(value) = start {
                        launch!(self.gpu, "fill", grid, &mut *z, states, value as f32)?;
                    }
                    let iterated = Iterated::Map { y };
                    let together = &mut work.together;
                    return operators.solve_on_chip(batch, iterated, ridge, stopping, z, together, reports);
                }
                work.iterates[0].reserve(states)?;
                match start {
                    Start::Given => work.iterates[0].copy_from(z, states)?,
                    Start::Constant(value) => {
                        launch!(self.gpu, "fill", grid, &mut work.iterates[0], states, value as f32)?;
                    }
                }
                let Work { u, gained, iterates, samples, measured, memory, .. } = work;
                let parts = operators.measured_by(method, stopping).map(|[forward, _]| forward);
                measured.reserve(batch * parts.unwrap_or(0))?;
                let mut problem = operators.problem(
                    batch,
                    operators.len(),
                    method,
                    stopping,
                    (y, sizes.injections / batch),
                );
                problem.measured = parts.map(|parts| (&*measured, parts));
                let distances = parts.map(|_| &*measured);
                problem.solve(samples, memory, iterates, z, reports, |argument, image, active| {
                    operators.apply(batch, argument, y, image, u, gained, distances, Some(active))
                })
            }
            Scheme::PeacemanRachford { step } => {
                self.split_forward(operators, work, batch, y, (step, true), stopping, start, z, reports)
            }
            Scheme::Fourier { step } => {
                self.fourier_forward(operators, work, batch, y, step, stopping, start, z, reports)
            }
            Scheme::ForwardBackward { step } => {
                self.split_forward(operators, work, batch, y, (step, false), stopping, start, z, reports)
            }
        }
    }

    fn adjoint(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        y: &Memory<f32>,
        v: &Memory<f32>,
        solver: &Solver,
        stopping: &Stopping,
        g: &mut Memory<f32>,
        reports: &mut CudaReports,
    ) -> Result<()> {
        self.adjoint_with(plan, batch, (z, y), v, (solver, stopping), false, g, reports).map(|_| ())
    }

    fn pullback(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        y: &Memory<f32>,
        g: &Memory<f32>,
        gz: Option<&mut Memory<f32>>,
        gy: &mut Memory<f32>,
        gw: &mut [Memory<f32>],
    ) -> Result<()> {
        self.pull(plan, batch, (z, y), Derivative::Unknown, g, gz, Some(gy), gw)
    }

    fn implicit_gradient(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        y: &Memory<f32>,
        v: &Memory<f32>,
        solver: &Solver,
        stopping: &Stopping,
        g: &mut Memory<f32>,
        reports: &mut CudaReports,
        gy: &mut Memory<f32>,
        gw: &mut [Memory<f32>],
    ) -> Result<()> {
        let (map, how) = (plan.operators.map, (solver, stopping));
        let sizes = check_call(plan, batch)?;
        check_len("y", y.len(), sizes.injections)?;
        check_len("g", g.len(), sizes.states)?;
        check_len("gy", gy.len(), sizes.injections)?;
        if self.gradient_at_kink(plan, batch, z, v, how, reports, gy, gw)? {
            return Ok(());
        }
        if takes_q(map) {
            // The injection's gradient is `q`, which comes where the slopes were: these have the gradient's memory meanwhile.
            std::mem::swap(gy, &mut plan.work.linearisation.slopes);
            let done = self
                .adjoint_with(plan, batch, (z, y), v, how, true, g, reports)
                .and_then(|known| self.pull(plan, batch, (z, y), known, g, None, None, gw));
            std::mem::swap(gy, &mut plan.work.linearisation.slopes);
            return done;
        }
        let known = self.adjoint_with(plan, batch, (z, y), v, how, true, g, reports)?;
        // Where it is `g` itself, the two change places.
        if map.norm.is_none() && g.len() == gy.len() {
            self.pull(plan, batch, (z, y), known, g, None, None, gw)?;
            std::mem::swap(g, gy);
            return Ok(());
        }
        self.pull(plan, batch, (z, y), known, g, None, Some(gy), gw)
    }

    fn implicit_gradient_over(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        y: &mut Memory<f32>,
        v: &Memory<f32>,
        solver: &Solver,
        stopping: &Stopping,
        [g, gy]: [&mut Room<Memory<f32>>; 2],
        reports: &mut CudaReports,
        gw: &mut [Memory<f32>],
    ) -> Result<()> {
        check_len("y", y.len(), check_call(plan, batch)?.injections)?;
        if self.gradient_at_kink(plan, batch, z, v, (solver, stopping), reports, y, gw)? {
            return Ok(());
        }
        let (g, gy) = (g.made(self)?, gy.made(self)?);
        self.implicit_gradient(plan, batch, z, y, v, solver, stopping, g, reports, gy, gw)?;
        std::mem::swap(y, gy);
        Ok(())
    }
}

/// Whether the injection is inside of the activation, so that its gradient is `q`.
fn takes_q(map: ShapedMap) -> bool {
    matches!(
        (map.formula, map.injection),
        (Formula::PowerRatio { .. }, _) | (Formula::Single, Injection::Inner)
    )
}

impl Cuda {
    /// [`Equilibria::adjoint`], and what is known of the derivative after it. With `multiply`, a kernel that does the whole solve of a
    /// convolution leaves `q` where the slopes were.
    #[allow(clippy::too_many_arguments)] // as `Equilibria::adjoint`
    fn adjoint_with(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        (z, y): (&Memory<f32>, &Memory<f32>),
        v: &Memory<f32>,
        (solver, stopping): (&Solver, &Stopping),
        multiply: bool,
        g: &mut Memory<f32>,
        reports: &mut CudaReports,
    ) -> Result<Derivative> {
        let sizes = check_adjoint(plan, batch, z, v, (solver, stopping), reports)?;
        check_len("y", y.len(), sizes.injections)?;
        check_len("g", g.len(), sizes.states)?;
        if let Some((onchip, problem)) = plan.operators.onchip(batch, solver, stopping) {
            let known = match onchip {
                Onchip::Convolution(_) => {
                    plan.operators.linearise(batch, z, y, &mut plan.work)?;
                    if multiply { Derivative::Multiplied } else { Derivative::AtHand }
                }
                // Such solves have no derivative in memory.
                Onchip::Dense(_) => Derivative::Unknown,
            };
            let slopes = &plan.work.linearisation.slopes;
            onchip.adjoint(&problem, (z, y), slopes, multiply, v, g, &mut reports.0)?;
            return Ok(known);
        }
        let scheme = prepare(&mut plan.operators, solver, Pass::Backward)?;
        let CudaPlan { operators, work, .. } = plan;
        match (scheme, operators.kink()) {
            (Scheme::Fourier { step }, _) if operators.is_kinked_on_planes()? => {
                let at = Some((z, Answer::G));
                self.fourier_adjoint(operators, work, batch, at, v, step, stopping, g, &mut reports.0)?;
                return Ok(Derivative::Unknown);
            }
            (Scheme::Fourier { .. }, Some(below)) => {
                operators.linearise_at_solution(batch, below, z, work)?
            }
            _ => operators.linearise(batch, z, y, work)?,
        }
        // Scratch memory may have lost what gains need.
        let known = if operators.has_gains() { Derivative::Unknown } else { Derivative::AtHand };
        let reports = &mut reports.0;
        match scheme {
            Scheme::Plain(method) => {
                let q_len = operators.planes() * operators.len();
                let Work {
                    gained,
                    g: gradient,
                    linearisation,
                    iterates,
                    ends,
                    samples,
                    measured,
                    memory,
                    together,
                    ..
                } = work;
                let on_chip = operators.ridge_on_chip(method, stopping)?;
                let start = if on_chip.is_some() { &mut *ends } else { &mut iterates[0] };
                start.reserve(batch * q_len)?;
                gradient.reserve(sizes.states)?;
                gradient.copy_from(v, sizes.states)?;
                operators.q_of(batch, linearisation, gradient, None, gained, start, None)?;
                if let Some(ridge) = on_chip {
                    let iterated = Iterated::Derivative { v, at: linearisation };
                    operators.solve_on_chip(batch, iterated, ridge, stopping, ends, together, reports)?;
                } else {
                    let parts = operators.measured_by(method, stopping).map(|[_, adjoint]| adjoint);
                    measured.reserve(batch * parts.unwrap_or(0))?;
                    ends.reserve(batch * q_len)?;
                    let mut problem = operators.problem(batch, q_len, method, stopping, (v, operators.len()));
                    problem.measured = parts.map(|parts| (&*measured, parts));
                    let distances = parts.map(|_| &*measured);
                    problem.solve(samples, memory, iterates, ends, reports, |q, image, active| {
                        let active = Some(active);
                        operators.adjoint_step(
                            batch,
                            linearisation,
                            q,
                            v,
                            gradient,
                            gained,
                            image,
                            distances,
                            active,
                        )
                    })?;
                }
            }
            Scheme::PeacemanRachford { step } => {
                self.split_adjoint(operators, work, batch, v, (step, true), stopping, reports)?;
            }
            Scheme::Fourier { step } => {
                self.fourier_adjoint(operators, work, batch, None, v, step, stopping, g, reports)?;
                return Ok(known);
            }
            Scheme::ForwardBackward { step } => {
                self.split_adjoint(operators, work, batch, v, (step, false), stopping, reports)?;
            }
        }
        // g = W' q + v.
        let Work { g: gradient, ends, .. } = work;
        operators.transposed_plus(batch, ends, v, gradient, g)?;
        Ok(known)
    }

    /// Pulls `g` back through one application at `(z, y)`; what is not asked for is not written.
    #[allow(clippy::too_many_arguments)] // as `Equilibria::pullback`
    fn pull(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        (z, y): (&Memory<f32>, &Memory<f32>),
        known: Derivative,
        g: &Memory<f32>,
        gz: Option<&mut Memory<f32>>,
        gy: Option<&mut Memory<f32>>,
        gw: &mut [Memory<f32>],
    ) -> Result<()> {
        let sizes = check_call(plan, batch)?;
        check_len("z", z.len(), sizes.states)?;
        check_len("y", y.len(), sizes.injections)?;
        check_len("g", g.len(), sizes.states)?;
        if let Some(gy) = &gy {
            check_len("gy", gy.len(), sizes.injections)?;
        }
        if let Some(gz) = &gz {
            check_len("gz", gz.len(), sizes.states)?;
        }
        let CudaPlan { operators, work, .. } = plan;
        let map = operators.map;
        check_gradients(&map, gw.iter().map(Memory::len))?;
        if known == Derivative::Unknown {
            operators.linearise(batch, z, y, work)?;
        }
        let Work { u, gained, g: gradient, linearisation, .. } = work;
        let (len, planes, units) = (operators.len(), operators.planes(), map.operator.units());
        let pulled = if map.norm.is_some() {
            gradient.reserve(sizes.states)?;
            gradient.copy_from(g, sizes.states)?;
            operators.through_norm(batch, linearisation, gradient, None)?;
            &*gradient
        } else {
            g
        };
        if known != Derivative::Multiplied {
            operators.turn_slopes_into_q(batch, linearisation, pulled, gained)?;
        }
        let q = &linearisation.slopes;
        if let Some(gy) = gy {
            gy.copy_from(if takes_q(map) { q } else { pulled }, sizes.injections)?;
        }
        let (gains, operator_gradients) = gw.split_at_mut(if operators.has_gains() { 2 } else { 0 });
        for ((plane, gain), sign) in gains.iter_mut().enumerate().zip([1.0, -1.0]) {
            // Rows are pixels: the gradient's all in a row, the values' in planes.
            let left = Factor::new(pulled, 0, Axis::plain(1), Axis::plain(units));
            let pixels = Axis::grouped(len / units, planes * len, units);
            let right = Factor::new(u, plane * len, Axis::plain(1), pixels);
            let sizes = [units, units, batch * (len / units)];
            add_outer_products(&self.gpu, left, right, sizes, sign, &mut [gain])?;
        }
        operators.add_gradients(batch, q, z, operator_gradients)?;
        if let Some(gz) = gz {
            operators.transposed(batch, q, gz, None)?;
        }
        Ok(())
    }

    /// [`Equilibria::implicit_gradient`] of an activation with a kink by a splitting of whole images, if that is what is asked for. Its
    /// slopes are the signs of the solution, and its gradient for the injection, `q`, comes where it is wanted: neither the injection nor
    /// any other array of states is needed.
    #[allow(clippy::too_many_arguments)] // as `Equilibria::implicit_gradient`
    fn gradient_at_kink(
        &self,
        plan: &mut CudaPlan,
        batch: usize,
        z: &Memory<f32>,
        v: &Memory<f32>,
        (solver, stopping): (&Solver, &Stopping),
        reports: &mut CudaReports,
        gy: &mut Memory<f32>,
        gw: &mut [Memory<f32>],
    ) -> Result<bool> {
        let Solver::PeacemanRachford { .. } = solver else { return Ok(false) };
        if plan.operators.kink().is_none() {
            return Ok(false);
        }
        check_adjoint(plan, batch, z, v, (solver, stopping), reports)?;
        check_gradients(&plan.operators.map, gw.iter().map(Memory::len))?;
        let scheme = prepare(&mut plan.operators, solver, Pass::Backward)?;
        let CudaPlan { operators, work, .. } = plan;
        let Scheme::Fourier { step } = scheme else { return Ok(false) };
        if !operators.is_kinked_on_planes()? {
            return Ok(false);
        }
        let at = Some((z, Answer::Q));
        self.fourier_adjoint(operators, work, batch, at, v, step, stopping, gy, &mut reports.0)?;
        operators.add_gradients(batch, gy, z, gw)?;
        Ok(true)
    }
}

/// Refuses what no adjoint can be solved with.
fn check_adjoint(
    plan: &CudaPlan,
    batch: usize,
    z: &Memory<f32>,
    v: &Memory<f32>,
    (solver, stopping): (&Solver, &Stopping),
    reports: &CudaReports,
) -> Result<Sizes> {
    let sizes = check_call(plan, batch)?;
    check_solver(solver, stopping)?;
    check_len("reports", reports.0.len(), batch)?;
    check_len("z", z.len(), sizes.states)?;
    check_len("v", v.len(), sizes.states)?;
    Ok(sizes)
}

impl Operators {
    /// Whether the adjoint of a splitting in the frequency domain needs no slopes beside the solution. The resolvent is there.
    fn is_kinked_on_planes(&self) -> Result<bool> {
        Ok(self.kink().is_some() && self.resolvent()?.shape.planes().is_some())
    }

    /// What `q` adds to the gradients of the square operators.
    fn add_gradients(
        &self,
        batch: usize,
        q: &Memory<f32>,
        z: &Memory<f32>,
        gradients: &mut [Memory<f32>],
    ) -> Result<()> {
        let (len, planes) = (self.len(), self.planes());
        let mut gradients: Vec<&mut Memory<f32>> = gradients.iter_mut().collect();
        if let Some(convolution) = self.convolution(batch, 1, planes) {
            return convolution.add_gradient(&self.gpu, q, z, &mut gradients);
        }
        let left = Factor::new(q, 0, Axis::plain(1), Axis::plain(planes * len));
        let right = Factor::new(z, 0, Axis::plain(1), Axis::plain(len));
        add_outer_products(&self.gpu, left, right, [planes * len, len, batch], 1.0, &mut gradients)
    }

    /// [`Operators::measured_parts`], if a solve has use for them.
    fn measured_by(&self, method: Method, stopping: &Stopping) -> Option<[usize; 2]> {
        let squares = matches!(stopping.measure, Measure::Relative | Measure::Absolute);
        (squares && method == Method::Picard).then(|| self.measured_parts()).flatten()
    }

    /// The kernels that do a whole solve at once, if there are such, and what they are told about it.
    fn onchip<'a>(
        &'a self,
        batch: usize,
        solver: &Solver,
        stopping: &'a Stopping,
    ) -> Option<(&'a Onchip, onchip::Problem<'a>)> {
        let onchip = self.onchip.as_ref().filter(|_| Onchip::fits(solver, stopping))?;
        let Self { gpu, map, constants, weights, bad, .. } = self;
        Some((onchip, onchip::Problem { gpu, map, constants, weights, bad, batch, stopping }))
    }

    /// A fixed-point problem of this map.
    pub fn problem<'a>(
        &'a self,
        batch: usize,
        len: usize,
        method: Method,
        stopping: &'a Stopping,
        given: (&'a Memory<f32>, usize),
    ) -> Problem<'a> {
        Problem { gpu: &self.gpu, batch, len, method, stopping, given, bad: &self.bad, measured: None }
    }
}

/// Numbers that a call reads and writes.
struct Sizes {
    states: usize,
    injections: usize,
}

fn check_call(plan: &CudaPlan, batch: usize) -> Result<Sizes> {
    if !plan.loaded {
        return Err(EngineError::Invalid("the plan has no weights yet: load them first".into()));
    }
    if batch == 0 || batch > plan.batch {
        return Err(EngineError::Invalid(format!(
            "a batch of {batch} samples, but the plan was made for 1 to {}",
            plan.batch
        )));
    }
    let map = &plan.operators.map;
    Ok(Sizes { states: batch * map.operator.state_len(), injections: batch * map.injection_len() })
}

/// Makes what a solver needs besides the weights for this pass; refuses what there are no kernels for.
fn prepare(operators: &mut Operators, solver: &Solver, pass: Pass) -> Result<Scheme> {
    match *solver {
        Solver::Picard => Ok(Scheme::Plain(Method::Picard)),
        Solver::Anderson { window, .. } if window > MOST => {
            Err(not_yet(&format!("an Anderson window of {window} (the most is {MOST})")))
        }
        Solver::Anderson { window, ridge, mixing } => {
            Ok(Scheme::Plain(Method::Anderson { window, ridge, mixing }))
        }
        Solver::Broyden { memory } => Ok(Scheme::Plain(Method::Broyden { memory })),
        Solver::ForwardBackward { step } => {
            check_splitting(&operators.map, step)?;
            Ok(Scheme::ForwardBackward { step })
        }
        Solver::PeacemanRachford { step } => {
            check_splitting(&operators.map, step)?;
            let scheme = match operators.map.operator {
                Operator::Dense { .. } => Scheme::PeacemanRachford { step },
                Operator::Conv { padding: Padding::Circular, .. } => Scheme::Fourier { step },
                Operator::Conv { .. } => {
                    return Err(EngineError::Invalid(
                        "Peaceman-Rachford needs the inverse of I + t (I - W), which a zero-padded convolution does not have \
                         in closed form: use circular padding, or ForwardBackward"
                            .into(),
                    ));
                }
            };
            operators.prepare_resolvent(step, pass == Pass::Backward)?;
            Ok(scheme)
        }
    }
}
