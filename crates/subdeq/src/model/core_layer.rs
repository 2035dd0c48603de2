//! What is between the injection and the batch norm, with its parameters.

use std::sync::Arc;

use rand::Rng;
use subdeq_engine::network::Update;
use subdeq_engine::{Backend, Operator, Picks, Room};

use super::affine::{Affine, AffineShape};
use super::trained::{Moments, Trained};
use super::{CoreSpec, STEP_PERIOD};
use crate::memory::made;
use crate::{Equilibrium, EquilibriumBuilder, Error, Init, NeuralOde, Parameter, Result};

/// A core with what Adam remembers of its parameters.
#[allow(clippy::large_enum_variant)] // one of them exists per model
pub(super) enum CoreLayer<D: Backend> {
    Equilibrium { layer: Equilibrium<D>, moments: Vec<Moments<D::Array>> },
    Explicit { affine: Affine<D::Array>, z: Option<D::Array> },
    Ode { layer: NeuralOde<D>, moments: Moments<D::Array> },
}

/// A parameter of the core's own, with its moments.
type Own<'a, A> = (&'a Parameter<A>, &'a Moments<A>);
/// The same, to change.
type OwnMut<'a, A> = (&'a mut Parameter<A>, &'a mut Moments<A>);

/// Where the solves of a batch start.
pub(super) enum CoreStart<'a, D: Backend> {
    /// Where the layer always starts.
    Usual,
    /// At states of its own, one per sample of the data set; they are put back after the solve.
    Warm { states: &'a mut D::Array, picks: Picks<'a, D::Integers> },
}

impl<D: Backend> CoreLayer<D> {
    /// `square` is the shape of an affine map from states to states, which an explicit layer has; its name begins with `prefix`.
    pub fn new(
        device: &Arc<D>,
        core: &CoreSpec,
        operator: Operator,
        square: AffineShape,
        init: Init,
        prefix: &str,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        Ok(match core {
            CoreSpec::Equilibrium { architecture, solver, stopping, adjoint } => {
                let mut builder = EquilibriumBuilder::new(operator)
                    .map(architecture.clone())
                    .stopping(*stopping)
                    .init(init);
                if let Some(solver) = solver {
                    builder = builder.solver(*solver);
                }
                if let Some(adjoint) = adjoint {
                    builder = builder.adjoint(*adjoint);
                }
                let layer = builder.build_on(device.clone(), rng)?;
                let moments = layer.parameters().iter().map(|p| Moments::new(&**device, p.len));
                let moments = moments.collect::<Result<_>>()?;
                Self::Equilibrium { layer, moments }
            }
            CoreSpec::ExplicitTanh => {
                let affine = Affine::new(&**device, &format!("{prefix}core"), square, init, rng)?;
                Self::Explicit { affine, z: None }
            }
            CoreSpec::NeuralOde { activation, tolerance } => {
                let layer = NeuralOde::new(device.clone(), operator, *activation, *tolerance, init, rng)?;
                let moments = Moments::new(&**device, layer.parameter().len)?;
                Self::Ode { layer, moments }
            }
        })
    }

    /// Makes room for batches of this many samples.
    pub fn reserve(&mut self, device: &D, batch: usize) -> Result<()> {
        match self {
            Self::Equilibrium { layer, .. } => layer.reserve(batch),
            Self::Explicit { affine, z } => {
                *z = Some(device.zeros(batch * affine.output_len())?);
                Ok(())
            }
            Self::Ode { layer, .. } => layer.reserve(batch),
        }
    }

    pub fn states(&self) -> Result<&D::Array> {
        let states = match self {
            Self::Equilibrium { layer, .. } => layer.states(),
            Self::Explicit { z, .. } => z.as_ref(),
            Self::Ode { layer, .. } => layer.states(),
        };
        states.ok_or_else(|| Error::invalid("no batch was solved yet"))
    }

