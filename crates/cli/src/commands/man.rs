//! `subdeq man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::failure::Failure;

/// Print the manual page, or write one page per subcommand into a folder.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to write all pages into.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let program = super::Program::command();
    match &args.out {
        Some(folder) => clap_mangen::generate_to(program, folder).map_err(|cause| {
            Failure::other(format!("cannot write manual pages to {}: {cause}", folder.display()))
        })?,
        None => clap_mangen::Man::new(program)
            .render(&mut std::io::stdout())
            .map_err(|cause| Failure::other(format!("cannot print the manual page: {cause}")))?,
    }
    Ok(ExitCode::SUCCESS)
}
