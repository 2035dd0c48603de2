//! Equilibria on the CPU.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Accuracy;
use crate::cpu::linear::Linear;
use crate::cpu::memory::reserved;
use crate::cpu::packed::{check_finite, check_gradients, check_len};
use crate::cpu::plan::{Common, CpuPlan, Inputs, Prepared, Worker, check_solver};
use crate::cpu::pullback::Cotangents;
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Block, solve_block, solve_lockstep};
use crate::{
    EngineError, Equilibria, Extent, Measure, Outcome, Pass, Result, SampleReport, ShapedMap, Solver, Start,
    Stopping, Summary,
};

/// Implements [`Equilibria`] for a number type. Not one generic implementation: the kernels are compiled here, once, and not again
/// in every crate that uses them.
macro_rules! equilibria {
    ($($t:ident),*) => {$(
        impl Equilibria for Cpu<$t> {
            type Plan = CpuPlan<$t>;
            type Reports = Vec<SampleReport>;

            fn plan(&self, map: &ShapedMap, batch: usize) -> Result<CpuPlan<$t>> {
                CpuPlan::new(self.isa, self.threads, map, batch)
            }

            fn load(&self, plan: &mut CpuPlan<$t>, weights: &[&Buffer<$t>]) -> Result<()> {
                plan.loaded = false;
                plan.splittings.forget();
                let weights: Vec<&[$t]> = weights.iter().map(|array| &array[..]).collect();
                if matches!(plan.packed.forward, Linear::Fourier(_)) {
                    self.install(|| plan.packed.load(&weights))?;
                } else {
                    plan.packed.load(&weights)?;
                }
                plan.loaded = true;
                Ok(())
            }

            fn reports(&self, batch: usize) -> Result<Vec<SampleReport>> {
                reserved(batch)
            }

            fn read_reports(&self, reports: &Vec<SampleReport>, host: &mut [SampleReport]) -> Result<()> {
                check_len("reports", reports.len(), host.len())?;
                host.copy_from_slice(&reports[..host.len()]);
                Ok(())
            }

            fn count(&self, pass: Pass, batch: usize, reports: &Vec<SampleReport>, tally: &mut Summary) -> Result<()> {
                check_len("reports", reports.len(), batch)?;
                tally.count(pass, &reports[..batch]);
                Ok(())
            }

            fn compare(
                &self,
                state_len: usize,
                batch: usize,
                iterations: u32,
                stopping: &Stopping,
                before: &Buffer<$t>,
                after: &Buffer<$t>,
                reports: &mut Vec<SampleReport>,
            ) -> Result<()> {
                check_len("the state before", before.len(), batch * state_len)?;
                check_len("the state after", after.len(), batch * state_len)?;
                check_len("reports", reports.len(), batch)?;
                let samples = before.chunks_exact(state_len).zip(after.chunks_exact(state_len));
                for (report, (before, after)) in reports[..batch].iter_mut().zip(samples) {
                    *report = last_step(iterations, stopping, before, after);
                }
                Ok(())
            }

            fn apply(
                &self,
                plan: &mut CpuPlan<$t>,
                batch: usize,
                z: &Buffer<$t>,
                y: &Buffer<$t>,
                out: &mut Buffer<$t>,
            ) -> Result<()> {
                let sizes = check_call(plan, batch)?;
                let z = sizes.states("z", z)?;
                let y = sizes.injections(y)?;
                let out = sizes.states_mut("out", out)?;
                let block = plan.block(None, batch, self.threads);
                let CpuPlan { packed, workers, .. } = plan;
                let queue = z
                    .chunks(block * sizes.state)
                    .zip(y.chunks(block * sizes.injection))
                    .zip(out.chunks_mut(block * sizes.state));
                self.share(workers, queue, |worker, ((z, y), out)| {
                    worker.reserve(block);
                    worker.apply(packed, z, y, out);
                });
                Ok(())
            }

            fn solve(
                &self,
                plan: &mut CpuPlan<$t>,
                batch: usize,
                y: &Buffer<$t>,
                solver: &Solver,
                stopping: &Stopping,
                start: Start,
                z: &mut Buffer<$t>,
                reports: &mut Vec<SampleReport>,
            ) -> Result<()> {
                let sizes = check_call(plan, batch)?;
                check_solver(solver, stopping)?;
                check_len("reports", reports.len(), batch)?;
                let y = sizes.injections(y)?;
                let z = sizes.states_mut("z", z)?;
                self.prepare(plan, solver)?;
                let block = plan.block(Some(solver), batch, self.threads);
                let CpuPlan { packed, splittings, workers, lockstep, .. } = plan;
                let accuracy = Accuracy::required(stopping.measure, stopping.tolerance);
                let common = Common { packed, splittings, solver, accuracy, block };
                let blocks = y
                    .chunks(block * sizes.injection)
                    .zip(z.chunks_mut(block * sizes.state))
                    .zip(reports[..batch].chunks_mut(block))
                    .map(|((y, z), reports)| Job { inputs: Inputs::Forward { y, start }, answers: z, reports });
                self.run(workers, lockstep, common, stopping, blocks, ("y", y))
            }

            fn adjoint(
                &self,
                plan: &mut CpuPlan<$t>,
                batch: usize,
                z: &Buffer<$t>,
                y: &Buffer<$t>,
                v: &Buffer<$t>,
                solver: &Solver,
                stopping: &Stopping,
                g: &mut Buffer<$t>,
                reports: &mut Vec<SampleReport>,
            ) -> Result<()> {
                let sizes = check_call(plan, batch)?;
                check_solver(solver, stopping)?;
                check_len("reports", reports.len(), batch)?;
                let (z, y, v) = (sizes.states("z", z)?, sizes.injections(y)?, sizes.states("v", v)?);
                let g = sizes.states_mut("g", g)?;
                self.prepare(plan, solver)?;
                let block = plan.block(Some(solver), batch, self.threads);
                let CpuPlan { packed, splittings, workers, lockstep, .. } = plan;
                let accuracy = Accuracy::required(stopping.measure, stopping.tolerance);
                let common = Common { packed, splittings, solver, accuracy, block };
                let blocks = z
                    .chunks(block * sizes.state)
                    .zip(y.chunks(block * sizes.injection))
                    .zip(v.chunks(block * sizes.state))
                    .zip(g.chunks_mut(block * sizes.state))
                    .zip(reports[..batch].chunks_mut(block))
                    .map(|((((z, y), v), g), reports)| Job { inputs: Inputs::Adjoint { z, y, v }, answers: g, reports });
                self.run(workers, lockstep, common, stopping, blocks, ("v", v))
            }

            fn pullback(
                &self,
                plan: &mut CpuPlan<$t>,
                batch: usize,
                z: &Buffer<$t>,
                y: &Buffer<$t>,
                g: &Buffer<$t>,
                gz: Option<&mut Buffer<$t>>,
                gy: &mut Buffer<$t>,
                gw: &mut [Buffer<$t>],
            ) -> Result<()> {
                let sizes = check_call(plan, batch)?;
                let (z, y, g) = (sizes.states("z", z)?, sizes.injections(y)?, sizes.states("g", g)?);
                check_len("gy", gy.len(), batch * sizes.injection)?;
                let gz = gz.map(|gz| sizes.states_mut("gz", gz)).transpose()?;
                let map = plan.packed.map;
                check_gradients(&map, gw.iter().map(|array| array.len()))?;
                let gy = &mut gy[..batch * sizes.injection];
                self.pull_back(plan, batch, Cotangents { z, y, g, gz, gy }, gw);
                Ok(())
            }
        }
    )*};
}
equilibria!(f32, f64);

