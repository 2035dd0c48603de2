//! # A7: strongly monotone operators
//!
//! `z = s(W z + y)`, the slopes of `s` in `[0, 1]`, and `sym(T W T^-1) <= (1 - m) I` for a diagonal `T > 0` and an `m > 0`: exactly one solution for every real
//! input. Signs, norm and spectral radius of `W` are free on the negative side. Plain iteration need not converge; Peaceman-Rachford splitting does.
//!
//! *Why.* For two solutions, `e = z - z'` has `e_i (W e)_i >= e_i^2`, so `e'(I - W)e <= 0`, so `e = 0`.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let map = Map::named("monotone", Layout::Dense)?;
//! let rotation = Operator::dense(2, vec![0.5, -9.0, 9.0, 0.5])?;
//! assert!(Certifier::new().certify(&map, &rotation, &Scope::AllInputs)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! The monotone baseline as the paper prints it, `W = A'A + B - B'`; what is meant is `W = (1-m) I - A'A + B - B'`.
