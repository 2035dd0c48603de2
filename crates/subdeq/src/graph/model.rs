//! The models: which map is propagated, what makes its injection, and how far.

use serde::{Deserialize, Serialize};
use subdeq_engine::cpu::graph::OutputActivation;
use subdeq_engine::{GraphMap, GraphNorm};
use subdeq_map::{Activation, Groups, Injection, Layout, Map, Overrides, PNorm, Parts};

use crate::train::check_steps;
use crate::{Error, Result};

/// Most past iterates that Anderson's method may keep: each is a state of the whole graph.
const MAX_WINDOW: usize = 100;

/// How an equilibrium of a propagation is found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum GraphSolver {
    /// `Z <- F(Z)`.
    Picard,
    /// Anderson acceleration.
    Anderson {
        /// Number of past iterates kept.
        window: usize,
        /// Tikhonov term of the least-squares problem.
        ridge: f64,
    },
    /// Conjugate gradients: linear propagation over a symmetric matrix only.
    ConjugateGradient,
}

/// How far a propagation goes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum GraphMode {
    /// To the solution of `Z = F(Z; f)`; gradients by the adjoint equation.
    Equilibrium {
        /// How it is found.
        solver: GraphSolver,
        /// Relative residual at which a solve (and an adjoint solve) ends.
        tolerance: f64,
        /// At most so many steps.
        max_iterations: usize,
    },
    /// A fixed number of steps from `Z = f` on; gradients by backpropagation.
    Unrolled {
        /// The number of steps.
        steps: usize,
    },
}

/// What joins nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Joined {
    /// Edges between two nodes each; hyperedges are expanded to cliques.
    #[default]
    Pairs,
    /// Hyperedges.
    Hyperedges,
}

/// An architecture.
///
/// ```
/// use subdeq::graph::{GraphMode, GraphModel};
/// let certified = GraphModel::equilibrium("appnp-tanh", 0.1)?;
/// assert_eq!(certified.map.shift(), 0.0);
/// let paper = GraphModel::paper("appnp-normalized-tanh", 0.1)?;
/// assert!(matches!(paper.mode, GraphMode::Equilibrium { .. }));
/// let release = GraphModel::release("appnp-normalized-tanh", 0.1)?;
/// assert_eq!(release.mode, GraphMode::Unrolled { steps: 10 });
/// assert!(GraphModel::paper("appnp-relu", 0.1).is_err());
/// # Ok::<(), subdeq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphModel {
    /// The name it goes by.
    pub name: String,
    /// The propagation.
    pub map: GraphMap,
    /// What keeps the injection positive, if anything.
    pub output: OutputActivation,
    /// Equilibrium or unrolled.
    pub mode: GraphMode,
    /// What joins the nodes that it propagates between.
    #[serde(default)]
    pub joined: Joined,
}

