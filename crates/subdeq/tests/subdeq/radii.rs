//! Certified radii are attacked: within a radius no image may be given another class.

use crate::common::{cpu, random, rng};
use subdeq::map::ParametrisedMap;
use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
use subdeq::{Adam, Adjoint, Cpu, Init, Layout, PeacemanRachford, Solver, Stopping};

const SIDE: usize = 6;
const PIXELS: usize = SIDE * SIDE;
const CLASSES: usize = 3;
const IMAGES: usize = 6;
const TRAINING_STEPS: u64 = 40;

type Model = Classifier<Cpu<f64>>;

/// Three blurred patterns with noise, and their labels.
fn images() -> (Vec<f64>, Vec<u32>) {
    let patterns = random(CLASSES * PIXELS, 5);
    let noise = random(IMAGES * PIXELS, 6);
    let labels: Vec<u32> = (0..IMAGES).map(|i| (i % CLASSES) as u32).collect();
    let pixel = |at: usize| patterns[labels[at / PIXELS] as usize * PIXELS + at % PIXELS] + 0.3 * noise[at];
    ((0..IMAGES * PIXELS).map(pixel).collect(), labels)
}

fn trained(name: &str, layout: Layout, injection_norm: bool) -> Model {
    let architecture = ParametrisedMap::named(name, layout).unwrap();
    let solver = if architecture.is_monotone() { PeacemanRachford::default().into() } else { Solver::Picard };
    let stopping = Stopping::absolute(1e-10).max_iterations(20_000);
    let spec = ClassifierSpec {
        height: SIDE,
        width: SIDE,
        channels: 1,
        hidden: 6,
        pool: (layout == Layout::Conv).then_some(2),
        injection_norm,
        classes: CLASSES,
        core: CoreSpec::Equilibrium {
            architecture,
            solver: Some(solver),
            stopping,
            adjoint: Some(Adjoint::Implicit { solver, stopping }),
        },
        init: Init::Release,
        deeper: Vec::new(),
        lipschitz: None,
    };
    let mut model = Model::new(cpu(), spec, &mut rng(3)).unwrap();
    let (x, labels) = images();
    for step in 1..=TRAINING_STEPS {
        model.train_step(&x, &labels, &Adam::new(1e-2, 0.0, step)).unwrap();
    }
    model
}

/// The smallest lead of the class over another one.
fn margin(logits: &[f64], class: usize) -> f64 {
    let others = (0..CLASSES).filter(|&k| k != class).map(|k| logits[class] - logits[k]);
    others.fold(f64::INFINITY, f64::min)
}

/// The direction (of length 1) in which the margin falls fastest, by differences.
fn steepest(model: &mut Model, x: &[f64], class: usize) -> Vec<f64> {
    const H: f64 = 1e-5;
    let moved: Vec<f64> = (0..2 * PIXELS * PIXELS)
        .map(|at| {
            let (image, pixel) = (at / PIXELS, at % PIXELS);
            let sign = if image < PIXELS { H } else { -H };
            x[pixel] + if image % PIXELS == pixel { sign } else { 0.0 }
        })
        .collect();
    let logits = model.logits(&moved).unwrap();
    let margins: Vec<f64> = logits.chunks_exact(CLASSES).map(|logits| margin(logits, class)).collect();
    unit((0..PIXELS).map(|pixel| margins[PIXELS + pixel] - margins[pixel]).collect())
}

fn unit(v: Vec<f64>) -> Vec<f64> {
    let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-300);
    v.into_iter().map(|x| x / norm).collect()
}

/// Where projected steepest descent of the margin ends on the sphere of this radius around `x`.
fn attack(model: &mut Model, x: &[f64], class: usize, radius: f64) -> Vec<f64> {
    let mut at = x.to_vec();
    for _ in 0..3 {
        let direction = steepest(model, &at, class);
        let offset =
            unit(at.iter().zip(x).zip(&direction).map(|((at, x), d)| at - x + 2.0 * radius * d).collect());
        at = x.iter().zip(&offset).map(|(x, d)| x + radius * d).collect();
    }
    at
}

