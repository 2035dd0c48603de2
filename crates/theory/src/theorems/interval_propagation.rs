//! # Theorems 5 to 7: interval propagation for one input
//!
//! From a box `[l, h]` that contains all fixed points the image box is
//!
//! `s(W+ l - W- h) + b  <=  z  <=  s(W+ h - W- l) + b`.
//!
//! **Theorem 5.** Where T1 or TL holds on some invariant box, these boxes shrink to a point: propagate first, then test. **Theorem 6.** If they shrink to a point, the fixed
//! point is unique and every Picard run reaches it. **Theorem 7.** If `W = S abs(W) S` with signs `S`, they shrink to a point *if and only if* it is unique.
//!
//! With the fixed point computed, the slopes may be replaced by secants that start there (the secant tests), which are never steeper.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//! let map = Map::named("subdeq-tanh", Layout::Dense)?;
//! let w = Operator::dense(2, vec![2.0, -2.0, 0.0, 0.0])?;
//! // Several fixed points for y = 0, but one for an input that saturates the first neuron.
//! assert!(Certifier::new().certify(&map, &w, &Scope::Sample { y: vec![0.0, 0.0] })?.verdict.is_refuted());
//! assert!(Certifier::new().certify(&map, &w, &Scope::Sample { y: vec![9.0, 0.0] })?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! Nothing: the paper has no statement about a single input.
