//! Every kernel against the definition in `f64`, over shapes that are awkward on purpose.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::kernel::{Convolution, Scratch, Series};
use super::precision::Accuracy;
use super::shape::{Geometry, Shape, Stencil, neighbour};
use super::{forward, input_gradient, weight_gradient};
use crate::Padding;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;

fn random<T: SimdReal>(len: usize, seed: u64) -> Vec<T> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| T::from_f64(rng.random_range(-1.0..1.0))).collect()
}

/// Sizes that leave tails in every direction: `(height, width, in, out)`.
const SIZES: [(usize, usize, usize, usize); 14] = [
    (1, 1, 1, 1),
    (1, 9, 2, 3),
    (2, 2, 5, 7),
    (3, 5, 3, 48),
    (4, 16, 16, 16),
    (5, 17, 16, 15),
    (6, 33, 31, 33),
    (7, 7, 17, 20),
    (8, 12, 32, 32),
    (9, 19, 49, 50),
    (13, 6, 64, 64),
    (28, 28, 16, 16),
    (32, 32, 48, 48),
    (10, 64, 80, 10),
];

fn geometries() -> impl Iterator<Item = Geometry> {
    SIZES.into_iter().flat_map(|(height, width, in_channels, out_channels)| {
        [(Padding::Zero, 1, 1), (Padding::Circular, 1, 1), (Padding::Zero, 1, 2), (Padding::Circular, 2, 1)]
            .into_iter()
            .map(move |(padding, in_planes, out_planes)| Geometry {
                shape: Shape { height, width, in_channels, out_channels, padding },
                in_planes,
                out_planes,
            })
    })
}

/// The definition, summed in `f64`: `[plane][row][pixel][channel]`.
fn definition<T: SimdReal>(stencil: &Stencil<T>, images: &[T]) -> Vec<f64> {
    let geometry = stencil.geometry();
    let shape = &geometry.shape;
    let mut out = Vec::new();
    for plane in 0..geometry.out_planes {
        for (row, column) in (0..shape.height).flat_map(|r| (0..shape.width).map(move |c| (r, c))) {
            for output in 0..shape.out_channels {
                let mut sum = 0.0;
                for tap in 0..9 {
                    let r = neighbour(row + tap / 3, shape.height, shape.padding);
                    let c = neighbour(column + tap % 3, shape.width, shape.padding);
                    let (Some(r), Some(c)) = (r, c) else { continue };
                    for input in 0..geometry.inputs() {
                        let (from, channel) = (input / shape.in_channels, input % shape.in_channels);
                        let at =
                            from * shape.input_len() + (r * shape.width + c) * shape.in_channels + channel;
                        let weight = stencil.weight(plane, output, input, tap / 3, tap % 3);
                        sum += weight.to_f64() * images[at].to_f64();
                    }
                }
                out.push(sum);
            }
        }
    }
    out
}

fn convolve<T: SimdReal>(isa: Isa, stencil: &Stencil<T>, images: &[T], accuracy: Accuracy) -> Vec<T> {
    let geometry = stencil.geometry();
    let mut convolution = Convolution::new(isa, geometry);
    convolution.pack(stencil);
    let mut band = vec![T::ZERO; convolution.band_len()];
    let output_len = geometry.shape.output_len();
    let mut out = vec![T::from_f64(f64::NAN); geometry.out_planes * output_len];
    let mut scratch = Scratch::default();
    convolution.bands(images, (accuracy, Series::Alone), &mut scratch, &mut band, |first, band| {
        for (plane, band) in band.chunks_exact(band.len() / geometry.out_planes).enumerate() {
            out[plane * output_len + geometry.output_rows(first)..][..band.len()].copy_from_slice(band);
        }
    });
    out
}

/// The largest error, relative to the largest number.
fn error<T: SimdReal>(found: &[T], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    let error = found.iter().zip(expected).fold(0.0, |m: f64, (a, b)| {
        let e = (a.to_f64() - b).abs();
        if e.is_nan() { f64::INFINITY } else { m.max(e) }
    });
    error / size.max(1e-30)
}

#[test]
fn kernels_equal_the_definition() {
    for (seed, geometry) in geometries().enumerate() {
        let count = geometry.in_planes * geometry.out_planes;
        let weights: Vec<Vec<f32>> =
            (0..count).map(|k| random(geometry.shape.weight_len(), (seed * 10 + k) as u64)).collect();
        let blocks: Vec<&[f32]> = weights.iter().map(|w| &w[..]).collect();
        for transposed in [false, true] {
            let mut stencil = Stencil::new(geometry, &blocks);
            if transposed {
                stencil = stencil.transposed();
            }
            let geometry = stencil.geometry();
            let images: Vec<f32> =
                random(geometry.in_planes * geometry.shape.input_len(), seed as u64 + 1000);
            let expected = definition(&stencil, &images);
            for isa in Isa::available() {
                for (accuracy, bound) in
                    [(Accuracy::Coarse, 6e-3), (Accuracy::Fine, 1.5e-5), (Accuracy::Full, 2e-6)]
                {
                    let error = error(&convolve(isa, &stencil, &images, accuracy), &expected);
                    assert!(error < bound, "{geometry:?} {isa:?} {accuracy:?}: {error:.1e}");
                }
            }
        }
    }
}

