//! What a layer promises: certificates that are never wrong, bounds that are never exceeded, bits that do not depend on
//! the batch, and errors that say what to do.

use std::sync::Arc;

use crate::common::{builder, built, cpu, describe, injections, maps, random, rng};
use rand::Rng;
use subdeq::map::{MonDeq, Monotone, ParametrisedMap, PowerRatio, Rational, SplitSign, SubDeq};
use subdeq::subdeq_engine::{Equilibria, Parametrise};
use subdeq::{
    Activation, Adjoint, Anderson, BoundMetric, Cpu, Device, Equilibrium, Error, ForwardBackward, Init,
    Layout, Outcome, Parametrisation, PeacemanRachford, Picard, Scope, Stopping,
};

/// E1 of the theory: `tanh(Wz) + 1.2` with two stable fixed points.
#[test]
fn two_starts_two_answers_and_no_promise() {
    let mut layer = Equilibrium::dense(2)
        .map(SubDeq::Tanh)
        .solver(Picard)
        .stopping(Stopping::absolute(1e-12))
        .build_on(cpu::<f64>(), &mut rng(0))
        .unwrap();
    layer.set_parameter(0, &[2.0, -2.0, 0.0, 0.0]).unwrap();
    let solve = |layer: &mut Equilibrium<Cpu<f64>>, start: [f64; 2]| {
        layer.solve_from(&[0.0, 0.0], Some(&start)).unwrap().require_converged().unwrap().z
    };
    let (up, down) = (solve(&mut layer, [2.0, 1.0]), solve(&mut layer, [0.3, 1.2]));
    assert!((up[0] - 2.157_504_02).abs() < 1e-8 && (down[0] - 0.242_495_98).abs() < 1e-8, "{up:?} {down:?}");
    let certificate = layer.certify(layer.scope()).unwrap();
    assert!(!certificate.verdict.is_proven(), "{certificate}");
    let sample = layer.certify(Scope::Sample { y: vec![0.0, 0.0] }).unwrap();
    assert!(!sample.verdict.is_proven(), "{sample}");
}

#[test]
fn certified_stopping_without_a_certificate_is_an_error_that_says_so() {
    let mut layer = Equilibrium::dense(20)
        .map(SubDeq::Tanh)
        .stopping(Stopping::certified(1e-4))
        .build_on(cpu::<f32>(), &mut rng(0))
        .unwrap();
    let wild: Vec<f32> = random(400, 1).iter().map(|&x| 5.0 * x as f32).collect();
    layer.set_parameter(0, &wild).unwrap();
    let error = layer.solve(&[0.0; 20]).unwrap_err();
    assert!(matches!(error, Error::NoCertificate { .. }), "{error}");
    assert!(error.to_string().contains("Stopping::relative"), "{error}");
}

/// The sound maps, by their certificate at any weights.
fn sound(layout: Layout) -> Vec<ParametrisedMap> {
    let mut sound: Vec<ParametrisedMap> =
        ["excitatory", "row-signed", "split-sign", "divisive", "rational", "power-ratio", "gains"]
            .iter()
            .map(|name| ParametrisedMap::named(name, layout).unwrap())
            .collect();
    sound.push(built(Monotone::new(Activation::Relu).shifted(0.2)));
    sound.push(built(Monotone::new(Activation::Tanh).shifted(0.5).outer(0.0)));
    sound.push(built(Monotone::new(Activation::Relu).tied(1.0)));
    sound.push(built(Monotone::new(Activation::Tanh).tied(0.5).outer(0.0)));
    if layout == Layout::Conv {
        sound.push(built(Monotone::new(Activation::Relu).tied(1.0)).with_kernel(1).unwrap());
    }
    if layout == Layout::Dense {
        sound.push(built(Monotone::new(Activation::Softsign).product(0.5)));
        sound.push(built(SubDeq::AbsNormalizedTanh));
    }
    sound
}

/// Weights whose certificate is about what they are made of, made of that in `f64`.
fn exact_weights(device: &Cpu<f64>, layer: &Equilibrium<Cpu<f32>>, tied: Parametrisation) -> Vec<f64> {
    let free: Vec<_> = layer
        .parameters()
        .iter()
        .map(|p| device.upload(&p.value.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()).unwrap())
        .collect();
    let mut weights = device.weights(layer.map(), tied).unwrap();
    device.make_weights(&mut weights, &free.iter().collect::<Vec<_>>()).unwrap();
    device.weight_arrays(&weights)[0].to_vec()
}

