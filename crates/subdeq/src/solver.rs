//! How an equilibrium is searched for, and when the search ends.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Extent, Measure};

/// A method of iteration. Made from [`Picard`], [`Anderson`], [`Broyden`], [`PeacemanRachford`] or [`ForwardBackward`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Solver {
    /// See [`Picard`].
    Picard,
    /// See [`Anderson`].
    Anderson(Anderson),
    /// See [`Broyden`].
    Broyden(Broyden),
    /// See [`PeacemanRachford`].
    PeacemanRachford(PeacemanRachford),
    /// See [`ForwardBackward`].
    ForwardBackward(ForwardBackward),
}

/// `z <- F(z)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Picard;

/// Anderson acceleration, safeguarded: never worse than Picard, and positive where Picard is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Anderson {
    /// Number of past iterates kept.
    pub window: usize,
    /// Tikhonov term of the least-squares problem.
    pub ridge: f64,
    /// 1 takes images, 0 takes arguments of the combined iterates.
    pub mixing: f64,
}

impl Default for Anderson {
    /// The paper's: window 5, ridge 1e-4, mixing 1.
    fn default() -> Self {
        Self { window: 5, ridge: 1e-4, mixing: 1.0 }
    }
}

/// Broyden's method with limited memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broyden {
    /// Number of rank-one updates kept.
    pub memory: usize,
}

impl Default for Broyden {
    fn default() -> Self {
        Self { memory: 20 }
    }
}

/// Peaceman-Rachford splitting, for the monotone maps. An iteration goes nine tenths of the way to its image, or one in eight half of
/// it, so that what the image reflects dies out too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PeacemanRachford {
    /// The step; `None` lets the layer choose it from its weights.
    pub step: Option<f64>,
}

/// Forward-backward splitting, for the monotone maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ForwardBackward {
    /// The step; `None` lets the layer choose it from its weights.
    pub step: Option<f64>,
}

impl From<Picard> for Solver {
    fn from(_: Picard) -> Self {
        Self::Picard
    }
}

macro_rules! solver {
    ($($name:ident),*) => {$(
        impl From<$name> for Solver {
            fn from(method: $name) -> Self {
                Self::$name(method)
            }
        }
    )*};
}
solver!(Anderson, Broyden, PeacemanRachford, ForwardBackward);

impl Solver {
    /// For the engine; `step` is what the layer chose for the splittings.
    pub(crate) fn resolved(self, step: f64) -> subdeq_engine::Solver {
        use subdeq_engine::Solver as Resolved;
        match self {
            Self::Picard => Resolved::Picard,
            Self::Anderson(Anderson { window, ridge, mixing }) => {
                Resolved::Anderson { window, ridge, mixing }
            }
            Self::Broyden(Broyden { memory }) => Resolved::Broyden { memory },
            Self::PeacemanRachford(method) => {
                Resolved::PeacemanRachford { step: method.step.unwrap_or(step) }
            }
            Self::ForwardBackward(method) => Resolved::ForwardBackward { step: method.step.unwrap_or(step) },
        }
    }

    /// Whether it is a splitting whose step the layer has to choose.
    pub(crate) fn wants_step(self) -> bool {
        matches!(
            self,
            Self::PeacemanRachford(PeacemanRachford { step: None })
                | Self::ForwardBackward(ForwardBackward { step: None })
        )
    }
}

/// When an iteration ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopping {
    /// What must become small.
    pub rule: Rule,
    /// At most so many applications of the map.
    pub max_iterations: usize,
    /// Whether all samples of a batch stop together, as in the authors' program; else each stops by itself.
    pub whole_batch: bool,
}

/// What must become small for an iteration to end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// `||F(z) - z|| / (1e-5 + ||F(z)||)`.
    Relative(f64),
    /// `||F(z) - z||`.
    Absolute(f64),
    /// The proven distance to the solution: Thompson's (relative) for the subhomogeneous maps, in the sup norm or the
    /// 2-norm for those whose certificate is in such a norm. Needs a certificate for all inputs.
    Certified(f64),
}

impl Stopping {
    fn new(rule: Rule) -> Self {
        Self { rule, max_iterations: 200, whole_batch: false }
    }

    /// On the relative residual (the paper: 1e-3).
    #[must_use]
    pub fn relative(tolerance: f64) -> Self {
        Self::new(Rule::Relative(tolerance))
    }

    /// On the absolute residual.
    #[must_use]
    pub fn absolute(tolerance: f64) -> Self {
        Self::new(Rule::Absolute(tolerance))
    }

    /// On the proven distance to the solution.
    #[must_use]
    pub fn certified(distance: f64) -> Self {
        Self::new(Rule::Certified(distance))
    }

    /// With another iteration limit.
    #[must_use]
    pub fn max_iterations(self, max_iterations: usize) -> Self {
        Self { max_iterations, ..self }
    }

    /// With the whole batch stopping together.
    #[must_use]
    pub fn whole_batch(self) -> Self {
        Self { whole_batch: true, ..self }
    }

    /// The authors' program: relative residual 1e-3 of the whole batch, at most 30 iterations.
    #[must_use]
    pub fn release() -> Self {
        Self::relative(1e-3).max_iterations(30).whole_batch()
    }

    pub(crate) fn resolved(self, measure: Measure, tolerance: f64) -> subdeq_engine::Stopping {
        let extent = if self.whole_batch { Extent::WholeBatch } else { Extent::PerSample };
        subdeq_engine::Stopping { measure, tolerance, max_iterations: self.max_iterations, extent }
    }
}

impl Default for Stopping {
    /// Relative residual 1e-3 per sample.
    fn default() -> Self {
        Self::relative(1e-3)
    }
}

/// How gradients go back through the solution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Adjoint {
    /// The implicit function theorem: exact at the solution, one linear solve `g = J'g + v`.
    Implicit {
        /// How the linear equation is solved.
        solver: Solver,
        /// When that ends; [`Rule::Certified`] is not for this equation.
        stopping: Stopping,
    },
    /// The first `steps` terms of the Neumann series of that solve: `v + J'v + ..`. One term is the Jacobian-free
    /// gradient.
    Phantom {
        /// Terms, at least 1.
        steps: usize,
    },
    /// The layer is `steps` Picard steps from the start, and the gradient is the exact one of that.
    Unrolled {
        /// Steps, at least 1.
        steps: usize,
    },
}
