//! `subdeq devices`.

use std::process::ExitCode;

use serde_json::json;

use crate::device;
use crate::failure::Failure;

/// List the devices of this machine by the names that --device takes.
#[derive(clap::Args)]
pub struct Args {
    /// One JSON object per device.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let devices = device::all()?;
    for (name, words) in &devices {
        if args.json {
            println!("{}", json!({ "device": name.to_string(), "name": words }));
        } else {
            println!("{name:8} {words}", name = name.to_string());
        }
    }
    if devices.len() == 1 && !args.json {
        println!("no GPU: either there is none, or no driver for it");
    }
    Ok(ExitCode::SUCCESS)
}
