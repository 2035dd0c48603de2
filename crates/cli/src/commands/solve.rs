//! `subdeq solve`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use subdeq::map::ParametrisedMap;
use subdeq::{
    Backend, Certificate, Equilibrium, ErrorBound, Layout, Map, Operator, Outcome, Parametrisation, Real,
    SampleSolution, Scope, Solution, Stopping,
};
use subdeq_data::npy::{NpyArray, NpyData};

use crate::colour::{self, bad, good};
use crate::device::{self, AnyDevice, DeviceName, on_device};
use crate::failure::Failure;
use crate::named_map::{MapOptions, Taken, padding, take};
use crate::options::Telling;
use crate::solving::{Method, tolerance};
use crate::waiting::Waiting;
use crate::weights::Array;

/// Exit status when a sample did not converge: the answer is there, but it is not an equilibrium.
const NOT_CONVERGED: u8 = 12;

/// Solve z = F(z; y) for every row of an injection.
///
/// Exit status: 0 every sample converged, 12 at least one did not, 2 bad usage, 1 any other error.
#[derive(clap::Args)]
pub struct Args {
    /// W (A for monotone-tied) as .npy or .safetensors, f32 or f64: n x n (dense) or c x c x 3 x 3 (convolution;
    /// 1 x 1 and 5 x 5 too for monotone maps).
    #[arg(long)]
    weights: PathBuf,
    /// Which tensor of a .safetensors file.
    #[arg(long)]
    tensor: Option<String>,
    /// Inputs y as .npy: batch x n, or batch x c x height x width. power-ratio takes two injections, one after the
    /// other: batch x 2n.
    #[arg(long)]
    injection: PathBuf,
    /// The map: subdeq-tanh, split-sign, monotone, ... (an unknown name lists them all).
    #[arg(long)]
    map: String,
    #[command(flatten)]
    options: MapOptions,
    /// Default: peaceman-rachford for monotone maps, else anderson.
    #[arg(long, value_enum)]
    solver: Option<Method>,
    /// The relative residual to reach.
    #[arg(long, default_value_t = 1e-6, value_parser = tolerance, allow_negative_numbers = true)]
    tol: f64,
    /// At most so many applications of the map per sample.
    #[arg(long, default_value_t = 1000)]
    max_iterations: usize,
    /// Start every entry here [default: 1; 0 for monotone maps].
    #[arg(long, allow_negative_numbers = true)]
    start: Option<f64>,
    /// Number type of the iteration.
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Where f32 is computed: cpu, cuda (or cuda:N for GPU number N), or auto (a GPU if there is one). f64 is computed on the
    /// CPU.
    #[arg(long, default_value_t, value_name = "DEVICE")]
    device: DeviceName,
    /// Threads; 0 means all.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Where the solutions go, as .npy of the injection's layout and of the number type of --precision.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Precision {
    F32,
    F64,
}

/// The problem as the files give it.
struct Problem {
    architecture: ParametrisedMap,
    operator: Operator,
    weights: Taken,
    /// Samples in the engine's order.
    y: Vec<f64>,
    batch: usize,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let problem = read(args)?;
    match args.precision {
        Precision::F32 => {
            on_device!(AnyDevice::new(args.device, args.threads)?, |device| solve(args, &problem, device))
        }
        Precision::F64 if matches!(args.device, DeviceName::Cuda(_)) => {
            Err(Failure::usage("a GPU computes in f32 here: leave --precision f64 or --device out"))
        }
        Precision::F64 => solve(args, &problem, device::in_f64(args.threads)?),
    }
}

fn read(args: &Args) -> Result<Problem, Failure> {
    let weights = Array::read(&args.weights, args.tensor.as_deref())?;
    let injection = Array::read(&args.injection, None)?;
    let (file, y_file) = (args.weights.display(), args.injection.display());
    let layout = match *weights.shape {
        [n, m] if n == m && n > 0 => Layout::Dense,
        [c, d, s, t] if c == d && c > 0 && s == t => Layout::Conv,
        ref shape => {
            return Err(Failure::other(format!(
                "{file} has the shape {shape:?}; weights are n x n (dense) or c x c x 3 x 3 (convolution)"
            )));
        }
    };
    let map = args.options.map(&args.map, None, layout)?;
    let mut architecture =
        ParametrisedMap::of_given_weights(&args.map, map, layout).map_err(Failure::usage)?;
    if let [.., _, _, side, _] = *weights.shape {
        architecture = architecture
            .with_kernel(side)
            .map_err(|why| Failure::other(format!("{file} has the shape {:?}: {why}", weights.shape)))?;
    }
    let (shape, units) = (weights.shape.clone(), weights.shape[0]);
    let weights = take(&args.map, &map, &file.to_string(), weights)?;
    let twice = map.form().injection_count();
    let padding = padding(&map);
    let (operator, batch) = match (layout, &*injection.shape) {
        (Layout::Dense, &[batch, n]) if n == units * twice && batch > 0 => {
            (Operator::Dense { n: units }, batch)
        }
        (Layout::Conv, &[batch, c, height, width]) if c == units * twice && batch * height * width > 0 => {
            (Operator::Conv { channels: units, height, width, padding, kernel: 3 }, batch)
        }
        (_, found) => {
            return Err(Failure::other(format!(
                "{y_file} has the shape {found:?}, but with {file} of shape {:?} `{}` takes {}",
                shape,
                args.map,
                match layout {
                    Layout::Conv => format!("batch x {} x height x width", units * twice),
                    _ => format!("batch x {}", units * twice),
                }
            )));
        }
    };
    let y = transpose(&operator, twice, &injection.data, Direction::ToEngine);
    Ok(Problem { architecture, operator, weights, y, batch })
}

