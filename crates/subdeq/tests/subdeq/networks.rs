//! Networks of several equilibria: one state from every start, whatever the threads and stops; certificates of their very weights; and
//! files that say all of it.

use crate::common::{cpu, random, rng};
use crate::devices::config;
use crate::recipe::trained;
use crate::skipped::skipped;
use subdeq::model::{BlockSpec, Classifier, ClassifierSpec, CoreSpec, NetworkCertificate};
use subdeq::train::{Images, ModelNote, Parts, TensorFile, TrainConfig, load_model, save_model};
use subdeq::{Adam, Adjoint, Cpu, Cuda, Layout, Stopping};

/// Numbers of an image.
const LEN: usize = 2 * 6 * 6;

/// Images whose class can be seen: a bright row.
fn images(count: usize, seed: u64) -> Images {
    let labels: Vec<u32> = (0..count as u32).map(|i| i % 3).collect();
    let mut pixels: Vec<u8> = random(count * LEN, seed).iter().map(|x| (30.0 + 30.0 * x) as u8).collect();
    for (image, &label) in pixels.chunks_exact_mut(LEN).zip(&labels) {
        image[6 * label as usize..][..6].fill(220);
    }
    Images::new(pixels, labels, [2, 6, 6], 255.0, &[0.2, 0.2], &[0.3, 0.3]).unwrap()
}

fn parts() -> Parts {
    Parts { train: images(26, 4), validation: images(9, 5), test: images(6, 6) }
}

/// Three tied monotone blocks; of images, the second reads every second pixel and the third is pooled.
pub fn network(layout: Layout) -> TrainConfig {
    let mut config = config(layout, "monotone-tied", false);
    let (conv, core) = (layout == Layout::Conv, config.model.core.clone());
    let block = |hidden, stride, window: usize| BlockSpec {
        hidden,
        stride: if conv { stride } else { 1 },
        pool: conv.then_some(window),
        injection_norm: true,
        core: core.clone(),
    };
    config.model.deeper = vec![block(6, 2, 1), block(4, 1, 3)];
    (config.model.height, config.model.width) = (6, 6);
    (config.model.pool, config.model.injection_norm) = (conv.then_some(1), true);
    config
}

/// The same, solved as far as `f64` goes.
fn exact(layout: Layout) -> ClassifierSpec {
    let mut spec = network(layout).model;
    let cores = std::iter::once(&mut spec.core).chain(spec.deeper.iter_mut().map(|block| &mut block.core));
    for core in cores {
        let CoreSpec::Equilibrium { stopping, adjoint, .. } = core else { continue };
        *stopping = Stopping::relative(1e-12).max_iterations(20_000);
        let solver = subdeq::PeacemanRachford::default().into();
        *adjoint = Some(Adjoint::Implicit { solver, stopping: *stopping });
    }
    spec
}

#[test]
fn every_layer_has_one_state_from_every_start() {
    for layout in [Layout::Dense, Layout::Conv] {
        let mut model = Classifier::<Cpu<f64>>::new(cpu(), exact(layout), &mut rng(5)).unwrap();
        // Weights far from small.
        model
            .update_with(|name, weights, _| {
                if name.ends_with("core.a") {
                    weights.iter_mut().for_each(|w| *w *= 3.0);
                }
            })
            .unwrap();
        let x: Vec<f64> = random(3 * LEN, 2).iter().map(|x| 2.0 * x).collect();
        let injections = model.injected_everywhere(&x).unwrap();
        assert_eq!(injections.len(), 3);
        for (index, (layer, y)) in model.equilibria().zip(&injections).enumerate() {
            let cold = layer.solve(y).unwrap().require_converged().unwrap().z;
            let size = cold.iter().fold(0.0f64, |m, z| m.max(z.abs()));
            assert!(size > 0.0, "{layout:?}, block {index}");
            for seed in 0..20 {
                let start: Vec<f64> = random(cold.len(), seed).iter().map(|z| 50.0 * z).collect();
                let found = layer.solve_from(y, Some(&start)).unwrap().require_converged().unwrap().z;
                let error = found.iter().zip(&cold).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
                assert!(
                    error < 1e-8 * size,
                    "{layout:?}, block {index}, start {seed}: {error:e} of {size:e}"
                );
            }
        }
    }
}

#[test]
fn stops_and_threads_change_nothing() {
    for layout in [Layout::Dense, Layout::Conv] {
        let (folder, mut config) = (tempfile::tempdir().unwrap(), network(layout));
        config.recipe = crate::devices::recipe();
        let at = |name: &str| folder.path().join(name);
        let whole = trained(&at("whole"), &config, &parts(), 1, &[]);
        for name in ["core.b", "block2.core.b", "block3.core.b", "block2.injection0.norm.running_mean"] {
            let (_, array) = whole.0.iter().find(|(given, _)| given == name).unwrap();
            assert!(array.iter().all(|&b| b != 1.0 && b != 0.0), "{layout:?}: {name} = {array:?} is trained");
        }
        assert_eq!(trained(&at("stopped"), &config, &parts(), 2, &[2, 1, 4]), whole, "{layout:?}");
    }
}

