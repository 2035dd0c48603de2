//! `subdeq degree`.

use std::process::ExitCode;

use serde_json::json;
use subdeq::Activation;
use subdeq::subdeq_theory::activation::LogSumExp;
use subdeq::subdeq_theory::degree::{Domain, NoDegree, Nonlinearity, StrongDegree};

use crate::failure::Failure;
use crate::names;

/// The one function of several variables.
const LOG_SUM_EXP: &str = "log-sum-exp";

/// Print the tight degree of subhomogeneity of (activation + shift)^power, rounded up.
#[derive(clap::Args)]
pub struct Args {
    /// tanh, sigmoid, softplus, softsign, hardtanh, relu, leaky-relu, identity or log-sum-exp.
    activation: String,
    /// Added to the activation.
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true)]
    shift: f64,
    /// Exponent of the shifted activation.
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    power: f64,
    /// Sharpness of softplus.
    #[arg(long, allow_negative_numbers = true)]
    beta: Option<f64>,
    /// Slope of leaky-relu on the negative half-line.
    #[arg(long, allow_negative_numbers = true)]
    slope: Option<f64>,
    /// Least value of hardtanh.
    #[arg(long, allow_negative_numbers = true)]
    lo: Option<f64>,
    /// Greatest value of hardtanh.
    #[arg(long, allow_negative_numbers = true)]
    hi: Option<f64>,
    /// Where the argument lives: weights of any sign need the reals, nonnegative ones the half-line.
    #[arg(long, value_enum, default_value_t = DomainName::Reals)]
    domain: DomainName,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum DomainName {
    Reals,
    Nonnegative,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let domain = match args.domain {
        DomainName::Reals => Domain::Reals,
        DomainName::Nonnegative => Domain::Nonnegative,
    };
    for (name, value) in [("shift", args.shift), ("power", args.power)] {
        if !value.is_finite() {
            return Err(Failure::usage(format!("--{name} must be a finite number, not {value}")));
        }
    }
    if args.power <= 0.0 {
        return Err(Failure::usage(format!("--power must be above 0, not {}", args.power)));
    }
    let (name, degree, positive) = if args.activation == LOG_SUM_EXP {
        let degree = log_sum_exp_degree(args, domain);
        (LOG_SUM_EXP.to_owned(), degree, degree.is_ok())
    } else {
        let h = Nonlinearity { activation: activation(args)?, shift: args.shift, power: args.power };
        (h.activation.to_string(), h.degree(domain), h.is_strictly_positive(domain))
    };
    if args.json {
        print_json(args, &name, domain, degree, positive);
    } else {
        print_words(args, &name, domain, degree, positive);
    }
    Ok(ExitCode::SUCCESS)
}

/// Positive on nonnegative vectors only, and a shift or power acts on it as on any function of degree one.
fn log_sum_exp_degree(args: &Args, domain: Domain) -> Result<StrongDegree, NoDegree> {
    match domain {
        Domain::Reals => Err(NoDegree::NotPositive { infimum: f64::NEG_INFINITY }),
        _ if args.shift < 0.0 => Err(NoDegree::NotPositive { infimum: args.shift }),
        _ => Ok(LogSumExp.degree().times(args.power)),
    }
}

/// The named activation with the parameters of the options, each of which belongs to one activation only.
fn activation(args: &Args) -> Result<Activation, Failure> {
    let named: Activation = args.activation.parse().map_err(|why| {
        let (name, known) = (&args.activation, [&Activation::NAMES[..], &[LOG_SUM_EXP]].concat());
        if known.iter().any(|known| name.starts_with(known)) {
            return Failure::usage(why);
        }
        names::unknown(
            format!("there is no activation `{name}`; known are {}", known.join(", ")),
            name,
            &known,
        )
    })?;
    let foreign = |option: &str, owner: &str| {
        Err(Failure::usage(format!("--{option} is a parameter of {owner}, not of {}", args.activation)))
    };
    let activation = match named {
        Activation::Softplus { beta } => Activation::Softplus { beta: args.beta.unwrap_or(beta) },
        _ if args.beta.is_some() => return foreign("beta", "softplus"),
        Activation::LeakyRelu { slope } => Activation::LeakyRelu { slope: args.slope.unwrap_or(slope) },
        _ if args.slope.is_some() => return foreign("slope", "leaky-relu"),
        Activation::HardTanh { lo, hi } => {
            Activation::HardTanh { lo: args.lo.unwrap_or(lo), hi: args.hi.unwrap_or(hi) }
        }
        _ if args.lo.is_some() || args.hi.is_some() => return foreign("lo and --hi", "hardtanh"),
        other => other,
    };
    activation.check().map_err(Failure::usage)?;
    Ok(activation)
}

fn print_json(
    args: &Args,
    name: &str,
    domain: Domain,
    degree: Result<StrongDegree, NoDegree>,
    positive: bool,
) {
    let object = json!({
        "activation": name,
        "shift": args.shift,
        "power": args.power,
        "domain": domain.to_string(),
        "degree": degree.ok().map(StrongDegree::bound),
        // A function of one variable, and log-sum-exp with its positive gradient, have equal weak and strong degrees.
        "strong": true,
        "strictly_positive": positive,
        "contraction": degree.is_ok_and(StrongDegree::is_contraction) && positive,
        "why_none": degree.err().map(|why| why.to_string()),
    });
    println!("{object}");
}

fn print_words(
    args: &Args,
    name: &str,
    domain: Domain,
    degree: Result<StrongDegree, NoDegree>,
    positive: bool,
) {
    let shift = match args.shift {
        0.0 => String::new(),
        a if a < 0.0 => format!(" - {}", -a),
        a => format!(" + {a}"),
    };
    let power = if args.power == 1.0 { String::new() } else { format!("^{}", args.power) };
    let function =
        if power.is_empty() { format!("{name}{shift}") } else { format!("({name}{shift}){power}") };
    match degree {
        Err(why) => println!("{function} on the {domain}: {why}."),
        Ok(c) => {
            println!("{function} on the {domain}: degree {:.9}", rounded_up(c.bound()));
            if !positive {
                println!("It is zero somewhere in that domain: it needs a shift before a theorem applies.");
            } else if c.is_contraction() {
                println!("Below one: with weights of one sign per row, the fixed point is unique.");
            } else {
                println!("Not below one: nothing follows for the fixed point.");
            }
            if domain == Domain::Reals {
                println!(
                    "With weights of both signs in one row, no degree proves anything: see `subdeq certify`."
                );
            }
        }
    }
}

/// Nine decimals, upwards.
fn rounded_up(x: f64) -> f64 {
    (x * 1e9).ceil() / 1e9
}
