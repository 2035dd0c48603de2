//! Batch norm followed by average pooling, in one pass over the images (see [`NormPoolShape`]).

use super::scratch::with_scratch;
use super::vectorised::vectorised;
use crate::Real;
use crate::cpu::isa::Isa;
use crate::cpu::team::Team;
use crate::network::{NORM_EPSILON, NORM_MOMENTUM, NormPoolShape};

/// Pixels whose statistics one task takes together.
const PIXELS: usize = 256;
/// Samples of which one task normalises what was pooled.
const SAMPLES: usize = 64;
/// Rows whose sums are kept in the number type itself before they go to `f64`.
const RUN: usize = 32;

/// What batch norm reads and writes, as slices.
pub(super) struct NormSlices<'a, T> {
    pub scale: &'a [T],
    pub offset: &'a [T],
    pub running_mean: &'a mut [T],
    pub running_variance: &'a mut [T],
    pub batch_mean: &'a mut [T],
    pub batch_inverse_deviation: &'a mut [T],
    pub normalised: &'a mut [T],
}

/// Images that one task handles.
fn images_per_task(shape: NormPoolShape) -> usize {
    (PIXELS / (shape.height * shape.width)).max(1)
}

pub(super) fn train<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    x: &[T],
    norm: NormSlices<T>,
    y: &mut [T],
) {
    let channels = shape.channels;
    let each = images_per_task(shape);
    let (image, pooled) = (shape.image_len(), shape.pooled_len());
    // Three numbers per channel and task: count, mean, sum of squared deviations.
    with_scratch(shape.batch.div_ceil(each) * 3 * channels, |moments: &mut [f64]| {
        let tasks = x.chunks(each * image).zip(norm.normalised.chunks_mut(each * pooled));
        team.for_each(moments.chunks_mut(3 * channels).zip(tasks), |(moments, (x, y))| {
            vectorised(isa, || moments_of(channels, x, moments));
            for (x, y) in x.chunks(image).zip(y.chunks_mut(pooled)) {
                vectorised(isa, || pool(shape, x, y));
            }
        });
        for c in 0..channels {
            let (count, mean, squares) =
                merge(moments.chunks(3 * channels).map(|m| (m[c], m[channels + c], m[2 * channels + c])));
            let variance = squares / count;
            norm.batch_mean[c] = T::from_f64(mean);
            norm.batch_inverse_deviation[c] = T::from_f64(1.0 / (variance + NORM_EPSILON).sqrt());
            let towards = |old: &mut T, new: f64| {
                *old = T::from_f64((1.0 - NORM_MOMENTUM) * old.to_f64() + NORM_MOMENTUM * new);
            };
            towards(&mut norm.running_mean[c], mean);
            towards(&mut norm.running_variance[c], squares / (count - 1.0));
        }
    });
    let constants = [&*norm.batch_mean, norm.batch_inverse_deviation, norm.scale, norm.offset];
    normalise(team, isa, shape, constants, norm.normalised, y);
}

/// With statistics that are given (mean, inverse deviation, scale and offset per channel): `normalised` and `y`.
pub(super) fn pool_and_normalise<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    x: &[T],
    constants: [&[T]; 4],
    normalised: &mut [T],
    y: &mut [T],
) {
    let each = images_per_task(shape);
    let (image, pooled) = (shape.image_len(), shape.pooled_len());
    team.for_each(x.chunks(each * image).zip(normalised.chunks_mut(each * pooled)), |(x, y)| {
        for (x, y) in x.chunks(image).zip(y.chunks_mut(pooled)) {
            vectorised(isa, || pool(shape, x, y));
        }
    });
    normalise(team, isa, shape, constants, normalised, y);
}

/// Pooled values, which become normalised ones, and these with scale and offset.
fn normalise<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    constants: [&[T]; 4],
    normalised: &mut [T],
    y: &mut [T],
) {
    let pooled = shape.pooled_len();
    with_spread(shape, constants, |[mean, inverse, scale, offset]| {
        let samples = normalised.chunks_mut(SAMPLES * pooled).zip(y.chunks_mut(SAMPLES * pooled));
        team.for_each(samples, |(normalised, y)| {
            vectorised(isa, || {
                for (xhat, y) in normalised.chunks_exact_mut(pooled).zip(y.chunks_exact_mut(pooled)) {
                    let constants = mean.iter().zip(inverse).zip(scale.iter().zip(offset));
                    let numbers = xhat.iter_mut().zip(y);
                    for ((xhat, y), ((&mean, &inverse), (&scale, &offset))) in numbers.zip(constants) {
                        *xhat = (*xhat - mean) * inverse;
                        *y = *xhat * scale + offset;
                    }
                }
            });
        });
    });
}

