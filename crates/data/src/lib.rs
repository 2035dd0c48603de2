//! Datasets: read, check, split, standardise, fetch.
//!
//! Images come as bytes ([`images::ImageSet`]), graphs as compressed sparse rows ([`graph::Csr`]). Every reader checks
//! sizes and ranges before it allocates, names file and place when something is wrong, and never panics on any bytes.
//!
//! No number in a file is believed that the data beside it do not justify. A compressed file of `n` bytes may unpack to
//! 64 MiB + 64 `n` (text: 8 MiB + 16 `n`) in all; `k` labels have at most `max(k, 1024)` classes; a sparse matrix has at
//! most 65536 columns more than rows and entries. What is larger than that and honest can be saved uncompressed.
#![forbid(unsafe_code)]

pub mod archive;
mod budget;
pub mod cache;
pub mod checksum;
pub mod cifar;
mod class_count;
pub mod csv;
pub mod data_dir;
pub mod error;
pub mod export;
pub mod fetch;
pub mod graph;
pub mod idx;
pub mod image_dataset;
pub mod image_folder;
pub mod images;
pub mod jxl_sheet;
pub mod matlab;
pub mod npy;
pub mod npz;
pub mod picture;
mod random;
pub mod registry;
mod source;
pub mod split;
pub mod standardise;
mod temporary;

pub use error::{DataError, Place, Result};