#[test]
fn the_certificate_is_that_of_every_layer_as_it_is() {
    for layout in [Layout::Dense, Layout::Conv] {
        let mut model = Classifier::<Cpu<f32>>::new(cpu(), network(layout).model, &mut rng(5)).unwrap();
        let whole = model.certify().unwrap().unwrap();
        assert!(whole.is_proven() && whole.layers().len() == 3 && whole.single().is_none());
        let words = whole.to_string();
        assert!(
            words.starts_with("PROVEN: the network has exactly one state")
                && words.contains("\n  Layer 3: PROVEN")
        );
        assert!(model.confirms(&whole).unwrap());
        // In files a list; that of one layer is what it always was.
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<NetworkCertificate>(&text).unwrap(), whole);
        let first = NetworkCertificate::from(whole.layers()[0].clone());
        let text = serde_json::to_string(&first).unwrap();
        assert_eq!(text, serde_json::to_string(&whole.layers()[0]).unwrap());
        assert_eq!(serde_json::from_str::<NetworkCertificate>(&text).unwrap(), first);
        assert!(serde_json::from_str::<NetworkCertificate>("[]").is_err());
        // Fewer, or in another order.
        let of = |layers: &[usize]| {
            NetworkCertificate::of(layers.iter().map(|&k| whole.layers()[k].clone()).collect()).unwrap()
        };
        for wrong in [&[0][..], &[0, 1], &[1, 0, 2], &[0, 1, 2, 2], &[0, 2, 1]] {
            assert!(!model.confirms(&of(wrong)).unwrap(), "{layout:?} {wrong:?}");
        }
        for (name, value) in model.named_parameters().unwrap() {
            if !name.ends_with("core.a") {
                continue;
            }
            let changed = value.iter().map(|a| 0.9 * a).collect();
            model.set_parameters(&[(name.clone(), changed)]).unwrap();
            assert!(!model.confirms(&whole).unwrap(), "{layout:?}: other {name}");
            model.set_parameters(&[(name, value)]).unwrap();
        }
        assert!(model.confirms(&whole).unwrap());
    }
}

#[test]
fn a_layer_that_is_not_proved_leaves_the_network_unproved() {
    let mut spec = network(Layout::Dense).model;
    spec.deeper[0].core = CoreSpec::named("subdeq-tanh", Layout::Dense).unwrap();
    let mut model = Classifier::<Cpu<f32>>::new(cpu(), spec, &mut rng(5)).unwrap();
    let (name, value) =
        model.named_parameters().unwrap().into_iter().find(|(n, _)| n == "block2.core.weight").unwrap();
    model.set_parameters(&[(name, value.iter().map(|w| 20.0 * w).collect())]).unwrap();
    let whole = model.prove().unwrap().unwrap();
    assert!(!whole.is_proven() && whole.verdict() == "unproven");
    assert!(whole.to_string().starts_with("UNPROVEN: layer 2 of 3"), "{whole}");
    let x = random(2 * LEN, 1).iter().map(|&x| x as f32).collect::<Vec<_>>();
    assert_eq!(model.network_radii(&x, &whole).unwrap(), [None, None]);
}

#[test]
fn images_too_small_to_be_proved_for_are_refused() {
    let mut config = network(Layout::Conv);
    assert!(config.check().is_ok());
    (config.model.height, config.model.width) = (4, 4);
    config.model.deeper[1].pool = Some(2);
    let why = config.check().unwrap_err().to_string();
    assert!(why.contains("block 2 has images of 2x2"), "{why}");
}

#[test]
fn files_hold_networks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    for layout in [Layout::Dense, Layout::Conv] {
        let config = network(layout);
        let mut model = Classifier::<Cpu<f32>>::new(cpu(), config.model.clone(), &mut rng(5)).unwrap();
        let note = ModelNote { config, selected: (1, 10.0), certificate: model.certify().unwrap() };
        save_model(&path, &mut model, &note).unwrap();
        let (mut read, again) = load_model(&cpu::<f32>(), &path).unwrap();
        assert_eq!(again, note);
        let x: Vec<f32> = random(3 * LEN, 4).iter().map(|&x| x as f32).collect();
        assert_eq!(read.logits(&x).unwrap(), model.logits(&x).unwrap());
        // Parameters that were changed beside their weights, and with the certificate of others.
        let TensorFile { note: stored, tensors } = TensorFile::<serde_json::Value>::read(&path).unwrap();
        let mut changed = tensors;
        let (_, a) = changed.iter_mut().find(|(name, _)| name == "block2.core.a").unwrap();
        a.iter_mut().for_each(|a| *a *= 0.5);
        TensorFile { note: stored.clone(), tensors: changed.clone() }.write(&path).unwrap();
        let why = load_model(&cpu::<f32>(), &path).err().unwrap().to_string();
        assert!(why.contains("`equation.block2.W` is not what its free parameters stand for"), "{why}");
        changed.retain(|(name, _)| !name.starts_with("equation."));
        TensorFile { note: stored, tensors: changed }.write(&path).unwrap();
        let (mut other, found) = load_model(&cpu::<f32>(), &path).unwrap();
        let (found, before) = (found.certificate.unwrap(), note.certificate.unwrap());
        assert!(found != before && other.confirms(&found).unwrap() && !other.confirms(&before).unwrap());
    }
}

