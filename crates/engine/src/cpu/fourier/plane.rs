//! The two-dimensional transform of real images whose channels are the lanes.
//!
//! Rows first: the transform of real rows has only `w/2 + 1` independent columns. An even width is done with a complex
//! transform of half the length (even pixels are the real parts, odd ones the imaginary parts: whole vectors, so the
//! packing costs nothing). Then each of these columns gets a complex transform.
//!
//! One row and one column are the units of work, so that the passes around them (activation before a row, product with
//! the resolvent after a column) are fused with them in the caller and find their data in L1.

use super::fft::{Complex, Fft, Strided, load, root};
use crate::cpu::simd::{Lanes, SimdReal};

/// Transforms of `height x width` images with `channels` channels (a multiple of every vector length).
pub(crate) struct Plane<T> {
    pub height: usize,
    pub width: usize,
    pub channels: usize,
    row: Fft<T>,
    column: Fft<T>,
    /// `exp(-2 pi i k / width)`, `k <= width / 4`: what joins the halves of an even row.
    twiddles: Vec<(T, T)>,
}

impl<T: SimdReal> Plane<T> {
    pub(crate) fn new(height: usize, width: usize, channels: usize) -> Self {
        let row = Fft::new(if width.is_multiple_of(2) { width / 2 } else { width });
        let twiddles = (0..=width / 4).map(|k| root(k, width)).collect();
        Self { height, width, channels, row, column: Fft::new(height), twiddles }
    }

    /// Columns of the half spectrum.
    pub(crate) fn columns(&self) -> usize {
        self.width / 2 + 1
    }

    /// Rows of a column of the half spectrum that are not conjugates of other rows of that column.
    pub(crate) fn independent_rows(&self, column: usize) -> usize {
        if column == 0 || 2 * column == self.width { self.height / 2 + 1 } else { self.height }
    }

    /// The forward transform multiplies by this number.
    pub(crate) fn forward_gain(&self) -> f64 {
        // An even row is not halved when its two halves are joined.
        if self.width.is_multiple_of(2) { 2.0 } else { 1.0 }
    }

    /// Forward then inverse transform multiply by this number.
    pub(crate) fn gain(&self) -> f64 {
        self.forward_gain() * (self.height * self.width) as f64
    }

    /// Numbers of scratch memory that the transforms need.
    pub(crate) fn scratch_len(&self, lanes: usize) -> usize {
        self.row.scratch_len(lanes).max(self.column.scratch_len(lanes)) + 4 * self.width * lanes
    }

    /// Transforms a row of pixels into `columns()` vectors of `2 channels` numbers (real parts, then imaginary parts),
    /// `stride` apart.
    ///
    /// # Safety
    /// `pixels` holds `width * channels` numbers, the spectrum `columns()` vectors, `scratch` `scratch_len(V::N)` numbers;
    /// none overlap.
    #[inline(always)]
    pub(crate) unsafe fn forward_row<V: Lanes<Elem = T>>(
        &self,
        pixels: *const T,
        spectrum: *mut T,
        stride: usize,
        scratch: *mut T,
    ) {
        let c = self.channels;
        // SAFETY: lane + V::N <= c since V::N divides c; all else as the caller says.
        unsafe {
            for lane in (0..c).step_by(V::N) {
                let (whole, rest) = self.whole::<V>(scratch);
                let pixels = pixels.add(lane).cast_mut();
                let out = Strided { re: spectrum.add(lane), im: spectrum.add(c + lane), stride };
                if self.width.is_multiple_of(2) {
                    let halves = Strided { re: pixels, im: pixels.add(c), stride: 2 * c };
                    self.row.run::<V>(halves, whole, rest);
                    self.unpack_half::<V>(whole, out);
                } else {
                    for i in 0..self.width {
                        Complex::<V> { re: load(pixels.add(i * c)), im: V::zero() }.store(whole, i);
                    }
                    self.row.run::<V>(whole, whole, rest);
                    for k in 0..self.columns() {
                        Complex::<V>::load(whole, k).store(out, k);
                    }
                }
            }
        }
    }

