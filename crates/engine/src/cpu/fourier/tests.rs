//! The splitting against the equations it solves, with convolutions written out by their definition in `f64`.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::pixels::Pixels;
#[cfg(target_arch = "x86_64")]
use super::sweep::{Pointwise, Scratch, sweep};
use super::{Adjoint, Convolution, Forward, Kernel, Memory, Operator};
use crate::cpu::conv::Accuracy;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::cpu::simd::Lanes;
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Block, Picard, Workspace, solve_block};
use crate::cpu::step::FixedPointStep;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::AmxProof;
use crate::{Activation, Extent, Injection, Measure, Padding, SampleReport, ShapedMap, Start, Stopping};

const ACTIVATIONS: [Activation; 8] = [
    Activation::Relu,
    Activation::LeakyRelu { slope: 0.1 },
    Activation::HardTanh { lo: -0.3, hi: 0.8 },
    Activation::Identity,
    Activation::Softsign,
    Activation::Tanh,
    Activation::Softplus { beta: 2.0 },
    Activation::Sigmoid,
];

#[derive(Clone, Copy)]
struct Size {
    channels: usize,
    height: usize,
    width: usize,
    /// Of the kernel.
    side: usize,
}

impl Size {
    fn kernel(self) -> Kernel {
        let Size { channels, height, width, side } = self;
        Kernel { units: channels, side, height, width }
    }

    fn len(self) -> usize {
        self.channels * self.height * self.width
    }

    fn map(self, activation: Activation, injection: Injection, shift: f64) -> ShapedMap {
        let Size { channels, height, width, .. } = self;
        let operator =
            crate::Operator::Conv { channels, height, width, padding: Padding::Circular, kernel: self.side };
        let outer = subdeq_map::Map::single(activation, shift).unwrap();
        let equation = if injection == Injection::Inner { outer.inner().unwrap() } else { outer };
        ShapedMap::new(operator, equation).unwrap()
    }

    /// Weights with `sym(W) <= (1 - m) I`, `m = 0.3`, and a norm well above 1: by Gershgorin, after a shift of the centre.
    fn weights(self, rng: &mut ChaCha8Rng) -> Vec<f64> {
        let (c, taps) = (self.channels, self.side * self.side);
        let mut weights: Vec<f64> = (0..taps * c * c).map(|_| rng.random_range(-0.5..0.5)).collect();
        let row_sum = |o: usize| -> f64 {
            let entry = |i: usize, k: usize| {
                (weights[(o * c + i) * taps + k] + weights[(i * c + o) * taps + taps - 1 - k]).abs() / 2.0
            };
            (0..c).flat_map(|i| (0..taps).map(move |k| (i, k))).map(|(i, k)| entry(i, k)).sum()
        };
        let excess = (0..c).map(row_sum).fold(0.0, f64::max) - 0.7;
        (0..c).for_each(|o| weights[(o * c + o) * taps + taps / 2] -= excess.max(0.0));
        weights
    }

    /// `W z`, or `W^T z`, by the definition.
    fn convolve(self, weights: &[f64], z: &[f64], transposed: bool) -> Vec<f64> {
        let Size { channels: c, height: h, width: w, side } = self;
        // Away from the centre, around the torus.
        let moved = |at: usize, tap: usize, n: usize| (at + side * n + tap - side / 2) % n;
        let mut out = vec![0.0; z.len()];
        for (y, x) in (0..h).flat_map(|y| (0..w).map(move |x| (y, x))) {
            for (r, s) in (0..side).flat_map(|r| (0..side).map(move |s| (r, s))) {
                let (there_y, there_x) = (moved(y, r, h), moved(x, s, w));
                let (here, there) = ((y * w + x) * c, (there_y * w + there_x) * c);
                for (o, i) in (0..c).flat_map(|o| (0..c).map(move |i| (o, i))) {
                    let weight = weights[((o * c + i) * side + r) * side + s];
                    if transposed {
                        out[there + i] += weight * z[here + o];
                    } else {
                        out[here + o] += weight * z[there + i];
                    }
                }
            }
        }
        out
    }
}

