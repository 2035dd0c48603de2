//! `subdeq bench`: time and memory of a training step and of an evaluation, in the fields of the PyTorch peer.

mod graph;
mod graph_ranks;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use subdeq::map::ParametrisedMap;
use subdeq::model::{Batch, BatchReport, Classifier, ClassifierSpec, CoreSpec, Noise};
use subdeq::subdeq_engine::network::Adam;
use subdeq::subdeq_engine::{Images, Picks};
use subdeq::train::check_model;
use subdeq::{Adjoint, Anderson, Backend, Init, Layout, PeacemanRachford, Picard, Solver, Stopping};

use crate::device::{self, AnyDevice, DeviceName, on_device};
use crate::failure::Failure;
use crate::together::on_ranks;

/// Steps before the clock starts: buffers, thread pool, frequency.
const WARM_UP: usize = 3;
/// A median of more says nothing new.
const MAX_REPEATS: usize = 1_000_000;
/// Readings if nothing is said: many where one is short (in seconds), fewer where it is long.
const READINGS: [usize; 2] = [50, 20];
const SHORT: f64 = 0.1;

/// Time a training step and an evaluation; one JSON line per case.
///
/// Random images, tolerance 1e-3 and at most 30 iterations forward and backward, as the PyTorch peer has it; medians. Images
/// and labels are on the device, as in a training; a reading is of as many steps as a training makes between two looks at
/// the device (one on the CPU), divided by their number.
#[derive(clap::Args)]
pub struct Args {
    /// Which shapes; without it all cases with images, one after the other. graph-dblp reads the DBLP graph; machine
    /// measures what this machine can do at best.
    #[arg(long, value_enum)]
    case: Option<CaseName>,
    /// The model: subdeq-tanh, subdeq-normalized-tanh, split-sign, monotone, explicit-tanh, ... [default: subdeq-tanh;
    /// appnp-normalized-tanh for graphs].
    #[arg(long)]
    model: Option<String>,
    /// Where it runs.
    #[arg(long, default_value_t)]
    device: DeviceName,
    /// Solver of both passes [default: peaceman-rachford for monotone maps, else picard, as the tuned peer].
    #[arg(long, value_enum)]
    solver: Option<Method>,
    /// Samples in a batch [default: the case's].
    #[arg(long)]
    batch: Option<usize>,
    /// Readings [default: 50, or 20 where one takes more than 0.1 s].
    #[arg(long)]
    repeats: Option<usize>,
    /// Threads; 0 means all.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Seed of weights and images.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Folder of the data sets [default: SUBDEQ_DATA, else data].
    #[arg(long)]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    graph_ranks: graph_ranks::Sizes,
}

