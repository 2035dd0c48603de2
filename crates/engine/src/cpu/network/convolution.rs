//! 3x3 convolution between images with different numbers of channels (the injection, the explicit baseline):
//! the nine neighbours of each pixel are laid side by side, the rest is a matrix product.
//!
//! The convolution inside an equilibrium is another matter, and elsewhere: it is fused with the rest of the iteration.

use rayon::prelude::*;

use super::product::{Matrix, product};
use super::scratch::with_scratch;
use super::vector::{add_to_rows, sum_rows};
use crate::network::ConvShape;
use crate::{Padding, Real};

/// Numbers of one band of neighbourhoods: it stays in the second-level cache.
const BAND: usize = 1 << 16;
/// Images whose weight gradients one task adds up.
const IMAGES: usize = 8;

/// What follows from a shape.
#[derive(Clone, Copy)]
struct Geometry {
    shape: ConvShape,
    /// Numbers in a neighbourhood: `9 * inputs`, tap by tap.
    reach: usize,
    /// Image rows in a band.
    band: usize,
}

impl Geometry {
    fn new(shape: ConvShape) -> Self {
        let reach = 9 * shape.inputs;
        let band = (BAND / (shape.width * reach).max(1)).clamp(1, shape.height.max(1));
        Self { shape, reach, band }
    }

    fn image_in(&self) -> usize {
        self.shape.height * self.shape.width * self.shape.inputs
    }

    fn image_out(&self) -> usize {
        self.shape.height * self.shape.width * self.shape.outputs
    }

    /// The row ranges of the bands.
    fn bands(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (height, band) = (self.shape.height, self.band);
        (0..height).step_by(band).map(move |start| start..(start + band).min(height))
    }

    /// Calls `visit(neighbourhood offset, input offset)` for each pixel of a band and each tap; `None` is a zero.
    fn for_each_tap(self, rows: std::ops::Range<usize>, mut visit: impl FnMut(usize, Option<usize>)) {
        let ConvShape { height, width, inputs, padding, .. } = self.shape;
        let neighbour = |at: usize, tap: usize, side: usize| match padding {
            Padding::Circular => Some((at + side + tap - 1) % side),
            Padding::Zero => (at + tap).checked_sub(1).filter(|&i| i < side),
        };
        let mut offset = 0;
        for row in rows {
            for col in 0..width {
                for tap in 0..9 {
                    let source = neighbour(row, tap / 3, height).zip(neighbour(col, tap % 3, width));
                    visit(offset, source.map(|(r, c)| (r * width + c) * inputs));
                    offset += inputs;
                }
            }
        }
    }

    fn gather<T: Real>(self, rows: std::ops::Range<usize>, image: &[T], columns: &mut [T]) {
        let inputs = self.shape.inputs;
        self.for_each_tap(rows, |to, from| match from {
            Some(from) => columns[to..to + inputs].copy_from_slice(&image[from..from + inputs]),
            None => columns[to..to + inputs].fill(T::ZERO),
        });
    }

    fn scatter_add<T: Real>(self, rows: std::ops::Range<usize>, columns: &[T], image: &mut [T]) {
        let inputs = self.shape.inputs;
        self.for_each_tap(rows, |from, to| {
            if let Some(to) = to {
                for (x, &g) in image[to..to + inputs].iter_mut().zip(&columns[from..from + inputs]) {
                    *x += g;
                }
            }
        });
    }

    /// Calls `visit(index in [out][in][tap], index in [out][tap][in])` for each weight.
    fn for_each_weight(self, mut visit: impl FnMut(usize, usize)) {
        let inputs = self.shape.inputs;
        for out in 0..self.shape.outputs {
            for input in 0..inputs {
                for tap in 0..9 {
                    visit((out * inputs + input) * 9 + tap, (out * 9 + tap) * inputs + input);
                }
            }
        }
    }
}

pub(super) fn forward<T: Real>(shape: ConvShape, x: &[T], w: &[T], b: &[T], y: &mut [T]) {
    let g = Geometry::new(shape);
    let (width, outputs) = (shape.width, shape.outputs);
    with_scratch(outputs * g.reach, |packed: &mut [T]| {
        g.for_each_weight(|from, to| packed[to] = w[from]);
        let packed: &[T] = packed;
        let images = x.par_chunks(g.image_in()).zip(y.par_chunks_mut(g.image_out()));
        images.take(shape.batch).for_each(|(x, y)| {
            with_scratch(g.band * width * g.reach, |columns: &mut [T]| {
                for rows in g.bands() {
                    let pixels = rows.len() * width;
                    let out = &mut y[rows.start * width * outputs..][..pixels * outputs];
                    g.gather(rows, x, columns);
                    let weights = Matrix::new(packed, outputs, g.reach).transposed();
                    product(Matrix::new(columns, pixels, g.reach), weights, out, false);
                }
            });
        });
    });
    add_to_rows(outputs, &b[..outputs], &mut y[..shape.batch * g.image_out()]);
}

pub(super) fn backward<T: Real>(
    shape: ConvShape,
    x: &[T],
    w: &[T],
    gy: &[T],
    gx: Option<&mut [T]>,
    gw: &mut [T],
    gb: &mut [T],
) {
    let g = Geometry::new(shape);
    let gy = &gy[..shape.batch * g.image_out()];
    if let Some(gx) = gx {
        input_gradient(g, w, gy, &mut gx[..shape.batch * g.image_in()]);
    }
    weight_gradient(g, &x[..shape.batch * g.image_in()], gy, gw);
    sum_rows(shape.outputs, gy, &mut gb[..shape.outputs]);
}

