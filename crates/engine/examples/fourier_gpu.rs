//! On a GPU: time of the resolvents and of one Peaceman-Rachford iteration of a circular convolution, forward and adjoint, and of a
//! neural differential equation on the same images: `cargo run --release --example fourier_gpu [batch]`.

use std::time::Instant;

use subdeq_engine::{
    Activation, Cuda, Device, Equilibria, Extent, Integrate, Measure, OdeReport, OdeTolerance, Operator,
    Padding, Result, ShapedMap, Solver, Start, Stopping,
};
use subdeq_map::Map as Equation;

const REPEATS: usize = 7;
/// An iteration's time is the difference of two solves of so many iterations.
const FEW: usize = 4;
const MANY: usize = 12;

fn main() -> Result<()> {
    let batch = std::env::args().nth(1).map_or(128, |a| a.parse().expect("a number"));
    let gpu = Cuda::new(0)?;
    for (name, channels, side) in [("cifar", 48, 32), ("mnist", 32, 28), ("tiny", 64, 64), ("digits", 16, 8)]
    {
        for activation in [Activation::Relu, Activation::Tanh] {
            splitting(&gpu, name, channels, side, batch, activation)?;
        }
        equation(&gpu, name, channels, side, batch)?;
    }
    Ok(())
}

/// Numbers in (-1, 1) that look random.
fn numbers(len: usize, scale: f32) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| scale * next()).collect()
}

/// Uniform in +-1/sqrt(fan in), as layers start, and moved to the monotone side.
fn weights(channels: usize) -> Vec<f32> {
    let mut weights = numbers(9 * channels * channels, 1.0 / (9.0 * channels as f32).sqrt());
    for o in 0..channels {
        weights[(o * channels + o) * 9 + 4] -= 0.2;
    }
    weights
}

fn images(channels: usize, side: usize) -> Operator {
    Operator::Conv { channels, height: side, width: side, padding: Padding::Circular, kernel: 3 }
}

/// The median time of some runs, in microseconds; reading a number waits for the GPU.
fn timed(gpu: &Cuda, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let flag = gpu.zeros(1)?;
    let mut times = Vec::new();
    for _ in 0..=REPEATS {
        gpu.read(&flag, 0, &mut [0.0])?;
        let begin = Instant::now();
        run()?;
        gpu.read(&flag, 0, &mut [0.0])?;
        times.push(1e6 * begin.elapsed().as_secs_f64());
    }
    // The first allocates.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[REPEATS / 2])
}

fn splitting(
    gpu: &Cuda,
    name: &str,
    channels: usize,
    side: usize,
    batch: usize,
    activation: Activation,
) -> Result<()> {
    let operator = images(channels, side);
    let map = ShapedMap::new(operator, Equation::single(activation, 0.0)?.inner()?)?;
    let w = gpu.upload(&weights(channels))?;
    let len = batch * operator.state_len();
    let mut plan = gpu.plan(&map, batch)?;
    let y = gpu.upload(&numbers(len, 1.0))?;
    let (mut z, mut g) = (gpu.zeros(len)?, gpu.zeros(len)?);
    let mut reports = gpu.reports(batch)?;
    let solver = Solver::PeacemanRachford { step: 1.0 };
    let rule = |tolerance, max_iterations| Stopping {
        measure: Measure::Relative,
        tolerance,
        max_iterations,
        extent: Extent::PerSample,
    };
    let start = Start::Constant(0.0);
    gpu.load(&mut plan, &[&w])?;
    let usual = timed(gpu, || {
        gpu.solve(&mut plan, batch, &y, &solver, &rule(1e-3, 100), start, &mut z, &mut reports)
    })?;
    let mut of = |few: bool, adjoint: bool| {
        // Nothing ends so early at this tolerance.
        let rule = rule(1e-6, if few { FEW } else { MANY });
        timed(gpu, || {
            if adjoint {
                gpu.adjoint(&mut plan, batch, &y, &y, &y, &solver, &rule, &mut g, &mut reports)
            } else {
                gpu.solve(&mut plan, batch, &y, &solver, &rule, start, &mut z, &mut reports)
            }
        })
    };
    let each = (MANY - FEW) as f64;
    let forward = (of(false, false)? - of(true, false)?) / each;
    let adjoint = (of(false, true)? - of(true, true)?) / each;
    let again = timed(gpu, || {
        gpu.load(&mut plan, &[&w])?;
        gpu.solve(&mut plan, batch, &y, &solver, &rule(1e-3, 100), start, &mut z, &mut reports)
    })?;
    println!(
        "{name}: {channels} x {side} x {side}, batch {batch}, {activation}: iteration {forward:.1} us forward, {adjoint:.1} us \
         adjoint; solve to 1e-3 {usual:.0} us, with new weights {again:.0} us (medians of {REPEATS})"
    );
    Ok(())
}

fn equation(gpu: &Cuda, name: &str, channels: usize, side: usize, batch: usize) -> Result<()> {
    let operator = images(channels, side);
    let len = batch * operator.state_len();
    let mut plan = gpu.ode_plan(operator, Activation::Tanh, batch)?;
    gpu.ode_load(&mut plan, &gpu.upload(&weights(channels))?)?;
    let start = gpu.upload(&numbers(len, 1.0))?;
    let (mut end, mut gradient) = (gpu.zeros(len)?, gpu.zeros(len)?);
    let mut gw = gpu.zeros(operator.weight_len())?;
    let mut reports = gpu.ode_reports(batch)?;
    let tolerance = OdeTolerance { relative: 1e-3, absolute: 1e-3, max_steps: 1000 };
    let forward = timed(gpu, || gpu.integrate(&mut plan, batch, &start, &tolerance, &mut end, &mut reports))?;
    let backward = timed(gpu, || gpu.integrate_adjoint(&mut plan, batch, &end, &mut gradient, &mut gw))?;
    let mut host = vec![OdeReport::default(); batch];
    gpu.read_ode_reports(&reports, &mut host)?;
    let steps = host.iter().map(|r| r.accepted).max().unwrap_or(0);
    println!(
        "{name}: neural ODE, batch {batch}: {forward:.0} us forward ({steps} steps), {backward:.0} us backward"
    );
    Ok(())
}
