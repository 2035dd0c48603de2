//! Layers from drawn configurations, and what must hold of them:
//!
//! * a configuration is refused or means one equation: the engine's `F` is the exact evaluator's `F`;
//! * where a certificate says proven, all solves from all starts that it speaks about agree, and error bounds hold;
//! * where it says refuted, its points are fixed points of that equation.

use std::ops::Range;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::map::ParametrisedMap;
use subdeq::{BoundMetric, Cpu, Equilibrium, Operator as Shape, Outcome, Picard, Scope, Stopping, Verdict};
use subdeq_map::{Form, Map, Operator, Padding};
use subdeq_theory::certificate::{Certificate, States};
use subdeq_theory::certify::NOT_CONFIRMED;

/// What came out.
#[derive(Debug, Default)]
pub struct Report {
    /// Configurations that were refused with a sentence.
    pub refused: usize,
    /// Layers that were built.
    pub built: usize,
    /// Applications compared with the exact evaluator.
    pub compared: usize,
    /// Verdicts that were proven, refuted, unproven.
    pub proven: usize,
    /// See above.
    pub refuted: usize,
    /// See above.
    pub unproven: usize,
    /// Solves that converged under a proof.
    pub solves: usize,
    /// Error bounds that were compared with the distance to the solution.
    pub bounds: usize,
    /// What went wrong; must stay empty.
    pub violations: Vec<String>,
}

/// Draws and attacks.
pub fn run(seed: u64, draws: Range<u64>) -> Report {
    let cpu: Arc<Cpu<f64>> = Arc::new(Cpu::new(1).expect("a thread"));
    let mut report = Report::default();
    for draw in draws {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(draw);
        let before = report.violations.len();
        let text = attack(&cpu, &mut rng, &mut report);
        for violation in &mut report.violations[before..] {
            *violation = format!("draw {draw}: {violation}\n    {text}");
        }
    }
    report
}

fn pick<'a, T: ?Sized>(rng: &mut ChaCha8Rng, of: &[&'a T]) -> &'a T {
    of[rng.random_range(0..of.len())]
}

/// A configuration as someone may write it: usual values mostly, any value sometimes.
fn configuration(rng: &mut ChaCha8Rng) -> String {
    let (form, parametrisation) = match rng.random_range(0..12) {
        0..=3 => ("\"Single\"", pick(rng, &["free", "absolute", "row-signed"])),
        4 => ("\"Single\"", pick(rng, &["monotone-shifted", "monotone-tied"])),
        5 => ("\"SplitSign\"", "split"),
        6 => ("{\"Divisive\":{\"q\":0.7}}", "split"),
        7 => ("{\"Rational\":{\"q\":1.0}}", "split"),
        8 => ("{\"PowerRatio\":{\"p\":0.45,\"e\":0.5}}", "split"),
        9 => ("\"Gains\"", "split-gains"),
        _ => (
            pick(
                rng,
                &["\"Single\"", "\"SplitSign\"", "\"Gains\"", "{\"PowerRatio\":{\"p\":0.6,\"e\":0.1}}"],
            ),
            pick(rng, &["free", "absolute", "split", "split-gains", "row-signed"]),
        ),
    };
    let parametrisation = if parametrisation.starts_with("monotone") {
        let margin = pick(rng, &["0.1", "0.02", "1.0"]);
        format!("{{\"name\":\"{parametrisation}\",\"margin\":{margin}}}")
    } else {
        format!("{{\"name\":\"{parametrisation}\"}}")
    };
    let activation = if form.contains("Rational") {
        "\"Softsign\""
    } else if form.contains("PowerRatio") {
        "\"Identity\""
    } else {
        pick(
            rng,
            &[
                "\"Tanh\"",
                "\"Softsign\"",
                "\"Sigmoid\"",
                "\"Relu\"",
                "{\"Softplus\":{\"beta\":2.0}}",
                "{\"HardTanh\":{\"lo\":0.0,\"hi\":1.0}}",
                "{\"HardTanh\":{\"lo\":-1.0,\"hi\":0.0}}",
                "{\"LeakyRelu\":{\"slope\":0.1}}",
            ],
        )
    };
    let odd = rng.random_bool(0.15);
    let injection = if rng.random_bool(0.3) { "Inner" } else { "Outer" };
    let injection = if form == "\"Single\"" || odd { injection } else { "Outer" };
    let power = if rng.random_bool(0.2) { pick(rng, &["0.5", "0.99", "2.0", "1.5"]) } else { "1.0" };
    let power = if form == "\"Single\"" || odd { power } else { "1.0" };
    let shifts = ["0.0", "0.3", "1.01", "1.2", "1.603", "2.0", "-0.5"];
    let (mut base, mut shift) = ("0.0", pick(rng, &shifts));
    if power != "1.0" {
        (base, shift) = (shift, "0.0");
    }
    if form.contains("PowerRatio") && !odd {
        shift = "0.0";
    }
    if odd {
        (base, shift) = (pick(rng, &shifts), pick(rng, &shifts));
    }
    let norm =
        if rng.random_bool(0.2) { pick(rng, &["\"Inf\"", "{\"P\":2.0}", "{\"P\":1.0}"]) } else { "null" };
    let tie = if form.contains("Gains") {
        "1.2"
    } else if odd {
        pick(rng, &["0.0", "1.0"])
    } else {
        "0.0"
    };
    format!(
        "{{\"name\":\"drawn\",\"form\":{form},\"activation\":{activation},\"injection\":\"{injection}\",\"base\":{base},\
         \"power\":{power},\"shift\":{shift},\"norm\":{norm},\"tie\":{tie},\"parametrisation\":{parametrisation}}}"
    )
}

