//! Datasets: read, check, split, standardise, fetch.
#![forbid(unsafe_code)]
