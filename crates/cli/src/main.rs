//! The program `subdeq`.
#![forbid(unsafe_code)]
fn main() {}
