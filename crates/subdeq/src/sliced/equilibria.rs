//! Equilibria on a sliced device: each sample is solved for itself, the gradients of weights are summed.

use subdeq_engine::{
    Backend, EngineError, Equilibria, Extent, Outcome, Pass, SampleReport, ShapedMap, Solver, Start, Stopping,
};

use super::memory::inner;
use super::sums::{put, take};
use super::{Engine, Sliced};

/// A plan, and what the slices of a call are cut by.
pub struct SlicedPlan<P> {
    plan: P,
    /// Numbers in one state, in one injection, and in each weight array.
    state: usize,
    injection: usize,
    weights: Vec<usize>,
}

/// Refuses to let samples stop together: those of other ranks are not here.
fn per_sample(stopping: &Stopping) -> Engine<()> {
    match stopping.extent {
        Extent::PerSample => Ok(()),
        Extent::WholeBatch => Err(EngineError::Invalid(
            "the samples of a batch that is cut into slices stop each for itself: leave `whole_batch` out, or --slices".into(),
        )),
    }
}

impl<D: Backend<Elem = f32>> Equilibria for Sliced<D> {
    type Plan = SlicedPlan<D::Plan>;
    type Reports = D::Reports;

    fn plan(&self, map: &ShapedMap, batch: usize) -> Engine<Self::Plan> {
        Ok(SlicedPlan {
            plan: self.device.plan(map, self.cut.largest_share(batch))?,
            state: map.operator().state_len(),
            injection: map.injection_len(),
            weights: (0..map.weight_count()).map(|k| map.weight_len(k)).collect(),
        })
    }

    fn load(&self, plan: &mut Self::Plan, weights: &[&D::Array]) -> Engine<()> {
        self.device.load(&mut plan.plan, weights)
    }

    inner! {
        fn reports(&self, batch: usize) -> Engine<D::Reports>;
    }

    /// Those of all ranks.
    fn read_reports(&self, reports: &D::Reports, host: &mut [SampleReport]) -> Engine<()> {
        let mut own = vec![SampleReport::default(); self.cut.share(host.len()).len()];
        if !own.is_empty() {
            self.device.read_reports(reports, &mut own)?;
        }
        if self.has_failed() {
            host[..own.len()].copy_from_slice(&own);
            return Ok(());
        }
        let numbers: Vec<f64> = own.iter().flat_map(|one| numbers(*one)).collect();
        let all = self.together(self.ranks.all_gather(&numbers))?;
        for (report, numbers) in host.iter_mut().zip(all.chunks_exact(3)) {
            *report = report_of(numbers);
        }
        Ok(())
    }

    fn count(&self, pass: Pass, batch: usize, reports: &D::Reports, tally: &mut Vec<D::Tally>) -> Engine<()> {
        self.on_own(batch, |device, batch| device.count(pass, batch, reports, &mut tally[0]))
    }

    fn apply(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &D::Array,
        y: &D::Array,
        out: &mut D::Array,
    ) -> Engine<()> {
        self.on_own(batch, |device, batch| device.apply(&mut plan.plan, batch, z, y, out))
    }

    fn compare(
        &self,
        state_len: usize,
        batch: usize,
        iterations: u32,
        stopping: &Stopping,
        before: &D::Array,
        after: &D::Array,
        reports: &mut D::Reports,
    ) -> Engine<()> {
        self.on_own(batch, |device, batch| {
            device.compare(state_len, batch, iterations, stopping, before, after, reports)
        })
    }

    fn solve(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        y: &D::Array,
        solver: &Solver,
        stopping: &Stopping,
        start: Start,
        z: &mut D::Array,
        reports: &mut D::Reports,
    ) -> Engine<()> {
        per_sample(stopping)?;
        self.on_own(batch, |device, batch| {
            device.solve(&mut plan.plan, batch, y, solver, stopping, start, z, reports)
        })
    }

    fn adjoint(
        &self,
        plan: &mut Self::Plan,
        batch: usize,
        z: &D::Array,
        y: &D::Array,
        v: &D::Array,
        solver: &Solver,
        stopping: &Stopping,
        g: &mut D::Array,
        reports: &mut D::Reports,
    ) -> Engine<()> {
        per_sample(stopping)?;
        self.on_own(batch, |device, batch| {
            device.adjoint(&mut plan.plan, batch, z, y, v, solver, stopping, g, reports)
        })
    }

    fn pullback(
        &self,
        plan: &mut Self::Plan,
        _batch: usize,
        z: &D::Array,
        y: &D::Array,
        g: &D::Array,
        mut gz: Option<&mut D::Array>,
        gy: &mut D::Array,
        gw: &mut [D::Array],
    ) -> Engine<()> {
        let SlicedPlan { plan, state, injection, weights } = plan;
        let (state, injection) = (*state, *injection);
        let largest = self.cut.largest_slice(self.batch());
        let lens = [state, injection, state, injection].map(|len| largest * len);
        let mut sums: Vec<(&mut D::Array, usize)> = gw.iter_mut().zip(weights.iter().copied()).collect();
        self.add_slices(&mut sums, |device, copies, _, samples, sums| {
            let [z_slice, y_slice, g_slice, gy_slice] = copies.reserved(device, lens)?;
            take(device, state, &samples, z, z_slice)?;
            take(device, injection, &samples, y, y_slice)?;
            take(device, state, &samples, g, g_slice)?;
            match &mut gz {
                None => {
                    device.pullback(plan, samples.len(), z_slice, y_slice, g_slice, None, gy_slice, sums)?;
                }
                Some(gz) => {
                    let mut back = device.zeros(samples.len() * state)?;
                    let gz_slice = Some(&mut back);
                    device.pullback(
                        plan,
                        samples.len(),
                        z_slice,
                        y_slice,
                        g_slice,
                        gz_slice,
                        gy_slice,
                        sums,
                    )?;
                    put(device, state, &samples, &back, gz)?;
                }
            }
            put(device, injection, &samples, gy_slice, gy)
        })
    }
}

/// A report as numbers that travel.
fn numbers(report: SampleReport) -> [f64; 3] {
    let outcome = OUTCOMES.iter().position(|outcome| *outcome == report.outcome).unwrap_or(0);
    [f64::from(report.iterations), report.residual, outcome as f64]
}

/// The way back of [`numbers`].
fn report_of(numbers: &[f64]) -> SampleReport {
    let outcome = OUTCOMES[numbers[2] as usize % OUTCOMES.len()];
    SampleReport { iterations: numbers[0] as u32, residual: numbers[1], outcome }
}

const OUTCOMES: [Outcome; 4] =
    [Outcome::Converged, Outcome::IterationLimit, Outcome::Stagnated, Outcome::NotFinite];
