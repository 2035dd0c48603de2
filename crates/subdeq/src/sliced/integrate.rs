//! Neural differential equations on a sliced device: a plan for each slice, because a plan remembers the way of its samples.

use subdeq_engine::{Activation, Backend, Integrate, OdeOutcome, OdeReport, OdeTolerance, Operator};

use super::sums::{put, take};
use super::{Engine, Sliced};

/// A plan for each slice of this rank.
pub struct SlicedOdePlan<P> {
    plans: Vec<P>,
    /// Numbers in one state and in the weights.
    state: usize,
    weights: usize,
}

impl<D: Backend<Elem = f32>> Integrate for Sliced<D> {
    type OdePlan = SlicedOdePlan<D::OdePlan>;
    type OdeReports = Vec<D::OdeReports>;

    fn ode_plan(&self, operator: Operator, activation: Activation, batch: usize) -> Engine<Self::OdePlan> {
        let largest = self.cut.largest_slice(batch);
        let plans = self.cut.own().map(|_| self.device.ode_plan(operator, activation, largest));
        let (plans, state, weights) =
            (plans.collect::<Engine<_>>()?, operator.state_len(), operator.weight_len());
        Ok(SlicedOdePlan { plans, state, weights })
    }

    fn ode_load(&self, plan: &mut Self::OdePlan, w: &D::Array) -> Engine<()> {
        plan.plans.iter_mut().try_for_each(|plan| self.device.ode_load(plan, w))
    }

    fn ode_reports(&self, batch: usize) -> Engine<Self::OdeReports> {
        self.cut.own().map(|_| self.device.ode_reports(self.cut.largest_slice(batch))).collect()
    }

    /// Those of all ranks.
    fn read_ode_reports(&self, reports: &Self::OdeReports, host: &mut [OdeReport]) -> Engine<()> {
        let mut own = vec![OdeReport::default(); self.cut.share(host.len()).len()];
        for (samples, reports) in self.cut.own_slices(host.len()).zip(reports) {
            if !samples.is_empty() {
                self.device.read_ode_reports(reports, &mut own[samples])?;
            }
        }
        if self.has_failed() {
            host[..own.len()].copy_from_slice(&own);
            return Ok(());
        }
        let numbers: Vec<f64> = own.iter().flat_map(|one| numbers(*one)).collect();
        let all = self.together(self.ranks.all_gather(&numbers))?;
        for (report, numbers) in host.iter_mut().zip(all.chunks_exact(4)) {
            *report = report_of(numbers);
        }
        Ok(())
    }

    fn ode_count(&self, batch: usize, reports: &Self::OdeReports, tally: &mut Vec<D::Tally>) -> Engine<()> {
        let slices = self.cut.own_slices(batch).zip(reports).zip(tally);
        for ((samples, reports), tally) in slices.filter(|((samples, _), _)| !samples.is_empty()) {
            self.device.ode_count(samples.len(), reports, tally)?;
        }
        Ok(())
    }

    fn integrate(
        &self,
        plan: &mut Self::OdePlan,
        batch: usize,
        start: &D::Array,
        tolerance: &OdeTolerance,
        end: &mut D::Array,
        reports: &mut Self::OdeReports,
    ) -> Engine<()> {
        let (device, state) = (&*self.device, plan.state);
        let len = self.cut.largest_slice(batch) * state;
        let mut room = self.room();
        let [from, to, ..] = room.copies.reserved(device, [len, len, 0, 0])?;
        let slices = self.cut.own_slices(batch).zip(&mut plan.plans).zip(reports);
        for ((samples, plan), reports) in slices.filter(|((samples, _), _)| !samples.is_empty()) {
            take(device, state, &samples, start, from)?;
            self.noting(device.integrate(plan, samples.len(), from, tolerance, to, reports))?;
            put(device, state, &samples, to, end)?;
        }
        Ok(())
    }

    fn integrate_adjoint(
        &self,
        plan: &mut Self::OdePlan,
        batch: usize,
        v: &D::Array,
        gradient: &mut D::Array,
        gw: &mut D::Array,
    ) -> Engine<()> {
        let SlicedOdePlan { plans, state, weights } = plan;
        let len = self.cut.largest_slice(batch) * *state;
        self.add_slices(&mut [(gw, *weights)], |device, copies, number, samples, sums| {
            let [from, to, ..] = copies.reserved(device, [len, len, 0, 0])?;
            take(device, *state, &samples, v, from)?;
            device.integrate_adjoint(&mut plans[number], samples.len(), from, to, &mut sums[0])?;
            put(device, *state, &samples, to, gradient)
        })
    }
}

/// A report as numbers that travel.
fn numbers(report: OdeReport) -> [f64; 4] {
    let outcome = OUTCOMES.iter().position(|outcome| *outcome == report.outcome).unwrap_or(0);
    [f64::from(report.accepted), f64::from(report.rejected), report.time, outcome as f64]
}

/// The way back of [`numbers`].
fn report_of(numbers: &[f64]) -> OdeReport {
    OdeReport {
        accepted: numbers[0] as u32,
        rejected: numbers[1] as u32,
        time: numbers[2],
        outcome: OUTCOMES[numbers[3] as usize % OUTCOMES.len()],
    }
}

const OUTCOMES: [OdeOutcome; 3] = [OdeOutcome::Finished, OdeOutcome::StepLimit, OdeOutcome::NotFinite];