/// The solutions of a layer's systems with the very weights it has, by the engine in `f64`; `None` if they cannot be
/// computed accurately enough to measure with.
fn exact(device: &Cpu<f64>, layer: &mut Equilibrium<Cpu<f32>>, y: &[f32]) -> Option<Vec<f64>> {
    let double = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    let map = *layer.map();
    let weights: Vec<Vec<f64>> = match layer.architecture().parametrisation() {
        tied @ Parametrisation::MonotoneTied { .. } => vec![exact_weights(device, layer, tied)],
        _ => layer.weights().unwrap().iter().map(|w| double(w)).collect(),
    };
    let tie = map.equation().tie();
    let batch = y.len() / map.injection_len();
    let mut y = double(y);
    if tie != 0.0 {
        let units = map.operator().units();
        let sums: Vec<f64> = weights[1].chunks(units).map(|row| tie * row.iter().sum::<f64>()).collect();
        y.iter_mut().enumerate().for_each(|(i, y)| *y += sums[i % units]);
    }
    let mut plan = device.plan(&map, batch).unwrap();
    let arrays: Vec<_> = weights.iter().map(|w| device.upload(w).unwrap()).collect();
    device.load(&mut plan, &arrays.iter().collect::<Vec<_>>()).unwrap();
    let solver = match layer.step() {
        Some(step) => subdeq_engine::Solver::PeacemanRachford { step },
        None => subdeq_engine::Solver::Picard,
    };
    let stopping = subdeq_engine::Stopping {
        measure: subdeq_engine::Measure::Relative,
        tolerance: 1e-13,
        max_iterations: 100_000,
        extent: subdeq_engine::Extent::PerSample,
    };
    let mut z = device.zeros(batch * map.operator().state_len()).unwrap();
    let mut reports = vec![subdeq::SampleReport::default(); batch];
    let start = subdeq_engine::Start::Constant(1.0);
    device
        .solve(&mut plan, batch, &device.upload(&y).unwrap(), &solver, &stopping, start, &mut z, &mut reports)
        .unwrap();
    reports.iter().all(|r| r.converged()).then(|| z.to_vec())
}

/// Solves systems loosely in `f32`, bounds their errors, and measures them. Returns how many were measured.
fn bounds_hold(layout: Layout, rounds: usize, batch: usize) -> usize {
    let mut systems = 0;
    let mut rng = rng(11);
    let device64: Arc<Cpu<f64>> = cpu();
    let device32: Arc<Cpu<f32>> = cpu();
    for round in 0..rounds {
        for map in sound(layout) {
            let what = format!("round {round} {}", describe(&map, layout));
            let loose = Stopping::relative(10f64.powf(rng.random_range(-5.0..-1.0)));
            let mut layer: Equilibrium<Cpu<f32>> = builder(layout)
                .map(map.clone())
                .stopping(loose)
                .build_on(device32.clone(), &mut rng)
                .unwrap();
            // Weights over three decades.
            let scale = 10f32.powf(rng.random_range(-1.5..1.5));
            for k in 0..layer.parameters().len() {
                let len = layer.parameters()[k].len;
                let free: Vec<f32> = (0..len).map(|_| scale * rng.random_range(-1.0f32..1.0)).collect();
                layer.set_parameter(k, &free).unwrap();
            }
            let y: Vec<f32> =
                (0..batch * layer.map().injection_len()).map(|_| rng.random_range(0.0f32..2.0)).collect();
            let z = layer.solve(&y).unwrap().z;
            let bounds = layer.error_bounds(&y, &z).unwrap();
            let Some(solution) = exact(&device64, &mut layer, &y) else { continue };
            let len = layer.map().operator().state_len();
            for (sample, bound) in bounds.iter().enumerate() {
                let Some(bound) = bound else {
                    panic!("{what}: no bound, {}", layer.certify(layer.scope()).unwrap())
                };
                let range = sample * len..(sample + 1) * len;
                let pairs = z[range.clone()].iter().zip(&solution[range.clone()]);
                let distance = match bound.metric {
                    BoundMetric::Thompson => {
                        pairs.map(|(a, b)| (f64::from(*a) / b).ln().abs()).fold(0.0, f64::max)
                    }
                    BoundMetric::Sup => pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max),
                    BoundMetric::TwoNorm => {
                        pairs.map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt()
                    }
                };
                // The yardstick is accurate to about 1e-13 / (1 - factor); errors of f32 are a thousand times larger.
                let size = solution[range].iter().fold(1.0f64, |m, z| m.max(z.abs()));
                assert!(distance <= bound.value + 1e-10 * size, "{what}: {distance:e} exceeds {bound:?}");
                systems += 1;
            }
        }
    }
    systems
}

