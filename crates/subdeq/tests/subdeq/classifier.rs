//! The classifier: its gradients as a whole, learning, and the state that a checkpoint needs.

use crate::common::{cpu, random, rng};
use subdeq::map::Architecture;
use subdeq::model::{Classifier, ClassifierSpec, Core};
use subdeq::{Cpu, Init, Layout, OdeActivation, Stopping};
use subdeq_engine::network::Adam;

fn spec(layout: Layout, core: Core) -> ClassifierSpec {
    let pool = (layout == Layout::Conv).then_some(2);
    ClassifierSpec {
        height: 4,
        width: 4,
        channels: 2,
        hidden: 5,
        pool,
        classes: 3,
        core,
        init: Init::Release,
    }
}

fn equilibrium(name: &str, layout: Layout, tolerance: f64) -> Core {
    let adjoint_stopping = Stopping::absolute(tolerance).max_iterations(20_000);
    let architecture = Architecture::named(name, layout).unwrap();
    let solver = if architecture.is_monotone() {
        subdeq::PeacemanRachford::default().into()
    } else {
        subdeq::Solver::Picard
    };
    Core::Equilibrium {
        architecture,
        solver: Some(solver),
        stopping: Stopping::absolute(tolerance).max_iterations(20_000),
        adjoint: Some(subdeq::Adjoint::Implicit { solver, stopping: adjoint_stopping }),
    }
}

fn cores(layout: Layout, tolerance: f64) -> Vec<Core> {
    let odes = [OdeActivation::Relu, OdeActivation::Tanh];
    let odes = odes.map(|activation| Core::NeuralOde { activation, tolerance: tolerance.max(1e-8) });
    let names = Architecture::NAMES.iter();
    names.map(|name| equilibrium(name, layout, tolerance)).chain([Core::ExplicitTanh]).chain(odes).collect()
}

/// The derivative of the loss along a random direction in all parameters at once, against the gradients: one step of
/// plain gradient descent would need no more.
#[test]
fn the_loss_moves_as_the_gradients_say() {
    for layout in [Layout::Dense, Layout::Conv] {
        for core in cores(layout, 1e-13) {
            let what = format!("{layout:?} {core:?}");
            let mut model = Classifier::<f64, Cpu<f64>>::new(cpu(), spec(layout, core), &mut rng(1)).unwrap();
            let x = random(6 * 32, 2);
            let labels = [0, 1, 2, 0, 1, 2];
            let before = model.state().unwrap();
            // Adam's first step without decay moves every parameter by rate * sign(g) (up to epsilon), so its length
            // along the gradient is rate * sum |g|; the mean after it is 0.1 g.
            let rate = 1e-6;
            let loss = model.train_step(&x, &labels, &Adam::new(rate, 0.0, 1)).unwrap().loss;
            let after = model.state().unwrap();
            let mut predicted = 0.0;
            for ((name, old), (_, new)) in before.iter().zip(&after) {
                if name.ends_with(".mean") || name.ends_with(".square") || name.starts_with("norm.running") {
                    continue;
                }
                let (_, mean) = after.iter().find(|(n, _)| *n == format!("{name}.mean")).unwrap();
                predicted += old.iter().zip(new).zip(mean).map(|((o, n), m)| (n - o) * m / 0.1).sum::<f64>();
            }
            let moved = model.gradients(&x, &labels).unwrap().loss - loss;
            assert!(predicted < 0.0, "{what}");
            assert!(
                (moved / predicted - 1.0).abs() < 2e-2,
                "{what}: moved {moved:e}, the gradients say {predicted:e}"
            );
        }
    }
}

#[test]
fn every_model_learns_and_its_state_can_be_put_back() {
    for layout in [Layout::Dense, Layout::Conv] {
        for core in cores(layout, 1e-4) {
            let what = format!("{layout:?} {core:?}");
            let spec = spec(layout, core);
            let mut model = Classifier::<f32, Cpu<f32>>::new(cpu(), spec.clone(), &mut rng(1)).unwrap();
            let x: Vec<f32> = random(30 * 32, 2).iter().map(|&x| x as f32).collect();
            let labels: Vec<u32> = (0..30).map(|i| i % 3).collect();
            let first = model.train_step(&x, &labels, &Adam::new(0.02, 0.0, 1)).unwrap();
            let mut last = first;
            for step in 2..=60 {
                last = model.train_step(&x, &labels, &Adam::new(0.02, 0.0, step)).unwrap();
            }
            assert!(last.loss < 0.5 * first.loss, "{what}: {first:?} {last:?}");
            assert_eq!(last.converged, 30, "{what}");
            // A second model with the first one's state continues with the same bits.
            let mut copy = Classifier::<f32, Cpu<f32>>::new(cpu(), spec, &mut rng(9)).unwrap();
            copy.set_state(&model.state().unwrap()).unwrap();
            if let (Some(from), Some(to)) = (model.equilibrium().map(|l| l.step()), copy.equilibrium()) {
                to.set_step(from);
            }
            let adam = Adam::new(0.02, 0.0, 61);
            let (a, b) =
                (model.train_step(&x, &labels, &adam).unwrap(), copy.train_step(&x, &labels, &adam).unwrap());
            assert_eq!(a, b, "{what}");
            assert_eq!(model.state().unwrap(), copy.state().unwrap(), "{what}");
            let evaluated = model.evaluate(&x[..7 * 32], &labels[..7]).unwrap();
            assert_eq!(evaluated.samples, 7);
            let logits = model.logits(&x[..32]).unwrap();
            assert_eq!(logits.len(), 3, "{what}");
        }
    }
}

#[test]
fn bad_batches_are_refused() {
    let core = equilibrium("split-sign", Layout::Dense, 1e-4);
    let mut model = Classifier::<f32, Cpu<f32>>::new(cpu(), spec(Layout::Dense, core), &mut rng(1)).unwrap();
    let adam = Adam::new(0.1, 0.0, 1);
    let mut error = |x: &[f32], labels: &[u32]| model.train_step(x, labels, &adam).unwrap_err().to_string();
    assert!(error(&[0.0; 33], &[0]).contains("33 numbers are not a whole number of images of 32"));
    assert!(error(&[], &[]).contains("0 numbers"));
    assert!(error(&[0.0; 64], &[0]).contains("1 labels for 2 images"));
    assert!(error(&[0.0; 64], &[0, 3]).contains("sample 1 is 3, but there are 3 classes"));
    let mut x = [0.0; 64];
    x[40] = f32::NAN;
    assert!(error(&x, &[0, 1]).contains("number 8 of image 1 is NaN"));
}
