//! The attack itself: draw systems of many kinds, certify them in every way there is, and try to catch a certificate lying:
//! with two fixed points, with plain iteration that does not converge where it was promised to, or with a step that
//! contracts less than the certified factor.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use subdeq_map::{Activation, Form, Groups, Layout, Map, Operator, PNorm, Padding, WeightClass};
use subdeq_theory::certificate::{Certificate, Domain, Evidence, Metric, Scope, States, Theorem, Verdict};
use subdeq_theory::certify::{Certifier, NOT_CONFIRMED};
use subdeq_theory::monotone;

use super::evaluate::{System, largest};
use super::forge;

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
    /// Share of the systems that are also refuted where nothing is proved, and whose certificates are forged.
    pub thorough: f64,
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
    /// Certified systems whose certificates were all re-checked.
    pub rechecked: usize,
    /// Refutations, each checked.
    pub refuted: usize,
    /// Forged certificates that were refused, as all must be.
    pub forged: usize,
    /// What went wrong; must stay empty.
    pub violations: Vec<String>,
}

impl Report {
    fn merge(mut self, other: Report) -> Report {
        self.drawn += other.drawn;
        self.certified += other.certified;
        self.rechecked += other.rechecked;
        self.refuted += other.refuted;
        self.forged += other.forged;
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
        0 => rng.random_range(30..=87),
        1..=9 => rng.random_range(10..=20),
        10..=99 => rng.random_range(6..=9),
        _ => rng.random_range(2..=5),
    }
}

/// A drawn system before it is certified.
#[derive(Debug)]
pub struct Draw {
    pub family: &'static str,
    pub map: Map,
    pub weights: Operator,
    pub y: Vec<f64>,
}

/// The systems of THEORY.md section 8, and the families that once broke the certifier.
pub fn draw_system(rng: &mut ChaCha8Rng) -> Draw {
    if rng.random_bool(0.4) { draw_hostile(rng) } else { draw_usual(rng) }
}

fn draw_usual(rng: &mut ChaCha8Rng) -> Draw {
    let family = FAMILIES[rng.random_range(0..FAMILIES.len())];
    let gain = 10f64.powf(rng.random_range(-1.0..0.6));
    let kind = rng.random_range(0..100);
    let mut n = size(rng);
    let s = if rng.random_bool(0.3) { Activation::Softsign } else { Activation::Tanh };
    let mut map = Map::single(s, 1.2).expect("a map");
    if rng.random_bool(0.25) {
        map = map.inner().expect("a map");
    }
    let mut weights = None;
    match kind {
        0..=7 => weights = Some(random_conv(gain, rng)),
        8..=17 => {
            n = n.min(8) / 2 * 2;
            map =
                Map::single(s, 1.603).and_then(|map| map.normalised(norm(rng), groups(rng))).expect("a map");
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
            map = Map::named(name, Layout::Dense).expect("a known name");
            let mut w = matrix(family, n, gain * 10f64.powf(rng.random_range(-1.0..1.5)), rng);
            make_signs(map.weights(), n, &mut w, rng);
            weights = Operator::dense(n, w).ok();
        }
        33..=39 => {
            n = n.min(8);
            let s = [Activation::Relu, Activation::Tanh, Activation::Softsign][rng.random_range(0..3)];
            map = monotone_map(s);
            let v = Operator::dense(n, matrix(family, n, 3.0 * gain, rng)).expect("finite");
            weights = monotone::shifted(&v, rng.random_range(0.02..0.9)).ok().map(|(w, _)| w);
        }
        _ => {}
    }
    let weights =
        weights.unwrap_or_else(|| Operator::dense(n, matrix(family, n, gain, rng)).expect("finite"));
    let entries = weights.len() * map.form().injection_count();
    let zero = rng.random_bool(0.4);
    let y = (0..entries).map(|_| if zero { 0.0 } else { 2.0 * normal(rng).max(0.0) }).collect();
    Draw { family, map, weights, y }
}