#[test]
fn the_certified_error_bound_is_never_exceeded() {
    let systems = bounds_hold(Layout::Dense, 240, 4) + bounds_hold(Layout::Conv, 50, 3);
    assert!(systems >= 10_000, "only {systems} systems were measured");
}

#[test]
fn certified_stopping_delivers_the_distance() {
    for map in sound(Layout::Dense) {
        let what = describe(&map, Layout::Dense);
        let solvers = if map.is_monotone() {
            let given = Some(0.3);
            vec![
                PeacemanRachford::default().into(),
                PeacemanRachford { step: given }.into(),
                ForwardBackward::default().into(),
            ]
        } else {
            vec![subdeq::Solver::Picard, Anderson::default().into()]
        };
        for solver in solvers {
            let stopping = Stopping::certified(1e-3).max_iterations(5_000);
            let mut layer = builder(Layout::Dense)
                .map(map.clone())
                .solver(solver)
                .stopping(stopping)
                .build_on(cpu::<f32>(), &mut rng(5))
                .unwrap();
            let y: Vec<f32> = injections(layer.map().injection_len(), 6).iter().map(|&y| y as f32).collect();
            let solution =
                layer.solve(&y).unwrap().require_converged().unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(solution.samples.iter().all(|s| s.error_bound.unwrap().value <= 1e-3), "{what}");
            assert!(layer.certify(layer.scope()).unwrap().verdict.is_proven(), "{what}");
        }
    }
}

/// A wrong 5x5 operator, here or in the theory, would show as a bound that is not met.
#[test]
fn products_of_kernels_are_proven_on_images() {
    let maps: [ParametrisedMap; 3] = [
        built(MonDeq::Relu),
        built(MonDeq::Tanh),
        built(Monotone::new(Activation::Softsign).product(0.5).outer(0.2)),
    ];
    for map in maps {
        let what = describe(&map, Layout::Conv);
        let mut layer = Equilibrium::conv(2, 5, 6)
            .map(map.clone())
            .stopping(Stopping::certified(1e-4).max_iterations(5_000))
            .build_on(cpu::<f32>(), &mut rng(5))
            .unwrap();
        assert!(layer.certify(layer.scope()).unwrap().verdict.is_proven(), "{what}");
        let y: Vec<f32> = injections(layer.map().injection_len(), 6).iter().map(|&y| y as f32).collect();
        let solution = layer.solve(&y).unwrap().require_converged().unwrap();
        assert!(solution.samples.iter().all(|s| s.error_bound.unwrap().value <= 1e-4), "{what}");
        // Two taps on one pixel: the theory says what it needs instead of guessing.
        let mut small = Equilibrium::conv(2, 4, 6).map(map).build_on(cpu::<f32>(), &mut rng(5)).unwrap();
        assert!(small.certify(small.scope()).unwrap_err().to_string().contains("5 x 5"), "{what}");
    }
}

#[test]
fn a_sample_has_the_same_bits_in_any_batch_and_with_any_number_of_threads() {
    for layout in [Layout::Dense, Layout::Conv] {
        for map in maps(layout) {
            let mut reference: Option<Vec<f32>> = None;
            for threads in [1, 3] {
                let mut layer = builder(layout)
                    .map(map.clone())
                    .build_on(Arc::new(Cpu::<f32>::new(threads).unwrap()), &mut rng(3))
                    .unwrap();
                let (len, state) = (layer.map().injection_len(), layer.map().operator().state_len());
                let y: Vec<f32> = (0..9 * len).map(|i| ((i * 37 % 101) as f32) / 101.0).collect();
                let whole = layer.solve(&y).unwrap().z;
                let mut shuffled = Vec::new();
                for sample in (0..9).rev() {
                    shuffled.extend_from_slice(&y[sample * len..(sample + 1) * len]);
                }
                let backwards = layer.solve(&shuffled).unwrap().z;
                for sample in 0..9 {
                    let here = &whole[sample * state..(sample + 1) * state];
                    assert_eq!(
                        here,
                        &backwards[(8 - sample) * state..(9 - sample) * state],
                        "{}",
                        describe(&map, layout)
                    );
                    let alone = layer.solve(&y[sample * len..(sample + 1) * len]).unwrap().z;
                    assert_eq!(here, alone, "{}", describe(&map, layout));
                }
                assert_eq!(reference.get_or_insert(whole.clone()), &whole, "{threads} threads");
            }
        }
    }
}

