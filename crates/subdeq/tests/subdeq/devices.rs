//! The trainer on a device that watches itself: nothing travels inside a step, and whatever fails is told in a sentence.

use std::ops::ControlFlow;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::map::ParametrisedMap;
use subdeq::model::{Batch, BlockSpec, Classifier, ClassifierSpec, CoreSpec, Noise};
use subdeq::subdeq_engine::{Checking, Crop, DataSets, Dropout, Images, Picks, Traffic};
use subdeq::train::{
    Cosine, DataConfig, EvaluationOptions, Parts, Recipe, RunFolder, RunOptions, TensorFile, TrainConfig,
    train_run,
};
use subdeq::{Adam, Backend, Cpu, Device, Init, Layout, OdeActivation, Stopping};

type Watched = Checking<Cpu<f32>>;

fn watched() -> Arc<Watched> {
    Arc::new(Checking::new(Cpu::new(1).unwrap()))
}

pub fn cores(layout: Layout) -> Vec<CoreSpec> {
    let equilibrium = |name: &&str| CoreSpec::Equilibrium {
        architecture: ParametrisedMap::named(name, layout).unwrap(),
        solver: None,
        stopping: Stopping::relative(1e-3).max_iterations(60),
        adjoint: None,
    };
    let others =
        [CoreSpec::ExplicitTanh, CoreSpec::NeuralOde { activation: OdeActivation::Tanh, tolerance: 1e-3 }];
    ParametrisedMap::NAMES.iter().map(equilibrium).chain(others).collect()
}

pub fn spec(layout: Layout, core: CoreSpec) -> ClassifierSpec {
    let pool = (layout == Layout::Conv).then_some(2);
    let init = Init::Release;
    ClassifierSpec {
        height: 4,
        width: 4,
        channels: 2,
        hidden: 5,
        pool,
        injection_norm: false,
        classes: 3,
        core,
        init,
        deeper: Vec::new(),
        lipschitz: None,
    }
}

/// A network of three blocks; of images, the second is strided and the third pooled.
fn network(layout: Layout) -> ClassifierSpec {
    let (conv, core) = (layout == Layout::Conv, CoreSpec::named("monotone-tied", layout).unwrap());
    let block = |stride: usize| BlockSpec {
        hidden: 4,
        stride: if conv { stride } else { 1 },
        pool: conv.then_some(1),
        injection_norm: true,
        core: core.clone(),
    };
    let deeper = vec![block(2), block(1)];
    ClassifierSpec { pool: conv.then_some(1), deeper, ..spec(layout, core.clone()) }
}

/// Images whose class can be seen: a bright row.
pub fn images(count: usize, seed: u64) -> Images {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let labels: Vec<u32> = (0..count as u32).map(|i| i % 3).collect();
    let mut pixels: Vec<u8> = (0..count * 32).map(|_| rng.random_range(0..60)).collect();
    for (image, &label) in pixels.chunks_exact_mut(32).zip(&labels) {
        image[4 * label as usize..][..4].fill(220);
    }
    Images::new(pixels, labels, [2, 4, 4], 255.0, &[0.2, 0.2], &[0.3, 0.3]).unwrap()
}

fn between(before: Traffic, after: Traffic) -> Traffic {
    Traffic {
        allocations: after.allocations - before.allocations,
        written: after.written - before.written,
        read: after.read - before.read,
        scalars: after.scalars - before.scalars,
        summaries: after.summaries - before.summaries,
        calls: 0,
    }
}

