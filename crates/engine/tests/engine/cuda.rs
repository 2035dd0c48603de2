//! The GPU against the CPU: every operation, every map by every solver, every gradient. Where there is no GPU, each test says so and
//! passes. A test collects what is wrong and shows it all: one bad combination does not hide the others.

mod onchip;

use std::sync::OnceLock;

use crate::common::*;
use crate::skipped::skipped;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_engine::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState, Rows, Scaling, Update};
use subdeq_engine::{
    Activation, Cpu, Crop, Cuda, DataSets, Device, Dropout, Equilibria, Extent, Images, Injection, Integrate,
    Layers, MIRRORED, Measure, OdeOutcome, OdeReport, OdeTolerance, Operator, Order, Outcome, PNorm, Padding,
    Parametrise, Pass, Picks, Real, Result, Room, SampleReport, ShapedMap, Solver, Spectra, Start, Stopping,
    Summary, free_parameters,
};
use subdeq_map::{Parametrisation, Parts};

/// The GPU, if there is one; else says that the test is skipped.
fn gpu(test: &str) -> Option<&'static Cuda> {
    static GPU: OnceLock<Option<Cuda>> = OnceLock::new();
    let found = GPU.get_or_init(|| {
        // A machine that has a GPU must be able to use it: an error here is a failure, not a reason to skip.
        (!Cuda::available().is_empty()).then(|| Cuda::new(0).unwrap())
    });
    if found.is_none() {
        skipped(format!("{test} (no GPU)"));
    }
    found.as_ref()
}

/// What went wrong in a test.
#[derive(Default)]
struct Failures {
    lines: Vec<String>,
    checks: usize,
}

impl Failures {
    /// Notes an error that is larger than allowed (or NaN).
    fn small(&mut self, what: impl Fn() -> String, error: f64, allowed: f64) {
        self.checks += 1;
        if error.is_nan() || error > allowed {
            self.lines.push(format!("{error:9.2e} > {allowed:7.1e}  {}", what()));
        }
    }

    fn holds(&mut self, what: impl Fn() -> String, holds: bool) {
        self.checks += 1;
        if !holds {
            self.lines.push(what());
        }
    }

    /// The value of a call that should succeed.
    fn value<T>(&mut self, what: impl Fn() -> String, result: Result<T>) -> Option<T> {
        self.checks += 1;
        result.map_err(|error| self.lines.push(format!("{}: {error}", what()))).ok()
    }

    fn show(self) {
        println!("{} checks", self.checks);
        assert!(
            self.lines.is_empty(),
            "{} of {} failed:\n{}",
            self.lines.len(),
            self.checks,
            self.lines.join("\n")
        );
    }
}

fn convert_to<T: Real>(numbers: &[f64]) -> Vec<T> {
    numbers.iter().map(|&x| T::from_f64(x)).collect()
}

fn up<D: Device>(device: &D, numbers: &[f64]) -> D::Array {
    device.upload(&convert_to::<D::Elem>(numbers)).unwrap()
}

fn down<D: Device>(device: &D, array: &D::Array, len: usize) -> Vec<f64> {
    let mut host = vec![D::Elem::ZERO; len];
    device.read(array, 0, &mut host).unwrap();
    host.iter().map(|x| x.to_f64()).collect()
}

fn numbers(seed: u64, len: usize) -> Vec<f64> {
    random(&mut ChaCha8Rng::seed_from_u64(seed), len, -1.0, 1.0)
}

fn exact() -> Cpu<f64> {
    Cpu::new(2).unwrap()
}

#[test]
fn arrays_are_written_read_copied_and_gathered_as_on_the_cpu() {
    let Some(gpu) = gpu("arrays") else { return };
    let mut failures = Failures::default();
    /// What a device makes of the same calls.
    fn of<D: Device>(device: &D) -> (Vec<Vec<f64>>, Vec<String>) {
        let x = up(device, &numbers(1, 1000));
        let mut y = device.zeros(700).unwrap();
        let mut seen = vec![down(device, &y, 700)];
        device.fill(300, 2.5, &mut y).unwrap();
        device.write(&mut y, 690, &convert_to::<D::Elem>(&[1.0, 2.0, 3.0])).unwrap();
        seen.push(down(device, &y, 700));
        device.copy(123, &x, &mut y).unwrap();
        let (from, to) =
            (Rows { array: &x, stride: 31, offset: 5 }, Rows { array: &mut y, stride: 13, offset: 200 });
        device.copy_rows(17, 11, from, to).unwrap();
        seen.push(down(device, &y, 700));
        let list = device.integers(&[9, 4, 2, 7 | MIRRORED, 0, 4]).unwrap();
        device.gather_rows(33, &x, Picks { list: &list, range: 1..5 }, &mut y).unwrap();
        seen.push(down(device, &y, 700));
        let mut z = up(device, &numbers(2, 500));
        device.scatter_rows(33, &y, Picks { list: &list, range: 0..4 }, &mut z).unwrap();
        seen.push(down(device, &z, 500));
        let mut few = device.zeros(3).unwrap();
        let errors = [
            device.write(&mut few, 2, &convert_to::<D::Elem>(&[1.0, 2.0])).unwrap_err(),
            device.read(&few, 0, &mut [D::Elem::ZERO; 4]).unwrap_err(),
            device.write_finite("y", &mut few, &convert_to::<D::Elem>(&[1.0, f64::NAN])).unwrap_err(),
            device.fill(4, 0.0, &mut few).unwrap_err(),
            device.copy(4, &x, &mut few).unwrap_err(),
            device
                .gather_rows(100, &x, Picks { list: &device.integers(&[10]).unwrap(), range: 0..1 }, &mut y)
                .unwrap_err(),
            device.gather_rows(1, &x, Picks { list: &list, range: 0..9 }, &mut y).unwrap_err(),
        ];
        (seen, errors.iter().map(ToString::to_string).collect())
    }
    let ((found, errors), (expected, sentences)) = (of(gpu), of(&Cpu::<f32>::new(1).unwrap()));
    for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
        failures.holds(|| format!("array {k}: {found:?}, on the CPU {expected:?}"), found == expected);
    }
    for (error, sentence) in errors.iter().zip(&sentences) {
        failures.holds(|| format!("`{error}`, on the CPU `{sentence}`"), error == sentence);
    }
    let error = gpu.zeros(1 << 60).unwrap_err().to_string();
    failures.holds(|| error.clone(), error.contains("do not fit into the memory"));
    println!("{}, {:?} bytes", gpu.name(), gpu.memory());
    failures.show();
}

#[test]
fn it_is_all_that_an_image_classifier_needs() {
    fn network<D: subdeq_engine::Backend>() {}
    network::<Cuda>();
}

#[test]
fn a_gpu_that_is_not_there_is_one_sentence() {
    let error = Cuda::new(4096).unwrap_err().to_string();
    println!("{error}");
    assert!(error.contains("GPU number 4096") || error.contains("driver"), "{error}");
}

#[test]
fn batches_of_images() {
    let Some(gpu) = gpu("batches of images") else { return };
    let mut failures = Failures::default();
    let rng = &mut ChaCha8Rng::seed_from_u64(3);
    let shape = [3, 5, 7];
    let pixels: Vec<u8> = (0..20 * 105).map(|_| rng.random_range(0..=255)).collect();
    let labels: Vec<u32> = (0..20).map(|_| rng.random_range(0..10)).collect();
    let images = Images::new(pixels, labels, shape, 255.0, &[0.4, 0.5, 0.3], &[0.2, 0.3, 0.25]).unwrap();
    let cpu = Cpu::<f32>::new(1).unwrap();
    let list = [3, 19 | MIRRORED, 0, 7, 7 | MIRRORED, 1];
    for order in [Order::ChannelsFirst, Order::ChannelsLast] {
        for (range, crop) in
            [(0..6, Crop::NONE), (2..5, Crop::NONE), (0..6, Crop::new(2, 7, 5)), (1..6, Crop::new(9, 8, 5))]
        {
            fn of<D: DataSets + Layers>(
                device: &D,
                images: &Images,
                list: &[u32],
                range: std::ops::Range<usize>,
                crop: Crop,
                order: Order,
            ) -> (Vec<f64>, Summary) {
                let set = device.images(images, 10).unwrap();
                let list = device.integers(list).unwrap();
                let mut x = device.zeros(6 * 105).unwrap();
                let mut labels = device.integers(&[0; 6]).unwrap();
                let count = range.len();
                device.gather(&set, Picks { list: &list, range }, crop, order, &mut x, &mut labels).unwrap();
                // The labels show in the loss.
                let logits = up(device, &numbers(9, 60));
                let (mut gradient, mut tally) = (device.zeros(60).unwrap(), device.tally().unwrap());
                device.cross_entropy(count, 10, 0.0, &logits, &labels, &mut gradient, &mut tally).unwrap();
                (down(device, &x, count * 105), device.finish(&mut tally).unwrap())
            }
            let (found, summary) = of(gpu, &images, &list, range.clone(), crop, order);
            let (expected, counted) = of(&cpu, &images, &list, range.clone(), crop, order);
            failures.holds(|| format!("{order:?} {range:?} {crop:?}"), found == expected);
            failures.small(
                || format!("{order:?} {range:?}: labels"),
                (summary.loss - counted.loss).abs(),
                1e-5,
            );
        }
    }
    let error = gpu.images(&images, 3).unwrap_err().to_string();
    failures.holds(|| error.clone(), error == cpu.images(&images, 3).unwrap_err().to_string());
    failures.show();
}

#[test]
fn entries_are_dropped_by_the_number_of_their_sample() {
    let Some(gpu) = gpu("dropped entries") else { return };
    let mut failures = Failures::default();
    fn of<D: DataSets>(device: &D, len: usize, dropout: Dropout) -> Vec<f64> {
        let list = device.integers(&[40, 3, 19 | MIRRORED, 0, 7, 7 | MIRRORED, (1 << 31) - 1]).unwrap();
        let mut x = up(device, &numbers(1, 7 * len));
        device.drop_entries(len, Picks { list: &list, range: 1..7 }, &dropout, &mut x).unwrap();
        device.drop_entries(len, Picks { list: &list, range: 2..2 }, &dropout, &mut x).unwrap();
        down(device, &x, 7 * len)
    }
    for (len, rate) in [(1, 0.5), (784, 0.2), (3072, 0.15), (1000, 0.0)] {
        let dropout = Dropout::new(rate, 3, 17);
        let (found, expected) = (of(gpu, len, dropout), of(&Cpu::<f32>::new(1).unwrap(), len, dropout));
        failures.holds(|| format!("{rate} of {len}"), found == expected);
    }
    failures.show();
}

/// What a device makes of a linear layer: output, and the three gradients, which replace what was there.
fn linear<D: Layers>(device: &D, shape: LinearShape, rectified: bool) -> Vec<Vec<f64>> {
    let LinearShape { batch, inputs, outputs } = shape;
    let (x, w) = (up(device, &numbers(1, batch * inputs)), up(device, &numbers(2, outputs * inputs)));
    let (b, mut gy) = (up(device, &numbers(3, outputs)), up(device, &numbers(4, batch * outputs)));
    let mut y = device.zeros(batch * outputs).unwrap();
    device.linear(shape, &x, &w, &b, rectified, &mut y).unwrap();
    let (mut gx, mut gw, mut gb) = (
        device.zeros(batch * inputs).unwrap(),
        up(device, &numbers(5, outputs * inputs)),
        up(device, &numbers(6, outputs)),
    );
    let output = rectified.then_some(&y);
    device.linear_backward(shape, &x, &w, output, &mut gy, Some(&mut gx), &mut gw, &mut gb).unwrap();
    vec![
        down(device, &y, batch * outputs),
        down(device, &gx, batch * inputs),
        down(device, &gw, outputs * inputs),
        down(device, &gb, outputs),
    ]
}

#[test]
fn linear_layers() {
    let Some(gpu) = gpu("linear layers") else { return };
    let mut failures = Failures::default();
    for (batch, inputs, outputs) in [
        (1, 1, 1),
        (5, 7, 3),
        (64, 64, 64),
        (70, 200, 87),
        (130, 65, 10),
        (600, 17, 129),
        (70, 784, 87),
        (128, 768, 10),
    ] {
        let shape = LinearShape { batch, inputs, outputs };
        for rectified in [false, true] {
            let of = |device: &Cuda| linear(device, shape, rectified);
            let (found, expected) = (of(gpu), linear(&exact(), shape, rectified));
            for (what, (found, expected)) in ["y", "gx", "gw", "gb"].iter().zip(found.iter().zip(&expected)) {
                let error = relative_error(found, expected);
                failures.small(|| format!("{what} of {shape:?}, rectified {rectified}"), error, 5e-6);
            }
            failures.holds(|| format!("{shape:?}: other bits the second time"), found == of(gpu));
        }
    }
    failures.show();
}

