//! The splittings of monotone maps: forward-backward, and Peaceman-Rachford where the resolvent is one matrix.

use super::Cuda;
use super::equilibria::ReportRow;
use super::gpu::{Grid, Memory};
use super::kernel::launch;
use super::plan::{Operators, Work};
use super::solve::{Method, Problem};
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
        let none = None::<&Memory<f32>>;
        problem.solve(samples, memory, iterates, ends, reports, |x, image, active| {
            if peaceman_rachford {
                operators.resolve(batch, false, x, u, Some(active))?;
            } else {
                operators.forward(batch, x, u, Some(active))?;
            }
            launch!(
                gpu,
                "splitting_step",
                grid,
                &operators.constants,
                t,
                peaceman_rachford,
                true,
                &*u,
                &*constant,
                none,
                x,
                image,
                states,
                active
            )
        })?;
        if !peaceman_rachford {
            return launch!(gpu, "add_states", grid, &*ends, &*offset, z, states);
        }
        operators.resolve(batch, false, ends, u, None)?;
        launch!(
            gpu,
            "splitting_step",
            grid,
            &operators.constants,
            t,
            true,
            false,
            &*u,
            &*constant,
            none,
            &*ends,
            &mut *solution,
            states,
            None::<&Memory<u32>>
        )?;
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
        let slopes = &linearisation.slopes;
        problem.solve(samples, memory, iterates, ends, reports, |x, image, active| {
            if peaceman_rachford {
                operators.resolve(batch, true, x, u, Some(active))?;
            } else {
                operators.transposed(batch, x, u, Some(active))?;
            }
            launch!(
                gpu,
                "splitting_step",
                grid,
                &operators.constants,
                t,
                peaceman_rachford,
                true,
                &*u,
                &*constant,
                slopes,
                x,
                image,
                states,
                active
            )
        })?;
        if !peaceman_rachford {
            return Ok(());
        }
        operators.resolve(batch, true, ends, u, None)?;
        launch!(
            gpu,
            "splitting_step",
            grid,
            &operators.constants,
            t,
            true,
            false,
            &*u,
            &*constant,
            slopes,
            &*ends,
            &mut *solution,
            states,
            None::<&Memory<u32>>
        )?;
        ends.copy_from(solution, states)
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
