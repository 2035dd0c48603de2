//! Average pooling between the blocks of a network; images stay height x width x channels (see [`NormPoolShape`]).

use super::vectorised::vectorised;
use crate::Real;
use crate::cpu::isa::Isa;
use crate::cpu::team::Team;
use crate::network::NormPoolShape;

/// Every window's mean, image by image.
pub(super) fn forward<T: Real>(team: &Team, isa: Isa, shape: NormPoolShape, x: &[T], y: &mut [T]) {
    let share = T::from_f64(1.0 / (shape.window * shape.window) as f64);
    let images = x.chunks_exact(shape.image_len()).zip(y.chunks_exact_mut(shape.pooled_len()));
    team.for_each(images, |(x, y)| {
        vectorised(isa, || {
            y.fill(T::ZERO);
            each_covered(shape, |pixel, cell| {
                for (y, &x) in y[cell..][..shape.channels].iter_mut().zip(&x[pixel..][..shape.channels]) {
                    *y += x;
                }
            });
            y.iter_mut().for_each(|y| *y *= share);
        });
    });
}

/// Each pixel's share of its window's gradient; pixels that no window covers get 0.
pub(super) fn backward<T: Real>(team: &Team, isa: Isa, shape: NormPoolShape, gy: &[T], gx: &mut [T]) {
    let share = T::from_f64(1.0 / (shape.window * shape.window) as f64);
    let images = gy.chunks_exact(shape.pooled_len()).zip(gx.chunks_exact_mut(shape.image_len()));
    team.for_each(images, |(gy, gx)| {
        vectorised(isa, || {
            gx.fill(T::ZERO);
            each_covered(shape, |pixel, cell| {
                for (gx, &gy) in gx[pixel..][..shape.channels].iter_mut().zip(&gy[cell..][..shape.channels]) {
                    *gx = gy * share;
                }
            });
        });
    });
}

/// The first channel of every pixel that a window covers, with that of the window's cell: windows grow row by row.
#[inline(always)]
fn each_covered(shape: NormPoolShape, mut visit: impl FnMut(usize, usize)) {
    let (rows, columns) = (shape.height / shape.window, shape.width / shape.window);
    for row in 0..rows * shape.window {
        for column in 0..columns * shape.window {
            let (pixel, cell) =
                (row * shape.width + column, row / shape.window * columns + column / shape.window);
            visit(pixel * shape.channels, cell * shape.channels);
        }
    }
}
