//! Maps, weights and a slow reference that the engine is held against.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_engine::cpu::Buffer;
use subdeq_engine::cpu::SimdReal;
use subdeq_engine::{
    Activation, Cpu, Device, Equilibria, Extent, Form, Injection, Measure, Operator, PNorm, Padding,
    SampleReport, ShapedMap, Solver, Start, Stopping,
};
use subdeq_map::{Groups, Map as Equation, Normalisation, Parts};

pub const DENSE: Operator = Operator::Dense { n: 13 };
pub const CONV: Operator =
    Operator::Conv { channels: 3, height: 5, width: 4, padding: Padding::Zero, kernel: 3 };
pub const CIRCULAR: Operator =
    Operator::Conv { channels: 3, height: 5, width: 4, padding: Padding::Circular, kernel: 3 };

pub const ACTIVATIONS: [Activation; 8] = [
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::Softplus { beta: 1.5 },
    Activation::Softsign,
    Activation::HardTanh { lo: -0.7, hi: 0.9 },
    Activation::Relu,
    Activation::LeakyRelu { slope: 0.2 },
    Activation::Identity,
];

/// The plain map of an operator; the others are made of it.
pub fn plain(operator: Operator) -> ShapedMap {
    changed(operator, |parts| parts)
}

/// The plain map of an operator with some parts changed.
pub fn changed(operator: Operator, change: impl FnOnce(Parts) -> Parts) -> ShapedMap {
    let plain = Equation::single(Activation::Tanh, 1.2).unwrap();
    ShapedMap::new(operator, Equation::try_from(change(plain.into())).unwrap()).unwrap()
}

/// Every map that the test matrix runs over, for one operator.
pub fn maps(operator: Operator) -> Vec<ShapedMap> {
    let changed = |change: &dyn Fn(Parts) -> Parts| changed(operator, change);
    let mut maps = Vec::new();
    for activation in ACTIVATIONS {
        for injection in [Injection::Inner, Injection::Outer] {
            maps.push(changed(&|plain| Parts { activation, injection, ..plain }));
        }
    }
    // Powers need a positive base.
    maps.push(changed(&|plain| Parts { shift: 1.01, power: 0.999, ..plain }));
    maps.push(changed(&|plain| Parts {
        activation: Activation::Sigmoid,
        shift: 0.3,
        power: 2.5,
        injection: Injection::Inner,
        ..plain
    }));
    for activation in [Activation::Tanh, Activation::Softsign] {
        maps.push(changed(&|plain| Parts { form: Form::SplitSign, activation, shift: 1.603, ..plain }));
        maps.push(changed(&|plain| Parts { form: Form::Divisive { q: 0.7 }, activation, ..plain }));
        maps.push(changed(&|plain| Parts { form: Form::Gains, activation, shift: 2.5, ..plain }));
    }
    maps.push(changed(&|plain| Parts {
        form: Form::Rational { q: 0.5 },
        activation: Activation::Softsign,
        shift: 0.4,
        ..plain
    }));
    maps.push(changed(&|plain| Parts {
        form: Form::PowerRatio { p: 0.4, e: 0.2 },
        activation: Activation::Identity,
        shift: 0.0,
        ..plain
    }));
    let norm = |p: PNorm| Some(Normalisation { p, groups: groups(&operator) });
    for p in [PNorm::Finite(1.0), PNorm::Finite(2.0), PNorm::Finite(10.0), PNorm::Inf] {
        maps.push(changed(&|plain| Parts { shift: 1.603, normalisation: norm(p), ..plain }));
    }
    let normalisation = norm(PNorm::Finite(3.0));
    maps.push(changed(&|plain| Parts { form: Form::SplitSign, shift: 1.7, normalisation, ..plain }));
    maps.push(changed(&|plain| Parts { form: Form::Gains, shift: 3.0, normalisation, ..plain }));
    maps.push(changed(&|plain| Parts { shift: 1.01, power: 0.99, normalisation, ..plain }));
    maps
}

/// What is normalised on an operator.
pub fn groups(operator: &Operator) -> Groups {
    if matches!(operator, Operator::Dense { .. }) { Groups::WholeVector } else { Groups::AlongHeight }
}