#[test]
fn any_positive_start_gives_the_same_answer_within_the_bounds() {
    let mut rng = rng(21);
    for map in sound(Layout::Dense).into_iter().filter(|map| !map.is_monotone()) {
        let mut layer = builder(Layout::Dense)
            .map(map.clone())
            .solver(Picard)
            .stopping(Stopping::certified(1e-5).max_iterations(5_000))
            .build_on(cpu::<f64>(), &mut rng)
            .unwrap();
        let y = injections(layer.map().injection_len(), 8);
        let states = 2 * layer.map().operator().state_len();
        let answers: Vec<Vec<f64>> = (0..3)
            .map(|_| {
                let start: Vec<f64> = (0..states).map(|_| 10f64.powf(rng.random_range(-3.0..3.0))).collect();
                layer.solve_from(&y, Some(&start)).unwrap().require_converged().unwrap().z
            })
            .collect();
        for other in &answers[1..] {
            let apart = other.iter().zip(&answers[0]).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max);
            assert!(apart <= 2e-5, "{}: {apart:e}", map.name());
        }
    }
}

/// Split-sign is unique for every weight and every `y >= 0`. Below zero it is not, and nothing is promised there.
#[test]
fn a_promise_ends_where_its_inputs_end() {
    let mut layer = Equilibrium::dense(2)
        .map(SplitSign::new(Activation::Softsign, 1.2))
        .build_on(cpu::<f64>(), &mut rng(0))
        .unwrap();
    layer.set_parameter(0, &[0.0, -5.0, -5.0, 0.0]).unwrap();
    assert_eq!(layer.scope(), Scope::NonnegativeInputs);
    assert!(layer.certify(Scope::NonnegativeInputs).unwrap().verdict.is_proven());
    assert!(!layer.certify(Scope::AllInputs).unwrap().verdict.is_proven());
    assert!(!layer.certify(Scope::Sample { y: vec![-1.2; 2] }).unwrap().verdict.is_proven());
    let y = [-1.2, -1.2, 0.5, 0.0];
    let z = layer.solve(&y).unwrap().z;
    let bounds = layer.error_bounds(&y, &z).unwrap();
    assert!(bounds[0].is_none() && bounds[1].is_some(), "{bounds:?}");
    // Whereas a monotone map keeps its promise everywhere.
    let mut monotone = Equilibrium::dense(2)
        .map(Monotone::new(Activation::Relu))
        .build_on(cpu::<f64>(), &mut rng(0))
        .unwrap();
    assert_eq!(monotone.scope(), Scope::AllInputs);
    let mut monotone_exactly = |y: &[f64]| {
        let mut z = vec![0.0; y.len()];
        for _ in 0..100_000 {
            let image = monotone.apply(y, &z).unwrap();
            z.iter_mut().zip(&image).for_each(|(z, f)| *z += 0.1 * (f - *z));
        }
        z
    };
    let exact = monotone_exactly(&y);
    let off: Vec<f64> = exact.iter().enumerate().map(|(i, z)| z + [0.1, -0.03, 0.0, 0.02][i]).collect();
    let bounds = monotone.error_bounds(&y, &off).unwrap();
    for (sample, bound) in bounds.iter().enumerate() {
        let bound = bound.expect("a bound for every input");
        let moved = off[2 * sample..][..2].iter().zip(&exact[2 * sample..]).map(|(a, b)| (a - b).abs());
        let distance = match bound.metric {
            BoundMetric::TwoNorm => moved.map(|d| d * d).sum::<f64>().sqrt(),
            BoundMetric::Sup => moved.fold(0.0, f64::max),
            BoundMetric::Thompson => panic!("a monotone map has states of any sign"),
        };
        // It holds, and says something: the margin is what it may be loose by.
        assert!(
            (distance..1000.0 * distance).contains(&bound.value),
            "{bound:?} for a distance of {distance}"
        );
    }
}