/// What a device makes of a convolution; the gradients replace what was there, and without that of the input they are the same.
fn convolution<D: Layers>(device: &D, shape: ConvShape, rectified: bool) -> Vec<Vec<f64>> {
    let pixels = shape.batch * shape.height * shape.width;
    let weights = shape.outputs * shape.inputs * 9;
    let (x, w) = (up(device, &numbers(1, pixels * shape.inputs)), up(device, &numbers(2, weights)));
    let gy = || up(device, &numbers(4, pixels * shape.outputs));
    let b = up(device, &numbers(3, shape.outputs));
    let mut y = device.zeros(pixels * shape.outputs).unwrap();
    device.convolution(shape, &x, &w, &b, rectified, &mut y).unwrap();
    let (mut gx, mut gw, mut gb) = (
        device.zeros(pixels * shape.inputs).unwrap(),
        up(device, &numbers(5, weights)),
        up(device, &numbers(6, shape.outputs)),
    );
    let output = rectified.then_some(&y);
    device.convolution_backward(shape, &x, &w, output, &mut gy(), Some(&mut gx), &mut gw, &mut gb).unwrap();
    let (mut gw_alone, mut gb_alone) =
        (up(device, &numbers(7, weights)), up(device, &numbers(8, shape.outputs)));
    device
        .convolution_backward(shape, &x, &w, output, &mut gy(), None, &mut gw_alone, &mut gb_alone)
        .unwrap();
    vec![
        down(device, &y, pixels * shape.outputs),
        down(device, &gx, pixels * shape.inputs),
        down(device, &gw, weights),
        down(device, &gb, shape.outputs),
        down(device, &gw_alone, weights),
        down(device, &gb_alone, shape.outputs),
    ]
}

#[test]
fn convolutions() {
    let Some(gpu) = gpu("convolutions") else { return };
    let mut failures = Failures::default();
    for padding in [Padding::Zero, Padding::Circular] {
        for (batch, height, width, inputs, outputs) in [
            (1, 3, 3, 1, 1),
            (2, 5, 4, 3, 2),
            (3, 8, 9, 17, 5),
            (2, 14, 14, 16, 16),
            (5, 11, 13, 3, 66),
            // More pieces of few channels than blocks, some of them of a single row.
            (70, 28, 28, 1, 16),
            (150, 9, 12, 3, 20),
        ] {
            let shape = ConvShape { batch, height, width, inputs, outputs, padding };
            for rectified in [false, true] {
                let of = |device: &Cuda| convolution(device, shape, rectified);
                let (found, expected) = (of(gpu), convolution(&exact(), shape, rectified));
                let names = ["y", "gx", "gw", "gb", "gw alone", "gb alone"];
                for (what, (found, expected)) in names.iter().zip(found.iter().zip(&expected)) {
                    let error = relative_error(found, expected);
                    failures.small(|| format!("{what} of {shape:?}, rectified {rectified}"), error, 1e-5);
                }
                failures.holds(|| format!("{shape:?}: other bits the second time"), found == of(gpu));
            }
        }
    }
    failures.show();
}

/// Sums of products on a device: a convolution, its transpose, and the gradient of its weights.
fn sums_of_products<D: Layers>(device: &D, shape: ConvShape, [x, w, gy]: [&[f64]; 3]) -> Vec<Vec<f64>> {
    let (x_array, w_array, mut gy_array) = (up(device, x), up(device, w), up(device, gy));
    let mut bias = device.zeros(shape.outputs).unwrap();
    let (mut y, mut gx, mut gw) =
        (device.zeros(gy.len()).unwrap(), device.zeros(x.len()).unwrap(), device.zeros(w.len()).unwrap());
    device.convolution(shape, &x_array, &w_array, &bias, false, &mut y).unwrap();
    let (g, gx_array) = (&mut gy_array, Some(&mut gx));
    device.convolution_backward(shape, &x_array, &w_array, None, g, gx_array, &mut gw, &mut bias).unwrap();
    vec![down(device, &y, gy.len()), down(device, &gx, x.len()), down(device, &gw, w.len())]
}

/// Every sum against the one in `f64`, relative to the sum of the absolute products: at the sizes of the paper and odd ones, and with
/// samples of very different sizes in one batch.
#[test]
fn convolutions_are_as_accurate_as_f32() {
    let Some(gpu) = gpu("accuracy of convolutions") else { return };
    let mut failures = Failures::default();
    let (zero, circular) = (Padding::Zero, Padding::Circular);
    for (batch, height, width, inputs, outputs, padding) in [
        (1, 32, 32, 48, 48, zero),
        (1, 28, 28, 32, 32, zero),
        (2, 28, 28, 16, 16, zero),
        (1, 64, 64, 64, 64, zero),
        (1, 32, 32, 3, 48, zero),
        (3, 28, 28, 1, 16, zero),
        (1, 16, 16, 40, 128, zero),
        (2, 16, 16, 48, 48, circular),
        (3, 7, 9, 5, 5, circular),
        (2, 65, 33, 7, 18, circular),
    ] {
        let shape = ConvShape { batch, height, width, inputs, outputs, padding };
        let image = height * width;
        for sizes in [[1.0, 1.0, 1.0], [3e4, 2e-3, 1e-18], [1e-20, 50.0, 4e12], [1e-19, 1e-16, 1e-15]] {
            // Later samples are larger; as the GPU has them, in f32.
            let scaled = |seed, len: usize, sample: usize, size: f64| -> Vec<f64> {
                let entries = numbers(seed, len);
                let sized = |(k, x): (usize, &f64)| {
                    f64::from((x * size * 10f64.powi((k / sample) as i32 * 3)) as f32)
                };
                entries.iter().enumerate().map(sized).collect()
            };
            let x = scaled(1, batch * image * inputs, image * inputs, sizes[0]);
            let w = scaled(2, outputs * inputs * 9, usize::MAX, sizes[1]);
            let gy = scaled(3, batch * image * outputs, image * outputs, sizes[2]);
            let absolute = [&x, &w, &gy].map(|x| x.iter().map(|x| x.abs()).collect::<Vec<_>>());
            let found = sums_of_products(gpu, shape, [&x, &w, &gy]);
            let expected = sums_of_products(&exact(), shape, [&x, &w, &gy]);
            let bounds = sums_of_products(&exact(), shape, [&absolute[0], &absolute[1], &absolute[2]]);
            // The factors of weight gradients are rounded to 17 bits: what is left of that after a sum over a few dozen pixels.
            for (k, (what, allowed)) in [("y", 1e-6), ("gx", 1e-6), ("gw", 4e-6)].into_iter().enumerate() {
                let errors = found[k].iter().zip(&expected[k]).zip(&bounds[k]);
                let worst = errors.map(|((a, b), sum)| (a - b).abs() / sum).fold(0.0, |m: f64, e| {
                    // NaN must not pass for a small number.
                    if e <= m { m } else { e }
                });
                failures.small(|| format!("{what} of {shape:?}, sizes {sizes:?}"), worst, allowed);
            }
        }
    }
    failures.show();
}

/// What a device makes of batch norm and pooling: everything that is written.
fn norm_pool<D: Layers>(device: &D, shape: NormPoolShape) -> Vec<Vec<f64>> {
    let (len, pooled, c) =
        (shape.batch * shape.image_len(), shape.batch * shape.pooled_len(), shape.channels);
    let x: Vec<f64> = numbers(1, len).iter().map(|x| f64::from((3.0 + x) as f32)).collect();
    let x = up(device, &x);
    let positive: Vec<f64> = numbers(4, c).iter().map(|x| x.abs() + 0.5).collect();
    let (scale, offset) = (up(device, &numbers(2, c)), up(device, &numbers(3, c)));
    let scaling = Scaling { scale: &scale, offset: &offset };
    let mut state = NormState {
        running_mean: up(device, &numbers(5, c)),
        running_variance: up(
            device,
            &convert_to::<f32>(&positive).iter().map(|&x| x.into()).collect::<Vec<_>>(),
        ),
        batch_mean: device.zeros(c).unwrap(),
        batch_inverse_deviation: device.zeros(c).unwrap(),
        normalised: device.zeros(pooled).unwrap(),
    };
    let (mut y, mut eval) = (device.zeros(pooled).unwrap(), device.zeros(pooled).unwrap());
    device.norm_pool_train(shape, &x, scaling, &mut state, &mut y).unwrap();
    device.norm_pool_eval(shape, &x, scaling, &state, &mut eval).unwrap();
    let gy = up(device, &numbers(6, pooled));
    let (mut gx, mut gscale, mut goffset) =
        (device.zeros(len).unwrap(), up(device, &numbers(7, c)), up(device, &numbers(8, c)));
    let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
    device.norm_pool_backward(shape, &x, &scale, &state, &gy, &mut gx, gradients).unwrap();
    let (mut means, mut spread) = (device.zeros(pooled).unwrap(), up(device, &numbers(9, len)));
    device.average_pool(shape, &x, &mut means).unwrap();
    device.average_pool_backward(shape, &gy, &mut spread).unwrap();
    vec![
        down(device, &means, pooled),
        down(device, &spread, len),
        down(device, &y, pooled),
        down(device, &eval, pooled),
        down(device, &state.running_mean, c),
        down(device, &state.running_variance, c),
        down(device, &gx, len),
        down(device, &gscale, c),
        down(device, &goffset, c),
    ]
}

#[test]
fn batch_norms() {
    let Some(gpu) = gpu("batch norms") else { return };
    let mut failures = Failures::default();
    for (batch, height, width, channels, window) in [
        (5, 1, 1, 1, 1),
        (300, 1, 1, 87, 1),
        (3, 8, 8, 5, 4),
        (4, 7, 9, 33, 2),
        (2, 32, 32, 48, 8),
        (9, 2, 2, 300, 2),
        // More windows next to each other than a block keeps the gradients of.
        (2, 3, 64, 80, 1),
        (2, 3, 70, 61, 1),
        // Pixels as vectors: the norm of an injection.
        (5000, 1, 1, 48, 1),
        (4500, 1, 1, 3, 1),
    ] {
        let shape = NormPoolShape { batch, height, width, channels, window };
        let (found, expected) = (norm_pool(gpu, shape), norm_pool(&exact(), shape));
        let names = [
            "means",
            "gradient of means",
            "y",
            "eval",
            "running mean",
            "running variance",
            "gx",
            "gscale",
            "goffset",
        ];
        for (what, (found, expected)) in names.iter().zip(found.iter().zip(&expected)) {
            failures.small(|| format!("{what} of {shape:?}"), relative_error(found, expected), 3e-5);
        }
        failures.holds(|| format!("{shape:?}: other bits the second time"), found == norm_pool(gpu, shape));
    }
    failures.show();
}

#[test]
fn batches_in_parts() {
    let Some(gpu) = gpu("batches in parts") else { return };
    for shape in crate::parts::SHAPES {
        crate::parts::norms_agree(gpu, shape, 3e-5);
    }
    crate::parts::losses_agree(gpu);
}

#[test]
fn activations_sums_losses_and_updates() {
    let Some(gpu) = gpu("activations, sums, losses, updates") else { return };
    let mut failures = Failures::default();
    fn of<D: Layers>(device: &D, rows: usize, cols: usize, smoothing: f64) -> (Vec<Vec<f64>>, Summary) {
        let len = rows * cols;
        let arrays = |seed: u64| up(device, &numbers(seed, len));
        let (mut x, mut t, mut g, mut h) = (arrays(1), arrays(2), arrays(3), arrays(4));
        device.relu(len, &mut x).unwrap();
        device.relu_backward(len, &x, &mut g).unwrap();
        device.tanh(len, &mut t).unwrap();
        device.tanh_backward(len, &t, &mut h).unwrap();
        let (mut y, mut sums) = (arrays(5), up(device, &numbers(6, cols)));
        device.axpy(len, -0.7, &x, &mut y).unwrap();
        device.add_to_rows(rows, cols, &up(device, &numbers(7, cols)), &mut y).unwrap();
        device.sum_rows(rows, cols, &y, &mut sums).unwrap();
        let labels: Vec<u32> = (0..rows as u32).map(|i| i * 7 % cols as u32).collect();
        let labels = device.integers(&labels).unwrap();
        let (mut gradient, mut tally) = (device.zeros(len).unwrap(), device.tally().unwrap());
        for _ in 0..2 {
            device.cross_entropy(rows, cols, smoothing, &y, &labels, &mut gradient, &mut tally).unwrap();
        }
        let (mut p, mut mean) = (arrays(8), arrays(9));
        let squares: Vec<f64> = numbers(10, len).iter().map(|x| f64::from((x * x) as f32)).collect();
        let mut square = up(device, &squares);
        // Several parameters at once, more than one launch of a GPU takes.
        let mut others: Vec<[D::Array; 3]> = (0..17)
            .map(|k| {
                [up(device, &numbers(11 + k, 3)), up(device, &numbers(31 + k, 3)), device.zeros(3).unwrap()]
            })
            .collect();
        let direction = up(device, &numbers(14, 3));
        for step in 3..6 {
            let first =
                Update { parameter: &mut p, gradient: &gradient, mean: &mut mean, square: &mut square };
            let others = others.iter_mut().map(|[parameter, mean, square]| Update {
                parameter,
                gradient: &direction,
                mean,
                square,
            });
            let mut updates: Vec<_> = std::iter::once(first).chain(others).collect();
            let adam = if smoothing > 0.0 { Adam::decoupled } else { Adam::new };
            device.adam(&adam(0.01, 0.1, step), &mut updates).unwrap();
        }
        let others: Vec<f64> = others.iter().flat_map(|[p, ..]| down(device, p, 3)).collect();
        let summary = device.finish(&mut tally).unwrap();
        assert_eq!(device.finish(&mut tally).unwrap(), Summary::default(), "the counters start again from 0");
        let found = [&x, &g, &t, &h, &y, &gradient, &p, &mean, &square].map(|array| down(device, array, len));
        (found.into_iter().chain([down(device, &sums, cols), others]).collect(), summary)
    }
    let sizes = [(1, 1), (3, 5), (130, 10), (2500, 33), (7, 1000)].map(|(rows, cols)| (rows, cols, 0.0));
    for (rows, cols, smoothing) in sizes.into_iter().chain([(130, 10, 0.1), (7, 1000, 1.0)]) {
        let (found, summary) = of(gpu, rows, cols, smoothing);
        let (expected, counted) = of(&exact(), rows, cols, smoothing);
        let names = [
            "relu",
            "relu'",
            "tanh",
            "tanh'",
            "y",
            "logit gradient",
            "parameter",
            "mean",
            "square",
            "sums",
            "others",
        ];
        for (what, (found, expected)) in names.iter().zip(found.iter().zip(&expected)) {
            failures.small(|| format!("{what} of {rows}x{cols}"), relative_error(found, expected), 5e-6);
        }
        let error = (summary.loss - counted.loss).abs() / counted.loss.abs().max(1.0);
        failures.small(|| format!("loss of {rows}x{cols}"), error, 1e-6);
        let same = (summary.samples, summary.correct) == (counted.samples, counted.correct);
        failures.holds(|| format!("{rows}x{cols}: {summary:?}, on the CPU {counted:?}"), same);
        failures.holds(
            || format!("{rows}x{cols}: other bits"),
            of(gpu, rows, cols, smoothing) == (found.clone(), summary),
        );
    }
    failures.show();
}