impl GraphModel {
    /// The names of the paper's models: what [`GraphModel::paper`] and [`GraphModel::release`] understand.
    pub const NAMES: [&'static str; 5] =
        ["appnp", "appnp-tanh", "appnp-normalized-tanh", "appnp-tanh-2", "appnp-normalized-tanh-2"];
    /// The names of our own, which have the form of [`GraphModel::equilibrium`] only.
    pub const OWN_NAMES: [&'static str; 5] =
        ["appnp-projected", "appnp-projected-tanh", "hyper-appnp", "hyper-appnp-tanh", "hyper-power"];

    /// The form to use: a signed injection, no shift, solved to the equilibrium, which is unique with the factor `1 - t` in the
    /// 2-norm for every injection. Of the paper's models it is the released map without its fixed number of steps; normalised
    /// ones are the exception, about which nothing is proved for signed injections: their projected counterparts
    /// are proved. `hyper-power` takes power means, which are of nonnegative numbers: its injection is behind a softplus, and its
    /// factor `1 - t` is that of a weighted sup norm.
    ///
    /// # Errors
    /// A name that is not one of [`GraphModel::NAMES`] and [`GraphModel::OWN_NAMES`], or a teleport probability outside `(0, 1)`.
    pub fn equilibrium(name: &str, teleport: f64) -> Result<Self> {
        if !Self::OWN_NAMES.contains(&name) {
            return Ok(Self::release(name, teleport)?.solved());
        }
        let overrides = Overrides { teleport: Some(teleport), ..Overrides::default() };
        let map = GraphMap::new(Map::named(name, Layout::Graph)?.with(&overrides, Layout::Graph)?)?;
        let joined = if name.starts_with("hyper-") { Joined::Hyperedges } else { Joined::Pairs };
        let output = map.power().map_or(OutputActivation::Signed, |_| OutputActivation::Softplus);
        Ok(Self { name: name.into(), map, output, mode: GraphMode::Unrolled { steps: 1 }, joined }.solved())
    }

    /// The same with another power of its means; `hyper-power` has 2 by itself.
    ///
    /// ```
    /// use subdeq::graph::GraphModel;
    /// let cubes = GraphModel::equilibrium("hyper-power", 0.1)?.with_power(3.0)?;
    /// assert_eq!(cubes.map.power(), Some(3.0));
    /// assert!(cubes.with_power(0.5).is_err(), "a mean with an infinite slope at zero");
    /// # Ok::<(), subdeq::Error>(())
    /// ```
    ///
    /// # Errors
    /// A power below 1 or above 100, or a model that takes no power means.
    pub fn with_power(self, power: f64) -> Result<Self> {
        if self.map.power().is_none() {
            return Err(Error::invalid(format!(
                "`{}` takes no power means: only hyper-power does",
                self.name
            )));
        }
        let overrides = Overrides { power: Some(power), ..Overrides::default() };
        let map = GraphMap::new(self.map.equation().with(&overrides, Layout::Graph)?)?;
        Ok(Self { map, ..self })
    }

    /// The model as the paper writes it: an equilibrium with a positive injection, shift 1.2, columns normalised. Plain
    /// `appnp` is solved exactly by conjugate gradients and keeps a signed injection, which it can afford.
    ///
    /// # Errors
    /// A name that is not one of [`GraphModel::NAMES`], or a teleport probability outside `(0, 1)`.
    pub fn paper(name: &str, teleport: f64) -> Result<Self> {
        let linear = name == "appnp";
        let solver = if linear { GraphSolver::ConjugateGradient } else { GraphSolver::Picard };
        let output = if linear { OutputActivation::Signed } else { OutputActivation::Softplus };
        let mode = GraphMode::Equilibrium { solver, tolerance: 1e-6, max_iterations: 500 };
        if !Self::NAMES.contains(&name) {
            let why = if Self::OWN_NAMES.contains(&name) {
                format!("`{name}` is not a model of the paper: it has the form equilibrium only")
            } else {
                let known = [&Self::NAMES[..], &Self::OWN_NAMES[..]].concat();
                format!("there is no graph model `{name}`; known are {}", known.join(", "))
            };
            return Err(Error::invalid(why));
        }
        let overrides = Overrides { teleport: Some(teleport), ..Overrides::default() };
        let map = GraphMap::new(Map::named(name, Layout::Graph)?.with(&overrides, Layout::Graph)?)?;
        Ok(Self { name: name.into(), map, output, mode, joined: Joined::Pairs })
    }

    /// The model as the published code has it in its appendix experiments: ten steps from a signed injection, rows
    /// normalised, and no shift where nothing is normalised.
    ///
    /// The main experiments of that code use the `-2` forms under the names without it (see
    /// [`GraphModel::release_main`]).
    ///
    /// # Errors
    /// As for [`GraphModel::paper`].
    pub fn release(name: &str, teleport: f64) -> Result<Self> {
        let paper = Self::paper(name, teleport)?;
        let model = match paper.map.normalisation() {
            Some(_) => paper.normalised_by(GraphNorm::Rows)?,
            None => Self { map: GraphMap::new(paper.map.equation().with_shift(0.0)?)?, ..paper },
        };
        let (output, mode) = (OutputActivation::Signed, GraphMode::Unrolled { steps: 10 });
        Ok(Self { output, mode, ..model })
    }

    /// The model as the published code has it in its main experiments (Table 4): there, `appnp-tanh` and
    /// `appnp-normalized-tanh` take the injection inside the activation.
    ///
    /// # Errors
    /// As for [`GraphModel::paper`].
    pub fn release_main(name: &str, teleport: f64) -> Result<Self> {
        let mut model = Self::release(name, teleport)?;
        if model.map.activation() == Activation::Tanh && model.map.injection() == Injection::Outer {
            model.map = GraphMap::new(model.map.equation().inner()?)?;
        }
        Ok(model)
    }

    /// The same with its state normalised in another way.
    ///
    /// # Errors
    /// None for the models of [`GraphModel::NAMES`].
    pub fn normalised_by(self, norm: GraphNorm) -> Result<Self> {
        let groups = match norm {
            GraphNorm::Rows => Groups::GraphRows,
            GraphNorm::Columns => Groups::GraphColumns,
        };
        Ok(Self { map: GraphMap::new(self.map.equation().normalised(PNorm::Inf, groups)?)?, ..self })
    }

    /// The same with its rows projected onto balls instead of being normalised: a map with a proof for signed injections.
    ///
    /// # Errors
    /// None for the models of [`GraphModel::NAMES`].
    pub fn projected(self) -> Result<Self> {
        let plain = Parts { normalisation: None, shift: 0.0, ..self.map.equation().into() };
        let equation = Map::try_from(plain)?.projected(Groups::GraphRows, Map::RADIUS)?;
        Ok(Self { map: GraphMap::new(equation)?, ..self })
    }

    /// The same map, solved to its equilibrium instead of being applied a few times.
    #[must_use]
    pub fn solved(mut self) -> Self {
        let solver = if self.map.is_linear() {
            GraphSolver::ConjugateGradient
        } else if self.map.normalisation().is_none() && self.map.shift() == 0.0 {
            // Contracts by the damping only, which takes plain iteration long.
            GraphSolver::Anderson { window: 5, ridge: 1e-6 }
        } else {
            GraphSolver::Picard
        };
        self.mode = GraphMode::Equilibrium { solver, tolerance: 1e-6, max_iterations: 500 };
        self
    }

    /// Refuses what cannot be trained or solved.
    pub(super) fn check(&self) -> Result<()> {
        if self.map.power().is_some() && self.output == OutputActivation::Signed {
            return Err(Error::invalid(format!(
                "the power means of `{}` are of numbers from 0 on: its injection needs the output Softplus or Relu, not Signed",
                self.name
            )));
        }
        if self.map.power().is_some() && self.joined == Joined::Pairs {
            return Err(Error::invalid(format!(
                "the power means of `{}` are taken over hyperedges, and it says that pairs join its nodes",
                self.name
            )));
        }
        match self.mode {
            GraphMode::Equilibrium { max_iterations: steps, .. } | GraphMode::Unrolled { steps } => {
                check_steps(steps)?;
            }
        }
        match self.mode {
            GraphMode::Unrolled { steps: 0 } => {
                Err(Error::invalid("an unrolled propagation needs at least one step"))
            }
            GraphMode::Equilibrium { tolerance, .. } if !(tolerance > 0.0 && tolerance < 1.0) => {
                Err(Error::invalid(format!("the tolerance must lie between 0 and 1, got {tolerance}")))
            }
            GraphMode::Equilibrium { max_iterations: 0, .. } => {
                Err(Error::invalid("a solve needs at least one iteration"))
            }
            GraphMode::Equilibrium { solver: GraphSolver::Anderson { window, ridge }, .. }
                if !((1..=MAX_WINDOW).contains(&window) && ridge >= 0.0 && ridge.is_finite()) =>
            {
                Err(Error::invalid(format!(
                    "Anderson's method with a window of {window} and a ridge of {ridge}: the window must lie between 1 and \
                     {MAX_WINDOW}, the ridge must be a number from 0"
                )))
            }
            GraphMode::Equilibrium { solver: GraphSolver::ConjugateGradient, .. }
                if !self.map.is_linear() =>
            {
                Err(Error::invalid(format!(
                    "conjugate gradients solve linear propagation only, `{}` is not linear: use Picard iteration",
                    self.name
                )))
            }
            _ => Ok(()),
        }
    }
}