/// What is known about the answers.
struct Promises {
    /// The verdict for the inputs that the map is meant for, if one of the samples is among them.
    general: Option<Certificate>,
    /// For samples that it does not cover, their own.
    own: Vec<Option<Certificate>>,
    /// How far each solution can be from the exact one, and as a distance of every entry.
    bounds: Vec<Option<(ErrorBound, f64)>>,
}

impl Promises {
    fn of<D: Backend>(
        args: &Args,
        layer: &mut Equilibrium<D>,
        y: &[D::Elem],
        solution: &Solution<D::Elem>,
    ) -> Result<Promises, Failure> {
        let scope = layer.scope();
        let inputs: Vec<&[D::Elem]> = y.chunks_exact(layer.map().injection_len()).collect();
        let covered = |y: &[D::Elem]| scope.contains(&y.iter().map(|y| y.to_f64()).collect::<Vec<f64>>());
        let outside: Vec<D::Elem> =
            inputs.iter().filter(|y| !covered(y)).flat_map(|y| y.iter().copied()).collect();
        let mut own = if outside.is_empty() {
            Vec::new().into_iter()
        } else {
            layer.prove_samples(&outside, args.threads).map_err(Failure::other)?.into_iter()
        };
        let own: Vec<Option<Certificate>> =
            inputs.iter().map(|y| if covered(y) { None } else { own.next() }).collect();
        let general = match own.iter().any(Option::is_none) {
            true => Some(layer.certify(scope).map_err(Failure::other)?),
            false => None,
        };
        let bounds = layer.error_bounds(y, &solution.z).map_err(Failure::other)?;
        let states = solution.z.chunks_exact(layer.map().operator().state_len());
        let absolute = |(bound, z): (Option<ErrorBound>, &[D::Elem])| {
            let z: Vec<f64> = z.iter().map(|z| z.to_f64()).collect();
            bound.map(|bound| (bound, bound.absolute(&z)))
        };
        Ok(Promises { general, own, bounds: bounds.into_iter().zip(states).map(absolute).collect() })
    }
}

fn solve<D: Backend>(args: &Args, problem: &Problem, device: Arc<D>) -> Result<ExitCode, Failure> {
    let waiting = Waiting::begin(Telling::usual(args.json), "solving");
    let mut layer = layer(args, problem, device)?;
    let y: Vec<D::Elem> = problem.y.iter().map(|&y| D::Elem::from_f64(y)).collect();
    let solution = layer.solve(&y).map_err(Failure::other)?;
    let promises = Promises::of(args, &mut layer, &y, &solution)?;
    if let Some(path) = &args.out {
        let z: Vec<f64> = solution.z.iter().map(|z| z.to_f64()).collect();
        let z = transpose(&problem.operator, 1, &z, Direction::FromEngine);
        write(path, problem, z, args.precision)?;
    }
    drop(waiting);
    let equation = layer.equation().map_err(Failure::other)?;
    if args.json {
        println!("{}", report(args, problem, &equation, &solution, &promises));
    } else {
        print(problem, &equation, &solution, &promises);
    }
    Ok(if solution.converged() { ExitCode::SUCCESS } else { ExitCode::from(NOT_CONVERGED) })
}

/// A layer that holds exactly the weights that were given.
fn layer<D: Backend>(args: &Args, problem: &Problem, device: Arc<D>) -> Result<Equilibrium<D>, Failure> {
    let mut builder = match problem.operator {
        Operator::Dense { n } => Equilibrium::dense(n),
        Operator::Conv { channels, height, width, .. } => Equilibrium::conv(channels, height, width),
    }
    .map(problem.architecture.clone())
    .stopping(Stopping::relative(args.tol).max_iterations(args.max_iterations));
    if let Some(method) = args.solver {
        builder = builder.solver(method);
    }
    if let Some(start) = args.start {
        builder = builder.start(start);
    }
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let mut layer = builder.build_on(device, &mut rng).map_err(Failure::usage)?;
    let weights: Vec<D::Elem> = problem.weights.data.iter().map(|&w| D::Elem::from_f64(w)).collect();
    layer.set_parameter(0, &weights).map_err(Failure::other)?;
    let shifted = matches!(problem.architecture.parametrisation(), Parametrisation::MonotoneShifted { .. });
    if shifted && layer.weights().map_err(Failure::other)?[0] != weights {
        return Err(Failure::other(format!(
            "{}: these weights are not monotone as they stand (the largest eigenvalue of (W + W')/2 is not below 1), so the \
             solvers of `{}` cannot be relied on",
            args.weights.display(),
            args.map
        )));
    }
    Ok(layer)
}

