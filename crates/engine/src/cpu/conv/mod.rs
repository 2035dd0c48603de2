//! 3x3 convolutions of same-size NHWC images: inside the equilibrium and outside of it.

#[cfg(target_arch = "x86_64")]
pub mod amx;
mod batch;
mod block;
pub mod direct;
pub mod padded;
pub mod shape;
mod weight_gradient;
mod workspace;

pub use batch::{forward, input_gradient, weight_gradient};
pub use shape::Shape;
