//! The classifier: its gradients as a whole, learning, and the state that a checkpoint needs.

use crate::common::{cpu, random, rng};
use subdeq::map::ParametrisedMap;
use subdeq::model::{BlockSpec, Classifier, ClassifierSpec, CoreSpec, Lipschitz};
use subdeq::{Adam, Cpu, Init, Layout, OdeActivation, Stopping};

fn spec(layout: Layout, core: CoreSpec) -> ClassifierSpec {
    let pool = (layout == Layout::Conv).then_some(2);
    ClassifierSpec {
        height: 4,
        width: 4,
        channels: 2,
        hidden: 5,
        pool,
        injection_norm: false,
        classes: 3,
        core,
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    }
}

fn equilibrium(name: &str, layout: Layout, tolerance: f64) -> CoreSpec {
    let adjoint_stopping = Stopping::absolute(tolerance).max_iterations(20_000);
    let architecture = ParametrisedMap::named(name, layout).unwrap();
    let solver = if architecture.is_monotone() {
        subdeq::PeacemanRachford::default().into()
    } else {
        subdeq::Solver::Picard
    };
    CoreSpec::Equilibrium {
        architecture,
        solver: Some(solver),
        stopping: Stopping::absolute(tolerance).max_iterations(20_000),
        adjoint: Some(subdeq::Adjoint::Implicit { solver, stopping: adjoint_stopping }),
    }
}

fn cores(layout: Layout, tolerance: f64) -> Vec<CoreSpec> {
    let odes = [OdeActivation::Relu, OdeActivation::Tanh];
    let odes = odes.map(|activation| CoreSpec::NeuralOde { activation, tolerance: tolerance.max(1e-11) });
    let names = ParametrisedMap::NAMES.iter();
    names
        .map(|name| equilibrium(name, layout, tolerance))
        .chain([CoreSpec::ExplicitTanh])
        .chain(odes)
        .collect()
}

/// Networks of three blocks: equilibria of several kinds (the power ratio reads two injections), with layers of other kinds, with
/// norms, strides and pooling between them.
fn networks(layout: Layout, tolerance: f64) -> Vec<ClassifierSpec> {
    let map = |name: &str| equilibrium(name, layout, tolerance);
    let ode = || CoreSpec::NeuralOde { activation: OdeActivation::Tanh, tolerance: tolerance.max(1e-11) };
    let threes = [
        [map("monotone-tied"), map("monotone-tied"), map("monotone-tied")],
        [map("monotone"), map("monotone-product"), map("monotone")],
        [map("split-sign"), map("power-ratio"), map("monotone")],
        [ode(), CoreSpec::ExplicitTanh, map("excitatory")],
    ];
    let conv = layout == Layout::Conv;
    let window = |side: usize| conv.then_some(side);
    let network = |[first, second, third]: [CoreSpec; 3], stride: usize| {
        // Halved once, by a stride or by pooling, and once before the head.
        // Without a norm, the few ReLU units behind the power ratio, whose states are all near 1, are dead with this seed.
        let stride = if conv { stride } else { 1 };
        let block = |hidden, stride, side, injection_norm, core| BlockSpec {
            hidden,
            stride,
            pool: window(side),
            injection_norm,
            core,
        };
        let deeper = vec![block(4, stride, 1, stride == 2, second), block(6, 1, 2, stride == 1, third)];
        ClassifierSpec { pool: window(2 / stride), deeper, ..spec(layout, first) }
    };
    threes.into_iter().flat_map(|cores| [network(cores.clone(), 1), network(cores, 2)]).collect()
}

