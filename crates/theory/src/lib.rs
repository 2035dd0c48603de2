//! What can be proved about an equilibrium layer.
#![forbid(unsafe_code)]

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
