//! What can be proved about an equilibrium layer.
#![forbid(unsafe_code)]

pub mod activation;
pub mod certificate;
pub mod interval;
pub mod map;