/// With the data on the device, a step allocates nothing, brings nothing over, and is read by one summary.
#[test]
fn nothing_travels_inside_a_step() {
    for layout in [Layout::Dense, Layout::Conv] {
        let normed = |core| ClassifierSpec { injection_norm: true, ..spec(layout, core) };
        for spec in cores(layout).into_iter().map(normed).chain([network(layout)]) {
            let what = format!("{layout:?} {}, {} blocks", spec.core.name(), 1 + spec.deeper.len());
            let device = watched();
            let warm = matches!(spec.core, CoreSpec::Equilibrium { .. }) && spec.deeper.is_empty();
            let mut rng = ChaCha8Rng::seed_from_u64(1);
            let mut model = Classifier::new(device.clone(), spec, &mut rng).unwrap();
            let set = device.images(&images(12, 2), 3).unwrap();
            let list = device.integers(&(0..12).collect::<Vec<u32>>()).unwrap();
            let state_len = if layout == Layout::Dense { 5 } else { 5 * 16 };
            let mut states = device.zeros(12 * state_len).unwrap();
            device.fill(12 * state_len, 1.0, &mut states).unwrap();
            let mut step = |number: u64| {
                let states = (warm && number.is_multiple_of(2)).then_some(&mut states);
                let picks = Picks { list: &list, range: 3..11 };
                let noise = Noise {
                    crop: Crop::new(1, 1, number),
                    input: Dropout::new(0.1, 2, number),
                    head: Dropout::new(0.1, 3, number),
                    label_smoothing: 0.1,
                };
                let batch = Batch { images: &set, picks, states, noise };
                model.step(batch, &Adam::new(1e-3, 1e-5, number)).unwrap();
                model.finish().unwrap()
            };
            // Room is made, and the step of a splitting is chosen.
            let _ = (step(1), step(2));
            let before = device.traffic();
            let summary = step(3);
            step(4);
            let found = between(before, device.traffic());
            assert_eq!(found, Traffic { summaries: 2, ..Traffic::default() }, "{what}");
            assert_eq!(summary.samples, 8, "{what}");
        }
    }
}

pub fn config(layout: Layout, name: &str, warm_start: bool) -> TrainConfig {
    let architecture = ParametrisedMap::named(name, layout).unwrap();
    let stopping = Stopping::relative(1e-3).max_iterations(60);
    let core = CoreSpec::Equilibrium { architecture, solver: None, stopping, adjoint: None };
    TrainConfig {
        epochs: 2,
        batch: 8,
        weight_decay: 1e-5,
        seed: 3,
        warm_start,
        slices: 0,
        rate: Cosine { start: 1e-2, end: 1e-3 },
        recipe: Recipe::default(),
        data: DataConfig {
            name: "rows".into(),
            split: "release".into(),
            validation: 0,
            split_seed: 0,
            fingerprint: "none".into(),
            white: 255,
            mean: vec![0.2; 2],
            deviation: vec![0.3; 2],
            class_names: vec!["top".into(), "second".into(), "third".into()],
            flips: true,
        },
        model: spec(layout, core),
    }
}

/// Something of everything.
pub fn recipe() -> Recipe {
    Recipe {
        warm_up: 1,
        decoupled_decay: true,
        label_smoothing: 0.1,
        dropout_input: 0.1,
        dropout_head: 0.2,
        crop: 1,
    }
}

pub fn parts() -> Parts {
    Parts { train: images(26, 4), validation: images(9, 5), test: images(6, 6) }
}

/// Trains in a folder (on, if it was begun there) and gives the selected arrays.
fn trained<D: Backend<Elem = f32>>(
    device: &Arc<D>,
    folder: &std::path::Path,
    config: &TrainConfig,
) -> subdeq::Result<Vec<(String, Vec<f32>)>> {
    let run = match RunFolder::open(folder) {
        Ok((run, _)) => run,
        Err(_) => RunFolder::create(folder, config)?,
    };
    let evaluation =
        EvaluationOptions { certify: 2, examples: 2, threads: 1, ..EvaluationOptions::default() };
    let options = RunOptions { evaluation, ..RunOptions::default() };
    let go_on = &mut |_: subdeq::train::Progress<'_>| ControlFlow::Continue(());
    train_run(device, &run, config, &parts(), &options, go_on)?;
    Ok(TensorFile::<serde_json::Value>::read(&run.model_path())?.tensors)
}

