//! The weight gradient of a circular convolution.
//!
//! With `G(f) = sum over images of q^(f) z^(f)^*`, the gradient of tap `d` is the mean over all frequencies of
//! `Re(G(f) exp(-i f d))`. Few taps are wanted of many frequencies, so `G` is never kept: each is summed up into the taps of
//! its column of the spectrum while it is in registers.

use super::pixels::Pixels;
use super::sweep::{ForwardRow, image_stride};
use super::symbol::Kernel;
use super::table::Table;
use crate::cpu::buffer::Buffer;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal};

/// Output channels whose products are in registers together.
const TILE: usize = 4;

/// Memory for the gradients of at most `block` images.
pub(crate) struct Gradient<T: SimdReal> {
    block: usize,
    /// The spectra of the states and of their cotangents.
    spectra: [Buffer<T>; 2],
    row: Buffer<T>,
    work: Buffer<T>,
    /// For each row of the kernel, the sum over a column of the spectrum: `units` rows of real parts, then imaginary parts.
    sums: Buffer<T>,
    /// Cosine and sine of the phase of each row of the kernel, row of the spectrum by row.
    phases: Vec<(T, T)>,
}

impl<T: SimdReal> Gradient<T> {
    pub(crate) fn new(table: &Table<T>, kernel: &Kernel, block: usize) -> Self {
        let plane = &table.plane;
        let spectrum = plane.columns() * block * image_stride(table);
        let rows = (0..plane.height).flat_map(|row| (0..kernel.side).map(move |tap| (row, tap)));
        let phases = rows.map(|(row, tap)| {
            let (sin, cos) = kernel.phase(tap, row, plane.height);
            (T::from_f64(cos), T::from_f64(sin))
        });
        Self {
            block,
            spectra: [Buffer::zeros(spectrum), Buffer::zeros(spectrum)],
            row: Buffer::zeros(plane.width * plane.channels),
            work: Buffer::zeros(plane.scratch_len(16)),
            sums: Buffer::zeros(kernel.side * table.matrix_len()),
            phases: phases.collect(),
        }
    }
}

/// Adds the gradient of the images `images` of the states `z` and cotangents `q` (without padding) to the accumulator: tap by
/// tap, `units` rows of `channels` numbers.
pub(crate) fn accumulate<T: SimdReal>(
    isa: Isa,
    table: &Table<T>,
    kernel: &Kernel,
    memory: &mut Gradient<T>,
    images: &[usize],
    [z, q]: [&[T]; 2],
    accumulator: &mut [T],
) {
    assert!(images.len() <= memory.block, "a block larger than its scratch memory");
    let Gradient { block, spectra, row, work, sums, phases } = memory;
    let (plane, pixels) = (&table.plane, Pixels::of(table));
    let (stride, column_len) = (image_stride(table), *block * image_stride(table));
    for (states, spectrum) in [z, q].into_iter().zip(spectra.iter_mut()) {
        for (slot, &image) in images.iter().enumerate() {
            for y in 0..plane.height {
                let plain = &states[pixels.plain(image, y * row.len(), row.len())];
                pixels.zip(row, plain, |x, z| *x = z);
                let spectrum = &mut spectrum[slot * stride + y * 2 * plane.channels..];
                isa.dispatch(ForwardRow { plane, pixels: row, spectrum, stride: column_len, work });
            }
        }
    }
    let [z, q] = spectra;
    for (column, (z, q)) in z.chunks_exact_mut(column_len).zip(q.chunks_exact_mut(column_len)).enumerate() {
        let (z, q) = (&mut z[..images.len() * stride], &mut q[..images.len() * stride]);
        isa.dispatch(Column { table, kernel, column, z, q, work, sums, phases, accumulator });
    }
}

