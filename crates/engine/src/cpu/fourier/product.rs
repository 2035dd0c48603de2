//! The complex matrix of one frequency times the spectra of several images.

use super::fft::{load, store};
use crate::cpu::simd::Lanes;

/// Most spectra that are multiplied together, and whose results are kept until they are complete.
pub(crate) const RESULTS: usize = 4;

/// Spectra that are multiplied by the same matrix: `images` vectors of `2 channels` numbers, `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Spectra<T> {
    pub start: *mut T,
    pub stride: usize,
    pub images: usize,
}

/// `x <- M x` in place for all spectra.
///
/// `matrix` holds the columns of `M`, `units` of them, as `2 channels` numbers each (real parts, then imaginary parts);
/// entries beyond `units` in a spectrum are not read. The sum over the columns is taken in their order, one by one,
/// so that a result does not depend on how many images there are.
///
/// # Safety
/// The matrix holds `2 units channels` numbers, each spectrum and `result` four times `2 channels`, `units <= channels`, and
/// `V::N` divides `channels`. `result` overlaps with nothing.
#[inline(always)]
pub(crate) unsafe fn multiply<V: Lanes>(
    matrix: *const V::Elem,
    units: usize,
    channels: usize,
    spectra: Spectra<V::Elem>,
    result: *mut V::Elem,
) {
    let mut image = 0;
    while image < spectra.images {
        let left = spectra.images - image;
        // SAFETY: the images `image..image + count` exist.
        unsafe {
            let x = spectra.start.add(image * spectra.stride);
            let tile = Tile::<V> { matrix, units, channels, x, stride: spectra.stride, result };
            image += if V::N == 16 {
                match left {
                    1 => tile.rows::<1>(),
                    2 => tile.rows::<2>(),
                    3 => tile.rows::<3>(),
                    _ => tile.rows::<RESULTS>(),
                }
            } else {
                // Sixteen registers hold fewer accumulators.
                if left == 1 { tile.rows::<1>() } else { tile.rows::<2>() }
            };
        }
    }
}

/// `B` spectra and the matrix they are multiplied by.
struct Tile<V: Lanes> {
    matrix: *const V::Elem,
    units: usize,
    channels: usize,
    x: *mut V::Elem,
    stride: usize,
    result: *mut V::Elem,
}

impl<V: Lanes> Tile<V> {
    /// All rows of the matrix, as many vectors at a time as the registers hold accumulators for. Returns `B`.
    ///
    /// # Safety
    /// As for [`multiply`], with `B` spectra from `x` on.
    #[inline(always)]
    unsafe fn rows<const B: usize>(&self) -> usize {
        let vectors = self.channels / V::N;
        let mut first = 0;
        // SAFETY: first + (1, 2 or 3) vectors are within the channels: channels come in groups of 16, so that shorter
        // vectors come in pairs.
        unsafe {
            while first < vectors {
                let row = first * V::N;
                first += if V::N == 16 {
                    match vectors - first {
                        1 => self.accumulate::<B, 1>(row),
                        2 => self.accumulate::<B, 2>(row),
                        _ => self.accumulate::<B, 3>(row),
                    }
                } else {
                    self.accumulate::<B, 2>(row)
                };
            }
            for b in 0..B {
                for lane in (0..2 * self.channels).step_by(V::N) {
                    let y: V = load(self.result.add(2 * b * self.channels + lane));
                    store(y, self.x.add(b * self.stride + lane));
                }
            }
        }
        B
    }

    /// `R` vectors of the results, from number `row` on. Returns `R`.
    ///
    /// # Safety
    /// As for [`Self::rows`], and `row + R * V::N <= channels`.
    #[inline(always)]
    unsafe fn accumulate<const B: usize, const R: usize>(&self, row: usize) -> usize {
        let c = self.channels;
        let mut re = [[V::zero(); R]; B];
        let mut im = [[V::zero(); R]; B];
        // SAFETY: row + R V::N <= c; j < units <= c.
        unsafe {
            for j in 0..self.units {
                let column = self.matrix.add(2 * c * j + row);
                let mut a = [V::zero(); R];
                let mut b = [V::zero(); R];
                for r in 0..R {
                    a[r] = load(column.add(r * V::N));
                    b[r] = load(column.add(c + r * V::N));
                }
                for k in 0..B {
                    let x = V::splat(*self.x.add(k * self.stride + j));
                    let y = V::splat(*self.x.add(k * self.stride + c + j));
                    for r in 0..R {
                        re[k][r] = a[r].fma(x, re[k][r]);
                        im[k][r] = a[r].fma(y, im[k][r]);
                    }
                    let minus = -y;
                    for r in 0..R {
                        re[k][r] = b[r].fma(minus, re[k][r]);
                        im[k][r] = b[r].fma(x, im[k][r]);
                    }
                }
            }
            for k in 0..B {
                for r in 0..R {
                    let to = self.result.add(2 * k * c + row + r * V::N);
                    store(re[k][r], to);
                    store(im[k][r], to.add(c));
                }
            }
        }
        R
    }
}
