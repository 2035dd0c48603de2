//! Datasets: read, check, split, standardise, fetch.
#![forbid(unsafe_code)]

pub mod cifar;
pub mod csv;
pub mod error;
pub mod idx;
pub mod jxl_sheet;
pub mod matlab;
pub mod npy;
pub mod npz;
mod source;

pub use error::{DataError, Place, Result};