/// Whether the splittings are meant for a map.
pub fn is_monotone(map: &ShapedMap) -> bool {
    let equation = map.equation();
    equation.form() == Form::Single && equation.normalisation().is_none() && equation.power() == 1.0
}

/// Weights, injections and states of a map.
pub struct Problem {
    pub map: ShapedMap,
    pub batch: usize,
    pub weights: Vec<Vec<f64>>,
    pub y: Vec<f64>,
}

pub fn random(rng: &mut ChaCha8Rng, len: usize, lo: f64, hi: f64) -> Vec<f64> {
    // Rounded to f32, so that both number types see the same problem.
    (0..len).map(|_| f64::from(rng.random_range(lo..hi) as f32)).collect()
}

/// A problem whose map contracts.
pub fn contracting(map: ShapedMap, batch: usize, seed: u64) -> Problem {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let fan = map.weight_len(map.weight_count() - 1) / map.operator().units();
    let scale = 1.2 / (fan as f64).sqrt()
        * if matches!(map.equation().activation(), Activation::Tanh) { 0.8 } else { 0.5 };
    let weights = (0..map.weight_count())
        .map(|index| {
            // Two-operator forms take P, N >= 0; gains A, B are small.
            let (lo, hi) = match map.equation().form() {
                Form::Single => (-scale, scale),
                Form::Gains if index < 2 => (0.0, 0.8 / map.operator().units() as f64),
                _ => (0.0, 0.5 * scale),
            };
            random(&mut rng, map.weight_len(index), lo, hi)
        })
        .collect();
    let y = random(&mut rng, batch * map.injection_len(), 0.0, 1.0);
    Problem { map, batch, weights, y }
}

/// A problem with `W = (1 - m) I - A^T A + B - B^T`, whose plain iteration need not converge.
pub fn monotone(map: ShapedMap, batch: usize, seed: u64) -> Problem {
    let mut problem = contracting(map, batch, seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x5eed);
    let units = map.operator().units();
    let taps = map.operator().taps();
    let dense = |rng: &mut ChaCha8Rng| random(rng, units * units, -0.8, 0.8);
    let (a, b) = (dense(&mut rng), dense(&mut rng));
    let w = &mut problem.weights[0];
    for x in w.iter_mut() {
        // The neighbouring taps stay small against the centre.
        *x *= if taps == 9 { 0.3 } else { 0.0 };
    }
    for i in 0..units {
        for j in 0..units {
            let gram: f64 = (0..units).map(|k| a[k * units + i] * a[k * units + j]).sum();
            let skew = b[i * units + j] - b[j * units + i];
            let centre = (i * units + j) * taps + taps / 2;
            let identity = if i == j { if taps == 9 { 0.1 } else { 0.7 } } else { 0.0 };
            w[centre] = f64::from((identity - 0.5 * gram + skew) as f32);
        }
    }
    problem
}

/// `z = relu(W z + y)` with `W` diagonal, and its solution: half of the units are weak (`1 - w = 0.02`) and off, the others strong
/// (`1 - w = 25`) and on. Peaceman and Rachford's image of what is off, and of what is strong, is nearly its own opposite.
pub fn reflecting(operator: Operator, batch: usize) -> (Problem, Vec<f64>) {
    let map = changed(operator, |plain| Parts {
        activation: Activation::Relu,
        injection: Injection::Inner,
        shift: 0.0,
        ..plain
    });
    let (units, taps) = (operator.units(), operator.taps());
    let weak = |unit: usize| unit.is_multiple_of(2);
    let mut w = vec![0.0; operator.weight_len()];
    for unit in 0..units {
        w[(unit * units + unit) * taps + taps / 2] = if weak(unit) { 0.98 } else { -24.0 };
    }
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    let y: Vec<f64> = random(&mut rng, batch * operator.state_len(), 0.5, 1.5)
        .into_iter()
        .enumerate()
        .map(|(i, y)| if weak(i % units) { -y } else { y })
        .collect();
    let solution = y.iter().map(|&y| if y < 0.0 { 0.0 } else { y / 25.0 }).collect();
    (Problem { map, batch, weights: vec![w], y }, solution)
}

