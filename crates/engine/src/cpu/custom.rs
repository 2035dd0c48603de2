//! Solves and adjoints of a user's own map, by the same methods and drivers.

use std::marker::PhantomData;

use crate::cpu::Cpu;
use crate::cpu::packed::check_len;
use crate::cpu::plan::{Methods, check_solver};
use crate::cpu::problem::{CustomAdjoint, CustomForward};
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Block, Workspace, solve_block, solve_lockstep};
use crate::cpu::step::FixedPointStep;
use crate::{CustomMap, CustomMaps, EngineError, Extent, Result, SampleReport, Solver, Start, Stopping};

/// What a thread needs to solve samples of a custom map.
struct Worker<T: SimdReal> {
    methods: Methods<T>,
    workspace: Workspace<T>,
}

macro_rules! custom_maps {
    ($($t:ident),*) => {$(
        impl CustomMaps for Cpu<$t> {
            fn solve_custom(
                &self,
                map: &dyn CustomMap<$t>,
                batch: usize,
                solver: &Solver,
                stopping: &Stopping,
                start: Start,
                z: &mut [$t],
                reports: &mut [SampleReport],
            ) -> Result<()> {
                self.solve_samples(map, batch, solver, stopping, start, z, reports)
            }

            fn adjoint_custom(
                &self,
                map: &dyn CustomMap<$t>,
                batch: usize,
                z: &[$t],
                v: &[$t],
                solver: &Solver,
                stopping: &Stopping,
                g: &mut [$t],
                reports: &mut [SampleReport],
            ) -> Result<()> {
                self.adjoint_samples(map, batch, z, v, solver, stopping, g, reports)
            }
        }
    )*};
}
custom_maps!(f32, f64);

impl<T: SimdReal> Cpu<T> {
    #[allow(clippy::too_many_arguments)] // as many sides as Equilibria::solve has
    fn solve_samples(
        &self,
        map: &dyn CustomMap<T>,
        batch: usize,
        solver: &Solver,
        stopping: &Stopping,
        start: Start,
        z: &mut [T],
        reports: &mut [SampleReport],
    ) -> Result<()> {
        let len = check(map, batch, solver, stopping, reports)?;
        check_len("z", z.len(), batch * len)?;
        let isa = self.isa;
        let jobs = z[..batch * len].chunks_mut(len).zip(&mut reports[..batch]).enumerate();
        let jobs = jobs.map(|(first, (answers, report))| {
            let step = CustomForward { map, first, isa, numbers: PhantomData };
            (step, answers, std::slice::from_mut(report))
        });
        self.run_custom(solver, stopping, len, jobs, |_, state, answers| match start {
            Start::Constant(value) => state.fill(T::from_f64(value)),
            Start::Given => state.copy_from_slice(answers),
        });
        Ok(())
    }

    #[allow(clippy::too_many_arguments)] // as many sides as Equilibria::adjoint has
    fn adjoint_samples(
        &self,
        map: &dyn CustomMap<T>,
        batch: usize,
        z: &[T],
        v: &[T],
        solver: &Solver,
        stopping: &Stopping,
        g: &mut [T],
        reports: &mut [SampleReport],
    ) -> Result<()> {
        let len = check(map, batch, solver, stopping, reports)?;
        check_len("z", z.len(), batch * len)?;
        check_len("v", v.len(), batch * len)?;
        check_len("g", g.len(), batch * len)?;
        let isa = self.isa;
        let inputs = z.chunks(len).zip(v.chunks(len));
        let jobs = g[..batch * len].chunks_mut(len).zip(&mut reports[..batch]).zip(inputs).enumerate();
        let jobs = jobs.map(|(first, ((answers, report), (z, v)))| {
            (CustomAdjoint { map, first, isa, z, v }, answers, std::slice::from_mut(report))
        });
        self.run_custom(solver, stopping, len, jobs, |step, state, _| state.copy_from_slice(step.v));
        Ok(())
    }

    fn run_custom<'a, S: FixedPointStep<T>>(
        &self,
        solver: &Solver,
        stopping: &Stopping,
        len: usize,
        jobs: impl DoubleEndedIterator<Item = (S, &'a mut [T], &'a mut [SampleReport])> + Send,
        start: impl Fn(&S, &mut [T], &[T]) + Sync,
    ) {
        let worker = || {
            let mut workspace = Workspace::default();
            workspace.reserve(1, len);
            Worker { methods: Methods::new(self.isa), workspace }
        };
        if stopping.extent == Extent::PerSample {
            let mut workers: Vec<Worker<T>> = (0..self.threads).map(|_| worker()).collect();
            self.share(&mut workers, jobs, |Worker { methods, workspace }, (mut step, answers, reports)| {
                start(&step, &mut workspace.iterates.image[..len], answers);
                let method = methods.choose(solver);
                solve_block(Block { step: &mut step, method, workspace, answers, reports }, stopping);
            });
            return;
        }
        let mut samples: Vec<_> = jobs.map(|job| (worker(), job)).collect();
        let mut blocks: Vec<Block<T>> = samples
            .iter_mut()
            .map(|(Worker { methods, workspace }, (step, answers, reports))| {
                start(step, &mut workspace.iterates.image[..len], answers);
                Block { step, method: methods.choose(solver), workspace, answers, reports }
            })
            .collect();
        solve_lockstep(&mut blocks, stopping, |blocks, work| {
            use rayon::prelude::*;
            self.install(|| blocks.par_iter_mut().for_each(work));
        });
    }
}

fn check<T: SimdReal>(
    map: &dyn CustomMap<T>,
    batch: usize,
    solver: &Solver,
    stopping: &Stopping,
    reports: &[SampleReport],
) -> Result<usize> {
    check_solver(solver, stopping)?;
    check_len("reports", reports.len(), batch)?;
    if matches!(solver, Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. }) {
        return Err(EngineError::Invalid(
            "the splittings need to know a map's linear part: they cannot run a custom map".into(),
        ));
    }
    if batch == 0 || map.state_len() == 0 {
        return Err(EngineError::Invalid(format!(
            "nothing to solve: {batch} samples with states of {} numbers",
            map.state_len()
        )));
    }
    Ok(map.state_len())
}