/// The sums of each channel, then those of its squares, over all pixels.
pub(super) fn sums<T: Real>(team: &Team, isa: Isa, shape: NormPoolShape, x: &[T], sums: &mut [f64]) {
    let (channels, each) = (shape.channels, images_per_task(shape) * shape.image_len());
    with_scratch(x.len().div_ceil(each) * 2 * channels, |partial: &mut [f64]| {
        team.for_each(partial.chunks_mut(2 * channels).zip(x.chunks(each)), |(sums, x)| {
            sums.fill(0.0);
            let (plain, squares) = sums.split_at_mut(channels);
            vectorised(isa, || {
                for pixel in x.chunks_exact(channels) {
                    for ((plain, square), x) in plain.iter_mut().zip(&mut *squares).zip(pixel) {
                        let x = x.to_f64();
                        *plain += x;
                        *square += x * x;
                    }
                }
            });
        });
        sums.fill(0.0);
        for partial in partial.chunks_exact(2 * channels) {
            sums.iter_mut().zip(partial).for_each(|(sum, part)| *sum += part);
        }
    });
}

/// Hands numbers per channel to `work` as numbers per entry of a pooled image: loops over those become vectors, however
/// few cells a channel has.
fn with_spread<T: Real>(shape: NormPoolShape, of_channels: [&[T]; 4], work: impl FnOnce([&[T]; 4])) {
    let pooled = shape.pooled_len();
    let cells = pooled / shape.channels;
    with_scratch(4 * pooled, |spread: &mut [T]| {
        for (spread, numbers) in spread.chunks_exact_mut(pooled).zip(of_channels) {
            for (cells, &x) in spread.chunks_exact_mut(cells).zip(numbers) {
                cells.fill(x);
            }
        }
        work(std::array::from_fn(|k| &spread[k * pooled..(k + 1) * pooled]));
    });
}

pub(super) fn eval<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    x: &[T],
    (scale, offset, mean, variance): (&[T], &[T], &[T], &[T]),
    y: &mut [T],
) {
    let (image, pooled) = (shape.image_len(), shape.pooled_len());
    let each = images_per_task(shape).min(SAMPLES);
    with_scratch(shape.channels, |inverse: &mut [T]| {
        for (inverse, v) in inverse.iter_mut().zip(variance) {
            *inverse = T::from_f64(1.0 / (v.to_f64() + NORM_EPSILON).sqrt());
        }
        let constants = [mean, inverse, scale, offset];
        with_spread(shape, constants, |[mean, inverse, scale, offset]| {
            team.for_each(x.chunks(each * image).zip(y.chunks_mut(each * pooled)), |(x, y)| {
                vectorised(isa, || {
                    for (x, y) in x.chunks_exact(image).zip(y.chunks_exact_mut(pooled)) {
                        pool(shape, x, y);
                        let constants = mean.iter().zip(inverse).zip(scale.iter().zip(offset));
                        for (y, ((&mean, &inverse), (&scale, &offset))) in y.iter_mut().zip(constants) {
                            *y = (*y - mean) * inverse * scale + offset;
                        }
                    }
                });
            });
        });
    });
}

/// Counts, means and sums of squared deviations of the channels of a few pixels.
#[inline(always)]
fn moments_of<T: Real>(channels: usize, x: &[T], moments: &mut [f64]) {
    let (counts, rest) = moments.split_at_mut(channels);
    let (means, squares) = rest.split_at_mut(channels);
    let count = (x.len() / channels) as f64;
    counts.fill(count);
    with_scratch(2 * channels, |buffer: &mut [T]| {
        let (sums, centre) = buffer.split_at_mut(channels);
        means.fill(0.0);
        for rows in x.chunks(RUN * channels) {
            sums.fill(T::ZERO);
            for row in rows.chunks_exact(channels) {
                for (sum, &x) in sums.iter_mut().zip(row) {
                    *sum += x;
                }
            }
            for (mean, sum) in means.iter_mut().zip(sums.iter()) {
                *mean += sum.to_f64();
            }
        }
        for (mean, centre) in means.iter_mut().zip(centre.iter_mut()) {
            *mean /= count;
            *centre = T::from_f64(*mean);
        }
        squares.fill(0.0);
        for rows in x.chunks(RUN * channels) {
            sums.fill(T::ZERO);
            for row in rows.chunks_exact(channels) {
                for ((sum, &x), &centre) in sums.iter_mut().zip(row).zip(centre.iter()) {
                    let e = x - centre;
                    *sum += e * e;
                }
            }
            for (square, sum) in squares.iter_mut().zip(sums.iter()) {
                *square += sum.to_f64();
            }
        }
    });
}