fn normal(rng: &mut ChaCha8Rng) -> f64 {
    (0..12).map(|_| rng.random_range(-0.5..0.5)).sum()
}

/// The weights of a layer as the exact evaluator takes them, and below the order of its states: written again on purpose, since what
/// the layer itself makes of them is what is attacked.
fn operators(layer: &mut Equilibrium<Cpu<f64>>) -> (Operator, Option<Operator>) {
    let shape = layer.map().operator();
    let arrays = layer.weights().expect("finite weights").to_vec();
    let joined = |p: &[f64], n: &[f64]| p.iter().zip(n).map(|(p, n)| p - n).collect::<Vec<f64>>();
    let build = |weights: Vec<f64>| match shape {
        Shape::Dense { n } => Operator::dense(n, weights),
        Shape::Conv { channels, height, width, padding, .. } => {
            let kernel = if weights.len() == channels * channels {
                weights.iter().flat_map(|&w| (0..9).map(move |tap| if tap == 4 { w } else { 0.0 })).collect()
            } else {
                weights
            };
            Operator::conv(channels, height, width, padding, kernel)
        }
    };
    match arrays.as_slice() {
        [w] => (build(w.clone()).expect("an operator"), None),
        [p, n] => (build(joined(p, n)).expect("an operator"), None),
        [a, b, p, n] => {
            (build(joined(a, b)).expect("an operator"), Some(build(joined(p, n)).expect("an operator")))
        }
        other => panic!("{} weight arrays", other.len()),
    }
}

/// Images are channel after channel in the evaluator, pixel after pixel in the engine.
fn reordered(shape: &Shape, x: &[f64], to_engine: bool) -> Vec<f64> {
    let Shape::Conv { channels, height, width, .. } = *shape else { return x.to_vec() };
    let pixels = height * width;
    let mut out = vec![0.0; x.len()];
    for (image, out) in x.chunks_exact(channels * pixels).zip(out.chunks_exact_mut(channels * pixels)) {
        for c in 0..channels {
            for p in 0..pixels {
                let (first, last) = (c * pixels + p, p * channels + c);
                if to_engine { out[last] = image[first] } else { out[first] = image[last] }
            }
        }
    }
    out
}