/// No image within a proven radius gets another class.
#[test]
fn radii_of_networks_hold() {
    for layout in [Layout::Dense, Layout::Conv] {
        let mut spec = exact(layout);
        if layout == Layout::Conv {
            // Pooled between the first two.
            (spec.pool, spec.deeper[0].stride) = (Some(2), 1);
        }
        let mut model = Classifier::<Cpu<f64>>::new(cpu(), spec, &mut rng(5)).unwrap();
        let certificate = model.prove().unwrap().unwrap();
        let x = random(4 * LEN, 8);
        let radii = model.network_radii(&x, &certificate).unwrap();
        let classes: Vec<usize> = model.answers(&x).unwrap().iter().map(|answer| answer.class()).collect();
        for (sample, radius) in radii.into_iter().enumerate() {
            let radius = radius.unwrap();
            assert!(radius > 0.0 && radius < 10.0, "{layout:?}: {radius:e}");
            for seed in 0..20 {
                let direction = random(LEN, 100 + seed);
                let size = direction.iter().map(|d| d * d).sum::<f64>().sqrt();
                let moved: Vec<f64> = x[sample * LEN..][..LEN]
                    .iter()
                    .zip(&direction)
                    .map(|(x, d)| x + 0.999 * radius * d / size)
                    .collect();
                assert_eq!(model.answers(&moved).unwrap()[0].class(), classes[sample], "{layout:?}");
            }
        }
        // The states follow the images no faster than the stated gain.
        let gain = model.network_gain(&certificate).unwrap().unwrap();
        let states = |model: &mut Classifier<Cpu<f64>>, x: &[f64]| {
            model.logits(x).unwrap();
            model.equilibria().last().unwrap().read_states().unwrap()
        };
        let distance =
            |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt();
        for seed in 0..50 {
            let (a, b) = (random(LEN, 200 + seed), random(LEN, 300 + seed));
            let moved = distance(&states(&mut model, &a), &states(&mut model, &b));
            assert!(moved <= gain * distance(&a, &b), "{layout:?}: {moved:e}, gain {gain:e}");
        }
    }
}

/// Two steps of training on a GPU, against the CPU.
#[test]
fn a_gpu_trains_networks() {
    if Cuda::available().is_empty() {
        skipped("a_gpu_trains_networks (no GPU)");
        return;
    }
    for (layout, pooled) in [(Layout::Dense, false), (Layout::Conv, false), (Layout::Conv, true)] {
        let mut spec = exact(layout);
        if pooled {
            (spec.pool, spec.deeper[0].stride) = (Some(2), 1);
        }
        let cores =
            std::iter::once(&mut spec.core).chain(spec.deeper.iter_mut().map(|block| &mut block.core));
        for core in cores {
            let CoreSpec::Equilibrium { stopping, adjoint, .. } = core else { continue };
            *stopping = Stopping::relative(1e-6).max_iterations(500);
            let solver = subdeq::PeacemanRachford::default().into();
            *adjoint = Some(Adjoint::Implicit { solver, stopping: *stopping });
        }
        let (x, labels) = (random(4 * LEN, 3), [0, 1, 2, 1]);
        let mut cpu = Classifier::<Cpu<f64>>::new(cpu(), spec.clone(), &mut rng(5)).unwrap();
        let mut gpu = Classifier::<Cuda>::new(Cuda::new(0).unwrap().into(), spec, &mut rng(5)).unwrap();
        let state = gpu.state().unwrap();
        let state: Vec<(String, Vec<f64>)> = state
            .into_iter()
            .map(|(name, array)| (name, array.into_iter().map(f64::from).collect()))
            .collect();
        cpu.set_state(&state).unwrap();
        let single: Vec<f32> = x.iter().map(|&x| x as f32).collect();
        let x: Vec<f64> = single.iter().map(|&x| f64::from(x)).collect();
        for step in 1..=2 {
            let (found, right) =
                (gpu.gradients(&single, &labels).unwrap(), cpu.gradients(&x, &labels).unwrap());
            assert!((found.loss - right.loss).abs() < 1e-4 * right.loss, "{layout:?}: {found:?} {right:?}");
            let (found, right) = (gpu.named_gradients().unwrap(), cpu.named_gradients().unwrap());
            for ((name, found), (_, right)) in found.iter().zip(&right) {
                let size = right.iter().fold(1e-3f64, |m, g| m.max(g.abs()));
                let error =
                    found.iter().zip(right).fold(0.0f64, |m, (a, b)| m.max((f64::from(*a) - b).abs()));
                assert!(error < 1e-3 * size, "{layout:?}, step {step}: {name} by {error:e} of {size:e}");
            }
            let adam = Adam::new(1e-3, 0.0, step);
            gpu.update(&adam).unwrap();
            cpu.update(&adam).unwrap();
        }
    }
}