#[derive(Clone, Copy)]
enum Direction {
    ToEngine,
    FromEngine,
}

/// Images are channel-first in files and channel-last in the engine; `parts` states lie one after the other.
fn transpose(operator: &Operator, parts: usize, data: &[f64], direction: Direction) -> Vec<f64> {
    let Operator::Conv { channels, height, width, .. } = *operator else { return data.to_vec() };
    let pixels = height * width;
    let mut out = vec![0.0; data.len()];
    let states = out.chunks_exact_mut(channels * pixels).zip(data.chunks_exact(channels * pixels));
    debug_assert_eq!(data.len() % (parts * channels * pixels), 0);
    for (out, state) in states {
        for c in 0..channels {
            for p in 0..pixels {
                let (first, last) = (c * pixels + p, p * channels + c);
                match direction {
                    Direction::ToEngine => out[last] = state[first],
                    Direction::FromEngine => out[first] = state[last],
                }
            }
        }
    }
    out
}

fn write(
    path: &std::path::Path,
    problem: &Problem,
    z: Vec<f64>,
    precision: Precision,
) -> Result<(), Failure> {
    let shape = match problem.operator {
        Operator::Dense { n } => vec![problem.batch, n],
        Operator::Conv { channels, height, width, .. } => vec![problem.batch, channels, height, width],
    };
    let z = match precision {
        Precision::F32 => NpyData::F32(z.iter().map(|&z| z as f32).collect()),
        Precision::F64 => NpyData::F64(z),
    };
    NpyArray::new(shape, z).and_then(|array| array.write(path)).map_err(Failure::other)
}

fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Converged => "converged",
        Outcome::IterationLimit => "iteration-limit",
        Outcome::Stagnated => "stagnated",
        Outcome::NotFinite => "not-finite",
    }
}

/// The samples with what is promised about each.
fn samples<'a, T>(
    solution: &'a Solution<T>,
    promises: &'a Promises,
) -> impl Iterator<Item = (&'a SampleSolution, Option<(ErrorBound, f64)>, Option<&'a Certificate>)> {
    let promised = promises.bounds.iter().zip(&promises.own);
    solution.samples.iter().zip(promised).map(|(s, (bound, own))| (s, *bound, own.as_ref()))
}

fn report<T>(
    args: &Args,
    problem: &Problem,
    equation: &Map,
    solution: &Solution<T>,
    promises: &Promises,
) -> Value {
    let name = |certificate: &Certificate| certificate.verdict.name();
    let general = promises.general.as_ref().map(name);
    let samples: Vec<Value> = samples(solution, promises)
        .map(|(s, bound, own)| {
            json!({
                "iterations": s.iterations,
                "residual": s.residual.is_finite().then_some(s.residual),
                "outcome": outcome_name(s.outcome),
                "error_bound": bound.map(|(bound, _)| bound.value),
                "error_metric": bound.map(|(bound, _)| bound.metric),
                "relative_error": bound.and_then(|(bound, _)| bound.relative()),
                "absolute_error": bound.map(|(_, absolute)| absolute),
                "covered": own.is_none(),
                "verdict": own.map(name).or(general),
            })
        })
        .collect();
    json!({
        "map": problem.architecture.name(),
        "equation": equation.to_string(),
        "weights": problem.weights.words,
        "tolerance": args.tol,
        "converged": solution.converged(),
        "inputs": if Scope::widest(equation) == Scope::AllInputs { "all" } else { "nonnegative" },
        "all_inputs": general,
        "samples": samples,
        "out": args.out,
    })
}

fn print<T>(problem: &Problem, equation: &Map, solution: &Solution<T>, promises: &Promises) {
    if problem.weights.changed {
        println!("weights: {}", problem.weights.words);
    }
    for (k, (s, bound, own)) in samples(solution, promises).enumerate() {
        let proven = match bound {
            None => String::new(),
            Some((bound, absolute)) if bound.relative().is_some() => {
                format!(", proven within {bound} of the solution, {absolute:.3e} absolute")
            }
            Some((bound, _)) => format!(", proven within {bound} of the solution"),
        };
        let outcome = match s.outcome {
            Outcome::Converged => good(outcome_name(s.outcome)),
            _ => bad(outcome_name(s.outcome)),
        };
        anstream::println!(
            "sample {k}: {outcome} after {} iterations, residual {:.3e}{proven}",
            s.iterations,
            s.residual
        );
        if let Some(own) = own {
            let own = colour::verdict_within(&own.to_string(), "  ");
            anstream::println!(
                "  its input has entries below 0, for which the map is not meant; by itself:\n  {own}"
            );
        }
    }
    let converged = solution.samples.iter().filter(|s| s.outcome == Outcome::Converged).count();
    println!("{converged} of {} converged to a solution of {equation}", problem.batch);
    if let Some(general) = &promises.general {
        anstream::println!("{}", colour::verdict(&general.to_string()));
    }
}
