//! The splittings of monotone maps: forward-backward, and Peaceman-Rachford where the resolvent is one matrix.

use super::Cuda;
use super::equilibria::ReportRow;
use super::gpu::{Grid, Memory};
use super::kernel::launch;
use super::plan::{Operators, Work};
use super::solve::{Method, Problem};
use crate::solver::PEACEMAN_RACHFORD_PART;
use crate::{Result, Start, Stopping};

/// One splitting step: its length, and whether it is Peaceman-Rachford's.
pub(super) type Splitting = (f64, bool);

impl Cuda {
    /// Solves `e = s(W e + c)` by a splitting; the answer is `e + b`.
    #[allow(clippy::too_many_arguments)] // a solve has this many sides
    pub(super) fn split_forward(
        &self,
        operators: &Operators,
        work: &mut Work,
        batch: usize,
        y: &Memory<f32>,
        (step, peaceman_rachford): Splitting,
        stopping: &Stopping,
        start: Start,
        z: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let Work { u, iterates, ends, offset, constant, solution, samples, memory, .. } = work;
        let (gpu, states, t) = (&self.gpu, batch * operators.len(), step as f32);
        let grid = Grid::entries(states);
        for room in [&mut iterates[0], &mut *ends, &mut *offset, &mut *constant, &mut *solution] {
            room.reserve(states)?;
        }
        // b, and c = y + W b.
        launch!(gpu, "splitting_offsets", grid, &operators.constants, y, &mut *offset, states)?;
        operators.forward(batch, offset, u, None)?;
        launch!(gpu, "splitting_constants", grid, &operators.constants, y, &*u, &mut *constant, states)?;
        let (given, value) = match start {
            Start::Given => (Some(&*z), 0.0),
            Start::Constant(value) => (None, value as f32),
        };
        launch!(gpu, "splitting_start", grid, given, value, &*offset, &mut iterates[0], states)?;
        if peaceman_rachford {
            launch!(gpu, "scale", grid, t, &*constant, &mut *solution, states)?;
            operators.resolve(batch, false, solution, constant, None)?;
        }
        let problem = operators.splitting_problem(batch, peaceman_rachford, stopping, y);
        let step = Step { operators, batch, t, peaceman_rachford, slopes: None, constant };
        problem.solve(samples, memory, iterates, ends, reports, |x, image, active| {
            step.advance(x, u, image, active)
        })?;
        if !peaceman_rachford {
            return launch!(gpu, "add_states", grid, &*ends, &*offset, z, states);
        }
        step.settle(ends, u, solution)?;
        launch!(gpu, "add_states", grid, &*solution, &*offset, z, states)
    }

    /// Solves `q = D (W' q + v)` by a splitting, after linearising; `q` goes to `ends`.
    #[allow(clippy::too_many_arguments)] // as above
    pub(super) fn split_adjoint(
        &self,
        operators: &Operators,
        work: &mut Work,
        batch: usize,
        v: &Memory<f32>,
        (step, peaceman_rachford): Splitting,
        stopping: &Stopping,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let Work { u, gained, g, linearisation, iterates, ends, constant, solution, samples, memory, .. } =
            work;
        let (gpu, states, t) = (&self.gpu, batch * operators.len(), step as f32);
        let grid = Grid::entries(states);
        for room in [&mut iterates[0], &mut *ends, &mut *constant, &mut *solution, &mut *g] {
            room.reserve(states)?;
        }
        g.copy_from(v, states)?;
        operators.q_of(batch, linearisation, g, None, gained, &mut iterates[0], None)?;
        if peaceman_rachford {
            launch!(gpu, "scale", grid, t, v, &mut *solution, states)?;
            operators.resolve(batch, true, solution, constant, None)?;
        } else {
            constant.copy_from(v, states)?;
        }
        let problem = operators.splitting_problem(batch, peaceman_rachford, stopping, v);
        let slopes = Some(&linearisation.slopes);
        let step = Step { operators, batch, t, peaceman_rachford, slopes, constant };
        problem.solve(samples, memory, iterates, ends, reports, |x, image, active| {
            step.advance(x, u, image, active)
        })?;
        if !peaceman_rachford {
            return Ok(());
        }
        step.settle(ends, u, solution)?;
        ends.copy_from(solution, states)
    }
}

/// What an iteration of a splitting does, forward or, with slopes, adjoint.
struct Step<'a> {
    operators: &'a Operators,
    batch: usize,
    t: f32,
    peaceman_rachford: bool,
    /// Those of the adjoint equation, whose operator is transposed.
    slopes: Option<&'a Memory<f32>>,
    constant: &'a Memory<f32>,
}

impl Step<'_> {
    /// `image <-` what follows on `x`, for the samples that are flagged; `u` is scratch memory.
    fn advance(
        &self,
        x: &Memory<f32>,
        u: &mut Memory<f32>,
        image: &Memory<f32>,
        active: &Memory<u32>,
    ) -> Result<()> {
        let Self { operators, batch, .. } = *self;
        match (self.peaceman_rachford, self.slopes) {
            (true, slopes) => operators.resolve(batch, slopes.is_some(), x, u, Some(active))?,
            (false, None) => operators.forward(batch, x, u, Some(active))?,
            (false, Some(_)) => operators.transposed(batch, x, u, Some(active))?,
        }
        self.finish(true, x, u, image, Some(active))
    }

    /// Peaceman and Rachford's solution that belongs to their last iterate `x`; `u` is scratch memory.
    fn settle(&self, x: &Memory<f32>, u: &mut Memory<f32>, solution: &Memory<f32>) -> Result<()> {
        self.operators.resolve(self.batch, self.slopes.is_some(), x, u, None)?;
        self.finish(false, x, u, solution, None)
    }

    fn finish(
        &self,
        reflected: bool,
        x: &Memory<f32>,
        u: &Memory<f32>,
        image: &Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let Self { operators, batch, t, peaceman_rachford, slopes, constant } = *self;
        let states = batch * operators.len();
        launch!(
            operators.gpu,
            "splitting_step",
            Grid::entries(states),
            &operators.constants,
            t,
            PEACEMAN_RACHFORD_PART as f32,
            peaceman_rachford,
            reflected,
            u,
            constant,
            slopes,
            x,
            image,
            states,
            active
        )
    }
}

impl Operators {
    /// The fixed-point problem of a splitting, from what its equation is given.
    pub fn splitting_problem<'a>(
        &'a self,
        batch: usize,
        peaceman_rachford: bool,
        stopping: &'a Stopping,
        given: &'a Memory<f32>,
    ) -> Problem<'a> {
        let problem = self.problem(batch, self.len(), Method::Picard, stopping, (given, self.len()));
        match &self.resolvent {
            Some(resolvent) if peaceman_rachford => Problem { bad: &resolvent.bad, ..problem },
            _ => problem,
        }
    }
}
