//! Where the real data are, if they are there.

use std::path::{Path, PathBuf};

use crate::skipped::skipped;

/// The data folder if it has `name`; otherwise says which test is skipped.
pub fn data(test: &str, name: &str) -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let root = std::env::var_os("SUBDEQ_DATA").map_or(beside, PathBuf::from);
    if root.join(name).is_dir() {
        return Some(root);
    }
    skipped(format!("{test}: no data at {}", root.join(name).display()));
    None
}