/// The same bits as on the device that is watched, and few transfers in a whole training.
#[test]
fn a_whole_training_is_the_same_on_both() {
    for (layout, name, warm) in [
        (Layout::Dense, "split-sign", true),
        (Layout::Conv, "monotone", false),
        (Layout::Conv, "monotone-tied", false),
        (Layout::Dense, "gains", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut config = config(layout, name, warm);
        (config.recipe, config.model.injection_norm) = (recipe(), name != "gains");
        let plain = trained(&Arc::new(Cpu::<f32>::new(2).unwrap()), &folder.path().join("a"), &config);
        let device = watched();
        let other = trained(&device, &folder.path().join("b"), &config);
        assert_eq!(plain.unwrap(), other.unwrap(), "{name}");
        // Two epochs of four batches and a validation each, the test images, and the examples among them.
        let summaries = device.traffic().summaries;
        assert!((2 * (4 + 1) + 1..=2 * (4 + 1) + 2).contains(&summaries), "{name}: {summaries}");
    }
}

/// Stopped in the middle of an epoch and continued, with one thread or two: the bits of a training that nothing happened to. The
/// one number `b` of tied weights is trained, and goes on where it was.
#[test]
fn a_stopped_training_of_tied_weights_goes_on_to_the_same_bits() {
    for layout in [Layout::Dense, Layout::Conv] {
        let folder = tempfile::tempdir().unwrap();
        let config = config(layout, "monotone-tied", false);
        let device = |threads| Arc::new(Cpu::<f32>::new(threads).unwrap());
        let whole = trained(&device(2), &folder.path().join("whole"), &config).unwrap();
        let (_, b) = whole.iter().find(|(name, _)| name == "core.b").unwrap();
        assert!(b.len() == 1 && b[0] != 1.0 && b[0].is_finite(), "b = {b:?}");
        let stopped = folder.path().join("stopped");
        let run = RunFolder::create(&stopped, &config).unwrap();
        let stop = &mut |progress: subdeq::train::Progress<'_>| match progress.batches {
            (2, _) if progress.epoch == 1 => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let ended = train_run(&device(1), &run, &config, &parts(), &RunOptions::default(), stop);
        assert!(!run.model_path().exists() || ended.is_ok());
        drop(run);
        assert_eq!(trained(&device(1), &stopped, &config).unwrap(), whole, "{layout:?}");
    }
}

/// Whichever allocation fails: a sentence, and the run goes on afterwards to the bits of one that never failed.
#[test]
fn failed_allocations_are_sentences_and_the_run_goes_on() {
    failures(
        |device| device.traffic().allocations,
        Watched::fail_at_allocation,
        "do not fit into the memory",
    );
}

/// Whichever call fails, likewise.
#[test]
fn failed_calls_are_sentences_and_the_run_goes_on() {
    failures(|device| device.traffic().calls, Watched::fail_at_call, "the device failed: it was told to");
}

fn failures(count: fn(&Watched) -> u64, fail_at: fn(&Watched, u64), sentence: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = config(Layout::Dense, "monotone", false);
    let device = watched();
    let expected = trained(&device, &folder.path().join("whole"), &config).unwrap();
    let all = count(&device);
    assert!(all > 50, "{all}");
    let mut failed = 0;
    // Every one of the first and last, and some in between.
    for k in (0..all).filter(|k| *k < 40 || *k + 10 > all || k % 37 == 0) {
        let folder = folder.path().join(format!("{k}"));
        let device = watched();
        fail_at(&device, k);
        let error = trained(&device, &folder, &config).unwrap_err().to_string();
        assert!(error.contains(sentence), "{k} of {all}: {error}");
        failed += 1;
        assert_eq!(trained(&device, &folder, &config).unwrap(), expected, "{k} of {all}");
    }
    assert!(failed >= 40, "{failed}");
}
