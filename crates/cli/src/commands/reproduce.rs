//! `subdeq reproduce`: the paper's tables beside what is true.

mod table1;
mod table2;

use std::process::ExitCode;

use crate::failure::Failure;

/// Print a table of the paper beside what is true, with a reason for every difference.
#[derive(clap::Args)]
pub struct Args {
    /// Which table.
    #[arg(value_enum)]
    table: Table,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Table {
    /// Degrees of activation functions.
    Table1,
    /// Conditions for a unique fixed point.
    Table2,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.table {
        Table::Table1 => table1::print(),
        Table::Table2 => table2::print()?,
    }
    Ok(ExitCode::SUCCESS)
}
