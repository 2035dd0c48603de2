//! Datasets: read, check, split, standardise, fetch.
#![forbid(unsafe_code)]

pub mod error;
pub mod npy;
pub mod npz;
mod source;

pub use error::{DataError, Place, Result};