/// `s(u)` and `s'(u)`.
fn activate(activation: Activation, u: f64) -> (f64, f64) {
    match activation {
        Activation::Tanh => (u.tanh(), 1.0 - u.tanh() * u.tanh()),
        Activation::Sigmoid => {
            let s = 1.0 / (1.0 + (-u).exp());
            (s, s * (1.0 - s))
        }
        Activation::Softplus { beta } => ((beta * u).exp().ln_1p() / beta, 1.0 / (1.0 + (-beta * u).exp())),
        Activation::Softsign => (u / (1.0 + u.abs()), (1.0 + u.abs()).powi(-2)),
        Activation::HardTanh { lo, hi } => (u.clamp(lo, hi), if lo < u && u < hi { 1.0 } else { 0.0 }),
        Activation::Relu => (u.max(0.0), if u > 0.0 { 1.0 } else { 0.0 }),
        Activation::LeakyRelu { slope } => {
            if u > 0.0 {
                (u, 1.0)
            } else {
                (slope * u, slope)
            }
        }
        Activation::Identity => (u, 1.0),
    }
}

fn stopping(tolerance: f64) -> Stopping {
    Stopping { measure: Measure::Relative, tolerance, max_iterations: 5000, extent: Extent::PerSample }
}

/// A loaded operator, and everything to run it.
struct Bench<T: SimdReal> {
    isa: Isa,
    size: Size,
    operator: Operator<T>,
    memory: Memory<T>,
    workspace: Workspace<T>,
}

fn numbers<T: SimdReal>(x: &[f64]) -> Vec<T> {
    x.iter().map(|&x| T::from_f64(x)).collect()
}

fn doubles<T: SimdReal>(x: &[T]) -> Vec<f64> {
    x.iter().map(|&x| x.to_f64()).collect()
}

impl<T: SimdReal> Bench<T> {
    fn new(isa: Isa, size: Size, weights: &[f64], step: f64, block: usize) -> Self {
        let mut operator = Operator::new(size.kernel());
        operator.load(isa, &numbers(weights), step).expect("a monotone operator");
        let memory = Memory::new(&operator, block);
        let mut workspace = Workspace::default();
        workspace.reserve(block, Pixels::of(&operator.forward).padded_len());
        Self { isa, size, operator, memory, workspace }
    }

    /// The solutions for injections `y`.
    fn solve(&mut self, map: &ShapedMap, start: f64, y: &[T], tolerance: f64) -> (Vec<T>, Vec<SampleReport>) {
        let images = y.len() / self.size.len();
        let mut step = Forward::new(self.isa, &self.operator, &mut self.memory, map, y);
        step.start(Accuracy::Full, Start::Constant(start), &[], &mut self.workspace.iterates.image);
        drive(&mut step, &mut self.workspace, y.len(), images, tolerance)
    }

    /// The solutions of the adjoint equation for slopes `d` and right-hand sides `v`.
    fn adjoint(&mut self, d: &[T], v: &[T], tolerance: f64) -> (Vec<T>, Vec<SampleReport>) {
        let images = v.len() / self.size.len();
        let mut step = Adjoint::new(self.isa, &self.operator, &mut self.memory, d, v);
        step.start(Accuracy::Full, &mut self.workspace.iterates.image);
        drive(&mut step, &mut self.workspace, v.len(), images, tolerance)
    }
}

fn drive<T: SimdReal>(
    step: &mut dyn FixedPointStep<T>,
    workspace: &mut Workspace<T>,
    len: usize,
    images: usize,
    tolerance: f64,
) -> (Vec<T>, Vec<SampleReport>) {
    let mut answers = vec![T::ZERO; len];
    let mut reports = vec![SampleReport::default(); images];
    let block = Block { step, method: &mut Picard, workspace, answers: &mut answers, reports: &mut reports };
    solve_block(block, &stopping(tolerance));
    (answers, reports)
}

