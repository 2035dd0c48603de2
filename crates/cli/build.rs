//! Tells the program the commit that it is built from: results are kept with it.

use std::path::Path;
use std::process::Command;

/// Sources, as git names them from the root: what else differs from the commit does not change the program.
const SOURCES: [&str; 3] = [":(glob)crates/*/src/**", "Cargo.lock", "Cargo.toml"];

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir("../..").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn commit() -> Option<String> {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&[&["status", "--porcelain", "--"][..], &SOURCES].concat())?;
    Some(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}

fn main() {
    println!("cargo::rustc-env=SUBDEQ_COMMIT={}", commit().unwrap_or_else(|| "unknown".to_owned()));
    // The commit changes with the head, or with the branch that it names; in a work tree of its own both are elsewhere.
    let head = git(&["rev-parse", "--git-path", "HEAD"]);
    let branch = git(&["symbolic-ref", "HEAD"]).and_then(|name| git(&["rev-parse", "--git-path", &name]));
    let packed = git(&["rev-parse", "--git-path", "packed-refs"]);
    let crates = std::fs::read_dir("..").into_iter().flatten().flatten();
    let sources = crates.map(|entry| entry.path().join("src")).map(|path| path.display().to_string());
    let of_git = [head, branch, packed]
        .into_iter()
        .flatten()
        .map(|path| if Path::new(&path).is_absolute() { path } else { format!("../../{path}") });
    // A path that is not there would make every build run this again.
    for path in of_git.chain(sources).filter(|path| Path::new(path).exists()) {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