/// One column of the spectra: transforms, products and their sums, tap by tap.
struct Column<'a, T: SimdReal> {
    table: &'a Table<T>,
    kernel: &'a Kernel,
    column: usize,
    z: &'a mut [T],
    q: &'a mut [T],
    work: &'a mut [T],
    sums: &'a mut [T],
    phases: &'a [(T, T)],
    accumulator: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Column<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { table, kernel, column, z, q, work, sums, phases, accumulator } = self;
        let (plane, stride) = (&table.plane, image_stride(table));
        assert!(work.len() >= plane.scratch_len(V::N));
        for image in z.chunks_exact_mut(stride).chain(q.chunks_exact_mut(stride)) {
            // SAFETY: a chunk holds a column and one element more; the work memory is as long as asserted.
            unsafe { plane.column::<V>(image.as_mut_ptr(), false, work.as_mut_ptr()) };
        }
        sums.fill(T::ZERO);
        for (row, phases) in phases.chunks_exact(kernel.side).enumerate() {
            let tile = Tile { table, phases, row, stride, z, q };
            let mut o = 0;
            while o + TILE <= table.units {
                tile.products::<V, TILE>(o, sums);
                o += TILE;
            }
            while o < table.units {
                tile.products::<V, 1>(o, sums);
                o += 1;
            }
        }
        // Columns that stand for their conjugates too count twice.
        let twice = if column == 0 || 2 * column == plane.width { 1.0 } else { 2.0 };
        let pixels = (plane.height * plane.width) as f64;
        let scale = twice / (pixels * plane.forward_gain() * plane.forward_gain());
        let (side, c) = (kernel.side, plane.channels);
        for (tap, to) in accumulator.chunks_exact_mut(table.units * c).enumerate() {
            let (sin, cos) = kernel.phase(tap % side, column, plane.width);
            let (cos, sin) = (V::splat(T::from_f64(scale * cos)), V::splat(T::from_f64(scale * sin)));
            let sums = &sums[tap / side * table.matrix_len()..][..table.matrix_len()];
            for (to, sum) in to.chunks_exact_mut(c).zip(sums.chunks_exact(2 * c)) {
                let (re, im) = sum.split_at(c);
                for ((to, re), im) in
                    to.chunks_exact_mut(V::N).zip(re.chunks_exact(V::N)).zip(im.chunks_exact(V::N))
                {
                    // Re(sum exp(-i angle)).
                    let partial = V::load(re).fma(cos, V::load(to));
                    V::load(im).fma(sin, partial).store(to);
                }
            }
        }
    }
}

/// The products at one frequency.
struct Tile<'a, T: SimdReal> {
    table: &'a Table<T>,
    /// Of the rows of the kernel at this row of the spectrum.
    phases: &'a [(T, T)],
    row: usize,
    stride: usize,
    z: &'a [T],
    q: &'a [T],
}

impl<T: SimdReal> Tile<'_, T> {
    /// Output channels `o..o + O`: their rows of `G`, added to the sums with the phases of the kernel's rows.
    #[inline(always)]
    fn products<V: Lanes<Elem = T>, const O: usize>(&self, o: usize, sums: &mut [T]) {
        let (c, at) = (self.table.plane.channels, self.row * 2 * self.table.plane.channels);
        for lane in (0..c).step_by(V::N) {
            let (mut re, mut im) = ([V::zero(); O], [V::zero(); O]);
            for (z, q) in self.z.chunks_exact(self.stride).zip(self.q.chunks_exact(self.stride)) {
                let (a, b) = (V::load(&z[at + lane..]), V::load(&z[at + c + lane..]));
                let q = &q[at..at + 2 * c];
                for k in 0..O {
                    // (x + i y)(a - i b)
                    let (x, y) = (V::splat(q[o + k]), V::splat(q[c + o + k]));
                    re[k] = b.fma(y, a.fma(x, re[k]));
                    im[k] = a.fma(y, (-b).fma(x, im[k]));
                }
            }
            for (sums, phase) in sums.chunks_exact_mut(self.table.matrix_len()).zip(self.phases) {
                let (cos, sin) = (V::splat(phase.0), V::splat(phase.1));
                for k in 0..O {
                    // G exp(-i angle)
                    let line = &mut sums[(o + k) * 2 * c..][..2 * c];
                    let (to_re, to_im) = line.split_at_mut(c);
                    let (to_re, to_im) = (&mut to_re[lane..lane + V::N], &mut to_im[lane..lane + V::N]);
                    im[k].fma(sin, re[k].fma(cos, V::load(to_re))).store(to_re);
                    (-re[k]).fma(sin, im[k].fma(cos, V::load(to_im))).store(to_im);
                }
            }
        }
    }
}