fn random(rng: &mut ChaCha8Rng, len: usize) -> Vec<f64> {
    (0..len).map(|_| rng.random_range(-1.0..1.0)).collect()
}

fn largest_gap(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// `F(z)` and the slopes of the activation there, by the definition.
fn image(size: Size, map: &ShapedMap, weights: &[f64], z: &[f64], y: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut u = size.convolve(weights, z, false);
    if map.injection == Injection::Inner {
        u.iter_mut().zip(y).for_each(|(u, y)| *u += y);
    }
    u.iter()
        .zip(y)
        .map(|(&u, y)| {
            let (s, d) = activate(map.activation, u);
            (s + map.shift + if map.injection == Injection::Outer { *y } else { 0.0 }, d)
        })
        .unzip()
}

/// Solves forward and backward and puts both answers into their equations.
fn check_equations<T: SimdReal>(
    isa: Isa,
    size: Size,
    map: &ShapedMap,
    step: f64,
    seed: u64,
    tolerance: f64,
    accepted: f64,
) {
    let rng = &mut ChaCha8Rng::seed_from_u64(seed);
    let weights = doubles::<T>(&numbers(&size.weights(rng)));
    let mut bench = Bench::<T>::new(isa, size, &weights, step, 2);
    let [y, v] = [0, 1].map(|_| numbers::<T>(&random(rng, 2 * size.len())));
    let context = format!("{} {map:?}, step {step}", isa.name());

    let mut slopes = Vec::new();
    for start in [1.0, 0.0] {
        let (z, reports) = bench.solve(map, start, &y, tolerance);
        assert!(reports.iter().all(SampleReport::converged), "{context}: {reports:?}");
        slopes.clear();
        for (z, y) in z.chunks(size.len()).zip(y.chunks(size.len())) {
            let z = doubles(z);
            let (f, d) = image(size, map, &weights, &z, &doubles(y));
            slopes.extend(d);
            assert!(
                largest_gap(&z, &f) < accepted,
                "{context}: z and F(z) differ by {}",
                largest_gap(&z, &f)
            );
        }
    }

    let (g, reports) = bench.adjoint(&numbers(&slopes), &v, tolerance);
    assert!(reports.iter().all(SampleReport::converged), "{context}: adjoint {reports:?}");
    for ((g, d), v) in g.chunks(size.len()).zip(slopes.chunks(size.len())).zip(v.chunks(size.len())) {
        let g = doubles(g);
        let q: Vec<f64> = g.iter().zip(d).map(|(g, d)| g * d).collect();
        let mut right = size.convolve(&weights, &q, true);
        right.iter_mut().zip(v).for_each(|(r, v)| *r += v.to_f64());
        let gap = largest_gap(&g, &right);
        assert!(gap < accepted * (1.0 + 1.0 / step), "{context}: g and W'Dg + v differ by {gap}");
    }
}

#[test]
fn solves_the_equations_for_every_activation_and_injection() {
    let size = Size { channels: 3, height: 4, width: 6, side: 3 };
    for (k, activation) in ACTIVATIONS.into_iter().enumerate() {
        for (injection, shift) in [
            (Injection::Inner, 0.0),
            (Injection::Inner, 0.4),
            (Injection::Outer, 0.0),
            (Injection::Outer, -0.2),
        ] {
            for step in [0.3, 1.0, 2.0] {
                let map = size.map(activation, injection, shift);
                check_equations::<f64>(Isa::detect(), size, &map, step, k as u64, 1e-13, 1e-11);
                check_equations::<f32>(Isa::detect(), size, &map, step, k as u64, 1e-6, 3e-5);
            }
        }
    }
}

#[test]
fn solves_the_equations_for_every_size() {
    // Even, odd, prime beyond the butterflies, degenerate, and more channels than one group of accumulators.
    let sizes = [
        (1, 1, 1, 3),
        (2, 1, 7, 3),
        (2, 7, 1, 3),
        (2, 2, 2, 3),
        (1, 3, 5, 5),
        (2, 5, 4, 3),
        (3, 11, 6, 5),
        (2, 13, 22, 7),
        (17, 4, 3, 5),
        (65, 2, 4, 3),
    ];
    for isa in Isa::available() {
        for (channels, height, width, side) in sizes {
            let size = Size { channels, height, width, side };
            let map = size.map(Activation::Relu, Injection::Inner, 0.0);
            check_equations::<f32>(isa, size, &map, 0.5, 3, 1e-6, 1e-4);
        }
    }
    for (channels, height, width, side) in sizes {
        let size = Size { channels, height, width, side };
        check_equations::<f64>(
            Isa::PORTABLE,
            size,
            &size.map(Activation::Tanh, Injection::Outer, 0.1),
            0.5,
            3,
            1e-13,
            1e-10,
        );
    }
}

#[test]
fn solves_the_equations_at_real_sizes() {
    for (channels, height, width, side) in [(48, 32, 32, 3), (32, 28, 28, 5)] {
        let size = Size { channels, height, width, side };
        check_equations::<f32>(
            Isa::detect(),
            size,
            &size.map(Activation::Relu, Injection::Inner, 0.0),
            0.1,
            5,
            1e-6,
            1e-3,
        );
    }
}

#[test]
fn a_sample_has_the_same_bits_in_any_batch() {
    // Without and, where the machine has them, with matrix tiles.
    for channels in [4, 17] {
        check_independence(Size { channels, height: 4, width: 6, side: 5 });
    }
}

fn check_independence(size: Size) {
    let rng = &mut ChaCha8Rng::seed_from_u64(11);
    let weights = size.weights(rng);
    let map = size.map(Activation::Tanh, Injection::Inner, 0.0);
    let count = 19;
    // Injections of different sizes, so that the images end at different iterations.
    let y: Vec<f32> = (0..count)
        .flat_map(|k| random(rng, size.len()).into_iter().map(move |y| (y * 2f64.powi(k % 7 - 3)) as f32))
        .collect();
    let d: Vec<f32> = random(rng, y.len()).iter().map(|d| d.abs() as f32).collect();
    for isa in Isa::available() {
        let mut bench = Bench::<f32>::new(isa, size, &weights, 0.7, count as usize);
        let (together, reports) = bench.solve(&map, 1.0, &y, 1e-5);
        let (together_adjoint, _) = bench.adjoint(&d, &y, 1e-5);
        assert!(reports.iter().any(|r| r.iterations != reports[0].iterations));
        let mut alone = Bench::<f32>::new(isa, size, &weights, 0.7, 1);
        for (k, y) in y.chunks(size.len()).enumerate() {
            let range = k * size.len()..(k + 1) * size.len();
            let (z, report) = alone.solve(&map, 1.0, y, 1e-5);
            assert_eq!(z, together[range.clone()]);
            assert_eq!(report[0], reports[k]);
            assert_eq!(alone.adjoint(&d[range.clone()], y, 1e-5).0, together_adjoint[range]);
        }
    }
}

/// Hands images to a sweep and takes the results.
#[cfg(target_arch = "x86_64")]
struct Images<'a> {
    pixels: Pixels,
    x: &'a [f32],
    y: &'a mut [f32],
}

