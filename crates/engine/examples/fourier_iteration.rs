//! Time of one Peaceman-Rachford iteration of a circular convolution, forward and adjoint, per image and core:
//! `cargo run --release --example fourier_iteration [batch [threads]]`.

use std::time::Instant;

use subdeq_engine::Spectra;
use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Extent, Measure, Operator, Padding, Result, SampleReport, ShapedMap,
    Solver, Start, Stopping,
};
use subdeq_map::Map as Equation;

const REPEATS: usize = 7;
/// Frequencies that the factor is computed at.
const FREQUENCIES: usize = 24;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let batch = arguments.next().unwrap_or(128);
    let threads = arguments.next().unwrap_or(2);
    for (name, channels, side) in [("cifar", 48, 32), ("mnist", 32, 28), ("tiny", 64, 64)] {
        measure(name, channels, side, batch, threads)?;
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

fn measure(name: &str, channels: usize, side: usize, batch: usize, threads: usize) -> Result<()> {
    let operator =
        Operator::Conv { channels, height: side, width: side, padding: Padding::Circular, kernel: 3 };
    let map = ShapedMap::new(operator, Equation::single(Activation::Relu, 0.0)?.inner()?)?;
    // Uniform in +-1/sqrt(fan in), as layers start, and moved to the monotone side.
    let mut weights = numbers(9 * channels * channels, 1.0 / (9.0 * channels as f32).sqrt());
    for o in 0..channels {
        weights[(o * channels + o) * 9 + 4] -= 0.2;
    }
    let cpu = Cpu::<f32>::new(threads)?;
    let weights = cpu.upload(&weights)?;
    let begin = Instant::now();
    let k = cpu.splitting_rate(&operator, &weights, 1.0, FREQUENCIES)?;
    println!(
        "{name}: rate at step 1 over {FREQUENCIES} frequencies: {k:.4}, computed in {:.1} ms",
        1e3 * begin.elapsed().as_secs_f64()
    );

    let len = batch * operator.state_len();
    let mut plan = cpu.plan(&map, batch)?;
    let y = cpu.upload(&numbers(len, 1.0))?;
    let (mut z, mut g) = (cpu.zeros(len)?, cpu.zeros(len)?);
    let mut reports = vec![SampleReport::default(); batch];
    let solver = Solver::PeacemanRachford { step: 1.0 };
    let stopping = Stopping {
        measure: Measure::Relative,
        tolerance: 1e-3,
        max_iterations: 100,
        extent: Extent::PerSample,
    };
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..REPEATS {
        cpu.load(&mut plan, &[&weights])?;
        let one = Stopping { max_iterations: 1, ..stopping };
        let begin = Instant::now();
        cpu.solve(&mut plan, 1, &y, &solver, &one, Start::Constant(0.0), &mut z, &mut reports)?;
        times[0].push(1e3 * begin.elapsed().as_secs_f64());

        let work = |reports: &[SampleReport]| {
            reports.iter().map(|r| f64::from(r.iterations)).sum::<f64>() / threads as f64
        };
        let begin = Instant::now();
        cpu.solve(&mut plan, batch, &y, &solver, &stopping, Start::Constant(0.0), &mut z, &mut reports)?;
        times[1].push(1e6 * begin.elapsed().as_secs_f64() / work(&reports));
        let forward = work(&reports) * threads as f64 / batch as f64;
        let begin = Instant::now();
        cpu.adjoint(&mut plan, batch, &z, &y, &y, &solver, &stopping, &mut g, &mut reports)?;
        times[2].push(1e6 * begin.elapsed().as_secs_f64() / work(&reports));
        let adjoint = work(&reports) * threads as f64 / batch as f64;
        if times[0].len() == REPEATS {
            println!("{name}: {forward:.1} iterations forward, {adjoint:.1} adjoint");
        }
    }
    let [load, forward, adjoint] = times.map(|mut t| {
        t.sort_by(f64::total_cmp);
        t[t.len() / 2]
    });
    println!(
        "{name}: {channels} x {side} x {side}, batch {batch}, {threads} threads, {}: resolvent {load:.1} ms; per image, core and \
         iteration {forward:.0} us forward, {adjoint:.0} us adjoint (medians of {REPEATS}, everything of a solve included)",
        cpu.isa().name()
    );
    Ok(())
}
