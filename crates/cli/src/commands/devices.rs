//! `subdeq devices`.

mod check;

use std::process::ExitCode;

use serde_json::json;

use crate::device::{self, AnyDevice, DeviceName, on_device};
use crate::failure::Failure;
use check::Line;

/// List the devices of this machine by the names that --device takes, or check them.
///
/// Exit status: 0, or 1 if a check does not hold.
#[derive(clap::Args)]
pub struct Args {
    /// Compute every map by every solver, every gradient and a few steps of training of every model on each device, and
    /// compare with the same in f64 on the CPU. What to run first on a new machine; takes a minute or two.
    #[arg(long)]
    check: bool,
    /// Only this device.
    #[arg(long)]
    device: Option<DeviceName>,
    /// One JSON object per device, or per comparison.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let devices = match args.device {
        None => device::all()?,
        Some(name) => vec![(name, AnyDevice::new(name, 0)?.name())],
    };
    if args.check {
        return check(args, &devices);
    }
    for (name, words) in &devices {
        if args.json {
            println!("{}", json!({ "device": name.to_string(), "name": words }));
        } else {
            println!("{name:8} {words}", name = name.to_string());
        }
    }
    if devices.len() == 1 && args.device.is_none() && !args.json {
        println!("no GPU: either there is none, or no driver for it");
    }
    Ok(ExitCode::SUCCESS)
}

fn check(args: &Args, devices: &[(DeviceName, String)]) -> Result<ExitCode, Failure> {
    let reference = device::in_f64(0)?;
    let mut all_hold = true;
    for (name, words) in devices {
        if !args.json {
            println!("{words}: relative errors against f64 on the CPU");
        }
        let (mut count, mut bad) = (0, 0);
        let tell = |line: Line| {
            count += 1;
            bad += usize::from(!line.holds());
            if args.json { println!("{}", as_json(*name, &line)) } else { println!("{}", in_words(&line)) }
        };
        on_device!(AnyDevice::new(*name, 0)?, |device| check::check(&device, &reference, tell));
        all_hold &= bad == 0;
        if !args.json {
            match bad {
                0 => println!("{name}: all {count} hold"),
                _ => println!("{name}: {bad} of {count} DO NOT HOLD"),
            }
        }
    }
    Ok(if all_hold { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn in_words(line: &Line) -> String {
    let verdict = if line.holds() { "holds" } else { "FAILS" };
    let errors = match &line.errors {
        Ok(errors) if errors.is_empty() => "refused, as on the CPU".to_owned(),
        Ok(errors) => {
            errors.iter().map(|(name, error)| format!("{name} {error:.1e}")).collect::<Vec<_>>().join(", ")
        }
        Err(why) => why.clone(),
    };
    format!("{verdict}  {:<48} {:<18} {errors}", line.what, line.solver)
}

fn as_json(name: DeviceName, line: &Line) -> serde_json::Value {
    let (errors, failure) = match &line.errors {
        Ok(errors) => (errors.iter().map(|&(name, error)| (name.to_owned(), json!(error))).collect(), None),
        Err(why) => (serde_json::Map::new(), Some(why)),
    };
    json!({
        "device": name.to_string(),
        "what": line.what,
        "solver": line.solver,
        "holds": line.holds(),
        "errors": errors,
        "failure": failure,
    })
}