#[cfg(target_arch = "x86_64")]
impl Pointwise<f32> for Images<'_> {
    fn before<V: Lanes<Elem = f32>>(&self, image: usize, at: usize, argument: &mut [f32]) {
        // Padding may hold any finite number.
        argument.fill(1e3);
        self.pixels.zip(argument, &self.x[self.pixels.plain(image, at, argument.len())], |a, x| *a = x);
    }

    fn after<V: Lanes<Elem = f32>>(&mut self, image: usize, at: usize, result: &mut [f32]) {
        let y = &mut self.y[self.pixels.plain(image, at, result.len())];
        self.pixels.unzip(y, result, |y, r| *y = r);
    }
}

/// The difference of `a` and `b`, relative to the size of `b`.
#[cfg(target_arch = "x86_64")]
fn relative_gap(a: &[f32], b: &[f32]) -> f64 {
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    squares(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b))) / squares(&mut b.iter().map(|&b| b.into()))
}

#[cfg(target_arch = "x86_64")]
#[test]
fn products_on_tiles_are_as_accurate_as_they_say() {
    let isa = Isa::detect();
    let Some(proof) = AmxProof::of(isa) else { return };
    let sizes = [1, 16, 17, 48, 64].into_iter().flat_map(|channels| {
        [(1, 1), (4, 6), (5, 3), (7, 2)].map(|(height, width)| Size { channels, height, width, side: 3 })
    });
    for size in sizes.chain([Size { channels: 48, height: 32, width: 32, side: 3 }]) {
        let rng = &mut ChaCha8Rng::seed_from_u64(9);
        let mut operator = Operator::<f32>::new(size.kernel());
        operator.load(isa, &numbers(&size.weights(rng)), 0.7).expect("a monotone operator");
        let table = &mut operator.forward;
        // However few units there are.
        table.tile(proof);
        let count = 40;
        let x: Vec<f32> = numbers(&random(rng, count * size.len()));
        let mut scratch = Scratch::new(table, count);
        let mut apply = |accuracy, images: &[usize]| {
            let mut y = vec![0.0; x.len()];
            let mut pointwise = Images { pixels: Pixels::of(table), x: &x, y: &mut y };
            sweep(isa, table, accuracy, &mut scratch, images, &mut pointwise);
            y
        };
        let everyone: Vec<usize> = (0..count).collect();
        let exact = apply(Accuracy::Full, &everyone);
        for (accuracy, accepted) in [(Accuracy::Coarse, 4e-3), (Accuracy::Fine, 1.2e-5)] {
            let together = apply(accuracy, &everyone);
            let gap = relative_gap(&together, &exact);
            let Size { channels, height, width, .. } = size;
            assert!(gap < accepted, "{channels} x {height} x {width}, {accuracy:?}: off by {gap}");
            // Any number of images, at any place: the same bits.
            for count in (1..=17).chain([32, 33]) {
                let some: Vec<usize> = (0..count).map(|k| (k * 7 + count) % 40).collect();
                let found = apply(accuracy, &some);
                for image in some {
                    let range = image * size.len()..(image + 1) * size.len();
                    assert_eq!(found[range.clone()], together[range], "{count} images");
                }
            }
        }
    }
}

