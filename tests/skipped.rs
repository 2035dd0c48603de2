//! What the tests of every crate say when something that they need is not there.

use std::fmt::Display;
use std::io::Write;

/// Says that a test is skipped. Past what `cargo test` captures: of a test that passes, it shows nothing else.
pub fn skipped(test: impl Display) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}");
}
