//! What a training does beside plain steps: its gradients, and that nothing of it depends on order, threads or a stop.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use crate::common::{cpu, rng};
use crate::devices::{config, images, parts, recipe};
use subdeq::model::{Batch, Classifier, ClassifierSpec, Noise};
use subdeq::subdeq_engine::network::Adam;
use subdeq::subdeq_engine::{Crop, DataSets, Dropout, Images, MIRRORED, Picks};
use subdeq::train::{
    EvaluationOptions, Parts, Progress, RunFolder, RunOptions, TensorFile, TrainConfig, train_run,
};
use subdeq::{Cpu, Device, Layout};

fn noise() -> Noise {
    Noise {
        crop: Crop::new(1, 5, 1),
        input: Dropout::new(0.2, 5, 2),
        head: Dropout::new(0.3, 5, 3),
        label_smoothing: 0.2,
    }
}

fn spec(layout: Layout, name: &str) -> ClassifierSpec {
    ClassifierSpec { injection_norm: true, ..config(layout, name, false).model }
}

/// With the noise held still, the loss moves as each gradient says.
#[test]
fn gradients_go_through_dropout_and_smoothing() {
    for (layout, name) in [(Layout::Dense, "explicit-tanh"), (Layout::Conv, "explicit-tanh")] {
        let core = subdeq::model::CoreSpec::named(name, layout).unwrap();
        let spec = ClassifierSpec { core, ..spec(layout, "split-sign") };
        let device = cpu::<f64>();
        let mut model = Classifier::<Cpu<f64>>::new(device.clone(), spec, &mut rng(1)).unwrap();
        let set = device.images(&images(9, 2), 3).unwrap();
        let list = device.integers(&[7, 1 | MIRRORED, 4, 0, 8, 3]).unwrap();
        let loss_of = |state: Option<&[(String, Vec<f64>)]>, model: &mut Classifier<Cpu<f64>>| {
            state.into_iter().for_each(|state| model.set_state(state).unwrap());
            let picks = Picks { list: &list, range: 0..6 };
            let batch = Batch { images: &set, picks, states: None, noise: noise() };
            model.step(batch, &Adam::new(1e-9, 0.0, 1)).unwrap();
            model.finish().unwrap().loss / 6.0
        };
        let before = model.state().unwrap();
        loss_of(None, &mut model);
        let after = model.state().unwrap();
        let mut listened = 0;
        for (k, (name, value)) in before.iter().enumerate() {
            // The mean after Adam's first step without decay is 0.1 g.
            let Some((_, mean)) = after.iter().find(|(n, _)| *n == format!("{name}.mean")) else { continue };
            for at in (0..value.len()).step_by((value.len() / 5).max(1)) {
                let mut loss = |by: f64| {
                    let mut state = before.clone();
                    state[k].1[at] += by;
                    loss_of(Some(&state), &mut model)
                };
                let moved = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                let said = mean[at] / 0.1;
                assert!(
                    (moved - said).abs() < 1e-6 * (1.0 + said.abs()),
                    "{layout:?} {name}[{at}]: {moved} {said}"
                );
                listened += usize::from(moved.abs() > 1e-4);
            }
        }
        assert!(listened > 10, "{listened}");
    }
}

/// An evaluation does nothing of what a training step does to its images.
#[test]
fn evaluations_know_no_noise() {
    let device = cpu::<f32>();
    let mut model = Classifier::new(device.clone(), spec(Layout::Conv, "monotone"), &mut rng(1)).unwrap();
    let set = device.images(&images(9, 2), 3).unwrap();
    let list = device.integers(&(0..9).collect::<Vec<_>>()).unwrap();
    let picks = || Picks { list: &list, range: 0..9 };
    let step = |model: &mut Classifier<Cpu<f32>>, noise: Noise| {
        let batch = Batch { images: &set, picks: picks(), states: None, noise };
        model.step(batch, &Adam::new(1e-3, 0.0, 1)).unwrap();
        model.finish().unwrap().loss
    };
    let before = model.state().unwrap();
    let plain = step(&mut model, Noise::NONE);
    for noise in [
        Noise { crop: noise().crop, ..Noise::NONE },
        Noise { input: noise().input, ..Noise::NONE },
        Noise { head: noise().head, ..Noise::NONE },
        Noise { label_smoothing: 0.2, ..Noise::NONE },
    ] {
        model.set_state(&before).unwrap();
        assert_ne!(step(&mut model, noise), plain, "{noise:?} does something");
    }
    // The same bits as of a model that was never trained with any noise.
    let mut fresh = Classifier::new(device.clone(), spec(Layout::Conv, "monotone"), &mut rng(7)).unwrap();
    fresh.set_state(&model.state().unwrap()).unwrap();
    if let (Some(from), Some(to)) = (model.equilibrium().map(|layer| layer.step()), fresh.equilibrium()) {
        to.set_step(from);
    }
    let answers = model.answers_of(&set, picks()).unwrap();
    assert_eq!(answers, fresh.answers_of(&set, picks()).unwrap());
    assert_eq!(answers, model.answers_of(&set, picks()).unwrap());
}

