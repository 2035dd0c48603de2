//! What can be proved about an equilibrium layer.
#![forbid(unsafe_code)]

pub mod activation;
pub mod by_form;
pub mod certificate;
mod cholesky;
mod closing;
pub mod degree;
mod ibp;
pub mod interval;
mod lu;
pub mod map;
pub mod operator;
mod response;
pub mod round;
mod secant;