/// Weights made of random numbers, tied shift, and gradients pulled.
fn parametrised<D: Parametrise>(
    device: &D,
    map: &ShapedMap,
    parametrisation: Parametrisation,
) -> Result<Vec<Vec<f64>>> {
    let needed = free_parameters(parametrisation, map);
    let free: Vec<_> = needed.iter().zip(1..).map(|(&(_, len), seed)| numbers(seed, len)).collect();
    parametrised_by(device, map, parametrisation, &free)
}

/// The same of given free parameters.
fn parametrised_by<D: Parametrise>(
    device: &D,
    map: &ShapedMap,
    parametrisation: Parametrisation,
    free: &[Vec<f64>],
) -> Result<Vec<Vec<f64>>> {
    let mut weights = device.weights(map, parametrisation)?;
    let needed = free_parameters(parametrisation, map);
    let free: Vec<_> = free.iter().map(|numbers| up(device, numbers)).collect();
    let free: Vec<&D::Array> = free.iter().collect();
    device.make_weights(&mut weights, &free)?;
    let mut seen: Vec<Vec<f64>> = (0..map.weight_count())
        .map(|k| down(device, &device.weight_arrays(&weights)[k], map.weight_len(k)))
        .collect();
    let units = map.operator().units();
    seen.extend(device.tied_shift(&weights).map(|tied| down(device, tied, units)));
    let tied = device.tied_shift(&weights).is_some().then(|| up(device, &numbers(20, units)));
    let gradients: Vec<_> =
        (0..map.weight_count()).map(|k| up(device, &numbers(10 + k as u64, map.weight_len(k)))).collect();
    let mut pulled: Vec<_> = needed.iter().map(|&(_, len)| device.zeros(len).unwrap()).collect();
    let mut targets: Vec<&mut D::Array> = pulled.iter_mut().collect();
    device.pull_parameters(&mut weights, &free, &gradients, tied.as_ref(), &mut targets)?;
    seen.extend(pulled.iter().zip(needed).map(|(array, (_, len))| down(device, array, len)));
    Ok(seen)
}

#[test]
fn parametrisations() {
    let Some(gpu) = gpu("parametrisations") else { return };
    let mut failures = Failures::default();
    let margin = 0.1;
    let of_side =
        |kernel| Operator::Conv { channels: 3, height: 9, width: 10, padding: Padding::Circular, kernel };
    let (one, five, nine) = (of_side(1), of_side(5), of_side(9));
    let single = [Parametrisation::Free, Parametrisation::Absolute, Parametrisation::RowSigned];
    let mut cases: Vec<(ShapedMap, Parametrisation)> = Vec::new();
    for operator in [DENSE, CONV, CIRCULAR] {
        cases.extend(single.map(|p| (plain(operator), p)));
        let split =
            changed(operator, |parts| subdeq_map::Parts { form: subdeq_engine::Form::SplitSign, ..parts });
        cases.push((split, Parametrisation::Split));
        for map in maps(operator).into_iter().filter(|map| map.weight_count() == 4) {
            cases.push((map, Parametrisation::SplitGains));
        }
        let tied = changed(operator, |parts| subdeq_map::Parts {
            form: subdeq_engine::Form::Gains,
            tie: 1.2,
            ..parts
        });
        cases.push((tied, Parametrisation::SplitGains));
    }
    // Of random weights, whose largest eigenvalue is beyond the margin, and where it is not.
    let wide = Operator::Conv { channels: 48, height: 3, width: 4, padding: Padding::Circular, kernel: 3 };
    for operator in [DENSE, CONV, CIRCULAR, one, five, wide, Operator::Dense { n: 150 }] {
        cases.push((plain(operator), Parametrisation::MonotoneShifted { margin }));
        cases.push((plain(operator), Parametrisation::MonotoneShifted { margin: -1000.0 }));
    }
    for operator in [DENSE, one, five, nine] {
        cases.push((plain(operator), Parametrisation::MonotoneProduct { margin }));
        cases.push((plain(operator), Parametrisation::MonotoneTied { margin }));
        cases.push((plain(operator), Parametrisation::MonotoneTied { margin: 1.0 }));
    }
    for (map, parametrisation) in cases {
        let what = || format!("{parametrisation:?} of {:?}, {:?}", map.equation().form(), map.operator());
        let expected = parametrised(&exact(), &map, parametrisation).unwrap();
        if let Some(found) = failures.value(what, parametrised(gpu, &map, parametrisation)) {
            failures.holds(|| format!("{}: {} arrays", what(), found.len()), found.len() == expected.len());
            for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
                failures.small(|| format!("array {k} of {}", what()), relative_error(found, expected), 3e-6);
            }
        }
    }
    failures.show();
}

/// Eigenvalues close together at the top and, far below them, ever more of ever other sizes: Lanczos' method finds those first, and
/// again and again if its basis is not kept orthogonal.
#[test]
fn a_peak_above_many_large_negative_eigenvalues() {
    let Some(gpu) = gpu("a peak above large negative eigenvalues") else { return };
    let n = 48;
    let eigenvalue = |i: usize| match i {
        46 => 2e-5,
        47 => 1e-5,
        _ => -10.0f64.powf(-4.0 * i as f64 / n as f64),
    };
    let mut free = [vec![0.0; n * n]];
    (0..n).for_each(|i| free[0][i * n + i] = f64::from(eigenvalue(i) as f32));
    let (map, parametrisation) =
        (plain(Operator::Dense { n }), Parametrisation::MonotoneShifted { margin: 1.5 });
    let expected = parametrised_by(&exact(), &map, parametrisation, &free).unwrap();
    let found = parametrised_by(gpu, &map, parametrisation, &free).unwrap();
    for (found, expected) in found.iter().zip(&expected) {
        assert!(relative_error(found, expected) < 3e-6, "{found:?}, on the CPU {expected:?}");
    }
}

/// Largest eigenvalues that others come near to, or that are far from all others: the shift leaves none beyond the margin, and is not
/// larger than that takes. Matrices of every size that has a kernel of its own, and of others.
#[test]
fn peaks_of_many_shapes() {
    let Some(gpu) = gpu("peaks of many shapes") else { return };
    let mut failures = Failures::default();
    type Spectrum = (&'static str, fn(f64) -> f64);
    // By where an eigenvalue is among them, from 0 to 1.
    let spectra: [Spectrum; 7] = [
        ("even", |x| x),
        ("a double one", |x| x.min(0.97)),
        ("a cluster", |x| if x > 0.6 { 1.0 - 1e-6 * x } else { x }),
        ("all equal", |_| 0.7),
        ("one alone", |x| if x == 1.0 { 1.0 } else { -1.0 }),
        ("one among many that are small", |x| if x == 1.0 { 1e-3 } else { -10.0 * (1.0 - x) }),
        ("ever nearer", |x| 1.0 - 10.0f64.powf(-6.0 * x)),
    ];
    for n in [1, 2, 16, 23, 48, 64, 90, 100] {
        // A reflection, so that no entry is zero: I - 2 h h'.
        let raw: Vec<f64> = numbers(n as u64, n);
        let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
        let turned = |i: usize, k: usize| f64::from(i == k) - 2.0 * raw[i] * raw[k] / (length * length);
        for (name, spectrum) in spectra {
            let value = |k: usize| spectrum(if n == 1 { 1.0 } else { k as f64 / (n - 1) as f64 });
            let entry = |at: usize| {
                let (i, j) = (at / n, at % n);
                (0..n).map(|k| turned(i, k) * value(k) * turned(j, k)).sum::<f64>()
            };
            let free = [(0..n * n).map(|at| f64::from(entry(at) as f32)).collect::<Vec<f64>>()];
            let (map, shifted) =
                (plain(Operator::Dense { n }), Parametrisation::MonotoneShifted { margin: 1.5 });
            let what = || format!("{name}, {n} rows");
            let expected = parametrised_by(&exact(), &map, shifted, &free).unwrap();
            let Some(found) = failures.value(what, parametrised_by(gpu, &map, shifted, &free)) else {
                continue;
            };
            failures.small(what, relative_error(&found[0], &expected[0]), 3e-6);
            let sum: f64 = found[1].iter().map(|x| x * x).sum();
            failures.holds(|| format!("{}: a derivative of {sum}", what()), sum.is_finite());
        }
    }
    failures.show();
}

#[test]
fn a_gpu_may_be_opened_several_times_and_closed_while_others_use_it() {
    let Some(gpu) = gpu("opening it several times") else { return };
    fn filled(gpu: &Cuda) -> Vec<f64> {
        let mut x = gpu.zeros(1000).unwrap();
        gpu.fill(700, 0.1, &mut x).unwrap();
        down(gpu, &x, 1000)
    }
    let expected = filled(gpu);
    assert_eq!(expected.iter().filter(|&&x| x == f64::from(0.1f32)).count(), 700);
    let kept = Cuda::new(0).unwrap();
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..4).map(|_| scope.spawn(|| filled(&Cuda::new(0).unwrap()))).collect();
        for other in others {
            assert_eq!(other.join().unwrap(), expected);
        }
    });
    assert_eq!(filled(&kept), expected);
}

#[test]
fn spectra_are_those_of_the_cpu() {
    let Some(gpu) = gpu("spectra") else { return };
    let w: Vec<f64> = numbers(1, DENSE.weight_len()).iter().map(|x| f64::from((0.1 * x) as f32)).collect();
    let cpu = Cpu::<f32>::new(1).unwrap();
    let of = |bound: f64, factor: f64| (bound, factor);
    let found = of(
        gpu.norm_bound(&DENSE, &up(gpu, &w)).unwrap(),
        gpu.splitting_rate(&DENSE, &up(gpu, &w), 0.7, 4).unwrap(),
    );
    let expected = of(
        cpu.norm_bound(&DENSE, &up(&cpu, &w)).unwrap(),
        cpu.splitting_rate(&DENSE, &up(&cpu, &w), 0.7, 4).unwrap(),
    );
    assert_eq!(found, expected);
}

/// A plan with a problem's weights.
fn planned<D: Equilibria>(device: &D, problem: &Problem) -> D::Plan {
    let mut plan = device.plan(&problem.map, problem.batch).unwrap();
    let weights: Vec<_> = problem.weights.iter().map(|w| up(device, w)).collect();
    device.load(&mut plan, &weights.iter().collect::<Vec<_>>()).unwrap();
    plan
}

/// The operators that maps are tried on: small and odd, and such that fill more than one tile.
fn operators() -> [Operator; 4] {
    [DENSE, CONV, CIRCULAR, Operator::Dense { n: 70 }]
}

#[test]
fn one_application_of_every_map() {
    let Some(gpu) = gpu("one application") else { return };
    let mut failures = Failures::default();
    let batch = 5;
    fn of<D: Equilibria>(device: &D, problem: &Problem, z: &[f64]) -> Vec<f64> {
        let mut plan = planned(device, problem);
        let mut out = device.zeros(z.len()).unwrap();
        device.apply(&mut plan, problem.batch, &up(device, z), &up(device, &problem.y), &mut out).unwrap();
        down(device, &out, z.len())
    }
    let wide = Operator::Conv { channels: 40, height: 6, width: 7, padding: Padding::Zero, kernel: 3 };
    // By warpgroups, on a GPU that has them.
    let square = Operator::Conv { channels: 48, height: 16, width: 16, padding: Padding::Zero, kernel: 3 };
    // The same, by a tile that hangs over the image.
    let hanging =
        Operator::Conv { channels: 32, height: 14, width: 15, padding: Padding::Circular, kernel: 3 };
    for operator in operators().into_iter().chain([wide, square, hanging]) {
        for map in maps(operator) {
            let problem = contracting(map, batch, 1);
            let z = random(&mut ChaCha8Rng::seed_from_u64(2), batch * operator.state_len(), 0.5, 1.5);
            let error = relative_error(&of(gpu, &problem, &z), &of(&exact(), &problem, &z));
            failures.small(|| format!("{map:?}"), error, 3e-6);
        }
    }
    failures.show();
}

/// A solve: answers and reports.
fn solved<D: Equilibria>(
    device: &D,
    problem: &Problem,
    solver: &Solver,
    stopping: &Stopping,
    start: Start,
) -> Result<(Vec<f64>, Vec<SampleReport>)> {
    solved_again(device, &mut planned(device, problem), problem, solver, stopping, start)
}