fn full(layout: Layout, name: &str) -> TrainConfig {
    let mut config = config(layout, name, layout == Layout::Dense);
    (config.recipe, config.model.injection_norm) = (recipe(), true);
    config
}

/// Trains in a folder, stopping after each of these numbers of batches; what is selected in the end, and which epoch.
pub fn trained(
    folder: &Path,
    config: &TrainConfig,
    parts: &Parts,
    threads: usize,
    stops: &[usize],
) -> (Vec<(String, Vec<f32>)>, usize) {
    let device = Arc::new(Cpu::<f32>::new(threads).unwrap());
    let run = RunFolder::create(folder, config).unwrap();
    let evaluation =
        EvaluationOptions { certify: 2, examples: 2, threads: 1, ..EvaluationOptions::default() };
    let options = RunOptions { evaluation, ..RunOptions::default() };
    for stop in stops.iter().copied().chain([usize::MAX]) {
        let mut batches = 0;
        let watch = &mut |_: Progress<'_>| {
            batches += 1;
            if batches >= stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let ended = train_run(&device, &run, config, parts, &options, watch).unwrap();
        assert_eq!(ended.is_none(), stop < usize::MAX);
    }
    let file = TensorFile::<serde_json::Value>::read(&run.model_path()).unwrap();
    (file.tensors, file.note["selected"][0].as_u64().unwrap() as usize)
}

#[test]
fn a_stop_within_an_augmented_epoch_changes_nothing() {
    for (layout, name) in [(Layout::Dense, "split-sign"), (Layout::Conv, "monotone")] {
        let (folder, config) = (tempfile::tempdir().unwrap(), full(layout, name));
        let at = |name: &str| folder.path().join(name);
        let whole = trained(&at("whole"), &config, &parts(), 1, &[]);
        // Four batches and the end of the epoch make five calls.
        assert_eq!(trained(&at("stopped"), &config, &parts(), 2, &[2, 1, 4]), whole, "{name}");
        for k in 0..4 {
            let mut other = config.clone();
            match k {
                0 => other.recipe.crop = 0,
                1 => other.recipe.dropout_input = 0.0,
                2 => other.recipe.dropout_head = 0.0,
                _ => other.recipe.warm_up = 0,
            }
            assert_ne!(trained(&at(&format!("other{k}")), &other, &parts(), 1, &[]).0, whole.0, "{k}");
        }
    }
}

/// Without images that are held out the last epoch is taken, whatever its error.
#[test]
fn without_validation_images_the_last_epoch_is_selected() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = full(Layout::Dense, "monotone");
    config.epochs = 4;
    let none = Images::new(Vec::new(), Vec::new(), [2, 4, 4], 255.0, &[0.2; 2], &[0.3; 2]).unwrap();
    let parts = Parts { validation: none, ..parts() };
    let (whole, epoch) = trained(&folder.path().join("whole"), &config, &parts, 1, &[]);
    assert_eq!(epoch, 4);
    assert_eq!(trained(&folder.path().join("stopped"), &config, &parts, 2, &[7]).0, whole);
    let lines = std::fs::read_to_string(folder.path().join("whole/metrics.jsonl")).unwrap();
    assert!(lines.lines().count() == 4 && lines.contains("\"validation_error\":null"), "{lines}");
}

#[test]
fn recipes_that_make_no_sense_are_refused() {
    let said = |change: fn(&mut TrainConfig)| {
        let mut config = full(Layout::Dense, "monotone");
        change(&mut config);
        config.check().unwrap_err().to_string()
    };
    assert!(said(|config| config.recipe.dropout_input = 1.0).contains("from 0 to below 1, not 1"));
    assert!(said(|config| config.recipe.dropout_head = f64::NAN).contains("before the head"));
    assert!(said(|config| config.recipe.label_smoothing = -0.1).contains("label smoothing"));
    assert!(said(|config| config.recipe.warm_up = 2).contains("leaves nothing of 2"));
    assert!(said(|config| config.recipe.crop = 4).contains("moved by up to 4 pixels"));
}
