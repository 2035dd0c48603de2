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
    /// `(1 - t) (B h(Z) + diag(own) Z)` with the injection `t f(X)`: propagation over hyperedges, each of which has the power mean
    /// of what its nodes give it, `h_e = n_e mean_i((b_ie |z_i|)^p)^(1/p)`, times their number `n_e`. With `p = 1` and `Z >= 0`
    /// it is [`Form::Graph`] with `A = B B' + diag(own)`.
    PowerMean {
        /// Teleport probability `t` in `(0, 1)`.
        teleport: f64,
        /// From 1, the mean, towards the largest.
        p: f64,
    },
}

impl Form {
    /// The largest power of [`Form::PowerMean`]: the mean is nearly the largest number by then, and its slopes lose digits with
    /// every doubling.
    pub const MOST_POWER: f64 = 100.0;

    /// The teleport probability of a propagation over a graph or hyperedges.
    #[must_use]
    pub fn teleport(&self) -> Option<f64> {
        match self {
            Form::Graph { teleport } | Form::PowerMean { teleport, .. } => Some(*teleport),
            _ => None,
        }
    }

    /// What the injection is multiplied with: the teleport probability of a graph, else 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.teleport().unwrap_or(1.0)
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
