//! The engine from outside. One program: the engine is linked once, not once per subject.

mod common;
mod cuda;
mod evaluator;
mod fixed_points;
mod gradients;
mod independence;
mod ode;
mod parts;
mod refusals;

#[path = "../../../../tests/skipped.rs"]
mod skipped;
