//! Everything of a layer whose size depends on the batch.

use subdeq_engine::{Backend, Room, ShapedMap};

use super::weights::Version;
use crate::{Adjoint, Result};

/// A plan and the arrays of a batch.
pub(super) struct Workspace<D: Backend> {
    pub capacity: usize,
    pub plan: D::Plan,
    /// The version of the weights that the plan holds, once it holds any.
    pub loaded: Option<Version>,
    /// Samples of the last forward pass; 0 before it.
    pub solved: usize,
    /// The injection with the tied shift added; empty without one.
    pub shifted: D::Array,
    pub z: D::Array,
    pub g: Room<D::Array>,
    /// Gradients of one step of several; empty where there is one.
    pub gz: D::Array,
    pub gy: D::Array,
    /// The states that an unrolled layer goes through.
    pub trajectory: Vec<D::Array>,
    /// Where weight gradients go that nobody asked for.
    pub discarded: Vec<D::Array>,
    pub reports: D::Reports,
    pub adjoint_reports: D::Reports,
}

impl<D: Backend> Workspace<D> {
    pub fn new(device: &D, map: &ShapedMap, adjoint: Adjoint, batch: usize) -> Result<Self> {
        let (states, injections) = (batch * map.operator().state_len(), batch * map.injection_len());
        let steps = if let Adjoint::Unrolled { steps } = adjoint { steps } else { 0 };
        let several = matches!(adjoint, Adjoint::Phantom { steps: 2.. });
        let discarded = if several { map.weight_count() } else { 0 };
        let stepwise = several || matches!(adjoint, Adjoint::Unrolled { .. });
        let tied = if map.equation().tie() == 0.0 { 0 } else { injections };
        Ok(Self {
            capacity: batch,
            plan: device.plan(map, batch)?,
            loaded: None,
            solved: 0,
            shifted: device.zeros(tied)?,
            z: device.zeros(states)?,
            g: Room::new(states),
            gz: device.zeros(if stepwise { states } else { 0 })?,
            gy: device.zeros(if stepwise { injections } else { 0 })?,
            trajectory: (0..steps).map(|_| device.zeros(states)).collect::<Result<_, _>>()?,
            discarded: (0..discarded).map(|k| device.zeros(map.weight_len(k))).collect::<Result<_, _>>()?,
            reports: device.reports(batch)?,
            adjoint_reports: device.reports(batch)?,
        })
    }
}