/// The loss, when one array alone is moved along a direction that knows nothing of its gradient: each array's gradient is
/// right by itself.
#[test]
fn the_loss_moves_as_each_gradient_says() {
    for layout in [Layout::Dense, Layout::Conv] {
        let plain = cores(layout, 1e-13).into_iter().map(|core| spec(layout, core));
        // Signed and positive injections, two of them, and cores that are no equilibria.
        let normed = cores(layout, 1e-13).into_iter().filter(|core| {
            ["monotone", "split-sign", "power-ratio", "explicit-tanh", "node-tanh"].contains(&core.name())
        });
        let normed = normed.map(|core| ClassifierSpec { injection_norm: true, ..spec(layout, core) });
        // Reflected blocks, whose injections are read twice.
        let bounded = ["monotone-tied", "monotone-product", "mondeq-relu"]
            .map(|name| spec(layout, equilibrium(name, layout, 1e-13)));
        let bounded = bounded.into_iter().chain([networks(layout, 1e-13).remove(0)]).map(|mut spec| {
            spec.lipschitz = Some(Lipschitz { gain: 3.0, per_pixel: 1.0 });
            spec.deeper.iter_mut().for_each(|block| block.injection_norm = false);
            spec
        });
        for spec in plain.chain(normed).chain(networks(layout, 1e-13)).chain(bounded) {
            let what = format!("{layout:?}, {spec:?}");
            let mut model = Classifier::<Cpu<f64>>::new(cpu(), spec, &mut rng(1)).unwrap();
            let x = random(6 * 32, 2);
            let labels = [0, 1, 2, 0, 1, 2];
            model.gradients(&x, &labels).unwrap();
            let (parameters, gradients) =
                (model.named_parameters().unwrap(), model.named_gradients().unwrap());
            let mut listened = 0;
            for ((name, value), (_, gradient)) in parameters.iter().zip(&gradients) {
                let direction: Vec<f64> = random(value.len(), 3).iter().map(|d| 1e-5 * d).collect();
                let mut loss = |sign: f64| {
                    let moved = value.iter().zip(&direction).map(|(x, d)| x + sign * d).collect();
                    model.set_parameters(&[(name.clone(), moved)]).unwrap();
                    model.gradients(&x, &labels).unwrap().loss
                };
                let moved = (loss(1.0) - loss(-1.0)) / 2.0;
                model.set_parameters(&[(name.clone(), value.clone())]).unwrap();
                let terms: Vec<f64> = direction.iter().zip(gradient).map(|(d, g)| d * g).collect();
                let (predicted, size) =
                    (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
                // Losses near 1 are known to 1e-13 or so, behind an integration to less.
                let unknown = if what.contains("NeuralOde") { 1e-9 } else { 1e-11 };
                assert!(
                    (moved - predicted).abs() <= 1e-3 * size + unknown,
                    "{what}: {name} moved the loss by {moved:e}, its gradient says {predicted:e}"
                );
                listened += usize::from(moved.abs() > 10.0 * unknown);
            }
            assert!(listened >= 5, "{what}: the loss listens to {listened} arrays only");
        }
    }
}

#[test]
fn every_model_learns_and_its_state_can_be_put_back() {
    for layout in [Layout::Dense, Layout::Conv] {
        let single = cores(layout, 1e-4).into_iter().map(|core| spec(layout, core));
        for spec in single.chain(networks(layout, 1e-4)) {
            let what = format!("{layout:?} {spec:?}");
            let mut model = Classifier::<Cpu<f32>>::new(cpu(), spec.clone(), &mut rng(1)).unwrap();
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
            let mut copy = Classifier::<Cpu<f32>>::new(cpu(), spec, &mut rng(9)).unwrap();
            copy.set_state(&model.state().unwrap()).unwrap();
            for (from, to) in model.equilibria().zip(copy.equilibria()) {
                to.set_step(from.step());
            }
            let adam = Adam::new(0.02, 0.0, 61);
            let (a, b) =
                (model.train_step(&x, &labels, &adam).unwrap(), copy.train_step(&x, &labels, &adam).unwrap());
            assert_eq!(a, b, "{what}");
            assert_eq!(model.state().unwrap(), copy.state().unwrap(), "{what}");
            // Loss and hits of an evaluation are those of the logits, which do not depend on the rest of a batch.
            let logits = model.logits(&x[..7 * 32]).unwrap();
            assert_eq!(model.logits(&x[2 * 32..3 * 32]).unwrap(), logits[6..9], "{what}");
            let (mut loss, mut correct) = (0.0, 0);
            for (row, &label) in logits.chunks_exact(3).zip(&labels) {
                let total: f64 = row.iter().map(|&z| f64::from(z).exp()).sum();
                loss += (total.ln() - f64::from(row[label as usize])) / 7.0;
                correct += usize::from(row.iter().all(|z| *z <= row[label as usize]));
            }
            let evaluated = model.evaluate(&x[..7 * 32], &labels[..7]).unwrap();
            assert_eq!((evaluated.samples, evaluated.correct), (7, correct), "{what}");
            assert!((evaluated.loss - loss).abs() < 1e-5 * (1.0 + loss), "{what}: {} {loss}", evaluated.loss);
        }
    }
}

/// The engine's Adam, written by hand as an optimiser of a user's own, goes the same way.
#[test]
fn any_optimiser_can_be_used() {
    for layout in [Layout::Dense, Layout::Conv] {
        // The integration of a kink takes other steps after any rounding.
        let smooth =
            |core: &CoreSpec| !matches!(core, CoreSpec::NeuralOde { activation: OdeActivation::Relu, .. });
        for core in cores(layout, 1e-10).into_iter().filter(smooth) {
            let what = format!("{layout:?} {core:?}");
            let new = || Classifier::<Cpu<f64>>::new(cpu(), spec(layout, core.clone()), &mut rng(1)).unwrap();
            let (mut engine, mut own) = (new(), new());
            let (x, labels) = (random(6 * 32, 2), [0, 1, 2, 0, 1, 2]);
            let mut moments = std::collections::HashMap::new();
            for step in 1..=5 {
                // With the usual epsilon, what rounding leaves of a gradient of 0 would count as much as any.
                let adam = Adam { epsilon: 1e-3, ..Adam::new(0.01, 0.0, step) };
                engine.train_step(&x, &labels, &adam).unwrap();
                own.gradients(&x, &labels).unwrap();
                let correction = |beta: f64| 1.0 - beta.powi(step as i32);
                own.update_with(|name, parameter, gradient| {
                    let zeros = || vec![(0.0, 0.0); parameter.len()];
                    let moments = moments.entry(name.to_owned()).or_insert_with(zeros);
                    for ((p, g), (mean, square)) in parameter.iter_mut().zip(gradient).zip(moments) {
                        *mean = 0.9 * *mean + 0.1 * g;
                        *square = 0.999 * *square + 0.001 * g * g;
                        let root = (*square / correction(0.999)).sqrt() + 1e-3;
                        *p -= 0.01 * *mean / correction(0.9) / root;
                    }
                })
                .unwrap();
            }
            let (engine, own) = (engine.named_parameters().unwrap(), own.named_parameters().unwrap());
            for ((name, a), (_, b)) in engine.iter().zip(&own) {
                let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!(far < 1e-4, "{what}: {name} differs by {far:e}");
            }
        }
    }
}

#[test]
fn parameters_of_other_names_or_lengths_are_refused() {
    let core = equilibrium("split-sign", Layout::Dense, 1e-4);
    let mut model = Classifier::<Cpu<f32>>::new(cpu(), spec(Layout::Dense, core), &mut rng(1)).unwrap();
    let mut said =
        |name: &str| model.set_parameters(&[(name.to_owned(), vec![0.0])]).unwrap_err().to_string();
    assert!(said("core.v").contains("no parameter `core.v`"));
    assert!(said("core.weight").contains("`core.weight` has 25 numbers, 1 were given"));
}

#[test]
fn bad_batches_are_refused() {
    let core = equilibrium("split-sign", Layout::Dense, 1e-4);
    let mut model = Classifier::<Cpu<f32>>::new(cpu(), spec(Layout::Dense, core), &mut rng(1)).unwrap();
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