/// Moments of a union from the moments of its parts (Chan, Golub and LeVeque).
fn merge(parts: impl Iterator<Item = (f64, f64, f64)>) -> (f64, f64, f64) {
    parts.fold((0.0, 0.0, 0.0), |(n, mean, squares), (count, part_mean, part_squares)| {
        let total = n + count;
        let gap = part_mean - mean;
        (total, mean + gap * count / total, squares + part_squares + gap * gap * n * count / total)
    })
}

/// Means over the windows of one image, channel after channel.
#[inline(always)]
fn pool<T: Real>(shape: NormPoolShape, x: &[T], y: &mut [T]) {
    let NormPoolShape { width, channels, window, .. } = shape;
    let (rows, cols) = (shape.height / window, width / window);
    if rows * cols == 1 && window == 1 {
        return y.copy_from_slice(x);
    }
    let weight = T::from_f64(1.0 / (window * window) as f64);
    with_scratch(channels, |sums: &mut [T]| {
        for cell in 0..rows * cols {
            sums.fill(T::ZERO);
            for row in 0..window {
                let start = ((cell / cols * window + row) * width + cell % cols * window) * channels;
                for pixel in x[start..start + window * channels].chunks_exact(channels) {
                    for (sum, &x) in sums.iter_mut().zip(pixel) {
                        *sum += x;
                    }
                }
            }
            for (c, &sum) in sums.iter().enumerate() {
                y[c * rows * cols + cell] = sum * weight;
            }
        }
    });
}

/// `gx` from `gy`; adds to `gscale` and `goffset`.
///
/// With `xhat = (x - mean) inverse`, `n` pixels in all and `g` the gradient at a pixel (its window's, divided by the
/// window's area): `gx = scale inverse (g - (sum g + xhat sum(g xhat)) / n)`. Both sums run over windows, because
/// `sum(g xhat)` over a window is its gradient times its mean of `xhat`: `normalised`.
#[allow(clippy::too_many_arguments)] // what the way forward had, and three gradients
pub(super) fn backward<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    x: &[T],
    norm: Statistics<T>,
    normalised: &[T],
    gy: &[T],
    gx: &mut [T],
    (gscale, goffset): (&mut [T], &mut [T]),
) {
    with_scratch(2 * shape.channels, |sums: &mut [f64]| {
        gradient_sums(team, isa, shape, normalised, gy, sums);
        for (c, sums) in sums.chunks_exact(2).enumerate() {
            goffset[c] += T::from_f64(sums[0]);
            gscale[c] += T::from_f64(sums[1]);
        }
        input_gradient(team, isa, shape, shape.batch, x, norm, gy, gx, sums);
    });
}

/// `sum g` and `sum(g xhat)` of each channel.
pub(super) fn gradient_sums<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    normalised: &[T],
    gy: &[T],
    sums: &mut [f64],
) {
    let (channels, pooled) = (shape.channels, shape.pooled_len());
    let cells = pooled / channels;
    let tasks = shape.batch.div_ceil(SAMPLES);
    // Sums over the samples of a task, one pair per entry of a pooled image, then over tasks and cells, in their order.
    with_scratch(tasks * 2 * pooled, |partial: &mut [f64]| {
        let samples = gy.chunks(SAMPLES * pooled).zip(normalised.chunks(SAMPLES * pooled));
        team.for_each(partial.chunks_mut(2 * pooled).zip(samples), |(sums, (gy, xhat))| {
            sums.fill(0.0);
            let (plain, weighted) = sums.split_at_mut(pooled);
            vectorised(isa, || {
                for (gy, xhat) in gy.chunks_exact(pooled).zip(xhat.chunks_exact(pooled)) {
                    let terms = gy.iter().zip(xhat);
                    for ((plain, weighted), (&g, &xhat)) in plain.iter_mut().zip(&mut *weighted).zip(terms) {
                        *plain += g.to_f64();
                        *weighted += (g * xhat).to_f64();
                    }
                }
            });
        });
        sums.fill(0.0);
        for partial in partial.chunks_exact(2 * pooled) {
            let (plain, weighted) = partial.split_at(pooled);
            for (c, sums) in sums.chunks_exact_mut(2).enumerate() {
                sums[0] += plain[c * cells..(c + 1) * cells].iter().sum::<f64>();
                sums[1] += weighted[c * cells..(c + 1) * cells].iter().sum::<f64>();
            }
        }
    });
}