#[test]
fn no_attack_within_a_certified_radius_succeeds_and_attacks_far_outside_do() {
    let (x, _) = images();
    for layout in [Layout::Dense, Layout::Conv] {
        let names = [
            "monotone",
            "monotone-product",
            "monotone-tied",
            "excitatory",
            "row-signed",
            "split-sign",
            "divisive",
            "rational",
        ];
        let normed = ["monotone", "split-sign"].map(|name| (name, true));
        for (name, injection_norm) in names.map(|name| (name, false)).into_iter().chain(normed) {
            let what = format!("{layout:?} {name}, injection norm {injection_norm}");
            let mut model = trained(name, layout, injection_norm);
            let certificate = model.equilibrium().unwrap().prove().unwrap();
            let radii = model.certified_radii(&x, &certificate).unwrap();
            let classes: Vec<usize> =
                model.answers(&x).unwrap().iter().map(|answer| answer.class()).collect();
            let mut broken = 0;
            for (i, x) in x.chunks_exact(PIXELS).enumerate() {
                let radius = radii[i].unwrap_or_else(|| panic!("{what}: no radius, {certificate}"));
                assert!(radius > 0.0, "{what}: image {i} has no room");
                let mut class_at = |radius: f64| {
                    let moved = attack(&mut model, x, classes[i], radius);
                    model.answers(&moved).unwrap()[0].class()
                };
                assert_eq!(class_at(0.999 * radius), classes[i], "{what}: image {i} within {radius}");
                broken += usize::from(class_at(6.0) != classes[i]);
            }
            assert!(4 * broken >= IMAGES, "{what}: the attack is too weak to mean anything ({broken})");
        }
    }
}

/// The equations of shifted monotone weights are all the same: what was proved about other weights is not believed.
#[test]
fn radii_are_those_of_the_present_weights() {
    let (x, _) = images();
    let mut model = trained("monotone", Layout::Dense, false);
    let mut with_weights = |size: f64| {
        let change = |name: &str, weights: &mut [f64], _: &[f64]| {
            if name == "core.weight" {
                weights.fill(0.0);
                weights.iter_mut().step_by(7).for_each(|diagonal| *diagonal = size);
            }
        };
        model.update_with(change).unwrap();
        let certificate = model.equilibrium().unwrap().prove().unwrap();
        (certificate.clone(), model.certified_radii(&x, &certificate).unwrap())
    };
    // Gains of 1/6 and 10.
    let (large, _) = with_weights(-5.0);
    let (_, expected) = with_weights(0.9);
    assert_eq!(model.certified_radii(&x, &large).unwrap(), expected);
}

/// The network without a norm on its injection that computes the same: the running statistics folded into `U` and `b`.
fn folded(model: &mut Model) -> Model {
    let spec = ClassifierSpec { injection_norm: false, ..model.spec().clone() };
    let state = model.state().unwrap();
    let array = |name: &str| &state.iter().find(|(given, _)| given == name).unwrap().1;
    let norm = |part: &str| array(&format!("injection0.norm.{part}"));
    let factor: Vec<f64> =
        norm("scale").iter().zip(norm("running_variance")).map(|(s, v)| s / (v + 1e-5).sqrt()).collect();
    let mut plain = Model::new(cpu(), spec, &mut rng(4)).unwrap();
    let fold = |(name, numbers): (String, Vec<f64>)| {
        let fan_in = array("injection0.weight").len() / factor.len();
        let numbers = match name.as_str() {
            "injection0.weight" => {
                array(&name).iter().enumerate().map(|(at, w)| w * factor[at / fan_in]).collect()
            }
            "injection0.bias" => (0..factor.len())
                .map(|c| (array(&name)[c] - norm("running_mean")[c]) * factor[c] + norm("offset")[c])
                .collect(),
            _ => state.iter().find(|(given, _)| *given == name).map_or(numbers, |(_, found)| found.clone()),
        };
        (name, numbers)
    };
    let state: Vec<_> = plain.state().unwrap().into_iter().map(fold).collect();
    plain.set_state(&state).unwrap();
    plain
}

#[test]
fn a_normed_injection_is_certified_as_the_folded_network() {
    let (x, _) = images();
    for layout in [Layout::Dense, Layout::Conv] {
        for name in ["monotone", "split-sign"] {
            let what = format!("{layout:?} {name}");
            let mut model = trained(name, layout, true);
            let mut plain = folded(&mut model);
            let (logits, others) = (model.logits(&x).unwrap(), plain.logits(&x).unwrap());
            assert!(logits.iter().zip(&others).all(|(a, b)| (a - b).abs() < 1e-6), "{what}");
            let certificates =
                [&mut model, &mut plain].map(|model| model.equilibrium().unwrap().prove().unwrap());
            assert_eq!(certificates[0], certificates[1], "{what}");
            let radii = model.certified_radii(&x, &certificates[0]).unwrap();
            let others = plain.certified_radii(&x, &certificates[1]).unwrap();
            for (a, b) in radii.iter().zip(&others) {
                let (a, b) = (a.unwrap(), b.unwrap());
                assert!(a > 0.0 && (a - b).abs() < 1e-6 * b, "{what}: {a} but {b}");
            }
        }
    }
}
