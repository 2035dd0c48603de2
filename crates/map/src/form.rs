use serde::{Deserialize, Serialize};

/// The expression that the weights enter. `s` is the activation, `W+ = max(W, 0)`, `W- = max(-W, 0)`; injection, shift,
/// power and normalisation are added around it as [`Map`](crate::Map) says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Form {
    /// `s(W z)`.
    Single,
    /// `s(W+ z) - s(W- z)` (A3).
    SplitSign,
    /// `s(W+ z / (q + W- z))` (A4).
    Divisive {
        /// `q > 0`.
        q: f64,
    },
    /// `W+ z / (q + W+ z + W- z)` (A4 with softsign).
    Rational {
        /// `q > 0`.
        q: f64,
    },
    /// `((W+ z + y1 + e) / (W- z + y2 + e))^p` (A6). The injection has `2n` entries, `y1` then `y2`.
    PowerRatio {
        /// Exponent, `> 0`; below 1/2 for a contraction.
        p: f64,
        /// `e > 0`.
        e: f64,
    },
    /// `W+ s(P z) - W- s(N z) + tie (W- 1)` (A3'), with `P, N >= 0` the two signs of a hidden operator (the identity where
    /// only `W` is given).
    Gains,
    /// `s(exp(W ln z))` (A5).
    Monomial,
    /// `s(W z)` with `W = (1 - margin) I - A'A + skew (A - A')` (A8): the operator is the free `A`, and whatever it is, `W` has
    /// the margin.
    Tied {
        /// `m > 0`.
        margin: f64,
        /// `b`, the share of the antisymmetric part.
        skew: f64,
    },
    /// `s((1 - t) A Z)` with the injection `t f(X)`: propagation over a graph.
    Graph {
        /// Teleport probability `t` in `(0, 1)`.
        teleport: f64,
    },
}

impl Form {
    /// What the injection is multiplied with: the teleport probability of a graph, else 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if let Form::Graph { teleport } = self { *teleport } else { 1.0 }
    }

    /// Injections per state entry: 2 for the power ratio, else 1.
    #[must_use]
    pub fn injection_count(&self) -> usize {
        if matches!(self, Form::PowerRatio { .. }) { 2 } else { 1 }
    }
}

/// Where the injection `y` enters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Injection {
    /// `s(W z + y) + shift`.
    Inner,
    /// `s(W z) + y + shift`.
    Outer,
}
