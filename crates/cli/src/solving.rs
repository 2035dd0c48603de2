//! How equilibria are solved for, as a command line says it.

use subdeq::graph::{GraphMode, GraphModel, GraphSolver};
use subdeq::model::CoreSpec;
use subdeq::{Adjoint, Anderson, Broyden, ForwardBackward, PeacemanRachford, Picard, Solver, Stopping};

use crate::failure::Failure;

/// A solver by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Method {
    Anderson,
    Picard,
    Broyden,
    PeacemanRachford,
    ForwardBackward,
}

impl From<Method> for Solver {
    fn from(method: Method) -> Solver {
        match method {
            Method::Anderson => Anderson::default().into(),
            Method::Picard => Picard.into(),
            Method::Broyden => Broyden::default().into(),
            Method::PeacemanRachford => PeacemanRachford::default().into(),
            Method::ForwardBackward => ForwardBackward::default().into(),
        }
    }
}

/// What a training solves with, forward and backward.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Solving")]
pub struct Solving {
    /// The solver, forward and backward [default: peaceman-rachford for monotone models, picard where nothing can spoil it, else
    /// anderson].
    #[arg(long, value_enum)]
    pub solver: Option<Method>,
    /// The relative residual at which a sample's solve ends, forward and backward [default: 0.001; 0.000001 for graphs].
    #[arg(long, value_parser = tolerance, allow_negative_numbers = true)]
    pub tol: Option<f64>,
    /// At most so many applications of the map per solve [default: 100; 500 for graphs].
    #[arg(long, value_name = "N")]
    pub max_iterations: Option<usize>,
}

/// A tolerance from the command line.
pub fn tolerance(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|why| format!("{why}"))?;
    if number >= 0.0 && number.is_finite() {
        Ok(number)
    } else {
        Err("it must be a number from 0".to_owned())
    }
}

impl Solving {
    fn asks_nothing(&self) -> bool {
        self.solver.is_none() && self.tol.is_none() && self.max_iterations.is_none()
    }

    fn changed(&self, stopping: Stopping) -> Stopping {
        let max_iterations = self.max_iterations.unwrap_or(stopping.max_iterations);
        match self.tol {
            Some(tol) => {
                Stopping { max_iterations, ..Stopping { rule: Stopping::relative(tol).rule, ..stopping } }
            }
            None => Stopping { max_iterations, ..stopping },
        }
    }

    /// Changes what a model solves with.
    ///
    /// # Errors
    /// A model that solves nothing.
    pub fn apply(&self, core: &mut CoreSpec) -> Result<(), Failure> {
        match core {
            _ if self.asks_nothing() => Ok(()),
            CoreSpec::Equilibrium { solver, stopping, adjoint, .. } => {
                *stopping = self.changed(*stopping);
                *solver = self.solver.map(Solver::from).or(*solver);
                if let Some(Adjoint::Implicit { solver, stopping }) = adjoint {
                    *stopping = self.changed(*stopping);
                    *solver = self.solver.map_or(*solver, Solver::from);
                }
                Ok(())
            }
            CoreSpec::NeuralOde { tolerance, .. }
                if self.solver.is_none() && self.max_iterations.is_none() =>
            {
                *tolerance = self.tol.unwrap_or(*tolerance);
                Ok(())
            }
            other => Err(Failure::usage(format!(
                "`{}` solves no fixed-point equation: leave --solver, --tol and --max-iterations out",
                other.name()
            ))),
        }
    }

    /// The same for a model on a graph.
    ///
    /// # Errors
    /// A model that takes a fixed number of steps, or a solver that graphs do not have.
    pub fn apply_to_graph(&self, model: &mut GraphModel) -> Result<(), Failure> {
        if self.asks_nothing() {
            return Ok(());
        }
        let GraphMode::Equilibrium { solver, tolerance, max_iterations } = &mut model.mode else {
            return Err(Failure::usage(
                "this form takes a fixed number of steps: leave --solver, --tol and --max-iterations out",
            ));
        };
        *tolerance = self.tol.unwrap_or(*tolerance);
        *max_iterations = self.max_iterations.unwrap_or(*max_iterations);
        *solver = match self.solver {
            None => *solver,
            Some(Method::Picard) => GraphSolver::Picard,
            Some(Method::Anderson) => {
                let Anderson { window, ridge, .. } = Anderson::default();
                GraphSolver::Anderson { window, ridge }
            }
            Some(_) => return Err(Failure::usage("graphs are solved by picard or anderson")),
        };
        Ok(())
    }
}