fn monotone_map(s: Activation) -> Map {
    let map = Map::single(s, 0.0).and_then(Map::inner);
    map.and_then(|map| map.for_weights(WeightClass::Monotone { margin: 0.0 })).expect("a map")
}

fn norm(rng: &mut ChaCha8Rng) -> PNorm {
    [PNorm::Inf, PNorm::Finite(1.0), PNorm::Finite(2.0)][rng.random_range(0..3)]
}

fn groups(rng: &mut ChaCha8Rng) -> Groups {
    if rng.random_bool(0.3) { Groups::Blocks { size: 2 } } else { Groups::WholeVector }
}

fn random_conv(gain: f64, rng: &mut ChaCha8Rng) -> Operator {
    let channels = rng.random_range(1..=2);
    let padding = if rng.random() { Padding::Zero } else { Padding::Circular };
    let least = if padding == Padding::Zero { 1 } else { 3 };
    let (h, w) = (rng.random_range(least..=4), rng.random_range(least..=4));
    let scale = gain / (9.0 * channels as f64).sqrt();
    let kernel = (0..channels * channels * 9).map(|_| scale * normal(rng)).collect();
    Operator::conv(channels, h, w, padding, kernel).expect("finite")
}

fn make_signs(class: WeightClass, n: usize, w: &mut [f64], rng: &mut ChaCha8Rng) {
    match class {
        WeightClass::Nonnegative => w.iter_mut().for_each(|x| *x = x.abs()),
        WeightClass::RowSigned => {
            let signs: Vec<f64> = (0..n).map(|_| if rng.random() { 1.0 } else { -1.0 }).collect();
            w.iter_mut().enumerate().for_each(|(k, x)| *x = signs[k / n] * x.abs());
        }
        WeightClass::Any | WeightClass::Monotone { .. } => {}
    }
}

