//! `subdeq man`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::failure::Failure;

/// Print the manual page, or write one page per subcommand into a folder.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to write all pages into; it is made if need be.
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let program = super::Program::command();
    match &args.out {
        Some(folder) => {
            std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(program, folder)).map_err(
                |cause| Failure::other(format!("cannot write manual pages to {}: {cause}", folder.display())),
            )?
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program)
                .render(&mut page)
                .map_err(|cause| Failure::other(format!("there is no manual page: {cause}")))?;
            print!("{}", String::from_utf8_lossy(&page));
        }
    }
    Ok(ExitCode::SUCCESS)
}