fn attack(cpu: &Arc<Cpu<f64>>, rng: &mut ChaCha8Rng, report: &mut Report) -> String {
    let text = configuration(rng);
    let Ok(architecture) = serde_json::from_str::<ParametrisedMap>(&text) else {
        report.refused += 1;
        return text;
    };
    let conv = rng.random_bool(0.15);
    let monotone = architecture.is_monotone();
    let builder = if conv {
        let padding = if monotone { Padding::Circular } else { Padding::Zero };
        let least = if monotone { 3 } else { 1 };
        Equilibrium::conv(1, rng.random_range(least..=3), rng.random_range(least..=4)).padding(padding)
    } else {
        Equilibrium::dense(rng.random_range(1..=4))
    };
    let builder = builder.map(architecture).stopping(Stopping::relative(1e-12).max_iterations(400));
    let builder = if monotone { builder } else { builder.solver(Picard) };
    let Ok(mut layer) = builder.build_on(cpu.clone(), rng) else {
        report.refused += 1;
        return text;
    };
    report.built += 1;
    let gain = 10f64.powf(rng.random_range(-1.0..1.0));
    for index in 0..layer.parameters().len() {
        let values: Vec<f64> = (0..layer.parameters()[index].len).map(|_| gain * normal(rng)).collect();
        layer.set_parameter(index, &values).expect("a parameter of that length");
    }
    let shape = layer.map().operator();
    let map = layer.equation().expect("finite parameters");
    let (w, hidden) = match map.form() {
        // In terms of the A that it was given, not of the W that was made of it.
        Form::Tied { .. } => (layer.operator().expect("finite parameters"), None),
        _ => operators(&mut layer),
    };
    let exact = Exact { map, w, hidden, shape };
    let n = exact.w.len();
    let entries = n * map.form().injection_count();
    let signed = rng.random_bool(0.4);
    let y: Vec<f64> = (0..entries).map(|_| if signed { normal(rng) } else { normal(rng).abs() }).collect();
    compare(&mut layer, &exact, &y, rng, report);
    let widest = layer.scope();
    let y_engine = reordered(&shape, &y, true);
    for scope in [widest, Scope::Sample { y: y_engine.clone() }] {
        let sample = matches!(scope, Scope::Sample { .. });
        let certificate = layer.certify(scope).expect("a proper question");
        let covered = sample || certificate.scope.contains(&y);
        match &certificate.verdict {
            Verdict::Unproven { why, .. } => {
                report.unproven += 1;
                if why.starts_with(NOT_CONFIRMED) {
                    report.violations.push(certificate.to_string());
                }
            }
            Verdict::Refuted { witness } => {
                report.refuted += 1;
                for point in witness.points() {
                    let image = exact.apply(point, witness.y());
                    let off = image.map_or(f64::INFINITY, |image| distance(&image, point));
                    if off.is_nan() || off > 1e-6 * (1.0 + largest(point)) {
                        report
                            .violations
                            .push(format!("{point:?} is no fixed point: off by {off}; {certificate}"));
                    }
                }
            }
            Verdict::Proven { .. } => {
                report.proven += 1;
                if covered {
                    solve(&mut layer, &exact, &certificate, &y, rng, report);
                }
            }
        }
    }
    text
}

/// The equation with its weights.
struct Exact {
    map: Map,
    w: Operator,
    hidden: Option<Operator>,
    shape: Shape,
}

impl Exact {
    fn apply(&self, z: &[f64], y: &[f64]) -> Option<Vec<f64>> {
        self.map.evaluate(&self.w, self.hidden.as_ref(), z, y).ok()
    }
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |top: f64, x| if x.abs() <= top { top } else { x.abs() })
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    largest(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>())
}

