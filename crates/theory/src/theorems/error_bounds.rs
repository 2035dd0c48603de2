//! # Error bounds, iteration counts, robustness
//!
//! With a factor `c` in a metric `d`: `d(z, z*) <= d(z, F z)/(1-c)` after the fact, and `ln(d_0/eps)/ln(1/c)` iterations in advance; the adjoint converges at the same
//! rate. If `y` moves by `D`, the fixed point of `H(z) + y` moves by at most `max_i ln(1 + D_i/z_i) / (1-c)` in Thompson's metric, which bounds what can happen to the
//! logits: a certified radius.
//!
//! # Example
//!
//! ```
//! use subdeq_theory::bounds::{Contraction, relative_error};
//! let c = Contraction::new(0.246994).unwrap();
//! assert_eq!(c.iterations_from_distance((2.2f64 / 1.2).ln(), 1e-6), 10);
//! assert!(relative_error(c.error_after(1e-6)) < 4e-7);
//! ```
//!
//! # What it replaces in the paper
//!
//! The linear rate `mu^k`, by the constants that are true and with the error after the fact.