    /// The inverse of [`Self::forward_row`], up to the gain.
    ///
    /// # Safety
    /// As for [`Self::forward_row`].
    #[inline(always)]
    pub(crate) unsafe fn inverse_row<V: Lanes<Elem = T>>(
        &self,
        spectrum: *const T,
        stride: usize,
        pixels: *mut T,
        scratch: *mut T,
    ) {
        let c = self.channels;
        // SAFETY: lane + V::N <= c since V::N divides c; all else as the caller says.
        unsafe {
            for lane in (0..c).step_by(V::N) {
                let (whole, rest) = self.whole::<V>(scratch);
                let spectrum = spectrum.cast_mut().add(lane);
                let input = Strided { re: spectrum, im: spectrum.add(c), stride };
                let pixels = pixels.add(lane);
                if self.width.is_multiple_of(2) {
                    self.pack_half::<V>(input, whole);
                    let halves = Strided { re: pixels, im: pixels.add(c), stride: 2 * c };
                    self.row.run::<V>(whole.swapped(), halves.swapped(), rest);
                } else {
                    Complex::<V>::load(input, 0).store(whole, 0);
                    for k in 1..self.columns() {
                        let x = Complex::<V>::load(input, k);
                        x.store(whole, k);
                        x.conj().store(whole, self.width - k);
                    }
                    self.row.run::<V>(whole.swapped(), whole.swapped(), rest);
                    for i in 0..self.width {
                        super::fft::store(Complex::<V>::load(whole, i).re, pixels.add(i * c));
                    }
                }
            }
        }
    }

    /// Transforms a column (`height` vectors of `2 channels` numbers) in place.
    ///
    /// # Safety
    /// `column` holds `2 height channels` numbers, `scratch` `scratch_len(V::N)`; they do not overlap.
    #[inline(always)]
    pub(crate) unsafe fn column<V: Lanes<Elem = T>>(&self, column: *mut T, inverse: bool, scratch: *mut T) {
        let c = self.channels;
        for lane in (0..c).step_by(V::N) {
            // SAFETY: lane + V::N <= c since V::N divides c; all else as the caller says.
            unsafe {
                let data = Strided { re: column.add(lane), im: column.add(c + lane), stride: 2 * c };
                let data = if inverse { data.swapped() } else { data };
                self.column.run::<V>(data, data, scratch);
            }
        }
    }

    /// A sequence of `width` complex vectors in the scratch memory, and what is left of it.
    ///
    /// # Safety
    /// `scratch` holds `scratch_len(V::N)` numbers.
    #[inline(always)]
    unsafe fn whole<V: Lanes<Elem = T>>(&self, scratch: *mut T) -> (Strided<T>, *mut T) {
        // SAFETY: the scratch memory holds 4 width V::N numbers more than the transforms need.
        unsafe {
            (
                Strided { re: scratch, im: scratch.add(V::N), stride: 2 * V::N },
                scratch.add(2 * self.width * V::N),
            )
        }
    }

    /// From the transform `Z` of (even pixels + i odd pixels) to twice that of the row.
    ///
    /// # Safety
    /// `z` must be valid for reading `width / 2` vectors, `out` for writing one more; they do not overlap.
    #[inline(always)]
    unsafe fn unpack_half<V: Lanes<Elem = T>>(&self, z: Strided<T>, out: Strided<T>) {
        let n = self.width / 2;
        // SAFETY: indices up to n - 1 in z and n in out.
        unsafe {
            let z0 = Complex::<V>::load(z, 0);
            let (sum, difference) = (z0.re + z0.im, z0.re - z0.im);
            Complex { re: sum + sum, im: V::zero() }.store(out, 0);
            Complex { re: difference + difference, im: V::zero() }.store(out, n);
            for k in 1..=n / 2 {
                let (a, b) = (Complex::<V>::load(z, k), Complex::<V>::load(z, n - k).conj());
                let even = a + b;
                let odd = (a - b) * Complex::splat(self.twiddles[k]);
                even.sub_i(odd).store(out, k);
                even.add_i(odd).conj().store(out, n - k);
            }
        }
    }

    /// The way back: from the half spectrum to twice the transform of (even pixels + i odd pixels).
    ///
    /// # Safety
    /// `z` must be valid for writing `width / 2` vectors, `spectrum` for reading one more; they do not overlap.
    #[inline(always)]
    unsafe fn pack_half<V: Lanes<Elem = T>>(&self, spectrum: Strided<T>, z: Strided<T>) {
        let n = self.width / 2;
        // SAFETY: indices up to n in the spectrum and n - 1 in z.
        unsafe {
            let (first, last) = (Complex::<V>::load(spectrum, 0), Complex::<V>::load(spectrum, n));
            Complex { re: first.re + last.re, im: first.re - last.re }.store(z, 0);
            for k in 1..=n / 2 {
                let (a, b) = (Complex::<V>::load(spectrum, k), Complex::<V>::load(spectrum, n - k).conj());
                let even = a + b;
                let odd = (a - b) * Complex::splat(self.twiddles[k]).conj();
                even.add_i(odd).store(z, k);
                even.sub_i(odd).conj().store(z, n - k);
            }
        }
    }
}
