use std::fmt;

use serde::{Deserialize, Serialize};

/// The signs found in a weight matrix, kernel or adjacency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignStructure {
    /// Every entry is `>= 0`.
    Nonnegative,
    /// Within each row (output unit, output channel) all entries are `>= 0` or all are `<= 0`.
    RowSigned,
    /// At least one row has entries of both signs.
    Mixed,
}

impl fmt::Display for SignStructure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SignStructure::Nonnegative => "nonnegative weights",
            SignStructure::RowSigned => "weights of one sign per row",
            SignStructure::Mixed => "weights of both signs in one row",
        })
    }
}

/// The weights that a map is meant for. The signs and the spectrum are always read off the weights that are there: this only
/// says which weights are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum WeightClass {
    /// Any weights.
    #[default]
    Any,
    /// `W >= 0` (A1).
    Nonnegative,
    /// Rows of one sign (A2).
    RowSigned,
    /// `sym(T W T^-1) <= (1 - m) I`, `m > 0` (A7). Unique for every real input, but plain iteration need not converge.
    Monotone {
        /// The margin `m` that the weights must show; 0 asks for any margin above zero.
        margin: f64,
    },
}

impl WeightClass {
    /// Whether weights of these signs belong to the class; a spectrum is not looked at.
    #[must_use]
    pub fn admits(self, signs: SignStructure) -> bool {
        match self {
            WeightClass::Nonnegative => signs == SignStructure::Nonnegative,
            WeightClass::RowSigned => signs != SignStructure::Mixed,
            WeightClass::Any | WeightClass::Monotone { .. } => true,
        }
    }
}