/// What the way back knows of each channel.
#[derive(Clone, Copy)]
pub(super) struct Statistics<'a, T> {
    pub scale: &'a [T],
    pub mean: &'a [T],
    pub inverse: &'a [T],
}

/// `gx = slope_c g - level_c - tilt_c x`, the formula of [`backward`] with its constants per channel gathered; the sums are over a
/// batch of `of` images.
#[allow(clippy::too_many_arguments)] // the sides of a pull back
pub(super) fn input_gradient<T: Real>(
    team: &Team,
    isa: Isa,
    shape: NormPoolShape,
    of: usize,
    x: &[T],
    norm: Statistics<T>,
    gy: &[T],
    gx: &mut [T],
    sums: &[f64],
) {
    let count = (of * shape.height * shape.width) as f64;
    let NormPoolShape { width, channels, window, .. } = shape;
    let (image, pooled) = (shape.image_len(), shape.pooled_len());
    let (rows, cols) = (shape.height / window, width / window);
    let cells = rows * cols;
    with_scratch(3 * channels, |constants: &mut [T]| {
        let (slope, rest) = constants.split_at_mut(channels);
        let (level, tilt) = rest.split_at_mut(channels);
        for c in 0..channels {
            let inverse = norm.inverse[c].to_f64();
            let gain = norm.scale[c].to_f64() * inverse;
            let lean = gain * inverse * sums[2 * c + 1] / count;
            slope[c] = T::from_f64(gain / (window * window) as f64);
            tilt[c] = T::from_f64(lean);
            level[c] = T::from_f64(gain * sums[2 * c] / count - lean * norm.mean[c].to_f64());
        }
        let (slope, level, tilt): (&[T], &[T], &[T]) = (slope, level, tilt);
        let each = images_per_task(shape).min(SAMPLES);
        let tasks = x.chunks(each * image).zip(gy.chunks(each * pooled));
        team.for_each(gx.chunks_mut(each * image).zip(tasks), |(gx, (x, gy))| {
            // One row of constants per window, and one for the pixels that no window covers.
            with_scratch((cells + 1) * channels, |table: &mut [T]| {
                let images = x.chunks(image).zip(gy.chunks(pooled));
                for (gx, (x, gy)) in gx.chunks_mut(image).zip(images) {
                    if cells == 1 && image == channels {
                        // Vectors: no table.
                        vectorised(isa, || {
                            let constants = slope.iter().zip(level).zip(tilt);
                            let values = gx.iter_mut().zip(x.iter().zip(gy));
                            for ((gx, (&x, &gy)), ((&slope, &level), &tilt)) in values.zip(constants) {
                                *gx = slope * gy - level - tilt * x;
                            }
                        });
                        continue;
                    }
                    for (c, (&slope, &level)) in slope.iter().zip(level).enumerate() {
                        for cell in 0..cells {
                            table[cell * channels + c] = slope * gy[c * cells + cell] - level;
                        }
                        table[cells * channels + c] = -level;
                    }
                    vectorised(isa, || {
                        let pixels = x.chunks_exact(channels).zip(gx.chunks_exact_mut(channels));
                        for (at, (x, gx)) in pixels.enumerate() {
                            let (row, col) = (at / width / window, at % width / window);
                            let cell = if row < rows && col < cols { row * cols + col } else { cells };
                            let constants = &table[cell * channels..(cell + 1) * channels];
                            for (((gx, &x), &constant), &tilt) in
                                gx.iter_mut().zip(x).zip(constants).zip(tilt)
                            {
                                *gx = constant - tilt * x;
                            }
                        }
                    });
                }
            });
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    struct Norm {
        scale: Vec<f64>,
        offset: Vec<f64>,
        arrays: [Vec<f64>; 4],
        normalised: Vec<f64>,
    }

    impl Norm {
        fn new(shape: NormPoolShape, scale: Vec<f64>, offset: Vec<f64>) -> Self {
            let channels = shape.channels;
            let arrays = [vec![0.0; channels], vec![1.0; channels], vec![0.0; channels], vec![0.0; channels]];
            Self { scale, offset, arrays, normalised: vec![0.0; shape.batch * shape.pooled_len()] }
        }

        fn train(&mut self, shape: NormPoolShape, x: &[f64]) -> Vec<f64> {
            let mut y = vec![0.0; shape.batch * shape.pooled_len()];
            let [running_mean, running_variance, batch_mean, batch_inverse_deviation] = &mut self.arrays;
            let slices = NormSlices {
                scale: &self.scale,
                offset: &self.offset,
                running_mean,
                running_variance,
                batch_mean,
                batch_inverse_deviation,
                normalised: &mut self.normalised,
            };
            train(&Team::new(1).unwrap(), Isa::detect(), shape, x, slices, &mut y);
            y
        }
    }

    #[test]
    fn by_hand() {
        // Two channels over (1, 3) and (2, 10): means 2 and 6, variances 1 and 16, unbiased 2 and 32.
        let shape = NormPoolShape::vectors(2, 2);
        let mut norm = Norm::new(shape, vec![1.0, 2.0], vec![0.0, 0.5]);
        let y = norm.train(shape, &[1.0, 2.0, 3.0, 10.0]);
        let (a, b) = (1.0 / (1.0f64 + 1e-5).sqrt(), 4.0 / (16.0f64 + 1e-5).sqrt());
        for (y, expected) in y.iter().zip([-a, 0.5 - 2.0 * b, a, 0.5 + 2.0 * b]) {
            assert!((y - expected).abs() < 1e-14);
        }
        let close = |found: &[f64], expected: [f64; 2]| {
            found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-14)
        };
        assert!(close(&norm.arrays[0], [0.2, 0.6]) && close(&norm.arrays[1], [1.1, 4.1]));
        let mut evaluated = vec![0.0; 2];
        eval(
            &Team::new(0).unwrap(),
            Isa::detect(),
            NormPoolShape::vectors(1, 2),
            &[0.2, 4.6],
            (&[1.0, 1.0], &[0.0, 0.0], &norm.arrays[0], &norm.arrays[1]),
            &mut evaluated,
        );
        assert!(evaluated[0].abs() < 1e-15 && (evaluated[1] - 4.0 / (4.1f64 + 1e-5).sqrt()).abs() < 1e-14);
    }

    #[test]
    fn pools_the_normalised_image_in_channel_major_order() {
        // 5x4 pixels, windows of 2: two rows and two columns of windows, the last row of pixels in none.
        let shape = NormPoolShape { batch: 3, height: 5, width: 4, channels: 2, window: 2 };
        let x = random(3 * 40, 5);
        let mut norm = Norm::new(shape, vec![1.0; 2], vec![0.0; 2]);
        let y = norm.train(shape, &x);
        for channel in 0..2 {
            let values: Vec<f64> = x.iter().skip(channel).step_by(2).copied().collect();
            let mean = values.iter().sum::<f64>() / 60.0;
            let variance = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 60.0;
            let window = |image: usize, row: usize, col: usize| {
                let at = |r: usize, c: usize| x[((image * 5 + 2 * row + r) * 4 + 2 * col + c) * 2 + channel];
                ((at(0, 0) + at(0, 1) + at(1, 0) + at(1, 1)) / 4.0 - mean) / (variance + 1e-5).sqrt()
            };
            for image in 0..3 {
                for cell in 0..4 {
                    let expected = window(image, cell / 2, cell % 2);
                    assert!((y[image * 8 + channel * 4 + cell] - expected).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn gradients_equal_finite_differences() {
        for shape in [
            NormPoolShape::vectors(7, 3),
            NormPoolShape { batch: 3, height: 5, width: 4, channels: 2, window: 2 },
            NormPoolShape { batch: 400, height: 1, width: 2, channels: 1, window: 1 },
        ] {
            let (channels, len) = (shape.channels, shape.batch * shape.pooled_len());
            let (x, v) = (random(shape.batch * shape.image_len(), 1), random(len, 2));
            let (scale, offset) = (random(channels, 3), random(channels, 4));
            let objective = |x: &[f64], scale: &[f64], offset: &[f64]| -> f64 {
                let y = Norm::new(shape, scale.to_vec(), offset.to_vec()).train(shape, x);
                y.iter().zip(&v).map(|(y, v)| y * v).sum()
            };
            let mut norm = Norm::new(shape, scale.clone(), offset.clone());
            norm.train(shape, &x);
            let (mut gx, mut gscale, mut goffset) =
                (vec![0.0; x.len()], vec![0.0; channels], vec![0.0; channels]);
            let statistics = Statistics { scale: &scale, mean: &norm.arrays[2], inverse: &norm.arrays[3] };
            backward(
                &Team::new(1).unwrap(),
                Isa::detect(),
                shape,
                &x,
                statistics,
                &norm.normalised,
                &v,
                &mut gx,
                (&mut gscale, &mut goffset),
            );
            assert_gradient(&x, &gx, |x| objective(x, &scale, &offset));
            assert_gradient(&scale, &gscale, |scale| objective(&x, scale, &offset));
            assert_gradient(&offset, &goffset, |offset| objective(&x, &scale, offset));
        }
    }
}