/// The same by a plan that may have made others.
fn solved_again<D: Equilibria>(
    device: &D,
    plan: &mut D::Plan,
    problem: &Problem,
    solver: &Solver,
    stopping: &Stopping,
    start: Start,
) -> Result<(Vec<f64>, Vec<SampleReport>)> {
    let len = problem.batch * problem.map.operator().state_len();
    let y = up(device, &problem.y);
    let mut z = up(device, &vec![0.8; len]);
    let mut reports = device.reports(problem.batch)?;
    device.solve(plan, problem.batch, &y, solver, stopping, start, &mut z, &mut reports)?;
    let mut host = vec![SampleReport::default(); problem.batch];
    device.read_reports(&reports, &mut host)?;
    Ok((down(device, &z, len), host))
}

const SOLVERS: [Solver; 6] = [
    Solver::Picard,
    Solver::Broyden { memory: 12 },
    Solver::Anderson { window: 5, ridge: 1e-8, mixing: 1.0 },
    Solver::Anderson { window: 2, ridge: 1e-4, mixing: 0.7 },
    Solver::PeacemanRachford { step: 1.3 },
    Solver::ForwardBackward { step: 0.6 },
];

/// Whether there are kernels for a solver and a map.
fn applies(solver: &Solver, map: &ShapedMap) -> bool {
    let padded = matches!(map.operator(), Operator::Conv { padding: Padding::Zero, .. });
    match solver {
        Solver::PeacemanRachford { .. } => is_monotone(map) && !padded,
        Solver::ForwardBackward { .. } => is_monotone(map),
        _ => true,
    }
}

/// Iterations may differ by rounding at the end, not by more.
fn alike(found: &[SampleReport], expected: &[SampleReport]) -> bool {
    alike_within(4, found, expected)
}

fn alike_within(few: u32, found: &[SampleReport], expected: &[SampleReport]) -> bool {
    found
        .iter()
        .zip(expected)
        .all(|(a, b)| a.outcome == b.outcome && a.iterations.abs_diff(b.iterations) <= few + b.iterations / 8)
}

#[test]
fn every_map_by_every_solver() {
    let Some(gpu) = gpu("solves") else { return };
    let mut failures = Failures::default();
    let (cpu, exact) = (Cpu::<f32>::new(2).unwrap(), exact());
    for operator in operators() {
        for map in maps(operator) {
            let problem = contracting(map, 3, 7);
            let start = Start::Constant(1.0);
            let (expected, _) =
                solved(&exact, &problem, &Solver::Picard, &stopping(1e-13, 3000), start).unwrap();
            for solver in SOLVERS.iter().filter(|solver| applies(solver, &map)) {
                let what = || format!("{map:?} by {solver:?}");
                let rule = stopping(1e-5, 2000);
                let Some((z, reports)) = failures.value(what, solved(gpu, &problem, solver, &rule, start))
                else {
                    continue;
                };
                failures.small(what, relative_error(&z, &expected), 1e-4);
                let (_, known) = solved(&cpu, &problem, solver, &rule, start).unwrap();
                failures.holds(
                    || format!("{}: {reports:?}, on the CPU {known:?}", what()),
                    alike(&reports, &known),
                );
            }
        }
    }
    failures.show();
}

#[test]
fn monotone_maps_by_the_splittings() {
    let Some(gpu) = gpu("splittings") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    for operator in operators() {
        for map in maps(operator).into_iter().filter(is_monotone) {
            let problem = monotone(map, 2, 11);
            let slow = Solver::ForwardBackward { step: 0.02 };
            let (expected, reports) =
                solved(&exact, &problem, &slow, &stopping(1e-12, 20_000), Start::Constant(1.0)).unwrap();
            if operator == (Operator::Dense { n: 70 }) && !reports.iter().all(|r| r.converged()) {
                continue;
            }
            let splittings = [0.4, 1.0, 2.5].map(|step| Solver::PeacemanRachford { step });
            for solver in splittings.iter().chain(&[Solver::ForwardBackward { step: 0.1 }]) {
                if !applies(solver, &map)
                    || operator == (Operator::Dense { n: 70 })
                        && matches!(solver, Solver::ForwardBackward { .. })
                {
                    continue;
                }
                let what = || format!("{map:?} by {solver:?}");
                for start in [Start::Constant(1.0), Start::Given] {
                    // Nine tenths of an iteration are what is measured where all of u is always sent.
                    let rule = stopping(4e-6, 5000);
                    let Some((z, reports)) =
                        failures.value(what, solved(gpu, &problem, solver, &rule, start))
                    else {
                        continue;
                    };
                    failures.small(what, relative_error(&z, &expected), 1e-4);
                    let all = reports.iter().all(|r| r.converged());
                    failures.holds(|| format!("{}: {reports:?}", what()), all);
                }
            }
        }
    }
    failures.show();
}

/// Peaceman-Rachford on images of every size that has kernels of its own, with as many channels as make each kind of product.
#[test]
fn circular_convolutions_of_8_by_8_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[(4, 8, 8, 3), (4, 8, 8, 9), (48, 8, 8, 3), (66, 8, 8, 3)]);
}

#[test]
fn circular_convolutions_of_96_and_128_channels_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[(96, 8, 8, 1), (128, 8, 8, 1)]);
}

#[test]
fn circular_convolutions_of_16_by_16_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[(16, 16, 16, 3), (18, 16, 16, 3)]);
}

#[test]
fn circular_convolutions_of_28_by_28_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[(10, 28, 28, 3), (16, 28, 28, 3)]);
}

#[test]
fn circular_convolutions_of_32_by_32_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[(12, 32, 32, 3), (16, 32, 32, 3)]);
}

/// The same on others, also with as many channels as make each kind of inverse.
#[test]
fn circular_convolutions_of_other_sizes_by_peaceman_rachford() {
    circular_by_peaceman_rachford(&[
        (3, 32, 8, 3),
        (16, 8, 28, 3),
        (2, 64, 64, 3),
        (34, 5, 7, 3),
        (50, 8, 4, 3),
        (67, 4, 3, 5),
        (98, 2, 3, 1),
    ]);
}

/// What whole images are given and where they start: injections inside and outside of the activation, a shift, any start. Several samples
/// of the larger images: where all of a sample's waves come back, now and then its g moves by far more than just before.
#[test]
fn injections_and_starts_of_circular_convolutions() {
    let Some(gpu) = gpu("injections and starts of circular convolutions") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    for (channels, side, batch) in [(4, 8, 2), (16, 28, 6)] {
        let operator =
            Operator::Conv { channels, height: side, width: side, padding: Padding::Circular, kernel: 3 };
        for (injection, shift) in [(Injection::Outer, 0.3), (Injection::Outer, 0.0), (Injection::Inner, 0.3)]
        {
            let map =
                changed(operator, |plain| Parts { activation: Activation::Relu, injection, shift, ..plain });
            let (problem, solver) = (contracting(map, batch, 17), Solver::PeacemanRachford { step: 0.8 });
            let tight = stopping(1e-12, 2000);
            let (expected, _) = solved(&exact, &problem, &solver, &tight, Start::Constant(0.0)).unwrap();
            let what = || format!("{operator:?}, {injection:?} with shift {shift}");
            for start in [Start::Constant(0.0), Start::Constant(0.7), Start::Given] {
                let found = solved(gpu, &problem, &solver, &stopping(1e-6, 300), start);
                let Some((z, reports)) = failures.value(what, found) else { continue };
                failures.small(what, relative_error(&z, &expected), 1e-5);
                failures.holds(|| format!("{}: {reports:?}", what()), reports.iter().all(|r| r.converged()));
            }
            let v = numbers(4, expected.len());
            let (gradients, _) = differentiated(&exact, &problem, &solver, &tight, &expected, &v).unwrap();
            let found = differentiated(gpu, &problem, &solver, &stopping(1e-6, 300), &expected, &v);
            let Some((found, _)) = failures.value(what, found) else { continue };
            for (found, expected) in found.iter().zip(&gradients) {
                failures.small(|| format!("gradients of {}", what()), relative_error(found, expected), 2e-5);
            }
        }
    }
    failures.show();
}

/// As on the CPU, where samples send changes, where they send all of u, and where there are no whole images.
#[test]
fn what_is_reflected_does_not_stay() {
    let Some(gpu) = gpu("solves that reflect") else { return };
    let mut failures = Failures::default();
    let circular = |channels, side| Operator::Conv {
        channels,
        height: side,
        width: side,
        padding: Padding::Circular,
        kernel: 1,
    };
    for operator in [DENSE, circular(16, 28), circular(6, 8), circular(96, 8), circular(4, 9)] {
        let (problem, expected) = reflecting(operator, 2);
        let solver = Solver::PeacemanRachford { step: 1.41 };
        for tolerance in [1e-6, 5e-7] {
            let (rule, start) = (stopping(tolerance, 100), Start::Constant(0.0));
            let what = || format!("{operator:?} to {tolerance}");
            let Some((z, reports)) = failures.value(what, solved(gpu, &problem, &solver, &rule, start))
            else {
                continue;
            };
            failures.holds(|| format!("{}: {reports:?}", what()), reports.iter().all(|r| r.converged()));
            failures.small(what, relative_error(&z, &expected), 5e-5);
            let found = differentiated(gpu, &problem, &solver, &rule, &expected, &problem.y);
            let Some((found, reports)) = failures.value(what, found) else { continue };
            let g = reflecting_gradient(&problem.y);
            failures.small(|| format!("adjoint, {}", what()), relative_error(&found[0], &g), 5e-5);
            failures
                .holds(|| format!("adjoint, {}: {reports:?}", what()), reports.iter().all(|r| r.converged()));
        }
    }
    failures.show();
}

/// Samples that send changes go half of the way in iterations 6 and 14, and what is left of a step then is part of the next one.
#[test]
fn halves_of_steps_are_not_lost() {
    let Some(gpu) = gpu("halves of steps") else { return };
    let mut failures = Failures::default();
    let t = 1.41;
    let part_of = |iteration: usize| if iteration % 8 == 6 { 0.5 } else { 1.0 };
    // Of one unit with `c = 2 / (1 + t (1 - w)) - 1`, from `k`: the state after some iterations.
    let state = |c: f64, k: f64, reflected: &dyn Fn(f64) -> f64, iterations: usize| {
        (1..=iterations).fold(k, |g, iteration| g + part_of(iteration) * (c * reflected(g) + k - g))
    };
    for (channels, side) in [(16, 28), (16, 32), (6, 8), (96, 8)] {
        let padding = Padding::Circular;
        let operator = Operator::Conv { channels, height: side, width: side, padding, kernel: 1 };
        let (problem, solution) = reflecting(operator, 2);
        let solver = Solver::PeacemanRachford { step: t };
        for iterations in [5, 6, 7, 8, 14, 15] {
            let what = || format!("{operator:?} after {iterations} iterations");
            let (rule, start) = (stopping(1e-6, iterations), Start::Constant(0.0));
            let c = |y: f64| 2.0 / (1.0 + t * if y < 0.0 { 0.02 } else { 25.0 }) - 1.0;
            let after = |iterations: usize| -> Vec<f64> {
                let state = |&y: &f64| state(c(y), (c(y) + 1.0) * t * y, &f64::abs, iterations);
                problem.y.iter().map(state).collect()
            };
            let (before, now) = (after(iterations - 1), after(iterations));
            let z: Vec<f64> = now.iter().map(|g| g.max(0.0)).collect();
            let residual_of = |sample: usize| {
                let own = sample * operator.state_len()..(sample + 1) * operator.state_len();
                let norm = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>().sqrt();
                let gap = norm(&mut own.clone().map(|i| (now[i] - before[i]) / part_of(iterations)));
                gap / norm(&mut own.map(|i| now[i]))
            };
            if let Some((found, reports)) = failures.value(what, solved(gpu, &problem, &solver, &rule, start))
            {
                failures.small(what, relative_error(&found, &z), 2e-2);
                // That of a whole iteration, of which the last one may have been half.
                for (sample, report) in reports.iter().enumerate() {
                    let residual = residual_of(sample);
                    let gap = (report.residual - residual).abs() / residual;
                    failures.small(|| format!("residual, {}", what()), gap, 5e-2);
                }
            }
            // With v = y; the slope is 0 where y is below 0, else 1.
            let g: Vec<f64> = problem
                .y
                .iter()
                .map(|&y| {
                    let sign = y.signum();
                    let p = state(c(y), (c(y) + 1.0) * t * y, &|p| sign * p, iterations);
                    if y < 0.0 { p / t } else { p }
                })
                .collect();
            let found = differentiated(gpu, &problem, &solver, &rule, &solution, &problem.y);
            if let Some((found, _)) = failures.value(what, found) {
                failures.small(|| format!("adjoint, {}", what()), relative_error(&found[0], &g), 2e-2);
            }
        }
    }
    failures.show();
}

