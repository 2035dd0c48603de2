//! Equilibria on the CPU: the implementation of [`Device`].

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Accuracy;
use crate::cpu::linear::Linear;
use crate::cpu::packed::{check_finite, check_len};
use crate::cpu::plan::{Common, CpuPlan, Inputs, Prepared, Worker, check_solver};
use crate::cpu::pullback::Cotangents;
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Block, solve_block, solve_lockstep};
use crate::{Device, EngineError, Map, Result, SampleReport, Scope, Solver, Start, Stopping};

/// Numbers that are checked and copied together.
const WRITE_PIECE: usize = 1 << 13;

/// Implements [`Device`] for a number type. Not one generic implementation: the kernels are compiled here, once, and not again
/// in every crate that uses them.
macro_rules! device {
    ($($t:ident),*) => {$(
        impl Device<$t> for Cpu<$t> {
            type Array = Buffer<$t>;
            type Plan = CpuPlan<$t>;

            fn zeros(&self, len: usize) -> Buffer<$t> {
                Buffer::zeros(len)
            }

            fn upload(&self, host: &[$t]) -> Buffer<$t> {
                Buffer::from_slice(host)
            }

            fn write(&self, array: &mut Buffer<$t>, host: &[$t]) -> Result<()> {
                check_same_len("the array", array.len(), host.len())?;
                array.copy_from_slice(host);
                Ok(())
            }

            fn write_finite(&self, what: &'static str, array: &mut Buffer<$t>, host: &[$t]) -> Result<()> {
                check_len(what, array.len(), host.len())?;
                let refused = AtomicBool::new(false);
                // Checked and copied piece by piece, so that the second look finds the piece in cache.
                let pieces = array.chunks_mut(WRITE_PIECE).zip(host.chunks(WRITE_PIECE));
                self.team().for_each(pieces, |(array, host)| {
                    if check_finite(self.isa, what, host).is_err() {
                        refused.store(true, Ordering::Relaxed);
                    }
                    array[..host.len()].copy_from_slice(host);
                });
                if refused.into_inner() { check_finite(self.isa, what, host) } else { Ok(()) }
            }

            fn read(&self, array: &Buffer<$t>, host: &mut [$t]) -> Result<()> {
                check_same_len("the host slice", host.len(), array.len())?;
                host.copy_from_slice(array);
                Ok(())
            }

            fn plan(&self, map: &Map, batch: usize) -> Result<CpuPlan<$t>> {
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
                reports: &mut [SampleReport],
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
                reports: &mut [SampleReport],
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
                gw: &mut [&mut Buffer<$t>],
            ) -> Result<()> {
                let sizes = check_call(plan, batch)?;
                let (z, y, g) = (sizes.states("z", z)?, sizes.injections(y)?, sizes.states("g", g)?);
                check_len("gy", gy.len(), batch * sizes.injection)?;
                let gz = gz.map(|gz| sizes.states_mut("gz", gz)).transpose()?;
                let map = plan.packed.map;
                if gw.len() != map.weight_count() {
                    let (needed, given) = (map.weight_count(), gw.len());
                    return Err(EngineError::Invalid(format!(
                        "{:?} has {needed} weight arrays, {given} gradients were given",
                        map.formula
                    )));
                }
                for (index, array) in gw.iter().enumerate() {
                    check_len("a weight gradient", array.len(), map.weight_len(index))?;
                }
                let gy = &mut gy[..batch * sizes.injection];
                self.pull_back(plan, batch, Cotangents { z, y, g, gz, gy }, gw);
                Ok(())
            }
        }
    )*};
}
device!(f32, f64);

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
        if stopping.scope == Scope::PerSample {
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

fn check_same_len(what: &'static str, found: usize, needed: usize) -> Result<()> {
    if found == needed { Ok(()) } else { Err(EngineError::Length { what, found, needed }) }
}
