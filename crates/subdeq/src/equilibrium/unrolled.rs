//! A layer that takes a fixed number of steps and keeps every state on the way.

use subdeq_engine::{Backend, ShapedMap, Start, Stopping};

use crate::Result;

/// What an unrolled pass goes through.
pub(super) struct Path<'a, D: Backend> {
    pub plan: &'a mut D::Plan,
    /// The states before each step; the first is the start.
    pub trajectory: &'a mut [D::Array],
    /// The end.
    pub z: &'a mut D::Array,
    pub reports: &'a mut D::Reports,
}

/// Picard steps, each state kept.
pub(super) fn unroll<D: Backend>(
    device: &D,
    map: &ShapedMap,
    batch: usize,
    y: &D::Array,
    start: Start,
    stopping: &Stopping,
    path: Path<'_, D>,
) -> Result<()> {
    let len = map.operator().state_len();
    let Path { plan, trajectory, z, reports } = path;
    if let Some(first) = trajectory.first_mut() {
        match start {
            Start::Constant(value) => device.fill(batch * len, value, first)?,
            Start::Given => device.copy(batch * len, z, first)?,
        }
    }
    for k in 0..trajectory.len() {
        let (done, rest) = trajectory.split_at_mut(k + 1);
        let next = rest.first_mut().unwrap_or(z);
        device.apply(plan, batch, &done[k], y, next)?;
    }
    let iterations = trajectory.len() as u32;
    let before = trajectory.last().unwrap_or(z);
    Ok(device.compare(len, batch, iterations, stopping, before, z, reports)?)
}

/// What the way back of an unrolled pass goes through.
pub(super) struct WayBack<'a, D: Backend> {
    pub plan: &'a mut D::Plan,
    pub trajectory: &'a [D::Array],
    /// The gradient for the state after a step, and for the one before it.
    pub g: &'a mut D::Array,
    pub gz: &'a mut D::Array,
    /// The gradient for the injection through one step.
    pub part: &'a mut D::Array,
}

/// Pulls `v` back through all steps.
pub(super) fn unroll_backward<D: Backend>(
    device: &D,
    map: &ShapedMap,
    batch: usize,
    (y, v): (&D::Array, &D::Array),
    way: WayBack<'_, D>,
    gy: &mut D::Array,
    gw: &mut [D::Array],
) -> Result<()> {
    let (states, injections) = (batch * map.operator().state_len(), batch * map.injection_len());
    let WayBack { plan, trajectory, g, gz, part } = way;
    device.fill(injections, 0.0, gy)?;
    device.copy(states, v, g)?;
    for state in trajectory.iter().rev() {
        device.pullback(plan, batch, state, y, g, Some(gz), part, gw)?;
        device.axpy(injections, 1.0, part, gy)?;
        std::mem::swap(g, gz);
    }
    Ok(())
}
