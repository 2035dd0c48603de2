//! The attack itself: draw systems of many kinds, certify them in every way there is, and try to catch a certificate lying:
//! with two fixed points, with plain iteration that does not converge where it was promised to, or with a step that
//! contracts less than the certified factor.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use subdeq_theory::activation::Activation;
use subdeq_theory::certificate::{Certificate, Domain, Evidence, Metric, Scope, Theorem, Verdict};
use subdeq_theory::certify::Certifier;
use subdeq_theory::map::{Form, Groups, Injection, Layout, MapSpec, Normalisation, PNorm};
use subdeq_theory::monotone;
use subdeq_theory::operator::{Operator, Padding};

use super::evaluate::System;

/// What to attack and how hard.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Number of the first draw; a violation is repeated by starting at its number.
    pub first: usize,
    /// Systems to draw.
    pub draws: usize,
    /// Starts per certified system.
    pub starts: usize,
    /// Seed of everything.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Systems drawn.
    pub drawn: usize,
    /// Systems with at least one certificate, each attacked.
    pub certified: usize,
    /// Certificates, by theorem.
    pub by_theorem: std::collections::BTreeMap<String, usize>,
    /// Certified systems, by family of weights.
    pub by_family: std::collections::BTreeMap<&'static str, usize>,
    /// Certified systems whose recheck was made (all of at most 20 entries).
    pub rechecked: usize,
    /// What went wrong; must stay empty.
    pub violations: Vec<String>,
}

impl Report {
    fn merge(mut self, other: Report) -> Report {
        self.drawn += other.drawn;
        self.certified += other.certified;
        self.rechecked += other.rechecked;
        for (key, count) in other.by_theorem {
            *self.by_theorem.entry(key).or_default() += count;
        }
        for (key, count) in other.by_family {
            *self.by_family.entry(key).or_default() += count;
        }
        self.violations.extend(other.violations);
        self
    }
}

/// Draws, certifies and attacks.
pub fn run(settings: Settings) -> Report {
    (settings.first..settings.first + settings.draws)
        .into_par_iter()
        .map(|draw| attack_draw(settings, draw as u64))
        .reduce(Report::default, Report::merge)
}

/// The families of weights of THEORY.md section 8.
pub const FAMILIES: [&str; 8] =
    ["gaussian", "balanced", "competitive", "symmetric", "sparse", "rank one", "inhibitory", "antisymmetric"];