/// Where half of a step is beside what is sent, a sample that has ended before touches nobody's.
#[test]
fn a_sample_that_has_ended_leaves_others_their_bits() {
    let Some(gpu) = gpu("samples beside one that has ended") else { return };
    let mut failures = Failures::default();
    for (channels, side) in [(6, 8), (10, 16), (16, 28), (96, 8)] {
        let padding = Padding::Circular;
        let operator = Operator::Conv { channels, height: side, width: side, padding, kernel: 1 };
        let (mut problem, _) = reflecting(operator, 3);
        let len = operator.state_len();
        // From a start of one's own all of u is sent twice: when the sample ends, all of its waves are on their way.
        problem.y[2] = f64::NAN;
        let (solver, rule) = (Solver::PeacemanRachford { step: 1.41 }, stopping(1e-4, 100));
        let solved = |problem: &Problem| solved(gpu, problem, &solver, &rule, Start::Constant(1.0));
        let others =
            Problem { batch: 2, y: problem.y[len..].to_vec(), weights: problem.weights.clone(), ..problem };
        let what = || format!("{operator:?}");
        let (Some((z, reports)), Some((alone, known))) =
            (failures.value(what, solved(&problem)), failures.value(what, solved(&others)))
        else {
            continue;
        };
        let ended = reports[0].outcome == Outcome::NotFinite && reports[0].iterations < 6;
        failures.holds(|| format!("{operator:?}: {reports:?}"), ended);
        failures.holds(|| format!("{operator:?}: other bits"), z[len..] == alone && reports[1..] == known);
    }
    failures.show();
}

/// Images of so many channels, rows and columns, with kernels of such a side.
fn circular_by_peaceman_rachford(sizes: &[(usize, usize, usize, usize)]) {
    let Some(gpu) = gpu("circular splittings") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    for &(channels, height, width, kernel) in sizes {
        let operator = Operator::Conv { channels, height, width, padding: Padding::Circular, kernel };
        // Fewer of the larger ones.
        let count = match operator.state_len() {
            0..1500 => 5,
            _ => 3,
        };
        let cases = [
            (Activation::Relu, 0.8),
            (Activation::Tanh, 1.0),
            (Activation::LeakyRelu { slope: 0.3 }, 1.3),
            (Activation::Tanh, 1.7),
            (Activation::Sigmoid, 1.0),
        ];
        for &(activation, step) in &cases[..count] {
            let map = changed(operator, |plain| Parts {
                activation,
                injection: Injection::Inner,
                shift: 0.0,
                ..plain
            });
            let (batch, solver) = (3, Solver::PeacemanRachford { step });
            let problem = contracting(map, batch, 13);
            let what = || format!("{operator:?}, {activation} with step {step}");
            let (rule, tight) = (stopping(1e-6, 300), stopping(1e-12, 2000));
            let start = Start::Constant(0.0);
            let (expected, known) = solved(&exact, &problem, &solver, &tight, start).unwrap();
            failures.holds(|| format!("{}: {known:?}", what()), known.iter().all(|r| r.converged()));
            let v = numbers(4, batch * operator.state_len());
            let (gradients, _) = differentiated(&exact, &problem, &solver, &tight, &expected, &v).unwrap();
            for (rule, allowed) in [(rule, 1e-5), (stopping(1e-3, 300), 1e-2)] {
                let found = solved(gpu, &problem, &solver, &rule, start);
                let Some((z, reports)) = failures.value(what, found) else { continue };
                failures.small(what, relative_error(&z, &expected), allowed);
                let (_, known) = solved(&exact, &problem, &solver, &rule, start).unwrap();
                // A solve whose samples send changes may wait for the next iteration in which they send all of u, and for one more.
                let as_on_the_cpu = alike_within(5, &reports, &known);
                failures.holds(|| format!("{}: {reports:?} not {known:?}", what()), as_on_the_cpu);
                // A sample alone has the same bits.
                let len = operator.state_len();
                let (weights, y) = (problem.weights.clone(), problem.y[2 * len..].to_vec());
                let alone =
                    solved(gpu, &Problem { map, batch: 1, weights, y }, &solver, &rule, start).unwrap();
                failures.holds(
                    || format!("{}: other bits alone", what()),
                    alone == (z[2 * len..].to_vec(), vec![reports[2]]),
                );
            }
            let found = differentiated(gpu, &problem, &solver, &rule, &expected, &v);
            if let Some((found, reports)) = failures.value(what, found) {
                for (found, expected) in found.iter().zip(&gradients) {
                    failures.small(
                        || format!("gradients of {}", what()),
                        relative_error(found, expected),
                        2e-5,
                    );
                }
                failures.holds(|| format!("{}: {reports:?}", what()), reports.iter().all(|r| r.converged()));
            }
        }
    }
    failures.show();
}

/// Adjoint, and the pullback of its answer: `g`, `gz`, `gy` and the weight gradients.
fn differentiated<D: Equilibria>(
    device: &D,
    problem: &Problem,
    solver: &Solver,
    stopping: &Stopping,
    z: &[f64],
    v: &[f64],
) -> Result<(Vec<Vec<f64>>, Vec<SampleReport>)> {
    let (map, batch) = (&problem.map, problem.batch);
    let mut plan = planned(device, problem);
    let (z_array, y, v) = (up(device, z), up(device, &problem.y), up(device, v));
    let (mut g, mut gz, mut gy) =
        (device.zeros(z.len())?, device.zeros(z.len())?, device.zeros(problem.y.len())?);
    let mut reports = device.reports(batch)?;
    device.adjoint(&mut plan, batch, &z_array, &y, &v, solver, stopping, &mut g, &mut reports)?;
    let mut gw: Vec<_> =
        (0..map.weight_count()).map(|k| up(device, &numbers(50, map.weight_len(k)))).collect();
    device.pullback(&mut plan, batch, &z_array, &y, &g, Some(&mut gz), &mut gy, &mut gw)?;
    let mut host = vec![SampleReport::default(); batch];
    device.read_reports(&reports, &mut host)?;
    let mut found =
        vec![down(device, &g, z.len()), down(device, &gz, z.len()), down(device, &gy, problem.y.len())];
    found.extend(gw.iter().enumerate().map(|(k, gw)| down(device, gw, map.weight_len(k))));
    at_once_as_one_after_the_other(device, problem, (solver, stopping), [&z_array, &y, &v], &found)?;
    Ok((found, host))
}

/// One call for adjoint and pullback gives the bits of the two.
fn at_once_as_one_after_the_other<D: Equilibria>(
    device: &D,
    problem: &Problem,
    (solver, stopping): (&Solver, &Stopping),
    [z, y, v]: [&D::Array; 3],
    expected: &[Vec<f64>],
) -> Result<()> {
    let (map, batch) = (&problem.map, problem.batch);
    let mut plan = planned(device, problem);
    let states = batch * map.operator().state_len();
    let (mut g, mut gy) = (device.zeros(states)?, device.zeros(problem.y.len())?);
    let mut reports = device.reports(batch)?;
    let mut gw: Vec<_> =
        (0..map.weight_count()).map(|k| up(device, &numbers(50, map.weight_len(k)))).collect();
    let (reports, gradient) = (&mut reports, &mut g);
    device.implicit_gradient(
        &mut plan, batch, z, y, v, solver, stopping, gradient, reports, &mut gy, &mut gw,
    )?;
    let mut found = vec![down(device, &gy, problem.y.len())];
    found.extend(gw.iter().enumerate().map(|(k, gw)| down(device, gw, map.weight_len(k))));
    // What is not a number is not equal to itself, its bits are.
    let bits = |array: &Vec<f64>| array.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
    let expected: Vec<_> = expected.iter().skip(2).map(bits).collect();
    assert!(found.iter().map(bits).eq(expected.clone()), "{map:?} by {solver:?}: other bits at once");

    let mut over = up(device, &problem.y);
    let rooms = [&mut Room::new(states), &mut Room::new(problem.y.len())];
    let mut gw: Vec<_> =
        (0..map.weight_count()).map(|k| up(device, &numbers(50, map.weight_len(k)))).collect();
    device.implicit_gradient_over(
        &mut plan, batch, z, &mut over, v, solver, stopping, rooms, reports, &mut gw,
    )?;
    let mut found = vec![down(device, &over, problem.y.len())];
    found.extend(gw.iter().enumerate().map(|(k, gw)| down(device, gw, map.weight_len(k))));
    assert!(found.iter().map(bits).eq(expected), "{map:?} by {solver:?}: other bits over the injection");
    Ok(())
}

#[test]
fn gradients_of_every_map_by_every_solver() {
    let Some(gpu) = gpu("gradients") else { return };
    let mut failures = Failures::default();
    let (cpu, exact) = (Cpu::<f32>::new(2).unwrap(), exact());
    for operator in operators() {
        for map in maps(operator) {
            let problem = contracting(map, 3, 31);
            let len = 3 * operator.state_len();
            let z = random(&mut ChaCha8Rng::seed_from_u64(5), len, 0.5, 1.5);
            let v = random(&mut ChaCha8Rng::seed_from_u64(6), len, -1.0, 1.0);
            let tight = stopping(1e-13, 3000);
            let (expected, _) = differentiated(&exact, &problem, &Solver::Picard, &tight, &z, &v).unwrap();
            for solver in SOLVERS.iter().filter(|solver| applies(solver, &map)) {
                let what = || format!("{map:?} by {solver:?}");
                let rule = stopping(1e-5, 2000);
                let Some((found, reports)) =
                    failures.value(what, differentiated(gpu, &problem, solver, &rule, &z, &v))
                else {
                    continue;
                };
                for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    let name = ["g", "gz", "gy", "gw[0]", "gw[1]", "gw[2]", "gw[3]"][k];
                    failures.small(|| format!("{name} of {}", what()), relative_error(found, expected), 1e-4);
                }
                let (_, known) = differentiated(&cpu, &problem, solver, &rule, &z, &v).unwrap();
                failures.holds(
                    || format!("{}: {reports:?}, on the CPU {known:?}", what()),
                    alike(&reports, &known),
                );
            }
        }
    }
    failures.show();
}

/// Kernels larger than 3x3, whose gradients come in windows of taps: several tiles of pixels, several groups of channels.
#[test]
fn gradients_of_larger_kernels() {
    let Some(gpu) = gpu("gradients of larger kernels") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    for (channels, height, width, kernel) in [
        (6, 12, 10, 5),
        (5, 4, 3, 5),
        (50, 5, 9, 5),
        (20, 9, 9, 5),
        (7, 9, 8, 7),
        (6, 8, 8, 9),
        (5, 12, 10, 9),
    ] {
        let operator = Operator::Conv { channels, height, width, padding: Padding::Circular, kernel };
        let problem = contracting(plain(operator), 3, 31);
        let z = numbers(5, 3 * operator.state_len());
        let v = numbers(6, z.len());
        let of = |rule| differentiated(gpu, &problem, &Solver::Picard, &rule, &z, &v);
        let (expected, _) =
            differentiated(&exact, &problem, &Solver::Picard, &stopping(1e-13, 3000), &z, &v).unwrap();
        let what = || format!("{operator:?}");
        let Some((found, _)) = failures.value(what, of(stopping(1e-6, 2000))) else { continue };
        for (k, (found, expected)) in found.iter().zip(&expected).enumerate() {
            failures.small(|| format!("array {k} of {}", what()), relative_error(found, expected), 2e-5);
        }
        let again = of(stopping(1e-6, 2000)).unwrap().0;
        failures.holds(|| format!("{}: other bits", what()), again == found);
    }
    failures.show();
}

/// A gradient that is refused half way leaves the caller's array as large as it was.
#[test]
fn refused_gradients_leave_their_arrays() {
    let Some(gpu) = gpu("refused gradients") else { return };
    for map in maps(CIRCULAR) {
        let problem = contracting(map, 2, 31);
        let (states, rule) = (2 * map.operator().state_len(), stopping(1e-3, 50));
        let mut plan = planned(gpu, &problem);
        let [z, y, v] = [&numbers(5, states), &problem.y, &numbers(6, states)].map(|array| up(gpu, array));
        let (mut g, mut gy) = (gpu.zeros(states).unwrap(), gpu.zeros(problem.y.len()).unwrap());
        let (reports, gradient) = (&mut gpu.reports(2).unwrap(), &mut g);
        let refused = gpu.implicit_gradient(
            &mut plan,
            2,
            &z,
            &y,
            &v,
            &Solver::Picard,
            &rule,
            gradient,
            reports,
            &mut gy,
            &mut [],
        );
        assert!(refused.unwrap_err().to_string().contains("0 gradients were given"), "{map:?}");
        // It would not be read if it were shorter.
        assert_eq!(down(gpu, &gy, problem.y.len()).len(), problem.y.len());
    }
}

/// Also where a gradient is found without them.
#[test]
fn injections_that_are_too_short_are_refused() {
    let Some(gpu) = gpu("injections that are too short") else { return };
    let operator = Operator::Conv { channels: 4, height: 8, width: 8, padding: Padding::Circular, kernel: 3 };
    let map = changed(operator, |plain| Parts { activation: Activation::Relu, ..plain });
    let problem = contracting(map, 2, 31);
    let (states, rule) = (problem.y.len(), stopping(1e-3, 50));
    let mut plan = planned(gpu, &problem);
    let [z, v] = [5, 6].map(|seed| up(gpu, &numbers(seed, states)));
    let mut gw = vec![gpu.zeros(map.weight_len(0)).unwrap()];
    let mut refuses = |lens: [usize; 3], what: &str| {
        let [y, mut g, mut gy] = lens.map(|len| gpu.zeros(len).unwrap());
        let (solver, reports) = (Solver::PeacemanRachford { step: 0.8 }, &mut gpu.reports(2).unwrap());
        let found = gpu
            .implicit_gradient(&mut plan, 2, &z, &y, &v, &solver, &rule, &mut g, reports, &mut gy, &mut gw);
        let sentence = found.unwrap_err().to_string();
        assert!(sentence.starts_with(what), "{sentence}");
    };
    refuses([1, states, states], "y holds 1 ");
    refuses([states, 1, states], "g holds 1 ");
    refuses([states, states, 1], "gy holds 1 ");
}

