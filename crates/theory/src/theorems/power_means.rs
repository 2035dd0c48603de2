//! # Power means over hyperedges
//!
//! `Z = (1 - t) (B h(Z) + diag(own) Z) + t f`, `B >= 0` the weights `b_ie` of nodes in hyperedges, `own >= 0`, `f >= 0`, and
//! `h_e(z) = n_e mean_i((b_ie |z_i|)^p)^(1/p) = n_e^(1-1/p) ||b_e z||_p` over the `n_e` nodes of `e`, channel by channel. For every
//! `p >= 1` and every `v > 0` the map is Lipschitz in `max_i |z_i|/v_i` with the constant
//!
//! `(1 - t) max_i (sum_e b_ie h_e(v) + own_i v_i) / v_i`.
//!
//! Proof. `||.||_p` is a norm, so that `|h_e(z) - h_e(z')| <= n_e^(1-1/p) ||b_e (z - z')||_p` (Minkowski), and it grows with the absolute
//! values, which are at most `v_i max_j |z_j - z'_j|/v_j`. So `|h_e(z) - h_e(z')| <= h_e(v) max_j |z_j - z'_j|/v_j`; add up over `e` with
//! `b_ie >= 0`. QED Where the constant is below 1, exactly one `Z` solves the equation, and plain iteration reaches it from everywhere. It
//! starts at `t f >= 0` and stays among `Z >= 0`, so that the solution is there, where the absolute values can be left out.
//!
//! With `d_i - 1` the number of hyperedges of node `i`, `b_ie <= 1/sqrt(d_i n_e)`, `own_i <= 1/d_i` and `v_i = sqrt(d_i)`: all of
//! `b_ie v_i <= 1/sqrt(n_e)`, so that `h_e(v) <= sqrt(n_e)` and the maximum is at most `((d_i - 1) + 1)/d_i = 1`: **the factor is `1 - t`
//! for every `p`**. A hyperedge of one node gives it `b_ie^2 z_i`, an empty one nothing.
//!
//! For `p < 1` there is no such constant: `(sqrt(z_1) + sqrt(z_2))^2` has an infinite slope at `z_1 = 0`.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map};
//! use subdeq_theory::power_mean::{hyperedge, prove};
//! // Two nodes in one hyperedge: d = (2, 2), b = 1/2, own = 1/2.
//! let v = vec![2f64.sqrt(); 2];
//! let gain = (0.5 * hyperedge(&[0.5 * v[0], 0.5 * v[1]], 2.0) + 0.5 * v[0]) / v[0];
//! assert!((gain - 1.0).abs() < 1e-12);
//! let map = Map::named("hyper-power", Layout::Graph)?;
//! assert!(prove(&map, gain, v.clone(), 0.0).is_ok());
//! assert!(prove(&map, gain, v, -1e-9).is_err(), "inputs must not be negative");
//! # Ok::<(), subdeq_map::BadMap>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! Nothing there: the maps are those of Tudisco, Benson and Prokopchik (*Nonlinear higher-order label spreading*) and of HyperND, which
//! normalise the state to have one solution. Here the damping and the normalised weights are enough.