fn activation(rng: &mut ChaCha8Rng) -> Activation {
    match rng.random_range(0..10) {
        0 | 1 => Activation::Tanh,
        2 => Activation::Softsign,
        3 => Activation::Sigmoid,
        4 => Activation::Softplus { beta: [0.5, 1.0, 4.0][rng.random_range(0..3)] },
        5 => Activation::Relu,
        6 => Activation::LeakyRelu { slope: [0.01, 0.5, -0.5, -4.0, 2.0][rng.random_range(0..5)] },
        7 => Activation::Identity,
        _ => {
            let (lo, hi) =
                [(-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (-2.0, -1.0), (0.5, 2.0)][rng.random_range(0..5)];
            Activation::HardTanh { lo, hi }
        }
    }
}

/// Any activation, shift, power, norm, sign of the input and size of the numbers, borders of images, graphs: what a hand-written
/// configuration may contain.
fn draw_hostile(rng: &mut ChaCha8Rng) -> Draw {
    loop {
        let family = FAMILIES[rng.random_range(0..FAMILIES.len())];
        let n = rng.random_range(1..=4);
        let gain = 10f64.powf(rng.random_range(-1.5..1.5));
        let shift = [0.0, 0.05, 0.3, 1.0, 1.2, 1.603, 2.5, -0.5, -3.0][rng.random_range(0..9)];
        let form = match rng.random_range(0..12) {
            0 => Form::SplitSign,
            1 => Form::Divisive { q: [0.1, 1.0][rng.random_range(0..2)] },
            2 => Form::Rational { q: 1.0 },
            3 => Form::PowerRatio {
                p: [0.2, 0.45, 0.499, 0.6][rng.random_range(0..4)],
                e: [0.01, 1.0][rng.random_range(0..2)],
            },
            4 => Form::Gains,
            5 => Form::Monomial,
            7 => Form::Tied {
                margin: [0.02, 0.5, 1.0, 3.0][rng.random_range(0..4)],
                skew: [0.0, 1.0, -2.0][rng.random_range(0..3)],
            },
            6 => Form::Graph { teleport: [0.05, 0.1, 0.7][rng.random_range(0..3)] },
            _ => Form::Single,
        };
        let (s, shift) = match form {
            Form::Rational { .. } => (Activation::Softsign, shift),
            Form::PowerRatio { .. } => (Activation::Identity, 0.0),
            _ => (activation(rng), shift),
        };
        let built = Map::of_form(form, s, shift).and_then(|map| {
            let map = if form == Form::Gains { Map::gains(s, shift)? } else { map };
            let chooses = matches!(form, Form::Single | Form::Tied { .. } | Form::Graph { .. });
            let inner = chooses && rng.random_bool(0.4);
            let map = if inner { map.inner()? } else { map };
            let powers = form == Form::Single && rng.random_bool(0.3);
            let map = if powers {
                map.with_power([0.3, 0.5, 0.99, 2.0, 2.5][rng.random_range(0..5)])?
            } else {
                map
            };
            let class = match rng.random_range(0..6) {
                0 => WeightClass::Monotone { margin: 0.0 },
                1 => WeightClass::Nonnegative,
                _ => WeightClass::Any,
            };
            let map = if form == Form::Single { map.for_weights(class)? } else { map };
            match form {
                _ if !rng.random_bool(0.3) => Ok(map),
                Form::Graph { .. } => map.normalised(
                    PNorm::Inf,
                    [Groups::GraphColumns, Groups::GraphRows][rng.random_range(0..2)],
                ),
                _ => map.normalised(norm(rng), groups(rng)),
            }
        });
        let Ok(map) = built else { continue };
        let weights = match form {
            Form::Graph { .. } => random_graph(n, gain, rng),
            _ if map.normalisation().is_none() && rng.random_bool(0.15) => random_conv(gain, rng),
            _ => {
                let mut w = matrix(family, n, gain, rng);
                make_signs(map.weights(), n, &mut w, rng);
                if rng.random_bool(0.3) {
                    w.iter_mut().for_each(|x| *x = x.abs());
                }
                if rng.random_bool(0.2) {
                    let one_row = rng.random_range(0..n);
                    w[one_row * n..][..n].fill(0.0);
                }
                if rng.random_bool(0.1) {
                    let huge = [1e-300, 1e-160, 1e150, 1e300][rng.random_range(0..4)];
                    w.iter_mut().for_each(|x| *x *= huge);
                }
                match Operator::dense(n, w) {
                    Ok(w) => w,
                    Err(_) => continue,
                }
            }
        };
        if map.check_operator(&weights).is_err() {
            continue;
        }
        let entries = weights.len() * map.form().injection_count();
        let size = if rng.random_bool(0.1) { [1e-300, 1e100, 1e308][rng.random_range(0..3)] } else { 1.0 };
        let signed = rng.random_bool(0.5);
        let zero = rng.random_bool(0.2);
        let y = (0..entries).map(|_| {
            let y = 1.5 * normal(rng);
            if zero { 0.0 } else { size * if signed { y.clamp(-1.7, 1.7) } else { y.abs().min(1.7) } }
        });
        return Draw { family, y: y.collect(), map, weights };
    }
}

/// A symmetric, mostly normalised, sometimes signed adjacency of a few nodes with two features.
fn random_graph(n: usize, gain: f64, rng: &mut ChaCha8Rng) -> Operator {
    let mut a = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let w = if rng.random_bool(0.6) { normal(rng).abs() } else { 0.0 };
            (a[i * n + j], a[j * n + i]) = (w, w);
        }
    }
    let top = (0..n).map(|i| a[i * n..][..n].iter().sum::<f64>()).fold(1e-9, f64::max);
    let scale = if rng.random_bool(0.7) { 1.0 / top } else { gain };
    let sign = if rng.random_bool(0.2) { -1.0 } else { 1.0 };
    let mut offsets = vec![0];
    let (mut neighbours, mut weights) = (Vec::new(), Vec::new());
    for i in 0..n {
        for j in (0..n).filter(|j| a[i * n + j] != 0.0) {
            neighbours.push(j);
            weights.push(scale * a[i * n + j] * if (i + j) % 2 == 1 { sign } else { 1.0 });
        }
        offsets.push(weights.len());
    }
    Operator::graph(2, offsets, neighbours, weights).expect("a graph")
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
    let found = Certifier::proofs_only().close(&draw.map, weights, &scope, domain, theorem);
    found.expect("a proper question").filter(|found| found.verdict.is_proven() || not_confirmed(found))
}

