//! What can be proved about an equilibrium layer.
//!
//! An equilibrium layer outputs a solution of `z = F(z; y)`. This crate says whether there is exactly one, for one input or
//! for all, and how fast plain iteration finds it. It answers with a [`Certificate`](certificate::Certificate): proven,
//! refuted (with the fixed points) or unproven, as data that can be checked again from the weights alone.
//!
//! ```
//! use subdeq_theory::{certify::Certifier, map::{Layout, MapSpec}, operator::Operator};
//!
//! let weights = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
//! let published = MapSpec::named("subdeq-tanh", Layout::Dense)?;
//! let sound = MapSpec::named("split-sign", Layout::Dense)?;
//! assert!(Certifier::new().all_inputs(&published, &weights)?.verdict.is_refuted());
//! assert!(Certifier::new().all_inputs(&sound, &weights)?.verdict.is_proven());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The theory is in [`theorems`]; numbers that a verdict depends on are rounded outward.
#![forbid(unsafe_code)]
// `!(x > 0.0)` is meant: a number that is not one must fail every test, and `x <= 0.0` would let it pass.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

pub mod activation;
pub mod bounds;
pub mod by_form;
pub mod calculus;
pub mod certificate;
pub mod certify;
mod cholesky;
mod closing;
pub mod degree;
pub mod frequency;
mod ibp;
pub mod interval;
mod krawczyk;
mod lu;
pub mod map;
pub mod metric;
mod model;
pub mod monotone;
mod newton;
mod normalised;
pub mod operator;
pub mod recheck;
mod refute;
mod response;
pub mod robustness;
pub mod round;
mod secant;
pub mod theorems;
