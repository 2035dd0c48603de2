//! How accurately the kernels compute one application of a trained convolutional map: each instruction set and accuracy
//! in `f32` against the direct sum in `f64`, at the fixed point.
//!
//!     cargo run --release -p subdeq --example conv_accuracy -- RUN/model.safetensors SIDE
//!
//! Without arguments: weights as they are initialised, 48 channels on 32 x 32 pixels.

use std::error::Error;

use rand::{Rng, SeedableRng};
use subdeq_engine::cpu::Isa;
use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Extent, Measure, Operator, Padding, SampleReport, ShapedMap, Solver,
    Start, Stopping,
};

const IMAGES: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (mut side, mut channels, mut weights) = (32, 48, Vec::new());
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
    if let Some(path) = arguments.next() {
        side = arguments.next().ok_or("the side of the images is missing")?.parse()?;
        weights = core_weights(&std::fs::read(path)?)?;
        channels = ((weights.len() / 9) as f64).sqrt() as usize;
    } else {
        let bound = 1.0 / (9.0 * channels as f32).sqrt();
        weights.extend((0..9 * channels * channels).map(|_| rng.random_range(-bound..bound)));
    }
    let operator = Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 };
    let map = ShapedMap::new(operator, subdeq_map::Map::single(Activation::Tanh, 1.2)?)?;
    let len = IMAGES * operator.state_len();
    let injection: Vec<f32> = (0..len).map(|_| rng.random_range(-1.0f32..1.0).max(0.0)).collect();
    let size = weights.iter().map(|w| w * w).sum::<f32>().sqrt();
    println!("{channels} channels, {side} x {side}, weights of norm {size:.2}");

    // A state near the fixed point, the same for all.
    let exact = Cpu::<f64>::new(0)?;
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let mut plan = exact.plan(&map, IMAGES)?;
    exact.load(&mut plan, &[&exact.upload(&wide(&weights))?])?;
    let (y, mut z) = (exact.upload(&wide(&injection))?, exact.zeros(len)?);
    let mut reports = vec![SampleReport::default(); IMAGES];
    let stopping = Stopping {
        measure: Measure::Relative,
        tolerance: 1e-9,
        max_iterations: 200,
        extent: Extent::PerSample,
    };
    exact.solve(
        &mut plan,
        IMAGES,
        &y,
        &Solver::Picard,
        &stopping,
        Start::Constant(1.0),
        &mut z,
        &mut reports,
    )?;
    let state: Vec<f32> = z.iter().map(|&z| z as f32).collect();
    let mut image = exact.zeros(len)?;
    exact.apply(&mut plan, IMAGES, &exact.upload(&wide(&state))?, &y, &mut image)?;

    for isa in Isa::available() {
        let cpu = Cpu::<f32>::with_isa(0, isa)?;
        let mut plan = cpu.plan(&map, IMAGES)?;
        cpu.load(&mut plan, &[&cpu.upload(&weights)?])?;
        let y = cpu.upload(&injection)?;
        // One iteration of a solve that has to end at this accuracy.
        for (accuracy, measure, tolerance) in
            [("fine", Measure::Relative, 1e-3), ("full", Measure::Absolute, 0.0)]
        {
            let stopping = Stopping { measure, tolerance, max_iterations: 1, extent: Extent::WholeBatch };
            let mut z = cpu.upload(&state)?;
            cpu.solve(&mut plan, IMAGES, &y, &Solver::Picard, &stopping, Start::Given, &mut z, &mut reports)?;
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let differences = || z.iter().zip(image.iter()).map(|(&z, &exact)| f64::from(z) - exact);
            let largest = differences().fold(0.0f64, |most, d| most.max(d.abs()));
            let relative = norm(&mut differences()) / norm(&mut image.iter().copied());
            println!("{:8} {accuracy}: {relative:.1e} of the state, largest {largest:.1e}", isa.name());
        }
    }
    Ok(())
}

/// The recurrent weights of a trained classifier.
fn core_weights(file: &[u8]) -> Result<Vec<f32>, Box<dyn Error>> {
    let tensors = safetensors::SafeTensors::deserialize(file)?;
    let is_core =
        |name: &str| name.starts_with("core.") && !name.ends_with(".mean") && !name.ends_with(".square");
    let names = tensors.names();
    let name = names.iter().find(|name| is_core(name)).ok_or("no recurrent weights in this file")?;
    let bytes = tensors.tensor(name)?.data().to_vec();
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}
