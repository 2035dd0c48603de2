//! What one iteration of a convolutional equilibrium costs, by instruction set and accuracy, and what a training step's
//! solve, adjoint and pullback cost.
//!
//!     cargo run --release -p subdeq-engine --example conv_iteration [-- REPEATS]
//!
//! Milliseconds are medians for a whole batch; GFLOP/s count the products of the definition (18 per pixel, input and
//! output), whatever the kernel makes of them, so a kernel that saves products can exceed the peak.

use std::time::Instant;

use subdeq_engine::cpu::Isa;
use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Extent, Measure, Operator, Padding, Result, SampleReport, ShapedMap,
    Solver, Start, Stopping,
};
use subdeq_map::Map as Equation;

struct Case {
    name: &'static str,
    batch: usize,
    channels: usize,
    side: usize,
}

const CASES: [Case; 3] = [
    Case { name: "cifar-conv", batch: 128, channels: 48, side: 32 },
    Case { name: "mnist-conv", batch: 256, channels: 16, side: 28 },
    Case { name: "tiny-conv", batch: 64, channels: 64, side: 64 },
];

/// Numbers in `[-1, 1)` that look random.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The median time of `repeats` runs in milliseconds, and what the last one returned.
fn median<R>(repeats: usize, mut run: impl FnMut() -> Result<R>) -> Result<(f64, R)> {
    let mut last = run()?;
    let mut times = Vec::new();
    for _ in 0..repeats {
        let start = Instant::now();
        last = run()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[repeats / 2], last))
}

fn main() -> Result<()> {
    let repeats = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(21);
    for case in &CASES {
        for isa in Isa::available().filter(|&isa| isa != Isa::PORTABLE) {
            measure(case, isa, repeats)?;
        }
    }
    Ok(())
}

fn measure(case: &Case, isa: Isa, repeats: usize) -> Result<()> {
    let &Case { name, batch, channels, side } = case;
    let operator = Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 };
    let map = ShapedMap::new(operator, Equation::single(Activation::Tanh, 1.2)?)?;
    let cpu = Cpu::<f32>::with_isa(0, isa)?;
    let mut plan = cpu.plan(&map, batch)?;
    // As a convolution layer is initialised: uniform with bound 1 / sqrt(9 channels).
    let bound = 1.0 / (9.0 * channels as f32).sqrt();
    let weights: Vec<f32> = noise(operator.weight_len(), 1).iter().map(|w| w * bound).collect();
    let injection: Vec<f32> = noise(batch * operator.state_len(), 2).iter().map(|y| y.max(0.0)).collect();
    let (weights, y) = (cpu.upload(&weights)?, cpu.upload(&injection)?);
    cpu.load(&mut plan, &[&weights])?;
    let mut z = cpu.zeros(batch * operator.state_len())?;
    let mut reports = vec![SampleReport::default(); batch];
    let gflop = 18.0 * (batch * side * side * channels * channels) as f64 / 1e9;

    let rules = [
        ("mixed, tolerance 1e-3", Measure::Relative, 1e-3, Extent::PerSample, 50),
        ("fine", Measure::Relative, 2e-5, Extent::WholeBatch, 10),
        ("full", Measure::Absolute, 0.0, Extent::PerSample, 10),
    ];
    for (rule, measure, tolerance, extent, max_iterations) in rules {
        let stopping = Stopping { measure, tolerance, max_iterations, extent };
        let (ms, iterations) = median(repeats, || {
            cpu.solve(
                &mut plan,
                batch,
                &y,
                &Solver::Picard,
                &stopping,
                Start::Constant(1.0),
                &mut z,
                &mut reports,
            )?;
            Ok(reports.iter().map(|report| f64::from(report.iterations)).sum::<f64>() / batch as f64)
        })?;
        println!(
            "{name} {:7} {rule:22} {:7.2} ms per iteration, {:5.0} GFLOP/s ({iterations:.1} iterations)",
            isa.name(),
            ms / iterations,
            gflop * iterations / ms * 1e3
        );
    }

    let stopping = Stopping {
        measure: Measure::Relative,
        tolerance: 1e-3,
        max_iterations: 50,
        extent: Extent::PerSample,
    };
    let v = cpu.upload(&noise(batch * operator.state_len(), 3))?;
    let mut g = cpu.zeros(batch * operator.state_len())?;
    let mut gy = cpu.zeros(batch * operator.state_len())?;
    let mut gw = cpu.zeros(operator.weight_len())?;
    let (solve, ()) = median(repeats, || {
        cpu.load(&mut plan, &[&weights])?;
        cpu.solve(
            &mut plan,
            batch,
            &y,
            &Solver::Picard,
            &stopping,
            Start::Constant(1.0),
            &mut z,
            &mut reports,
        )
    })?;
    let (adjoint, ()) = median(repeats, || {
        cpu.adjoint(&mut plan, batch, &z, &y, &v, &Solver::Picard, &stopping, &mut g, &mut reports)
    })?;
    let adjoint_iterations =
        reports.iter().map(|report| f64::from(report.iterations)).sum::<f64>() / batch as f64;
    let (pullback, ()) = median(repeats, || {
        cpu.pullback(&mut plan, batch, &z, &y, &g, None, &mut gy, std::slice::from_mut(&mut gw))
    })?;
    println!(
        "{name} {:7} load + solve {solve:.1} ms, adjoint {adjoint:.1} ms ({adjoint_iterations:.1} iterations), \
         pullback {pullback:.1} ms",
        isa.name()
    );
    Ok(())
}