/// The adjoint's answer `g = W' D g + v` of such a problem for `v = y`: `v` where the unit is off, `v / 25` where it is on.
pub fn reflecting_gradient(y: &[f64]) -> Vec<f64> {
    y.iter().map(|&v| if v < 0.0 { v } else { v / 25.0 }).collect()
}

pub fn convert<T: SimdReal>(numbers: &[f64]) -> Vec<T> {
    numbers.iter().map(|&x| T::from_f64(x)).collect()
}

pub fn stopping(tolerance: f64, max_iterations: usize) -> Stopping {
    Stopping { measure: Measure::Relative, tolerance, max_iterations, extent: Extent::PerSample }
}

/// Solves a problem; answers as `f64`.
pub fn solve<T: SimdReal>(
    cpu: &Cpu<T>,
    problem: &Problem,
    solver: &Solver,
    stopping: &Stopping,
) -> (Vec<f64>, Vec<SampleReport>)
where
    Cpu<T>: Equilibria<Elem = T, Array = Buffer<T>, Reports = Vec<SampleReport>>,
{
    let len = problem.map.operator().state_len();
    let mut plan = cpu.plan(&problem.map, problem.batch).unwrap();
    load(cpu, &mut plan, problem);
    let y = cpu.upload(&convert::<T>(&problem.y)).unwrap();
    let mut z = cpu.zeros(problem.batch * len).unwrap();
    let mut reports = vec![SampleReport::default(); problem.batch];
    cpu.solve(&mut plan, problem.batch, &y, solver, stopping, Start::Constant(1.0), &mut z, &mut reports)
        .unwrap_or_else(|error| panic!("{:?} by {solver:?}: {error}", problem.map));
    (z.iter().map(|x| x.to_f64()).collect(), reports)
}

pub fn load<T: SimdReal>(cpu: &Cpu<T>, plan: &mut <Cpu<T> as Equilibria>::Plan, problem: &Problem)
where
    Cpu<T>: Equilibria<Elem = T>,
{
    let weights: Vec<_> = problem.weights.iter().map(|w| cpu.upload(&convert::<T>(w)).unwrap()).collect();
    cpu.load(plan, &weights.iter().collect::<Vec<_>>()).unwrap();
}

/// Largest difference, relative to the largest number.
pub fn relative_error(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0f64, |m, x| m.max(x.abs())).max(1e-300);
    // NaN must not pass for a small number.
    found
        .iter()
        .zip(expected)
        .fold(0.0, |m, (a, b)| if (a - b).abs() <= m * size { m } else { (a - b).abs() / size })
}

