//! The operations through the device: checked arguments, and the same bits for any number of threads.

use super::testing::{assert_gradient, random};
use crate::cpu::network::symmetric_peak;
use crate::cpu::{Buffer, Cpu, Isa};
use crate::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState, Scaling, Update};
use crate::{Activation, Device, Equilibria, Layers, Operator, Padding, ShapedMap, Spectra};

fn single(len: usize, seed: u64) -> Buffer<f32> {
    Buffer::from_slice(&random(len, seed).iter().map(|&x| x as f32).collect::<Vec<_>>())
}

fn norm_state(shape: NormPoolShape) -> NormState<Buffer<f32>> {
    let channels = shape.channels;
    NormState {
        running_mean: Buffer::zeros(channels),
        running_variance: Buffer::from_slice(&vec![1.0; channels]),
        batch_mean: Buffer::zeros(channels),
        batch_inverse_deviation: Buffer::zeros(channels),
        normalised: Buffer::zeros(shape.batch * shape.pooled_len()),
    }
}

fn scaling(shape: NormPoolShape) -> Scaling<Buffer<f32>> {
    Scaling { scale: single(shape.channels, 1), offset: single(shape.channels, 2) }
}

fn borrowed(scaling: &Scaling<Buffer<f32>>) -> Scaling<&Buffer<f32>> {
    Scaling { scale: &scaling.scale, offset: &scaling.offset }
}

/// A convolutional classifier's step outside its equilibrium, all results in one list.
fn step(threads: usize) -> Vec<Vec<f32>> {
    let cpu = Cpu::<f32>::new(threads).unwrap();
    let shape = ConvShape { batch: 37, height: 9, width: 8, inputs: 3, outputs: 16, padding: Padding::Zero };
    let pixels = 37 * 72;
    let (x, w, b) = (single(pixels * 3, 3), single(16 * 3 * 9, 4), single(16, 5));
    let mut y = Buffer::zeros(pixels * 16);
    cpu.convolution(shape, &x, &w, &b, true, &mut y).unwrap();
    let pool = NormPoolShape { batch: 37, height: 9, width: 8, channels: 16, window: 4 };
    let (scaling, mut state) = (scaling(pool), norm_state(pool));
    let mut features = Buffer::zeros(37 * 64);
    cpu.norm_pool_train(pool, &y, borrowed(&scaling), &mut state, &mut features).unwrap();
    let head = LinearShape { batch: 37, inputs: 64, outputs: 10 };
    let (wh, bh) = (single(640, 8), single(10, 9));
    let mut logits = Buffer::zeros(370);
    cpu.linear(head, &features, &wh, &bh, false, &mut logits).unwrap();
    let labels: Vec<u32> = (0..37).map(|i| i % 10).collect();
    let mut glogits = Buffer::zeros(370);
    let mut tally = cpu.tally().unwrap();
    cpu.cross_entropy(37, 10, 0.0, &logits, &labels, &mut glogits, &mut tally).unwrap();
    let loss = cpu.finish(&mut tally).unwrap().loss;
    let (mut gfeatures, mut gwh, mut gbh) = (Buffer::zeros(37 * 64), Buffer::zeros(640), Buffer::zeros(10));
    cpu.linear_backward(head, &features, &wh, None, &mut glogits, Some(&mut gfeatures), &mut gwh, &mut gbh)
        .unwrap();
    let (mut gy, mut gscale, mut goffset) =
        (Buffer::zeros(pixels * 16), Buffer::zeros(16), Buffer::zeros(16));
    let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
    cpu.norm_pool_backward(pool, &y, &scaling.scale, &state, &gfeatures, &mut gy, gradients).unwrap();
    let (mut gx, mut gw, mut gb) = (Buffer::zeros(pixels * 3), Buffer::zeros(16 * 27), Buffer::zeros(16));
    cpu.convolution_backward(shape, &x, &w, Some(&y), &mut gy, Some(&mut gx), &mut gw, &mut gb).unwrap();
    let (mut parameter, mut mean, mut square) = (w.clone(), Buffer::zeros(16 * 27), Buffer::zeros(16 * 27));
    let update = Update { parameter: &mut parameter, gradient: &gw, mean: &mut mean, square: &mut square };
    cpu.adam(&Adam::new(1e-3, 1e-5, 1), &mut [update]).unwrap();
    let arrays = [&features, &logits, &gwh, &gbh, &gscale, &goffset, &gy, &gx, &gw, &gb, &parameter];
    let mut all: Vec<Vec<f32>> = arrays.iter().map(|a| a.to_vec()).collect();
    all.push(vec![loss as f32]);
    all
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let one = step(1);
    for threads in [2, 3, 5] {
        assert_eq!(step(threads), one, "{threads} threads");
    }
}