fn not_confirmed(certificate: &Certificate) -> bool {
    matches!(&certificate.verdict, Verdict::Unproven { why, .. } if why.starts_with(NOT_CONFIRMED))
}

/// The scopes that a user may ask about, with `y` in each of the proper ones.
fn scopes(draw: &Draw) -> Vec<Scope> {
    let mut scopes = vec![Scope::Sample { y: draw.y.clone() }, Scope::NonnegativeInputs, Scope::AllInputs];
    if draw.y.iter().all(|y| *y >= 0.0) {
        scopes.push(Scope::InputSet { ymax: draw.y.clone() });
    }
    scopes
}

fn attack_draw(settings: Settings, draw_number: u64) -> Report {
    let mut rng = ChaCha8Rng::seed_from_u64(settings.seed);
    rng.set_stream(draw_number);
    let mut draw = draw_system(&mut rng);
    let plain = draw.map.form() == Form::Single && draw.map.normalisation().is_none();
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
    // Refutations and forgeries take a hundred times as long as proofs.
    let mut certifier =
        if rng.random_bool(settings.thorough) { Certifier::new() } else { Certifier::proofs_only() };
    let forging = rng.random_bool(settings.thorough);
    // Every question of the thorough ones, one of the others.
    let mut scopes = scopes(&draw);
    if !forging {
        scopes = vec![scopes.swap_remove(rng.random_range(0..scopes.len()))];
    }
    for scope in scopes {
        certificates.push(certifier.certify(&draw.map, &draw.weights, &scope).expect("a proper question"));
    }
    if plain && rng.random_bool(0.3) {
        let (domain, theorem) = CLOSING[rng.random_range(0..CLOSING.len())];
        certificates.extend(close(&draw, &draw.weights, domain, theorem));
    }

    let mut report = Report { drawn: 1, ..Report::default() };
    let mut violations: Vec<String> = Vec::new();
    for certificate in &certificates {
        if not_confirmed(certificate) {
            violations.push(format!("{certificate}"));
        }
        if let Verdict::Refuted { .. } = certificate.verdict {
            report.refuted += 1;
            violations.extend(refutation_fails(&draw, certificate));
            if forging {
                let (forged, accepted) = forge::refutations(certificate, &draw.weights, &mut rng);
                report.forged += forged;
                violations.extend(accepted);
            }
        }
    }
    certificates.retain(|c| c.verdict.is_proven());
    for certificate in &certificates {
        if let Err(what) = attack(&draw, certificate, settings.starts, &mut rng) {
            violations.push(format!("{what}; {certificate}"));
        }
        if forging {
            let (forged, accepted) = forge::proofs(certificate, &draw.weights, &mut rng);
            report.forged += forged;
            violations.extend(accepted);
        }
        // What is read back is what was written, and holds.
        report.rechecked += 1;
        if let Err(error) = certificate.recheck(&draw.weights) {
            violations.push(format!("{error}; {certificate}"));
        }
        if let Verdict::Proven { theorem, .. } = certificate.verdict {
            *report.by_theorem.entry(theorem.to_string()).or_default() += 1;
        }
    }
    if !certificates.is_empty() {
        report.certified = 1;
        *report.by_family.entry(draw.family).or_default() += 1;
    }
    report.violations = violations
        .into_iter()
        .map(|what| format!("draw {draw_number} ({}): {what}\n    {draw:?}", draw.family))
        .collect();
    report
}