/// A standard normal number.
pub fn normal(rng: &mut ChaCha8Rng) -> f64 {
    let (u, v): (f64, f64) = (rng.random_range(f64::MIN_POSITIVE..1.0), rng.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

/// An `n x n` matrix of the family with entries of size `gain / sqrt(n)`.
pub fn matrix(family: &str, n: usize, gain: f64, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let scale = gain / (n as f64).sqrt();
    let mut w: Vec<f64> = (0..n * n).map(|_| scale * normal(rng)).collect();
    let signs: Vec<f64> = (0..n).map(|_| if rng.random() { 1.0 } else { -1.0 }).collect();
    let (left, right): (Vec<f64>, Vec<f64>) = (0..n).map(|_| (normal(rng), normal(rng))).unzip();
    let original = w.clone();
    for i in 0..n {
        for j in 0..n {
            let (x, transposed) = (original[i * n + j], original[j * n + i]);
            w[i * n + j] = match family {
                "balanced" => signs[i] * x.abs() * signs[j],
                "competitive" if i == j => x.abs() * (n as f64).sqrt(),
                "competitive" | "inhibitory" => -x.abs(),
                "symmetric" => 0.5 * (x + transposed) * std::f64::consts::SQRT_2,
                "antisymmetric" => (x - transposed) * std::f64::consts::FRAC_1_SQRT_2,
                "sparse" if rng.random_bool(0.7) => 0.0,
                "sparse" => x * 1.8,
                "rank one" => scale * left[i] * right[j],
                _ => x,
            };
        }
    }
    w
}

fn size(rng: &mut ChaCha8Rng) -> usize {
    match rng.random_range(0..1000) {
        0..=2 => rng.random_range(30..=87),
        3..=19 => rng.random_range(10..=20),
        20..=199 => rng.random_range(6..=9),
        _ => rng.random_range(2..=5),
    }
}

/// A drawn system before it is certified.
struct Draw {
    family: &'static str,
    map: MapSpec,
    weights: Operator,
    y: Vec<f64>,
}

fn draw_system(rng: &mut ChaCha8Rng) -> Draw {
    let family = FAMILIES[rng.random_range(0..FAMILIES.len())];
    let gain = 10f64.powf(rng.random_range(-1.0..0.6));
    let kind = rng.random_range(0..100);
    let mut n = size(rng);
    let softsign = rng.random_bool(0.3);
    let s = if softsign { Activation::Softsign } else { Activation::Tanh };
    let mut map = MapSpec::single(s, 1.2);
    if rng.random_bool(0.25) {
        map.injection = Injection::Inner;
    }
    let mut weights = None;
    match kind {
        0..=7 => {
            let channels = rng.random_range(1..=2);
            let (h, w) = (rng.random_range(3..=4), rng.random_range(3..=4));
            let padding = if rng.random() { Padding::Zero } else { Padding::Circular };
            let scale = gain / (9.0 * channels as f64).sqrt();
            let kernel = (0..channels * channels * 9).map(|_| scale * normal(rng)).collect();
            weights = Operator::conv(channels, h, w, padding, kernel).ok();
        }
        8..=17 => {
            n = n.min(8);
            let p = [PNorm::Inf, PNorm::Finite(1.0), PNorm::Finite(2.0)][rng.random_range(0..3)];
            let groups = if rng.random_bool(0.3) { Groups::Blocks { size: 2 } } else { Groups::WholeVector };
            map = MapSpec { normalisation: Some(Normalisation::new(p, groups)), ..MapSpec::single(s, 1.603) };
        }
        18..=32 => {
            n = n.min(8);
            let names = [
                "split-sign",
                "divisive",
                "rational",
                "power-ratio",
                "gains",
                "monomial",
                "excitatory",
                "row-signed",
            ];
            let name = names[rng.random_range(0..names.len())];
            map = MapSpec::named(name, Layout::Dense).expect("a known name");
            let mut w = matrix(family, n, gain * 10f64.powf(rng.random_range(-1.0..1.5)), rng);
            match name {
                "excitatory" => w.iter_mut().for_each(|x| *x = x.abs()),
                "row-signed" => {
                    let signs: Vec<f64> = (0..n).map(|_| if rng.random() { 1.0 } else { -1.0 }).collect();
                    w.iter_mut().enumerate().for_each(|(k, x)| *x = signs[k / n] * x.abs());
                }
                _ => {}
            }
            weights = Operator::dense(n, w).ok();
        }
        33..=39 => {
            n = n.min(8);
            map = MapSpec::named("monotone", Layout::Dense).expect("a known name");
            map.activation =
                [Activation::Relu, Activation::Tanh, Activation::Softsign][rng.random_range(0..3)];
            let v = Operator::dense(n, matrix(family, n, 3.0 * gain, rng)).expect("finite");
            weights = monotone::shifted(&v, rng.random_range(0.02..0.9)).ok().map(|(w, _)| w);
        }
        _ => {}
    }
    let weights =
        weights.unwrap_or_else(|| Operator::dense(n, matrix(family, n, gain, rng)).expect("finite"));
    let entries = weights.len() * if matches!(map.form, Form::PowerRatio { .. }) { 2 } else { 1 };
    let zero = rng.random_bool(0.4);
    let y = (0..entries).map(|_| if zero { 0.0 } else { 2.0 * normal(rng).max(0.0) }).collect();
    Draw { family, map, weights, y }
}

/// The tests tried on a plain layer, besides the verdicts for all inputs and for the sample.
const CLOSING: [(Domain, Theorem); 11] = {
    use Theorem::*;
    [
        (Domain::Everywhere, WeightedSup),
        (Domain::Everywhere, WeightedTwoNorm),
        (Domain::Everywhere, DiagonalStability),
        (Domain::Propagated { steps: 0 }, WeightedSup),
        (Domain::Propagated { steps: 0 }, LogJacobian),
        (Domain::Propagated { steps: 50 }, WeightedSup),
        (Domain::Propagated { steps: 50 }, DiagonalStability),
        (Domain::Propagated { steps: 50 }, SlopeInterval),
        (Domain::Propagated { steps: 50 }, SecantWeightedSup),
        (Domain::Propagated { steps: 50 }, SecantTwoNorm),
        (Domain::Propagated { steps: 50 }, SecantDiagonalStability),
    ]
};

fn close(draw: &Draw, weights: &Operator, domain: Domain, theorem: Theorem) -> Option<Certificate> {
    let scope =
        if domain == Domain::Everywhere { Scope::AllInputs } else { Scope::Sample { y: draw.y.clone() } };
    Certifier::proofs_only().close(&draw.map, weights, &scope, domain, theorem).expect("a proper question")
}

fn attack_draw(settings: Settings, draw_number: u64) -> Report {
    let mut rng = ChaCha8Rng::seed_from_u64(settings.seed);
    rng.set_stream(draw_number);
    let mut draw = draw_system(&mut rng);
    let plain = draw.map.form == Form::Single && draw.map.normalisation.is_none();
    // Some systems are pushed to the boundary of one test, some further by climbing inside it.
    let mut certificates = Vec::new();
    if plain && rng.random_bool(0.15) && draw.weights.len() <= 12 {
        let (domain, theorem) = CLOSING[rng.random_range(0..CLOSING.len())];
        if let Some(weights) = largest_scale(&draw, domain, theorem) {
            draw.weights = weights;
            if rng.random_bool(0.2) && draw.weights.len() <= 6 {
                climb(&mut draw, domain, theorem, &mut rng);
            }
            certificates.extend(close(&draw, &draw.weights, domain, theorem));
        }
    }
    let mut certifier = Certifier::proofs_only();
    certificates.push(certifier.sample(&draw.map, &draw.weights, &draw.y).expect("a proper question"));
    certificates.push(certifier.all_inputs(&draw.map, &draw.weights).expect("a proper question"));
    if plain && rng.random_bool(0.3) {
        let (domain, theorem) = CLOSING[rng.random_range(0..CLOSING.len())];
        certificates.extend(close(&draw, &draw.weights, domain, theorem));
    }
    certificates.retain(|c| c.verdict.is_proven());

    let mut report = Report { drawn: 1, ..Report::default() };
    if certificates.is_empty() {
        return report;
    }
    report.certified = 1;
    *report.by_family.entry(draw.family).or_default() += 1;
    for certificate in &certificates {
        if let Verdict::Proven { theorem, .. } = certificate.verdict {
            *report.by_theorem.entry(theorem.to_string()).or_default() += 1;
        }
    }
    let system = System::new(&draw.map, &draw.weights, &draw.y);
    if let Err(what) = attack(&system, &certificates, settings.starts, &mut rng) {
        report.violations.push(format!("draw {draw_number} ({}): {what}; {}", draw.family, certificates[0]));
    }
    if draw.weights.len() <= 20 {
        report.rechecked = 1;
        for certificate in &certificates {
            if let Err(error) = certificate.recheck(&draw.weights) {
                report.violations.push(format!("draw {draw_number}: {error}; {certificate}"));
            }
        }
    }
    report
}

/// The weights times the largest factor at which the test still accepts (between 1/16 and 64).
fn largest_scale(draw: &Draw, domain: Domain, theorem: Theorem) -> Option<Operator> {
    let scaled = |t: f64| rescale(&draw.weights, |w| t * w);
    let accepted = |t: f64| close(draw, &scaled(t), domain, theorem).is_some();
    let (mut low, mut high) = (1.0 / 16.0, 64.0);
    if !accepted(low) {
        return None;
    }
    for _ in 0..14 {
        let middle = f64::sqrt(low * high);
        if accepted(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(scaled(low))
}

fn rescale(weights: &Operator, mut change: impl FnMut(f64) -> f64) -> Operator {
    let entries: Vec<f64> = weights.weights().iter().map(|&w| change(w)).collect();
    match weights.as_conv() {
        Some(conv) => Operator::conv(conv.channels(), conv.height(), conv.width(), conv.padding(), entries)
            .expect("finite"),
        None => Operator::dense(weights.len(), entries).expect("finite"),
    }
}

/// Hill climbing towards a second fixed point without leaving the certified set: larger is how far apart two
/// trajectories still are after some steps, over several pairs of starts.
fn climb(draw: &mut Draw, domain: Domain, theorem: Theorem, rng: &mut ChaCha8Rng) {
    let separation = |weights: &Operator, rng: &mut ChaCha8Rng| {
        let system = System::new(&draw.map, weights, &draw.y);
        let mut far = 0.0f64;
        for _ in 0..4 {
            let (mut a, mut b) = (system.start(rng), system.start(rng));
            for _ in 0..12 {
                (a, b) = (system.apply(&a), system.apply(&b));
            }
            far = far.max(distance(&a, &b));
        }
        far
    };
    let mut weights = draw.weights.clone();
    let mut best = separation(&weights, rng);
    for _ in 0..15 {
        let size = 0.1 * weights.weights().iter().map(|w| w.abs()).fold(0.0, f64::max);
        let candidate = rescale(&weights, |w| w + size * normal(rng));
        let value = separation(&candidate, rng);
        if value > best && close(draw, &candidate, domain, theorem).is_some() {
            (weights, best) = (candidate, value);
        }
    }
    draw.weights = weights;
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

/// Many starts: every limit of plain iteration and every zero that Newton's method finds must be the same point, and each
/// step must contract as the certificates say.
pub fn attack(
    system: &System<'_>,
    certificates: &[Certificate],
    starts: usize,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    let picard =
        certificates.iter().any(|c| matches!(c.verdict, Verdict::Proven { picard_converges: true, .. }));
    let mut solution: Option<Vec<f64>> = None;
    for start in 0..starts {
        let z0 = if start < 3 { system.corner(start) } else { system.start(rng) };
        // A third of the starts goes straight to Newton's method, which also finds unstable fixed points.
        let (z, residual) =
            if start % 3 == 2 { (z0.clone(), f64::INFINITY) } else { system.iterate(z0.clone(), 300) };
        let found = if residual < 1e-12 { Some(z) } else { system.newton(z) };
        let Some(found) = found else { continue };
        match &solution {
            None => solution = Some(found),
            Some(known) => {
                let scale = 1.0 + known.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
                if distance(known, &found) > 1e-6 * scale {
                    return Err(format!("two fixed points, {known:?} and {found:?}"));
                }
            }
        }
    }
    let Some(solution) = solution else {
        return if picard { Err("plain iteration converges nowhere".to_owned()) } else { Ok(()) };
    };
    certificates.iter().try_for_each(|certificate| contraction_holds(system, certificate, &solution, rng))
}

/// `d(F z, z*) <= factor d(z, z*)` along a trajectory, from where the certificate speaks.
fn contraction_holds(
    system: &System<'_>,
    certificate: &Certificate,
    solution: &[f64],
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    let Verdict::Proven { factor: Some(factor), metric, evidence, .. } = &certificate.verdict else {
        return Ok(());
    };
    let enter = match evidence {
        Evidence::Closing { domain: Domain::Everywhere, .. } => 0,
        Evidence::Closing { domain: Domain::Propagated { steps }, .. }
        | Evidence::Secant { steps, .. }
        | Evidence::NormalisedBox { steps } => steps + 1,
        _ => usize::from(system.is_normalised()),
    };
    for _ in 0..2 {
        let mut z = system.start(rng);
        for _ in 0..enter {
            z = system.apply(&z);
        }
        for _ in 0..4 {
            let next = system.apply(&z);
            let (before, after) =
                (measure(metric, system, &z, solution), measure(metric, system, &next, solution));
            // Close to the solution only its own error (1e-11, say) would be measured.
            let blur: Vec<f64> = solution.iter().map(|x| x + 1e-11).collect();
            let noise = measure(metric, system, &blur, solution);
            if after > factor * before * (1.0 + 1e-6) + 1e-9 + noise {
                return Err(format!("a step from {z:?} contracts by {} only", after / before));
            }
            z = next;
        }
    }
    Ok(())
}

fn measure(metric: &Metric, system: &System<'_>, a: &[f64], b: &[f64]) -> f64 {
    let weight = |v: &[f64], i: usize| if v.is_empty() { 1.0 } else { v[i * v.len() / a.len()] };
    let logs = || a.iter().zip(b).map(|(x, y)| (x / y).ln());
    match metric {
        Metric::Thompson => logs().map(f64::abs).fold(0.0, f64::max),
        Metric::Hilbert => system.oscillation(&logs().collect::<Vec<f64>>()),
        Metric::WeightedSup { v } => {
            (0..a.len()).map(|i| (a[i] - b[i]).abs() / weight(v, i)).fold(0.0, f64::max)
        }
        Metric::WeightedTwoNorm { t } => {
            (0..a.len()).map(|i| ((a[i] - b[i]) * weight(t, i)).powi(2)).sum::<f64>().sqrt()
        }
        Metric::None => 0.0,
    }
}