/// Residuals after two applications, forward and adjoint, against those in `f64`: what stops a solve is measured alike, whatever
/// rounding makes of the number of iterations.
#[test]
fn residuals_are_measured_alike() {
    let Some(gpu) = gpu("residuals") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    for operator in operators() {
        for map in maps(operator) {
            let problem = contracting(map, 3, 31);
            let len = 3 * operator.state_len();
            let z = random(&mut ChaCha8Rng::seed_from_u64(5), len, 0.5, 1.5);
            let v = random(&mut ChaCha8Rng::seed_from_u64(6), len, -1.0, 1.0);
            for solver in SOLVERS.iter().filter(|solver| applies(solver, &map)) {
                let rule = stopping(0.0, 2);
                let start = Start::Constant(1.0);
                let passes = [
                    (
                        "forward",
                        solved(gpu, &problem, solver, &rule, start).unwrap().1,
                        solved(&exact, &problem, solver, &rule, start).unwrap().1,
                    ),
                    (
                        "adjoint",
                        differentiated(gpu, &problem, solver, &rule, &z, &v).unwrap().1,
                        differentiated(&exact, &problem, solver, &rule, &z, &v).unwrap().1,
                    ),
                ];
                for (pass, found, expected) in passes {
                    for (a, b) in found.iter().zip(&expected) {
                        let what =
                            || format!("{pass}: {} not {}, {map:?} by {solver:?}", a.residual, b.residual);
                        failures.small(what, (a.residual - b.residual).abs(), 1e-3 * b.residual + 5e-7);
                    }
                }
            }
        }
    }
    failures.show();
}

#[test]
fn real_sizes() {
    let Some(gpu) = gpu("real sizes") else { return };
    let mut failures = Failures::default();
    let exact = exact();
    let conv = |channels, height, width, padding, kernel| Operator::Conv {
        channels,
        height,
        width,
        padding,
        kernel,
    };
    for (operator, batch) in [
        (Operator::Dense { n: 87 }, 70),
        (Operator::Dense { n: 150 }, 9),
        (conv(16, 14, 14, Padding::Zero, 3), 2),
        (conv(17, 8, 9, Padding::Circular, 3), 2),
        (conv(5, 7, 6, Padding::Circular, 5), 3),
        (conv(66, 6, 5, Padding::Zero, 3), 2),
        // States that several blocks share.
        (conv(48, 16, 14, Padding::Zero, 3), 2),
        (conv(9, 33, 32, Padding::Circular, 3), 2),
        // By warpgroups, on a GPU that has them.
        (conv(48, 16, 16, Padding::Circular, 3), 2),
        (conv(48, 32, 32, Padding::Zero, 3), 1),
        (conv(32, 28, 28, Padding::Zero, 3), 1),
        (conv(32, 15, 14, Padding::Circular, 3), 2),
        // Long states whose eights are no multiple of a block's threads, and one that does not come in eights.
        (conv(24, 30, 31, Padding::Zero, 3), 2),
        (conv(21, 29, 29, Padding::Zero, 3), 1),
    ] {
        let map = plain(operator);
        let problem = contracting(map, batch, 3);
        let what = || format!("{operator:?}, {batch} samples");
        let len = batch * operator.state_len();
        let (rule, tight) = (stopping(1e-6, 500), stopping(1e-13, 1000));
        let (expected, _) = solved(&exact, &problem, &Solver::Picard, &tight, Start::Constant(1.0)).unwrap();
        let v = numbers(4, len);
        let (gradients, _) =
            differentiated(&exact, &problem, &Solver::Picard, &tight, &expected, &v).unwrap();
        let anderson = |window, ridge, mixing| Solver::Anderson { window, ridge, mixing };
        // From a ridge of 1e-6 on, long states have a history in f16.
        let solvers =
            [Solver::Picard, anderson(4, 1e-8, 1.0), anderson(5, 1e-4, 1.0), anderson(3, 1e-6, 0.8)];
        for solver in solvers {
            if let Some((z, _)) =
                failures.value(what, solved(gpu, &problem, &solver, &rule, Start::Constant(1.0)))
            {
                failures.small(what, relative_error(&z, &expected), 1e-5);
            }
            let found = differentiated(gpu, &problem, &solver, &rule, &expected, &v);
            for (found, expected) in
                failures.value(what, found).iter().flat_map(|(f, _)| f.iter().zip(&gradients))
            {
                failures.small(|| format!("gradients of {}", what()), relative_error(found, expected), 2e-5);
            }
        }
    }
    failures.show();
}

#[test]
fn bits_do_not_depend_on_batch_position_or_run() {
    let Some(gpu) = gpu("independence") else { return };
    let mut failures = Failures::default();
    // Rows of 28 pixels and an even number of channels are transformed in registers.
    let wide = Operator::Conv { channels: 2, height: 8, width: 28, padding: Padding::Circular, kernel: 3 };
    // Whole images of 16 channels: samples send changes, which more than one block of 128 multiplies.
    let whole = Operator::Conv { channels: 16, height: 8, width: 8, padding: Padding::Circular, kernel: 3 };
    for operator in operators().into_iter().chain([wide, whole]) {
        for map in maps(operator).into_iter().step_by(3) {
            let batch = if operator == whole { 131 } else { 67 };
            let problem = contracting(map, batch, 17);
            let (len, injection) = (operator.state_len(), map.injection_len());
            let splits = |solver: &&Solver| matches!(solver, Solver::PeacemanRachford { .. });
            let solvers =
                SOLVERS.iter().filter(|solver| ![wide, whole].contains(&operator) || splits(solver));
            for solver in solvers.filter(|solver| applies(solver, &map)) {
                let rule = stopping(1e-5, 300);
                let start = Start::Constant(1.0);
                let (z, reports) = solved(gpu, &problem, solver, &rule, start).unwrap();
                let again = solved(gpu, &problem, solver, &rule, start).unwrap();
                failures.holds(
                    || format!("{map:?} by {solver:?}: other bits"),
                    again == (z.clone(), reports.clone()),
                );
                let picks = [batch - 1, 3, 0, 64];
                let y = picks
                    .iter()
                    .flat_map(|&k| problem.y[k * injection..(k + 1) * injection].to_vec())
                    .collect();
                let part = Problem { map, batch: picks.len(), weights: problem.weights.clone(), y };
                let (alone, alone_reports) = solved(gpu, &part, solver, &rule, start).unwrap();
                for (position, &k) in picks.iter().enumerate() {
                    let same = alone[position * len..(position + 1) * len] == z[k * len..(k + 1) * len]
                        && alone_reports[position] == reports[k];
                    failures.holds(|| format!("{map:?} by {solver:?}: sample {k} at {position}"), same);
                }
            }
        }
    }
    failures.show();
}

