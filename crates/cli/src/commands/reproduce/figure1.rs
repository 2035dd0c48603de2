//! Figure 1: how many iterations SubDEQ (plain fixed-point iteration) and MonDEQ (Peaceman-Rachford) need, dense and
//! convolutional, on the paper's random inputs.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::map::{MonDeq, ParametrisedMap, SubDeq};
use subdeq::{Backend, Equilibrium, EquilibriumBuilder, Init, PNorm, Picard, Stopping};

use crate::chart::{Axis, Figure, Panel, Scale, Series, Stroke, render_png};
use crate::device::{AnyDevice, DeviceName, on_device};
use crate::failure::Failure;
use crate::options::Telling;
use crate::waiting::Waiting;

/// Samples, as in the paper.
const BATCH: usize = 128;
/// The dense layer: inputs of 400 numbers, states of 150.
const DENSE: (usize, usize) = (400, 150);
/// The convolutional layer: 40 channels on 28 x 28 images of one channel.
const CONV: (usize, usize) = (40, 28);
/// Where the curves end: f32 reaches no further.
const FLOOR: f64 = 2e-7;
/// The residual that the printed counts refer to.
const REACHED: f64 = 1e-6;
const MAX_ITERATIONS: usize = 100;

/// One curve: `residuals[k]` is `||z_(k+1) - z_k|| / ||z_(k+1)||` over the whole batch.
struct Curve {
    model: &'static str,
    residuals: Vec<f64>,
}

/// Writes `figure1.svg`, `figure1.png` and `figure1.csv` into `folder` and prints the iteration counts.
pub fn run(folder: &Path, seed: u64, threads: usize) -> Result<(), Failure> {
    let device = AnyDevice::new(DeviceName::Cpu, threads)?;
    let waiting = Waiting::begin(Telling::usual(false), "solving ten layers, up to 100 iterations each");
    let (dense, conv) = on_device!(device, |device| {
        (curves(&device, seed, Kind::Dense)?, curves(&device, seed, Kind::Conv)?)
    });
    let panel = |title: &str, curves: &[Curve]| Panel {
        title: title.to_owned(),
        x: Axis::whole("iteration"),
        y: Axis::new("relative residual", Scale::Log),
        series: curves.iter().map(series).collect(),
    };
    let figure = Figure {
        panels: vec![panel("dense, 400 to 150", &dense), panel("convolutional, 40 channels, 28 x 28", &conv)],
    };
    let svg = figure.to_svg();
    let png = render_png(&svg, 2.0).map_err(Failure::other)?;
    fs::create_dir_all(folder).map_err(|why| unwritable(folder, &why))?;
    for (name, bytes) in [
        ("figure1.svg", svg.into_bytes()),
        ("figure1.png", png),
        ("figure1.csv", csv(&dense, &conv).into_bytes()),
    ] {
        let path = folder.join(name);
        fs::write(&path, bytes).map_err(|why| unwritable(&path, &why))?;
    }
    drop(waiting);
    println!("iterations until the relative residual of the batch is below {REACHED:e}, seed {seed}:");
    println!("{:<32} {:>7} {:>14}", "model", "dense", "convolutional");
    for (dense, conv) in dense.iter().zip(&conv) {
        println!("{:<32} {:>7} {:>14}", dense.model, count(dense), count(conv));
    }
    println!("written: {0}/figure1.svg, {0}/figure1.png, {0}/figure1.csv", folder.display());
    Ok(())
}

fn unwritable(path: &Path, why: &std::io::Error) -> Failure {
    Failure::other(format!("{} cannot be written: {why}", path.display()))
}

#[derive(Clone, Copy)]
enum Kind {
    Dense,
    Conv,
}

impl Kind {
    fn builder(self) -> EquilibriumBuilder {
        match self {
            Kind::Dense => Equilibrium::dense(DENSE.1),
            Kind::Conv => Equilibrium::conv(CONV.0, CONV.1, CONV.1),
        }
    }

    /// `U x + b` for inputs that are uniform on [0, 1), samples in the engine's order.
    fn injection(self, rng: &mut ChaCha8Rng) -> Vec<f32> {
        match self {
            Kind::Dense => {
                let (inputs, units) = DENSE;
                let x: Vec<f32> = uniform(BATCH * inputs, rng);
                let u: Vec<f32> = Init::Release.draw(units * inputs, inputs, rng);
                let b: Vec<f32> = Init::Release.draw(units, inputs, rng);
                let unit = |x: &[f32], k: usize| b[k] + dot(&u[k * inputs..][..inputs], x);
                x.chunks_exact(inputs).flat_map(|x| (0..units).map(move |k| unit(x, k))).collect()
            }
            Kind::Conv => {
                let (channels, side) = CONV;
                let x: Vec<f32> = uniform(BATCH * side * side, rng);
                let u: Vec<f32> = Init::Release.draw(channels * 9, 9, rng);
                let b: Vec<f32> = Init::Release.draw(channels, 9, rng);
                let mut y = Vec::with_capacity(BATCH * side * side * channels);
                for image in x.chunks_exact(side * side) {
                    for pixel in 0..side * side {
                        let patch = patch(image, side, pixel);
                        y.extend((0..channels).map(|c| b[c] + dot(&u[c * 9..][..9], &patch)));
                    }
                }
                y
            }
        }
    }
}