/// A series of images that approach a limit: sums that are made of changes are as good as their residuals need.
#[test]
fn sums_of_changes_stay_well_below_the_changes() {
    for (seed, geometry) in geometries().enumerate().filter(|(_, g)| g.shape.in_channels % 16 == 0) {
        let count = geometry.in_planes * geometry.out_planes;
        let weights: Vec<Vec<f32>> =
            (0..count).map(|k| random(geometry.shape.weight_len(), (seed * 10 + k) as u64)).collect();
        let blocks: Vec<&[f32]> = weights.iter().map(|w| &w[..]).collect();
        let stencil = Stencil::new(geometry, &blocks);
        let len = geometry.in_planes * geometry.shape.input_len();
        let (limit, offset): (Vec<f32>, Vec<f32>) = (random(len, 1), random(len, 2));
        // The sums are linear; that an image is rounded to `f32` changes them by less than is allowed for.
        let (at_limit, of_offset) = (definition(&stencil, &limit), definition(&stencil, &offset));
        for isa in Isa::available() {
            let mut convolution = Convolution::new(isa, geometry);
            convolution.pack(&stencil);
            let mut band = vec![0.0; convolution.band_len()];
            let output_len = geometry.shape.output_len();
            let mut out = vec![0.0; geometry.out_planes * output_len];
            let mut scratch = Scratch::default();
            let mut before: Option<Vec<f64>> = None;
            for step in 0..24 {
                let share = 0.7f32.powi(step);
                let image: Vec<f32> = limit.iter().zip(&offset).map(|(l, o)| l + share * o).collect();
                let series = if step == 0 { Series::First } else { Series::Next };
                convolution.bands(
                    &image,
                    (Accuracy::Fine, series),
                    &mut scratch,
                    &mut band,
                    |first, band| {
                        for (plane, band) in band.chunks_exact(band.len() / geometry.out_planes).enumerate() {
                            out[plane * output_len + geometry.output_rows(first)..][..band.len()]
                                .copy_from_slice(band);
                        }
                    },
                );
                let exact = at_limit.iter().zip(&of_offset).map(|(l, o)| l + f64::from(share) * o);
                let exact: Vec<f64> = exact.collect();
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let error = norm(&mut out.iter().zip(&exact).map(|(&a, b)| f64::from(a) - b));
                let size = norm(&mut exact.iter().copied());
                let change = before.map_or(size, |old| norm(&mut old.iter().zip(&exact).map(|(a, b)| a - b)));
                assert!(
                    error <= 0.2 * change + 1e-5 * size,
                    "{geometry:?} {isa:?} step {step}: error {error:e}, change {change:e}, size {size:e}"
                );
                before = Some(exact);
            }
        }
    }
}

/// What [`Accuracy`] says of the errors in a whole state, on weights as they are initialised.
#[test]
fn errors_in_a_state_are_those_that_the_floors_are_made_of() {
    for (channels, side) in [(16, 28), (48, 32)] {
        let shape = Shape {
            height: side,
            width: side,
            in_channels: channels,
            out_channels: channels,
            padding: Padding::Zero,
        };
        let bound = 1.0 / (9.0 * channels as f32).sqrt();
        let weights: Vec<f32> = random(shape.weight_len(), 3).iter().map(|w: &f32| w * bound).collect();
        let z: Vec<f32> = random(shape.input_len(), 4).iter().map(|x: &f32| 1.4 + x).collect();
        let blocks = [&weights[..]];
        let stencil = Stencil::new(shape.single(), &blocks);
        let exact = definition(&stencil, &z);
        for isa in Isa::available() {
            for (accuracy, allowed) in [(Accuracy::Coarse, 1.5e-3), (Accuracy::Fine, 4e-6)] {
                let found = convolve(isa, &stencil, &z, accuracy);
                let (mut error, mut size) = (0.0, 0.0);
                for (&found, &exact) in found.iter().zip(&exact) {
                    let state = exact.tanh() + 1.2;
                    error += (f64::from(found).tanh() + 1.2 - state).powi(2);
                    size += state.powi(2);
                }
                let relative = (error / size).sqrt();
                println!("{channels} channels, {}, {accuracy:?}: {relative:.1e}", isa.name());
                assert!(relative <= allowed, "{channels} {isa:?} {accuracy:?}: {relative:e}");
            }
        }
    }
}

