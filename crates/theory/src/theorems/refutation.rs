//! # Refutation: more than one fixed point
//!
//! Two boxes that do not meet, each shown to hold exactly one fixed point by an interval Newton (Krawczyk) step, refute uniqueness. So does one fixed point with
//! `det(I - J) < 0`: for a bounded map the indices of all fixed points sum to one, so there are others.
//!
//! # Example
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::{Scope, Verdict}, certify::Certifier};
//! let map = Map::named("subdeq-tanh", Layout::Dense)?;
//! let balanced = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
//! let Verdict::Refuted { witness } = Certifier::new().certify(&map, &balanced, &Scope::NonnegativeInputs)?.verdict else { panic!() };
//! assert!(!witness.points().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it replaces in the paper
//!
//! A theorem that says the contrary.