#[test]
fn a_solve_that_fails_says_so() {
    let mut layer = Equilibrium::dense(3)
        .map(SubDeq::Tanh)
        .solver(Picard)
        .stopping(Stopping::relative(1e-6).max_iterations(2))
        .build_on(cpu::<f32>(), &mut rng(0))
        .unwrap();
    let solution = layer.solve(&[0.1; 6]).unwrap();
    assert!(solution.samples.iter().all(|s| s.outcome == Outcome::IterationLimit && s.iterations == 2));
    let error = solution.require_converged().unwrap_err();
    assert!(
        error.to_string().starts_with("2 of 2 solves did not converge; the first is sample 0"),
        "{error}"
    );

    let mut layer = Equilibrium::dense(3)
        .map(SubDeq::Tanh)
        .solver(Picard)
        .stopping(Stopping::relative(1e-12))
        .build_on(cpu::<f32>(), &mut rng(0))
        .unwrap();
    // A tolerance below what f32 can reach: the residual either becomes exactly zero or stops falling, which is said.
    let solution = layer.solve(&[0.1; 3]).unwrap();
    let sample = &solution.samples[0];
    let image = layer.apply(&[0.1; 3], &solution.z).unwrap();
    let settled = image.iter().zip(&solution.z).all(|(f, z)| (f - z).abs() <= 4.0 * f32::EPSILON * z.abs());
    assert!(settled, "{sample:?}: {image:?} and {:?}", solution.z);
    assert!(
        matches!(sample.outcome, Outcome::Stagnated) || image == solution.z,
        "{sample:?} is called solved to 1e-12 at {image:?} and {:?}",
        solution.z
    );
}

#[test]
fn bad_values_are_refused_with_a_reason() {
    let mut rng = rng(0);
    let refused = |result: Result<Equilibrium<Cpu<f32>>, Error>, part: &str| {
        let error = result.err().expect("must be refused").to_string();
        assert!(error.contains(part), "{error}");
    };
    let device = cpu::<f32>();
    let dense = || Equilibrium::dense(4);
    refused(Equilibrium::dense(0).build_on(device.clone(), &mut rng), "empty state");
    refused(dense().map(Rational::new(0.2).q(-1.0)).build_on(device.clone(), &mut rng), "q above 0, not -1");
    refused(dense().map(PowerRatio::new(0.4).e(0.0)).build_on(device.clone(), &mut rng), "e above 0, not 0");
    refused(dense().solver(PeacemanRachford::default()).build_on(device.clone(), &mut rng), "monotone");
    refused(dense().adjoint(Adjoint::Phantom { steps: 0 }).build_on(device.clone(), &mut rng), "at least 1");
    refused(
        dense().map(Monotone::new(Activation::Relu).shifted(0.0)).build_on(device.clone(), &mut rng),
        "above 0",
    );

    let mut layer = dense().init(Init::Paper).build_on(device, &mut rng).unwrap();
    let error = |layer: &mut Equilibrium<Cpu<f32>>, y: &[f32]| layer.solve(y).unwrap_err().to_string();
    assert!(error(&mut layer, &[]).contains("0 numbers"));
    assert!(error(&mut layer, &[0.0; 5]).contains("5 numbers is not a whole number of samples of 4"));
    assert!(
        error(&mut layer, &[0.0, 0.0, 0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0])
            .contains("entry 1 of the injection of sample 1 is NaN")
    );
    let good = layer.solve(&[0.3; 4]).unwrap().z;
    let weights = layer.weights().unwrap().to_vec();
    let mut free = vec![0.0f32; 16];
    subdeq::Device::read(&**layer.device(), &layer.parameters()[0].value, 0, &mut free).unwrap();
    layer.set_parameter(0, &[f32::INFINITY; 16]).unwrap();
    assert!(error(&mut layer, &[0.0; 4]).contains("entry 0 of the parameter `weight`"));
    // A failed load leaves nothing behind.
    layer.set_parameter(0, &free).unwrap();
    assert_eq!(layer.solve(&[0.3; 4]).unwrap().z, good);
    assert_eq!(layer.weights().unwrap(), weights);
    assert!(layer.set_parameter(0, &[0.0; 3]).is_err());
    assert!(layer.set_parameter(1, &[0.0; 16]).is_err());
    let unknown = ParametrisedMap::named("subdeq-sine", Layout::Dense).unwrap_err().to_string();
    assert!(unknown.contains("there is no map `subdeq-sine`; known are subdeq-tanh"));
    assert!(SplitSign::new(Activation::Tanh, 1.3) == SplitSign::new(Activation::Tanh, 1.3));
}