fn uniform(len: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..len).map(|_| (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The 3 x 3 pixels around `pixel`, zero beyond the border.
fn patch(image: &[f32], side: usize, pixel: usize) -> [f32; 9] {
    let (row, column) = (pixel / side, pixel % side);
    std::array::from_fn(|tap| {
        let (r, c) = ((row + tap / 3).wrapping_sub(1), (column + tap % 3).wrapping_sub(1));
        if r < side && c < side { image[r * side + c] } else { 0.0 }
    })
}

fn curves<D: Backend<Elem = f32>>(device: &Arc<D>, seed: u64, kind: Kind) -> Result<Vec<Curve>, Failure> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let affine = kind.injection(&mut rng);
    let positive: Vec<f32> = affine.iter().map(|y| y.max(0.0)).collect();
    let mut curves = Vec::new();
    for (model, p) in [
        ("SubDEQ normalised tanh, p = 1", PNorm::Finite(1.0)),
        ("SubDEQ normalised tanh, p = 10", PNorm::Finite(10.0)),
        ("SubDEQ normalised tanh, p = inf", PNorm::Inf),
    ] {
        let map = SubDeq::NormalizedTanh(p).try_into().map_err(Failure::other)?;
        let residuals = picard(device, kind, map, &positive, &mut rng)?;
        curves.push(Curve { model, residuals });
    }
    for (model, map, y) in [("MonDEQ ReLU", MonDeq::Relu, &affine), ("MonDEQ tanh", MonDeq::Tanh, &positive)]
    {
        let map = map.try_into().map_err(Failure::other)?;
        let residuals = peaceman_rachford(device, kind, map, y, &mut rng)?;
        curves.push(Curve { model, residuals });
    }
    Ok(curves)
}

/// `z <- F(z)` from `z = 1`.
fn picard<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    kind: Kind,
    map: ParametrisedMap,
    y: &[f32],
    rng: &mut ChaCha8Rng,
) -> Result<Vec<f64>, Failure> {
    let builder = kind.builder().map(map).solver(Picard);
    let mut layer = builder.build_on(Arc::clone(device), rng).map_err(Failure::other)?;
    let mut z = vec![1.0; y.len()];
    let mut residuals = Vec::new();
    while residuals.len() < MAX_ITERATIONS && residuals.last().is_none_or(|&r| r > FLOOR) {
        let next = layer.apply(y, &z).map_err(Failure::other)?;
        residuals.push(relative_step(&z, &next));
        z = next;
    }
    Ok(residuals)
}

/// The states after 1, 2, 3, .. iterations. A splitting carries more than `z` from one iteration to the next, so each is
/// solved from the start.
fn peaceman_rachford<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    kind: Kind,
    map: ParametrisedMap,
    y: &[f32],
    rng: &mut ChaCha8Rng,
) -> Result<Vec<f64>, Failure> {
    let weights_of = rng.clone();
    let mut z = vec![0.0; y.len()];
    let mut residuals = Vec::new();
    while residuals.len() < MAX_ITERATIONS && residuals.last().is_none_or(|&r| r > FLOOR) {
        let exactly = Stopping::relative(0.0).max_iterations(residuals.len() + 1);
        let builder = kind.builder().map(map.clone()).stopping(exactly);
        *rng = weights_of.clone();
        let mut layer = builder.build_on(Arc::clone(device), rng).map_err(Failure::other)?;
        let next = layer.solve(y).map_err(Failure::other)?.z;
        residuals.push(relative_step(&z, &next));
        z = next;
    }
    Ok(residuals)
}

/// `||b - a|| / ||b||` over the whole batch.
fn relative_step(a: &[f32], b: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let step = squares(&mut a.iter().zip(b).map(|(&a, &b)| f64::from(b) - f64::from(a)));
    step / squares(&mut b.iter().map(|&b| f64::from(b)))
}

fn series(curve: &Curve) -> Series {
    Series {
        name: curve.model.to_owned(),
        points: curve.residuals.iter().enumerate().map(|(k, &r)| ((k + 1) as f64, r)).collect(),
        stroke: if curve.model.starts_with("MonDEQ") { Stroke::Dashed } else { Stroke::Solid },
    }
}

fn count(curve: &Curve) -> String {
    match curve.residuals.iter().position(|&r| r <= REACHED) {
        Some(k) => (k + 1).to_string(),
        None => format!("> {}", curve.residuals.len()),
    }
}

fn csv(dense: &[Curve], conv: &[Curve]) -> String {
    let mut out = String::from("layer,model,iteration,relative_residual\n");
    for (layer, curves) in [("dense", dense), ("convolutional", conv)] {
        for curve in curves {
            for (k, residual) in curve.residuals.iter().enumerate() {
                let _ = writeln!(out, "{layer},\"{}\",{},{residual:e}", curve.model, k + 1);
            }
        }
    }
    out
}
