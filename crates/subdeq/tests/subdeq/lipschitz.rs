//! Networks whose gain is bounded: what is stated about them is never exceeded, and no attack succeeds within a proved radius.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::common::{cpu, random, rng};
use crate::devices::{config, images};
use rand::Rng;
use subdeq::map::ParametrisedMap;
use subdeq::model::{
    Attack, Ball, BlockSpec, Classifier, ClassifierSpec, CoreSpec, Lipschitz, NetworkCertificate, NetworkGain,
};
use subdeq::train::{EvaluationOptions, Parts, Progress, RunFolder, RunOptions, TensorFile, train_run};
use subdeq::{Adam, Adjoint, Cpu, Init, Layout, PeacemanRachford, Stopping};

const SIDE: usize = 6;
const CHANNELS: usize = 2;
const LEN: usize = SIDE * SIDE * CHANNELS;
const CLASSES: usize = 3;
const IMAGES: usize = 12;
const BOUND: f64 = 4.0;
const PER_PIXEL: f64 = 2.0;

type Model = Classifier<Cpu<f64>>;

fn core(name: &str, layout: Layout) -> CoreSpec {
    let stopping = Stopping::absolute(1e-11).max_iterations(20_000);
    let solver = PeacemanRachford::default().into();
    CoreSpec::Equilibrium {
        architecture: ParametrisedMap::named(name, layout).unwrap(),
        solver: Some(solver),
        stopping,
        adjoint: Some(Adjoint::Implicit { solver, stopping }),
    }
}

fn spec(name: &str, layout: Layout, blocks: usize) -> ClassifierSpec {
    let conv = layout == Layout::Conv;
    let block = |k: usize| BlockSpec {
        hidden: 5 + k,
        stride: if conv { 2 } else { 1 },
        pool: conv.then_some(if k + 1 == blocks { 3 } else { 1 }),
        injection_norm: false,
        core: core(name, layout),
    };
    ClassifierSpec {
        height: SIDE,
        width: SIDE,
        channels: CHANNELS,
        hidden: 7,
        pool: conv.then_some(if blocks == 1 { 2 } else { 1 }),
        injection_norm: false,
        classes: CLASSES,
        core: core(name, layout),
        init: Init::Release,
        deeper: (1..blocks).map(block).collect(),
        lipschitz: Some(Lipschitz { gain: BOUND, per_pixel: PER_PIXEL }),
    }
}

/// Dense and convolutional, one block and two, every kind of layer that there is.
fn specs() -> Vec<(String, ClassifierSpec)> {
    let mut all = Vec::new();
    for layout in [Layout::Dense, Layout::Conv] {
        for (name, blocks) in
            [("monotone-tied", 1), ("monotone-tied", 2), ("monotone-product", 1), ("mondeq-relu", 1)]
        {
            all.push((format!("{layout:?} {name}, {blocks} blocks"), spec(name, layout, blocks)));
        }
    }
    all
}

/// Three patterns with noise, and their labels.
fn patterns() -> (Vec<f64>, Vec<u32>) {
    let (patterns, noise) = (random(CLASSES * LEN, 5), random(IMAGES * LEN, 6));
    let labels: Vec<u32> = (0..IMAGES).map(|i| (i % CLASSES) as u32).collect();
    let pixel = |at: usize| patterns[labels[at / LEN] as usize * LEN + at % LEN] + 0.5 * noise[at];
    ((0..IMAGES * LEN).map(pixel).collect(), labels)
}

