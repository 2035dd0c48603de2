//! Operations that are sums over a batch, taken part by part: what they come to is what the whole batch comes to.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::common::*;
use subdeq_engine::network::{NORM_EPSILON, NormPoolShape, NormState, Scaling};
use subdeq_engine::{Cpu, Layers, Real};

/// Images with and without pooling; many vectors; more channels than a block of threads.
pub const SHAPES: [NormPoolShape; 4] = [
    NormPoolShape { batch: 7, height: 5, width: 4, channels: 3, window: 2 },
    NormPoolShape { batch: 300, height: 1, width: 1, channels: 87, window: 1 },
    NormPoolShape { batch: 9, height: 2, width: 2, channels: 300, window: 2 },
    NormPoolShape { batch: 5000, height: 1, width: 1, channels: 6, window: 1 },
];

fn uploaded<D: Layers>(device: &D, seed: u64, len: usize) -> D::Array {
    let host = random(&mut ChaCha8Rng::seed_from_u64(seed), len, -1.0, 1.0);
    let host: Vec<D::Elem> = host.iter().map(|&x| D::Elem::from_f64(f64::from(x as f32))).collect();
    device.upload(&host).unwrap()
}

fn read<D: Layers>(device: &D, array: &D::Array, len: usize) -> Vec<f64> {
    let mut host = vec![D::Elem::from_f64(0.0); len];
    device.read(array, 0, &mut host).unwrap();
    host.iter().map(|x| x.to_f64()).collect()
}

fn assert_close(what: &str, found: &[f64], expected: &[f64], allowed: f64) {
    let size = expected.iter().fold(1e-3f64, |size, x| size.max(x.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= allowed * size, "{what}: {a} and {b}");
    }
}

/// Batch norm in two halves, each in two parts, against batch norm in one go.
pub fn norms_agree<D: Layers>(device: &D, shape: NormPoolShape, allowed: f64) {
    let NormPoolShape { batch, channels, .. } = shape;
    let (len, pooled) = (batch * shape.image_len(), batch * shape.pooled_len());
    let (x, gy) = (uploaded(device, 1, len), uploaded(device, 2, pooled));
    let (scale, offset) = (uploaded(device, 3, channels), uploaded(device, 4, channels));
    let scaling = Scaling { scale: &scale, offset: &offset };
    let state = || NormState {
        running_mean: uploaded(device, 5, channels),
        running_variance: uploaded(device, 6, channels),
        batch_mean: device.zeros(channels).unwrap(),
        batch_inverse_deviation: device.zeros(channels).unwrap(),
        normalised: device.zeros(pooled).unwrap(),
    };
    let made = |y: &D::Array, gx: &D::Array, gscale: &D::Array, goffset: &D::Array| {
        let of_channels = [gscale, goffset].map(|array| read(device, array, channels));
        [vec![read(device, y, pooled), read(device, gx, len)], of_channels.to_vec()].concat()
    };
    let room = || [pooled, len, channels, channels].map(|len| device.zeros(len).unwrap());

    let (mut whole, [mut y, mut gx, mut gscale, mut goffset]) = (state(), room());
    device.norm_pool_train(shape, &x, scaling, &mut whole, &mut y).unwrap();
    let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
    device.norm_pool_backward(shape, &x, &scale, &whole, &gy, &mut gx, gradients).unwrap();
    let expected = made(&y, &gx, &gscale, &goffset);

    let parts = [(0, batch / 3), (batch / 3, batch - batch / 3)];
    let over_parts = |sums_of: &dyn Fn(NormPoolShape, usize, &mut [f64])| {
        let mut total = vec![0.0; 2 * channels];
        for (first, batch) in parts {
            let mut sums = vec![9.0; 2 * channels];
            sums_of(NormPoolShape { batch, ..shape }, first, &mut sums);
            total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
        }
        total
    };
    let (mut cut, [mut y, mut gx, mut gscale, mut goffset]) = (state(), room());
    let sums = over_parts(&|part, first, sums| device.norm_sums(part, first, &x, sums).unwrap());
    let count = (batch * shape.height * shape.width) as f64;
    let means: Vec<f64> = sums[..channels].iter().map(|sum| sum / count).collect();
    let inverse = |c: usize| 1.0 / (sums[channels + c] / count - means[c] * means[c] + NORM_EPSILON).sqrt();
    let numbers = |x: &mut dyn Iterator<Item = f64>| x.map(D::Elem::from_f64).collect::<Vec<_>>();
    device.write(&mut cut.batch_mean, 0, &numbers(&mut means.iter().copied())).unwrap();
    device.write(&mut cut.batch_inverse_deviation, 0, &numbers(&mut (0..channels).map(inverse))).unwrap();
    device.norm_pool_given(shape, &x, scaling, &mut cut, &mut y).unwrap();
    let sums = over_parts(&|part, first, sums| {
        device.norm_gradient_sums(part, first, &cut, &gy, sums).unwrap();
    });
    let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
    device.norm_pool_pull(shape, batch, &x, &scale, &cut, &gy, &sums, &mut gx, gradients).unwrap();
    let names = ["y", "gx", "gscale", "goffset"];
    for (what, (found, expected)) in names.iter().zip(made(&y, &gx, &gscale, &goffset).iter().zip(&expected))
    {
        assert_close(&format!("{what} of {shape:?}"), found, expected, allowed);
    }
    // The first images alone get what they get among all.
    let first = NormPoolShape { batch: parts[0].1, ..shape };
    let (all, mut some) = (read(device, &gx, len), device.zeros(len).unwrap());
    let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
    device.norm_pool_pull(first, batch, &x, &scale, &cut, &gy, &sums, &mut some, gradients).unwrap();
    assert_eq!(read(device, &some, first.batch * shape.image_len()), all[..first.batch * shape.image_len()]);
}

/// The losses of two parts of a batch against those of all of it.
pub fn losses_agree<D: Layers>(device: &D) {
    let (batch, classes, smoothing) = (37, 10, 0.1);
    let logits = uploaded(device, 1, batch * classes);
    let labels = device.integers(&(0..batch as u32).map(|k| k * 7 % 10).collect::<Vec<_>>()).unwrap();
    let (mut whole, mut tally) = (device.zeros(batch * classes).unwrap(), device.tally().unwrap());
    device.cross_entropy(batch, classes, smoothing, &logits, &labels, &mut whole, &mut tally).unwrap();
    let expected = device.finish(&mut tally).unwrap();
    let mut cut = device.zeros(batch * classes).unwrap();
    for part in [0..11, 11..batch] {
        device
            .cross_entropy_part(part, batch, classes, smoothing, &logits, &labels, &mut cut, &mut tally)
            .unwrap();
    }
    let found = device.finish(&mut tally).unwrap();
    assert_eq!(read(device, &cut, batch * classes), read(device, &whole, batch * classes));
    assert_eq!((found.samples, found.correct), (expected.samples, expected.correct));
    assert!((found.loss - expected.loss).abs() < 1e-12 * expected.loss, "{} {}", found.loss, expected.loss);
}

#[test]
fn a_batch_in_parts_comes_to_what_the_whole_comes_to() {
    for shape in SHAPES {
        norms_agree(&Cpu::<f64>::new(2).unwrap(), shape, 1e-11);
        norms_agree(&Cpu::<f32>::new(2).unwrap(), shape, 3e-5);
    }
    losses_agree(&Cpu::<f64>::new(1).unwrap());
    losses_agree(&Cpu::<f32>::new(1).unwrap());
}