/// `F(z; y)` for one sample, written down as it is defined and sharing no code with the engine.
pub fn reference(problem: &Problem, sample: usize, z: &[f64]) -> Vec<f64> {
    let (map, equation) = (&problem.map, problem.map.equation());
    let y = &problem.y[sample * map.injection_len()..][..map.injection_len()];
    let n = z.len();
    let s = |u: f64| match equation.activation() {
        Activation::Tanh => u.tanh(),
        Activation::Sigmoid => 1.0 / (1.0 + (-u).exp()),
        Activation::Softplus { beta } => (1.0 + (beta * u).exp()).ln() / beta,
        Activation::Softsign => u / (1.0 + u.abs()),
        Activation::HardTanh { lo, hi } => u.clamp(lo, hi),
        Activation::Relu => u.max(0.0),
        Activation::LeakyRelu { slope } => {
            if u > 0.0 {
                u
            } else {
                slope * u
            }
        }
        Activation::Identity => u,
    };
    // A power is taken of activation and shift, and of nothing else.
    let has_power = equation.power() != 1.0;
    let h = |u: f64| if has_power { (s(u) + equation.shift()).powf(equation.power()) } else { s(u) };
    let product = |k: usize| linear(&map.operator(), &problem.weights[k], z);
    let f: Vec<f64> = match equation.form() {
        Form::Single => {
            let u = product(0);
            let inner = equation.injection() == Injection::Inner;
            (0..n).map(|i| if inner { h(u[i] + y[i]) } else { h(u[i]) + y[i] }).collect()
        }
        Form::SplitSign => {
            let (u, w) = (product(0), product(1));
            (0..n).map(|i| h(u[i]) - h(w[i]) + y[i]).collect()
        }
        Form::Divisive { q } => {
            let (u, w) = (product(0), product(1));
            (0..n).map(|i| h(u[i] / (q + w[i])) + y[i]).collect()
        }
        Form::Rational { q } => {
            let (u, w) = (product(0), product(1));
            (0..n).map(|i| u[i] / (q + u[i] + w[i]) + y[i]).collect()
        }
        Form::PowerRatio { p, e } => {
            let (u, w) = (product(0), product(1));
            (0..n).map(|i| ((u[i] + y[i] + e) / (w[i] + y[n + i] + e)).powf(p)).collect()
        }
        Form::Gains => {
            let units = map.operator().units();
            let (a, b): (Vec<f64>, Vec<f64>) =
                (product(2).into_iter().map(h).collect(), product(3).into_iter().map(h).collect());
            (0..n)
                .map(|i| {
                    let (pixel, c) = (i / units, i % units);
                    let gain = |m: &[f64], x: &[f64]| -> f64 {
                        (0..units).map(|k| m[c * units + k] * x[pixel * units + k]).sum()
                    };
                    gain(&problem.weights[0], &a) - gain(&problem.weights[1], &b) + y[i]
                })
                .collect()
        }
        form => panic!("the engine has no kernels for {form:?}"),
    };
    let shift = if has_power { 0.0 } else { equation.shift() };
    let mut f: Vec<f64> = f.into_iter().map(|f| f + shift).collect();
    if let Some(Normalisation { p, .. }) = equation.normalisation() {
        let row = match map.operator() {
            Operator::Conv { channels, width, .. } => channels * width,
            Operator::Dense { .. } => 1,
        };
        for group in 0..row {
            let members: Vec<usize> = (group..n).step_by(row).collect();
            let size = match p {
                PNorm::Finite(p) => members.iter().map(|&i| f[i].abs().powf(p)).sum::<f64>().powf(1.0 / p),
                PNorm::Inf => members.iter().fold(0.0f64, |m, &i| m.max(f[i].abs())),
            };
            for i in members {
                f[i] /= size;
            }
        }
    }
    f
}

/// `W z`, as it is defined.
pub fn linear(operator: &Operator, w: &[f64], z: &[f64]) -> Vec<f64> {
    match *operator {
        Operator::Dense { n } => (0..n).map(|i| (0..n).map(|j| w[i * n + j] * z[j]).sum()).collect(),
        Operator::Conv { channels: c, height, width, padding, kernel: side } => {
            let mut out = vec![0.0; z.len()];
            for r in 0..height {
                for col in 0..width {
                    for o in 0..c {
                        for dr in 0..side {
                            for dc in 0..side {
                                let centre = (side / 2) as isize;
                                let (mut rr, mut cc) =
                                    (r as isize + dr as isize - centre, col as isize + dc as isize - centre);
                                if padding == Padding::Circular {
                                    rr = rr.rem_euclid(height as isize);
                                    cc = cc.rem_euclid(width as isize);
                                } else if rr < 0 || cc < 0 || rr >= height as isize || cc >= width as isize {
                                    continue;
                                }
                                for i in 0..c {
                                    out[(r * width + col) * c + o] += w
                                        [((o * c + i) * side + dr) * side + dc]
                                        * z[(rr as usize * width + cc as usize) * c + i];
                                }
                            }
                        }
                    }
                }
            }
            out
        }
    }
}

/// The fixed point by a long damped iteration of [`reference`]; damping 1 is Picard's.
pub fn fixed_point(problem: &Problem, damping: f64) -> Vec<f64> {
    let len = problem.map.operator().state_len();
    let mut answers = Vec::new();
    for sample in 0..problem.batch {
        let mut z = vec![1.0; len];
        let mut residual = f64::INFINITY;
        for _ in 0..20_000 {
            let f = reference(problem, sample, &z);
            residual = z.iter().zip(&f).fold(0.0f64, |m, (a, b)| m.max((a - b).abs()));
            z.iter_mut().zip(&f).for_each(|(z, f)| *z += damping * (f - *z));
            if residual < 1e-13 {
                break;
            }
        }
        assert!(
            residual < 1e-11,
            "the reference itself does not converge: {residual:e} for {:?}",
            problem.map
        );
        answers.extend(z);
    }
    answers
}
