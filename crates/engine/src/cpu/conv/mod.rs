//! 3x3 convolutions of same-size NHWC images: inside the equilibrium and outside of it.

#[cfg(target_arch = "x86_64")]
mod amx;
mod batch;
mod block;
mod direct;
mod kernel;
mod padded;
mod precision;
pub(crate) mod same;
mod shape;
#[cfg(target_arch = "x86_64")]
mod tile_gradient;
mod weight_gradient;
mod winograd;
mod workspace;

pub use batch::{forward, input_gradient, weight_gradient};
pub(crate) use kernel::{Series, kernel};
pub use precision::{Accuracy, Grade, Graded, GradedScratch, set_accuracy};
pub use shape::Shape;

#[cfg(test)]
mod tests;
