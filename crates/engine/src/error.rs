//! What can be wrong with a call.

use thiserror::Error;

/// A call that the engine cannot carry out; nothing was computed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// An array does not have the length that the call needs.
    #[error("{what} holds {found} numbers, {needed} are needed")]
    Length {
        /// Which array.
        what: &'static str,
        /// What it holds.
        found: usize,
        /// What is needed.
        needed: usize,
    },
    /// Arguments that contradict each other or make no sense; the sentence says which and why.
    #[error("{0}")]
    Invalid(String),
    /// A number that is infinite or NaN where only finite ones make sense.
    #[error("{what}[{index}] is {value}: weights and inputs must be finite")]
    NotFinite {
        /// Which array.
        what: &'static str,
        /// Where in it.
        index: usize,
        /// The value, as text.
        value: String,
    },
}

impl From<subdeq_map::BadMap> for EngineError {
    fn from(cause: subdeq_map::BadMap) -> Self {
        Self::Invalid(cause.to_string())
    }
}

/// Result of an engine call.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;