/// One block of a solve.
struct Job<'a, T> {
    inputs: Inputs<'a, T>,
    answers: &'a mut [T],
    reports: &'a mut [SampleReport],
}

impl<T: SimdReal> Cpu<T> {
    /// Makes what a solver needs besides the weights. Only the splittings need anything, and only they should pay for
    /// calling the thread pool.
    fn prepare(&self, plan: &mut CpuPlan<T>, solver: &Solver) -> Result<()> {
        match solver {
            Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. } => {
                self.install(|| plan.splittings.prepare(&plan.packed, solver))
            }
            _ => Ok(()),
        }
    }

    /// Solves blocks, each sample for itself or all together, as the stopping rule says. Refuses `given`, what the blocks are
    /// made of and its name, if it is not finite.
    fn run<'a>(
        &self,
        workers: &'a mut [Worker<T>],
        lockstep: &'a mut Vec<Worker<T>>,
        common: Common<'a, T>,
        stopping: &Stopping,
        blocks: impl DoubleEndedIterator<Item = Job<'a, T>> + Send,
        (what, given): (&'static str, &[T]),
    ) -> Result<()> {
        if stopping.extent == Extent::PerSample {
            let refused = AtomicBool::new(false);
            self.share(workers, blocks, |worker, Job { inputs, answers, reports }| {
                // Block by block: a solve finds in cache what was just looked at.
                if check_finite(self.isa, what, inputs.given()).is_err() {
                    return refused.store(true, Ordering::Relaxed);
                }
                let Prepared { mut step, method, workspace } = worker.prepare(common, inputs, answers);
                solve_block(Block { step: step.problem(), method, workspace, answers, reports }, stopping);
            });
            return if refused.into_inner() { check_finite(self.isa, what, given) } else { Ok(()) };
        }
        check_finite(self.isa, what, given)?;
        let jobs: Vec<Job<T>> = blocks.collect();
        lockstep.resize_with(jobs.len().max(lockstep.len()), Worker::default);
        let mut prepared: Vec<_> = lockstep
            .iter_mut()
            .zip(jobs)
            .map(|(worker, job)| (worker.prepare(common, job.inputs, job.answers), job.answers, job.reports))
            .collect();
        let mut blocks: Vec<Block<T>> = prepared
            .iter_mut()
            .map(|(Prepared { step, method, workspace }, answers, reports)| Block {
                step: step.problem(),
                method: &mut **method,
                workspace,
                answers,
                reports,
            })
            .collect();
        solve_lockstep(&mut blocks, stopping, |blocks, work| {
            use rayon::prelude::*;
            self.install(|| blocks.par_iter_mut().for_each(work));
        });
        Ok(())
    }
}

