//! Neural ODE layers against closed forms and finite differences.

use crate::common::{cpu, random, rng};
use subdeq::{Device, Init, NeuralOde, OdeActivation, Operator, Padding};

const OPERATORS: [Operator; 2] = [
    Operator::Dense { n: 4 },
    Operator::Conv { channels: 2, height: 3, width: 3, padding: Padding::Zero, kernel: 3 },
];

/// A positive state with `W = a I` and ReLU grows like `e^(a t)`.
#[test]
fn exponential_growth() {
    let device = cpu::<f64>();
    let mut layer =
        NeuralOde::new(device.clone(), OPERATORS[0], OdeActivation::Relu, 1e-10, Init::Release, &mut rng(0))
            .unwrap();
    let weight: Vec<f64> = (0..16).map(|i| if i % 5 == 0 { 0.7 } else { 0.0 }).collect();
    device.write(&mut layer.parameter_mut().value, 0, &weight).unwrap();
    let y = device.upload(&[1.0, 2.0, 0.5, 3.0]).unwrap();
    layer.forward(1, &y).unwrap();
    let mut z = [0.0; 4];
    device.read(layer.states().unwrap(), 0, &mut z).unwrap();
    for (z, y) in z.iter().zip([1.0, 2.0, 0.5, 3.0]) {
        assert!((z - y * 0.7f64.exp()).abs() < 1e-8, "{z}");
    }
    assert!(layer.reports().unwrap().iter().all(|report| report.accepted < 60), "{:?}", layer.reports());
}

#[test]
fn gradients_equal_finite_differences() {
    for operator in OPERATORS {
        for activation in [OdeActivation::Relu, OdeActivation::Tanh] {
            let device = cpu::<f64>();
            let mut layer =
                NeuralOde::new(device.clone(), operator, activation, 1e-10, Init::Release, &mut rng(1))
                    .unwrap();
            let len = 2 * operator.state_len();
            let y: Vec<f64> = random(len, 2).iter().map(|y| y.abs() + 0.1).collect();
            let v = random(len, 3);
            let mut weight = vec![0.0; operator.weight_len()];
            device.read(&layer.parameter().value, 0, &mut weight).unwrap();
            let mut objective = |y: &[f64], w: &[f64]| -> f64 {
                device.write(&mut layer.parameter_mut().value, 0, w).unwrap();
                layer.forward(2, &device.upload(y).unwrap()).unwrap();
                let mut z = vec![0.0; len];
                device.read(layer.states().unwrap(), 0, &mut z).unwrap();
                z.iter().zip(&v).map(|(z, v)| z * v).sum()
            };
            let h = 1e-5;
            let difference = |at: &[f64], i: usize, f: &mut dyn FnMut(&[f64]) -> f64| {
                let mut x = at.to_vec();
                x[i] = at[i] + h;
                let above = f(&x);
                x[i] = at[i] - h;
                (above - f(&x)) / (2.0 * h)
            };
            let by_y: Vec<f64> =
                (0..len).map(|i| difference(&y, i, &mut |y| objective(y, &weight))).collect();
            let by_w: Vec<f64> =
                (0..weight.len()).map(|i| difference(&weight, i, &mut |w| objective(&y, w))).collect();
            objective(&y, &weight);
            let mut gy = device.zeros(len).unwrap();
            layer.backward(2, &device.upload(&v).unwrap(), &mut gy).unwrap();
            let (mut found_y, mut found_w) = (vec![0.0; len], vec![0.0; weight.len()]);
            device.read(&gy, 0, &mut found_y).unwrap();
            device.read(&layer.parameter().gradient, 0, &mut found_w).unwrap();
            // ReLU's kinks cost the method its order, so the steps differ a little from one evaluation to the next.
            for (found, expected) in found_y.iter().chain(&found_w).zip(by_y.iter().chain(&by_w)) {
                assert!((found - expected).abs() < 1e-5, "{operator:?} {activation:?}: {found} {expected}");
            }
        }
    }
}

#[test]
fn exploding_weights_are_an_error() {
    let device = cpu::<f32>();
    let mut layer =
        NeuralOde::new(device.clone(), OPERATORS[0], OdeActivation::Relu, 1e-4, Init::Release, &mut rng(0))
            .unwrap();
    device.write(&mut layer.parameter_mut().value, 0, &[1e6; 16]).unwrap();
    assert!(layer.forward(1, &device.upload(&[1.0; 4]).unwrap()).is_err());
    assert!(
        NeuralOde::<subdeq::Cpu<f32>>::new(
            device,
            OPERATORS[0],
            OdeActivation::Relu,
            0.0,
            Init::Release,
            &mut rng(0)
        )
        .is_err()
    );
}