/// Iterating in place, with the beginning of the next sweep in the end of the last one, some images resting in between, gives
/// the bits of steps from one buffer to another.
#[test]
fn iterations_in_place_are_steps() {
    let size = Size { channels: 17, height: 4, width: 6, side: 3 };
    let rng = &mut ChaCha8Rng::seed_from_u64(21);
    let weights = size.weights(rng);
    let map = size.map(Activation::Relu, Injection::Inner, 0.0);
    let y = numbers::<f32>(&random(rng, 3 * size.len()));
    let v = numbers::<f32>(&random(rng, 3 * size.len()));
    let slopes = vec![0.5f32; v.len()];
    for isa in Isa::available() {
        let mut bench = Bench::<f32>::new(isa, size, &weights, 0.7, 3);
        let Bench { operator, memory, .. } = &mut bench;
        let active: [&[usize]; 5] = [&[0, 1, 2], &[0, 2], &[1], &[0, 1, 2], &[2, 0]];
        for measure in [Measure::Relative, Measure::Sup] {
            for start in [0.0, 1.0] {
                let mut problem = Forward::new(isa, operator, memory, &map, &y);
                let mut states = vec![0.0; 3 * problem.state_len()];
                problem.start(Accuracy::Full, Start::Constant(start), &[], &mut states);
                check_in_place(&mut problem, states, &active, measure);
            }
            let mut problem = Adjoint::new(isa, operator, memory, &slopes, &v);
            let mut states = vec![0.0; 3 * problem.state_len()];
            problem.start(Accuracy::Full, &mut states);
            check_in_place(&mut problem, states, &active, measure);
        }
    }
}

