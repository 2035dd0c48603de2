//! Trains a classifier around an equilibrium in candle: which of two rings is a point on?
//!
//!     cargo run --release --manifest-path crates/candle/Cargo.toml --example rings

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{AdamW, Optimizer, ParamsAdamW, VarBuilder, VarMap, linear, loss::cross_entropy};
use subdeq::map::SplitSign;
use subdeq::{Activation, Equilibrium, Scope};
use subdeq_candle::EquilibriumLayer;

const HIDDEN: usize = 24;

/// Points and the ring that each is on.
fn rings(count: usize) -> Result<(Tensor, Tensor)> {
    let angle = Tensor::rand(0f32, std::f32::consts::TAU, count, &Device::Cpu)?;
    let labels: Vec<u32> = (0..count as u32).map(|k| k % 2).collect();
    let radii: Vec<f32> = labels.iter().map(|&ring| 1.0 + ring as f32).collect();
    let radius = (Tensor::new(radii, &Device::Cpu)? + Tensor::randn(0f32, 0.15, count, &Device::Cpu)?)?;
    let points = Tensor::stack(&[(&radius * angle.cos()?)?, (&radius * angle.sin()?)?], 1)?;
    Ok((points, Tensor::new(labels, &Device::Cpu)?))
}

fn main() -> Result<()> {
    let variables = VarMap::new();
    let builder = VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu);
    let (injection, head) =
        (linear(2, HIDDEN, builder.pp("injection"))?, linear(HIDDEN, 2, builder.pp("head"))?);
    let layer =
        EquilibriumLayer::new(Equilibrium::dense(HIDDEN).map(SplitSign::new(Activation::Softsign, 1.2)), 0)?;
    let logits = |x: &Tensor| head.forward(&layer.forward(&injection.forward(x)?.relu()?)?);

    let mut all = variables.all_vars();
    all.extend(layer.parameters().iter().cloned());
    let mut optimiser = AdamW::new(all, ParamsAdamW { lr: 0.02, ..ParamsAdamW::default() })?;
    let (points, labels) = rings(512)?;
    for step in 1..=200 {
        let loss = cross_entropy(&logits(&points)?, &labels)?;
        optimiser.backward_step(&loss)?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.4}", loss.to_scalar::<f32>()?);
        }
    }
    let (points, labels) = rings(1000)?;
    let right =
        logits(&points)?.argmax(1)?.eq(&labels)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
    println!("{:.1} % of new points are put on their ring", 100.0 * right);
    println!("{}", layer.certify(Scope::NonnegativeInputs)?);
    assert!(right > 0.95);
    Ok(())
}
