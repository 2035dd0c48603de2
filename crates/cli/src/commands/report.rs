//! `subdeq report`: one page about one or several runs.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::report;

/// Make one self-contained HTML page about one or several runs.
///
/// Learning curves, iterations and residuals of the solver, the certificate in words, test inputs with what is proved
/// about them, the confusion matrix; several runs stand side by side, beside the paper's figures where it has them.
#[derive(clap::Args)]
pub struct Args {
    /// Run folders, or folders of run folders.
    #[arg(required = true)]
    folders: Vec<PathBuf>,
    /// Where the page goes [default: report.html, in the folder if it is one].
    #[arg(long)]
    out: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let page = report::write(&args.folders, args.out.as_deref())?;
    println!("{}", page.display());
    Ok(ExitCode::SUCCESS)
}
