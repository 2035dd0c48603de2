//! What can go wrong, in sentences for people.

use subdeq_engine::{EngineError, Outcome};
use thiserror::Error;

/// A layer or model that cannot be built, or a call that cannot be carried out.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Error {
    /// The engine refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Values that contradict each other or make no sense; the sentence says which and what to do.
    #[error("{0}")]
    Invalid(String),
    /// Samples whose solve did not end within the tolerance.
    #[error(
        "{failed} of {samples} {what} did not converge; the first is sample {first}: {} after {iterations} iterations at \
         residual {residual:.3e} (allow more iterations, loosen the tolerance, or use another solver)",
        in_words(*outcome)
    )]
    NotConverged {
        /// What was solved: `solves` or `adjoint solves`.
        what: &'static str,
        /// How many failed.
        failed: usize,
        /// Out of how many.
        samples: usize,
        /// The first of them.
        first: usize,
        /// How it ended.
        outcome: Outcome,
        /// Its iterations.
        iterations: u32,
        /// Its last residual.
        residual: f64,
    },
    /// A promise was asked for that has no proof.
    #[error("there is no certificate for {map}: {why}")]
    NoCertificate {
        /// The equation of the map.
        map: String,
        /// What stands in the way and what to do about it.
        why: String,
    },
}

fn in_words(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Converged => "converged, but its error bound exceeds the distance asked for",
        Outcome::IterationLimit => "the iteration limit came first",
        Outcome::Stagnated => "the residual stopped falling, as far as the number type reaches",
        Outcome::NotFinite => "the state stopped being finite",
    }
}

impl Error {
    /// A sentence as an error.
    pub(crate) fn invalid(sentence: impl Into<String>) -> Self {
        Self::Invalid(sentence.into())
    }
}

impl From<subdeq_map::BadMap> for Error {
    fn from(cause: subdeq_map::BadMap) -> Self {
        Self::Invalid(cause.to_string())
    }
}

impl From<subdeq_ranks::Error> for Error {
    fn from(cause: subdeq_ranks::Error) -> Self {
        Self::Invalid(cause.to_string())
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;
