//! The parts between injection and batch norm by the names that the paper and the program give them.

use super::CoreSpec;
use crate::map::ParametrisedMap;
use crate::{
    Adjoint, Anderson, Error, Layout, OdeActivation, PeacemanRachford, Picard, Result, Solver, Stopping,
};

/// The models without a fixed point.
const OTHERS: [&str; 3] = ["node-relu", "node-tanh", "explicit-tanh"];
/// Tolerance of the neural ODEs, that of the solves.
const ODE_TOLERANCE: f64 = 1e-3;
/// Applications of the map after which a solve is given up.
const MAX_ITERATIONS: usize = 100;

impl CoreSpec {
    /// The names that [`CoreSpec::named`] understands.
    #[must_use]
    pub fn names() -> Vec<&'static str> {
        ParametrisedMap::NAMES.into_iter().chain(OTHERS).collect()
    }

    /// The model of that name, with a relative residual of 1e-3 per sample forward and backward (the paper's tolerance,
    /// which its program applies to the batch as a whole).
    ///
    /// ```
    /// use subdeq::{Layout, model::CoreSpec};
    /// assert_eq!(CoreSpec::named("split-sign", Layout::Dense)?.name(), "split-sign");
    /// assert!(CoreSpec::named("transformer", Layout::Dense).unwrap_err().to_string().contains("node-relu"));
    /// # Ok::<(), subdeq::Error>(())
    /// ```
    ///
    /// # Errors
    /// A name that is not one of [`CoreSpec::names`].
    pub fn named(name: &str, layout: Layout) -> Result<Self> {
        match name {
            "explicit-tanh" => return Ok(Self::ExplicitTanh),
            "node-relu" => {
                return Ok(Self::NeuralOde { activation: OdeActivation::Relu, tolerance: ODE_TOLERANCE });
            }
            "node-tanh" => {
                return Ok(Self::NeuralOde { activation: OdeActivation::Tanh, tolerance: ODE_TOLERANCE });
            }
            _ => {}
        }
        if !ParametrisedMap::NAMES.contains(&name) {
            return Err(Error::invalid(format!(
                "there is no model `{name}`; known are {}",
                Self::names().join(", ")
            )));
        }
        let architecture = ParametrisedMap::named(name, layout)?;
        let solver = usual_solver(&architecture);
        let stopping = Stopping::relative(1e-3).max_iterations(MAX_ITERATIONS);
        let adjoint = Some(Adjoint::Implicit { solver, stopping });
        Ok(Self::Equilibrium { architecture, solver: Some(solver), stopping, adjoint })
    }

    /// The name it goes by.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Equilibrium { architecture, .. } => architecture.name(),
            Self::ExplicitTanh => "explicit-tanh",
            Self::NeuralOde { activation: OdeActivation::Relu, .. } => "node-relu",
            Self::NeuralOde { activation: OdeActivation::Tanh, .. } => "node-tanh",
        }
    }
}

/// The splitting for monotone maps; plain iteration where the weights cannot spoil it; else Anderson's.
fn usual_solver(architecture: &ParametrisedMap) -> Solver {
    match architecture.name() {
        _ if architecture.is_monotone() => PeacemanRachford::default().into(),
        "excitatory" | "row-signed" | "split-sign" | "divisive" | "rational" | "power-ratio" | "gains" => {
            Picard.into()
        }
        _ => Anderson::default().into(),
    }
}
