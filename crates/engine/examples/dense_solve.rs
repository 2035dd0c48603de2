//! Times the dense solve, adjoint and pullback of a training step: `cargo run --release -p subdeq-engine --example dense_solve`.
//! Arguments: batch, width, threads, tolerance (256, 87, 2, 1e-3).

use std::time::Instant;

use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Extent, Measure, Operator, Result, SampleReport, ShapedMap, Solver,
    Start, Stopping,
};
use subdeq_map::Map as Equation;

const REPEATS: usize = 201;

/// Median and best of the repeats, in microseconds, as text.
fn time(mut work: impl FnMut() -> Result<()>) -> Result<String> {
    let mut times = Vec::with_capacity(REPEATS);
    for _ in 0..REPEATS {
        let start = Instant::now();
        work()?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(format!("{:.0} (best {:.0})", times[REPEATS / 2], times[0]))
}

fn main() -> Result<()> {
    let arguments: Vec<f64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let argument = |index: usize, usual: f64| arguments.get(index).copied().unwrap_or(usual);
    let (batch, n, threads) =
        (argument(0, 256.0) as usize, argument(1, 87.0) as usize, argument(2, 2.0) as usize);
    let cpu = Cpu::<f32>::new(threads)?;
    let map = ShapedMap::new(Operator::Dense { n }, Equation::single(Activation::Tanh, 1.2)?)?;
    // PyTorch's default initialisation, as the paper's code has it: uniform in +-1/sqrt(n).
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    let w: Vec<f32> = (0..n * n).map(|_| uniform() / (n as f32).sqrt()).collect();
    let y: Vec<f32> = (0..batch * n).map(|_| uniform().max(0.0)).collect();
    let (w, y) = (cpu.upload(&w)?, cpu.upload(&y)?);
    let v = y.clone();
    let (mut z, mut g, mut gy, mut gw) =
        (cpu.zeros(batch * n)?, cpu.zeros(batch * n)?, cpu.zeros(batch * n)?, cpu.zeros(n * n)?);
    let mut plan = cpu.plan(&map, batch)?;
    let mut reports = vec![SampleReport::default(); batch];
    let stopping = Stopping {
        measure: Measure::Relative,
        tolerance: argument(3, 1e-3),
        max_iterations: 100,
        extent: Extent::PerSample,
    };
    let mean = |reports: &[SampleReport]| {
        reports.iter().map(|r| f64::from(r.iterations)).sum::<f64>() / batch as f64
    };
    println!("{batch} x {n}, {threads} threads, {}, medians of {REPEATS} in microseconds", cpu.isa().name());
    let load = time(|| cpu.load(&mut plan, &[&w]))?;
    println!("load {load}");
    for (name, solver) in
        [("picard", Solver::Picard), ("anderson", Solver::Anderson { window: 5, ridge: 1e-4, mixing: 1.0 })]
    {
        let forward = time(|| {
            cpu.solve(&mut plan, batch, &y, &solver, &stopping, Start::Constant(1.0), &mut z, &mut reports)
        })?;
        let iterations = mean(&reports);
        let backward =
            time(|| cpu.adjoint(&mut plan, batch, &z, &y, &v, &solver, &stopping, &mut g, &mut reports))?;
        println!(
            "{name}: solve {forward} ({iterations:.1} iterations), adjoint {backward} ({:.1} iterations)",
            mean(&reports)
        );
    }
    let pullback =
        time(|| cpu.pullback(&mut plan, batch, &z, &y, &g, None, &mut gy, std::slice::from_mut(&mut gw)))?;
    println!("pullback {pullback}");
    Ok(())
}