#[test]
fn convolution_gradients_equal_finite_differences() {
    let cpu = Cpu::<f64>::new(1).unwrap();
    for padding in [Padding::Zero, Padding::Circular] {
        let shape = ConvShape { batch: 2, height: 4, width: 5, inputs: 2, outputs: 3, padding };
        let (x, w, b, v) = (random(80, 1), random(54, 2), random(3, 3), random(120, 4));
        let objective = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
            let mut y = Buffer::zeros(120);
            let (x, w, b) = (Buffer::from_slice(x), Buffer::from_slice(w), Buffer::from_slice(b));
            cpu.convolution(shape, &x, &w, &b, false, &mut y).unwrap();
            y.iter().zip(&v).map(|(y, v)| y * v).sum()
        };
        let (mut gx, mut gw, mut gb) = (Buffer::zeros(80), Buffer::zeros(54), Buffer::zeros(3));
        let (xs, ws, mut vs) = (Buffer::from_slice(&x), Buffer::from_slice(&w), Buffer::from_slice(&v));
        cpu.convolution_backward(shape, &xs, &ws, None, &mut vs, Some(&mut gx), &mut gw, &mut gb).unwrap();
        assert_gradient(&x, &gx, |x| objective(x, &w, &b));
        assert_gradient(&w, &gw, |w| objective(&x, w, &b));
        assert_gradient(&b, &gb, |b| objective(&x, &w, b));
    }
}

/// Means of windows whose last row and column are incomplete, and the way back as the transpose.
#[test]
fn pooling_takes_means_and_goes_back_by_its_transpose() {
    let cpu = Cpu::<f32>::new(2).unwrap();
    let shape = NormPoolShape { batch: 2, height: 5, width: 7, channels: 3, window: 2 };
    let (x, gy) = (single(2 * shape.image_len(), 1), single(2 * shape.pooled_len(), 2));
    let mut y = Buffer::zeros(2 * shape.pooled_len());
    cpu.average_pool(shape, &x, &mut y).unwrap();
    // Sample 1, row 1, column 2 of the means, channel 0.
    let at = |row: usize, column: usize| x[(35 + row * 7 + column) * 3];
    let mean = (at(2, 4) + at(2, 5) + at(3, 4) + at(3, 5)) / 4.0;
    assert!((y[(6 + 3 + 2) * 3] - mean).abs() < 1e-6);
    let mut gx = single(2 * shape.image_len(), 3);
    cpu.average_pool_backward(shape, &gy, &mut gx).unwrap();
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a * b)).sum::<f64>();
    assert!((product(&y, &gy) - product(&x, &gx)).abs() < 1e-5);
    assert_eq!(gx[6 * 3], 0.0, "no window covers column 6");
    let wrong = NormPoolShape { window: 6, ..shape };
    assert!(
        cpu.average_pool(wrong, &x, &mut y).unwrap_err().to_string().contains("6x6 does not fit into 5x7")
    );
}

#[test]
fn wrong_arguments_are_named() {
    let cpu = Cpu::<f32>::new(1).unwrap();
    let (mut a, b) = (cpu.zeros(4).unwrap(), cpu.zeros(4).unwrap());
    let shape = LinearShape { batch: 1, inputs: 5, outputs: 1 };
    let error = cpu.linear(shape, &b, &b, &b, false, &mut a).unwrap_err();
    assert_eq!(error.to_string(), "the input holds 4 numbers, 5 are needed");
    let mut tally = cpu.tally().unwrap();
    let error = cpu.cross_entropy(2, 2, 0.0, &b, &vec![0, 2], &mut a, &mut tally).unwrap_err();
    assert!(error.to_string().contains("sample 1 is 2, but there are 2 classes"), "{error}");
    let pool = NormPoolShape { batch: 1, height: 2, width: 2, channels: 1, window: 3 };
    let error =
        cpu.norm_pool_eval(pool, &b, borrowed(&scaling(pool)), &norm_state(pool), &mut a).unwrap_err();
    assert!(error.to_string().contains("3x3 does not fit into 2x2"), "{error}");
    let one = NormPoolShape::vectors(1, 4);
    assert!(cpu.norm_pool_train(one, &b, borrowed(&scaling(one)), &mut norm_state(one), &mut a).is_err());
}