/// The claimed fixed points, evaluated: residuals as small as their balls, in the scope, among the states, apart.
fn refutation_fails(draw: &Draw, certificate: &Certificate) -> Option<String> {
    let Verdict::Refuted { witness } = &certificate.verdict else { return None };
    let states = States::of(&draw.map);
    if !certificate.scope.contains(witness.y()) {
        return Some(format!("an input outside the scope; {certificate}"));
    }
    let system = System::new(&draw.map, &draw.weights, witness.y(), states);
    for point in witness.points() {
        let image = system.apply(point);
        let size = 1.0 + largest(point.iter().map(|x| x.abs()));
        let off = largest(image.iter().zip(point).map(|(a, b)| (a - b).abs()));
        let among = states == States::Reals || point.iter().all(|x| *x > 0.0);
        if off.is_nan() || off > 1e-6 * size || !among {
            return Some(format!("{point:?} is off by {off}; {certificate}"));
        }
    }
    None
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

fn rescale(weights: &Operator, change: impl FnMut(f64) -> f64) -> Operator {
    weights.clone().try_map(change).unwrap_or_else(|_| weights.clone())
}

/// Hill climbing towards a second fixed point without leaving the certified set: larger is how far apart two
/// trajectories still are after some steps, over several pairs of starts.
fn climb(draw: &mut Draw, domain: Domain, theorem: Theorem, rng: &mut ChaCha8Rng) {
    let separation = |weights: &Operator, rng: &mut ChaCha8Rng| {
        let system = System::new(&draw.map, weights, &draw.y, States::Reals);
        let mut far = 0.0f64;
        for _ in 0..4 {
            let (mut a, mut b) = (system.start(rng, States::Positive), system.start(rng, States::Positive));
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

/// An input of the scope: the drawn one, or any.
fn input(draw: &Draw, scope: &Scope, rng: &mut ChaCha8Rng) -> Vec<f64> {
    let entries = draw.y.len();
    match scope {
        Scope::Sample { y } => y.clone(),
        Scope::InputSet { ymax } => ymax.iter().map(|top| top * rng.random_range(0.0..=1.0)).collect(),
        Scope::NonnegativeInputs if rng.random_bool(0.3) => vec![0.0; entries],
        Scope::NonnegativeInputs => (0..entries).map(|_| 1.5 * normal(rng).abs()).collect(),
        Scope::AllInputs => {
            let size = [0.5, 3.0, 20.0][rng.random_range(0..3)];
            (0..entries).map(|_| size * normal(rng)).collect()
        }
    }
}

/// Inputs of the scope, many starts: every limit of plain iteration and every zero that Newton's method finds among the states must
/// be the same point, and each step must contract as the certificate says.
pub fn attack(
    draw: &Draw,
    certificate: &Certificate,
    starts: usize,
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    let y = input(draw, &certificate.scope, rng);
    let Verdict::Proven { states, starts: from, .. } = certificate.verdict else { return Ok(()) };
    let system = System::new(&draw.map, &draw.weights, &y, states);
    let mut solution: Option<Vec<f64>> = None;
    let mut converged = 0;
    for start in 0..starts {
        let z0 = if start < 3 { system.corner(start) } else { system.start(rng, from.unwrap_or(states)) };
        // A third of the starts goes straight to Newton's method, which also finds unstable fixed points.
        let (z, residual) =
            if start % 3 == 2 { (z0.clone(), f64::INFINITY) } else { system.iterate(z0.clone(), 120) };
        let found = if residual < 1e-12 { Some(z) } else { system.newton(z) };
        let Some(found) = found.filter(|z| system.counts(z)) else { continue };
        converged += 1;
        match &solution {
            None => solution = Some(found),
            Some(known) => {
                let scale = 1.0 + largest(known.iter().map(|x| x.abs()));
                let apart = distance(known, &found);
                if (apart.is_nan() || apart > 1e-6 * scale) && !blurred(&system, known, &found) {
                    return Err(format!("two fixed points for y = {y:?}: {known:?} and {found:?}"));
                }
            }
        }
    }
    let Some(solution) = solution else {
        let tame = y.iter().all(|y| y.abs() < 1e6) && draw.weights.weights().iter().all(|w| w.abs() < 1e6);
        let slow = matches!(certificate.verdict, Verdict::Proven { factor: Some(c), .. } if c > 0.99);
        return if from.is_some() && tame && !slow && converged == 0 && solvable(&system, rng, from) {
            Err(format!("plain iteration converges nowhere for y = {y:?}"))
        } else {
            Ok(())
        };
    };
    contraction_holds(&system, certificate, &solution, rng)
}

/// Whether plain iteration stays finite but does not settle within many steps.
fn solvable(system: &System<'_>, rng: &mut ChaCha8Rng, from: Option<States>) -> bool {
    let start = system.start(rng, from.unwrap_or(States::Positive));
    let (z, residual) = system.iterate(start, 20_000);
    z.iter().all(|z| z.is_finite() && z.abs() < 1e12) && residual > 1e-9
}

/// Whether both are fixed points only up to rounding: the map is so flat (or so steep) that what lies between them is one, too.
fn blurred(system: &System<'_>, a: &[f64], b: &[f64]) -> bool {
    let middle: Vec<f64> = a.iter().zip(b).map(|(a, b)| 0.5 * (a + b)).collect();
    let image = system.apply(&middle);
    let off = largest(image.iter().zip(&middle).map(|(f, z)| (f - z).abs() / (1.0 + z.abs())));
    off < 1e-9
}

/// `d(F z, z*) <= factor d(z, z*)` along a trajectory, from where the certificate speaks.
fn contraction_holds(
    system: &System<'_>,
    certificate: &Certificate,
    solution: &[f64],
    rng: &mut ChaCha8Rng,
) -> Result<(), String> {
    let Verdict::Proven { factor: Some(factor), metric, evidence, starts: Some(from), .. } =
        &certificate.verdict
    else {
        return Ok(());
    };
    let enter = match evidence {
        Evidence::Closing { domain: Domain::Everywhere, .. } => 0,
        Evidence::Closing { domain: Domain::Propagated { steps }, .. }
        | Evidence::Secant { steps, .. }
        | Evidence::NormalisedBox { steps }
        | Evidence::FormBox { steps } => steps + 1,
        // Proofs by form speak of positive vectors, normalised ones of normalised vectors.
        _ => usize::from(system.is_normalised() || *from == States::Reals),
    };
    for _ in 0..2 {
        let mut z = system.start(rng, *from);
        for _ in 0..enter {
            z = system.apply(&z);
        }
        for _ in 0..4 {
            let next = system.apply(&z);
            let (before, after) =
                (measure(metric, system, &z, solution), measure(metric, system, &next, solution));
            // Close to the solution only its own error (1e-11, say) would be measured.
            let blur: Vec<f64> = solution.iter().map(|x| x + 1e-11 * (1.0 + x.abs())).collect();
            let noise = measure(metric, system, &blur, solution);
            let wrong = after > factor * before * (1.0 + 1e-6) + 1e-9 + noise;
            let tame = z.iter().chain(&next).all(|z| z.abs() < 1e100);
            if wrong && tame && before.is_finite() && before < 1e12 {
                return Err(format!("a step from {z:?} contracts by {} only", after / before));
            }
            z = next;
        }
    }
    Ok(())
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    largest(a.iter().zip(b).map(|(x, y)| (x - y).abs()))
}

fn measure(metric: &Metric, system: &System<'_>, a: &[f64], b: &[f64]) -> f64 {
    let weight = |v: &[f64], i: usize| if v.is_empty() { 1.0 } else { v[i * v.len() / a.len()] };
    let logs = || a.iter().zip(b).map(|(x, y)| (x / y).ln());
    match metric {
        Metric::Thompson => largest(logs().map(f64::abs)),
        Metric::Hilbert => system.oscillation(&logs().collect::<Vec<f64>>()),
        Metric::WeightedSup { v } => largest((0..a.len()).map(|i| (a[i] - b[i]).abs() / weight(v, i))),
        Metric::WeightedTwoNorm { t } => {
            (0..a.len()).map(|i| ((a[i] - b[i]) * weight(t, i)).powi(2)).sum::<f64>().sqrt()
        }
        Metric::None => 0.0,
    }
}
