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
    /// Memory that does not suffice.
    #[error("{} do not fit into the memory of the device{}", bytes(*needed), of(*installed))]
    OutOfMemory {
        /// Bytes that were asked for at once.
        needed: u64,
        /// Bytes that the device has, where that is known.
        installed: Option<u64>,
    },
    /// A device that failed; the sentence is its own.
    #[error("the device failed: {0}")]
    DeviceFailed(String),
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

/// A number of bytes, for people.
fn bytes(count: u64) -> String {
    match count {
        0..1_000_000 => format!("{count} bytes"),
        1_000_000..10_000_000_000 => format!("{:.1} MB", count as f64 * 1e-6),
        _ => format!("{:.1} GB", count as f64 * 1e-9),
    }
}

fn of(installed: Option<u64>) -> String {
    installed.map_or(String::new(), |count| format!(", which has {}", bytes(count)))
}

impl From<subdeq_map::BadMap> for EngineError {
    fn from(cause: subdeq_map::BadMap) -> Self {
        Self::Invalid(cause.to_string())
    }
}

/// Result of an engine call.
pub type Result<T, E = EngineError> = std::result::Result<T, E>;
