//! Gradients through candle against differences, and refusals. The maps are smooth in their parameters: where weights are split
//! by their signs, a difference may step over a kink.

use candle_core::{DType, Device, Result, Tensor, Var};
use subdeq::map::{MonDeq, SubDeq};
use subdeq::{Equilibrium, EquilibriumBuilder, Stopping};
use subdeq_candle::EquilibriumLayer;

const H: f32 = 1e-2;

fn precise(builder: EquilibriumBuilder) -> EquilibriumBuilder {
    builder.stopping(Stopping::relative(1e-6).max_iterations(2000))
}

/// Weighted sum of the states: something to differentiate.
fn objective(layer: &EquilibriumLayer, y: &Tensor, v: &Tensor) -> Result<Tensor> {
    (layer.forward(y)? * v)?.sum_all()
}

/// Central differences along a direction, against the gradient.
fn check(layer: &EquilibriumLayer, shape: &[usize], state: &[usize]) -> Result<()> {
    let y = Var::from_tensor(&Tensor::rand(0.2f32, 1.0, shape, &Device::Cpu)?)?;
    let v = Tensor::randn(0f32, 1.0, state, &Device::Cpu)?;
    let gradients = objective(layer, &y, &v)?.backward()?;
    let mut variables = vec![y.clone()];
    variables.extend(layer.parameters().iter().cloned());
    for variable in &variables {
        let gradient = gradients.get(variable).expect("every variable has a gradient");
        assert_eq!(gradient.dims(), variable.dims());
        let value = variable.as_tensor().copy()?;
        let way = Tensor::randn(0f32, 1.0, value.dims(), &Device::Cpu)?;
        let at = |h: f32| -> Result<f32> {
            variable.set(&(&value + (&way * f64::from(h))?)?)?;
            let found = objective(layer, &y, &v)?.to_scalar::<f32>();
            variable.set(&value)?;
            found
        };
        let difference = (at(H)? - at(-H)?) / (2.0 * H);
        let slope = (gradient * &way)?.sum_all()?.to_scalar::<f32>()?;
        assert!((slope - difference).abs() < 0.03 * (1.0 + difference.abs()), "{slope} and {difference}");
    }
    Ok(())
}

#[test]
fn dense_gradients() -> Result<()> {
    let one = precise(Equilibrium::dense(6).map(SubDeq::Tanh));
    check(&EquilibriumLayer::new(one, 1)?, &[3, 6], &[3, 6])?;
    let two = precise(Equilibrium::dense(6).map(MonDeq::Tanh));
    check(&EquilibriumLayer::new(two, 2)?, &[3, 6], &[3, 6])
}

#[test]
fn convolutional_gradients() -> Result<()> {
    let one = precise(Equilibrium::conv(2, 5, 6).map(SubDeq::Tanh));
    check(&EquilibriumLayer::new(one, 3)?, &[2, 2, 5, 6], &[2, 2, 5, 6])?;
    let two = precise(Equilibrium::conv(2, 5, 6).map(MonDeq::Tanh));
    check(&EquilibriumLayer::new(two, 4)?, &[2, 2, 5, 6], &[2, 2, 5, 6])
}

#[test]
fn refusals_and_reports() -> Result<()> {
    let layer = EquilibriumLayer::new(Equilibrium::dense(4), 0)?;
    let cpu = &Device::Cpu;
    assert!(
        layer
            .forward(&Tensor::zeros((2, 5), DType::F32, cpu)?)
            .unwrap_err()
            .to_string()
            .contains("4 are needed")
    );
    assert!(layer.forward(&Tensor::zeros((2, 4), DType::F64, cpu)?).unwrap_err().to_string().contains("f32"));
    let y = Tensor::rand(0f32, 1.0, (4, 3), cpu)?.t()?;
    assert_eq!(layer.forward(&y)?.dims(), [3, 4]);
    assert!(layer.reports().len() == 3 && layer.reports().iter().all(|report| report.converged()));
    Ok(())
}
