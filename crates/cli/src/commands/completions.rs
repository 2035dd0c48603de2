//! `subdeq completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print completions for a shell.
#[derive(clap::Args)]
pub struct Args {
    /// Which shell.
    shell: Shell,
}

pub fn run(args: &Args) -> ExitCode {
    let mut program = super::Program::command();
    // Into memory first: printing knows what to do where nobody reads.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, "subdeq", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    ExitCode::SUCCESS
}
