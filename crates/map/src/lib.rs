//! Equilibrium maps `z = F(z; y)` as data: the one description that the engine solves and the theory speaks about.
//!
//! A [`Map`] is an equation without its weights; it can only be built where it is defined, and its [`Display`] is the
//! equation that certificates print. An [`Operator`] is the weights. [`Map::evaluate`] is what both mean, in plain `f64`:
//! every kernel and every enclosure is tested against it.
//!
//! ```
//! use subdeq_map::{Activation, Map, Operator};
//! let map = Map::split_sign(Activation::Softsign, 1.2)?;
//! assert_eq!(map.to_string(), "z = softsign(W+ z) - softsign(W- z) + y + 1.2");
//! let w = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
//! let image = map.evaluate(&w, None, &[1.0, 1.0], &[0.0, 0.5])?;
//! assert_eq!(image, [1.2, 1.7]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Display`]: std::fmt::Display
#![forbid(unsafe_code)]
// `!(x > 0.0)` is meant: a number that is not one must fail every test, and `x <= 0.0` would let it pass.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

mod activation;
mod evaluate;
mod form;
mod map;
mod names;
mod norm;
mod operator;
mod parametrisation;
mod weight_class;

pub use activation::{Activation, UnknownActivation};
pub use evaluate::Undefined;
pub use form::{Form, Injection};
pub use map::{BadMap, Map, Overrides, Parts};
pub use norm::{Groups, Normalisation, PNorm, Projection};
pub use operator::{Conv, Dense, Graph, Layout, Operator, OperatorError, Padding};
pub use parametrisation::Parametrisation;
pub use weight_class::{SignStructure, WeightClass};