/// The same where several blocks share a state: by the kernels that measure what they have made, by Anderson's, and by those for any
/// measure and any map.
#[test]
fn bits_of_long_states_do_not_depend_on_the_batch() {
    let Some(gpu) = gpu("independence of long states") else { return };
    let mut failures = Failures::default();
    let operator = Operator::Conv { channels: 24, height: 20, width: 18, padding: Padding::Zero, kernel: 3 };
    let normalised_of =
        |operator| maps(operator).into_iter().find(|map| map.equation().normalisation().is_some()).unwrap();
    let normalised = normalised_of(operator);
    // As the table's rows with a power.
    let power_of = |operator| changed(operator, |plain| Parts { shift: 1.2, power: 0.99, ..plain });
    // By warpgroups, on a GPU that has them.
    let square = Operator::Conv { channels: 48, height: 16, width: 16, padding: Padding::Zero, kernel: 3 };
    let hanging = Operator::Conv { channels: 32, height: 28, width: 28, padding: Padding::Zero, kernel: 3 };
    let whole = Operator::Conv { channels: 48, height: 32, width: 32, padding: Padding::Zero, kernel: 3 };
    // Of which a sample has several blocks, on a GPU that has clusters.
    let longest = Operator::Conv { channels: 24, height: 30, width: 31, padding: Padding::Zero, kernel: 3 };
    let anderson = Solver::Anderson { window: 5, ridge: 1e-8, mixing: 1.0 };
    let narrow = Solver::Anderson { window: 5, ridge: 1e-4, mixing: 1.0 };
    for (map, solver, measure) in [
        (plain(operator), Solver::Picard, Measure::Relative),
        (plain(operator), Solver::Picard, Measure::Sup),
        (normalised, Solver::Picard, Measure::Relative),
        (plain(operator), anderson, Measure::Relative),
        (plain(operator), narrow, Measure::Relative),
        (plain(operator), narrow, Measure::Thompson),
        (normalised, narrow, Measure::Relative),
        (plain(square), narrow, Measure::Relative),
        (plain(square), Solver::Picard, Measure::Sup),
        (normalised_of(square), narrow, Measure::Relative),
        (plain(hanging), narrow, Measure::Relative),
        (power_of(hanging), narrow, Measure::Relative),
        (normalised_of(hanging), narrow, Measure::Relative),
        (plain(whole), narrow, Measure::Relative),
        (power_of(whole), narrow, Measure::Relative),
        (normalised_of(whole), narrow, Measure::Relative),
        (plain(longest), narrow, Measure::Relative),
        (plain(longest), narrow, Measure::Thompson),
        (plain(longest), narrow, Measure::Sup),
        (normalised_of(longest), narrow, Measure::Relative),
    ] {
        // On chip: more than are solved at once.
        let before = if [hanging, whole].contains(&map.operator()) { 40 } else { 2 };
        let problem = contracting(map, before + 1, 17);
        let rule = Stopping { measure, ..stopping(1e-5, 100) };
        let (z, reports) = solved(gpu, &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
        let (len, injection) = (map.operator().state_len(), map.injection_len());
        let y = problem.y[before * injection..].to_vec();
        let last = Problem { map, batch: 1, weights: problem.weights.clone(), y };
        let (alone, report) = solved(gpu, &last, &solver, &rule, Start::Constant(1.0)).unwrap();
        let same = alone[..] == z[before * len..] && report[0] == reports[before];
        failures.holds(|| format!("{map:?} by {solver:?}, {measure:?}: {report:?} {reports:?}"), same);
        let (known, expected) = solved(&exact(), &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
        failures.small(|| format!("{map:?} by {solver:?}, {measure:?}"), relative_error(&z, &known), 1e-4);
        failures.holds(|| format!("{reports:?}, in f64 {expected:?}"), alike(&reports, &expected));
        let v = numbers(4, z.len());
        let tight = Stopping { measure: Measure::Relative, ..stopping(1e-6, 100) };
        let (all, _) = differentiated(gpu, &problem, &solver, &tight, &z, &v).unwrap();
        let (one, _) = differentiated(gpu, &last, &solver, &tight, &alone, &v[before * len..]).unwrap();
        // Of the state and of the injection; weights have a gradient of all samples.
        let same = all[0][before * len..] == one[0][..] && all[2][before * injection..] == one[2][..];
        failures.holds(|| format!("{map:?} by {solver:?}: gradients"), same);
    }
    failures.show();
}

/// Samples that end together, where each is solved without knowledge of the others (on a GPU that has kernels for that): when they end and
/// what comes out does not depend on how long the solves before were.
#[test]
fn samples_that_end_together_one_after_the_other() {
    let Some(gpu) = gpu("samples that end together") else { return };
    let mut failures = Failures::default();
    let solver = Solver::Anderson { window: 5, ridge: 1e-4, mixing: 1.0 };
    let together = |tolerance, most| Stopping { extent: Extent::WholeBatch, ..stopping(tolerance, most) };
    for (channels, side) in [(48, 32), (32, 28)] {
        let operator =
            Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 };
        let normalised =
            maps(operator).into_iter().find(|map| map.equation().normalisation().is_some()).unwrap();
        for map in [plain(operator), normalised] {
            let mut problem = contracting(map, 3, 17);
            let injection = map.injection_len();
            problem.y[..injection].iter_mut().for_each(|y| *y *= 0.3);
            let mut plan = planned(gpu, &problem);
            // As long as allowed and then too long, too short, right, much too long, cut short, and to the last.
            for (tolerance, most) in
                [(1e-2, 100), (1e-5, 100), (1e-5, 100), (1e-1, 100), (1e-6, 3), (1e-4, 256), (0.0, 40)]
            {
                let (rule, start) = (together(tolerance, most), Start::Constant(1.0));
                let (z, reports) = solved_again(gpu, &mut plan, &problem, &solver, &rule, start).unwrap();
                let what = || format!("{map:?}, {rule:?}: {reports:?}");
                failures.holds(
                    what,
                    (z.clone(), reports.clone()) == solved(gpu, &problem, &solver, &rule, start).unwrap(),
                );
                failures.holds(what, reports.iter().all(|report| *report == reports[0]));
                let (known, expected) = solved(&exact(), &problem, &solver, &rule, start).unwrap();
                failures.small(
                    what,
                    relative_error(&z, &known),
                    if most == 3 { 1e-4 } else { 5.0 * tolerance + 1e-5 },
                );
                failures.holds(
                    || format!("{}, in f64 {expected:?}", what()),
                    tolerance == 0.0 || alike(&reports, &expected),
                );
            }
            let (rule, tight) = (together(1e-6, 200), stopping(1e-13, 1000));
            let (z, _) = solved(&exact(), &problem, &Solver::Picard, &tight, Start::Constant(1.0)).unwrap();
            let v = numbers(4, z.len());
            let (known, _) = differentiated(&exact(), &problem, &Solver::Picard, &tight, &z, &v).unwrap();
            let (found, _) = differentiated(gpu, &problem, &solver, &rule, &z, &v).unwrap();
            for ((found, known), name) in found.iter().zip(&known).zip(["g", "gz", "gy", "gw"]) {
                failures.small(|| format!("{name} of {map:?}"), relative_error(found, known), 2e-5);
            }
            problem.y[injection + 2] = f64::NAN;
            let (_, reports) =
                solved_again(gpu, &mut plan, &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
            failures.holds(
                || format!("NaN in one sample: {reports:?}"),
                reports.iter().all(|report| report.outcome == Outcome::NotFinite),
            );
        }
    }
    failures.show();
}

/// More samples than the kernels keep a list of while some of them have ended.
#[test]
fn bits_in_large_batches_are_those_of_a_sample_alone() {
    let Some(gpu) = gpu("large batches") else { return };
    let operator = Operator::Conv { channels: 48, height: 16, width: 16, padding: Padding::Zero, kernel: 3 };
    let map = plain(operator);
    let mut problem = contracting(map, 1030, 17);
    // The nearer to 0 an injection is, the sooner its sample ends.
    let injection = map.injection_len();
    for (k, y) in problem.y.chunks_exact_mut(injection).enumerate() {
        y.iter_mut().for_each(|y| *y *= (k % 7) as f64 / 2.0);
    }
    let (rule, solver) = (stopping(1e-5, 100), Solver::Anderson { window: 3, ridge: 1e-4, mixing: 1.0 });
    let (z, reports) = solved(gpu, &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
    let len = operator.state_len();
    for k in [0, 511, 1029] {
        let y = problem.y[k * injection..(k + 1) * injection].to_vec();
        let one = Problem { map, batch: 1, weights: problem.weights.clone(), y };
        let (alone, report) = solved(gpu, &one, &solver, &rule, Start::Constant(1.0)).unwrap();
        assert_eq!(report[0], reports[k], "sample {k}");
        assert!(alone[..] == z[k * len..(k + 1) * len], "sample {k}");
    }
    let ends: std::collections::HashSet<_> = reports.iter().map(|report| report.iterations).collect();
    assert!(ends.len() > 1, "all samples ended at once, after {ends:?}");
}

/// Images that several tiles of whole columns share, divided by their columns' largest entries: states and gradients.
#[test]
fn columns_of_wide_images() {
    let Some(gpu) = gpu("columns of wide images") else { return };
    let mut failures = Failures::default();
    let largest = |map: &ShapedMap| map.equation().normalisation().is_some_and(|norm| norm.p == PNorm::Inf);
    // All but the first by warpgroups, on a GPU that has them.
    for (channels, height, width) in [(10, 20, 30), (48, 32, 32), (32, 28, 28)] {
        let operator = Operator::Conv { channels, height, width, padding: Padding::Zero, kernel: 3 };
        let map = maps(operator).into_iter().find(largest).unwrap();
        let problem = contracting(map, 2, 3);
        let (rule, tight) = (stopping(1e-6, 500), stopping(1e-13, 1000));
        let (start, solver) =
            (Start::Constant(1.0), Solver::Anderson { window: 5, ridge: 1e-4, mixing: 1.0 });
        let (expected, _) = solved(&exact(), &problem, &Solver::Picard, &tight, start).unwrap();
        let (z, _) = solved(gpu, &problem, &solver, &rule, start).unwrap();
        failures.small(|| format!("z of {operator:?}"), relative_error(&z, &expected), 1e-5);
        let v = numbers(4, expected.len());
        let (known, _) = differentiated(&exact(), &problem, &Solver::Picard, &tight, &expected, &v).unwrap();
        let (found, _) = differentiated(gpu, &problem, &solver, &rule, &expected, &v).unwrap();
        for ((found, known), name) in found.iter().zip(&known).zip(["g", "gz", "gy", "gw"]) {
            failures.small(|| format!("{name} of {operator:?}"), relative_error(found, known), 2e-5);
        }
    }
    failures.show();
}

/// Long states of a map that does not contract: combinations are taken back on the way, answers stay finite, and with every application
/// more the residual that is reported is none that Picard's next step would not have been taken from.
#[test]
fn combinations_that_do_not_help_are_taken_back() {
    let Some(gpu) = gpu("combinations that are taken back") else { return };
    let mut failures = Failures::default();
    let solver = Solver::Anderson { window: 5, ridge: 1e-4, mixing: 1.0 };
    // A sample has a block, or several on a GPU that has clusters.
    for (gain, height, width) in [(4.0, 20, 18), (12.0, 20, 18), (12.0, 30, 31)] {
        let operator = Operator::Conv { channels: 24, height, width, padding: Padding::Zero, kernel: 3 };
        let mut problem = contracting(plain(operator), 3, 17);
        problem.weights[0].iter_mut().for_each(|w| *w *= gain);
        let mut taken_back = 0;
        for most in 4..12 {
            let rule = stopping(1e-6, most);
            let (z, reports) = solved(gpu, &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
            let (known, expected) = solved(&exact(), &problem, &solver, &rule, Start::Constant(1.0)).unwrap();
            failures.holds(|| format!("{gain} times, {most}"), z.iter().all(|x| x.is_finite()));
            // Where rounding has not yet told the two apart.
            if most < 7 {
                let what = || format!("{gain} times, {most}");
                failures.small(what, relative_error(&z, &known), 2e-3);
                for (a, b) in reports.iter().zip(&expected) {
                    failures.small(what, (a.residual - b.residual).abs(), 1e-2 * b.residual);
                }
            }
            let next =
                solved(gpu, &problem, &solver, &stopping(1e-6, most + 1), Start::Constant(1.0)).unwrap();
            // What is taken back leaves the image and its residual as they were.
            let len = operator.state_len();
            taken_back += (0..3)
                .filter(|&k| {
                    next.1[k].residual == reports[k].residual
                        && next.0[k * len..(k + 1) * len] == z[k * len..(k + 1) * len]
                })
                .count();
        }
        println!("{gain} times: {taken_back} combinations taken back");
        failures.holds(|| format!("{gain} times: nothing was taken back"), gain < 10.0 || taken_back > 0);
    }
    failures.show();
}

#[test]
fn every_way_to_end() {
    let Some(gpu) = gpu("ends of solves") else { return };
    let mut failures = Failures::default();
    let cpu = Cpu::<f32>::new(1).unwrap();
    let problem = contracting(plain(DENSE), 6, 9);
    let circular = contracting(plain(CIRCULAR), 6, 9);
    let cases = [
        (&problem, Solver::Picard),
        (&problem, Solver::Anderson { window: 3, ridge: 1e-8, mixing: 1.0 }),
        (&problem, Solver::Broyden { memory: 4 }),
        (&problem, Solver::PeacemanRachford { step: 1.2 }),
        (&circular, Solver::PeacemanRachford { step: 1.2 }),
    ];
    for extent in [Extent::PerSample, Extent::WholeBatch] {
        for measure in
            [Measure::Relative, Measure::Absolute, Measure::Thompson, Measure::Hilbert, Measure::Sup]
        {
            for (tolerance, max_iterations) in [(1e-3, 200), (1e-5, 200), (1e-6, 3), (0.0, 100)] {
                for (problem, solver) in &cases {
                    let splits = matches!(solver, Solver::PeacemanRachford { .. });
                    if splits && matches!(measure, Measure::Thompson | Measure::Hilbert) {
                        continue;
                    }
                    let rule = Stopping { measure, tolerance, max_iterations, extent };
                    let (z, found) = solved(gpu, problem, solver, &rule, Start::Constant(1.0)).unwrap();
                    let (known, expected) =
                        solved(&cpu, problem, solver, &rule, Start::Constant(1.0)).unwrap();
                    let what = || format!("{rule:?} by {solver:?}: {found:?}, on the CPU {expected:?}");
                    // At a tolerance of 0 rounding alone decides when, and whether, a residual is exactly 0.
                    let ended = tolerance == 0.0
                        && found.iter().all(|r| {
                            matches!(
                                r.outcome,
                                Outcome::Stagnated | Outcome::Converged | Outcome::IterationLimit
                            )
                        });
                    failures.holds(what, ended || alike(&found, &expected));
                    failures.small(
                        what,
                        relative_error(&z, &known),
                        if max_iterations == 3 { 1e-4 } else { 1e-2 },
                    );
                }
            }
        }
    }
    // A sample whose injection is not finite has no answer; the others have theirs.
    let step = 1.2;
    for bad in [f64::NAN, f64::INFINITY] {
        for (map, solver) in [
            (plain(DENSE), Solver::Picard),
            (changed(DENSE, |p| Parts { injection: Injection::Inner, ..p }), Solver::Picard),
            (plain(DENSE), Solver::PeacemanRachford { step }),
            (plain(CIRCULAR), Solver::PeacemanRachford { step }),
        ] {
            let mut problem = contracting(map, 3, 9);
            let entry = map.operator().state_len() + 2;
            problem.y[entry] = bad;
            let (_, reports) =
                solved(gpu, &problem, &solver, &stopping(1e-4, 100), Start::Constant(1.0)).unwrap();
            let outcomes: Vec<Outcome> = reports.iter().map(|r| r.outcome).collect();
            let expected = [Outcome::Converged, Outcome::NotFinite, Outcome::Converged];
            failures.holds(|| format!("{bad} injected: {outcomes:?}"), outcomes == expected);
            problem.y[entry] = 0.0;
            problem.weights[0][5] = bad;
            let (_, reports) =
                solved(gpu, &problem, &solver, &stopping(1e-4, 100), Start::Constant(1.0)).unwrap();
            let none = reports.iter().all(|r| r.outcome == Outcome::NotFinite);
            failures.holds(|| format!("a weight of {bad}: {reports:?}"), none);
        }
    }
    failures.show();
}

#[test]
fn reports_are_compared_and_counted() {
    let Some(gpu) = gpu("reports") else { return };
    fn of<D: Equilibria>(device: &D) -> (Vec<SampleReport>, Summary) {
        let (batch, len) = (300, 5);
        let before = random(&mut ChaCha8Rng::seed_from_u64(1), batch * len, 0.5, 1.5);
        let mut after: Vec<f64> =
            before.iter().enumerate().map(|(i, x)| x + 1e-3 * f64::from(i as u32 % 7)).collect();
        after[12] = f64::NAN;
        let (before, after) = (up(device, &before), up(device, &after));
        let (mut reports, mut tally) = (device.reports(batch).unwrap(), device.tally().unwrap());
        let rule = stopping(3e-3, 10);
        device.compare(len, batch, 4, &rule, &before, &after, &mut reports).unwrap();
        device.count(Pass::Forward, batch, &reports, &mut tally).unwrap();
        device.count(Pass::Backward, batch - 1, &reports, &mut tally).unwrap();
        let mut host = vec![SampleReport::default(); batch];
        device.read_reports(&reports, &mut host).unwrap();
        (host, device.finish(&mut tally).unwrap())
    }
    let ((found, counted), (expected, known)) = (of(gpu), of(&Cpu::<f32>::new(1).unwrap()));
    assert_eq!(counted, known);
    for (a, b) in found.iter().zip(&expected) {
        assert_eq!((a.iterations, a.outcome), (b.iterations, b.outcome));
        assert!(
            a.residual.is_nan() && b.residual.is_nan()
                || (a.residual - b.residual).abs() <= 1e-12 * b.residual
        );
    }
}

/// An equation with its weights, a start, and the gradient for its end.
struct Equation {
    operator: Operator,
    activation: Activation,
    batch: usize,
    w: Vec<f64>,
    start: Vec<f64>,
    v: Vec<f64>,
}

impl Equation {
    fn new(operator: Operator, activation: Activation, batch: usize) -> Self {
        let rng = &mut ChaCha8Rng::seed_from_u64(3);
        let (len, scale) =
            (operator.state_len(), 2.0 / (operator.weight_len() as f64 / operator.units() as f64).sqrt());
        let w = random(rng, operator.weight_len(), -scale, scale);
        // Samples of different sizes take different steps.
        let start = (0..batch).flat_map(|k| random(rng, len, 0.0, 0.3 + k as f64)).collect();
        Self { operator, activation, batch, w, start, v: random(rng, batch * len, -1.0, 1.0) }
    }

    /// The same with some of the samples, in any order.
    fn pick(&self, samples: &[usize]) -> Self {
        let len = self.operator.state_len();
        let of = |all: &[f64]| samples.iter().flat_map(|&k| all[k * len..(k + 1) * len].to_vec()).collect();
        Self { batch: samples.len(), w: self.w.clone(), start: of(&self.start), v: of(&self.v), ..*self }
    }

    /// The end, the gradients for start and weights, and the reports; twice by the same plan, where memory is used again.
    fn integrated<D: Integrate>(
        &self,
        device: &D,
        tolerance: &OdeTolerance,
    ) -> (Vec<Vec<f64>>, Vec<OdeReport>) {
        let (batch, states) = (self.batch, self.start.len());
        let mut plan = device.ode_plan(self.operator, self.activation, batch).unwrap();
        device.ode_load(&mut plan, &up(device, &self.w)).unwrap();
        let (start, v) = (up(device, &self.start), up(device, &self.v));
        let (mut end, mut gradient) = (device.zeros(states).unwrap(), device.zeros(states).unwrap());
        let mut gw = up(device, &numbers(50, self.w.len()));
        let mut reports = device.ode_reports(batch).unwrap();
        device.integrate(&mut plan, 1, &start, tolerance, &mut end, &mut reports).unwrap();
        device.integrate(&mut plan, batch, &start, tolerance, &mut end, &mut reports).unwrap();
        device.integrate_adjoint(&mut plan, batch, &v, &mut gradient, &mut gw).unwrap();
        let mut host = vec![OdeReport::default(); batch];
        device.read_ode_reports(&reports, &mut host).unwrap();
        let found = vec![
            down(device, &end, states),
            down(device, &gradient, states),
            down(device, &gw, self.w.len()),
        ];
        (found, host)
    }
}

const USUAL: OdeTolerance = OdeTolerance { relative: 1e-4, absolute: 1e-5, max_steps: 200 };
/// Errors are far below it, so that rounding does not choose the steps: a ReLU's kinks are crossed where the CPU crosses them, and its
/// gradients can be compared.
const ROUGH: OdeTolerance = OdeTolerance { relative: 1e-2, absolute: 1e-2, max_steps: 200 };

#[test]
fn differential_equations() {
    let Some(gpu) = gpu("differential equations") else { return };
    let mut failures = Failures::default();
    let cpu = exact();
    let image = Operator::Conv { channels: 4, height: 8, width: 8, padding: Padding::Circular, kernel: 3 };
    for operator in [DENSE, CONV, CIRCULAR, image, Operator::Dense { n: 70 }] {
        for activation in [Activation::Tanh, Activation::Relu, Activation::Sigmoid] {
            let equation = Equation::new(operator, activation, 5);
            for (tolerance, has_gradients) in [(&USUAL, activation != Activation::Relu), (&ROUGH, true)] {
                let what = || format!("{operator:?} with {activation} to {}", tolerance.relative);
                let (found, reports) = equation.integrated(gpu, tolerance);
                let (expected, known) = equation.integrated(&cpu, tolerance);
                let compared = if has_gradients { 3 } else { 1 };
                for (k, (found, expected)) in found.iter().zip(&expected).enumerate().take(compared) {
                    let name = ["the end", "the gradient", "gw"][k];
                    failures.small(|| format!("{name} of {}", what()), relative_error(found, expected), 1e-4);
                }
                for (a, b) in reports.iter().zip(&known) {
                    let same =
                        a.outcome == b.outcome && a.accepted.abs_diff(b.accepted) <= 1 && a.time == b.time;
                    failures.holds(|| format!("{}: {a:?}, on the CPU {b:?}", what()), same);
                }
                failures.holds(
                    || format!("{}: {reports:?}", what()),
                    reports.iter().all(|r| r.outcome == OdeOutcome::Finished),
                );
            }
        }
    }
    failures.show();
}

/// The shapes of the tables: those that have kernels for whole integrations, on compute capability 9.0.
const TABLES: [Operator; 2] = [
    Operator::Conv { channels: 32, height: 28, width: 28, padding: Padding::Zero, kernel: 3 },
    Operator::Conv { channels: 48, height: 32, width: 32, padding: Padding::Zero, kernel: 3 },
];

#[test]
fn differential_equations_of_the_tables_shapes() {
    let Some(gpu) = gpu("differential equations of the tables' shapes") else { return };
    let mut failures = Failures::default();
    let cpu = exact();
    // Of a ReLU those samples none of whose entries is so near a kink that rounding decides its side: the gradient in `f64` stays what it is
    // when the start is disturbed by 1e-5.
    let steady: [&[usize]; 2] = [&[0, 1, 2], &[6]];
    for (operator, steady) in TABLES.into_iter().zip(steady) {
        let tanh = Equation::new(operator, Activation::Tanh, 3);
        let relu = Equation::new(operator, Activation::Relu, 8).pick(steady);
        for (equation, tolerance) in [(tanh, USUAL), (relu, ROUGH)] {
            let (found, reports) = equation.integrated(gpu, &tolerance);
            let (expected, known) = equation.integrated(&cpu, &tolerance);
            let what = format!("{operator:?} with {}", equation.activation);
            for (name, (found, expected)) in
                ["the end", "the gradient", "gw"].into_iter().zip(found.iter().zip(&expected))
            {
                failures.small(|| format!("{name} of {what}"), relative_error(found, expected), 1e-4);
            }
            for (a, b) in reports.iter().zip(&known) {
                let same = (a.accepted, a.rejected, a.outcome, a.time)
                    == (b.accepted, b.rejected, b.outcome, b.time);
                failures.holds(|| format!("{what}: {a:?}, on the CPU {b:?}"), same);
            }
        }
    }
    failures.show();
}

#[test]
fn integrations_do_not_depend_on_batch_position_or_run() {
    let Some(gpu) = gpu("independence of integrations") else { return };
    let mut failures = Failures::default();
    for operator in [DENSE, CIRCULAR, TABLES[0], TABLES[1]] {
        let equation = Equation::new(operator, Activation::Tanh, 7);
        let (found, reports) = equation.integrated(gpu, &USUAL);
        failures.holds(
            || format!("{operator:?}: other bits"),
            equation.integrated(gpu, &USUAL) == (found.clone(), reports.clone()),
        );
        let (picks, len) = ([6, 0, 3], operator.state_len());
        let (part, part_reports) = equation.pick(&picks).integrated(gpu, &USUAL);
        for (at, &k) in picks.iter().enumerate() {
            for (part, found) in part.iter().zip(&found).take(2) {
                let same = part[at * len..(at + 1) * len] == found[k * len..(k + 1) * len];
                failures.holds(|| format!("{operator:?}: sample {k} at {at}"), same);
            }
            failures.holds(
                || format!("{:?} not {:?}", part_reports[at], reports[k]),
                part_reports[at] == reports[k],
            );
        }
    }
    failures.show();
}

/// The stages of the first steps are remembered, those of later ones computed again: for all samples that go back together, so that a
/// short integration goes back in one way beside a long one and in the other alone. To the same bits.
#[test]
fn integrations_of_more_steps_than_are_remembered() {
    let Some(gpu) = gpu("long integrations") else { return };
    let mut failures = Failures::default();
    let (tanh, relu) = (Activation::Tanh, Activation::Relu);
    for (operator, activation, larger) in [
        (DENSE, tanh, 15.0),
        (CIRCULAR, tanh, 15.0),
        (CIRCULAR, relu, 2.5),
        (TABLES[0], tanh, 6.0),
        (TABLES[1], tanh, 6.0),
    ] {
        let mut equation = Equation::new(operator, activation, 4);
        equation.w.iter_mut().for_each(|w| *w *= larger);
        let len = operator.state_len();
        // The nearer to 0, the fewer steps.
        equation.start[..len].iter_mut().for_each(|z| *z *= 1e-9);
        let tight = OdeTolerance { relative: 1e-5, absolute: 1e-6, max_steps: 200 };
        let (found, reports) = equation.integrated(gpu, &tight);
        let steps: Vec<u32> = reports.iter().map(|report| report.accepted).collect();
        failures.holds(
            || format!("{operator:?} with {activation}: {steps:?}"),
            steps.iter().any(|&k| k > 8) && steps[0] <= 8,
        );
        // Pieces of memory were made for the steps of one sample; more of them must not change what was found.
        let (again, _) = equation.integrated(gpu, &tight);
        failures.holds(|| format!("{operator:?} with {activation}: other bits again"), again == found);
        // A kink that is crossed in another step changes the gradients of a ReLU that grows as fast as this one.
        let (expected, _) = equation.integrated(&exact(), &tight);
        for (found, expected) in found.iter().zip(&expected).filter(|_| activation == tanh) {
            failures.small(
                || format!("{operator:?} with {activation}"),
                relative_error(found, expected),
                1e-3,
            );
        }
        let (alone, _) = equation.pick(&[0]).integrated(gpu, &tight);
        let same = alone.iter().zip(&found).take(2).all(|(alone, found)| alone[..] == found[..len]);
        failures.holds(|| format!("{operator:?} with {activation}: other bits alone"), same);
    }
    failures.show();
}

#[test]
fn every_way_an_integration_ends() {
    let Some(gpu) = gpu("ends of integrations") else { return };
    let mut failures = Failures::default();
    let cpu = Cpu::<f32>::new(1).unwrap();
    let equation = Equation::new(CIRCULAR, Activation::Tanh, 5);
    // The step limit, within the first look and after it: where it stopped is the answer, and what was done is pulled back.
    // (After two steps of the tables' shape it is another time: the first step's error is a hundredth of what is allowed, so that rounding chooses
    // the second.)
    let of_a_table = Equation::new(TABLES[0], Activation::Tanh, 2);
    for (equation, max_steps, allowed) in [
        (&equation, 1, 1e-3),
        (&equation, 3, 1e-3),
        (&equation, 6, 1e-3),
        (&of_a_table, 1, 1e-3),
        (&of_a_table, 2, 1e-2),
        (&of_a_table, 5, 1e-3),
    ] {
        let tight = OdeTolerance { relative: 1e-5, absolute: 1e-5, max_steps };
        let (found, reports) = equation.integrated(gpu, &tight);
        let (expected, known) = equation.integrated(&cpu, &tight);
        for (found, expected) in found.iter().zip(&expected) {
            failures.small(|| format!("{max_steps} steps"), relative_error(found, expected), allowed);
        }
        for (a, b) in reports.iter().zip(&known) {
            let same = (a.accepted, a.rejected, a.outcome) == (b.accepted, b.rejected, b.outcome);
            failures.holds(|| format!("{max_steps} steps: {a:?}, on the CPU {b:?}"), same);
        }
    }
    // A start that is not finite, one that explodes, and weights that are not finite; the other samples do not see it.
    let outcomes = |equation: &Equation| -> Vec<OdeOutcome> {
        equation.integrated(gpu, &USUAL).1.iter().map(|r| r.outcome).collect()
    };
    for equation in [equation.pick(&[0, 1, 2]), of_a_table.pick(&[0, 1, 0])] {
        let mut bad = equation.pick(&[0, 1, 2]);
        bad.start[equation.operator.state_len() + 3] = f64::NAN;
        let expected = [OdeOutcome::Finished, OdeOutcome::NotFinite, OdeOutcome::Finished];
        failures.holds(|| format!("{:?}", outcomes(&bad)), outcomes(&bad) == expected);
        bad = equation.pick(&[0, 1, 2]);
        bad.w[4] = f64::INFINITY;
        failures.holds(|| format!("{:?}", outcomes(&bad)), outcomes(&bad) == [OdeOutcome::NotFinite; 3]);
    }
    let mut tally = gpu.tally().unwrap();
    let mut reports = gpu.ode_reports(5).unwrap();
    let mut plan = gpu.ode_plan(CIRCULAR, Activation::Tanh, 5).unwrap();
    let (start, mut end) = (up(gpu, &equation.start), gpu.zeros(equation.start.len()).unwrap());
    gpu.ode_load(&mut plan, &up(gpu, &equation.w)).unwrap();
    gpu.integrate(&mut plan, 5, &start, &USUAL, &mut end, &mut reports).unwrap();
    gpu.ode_count(4, &reports, &mut tally).unwrap();
    let mut host = vec![OdeReport::default(); 4];
    gpu.read_ode_reports(&reports, &mut host).unwrap();
    let summary = gpu.finish(&mut tally).unwrap();
    let steps: u64 = host.iter().map(|r| u64::from(r.accepted)).sum();
    let counted = (summary.solves, summary.converged, summary.unfinished, summary.forward_iterations);
    failures.holds(|| format!("{summary:?}"), counted == (4, 4, 0, steps));
    failures.show();
}

#[test]
fn what_is_not_on_the_gpu_yet_says_so() {
    let Some(gpu) = gpu("refusals") else { return };
    let mut failures = Failures::default();
    let mut refused = |what: &str, result: Result<()>, words: &str| {
        let sentence = result.map_or_else(|error| error.to_string(), |()| "no error".into());
        failures.holds(|| format!("{what}: {sentence}"), sentence.contains(words));
    };
    let solve = |operator: Operator, solver: Solver| {
        let problem = contracting(plain(operator), 2, 1);
        solved(gpu, &problem, &solver, &stopping(1e-4, 10), Start::Constant(1.0)).map(|_| ())
    };
    let later = "is not on the GPU yet: use --device cpu";
    refused("a window of 9", solve(DENSE, Solver::Anderson { window: 9, ridge: 0.0, mixing: 1.0 }), later);
    refused("zero padding", solve(CONV, Solver::PeacemanRachford { step: 1.0 }), "circular padding");
    let mut plan = gpu.plan(&plain(DENSE), 2).unwrap();
    let (y, mut z) = (gpu.zeros(100).unwrap(), gpu.zeros(100).unwrap());
    refused("no weights", gpu.apply(&mut plan, 2, &y, &y, &mut z), "load them first");
    let w = gpu.zeros(DENSE.weight_len()).unwrap();
    gpu.load(&mut plan, &[&w]).unwrap();
    refused("a large batch", gpu.apply(&mut plan, 3, &y, &y, &mut z), "made for 1 to 2");
    refused(
        "a short array",
        gpu.apply(&mut plan, 2, &gpu.zeros(5).unwrap(), &y, &mut z),
        "z holds 5 numbers, 26 are needed",
    );
    failures.show();
}