#[test]
fn double_precision_is_full_whatever_is_asked_for() {
    for (seed, geometry) in
        geometries().enumerate().filter(|(_, g)| g.shape.pixels() < 200 && g.in_planes == 1)
    {
        let weights: Vec<Vec<f64>> =
            (0..geometry.out_planes).map(|k| random(geometry.shape.weight_len(), k as u64)).collect();
        let blocks: Vec<&[f64]> = weights.iter().map(|w| &w[..]).collect();
        let stencil = Stencil::new(geometry, &blocks);
        let images: Vec<f64> = random(geometry.shape.input_len(), seed as u64);
        let expected = definition(&stencil, &images);
        for isa in Isa::available() {
            let error = error(&convolve(isa, &stencil, &images, Accuracy::Coarse), &expected);
            assert!(error < 1e-14, "{geometry:?} {isa:?}: {error:.1e}");
        }
    }
}

/// A kernel must not be confused by what an image of another geometry left in its memory.
#[test]
fn scratch_memory_can_be_shared_between_geometries() {
    let mut scratch = Scratch::default();
    for isa in Isa::available() {
        for (height, width) in [(9, 9), (6, 20), (9, 9), (20, 6)] {
            let shape = Shape { height, width, in_channels: 8, out_channels: 8, padding: Padding::Zero };
            let weights: Vec<f32> = random(shape.weight_len(), 5);
            let blocks = [&weights[..]];
            let stencil = Stencil::new(shape.single(), &blocks);
            let image: Vec<f32> = random(shape.input_len(), 6);
            let mut convolution = Convolution::new(isa, shape.single());
            convolution.pack(&stencil);
            let mut band = vec![0.0; convolution.band_len()];
            let mut out = vec![0.0; shape.output_len()];
            for accuracy in [Accuracy::Fine, Accuracy::Full] {
                convolution.bands(
                    &image,
                    (accuracy, Series::Alone),
                    &mut scratch,
                    &mut band,
                    |first, band| {
                        out[first * width * 8..][..band.len()].copy_from_slice(band);
                    },
                );
                assert!(
                    error(&out, &definition(&stencil, &image)) < 1e-5,
                    "{isa:?} {height} x {width} {accuracy:?}"
                );
            }
        }
    }
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// `<conv(x, w), q> = <x, conv^T(q, w)> = <w, gradient(x, q)>`: a convolution is linear in each.
#[test]
fn gradients_are_adjoint_to_the_convolution() {
    for (seed, geometry) in geometries().enumerate().filter(|(_, g)| g.in_planes * g.out_planes == 1) {
        let shape = geometry.shape;
        let batch = 3;
        let x: Vec<f32> = random(batch * shape.input_len(), seed as u64);
        let w: Vec<f32> = random(shape.weight_len(), 100 + seed as u64);
        let q: Vec<f32> = random(batch * shape.output_len(), 200 + seed as u64);
        for isa in Isa::available() {
            let (mut y, mut gx, mut gw, mut gb) =
                (vec![0.0; q.len()], vec![0.0; x.len()], vec![0.0; w.len()], vec![0.0; shape.out_channels]);
            forward(isa, &shape, batch, &x, &w, None, false, &mut y).unwrap();
            input_gradient(isa, &shape, batch, &q, &w, &mut gx).unwrap();
            weight_gradient(isa, &shape, batch, &x, &q, &mut gw, Some(&mut gb)).unwrap();
            let value = dot(&y, &q);
            let size = dot(&y, &y).sqrt() * dot(&q, &q).sqrt();
            assert!((dot(&x, &gx) - value).abs() < 1e-5 * size, "{shape:?} {isa:?} input");
            assert!((dot(&w, &gw) - value).abs() < 1e-5 * size, "{shape:?} {isa:?} weights");
            for (channel, &gb) in gb.iter().enumerate() {
                let sum: f64 =
                    q.iter().skip(channel).step_by(shape.out_channels).map(|&q| f64::from(q)).sum();
                assert!((f64::from(gb) - sum).abs() < 1e-4, "{shape:?} bias {channel}: {gb} {sum}");
            }
        }
    }
}

/// Each weight's gradient, against the convolution with that weight alone.
#[test]
fn weight_gradient_equals_the_definition() {
    for (height, width, in_channels, out_channels) in
        [(1, 1, 2, 3), (5, 7, 3, 17), (6, 35, 18, 5), (28, 28, 16, 16)]
    {
        for padding in [Padding::Zero, Padding::Circular] {
            let shape = Shape { height, width, in_channels, out_channels, padding };
            let batch = 5;
            let x: Vec<f32> = random(batch * shape.input_len(), 1);
            let q: Vec<f32> = random(batch * shape.output_len(), 2);
            let mut expected = Vec::new();
            for (output, input) in (0..out_channels).flat_map(|o| (0..in_channels).map(move |i| (o, i))) {
                for tap in 0..9 {
                    let mut sum = 0.0;
                    for image in 0..batch {
                        for (row, column) in (0..height).flat_map(|r| (0..width).map(move |c| (r, c))) {
                            let r = neighbour(row + tap / 3, height, padding);
                            let c = neighbour(column + tap % 3, width, padding);
                            let (Some(r), Some(c)) = (r, c) else { continue };
                            let x = x[((image * height + r) * width + c) * in_channels + input];
                            let q = q[((image * height + row) * width + column) * out_channels + output];
                            sum += f64::from(x) * f64::from(q);
                        }
                    }
                    expected.push(sum);
                }
            }
            for isa in Isa::available() {
                let mut gw = vec![0f32; shape.weight_len()];
                weight_gradient(isa, &shape, batch, &x, &q, &mut gw, None).unwrap();
                let error = error(&gw, &expected);
                assert!(error < 1e-5, "{shape:?} {isa:?}: {error:.1e}");
            }
        }
    }
}

#[test]
fn bias_and_relu() {
    let shape = Shape { height: 5, width: 6, in_channels: 3, out_channels: 20, padding: Padding::Zero };
    let (x, w, b): (Vec<f32>, Vec<f32>, Vec<f32>) =
        (random(2 * shape.input_len(), 1), random(shape.weight_len(), 2), random(20, 3));
    let isa = Isa::detect();
    let (mut plain, mut fused) = (vec![0.0; 2 * shape.output_len()], vec![0.0; 2 * shape.output_len()]);
    forward(isa, &shape, 2, &x, &w, None, false, &mut plain).unwrap();
    forward(isa, &shape, 2, &x, &w, Some(&b), true, &mut fused).unwrap();
    for (index, (&fused, &plain)) in fused.iter().zip(&plain).enumerate() {
        assert_eq!(fused, (plain + b[index % 20]).max(0.0));
    }
}

#[test]
fn lengths_are_checked() {
    let shape = Shape { height: 2, width: 2, in_channels: 1, out_channels: 1, padding: Padding::Zero };
    let isa = Isa::PORTABLE;
    let mut y = [0f32; 8];
    assert!(forward(isa, &shape, 2, &[0.0; 7], &[0.0; 9], None, false, &mut y).is_err());
    assert!(forward(isa, &shape, 2, &[0.0; 8], &[0.0; 8], None, false, &mut y).is_err());
    assert!(forward(isa, &shape, 2, &[0.0; 8], &[0.0; 9], Some(&[0.0; 2]), false, &mut y).is_err());
    assert!(input_gradient(isa, &shape, 2, &[0.0; 8], &[0.0; 9], &mut y[..7]).is_err());
    assert!(weight_gradient(isa, &shape, 2, &[0f32; 8], &[0.0; 8], &mut y, None).is_err());
}

/// Bits must depend neither on the number of threads nor, for what belongs to one sample, on the batch.
#[test]
fn bits_depend_on_the_sample_alone() {
    let shape = Shape { height: 9, width: 18, in_channels: 20, out_channels: 24, padding: Padding::Zero };
    let batch = 37;
    let x: Vec<f32> = random(batch * shape.input_len(), 1);
    let q: Vec<f32> = random(batch * shape.output_len(), 2);
    let w: Vec<f32> = random(shape.weight_len(), 3);
    let run = |isa: Isa, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (mut y, mut gx, mut gw) = (vec![0.0; q.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
            forward(isa, &shape, batch, &x, &w, None, true, &mut y).unwrap();
            input_gradient(isa, &shape, batch, &q, &w, &mut gx).unwrap();
            weight_gradient(isa, &shape, batch, &x, &q, &mut gw, None).unwrap();
            (y, gx, gw)
        })
    };
    for isa in Isa::available() {
        let (y, gx, gw) = run(isa, 1);
        for threads in [2, 3, 5] {
            assert!(
                (y.clone(), gx.clone(), gw.clone()) == run(isa, threads),
                "{isa:?} with {threads} threads"
            );
        }
        let mut alone = vec![0.0; shape.output_len()];
        let image = 29;
        forward(
            isa,
            &shape,
            1,
            &x[image * shape.input_len()..][..shape.input_len()],
            &w,
            None,
            true,
            &mut alone,
        )
        .unwrap();
        assert_eq!(alone, y[image * shape.output_len()..][..shape.output_len()], "{isa:?} alone");
    }
}