fn check_in_place(
    problem: &mut dyn FixedPointStep<f32>,
    start: Vec<f32>,
    active: &[&[usize]],
    measure: Measure,
) {
    let (mut state, mut in_place) = (start.clone(), [Distance::EMPTY; 3]);
    for active in active {
        let problem = problem.in_place().expect("in place");
        problem.iterate(active, &mut state, measure, &mut in_place);
    }
    let (mut image, mut far) = (start, [Distance::EMPTY; 3]);
    for active in active {
        let argument = image.clone();
        problem.step(active, &argument, &mut image, measure, &mut far);
    }
    assert!(state == image && in_place == far);
}

#[test]
fn a_singular_resolvent_is_refused() {
    // W = 2 I and t = 1: I + (I - W) = 0.
    let mut weights = vec![0.0f32; 9];
    weights[4] = 2.0;
    let error = Operator::<f32>::new(Kernel { units: 1, side: 3, height: 4, width: 4 })
        .load(Isa::detect(), &weights, 1.0)
        .unwrap_err();
    assert!(error.to_string().contains("not monotone"), "{error}");
}

/// A convolution and its weight gradient against their definitions.
fn check_convolution<T: SimdReal>(isa: Isa, size: Size, accepted: f64) {
    let rng = &mut ChaCha8Rng::seed_from_u64(5);
    let weights = random(rng, size.channels * size.channels * size.side * size.side);
    let count = 11;
    let [z, q] = [0, 1].map(|_| random(rng, count * size.len()));
    let mut convolution = Convolution::<T>::new(isa, size.kernel());
    convolution.pack(&numbers(&weights));
    let mut scratch = convolution.scratch();
    // Not all samples, and not in order of a block: what is left out stays zero.
    let active: Vec<usize> = (0..count).filter(|k| k % 4 != 2).collect();
    let mut found = vec![0.0; z.len()];
    convolution.apply(&active, &numbers::<T>(&z), &mut scratch, &mut |sample, offset, row| {
        found[sample * size.len() + offset..][..row.len()].copy_from_slice(&doubles(row));
    });
    let mut accumulator = vec![T::ZERO; convolution.gradient_len()];
    convolution.accumulate_gradient(&active, &numbers(&z), &numbers(&q), &mut scratch, &mut accumulator);
    let mut gradient = vec![T::ONE; weights.len()];
    convolution.unpack_gradient(&accumulator, &mut gradient);

    let (mut image, mut slopes) = (vec![0.0; z.len()], vec![1.0; weights.len()]);
    for &sample in &active {
        let range = sample * size.len()..(sample + 1) * size.len();
        image[range.clone()].copy_from_slice(&size.convolve(&weights, &z[range.clone()], false));
        // q . (W z) is linear in W: its derivative for a weight is its value for the unit kernel.
        for (at, slope) in slopes.iter_mut().enumerate() {
            let mut unit = vec![0.0; weights.len()];
            unit[at] = 1.0;
            let image = size.convolve(&unit, &z[range.clone()], false);
            *slope += image.iter().zip(&q[range.clone()]).map(|(f, q)| f * q).sum::<f64>();
        }
    }
    let context = format!("{} {} x {} x {}", isa.name(), size.channels, size.height, size.width);
    let gap = largest_gap(&found, &image);
    assert!(gap < accepted, "{context}: W z is off by {gap}");
    let gap = largest_gap(&doubles(&gradient), &slopes);
    assert!(gap < 10.0 * accepted, "{context}: the gradient is off by {gap}");
}

#[test]
fn convolutions_and_their_gradients_are_as_defined() {
    for (channels, height, width, side) in
        [(3, 5, 6, 5), (2, 6, 5, 5), (5, 4, 8, 3), (1, 3, 3, 7), (17, 2, 3, 3)]
    {
        let size = Size { channels, height, width, side };
        check_convolution::<f64>(Isa::PORTABLE, size, 1e-12);
        for isa in Isa::available() {
            check_convolution::<f32>(isa, size, 1e-4);
        }
    }
}