/// The loops without sums across lanes or fused products: an instruction set changes their speed and nothing else.
#[test]
fn plain_loops_have_the_same_bits_for_every_instruction_set() {
    let run = |isa: Isa| {
        let cpu = Cpu::<f32>::with_isa(2, isa).unwrap();
        let pool = NormPoolShape { batch: 37, height: 9, width: 8, channels: 5, window: 4 };
        let pixels = 37 * 72 * 5;
        let mut x = single(pixels, 1);
        cpu.relu(pixels, &mut x).unwrap();
        let (mut state, mut y, mut z) = (norm_state(pool), Buffer::zeros(37 * 20), Buffer::zeros(37 * 20));
        let scaling = scaling(pool);
        cpu.norm_pool_train(pool, &x, borrowed(&scaling), &mut state, &mut y).unwrap();
        cpu.norm_pool_eval(pool, &x, borrowed(&scaling), &state, &mut z).unwrap();
        let (mut gx, mut gscale, mut goffset) = (Buffer::zeros(pixels), Buffer::zeros(5), Buffer::zeros(5));
        let gradients = Scaling { scale: &mut gscale, offset: &mut goffset };
        cpu.norm_pool_backward(pool, &x, &scaling.scale, &state, &y, &mut gx, gradients).unwrap();
        let (mut mean, mut square) = (Buffer::zeros(pixels), Buffer::zeros(pixels));
        let update = Update { parameter: &mut x, gradient: &gx, mean: &mut mean, square: &mut square };
        cpu.adam(&Adam::new(1e-3, 1e-5, 1), &mut [update]).unwrap();
        cpu.axpy(pixels, 0.3, &gx, &mut x).unwrap();
        let mut sums = Buffer::zeros(20);
        cpu.sum_rows(37, 20, &y, &mut sums).unwrap();
        let operator =
            Operator::Conv { channels: 6, height: 4, width: 5, padding: Padding::Circular, kernel: 3 };
        let (w, mut gradient) = (single(operator.weight_len(), 4), Buffer::zeros(operator.weight_len()));
        let spectra = [
            cpu.install(|| symmetric_peak(isa, &operator, &w, &mut gradient)),
            cpu.splitting_rate(&operator, &w, 0.1, 9).unwrap(),
        ];
        let arrays = [&x, &y, &z, &gx, &gscale, &goffset, &mean, &square, &sums, &gradient];
        (arrays.map(|array| array.to_vec()), spectra)
    };
    let portable = run(Isa::PORTABLE);
    for isa in Isa::available() {
        assert!(run(isa) == portable, "{}", isa.name());
    }
}

/// Sizes whose products wrap around to the lengths of the arrays.
#[test]
fn sizes_that_wrap_around_are_refused() {
    let cpu = Cpu::<f32>::new(1).unwrap();
    let six = cpu.zeros(6).unwrap();
    let side = (1 << 63) + 3; // twice that is 6 again
    let refused = |work: &dyn Fn() -> crate::Result<()>| {
        !matches!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)), Ok(Ok(())))
    };
    let linear = LinearShape { batch: 2, inputs: side, outputs: 2 };
    assert!(refused(&|| cpu.linear(linear, &six, &six, &six, false, &mut cpu.zeros(6).unwrap())));
    assert!(refused(&|| cpu.linear_backward(
        linear,
        &six,
        &six,
        None,
        &mut cpu.zeros(6).unwrap(),
        Some(&mut cpu.zeros(6).unwrap()),
        &mut cpu.zeros(6).unwrap(),
        &mut cpu.zeros(6).unwrap()
    )));
    let image = ConvShape { batch: 2, height: side, width: 1, inputs: 1, outputs: 1, padding: Padding::Zero };
    let nine = cpu.zeros(9).unwrap();
    assert!(refused(&|| cpu.convolution(image, &six, &nine, &six, false, &mut cpu.zeros(6).unwrap())));
    let equation = subdeq_map::Map::single(Activation::Tanh, 1.2).unwrap();
    assert!(ShapedMap::new(Operator::Dense { n: 1 << 32 }, equation).is_err());
    let plane = Operator::Conv { channels: 2, height: side, width: 1, padding: Padding::Zero, kernel: 3 };
    assert!(ShapedMap::new(plane, equation).is_err());
    let map = ShapedMap::new(Operator::Dense { n: 2 }, equation).unwrap();
    assert!(cpu.plan(&map, side).is_err());
}