/// Sizes of a call, to check and cut its arrays with.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    batch: usize,
    /// Numbers in one state.
    pub state: usize,
    /// Numbers in one injection.
    pub injection: usize,
}

impl Sizes {
    fn states<'a, T: SimdReal>(&self, what: &'static str, array: &'a Buffer<T>) -> Result<&'a [T]> {
        check_len(what, array.len(), self.batch * self.state)?;
        Ok(&array[..self.batch * self.state])
    }

    fn states_mut<'a, T: SimdReal>(
        &self,
        what: &'static str,
        array: &'a mut Buffer<T>,
    ) -> Result<&'a mut [T]> {
        check_len(what, array.len(), self.batch * self.state)?;
        Ok(&mut array[..self.batch * self.state])
    }

    fn injections<'a, T: SimdReal>(&self, y: &'a Buffer<T>) -> Result<&'a [T]> {
        check_len("y", y.len(), self.batch * self.injection)?;
        Ok(&y[..self.batch * self.injection])
    }
}

fn check_call<T: SimdReal>(plan: &CpuPlan<T>, batch: usize) -> Result<Sizes> {
    if !plan.loaded {
        return Err(EngineError::Invalid("the plan has no weights yet: load them first".into()));
    }
    if batch == 0 || batch > plan.batch {
        return Err(EngineError::Invalid(format!(
            "a batch of {batch} samples, but the plan was made for 1 to {}",
            plan.batch
        )));
    }
    let map = &plan.packed.map;
    Ok(Sizes { batch, state: map.operator.state_len(), injection: map.injection_len() })
}

/// How far a sample's last application went.
fn last_step<T: SimdReal>(iterations: u32, stopping: &Stopping, before: &[T], after: &[T]) -> SampleReport {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let gap = norm(&mut before.iter().zip(after).map(|(a, b)| b.to_f64() - a.to_f64()));
    let size = norm(&mut after.iter().map(|z| z.to_f64()));
    let residual = if stopping.measure == Measure::Relative { gap / (1e-5 + size) } else { gap };
    let outcome = match residual {
        r if !r.is_finite() => Outcome::NotFinite,
        r if r <= stopping.tolerance => Outcome::Converged,
        _ => Outcome::IterationLimit,
    };
    SampleReport { iterations, residual, outcome }
}