fn input_gradient<T: Real>(g: Geometry, w: &[T], gy: &[T], gx: &mut [T]) {
    let (width, outputs) = (g.shape.width, g.shape.outputs);
    with_scratch(outputs * g.reach, |packed: &mut [T]| {
        g.for_each_weight(|from, to| packed[to] = w[from]);
        let packed: &[T] = packed;
        gx.par_chunks_mut(g.image_in()).zip(gy.par_chunks(g.image_out())).for_each(|(gx, gy)| {
            gx.fill(T::ZERO);
            with_scratch(g.band * width * g.reach, |columns: &mut [T]| {
                for rows in g.bands() {
                    let pixels = rows.len() * width;
                    let part = &gy[rows.start * width * outputs..][..pixels * outputs];
                    product(
                        Matrix::new(part, pixels, outputs),
                        Matrix::new(packed, outputs, g.reach),
                        columns,
                        false,
                    );
                    g.scatter_add(rows, columns, gx);
                }
            });
        });
    });
}

/// Groups of images are summed by themselves, then the groups in order: the same sum for any number of threads.
fn weight_gradient<T: Real>(g: Geometry, x: &[T], gy: &[T], gw: &mut [T]) {
    let (width, outputs) = (g.shape.width, g.shape.outputs);
    let len = outputs * g.reach;
    with_scratch(g.shape.batch.div_ceil(IMAGES) * len, |partial: &mut [T]| {
        let groups = x.par_chunks(IMAGES * g.image_in()).zip(gy.par_chunks(IMAGES * g.image_out()));
        partial.par_chunks_mut(len).zip(groups).for_each(|(partial, (x, gy))| {
            partial.fill(T::ZERO);
            with_scratch(g.band * width * g.reach, |columns: &mut [T]| {
                for (x, gy) in x.chunks(g.image_in()).zip(gy.chunks(g.image_out())) {
                    for rows in g.bands() {
                        let pixels = rows.len() * width;
                        let part = &gy[rows.start * width * outputs..][..pixels * outputs];
                        g.gather(rows, x, columns);
                        let factor = Matrix::new(part, pixels, outputs).transposed();
                        product(factor, Matrix::new(columns, pixels, g.reach), partial, true);
                    }
                }
            });
        });
        for group in partial.chunks(len) {
            g.for_each_weight(|to, from| gw[to] += group[from]);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    fn shapes() -> impl Iterator<Item = ConvShape> {
        let base = ConvShape { batch: 2, height: 4, width: 5, inputs: 2, outputs: 3, padding: Padding::Zero };
        let small =
            ConvShape { batch: 9, height: 1, width: 2, inputs: 1, outputs: 2, padding: Padding::Zero };
        // Several bands: 40 x 40 x 9 * 6 numbers.
        let banded =
            ConvShape { batch: 1, height: 40, width: 40, inputs: 6, outputs: 1, padding: Padding::Zero };
        [base, small, banded].into_iter().flat_map(|s| [s, ConvShape { padding: Padding::Circular, ..s }])
    }

    #[test]
    fn equals_the_definition() {
        for shape in shapes() {
            let ConvShape { batch, height, width, inputs, outputs, padding } = shape;
            let x = random(batch * height * width * inputs, 1);
            let (w, b) = (random(outputs * inputs * 9, 2), random(outputs, 3));
            let mut y = vec![0.0; batch * height * width * outputs];
            forward(shape, &x, &w, &b, &mut y);
            for image in 0..batch {
                for (row, col) in (0..height).flat_map(|r| (0..width).map(move |c| (r, c))) {
                    for out in 0..outputs {
                        let mut expected = b[out];
                        for (input, tap) in (0..inputs).flat_map(|i| (0..9).map(move |t| (i, t))) {
                            let (mut r, mut c) =
                                (row as isize + tap as isize / 3 - 1, col as isize + tap as isize % 3 - 1);
                            if padding == Padding::Circular {
                                (r, c) = (r.rem_euclid(height as isize), c.rem_euclid(width as isize));
                            }
                            if r >= 0 && c >= 0 && r < height as isize && c < width as isize {
                                let at =
                                    ((image * height + r as usize) * width + c as usize) * inputs + input;
                                expected += w[(out * inputs + input) * 9 + tap] * x[at];
                            }
                        }
                        let found = y[((image * height + row) * width + col) * outputs + out];
                        assert!((found - expected).abs() < 1e-12, "{shape:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn gradients_equal_finite_differences() {
        for shape in shapes().filter(|s| s.height < 40) {
            let ConvShape { batch, height, width, inputs, outputs, .. } = shape;
            let x = random(batch * height * width * inputs, 1);
            let (w, b) = (random(outputs * inputs * 9, 2), random(outputs, 3));
            let v = random(batch * height * width * outputs, 4);
            let objective = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
                let mut y = vec![0.0; v.len()];
                forward(shape, x, w, b, &mut y);
                y.iter().zip(&v).map(|(y, v)| y * v).sum()
            };
            let (mut gx, mut gw, mut gb) = (vec![7.0; x.len()], vec![0.0; w.len()], vec![0.0; b.len()]);
            backward(shape, &x, &w, &v, Some(&mut gx), &mut gw, &mut gb);
            assert_gradient(&x, &gx, |x| objective(x, &w, &b));
            assert_gradient(&w, &gw, |w| objective(&x, w, &b));
            assert_gradient(&b, &gb, |b| objective(&x, &w, b));
        }
    }
}
