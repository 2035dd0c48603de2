//! The program `subdeq`.
#![forbid(unsafe_code)]

mod blocks;
mod chart;
mod colour;
mod commands;
mod dataset;
mod device;
mod failure;
mod graph;
mod named_map;
mod names;
mod options;
mod paper;
mod pictures;
mod progress;
mod recipe;
mod report;
mod robustness;
mod solving;
mod statistics;
mod stop;
mod together;
mod trained;
mod waiting;
mod weights;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::Parser;

/// Whoever reads our output may stop reading (`subdeq .. | head`): that is an end, not a fault of the program. Output that
/// cannot be written for another reason (a full disk) is a fault, but not one of the program.
fn end_with_the_output() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>().map_or("", String::as_str);
        match message.strip_prefix("failed printing to std") {
            Some(why) if why.contains("Broken pipe") => std::process::exit(0),
            Some(why) => unwritable(why.split_once(": ").map_or(why, |(_, why)| why)),
            None => usual(panic),
        }
    }));
}

/// Says that standard output cannot be written, if anybody hears it, and ends.
fn unwritable(why: impl std::fmt::Display) -> ! {
    let _ = writeln!(std::io::stderr(), "subdeq: standard output cannot be written: {why}");
    std::process::exit(1)
}

/// What the command line asks for, or the end: help, the version, or what is wrong with it.
fn parse() -> commands::Program {
    commands::Program::try_parse().unwrap_or_else(|answer| match answer.print() {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => unwritable(why),
        _ => std::process::exit(answer.exit_code()),
    })
}

fn main() -> ExitCode {
    end_with_the_output();
    match parse().run() {
        Ok(code) => code,
        Err(failure) => {
            anstream::eprintln!("{} {failure}", colour::bad("subdeq:"));
            failure.exit_code()
        }
    }
}
