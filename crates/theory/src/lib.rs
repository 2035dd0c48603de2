//! What can be proved about an equilibrium layer.
//!
//! An equilibrium layer outputs a solution of `z = F(z; y)`. This crate says whether there is exactly one, for one input or
//! for all, and how fast plain iteration finds it. It answers with a [`Certificate`](certificate::Certificate): proven,
//! refuted (with the fixed points) or unproven, as data that can be checked again from the weights alone.
//!
//! ```
//! use subdeq_map::{Layout, Map, Operator};
//! use subdeq_theory::{certificate::Scope, certify::Certifier};
//!
//! let weights = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
//! let published = Map::named("subdeq-tanh", Layout::Dense)?;
//! let sound = Map::named("split-sign", Layout::Dense)?;
//! let inputs = Scope::NonnegativeInputs;
//! assert!(Certifier::new().certify(&published, &weights, &inputs)?.verdict.is_refuted());
//! assert!(Certifier::new().certify(&sound, &weights, &inputs)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A verdict is about three sets and names them: the inputs `Y` it holds for ([`Scope`](certificate::Scope)), the states `Z` among
//! which the fixed point is the only one and the starts `S` from which plain iteration reaches it
//! ([`States`](certificate::States)). No verdict leaves [`Certifier`](certify::Certifier) that an independent
//! [check](certificate::Certificate::recheck) refuses.
//!
//! The theory is in [`theorems`]; numbers that a verdict depends on are rounded outward.
#![forbid(unsafe_code)]
// `!(x > 0.0)` is meant: a number that is not one must fail every test, and `x <= 0.0` would let it pass.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

pub mod activation;
mod balance;
pub mod bound;
pub mod bounds;
pub mod by_form;
pub mod calculus;
pub mod certificate;
pub mod certify;
mod cholesky;
mod closing;
pub mod degree;
pub mod exact;
mod form_box;
pub mod frequency;
mod ibp;
pub mod interval;
mod krawczyk;
mod lu;
pub mod metric;
mod model;
pub mod monotone;
pub mod network;
mod newton;
pub mod norm;
mod normalised;
pub mod operator;
pub mod power_mean;
pub mod recheck;
mod refute;
mod response;
pub mod robustness;
pub mod round;
mod secant;
pub mod theorems;
