//! Times a training step and an evaluation of a classifier on random images, in the shapes of the paper.
//!
//!     cargo run --release -p subdeq --example train_step -- mnist-dense subdeq-tanh 20

use std::time::Instant;

use rand::{Rng, SeedableRng};
use subdeq::map::ParametrisedMap;
use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
use subdeq::{Adam, Adjoint, Cpu, Init, Layout, PeacemanRachford, Solver, Stopping};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let case = arguments.next().unwrap_or("mnist-dense".into());
    let model = arguments.next().unwrap_or("subdeq-tanh".into());
    let repeats: usize = arguments.next().map_or(Ok(20), |n| n.parse())?;
    let (channels, side, hidden, pool, classes, batch) = match case.as_str() {
        "mnist-dense" => (1, 28, 87, None, 10, 256),
        "mnist-conv" => (1, 28, 16, Some(4), 10, 256),
        "cifar-conv" => (3, 32, 48, Some(8), 10, 128),
        "tiny-conv" => (3, 64, 64, Some(8), 200, 64),
        _ => return Err(format!("no case `{case}`: mnist-dense, mnist-conv, cifar-conv or tiny-conv").into()),
    };
    let layout = if pool.is_some() { Layout::Conv } else { Layout::Dense };
    let architecture = ParametrisedMap::named(&model, layout)?;
    let solver: Solver =
        if architecture.is_monotone() { PeacemanRachford::default().into() } else { Solver::Picard };
    let stopping = Stopping::relative(1e-3).max_iterations(30);
    let adjoint = Some(Adjoint::Implicit { solver, stopping });
    let core = CoreSpec::Equilibrium { architecture, solver: Some(solver), stopping, adjoint };
    let spec = ClassifierSpec {
        height: side,
        width: side,
        channels,
        hidden,
        pool,
        injection_norm: false,
        classes,
        core,
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    };
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
    let x: Vec<f32> = (0..batch * channels * side * side).map(|_| rng.random_range(-1.7..1.7)).collect();
    let labels: Vec<u32> = (0..batch).map(|_| rng.random_range(0..classes as u32)).collect();
    let mut model = Classifier::<Cpu<f32>>::new(Cpu::new(0)?.into(), spec, &mut rng)?;
    let mut step = 0;
    let mut train = || {
        step += 1;
        model.train_step(&x, &labels, &Adam::new(1e-3, 1e-5, step))
    };
    for _ in 0..3 {
        train()?;
    }
    let mut report = Default::default();
    let train_ms = median(repeats, || {
        report = train()?;
        Ok(())
    })?;
    let mut evaluated = Default::default();
    let eval_ms = median(repeats, || {
        evaluated = model.evaluate(&x, &labels)?;
        Ok(())
    })?;
    println!("{case}: train {train_ms:.3} ms, {report:?}");
    println!("{case}: evaluation {eval_ms:.3} ms, {evaluated:?}");
    Ok(())
}

/// Median time of a call in milliseconds.
fn median(repeats: usize, mut call: impl FnMut() -> subdeq::Result<()>) -> subdeq::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..repeats.max(1) {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed().as_secs_f64() * 1e3);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}
