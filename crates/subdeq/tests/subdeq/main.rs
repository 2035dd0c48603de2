//! The library from outside. One test binary: each more would link everything again.

mod attack_layers;
mod classifier;
mod common;
mod configs;
mod custom;
mod devices;
mod fixed_points;
#[cfg(target_os = "linux")]
mod fuzz_model_files;
mod gradients;
mod lipschitz;
mod model_file;
mod networks;
mod ode;
mod promises;
mod radii;
mod recipe;
mod sliced;
mod tied;

#[cfg(target_os = "linux")]
#[path = "../../../data/fuzz/limited.rs"]
mod limited;
#[cfg(target_os = "linux")]
#[path = "../../fuzz/model_files.rs"]
mod model_files;
#[path = "../../../../tests/skipped.rs"]
mod skipped;