/// The engine's `F` against the exact one.
fn compare(
    layer: &mut Equilibrium<Cpu<f64>>,
    exact: &Exact,
    y: &[f64],
    rng: &mut ChaCha8Rng,
    report: &mut Report,
) {
    let z: Vec<f64> = (0..exact.w.len()).map(|_| rng.random_range(0.01..2.5)).collect();
    let Some(expected) = exact.apply(&z, y) else { return };
    let found = layer.apply(&reordered(&exact.shape, y, true), &reordered(&exact.shape, &z, true));
    let found = reordered(&exact.shape, &found.expect("an application"), false);
    report.compared += 1;
    let off = distance(&found, &expected);
    // A power of a base near zero magnifies roundings.
    let size = 1.0 + largest(&expected);
    let tolerance = if exact.map.power() == 1.0 { 1e-11 } else { 1e-6 };
    if off.is_nan() || off > tolerance * size {
        report.violations.push(format!("the engine computes {found:?}, the equation says {expected:?}"));
    }
}

/// Many starts under a proof: one solution, and every error bound holds.
fn solve(
    layer: &mut Equilibrium<Cpu<f64>>,
    exact: &Exact,
    certificate: &Certificate,
    y: &[f64],
    rng: &mut ChaCha8Rng,
    report: &mut Report,
) {
    let Verdict::Proven { states, starts, factor, .. } = &certificate.verdict else { return };
    let (y_engine, n) = (reordered(&exact.shape, y, true), exact.w.len());
    let mut known: Option<Vec<f64>> = None;
    for _ in 0..5 {
        let start: Vec<f64> = match starts.unwrap_or(*states) {
            States::Positive => (0..n).map(|_| rng.random_range(1e-3..4.0)).collect(),
            States::Reals => (0..n).map(|_| rng.random_range(-4.0..4.0)).collect(),
        };
        let Ok(solution) = layer.solve_from(&y_engine, Some(&start)) else {
            report.violations.push(format!("a solve failed; {certificate}"));
            return;
        };
        let converged = solution.samples[0].outcome == Outcome::Converged;
        let z = reordered(&exact.shape, &solution.z, false);
        let image = exact.apply(&z, y);
        let residual = image.map_or(f64::INFINITY, |image| distance(&image, &z));
        if starts.is_some()
            && !converged
            && factor.is_some_and(|c| c < 0.9)
            && residual > 1e-8 * (1.0 + largest(&z))
        {
            report
                .violations
                .push(format!("plain iteration from {start:?} does not converge: {residual}; {certificate}"));
        }
        let counts = *states == States::Reals || z.iter().all(|z| *z > 0.0);
        if !converged || !counts || residual > 1e-9 * (1.0 + largest(&z)) {
            continue;
        }
        report.solves += 1;
        match &known {
            None => known = Some(z),
            Some(known) => {
                if distance(known, &z) > 1e-6 * (1.0 + largest(known)) {
                    report.violations.push(format!("two solutions, {known:?} and {z:?}; {certificate}"));
                }
            }
        }
    }
    let Some(solution) = known else { return };
    // A state that is off by a known distance: its bound must not be smaller.
    let off = 10f64.powf(rng.random_range(-6.0..-1.0));
    let moved: Vec<f64> = solution.iter().map(|z| z * (1.0 + off * rng.random_range(-1.0..1.0))).collect();
    let bounds = layer.error_bounds(&y_engine, &reordered(&exact.shape, &moved, true)).expect("bounds");
    let Some(bound) = bounds[0] else { return };
    report.bounds += 1;
    let pairs = || moved.iter().zip(&solution);
    let true_distance = match bound.metric {
        BoundMetric::Thompson => largest(&pairs().map(|(a, b)| (a / b).ln()).collect::<Vec<f64>>()),
        BoundMetric::Sup => distance(&moved, &solution),
        BoundMetric::TwoNorm => pairs().map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
    };
    if true_distance > bound.value * (1.0 + 1e-6) + 1e-8 {
        report
            .violations
            .push(format!("a bound of {bound:?} at a distance of {true_distance}; {certificate}"));
    }
}