fn trained(spec: ClassifierSpec) -> (Model, NetworkCertificate, NetworkGain) {
    let mut model = Model::new(cpu(), spec, &mut rng(3)).unwrap();
    let (x, labels) = patterns();
    for step in 1..=30 {
        model.train_step(&x, &labels, &Adam::new(1e-2, 0.0, step)).unwrap();
    }
    let certificate = model.certify().unwrap().unwrap();
    let gain = model.gain(&certificate).unwrap().expect("a gain by construction");
    (model, certificate, gain)
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn the_product_of_the_gains_is_what_was_asked_for() {
    for (what, spec) in specs() {
        let (.., gain) = trained(spec);
        let asked = BOUND / PER_PIXEL;
        assert!(gain.product <= asked && gain.product > 0.999 * asked, "{what}: {gain:?}");
    }
}

/// 10,000 pairs: near and far apart, in random directions and in those in which logits move most.
#[test]
fn no_pair_of_images_is_driven_apart_by_more_than_the_gain() {
    const PAIRS: usize = 1250;
    let mut all = 0;
    for (what, spec) in specs() {
        let (mut model, _, gain) = trained(spec);
        let (x, _) = patterns();
        let mut rng = rng(8);
        let mut most: f64 = 0.0;
        // Uphill in the difference of two logits, from where the last pair was.
        let mut steep = vec![0.0; LEN];
        for pair in 0..PAIRS / 50 {
            let size = 10f64.powf(rng.random_range(-4.0..1.0));
            let from = &x[pair % IMAGES * LEN..][..LEN];
            let mut at = Vec::with_capacity(100 * LEN);
            for k in 0..50 {
                let direction: Vec<f64> = (0..LEN)
                    .map(|i| {
                        if k % 2 == 0 {
                            rng.random_range(-1.0..1.0)
                        } else {
                            steep[i] + 0.1 * rng.random_range(-1.0..1.0)
                        }
                    })
                    .collect();
                let start: Vec<f64> = from.iter().map(|x| x + rng.random_range(-0.5..0.5)).collect();
                at.extend_from_slice(&start);
                at.extend(start.iter().zip(&direction).map(|(x, d)| x + size * d));
            }
            let classes = [pair % CLASSES, (pair + 1) % CLASSES];
            let (logits, gradient) = model
                .input_gradients(&at, |logits| {
                    let weight = |at: usize| match at % CLASSES {
                        k if k == classes[0] => 1.0,
                        k if k == classes[1] => -1.0,
                        _ => 0.0,
                    };
                    (0..logits.len()).map(weight).collect()
                })
                .unwrap();
            for (x, logits) in at.chunks_exact(2 * LEN).zip(logits.chunks_exact(2 * CLASSES)) {
                let moved = distance(&x[..LEN], &x[LEN..]);
                let ratio = (distance(&logits[..CLASSES], &logits[CLASSES..]) - 1e-9) / moved;
                assert!(ratio <= gain.product, "{what}: {ratio} above {}", gain.product);
                most = most.max(ratio);
                all += 1;
            }
            steep.copy_from_slice(&gradient[..LEN]);
            let norm = distance(&steep, &[0.0; LEN]).max(1e-300);
            steep.iter_mut().for_each(|g| *g /= norm);
        }
        assert!(
            most > 0.2 * gain.product,
            "{what}: pairs that move by {most} say nothing about {}",
            gain.product
        );
    }
    assert!(all >= 10_000 - 8 * 50, "{all}");
}

/// The gradients for images are those of the logits.
#[test]
fn logits_move_as_the_gradients_for_images_say() {
    for (what, spec) in specs() {
        let (mut model, ..) = trained(spec);
        let (x, _) = patterns();
        let weights = random(IMAGES * CLASSES, 4);
        let (logits, gradient) = model.input_gradients(&x, |_| weights.clone()).unwrap();
        assert_eq!(logits, model.logits(&x).unwrap());
        let direction: Vec<f64> = random(x.len(), 7).iter().map(|d| 1e-5 * d).collect();
        let mut total = |sign: f64| -> f64 {
            let moved: Vec<f64> = x.iter().zip(&direction).map(|(x, d)| x + sign * d).collect();
            model.logits(&moved).unwrap().iter().zip(&weights).map(|(l, w)| l * w).sum()
        };
        let moved = (total(1.0) - total(-1.0)) / 2.0;
        let terms: Vec<f64> = gradient.iter().zip(&direction).map(|(g, d)| g * d).collect();
        let (said, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
        assert!((moved - said).abs() < 1e-3 * size, "{what}: {moved:e} but {said:e}");
    }
}

#[test]
fn no_attack_within_a_proved_radius_succeeds_and_attacks_outside_do() {
    let (x, _) = patterns();
    let attack = Attack { steps: 20, restarts: 4, seed: 1 };
    for (what, spec) in specs() {
        let (mut model, certificate, _) = trained(spec);
        let radii: Vec<f64> = model
            .network_radii(&x, &certificate)
            .unwrap()
            .into_iter()
            .map(|radius| radius.unwrap_or_else(|| panic!("{what}: no radius")))
            .collect();
        assert!(radii.iter().filter(|&&radius| radius > 0.1).count() > IMAGES / 2, "{what}: {radii:?}");
        let classes: Vec<usize> = model.answers(&x).unwrap().iter().map(|answer| answer.class()).collect();
        let mut found = |factor: f64| {
            let radii: Vec<f64> = radii.iter().map(|radius| factor * radius).collect();
            let ball = Ball { radii: &radii, scale: &[1.0; CHANNELS] };
            let found = model.attack(&x, &classes, ball, &attack).unwrap();
            for (i, found) in found.iter().enumerate() {
                if let Some(found) = found {
                    assert!(distance(found, &x[i * LEN..][..LEN]) <= radii[i], "{what}: outside the ball");
                    assert_ne!(model.answers(found).unwrap()[0].class(), classes[i], "{what}");
                }
            }
            found.iter().flatten().count()
        };
        assert_eq!(found(1.0), 0, "{what}");
        assert!(3 * found(8.0) >= IMAGES, "{what}: the attack is too weak to mean anything");
    }
}

#[test]
fn distances_are_measured_channel_by_channel() {
    let (x, _) = patterns();
    let (mut model, ..) = trained(spec("monotone-tied", Layout::Conv, 1));
    let classes: Vec<usize> = model.answers(&x).unwrap().iter().map(|answer| answer.class()).collect();
    let (radii, scale) = ([3.0; IMAGES], [0.5, 2.0]);
    let ball = Ball { radii: &radii, scale: &scale };
    let found = model.attack(&x, &classes, ball, &Attack { steps: 20, restarts: 4, seed: 1 }).unwrap();
    assert!(found.iter().flatten().count() > 0);
    for (found, x) in
        found.iter().zip(x.chunks_exact(LEN)).filter_map(|(found, x)| Some((found.as_ref()?, x)))
    {
        let parts = [0, 1]
            .map(|c| scale[c] * distance(&found[c * LEN / 2..][..LEN / 2], &x[c * LEN / 2..][..LEN / 2]));
        let measured = parts[0].hypot(parts[1]);
        assert!(measured <= 3.0 && parts[0] > 0.0, "{parts:?}");
    }
}

/// Trained with one thread and with two, whole and with stops, the bits are the same; the bound holds for what is selected.
#[test]
fn stops_and_threads_change_nothing() {
    for (layout, blocks) in [(Layout::Dense, 2), (Layout::Conv, 1)] {
        let mut config = config(layout, "monotone-tied", false);
        config.model.lipschitz = Some(Lipschitz { gain: BOUND, per_pixel: PER_PIXEL });
        if blocks == 2 {
            let core = config.model.core.clone();
            config.model.deeper =
                vec![BlockSpec { hidden: 6, stride: 1, pool: None, injection_norm: false, core }];
        }
        let parts = Parts { train: images(24, 1), validation: images(9, 2), test: images(9, 3) };
        let folder = tempfile::tempdir().unwrap();
        let run = |name: &str, threads: usize, stops: &[usize]| {
            let device = Arc::new(Cpu::<f32>::new(threads).unwrap());
            let run = RunFolder::create(&folder.path().join(name), &config).unwrap();
            let evaluation = EvaluationOptions { attack: 4, threads: 1, ..EvaluationOptions::default() };
            let options = RunOptions { evaluation, ..RunOptions::default() };
            let mut last = None;
            for stop in stops.iter().copied().chain([usize::MAX]) {
                let mut batches = 0;
                let watch = &mut |_: Progress<'_>| {
                    batches += 1;
                    if batches >= stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                };
                last = train_run(&device, &run, &config, &parts, &options, watch).unwrap();
            }
            let found = last.unwrap().robustness.expect("a network that is built for radii");
            let file = TensorFile::<serde_json::Value>::read(&run.model_path()).unwrap();
            (file.tensors, found)
        };
        let (whole, found) = run("whole", 1, &[]);
        assert_eq!(run("stopped", 2, &[2, 1]), (whole, found.clone()), "{layout:?}");
        // The deviations of these images are another matter; in the numbers that the model reads the bound is this.
        let gain = found.parts.unwrap().product;
        assert!(gain <= BOUND / PER_PIXEL, "{layout:?}: {gain}");
        let attacked = found.attacked.unwrap();
        assert_eq!((attacked.samples, attacked.broken), (4, 0));
        for (radius, proved, left) in attacked.at {
            assert!(proved <= left && left <= attacked.clean, "{radius}: {proved} {left} {}", attacked.clean);
        }
    }
}

#[test]
fn models_without_a_gain_by_construction_are_refused() {
    let said = |spec: ClassifierSpec| Model::new(cpu(), spec, &mut rng(1)).err().unwrap().to_string();
    let usual = || spec("monotone-tied", Layout::Dense, 1);
    assert!(said(spec("split-sign", Layout::Dense, 1)).contains("not bounded by construction"));
    assert!(said(ClassifierSpec { core: CoreSpec::ExplicitTanh, ..usual() }).contains("take monotone-tied"));
    assert!(said(ClassifierSpec { injection_norm: true, ..usual() }).contains("no batch norm"));
    for gain in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let lipschitz = Some(Lipschitz { gain, per_pixel: 1.0 });
        assert!(said(ClassifierSpec { lipschitz, ..usual() }).contains("must be a number above 0"));
    }
    let mut model = Model::new(cpu(), ClassifierSpec { lipschitz: None, ..usual() }, &mut rng(1)).unwrap();
    let why = model.input_gradients(&patterns().0, |logits| logits.to_vec()).unwrap_err().to_string();
    assert!(why.contains("train --lipschitz"), "{why}");
}
