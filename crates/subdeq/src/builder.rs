//! An equilibrium layer, value by value.

use std::sync::Arc;

use rand::Rng;
use subdeq_engine::{Backend, Cpu, Operator, Padding};

use crate::map::{ParametrisedMap, SplitSign};
use crate::{
    Activation, Adjoint, Anderson, Equilibrium, Error, Init, PeacemanRachford, Result, Solver, Stopping,
};

/// Collects what an [`Equilibrium`] is made of. Every value has a default, so that `dense(n).build(&mut rng)` is a
/// layer with a proof.
#[derive(Clone, Debug)]
pub struct EquilibriumBuilder {
    operator: Operator,
    padding: Option<Padding>,
    architecture: Result<ParametrisedMap>,
    solver: Option<Solver>,
    stopping: Stopping,
    adjoint: Option<Adjoint>,
    start: Option<f64>,
    init: Init,
}

/// What a builder decided, ready for a device.
pub(crate) struct Decided {
    pub operator: Operator,
    pub architecture: ParametrisedMap,
    pub solver: Solver,
    pub stopping: Stopping,
    pub adjoint: Adjoint,
    pub start: f64,
    pub init: Init,
}

impl EquilibriumBuilder {
    pub(crate) fn new(operator: Operator) -> Self {
        Self {
            operator,
            padding: None,
            architecture: SplitSign::new(Activation::Softsign, 1.2).try_into(),
            solver: None,
            stopping: Stopping::default(),
            adjoint: None,
            start: None,
            init: Init::default(),
        }
    }

    /// The map; default: [`SplitSign`] with softsign and shift 1.2. One that makes no sense is refused when the layer is built.
    #[must_use]
    pub fn map(self, map: impl TryInto<ParametrisedMap, Error: Into<Error>>) -> Self {
        Self { architecture: map.try_into().map_err(Into::into), ..self }
    }

    /// The solver; default: [`PeacemanRachford`] for monotone maps, else [`Anderson`].
    #[must_use]
    pub fn solver(self, solver: impl Into<Solver>) -> Self {
        Self { solver: Some(solver.into()), ..self }
    }

    /// When a solve ends; default: relative residual 1e-3.
    #[must_use]
    pub fn stopping(self, stopping: Stopping) -> Self {
        Self { stopping, ..self }
    }

    /// How gradients go back; default: implicit, with the layer's solver and a relative residual of 1e-3.
    #[must_use]
    pub fn adjoint(self, adjoint: Adjoint) -> Self {
        Self { adjoint: Some(adjoint), ..self }
    }

    /// Where the iteration starts; default: 1 in every entry, 0 for monotone maps.
    #[must_use]
    pub fn start(self, start: f64) -> Self {
        Self { start: Some(start), ..self }
    }

    /// How the parameters are drawn.
    #[must_use]
    pub fn init(self, init: Init) -> Self {
        Self { init, ..self }
    }

    /// How a convolution continues its images; default: circular for monotone maps, else zeros.
    #[must_use]
    pub fn padding(self, padding: Padding) -> Self {
        Self { padding: Some(padding), ..self }
    }

    /// The layer, in `f32` on all cores of this machine.
    ///
    /// # Errors
    /// Values that contradict each other.
    pub fn build(self, rng: &mut impl Rng) -> Result<Equilibrium<Cpu<f32>>> {
        self.build_on(Arc::new(Cpu::new(0)?), rng)
    }

    /// The layer on a device.
    ///
    /// # Errors
    /// Values that contradict each other.
    pub fn build_on<D: Backend>(self, device: Arc<D>, rng: &mut impl Rng) -> Result<Equilibrium<D>> {
        Equilibrium::new(device, self.decide()?, rng)
    }

    fn decide(self) -> Result<Decided> {
        let architecture = self.architecture?;
        let monotone = architecture.is_monotone();
        let mut operator = self.operator;
        let side = architecture.weight_side();
        if let Operator::Conv { padding, kernel, .. } = &mut operator {
            *padding = self.padding.unwrap_or(if monotone { Padding::Circular } else { Padding::Zero });
            *kernel = side;
        }
        let solver = self.solver.unwrap_or_else(|| {
            if monotone { PeacemanRachford::default().into() } else { Anderson::default().into() }
        });
        let splitting = |solver| matches!(solver, Solver::PeacemanRachford(_) | Solver::ForwardBackward(_));
        if splitting(solver) && !monotone {
            return Err(Error::invalid(format!(
                "the splittings solve monotone maps only, and `{}` is not one: use Anderson or Picard",
                architecture.name()
            )));
        }
        let adjoint = self.adjoint.unwrap_or(Adjoint::Implicit { solver, stopping: Stopping::default() });
        match adjoint {
            Adjoint::Implicit { solver, .. } if splitting(solver) && !monotone => {
                return Err(Error::invalid("the splittings solve the adjoint of monotone maps only"));
            }
            Adjoint::Implicit { stopping: Stopping { rule: crate::Rule::Certified(_), .. }, .. } => {
                return Err(Error::invalid(
                    "an adjoint solve stops on its residual: use Stopping::relative or Stopping::absolute",
                ));
            }
            Adjoint::Unrolled { .. } if matches!(self.stopping.rule, crate::Rule::Certified(_)) => {
                return Err(Error::invalid(
                    "an unrolled layer takes a fixed number of steps and cannot stop at a certified distance",
                ));
            }
            Adjoint::Phantom { steps: 0 } | Adjoint::Unrolled { steps: 0 } => {
                return Err(Error::invalid("an adjoint of 0 steps has no gradient: use at least 1"));
            }
            _ => {}
        }
        let start = self.start.unwrap_or(if monotone { 0.0 } else { 1.0 });
        let (stopping, init) = (self.stopping, self.init);
        Ok(Decided { operator, architecture, solver, stopping, adjoint, start, init })
    }
}