    /// From the injection `y` to the states; how the solves ended is counted.
    pub fn forward(
        &mut self,
        device: &D,
        batch: usize,
        y: &D::Array,
        start: CoreStart<'_, D>,
        tally: &mut D::Tally,
    ) -> Result<()> {
        match (self, start) {
            (Self::Equilibrium { layer, .. }, CoreStart::Usual) => {
                layer.forward(batch, y)?;
                layer.count(tally)
            }
            (Self::Equilibrium { layer, .. }, CoreStart::Warm { states, picks }) => {
                layer.gather_states(states, picks.clone())?;
                layer.forward_warm(batch, y)?;
                layer.scatter_states(picks, states)?;
                layer.count(tally)
            }
            (_, CoreStart::Warm { .. }) => {
                Err(Error::invalid("only an equilibrium has states to start from"))
            }
            (Self::Explicit { affine, z }, CoreStart::Usual) => {
                let z = made(z)?;
                affine.forward(device, batch, y, false, z)?;
                Ok(device.tanh(batch * affine.output_len(), z)?)
            }
            (Self::Ode { layer, .. }, CoreStart::Usual) => layer.forward_counted(batch, y, tally),
        }
    }

    /// From `gz` to `gy`; `gz` may be changed on the way.
    pub fn backward(
        &mut self,
        device: &D,
        batch: usize,
        y: &D::Array,
        gz: &mut D::Array,
        gy: &mut D::Array,
        tally: &mut D::Tally,
    ) -> Result<()> {
        match self {
            Self::Equilibrium { layer, .. } => layer.backward_counted(batch, y, gz, gy, tally),
            Self::Explicit { affine, z } => {
                let z =
                    z.as_ref().ok_or_else(|| Error::invalid("backward without a forward pass before it"))?;
                device.tanh_backward(batch * affine.output_len(), z, gz)?;
                affine.backward(device, batch, y, None, gz, Some(gy))
            }
            Self::Ode { layer, .. } => layer.backward(batch, gz, gy),
        }
    }

    /// The same where the injection is not needed any more: `y` becomes its gradient. `room` is for as many numbers.
    pub fn backward_over(
        &mut self,
        device: &D,
        batch: usize,
        y: &mut D::Array,
        gz: &mut D::Array,
        room: &mut Room<D::Array>,
        tally: &mut D::Tally,
    ) -> Result<()> {
        if let Self::Equilibrium { layer, .. } = self {
            return layer.backward_over(batch, y, gz, room, tally);
        }
        let gy = room.made(device)?;
        self.backward(device, batch, y, gz, gy, tally)?;
        std::mem::swap(y, gy);
        Ok(())
    }

    /// The updates of its parameters.
    pub fn updates(&mut self) -> Vec<Update<'_, D::Array>> {
        match self {
            Self::Equilibrium { layer, moments } => {
                let parameters = layer.parameters_mut().iter_mut();
                parameters.zip(moments).map(|(parameter, moments)| moments.update(parameter)).collect()
            }
            Self::Explicit { affine, .. } => affine.trained_mut().map(Trained::update).into(),
            Self::Ode { layer, moments } => vec![moments.update(layer.parameter_mut())],
        }
    }

    /// After update number `step`: the step of a splitting is chosen anew now and then.
    pub fn updated(&mut self, step: u64) -> Result<()> {
        match self {
            Self::Equilibrium { layer, .. } if step.is_multiple_of(STEP_PERIOD) => layer.choose_step(),
            _ => Ok(()),
        }
    }

    /// The parameters that are the core's own, with their moments; those of an explicit layer are in
    /// [`CoreLayer::affine`].
    pub fn own(&self) -> Vec<Own<'_, D::Array>> {
        match self {
            Self::Equilibrium { layer, moments } => layer.parameters().iter().zip(moments).collect(),
            Self::Explicit { .. } => Vec::new(),
            Self::Ode { layer, moments } => vec![(layer.parameter(), moments)],
        }
    }

    /// The same, to change.
    pub fn own_mut(&mut self) -> Vec<OwnMut<'_, D::Array>> {
        match self {
            Self::Equilibrium { layer, moments } => layer.parameters_mut().iter_mut().zip(moments).collect(),
            Self::Explicit { .. } => Vec::new(),
            Self::Ode { layer, moments } => vec![(layer.parameter_mut(), moments)],
        }
    }

    /// The affine map of an explicit layer.
    pub fn affine(&self) -> Option<&Affine<D::Array>> {
        match self {
            Self::Explicit { affine, .. } => Some(affine),
            Self::Equilibrium { .. } | Self::Ode { .. } => None,
        }
    }
}