impl Args {
    fn image_model(&self) -> &str {
        self.model.as_deref().unwrap_or("subdeq-tanh")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum CaseName {
    MnistDense,
    MnistConv,
    CifarConv,
    TinyConv,
    GraphDblp,
    /// Propagation over a large graph that ranks share: mpirun -n 2 subdeq bench --case graph-ranks.
    GraphRanks,
    Machine,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Method {
    Picard,
    Anderson,
    PeacemanRachford,
}

/// A case's shapes, those of the peer.
struct Case {
    name: &'static str,
    channels: usize,
    side: usize,
    hidden: usize,
    pool: Option<usize>,
    classes: usize,
    batch: usize,
}

impl CaseName {
    const ALL: [CaseName; 4] =
        [CaseName::MnistDense, CaseName::MnistConv, CaseName::CifarConv, CaseName::TinyConv];

    /// The shapes of a case with images.
    fn case(self) -> Option<Case> {
        let (name, channels, side, hidden, pool, classes, batch) = match self {
            CaseName::MnistDense => ("mnist-dense", 1, 28, 87, None, 10, 256),
            CaseName::MnistConv => ("mnist-conv", 1, 28, 16, Some(4), 10, 256),
            CaseName::CifarConv => ("cifar-conv", 3, 32, 48, Some(8), 10, 128),
            CaseName::TinyConv => ("tiny-conv", 3, 64, 64, Some(8), 200, 64),
            CaseName::GraphDblp | CaseName::GraphRanks | CaseName::Machine => return None,
        };
        Some(Case { name, channels, side, hidden, pool, classes, batch })
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.repeats == Some(0) || args.batch == Some(0) {
        return Err(Failure::usage("--repeats and --batch must be at least 1"));
    }
    if let Some(repeats) = args.repeats.filter(|&repeats| repeats > MAX_REPEATS) {
        return Err(Failure::usage(format!("--repeats {repeats} has no end: at most {MAX_REPEATS}")));
    }
    if args.case == Some(CaseName::GraphRanks) {
        return on_ranks(|ranks| graph_ranks::measure(args, ranks));
    }
    let cases = args.case.map_or(CaseName::ALL.to_vec(), |case| vec![case]);
    for case in cases {
        let line = match (case.case(), case) {
            (Some(case), _) => measure(args, &case)?,
            (None, CaseName::Machine) => peaks(args)?,
            (None, _) => graph::measure(args, "graph-dblp", "dblp")?,
        };
        println!("{line}");
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(args: &Args, case: &Case) -> Result<serde_json::Value, Failure> {
    on_device!(AnyDevice::new(args.device, args.threads)?, |device| measure_on(args, case, device))
}

fn measure_on<D: Backend<Elem = f32>>(
    args: &Args,
    case: &Case,
    device: Arc<D>,
) -> Result<serde_json::Value, Failure> {
    let (batch, name) = (args.batch.unwrap_or(case.batch), device.name());
    let mut rng = ChaCha8Rng::seed_from_u64(args.seed);
    let spec = ClassifierSpec {
        height: case.side,
        width: case.side,
        channels: case.channels,
        hidden: case.hidden,
        pool: case.pool,
        injection_norm: false,
        classes: case.classes,
        core: core(args, case)?,
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    };
    check_model(&spec, batch).map_err(Failure::usage)?;
    let mut model = Classifier::new(device.clone(), spec, &mut rng).map_err(Failure::usage)?;
    let images = random_images(case, batch, &mut rng)?;
    let images = device.images(&images, case.classes).map_err(Failure::other)?;
    let all: Vec<u32> = (0..batch as u32).collect();
    let list = device.integers(&all).map_err(Failure::other)?;
    let picks = Picks { list: &list, range: 0..batch };
    let steps = device.steps_per_summary();
    let (mut number, mut trained) = (0, BatchReport::default());
    let train_ms = median_reading(args, steps, |steps| {
        for _ in 0..steps {
            number += 1;
            let batch = Batch { images: &images, picks: picks.clone(), states: None, noise: Noise::NONE };
            model.step(batch, &Adam::new(1e-3, 1e-5, number))?;
        }
        trained = model.finish()?.into();
        Ok(())
    })?;
    let eval_ms = median_reading(args, steps, |steps| {
        for _ in 0..steps {
            model.evaluate_batch(&images, picks.clone())?;
        }
        model.finish_evaluation().map(|_| ())
    })?;
    let gpu_peak_mib = device.peak_memory().map_err(Failure::other)?.map(|bytes| bytes >> 20);
    let mut line = json!({
        "case": case.name,
        "variant": "subdeq",
        "model": args.image_model(),
        "device": name,
        "batch": batch,
        "train_ms": train_ms,
        "eval_ms": eval_ms,
        "forward_iters": trained.forward_iterations,
        "backward_iters": trained.backward_iterations,
        "converged": trained.converged as f64 / trained.samples as f64,
        "peak_mib": gpu_peak_mib.or_else(peak_mib),
    });
    if let Some(mib) = gpu_peak_mib {
        line["gpu_peak_mib"] = mib.into();
    }
    Ok(line)
}

/// The median of the readings of some work, in milliseconds per step; `work(n)` makes n steps and waits for them.
fn median_reading(
    args: &Args,
    steps: usize,
    mut work: impl FnMut(usize) -> subdeq::Result<()>,
) -> Result<f64, Failure> {
    work(WARM_UP).map_err(Failure::other)?;
    let mut reading = || {
        let clock = Instant::now();
        work(steps).map_err(Failure::other)?;
        Ok(clock.elapsed().as_secs_f64())
    };
    let first: f64 = reading()?;
    let count = args.repeats.unwrap_or(READINGS[usize::from(first > SHORT)]);
    let mut seconds = vec![first];
    for _ in 1..count {
        seconds.push(reading()?);
    }
    Ok(median_ms(&mut seconds) / steps as f64)
}

/// What the machine can do at best.
fn peaks(args: &Args) -> Result<serde_json::Value, Failure> {
    let (instructions, threads, peaks) = device::peaks(args.threads)?;
    Ok(json!({
        "case": "machine",
        "instructions": instructions,
        "threads": threads,
        "vector_gflops": peaks.vector_gflops,
        "tile_gflops": peaks.tile_gflops,
        "cache_gb_per_s": peaks.cache_gb,
        "memory_gb_per_s": peaks.memory_gb,
    }))
}

fn core(args: &Args, case: &Case) -> Result<CoreSpec, Failure> {
    let layout = if case.pool.is_some() { Layout::Conv } else { Layout::Dense };
    if !ParametrisedMap::NAMES.contains(&args.image_model()) {
        // Models without a fixed point, or an error that lists all.
        return CoreSpec::named(args.image_model(), layout).map_err(Failure::usage);
    }
    let architecture = ParametrisedMap::named(args.image_model(), layout).map_err(Failure::usage)?;
    let solver: Solver = match args.solver {
        Some(Method::Picard) => Picard.into(),
        Some(Method::Anderson) => Anderson::default().into(),
        Some(Method::PeacemanRachford) => PeacemanRachford::default().into(),
        None if architecture.is_monotone() => PeacemanRachford::default().into(),
        None => Picard.into(),
    };
    let stopping = Stopping::relative(1e-3).max_iterations(30);
    let adjoint = Some(Adjoint::Implicit { solver, stopping });
    Ok(CoreSpec::Equilibrium { architecture, solver: Some(solver), stopping, adjoint })
}

/// Images whose standardised numbers are normal ones (Box and Muller), as far as bytes tell them apart.
fn random_images(case: &Case, batch: usize, rng: &mut ChaCha8Rng) -> Result<Images, Failure> {
    const MEAN: f64 = 127.5;
    const DEVIATION: f64 = 32.0;
    let len = batch * case.channels * case.side * case.side;
    let mut uniform = || (f64::from(rng.next_u32()) + 0.5) / 4_294_967_296.0;
    let mut normal = || (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
    let pixels = (0..len).map(|_| (MEAN + DEVIATION * normal()).round() as u8).collect();
    let labels = (0..batch).map(|_| rng.next_u32() % case.classes as u32).collect();
    let shape = [case.channels, case.side, case.side];
    let constants = [MEAN, DEVIATION].map(|constant| vec![constant / 255.0; case.channels]);
    Images::new(pixels, labels, shape, 255.0, &constants[0], &constants[1]).map_err(Failure::other)
}

fn median_ms(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    1e3 * seconds[seconds.len() / 2]
}

/// The largest resident size of this process, as far as the system tells.
fn peak_mib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / 1024)
}
