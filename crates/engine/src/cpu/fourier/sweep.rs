//! One application of a circular convolution operator, given by its matrices per frequency, to a block of images.
//!
//! Counting, for 48 channels of 32 x 32: the matrices are 9.5 MB, so they are reused over all images of the block; an image
//! is 0.2 MB and its spectrum as much. Three passes: (1) row by row, pointwise function and row transform; (2) column by
//! column of the half spectrum, for [`TOGETHER`] images at a time: column transform, product per frequency, inverse column
//! transform, all in L2; (3) row by row, inverse row transform and pointwise function.
//!
//! The block does not fit into L2, so bytes from L3 bound an iteration: spectra are written and read twice, state and
//! constant read, the state written. In an iteration the next sweep's pass (1) is therefore done within this one's pass (3), row
//! by row, while state and spectrum of the row are at hand: seven times the state's bytes instead of ten.
//!
//! Where the machine has matrix tiles and full accuracy is not asked for, the products are computed on them.

use super::plane::Plane;
use super::product::{RESULTS, Spectra, multiply};
use super::table::Table;
#[cfg(target_arch = "x86_64")]
use super::tiled::{Columns, TiledScratch};
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Accuracy;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::same::same_mut;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal};

/// Images whose columns are worked on together: their slice of the spectrum (12 kB each at the size above) and the matrices
/// of a column stay in L2.
const TOGETHER: usize = 32;

/// What happens to the pixels before and after the operator; a row of pixels is named by its image and by where it starts
/// in it (channels padded).
pub(crate) trait Pointwise<T: SimdReal> {
    /// Whether the images are swept again, beginning with what `next` makes of this sweep's results instead of `before`.
    const ITERATES: bool = false;
    /// Writes what the operator is applied to.
    fn before<V: Lanes<Elem = T>>(&self, image: usize, at: usize, argument: &mut [T]);
    /// Takes what the operator gave.
    fn after<V: Lanes<Elem = T>>(&mut self, image: usize, at: usize, result: &mut [T]);
    /// Writes what the next sweep applies its operator to; comes right after `after` if the images are swept again.
    #[inline(always)]
    fn next<V: Lanes<Elem = T>>(&self, image: usize, at: usize, argument: &mut [T]) {
        self.before::<V>(image, at, argument);
    }
}

/// Memory of a sweep over at most `block` images.
pub(crate) struct Scratch<T: SimdReal> {
    spectrum: Buffer<T>,
    row: Buffer<T>,
    work: Work<T>,
    /// Images whose rows have been transformed for their next sweep.
    begun: Vec<bool>,
}

/// What transforms and products work in.
struct Work<T: SimdReal> {
    numbers: Buffer<T>,
    #[cfg(target_arch = "x86_64")]
    tiled: Option<TiledScratch>,
}

impl<T: SimdReal> Scratch<T> {
    pub(crate) fn new(table: &Table<T>, block: usize) -> Self {
        let plane = &table.plane;
        let image = image_stride(table);
        // The widest vectors need most.
        let numbers = plane.scratch_len(16).max(RESULTS * 2 * plane.channels);
        Self {
            spectrum: Buffer::zeros(plane.columns() * block * image),
            row: Buffer::zeros(plane.width * plane.channels),
            work: Work {
                numbers: Buffer::zeros(numbers),
                #[cfg(target_arch = "x86_64")]
                tiled: table.tiled.as_ref().map(|tiled| tiled.scratch()),
            },
            begun: vec![false; block],
        }
    }

    /// Forgets what an iteration has begun: what follows for these images has nothing to do with it.
    pub(crate) fn forget(&mut self, images: &[usize]) {
        images.iter().for_each(|&image| self.begun[image] = false);
    }
}

/// Numbers from one image's column to the next one's: a column and one more element, since a multiple of 4 kB would put all
/// images into the same cache sets.
pub(super) fn image_stride<T: SimdReal>(table: &Table<T>) -> usize {
    (table.plane.height + 1) * 2 * table.plane.channels
}

/// Applies the operator to each of `images` (numbers below the scratch memory's block), with `pointwise` around it, at least
/// as accurately as asked for.
///
/// The kernels are dispatched row by row and column by column, not the sweep as a whole: so they are compiled once, not
/// once for each kind of `pointwise`.
pub(crate) fn sweep<T: SimdReal, P: Pointwise<T>>(
    isa: Isa,
    table: &Table<T>,
    accuracy: Accuracy,
    scratch: &mut Scratch<T>,
    images: &[usize],
    pointwise: &mut P,
) {
    let plane = &table.plane;
    let Scratch { spectrum, row, work, begun } = scratch;
    let (block, stride) = (begun.len(), image_stride(table));
    assert!(images.iter().all(|&image| image < block), "an image outside the block");
    let column_len = block * stride;
    let row_at = |image: usize, y: usize| image * stride + y * 2 * plane.channels;
    let transform = |image: usize, y: usize, pixels: &[T], spectrum: &mut [T], work: &mut [T]| {
        let spectrum = &mut spectrum[row_at(image, y)..];
        isa.dispatch(ForwardRow { plane, pixels, spectrum, stride: column_len, work });
    };
    for &image in images.iter().filter(|&&image| !begun[image]) {
        for y in 0..plane.height {
            isa.dispatch(Before { pointwise: &*pointwise, image, at: y * row.len(), argument: row });
            transform(image, y, row, spectrum, &mut work.numbers);
        }
    }
    for (column, spectra) in spectrum.chunks_exact_mut(column_len).enumerate() {
        for images in images.chunks(TOGETHER) {
            isa.dispatch(ForwardColumns { table, images, spectra, work: &mut work.numbers });
            multiply_columns(isa, table, accuracy, column, images, spectra, work);
            isa.dispatch(InverseColumns { table, column, images, spectra, work: &mut work.numbers });
        }
    }
    for &image in images {
        for y in 0..plane.height {
            isa.dispatch(InverseRow {
                plane,
                spectrum: &spectrum[row_at(image, y)..],
                stride: column_len,
                pixels: row,
                work: &mut work.numbers,
            });
            isa.dispatch(After { pointwise, image, at: y * row.len(), row });
            if P::ITERATES {
                transform(image, y, row, spectrum, &mut work.numbers);
            }
        }
        begun[image] = P::ITERATES;
    }
}

/// The products at the frequencies of a column.
fn multiply_columns<T: SimdReal>(
    isa: Isa,
    table: &Table<T>,
    accuracy: Accuracy,
    column: usize,
    images: &[usize],
    spectra: &mut [T],
    work: &mut Work<T>,
) {
    #[cfg(target_arch = "x86_64")]
    if let (Some(tiled), Some(passes), Some(memory)) = (&table.tiled, accuracy.passes(), &mut work.tiled)
        && let Some(spectra) = same_mut::<T, f32>(spectra)
    {
        let rows = table.independent_rows(column);
        let spectra = Columns { spectra, stride: image_stride(table), images };
        return tiled.multiply(column, rows, passes, spectra, memory);
    }
    isa.dispatch(Products { table, column, images, spectra, work: &mut work.numbers });
}

struct Before<'a, T, P> {
    pointwise: &'a P,
    image: usize,
    at: usize,
    argument: &'a mut [T],
}

impl<T: SimdReal, P: Pointwise<T>> Vectorised<T> for Before<'_, T, P> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        self.pointwise.before::<V>(self.image, self.at, self.argument);
    }
}

/// What the operator gave, and if the images are swept again what it is applied to next.
struct After<'a, T, P> {
    pointwise: &'a mut P,
    image: usize,
    at: usize,
    row: &'a mut [T],
}

impl<T: SimdReal, P: Pointwise<T>> Vectorised<T> for After<'_, T, P> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { pointwise, image, at, row } = self;
        pointwise.after::<V>(image, at, row);
        if P::ITERATES {
            pointwise.next::<V>(image, at, row);
        }
    }
}

/// The transform of a row; element `k` of the spectrum is at `k * stride`.
pub(super) struct ForwardRow<'a, T> {
    pub plane: &'a Plane<T>,
    pub pixels: &'a [T],
    pub spectrum: &'a mut [T],
    pub stride: usize,
    pub work: &'a mut [T],
}

/// Whether rows of pixels and spectrum and the work memory have the lengths that the plane's transforms need.
fn fits<T: SimdReal>(
    plane: &Plane<T>,
    pixels: usize,
    spectrum: usize,
    stride: usize,
    work: usize,
    lanes: usize,
) -> bool {
    pixels == plane.width * plane.channels
        && spectrum >= (plane.columns() - 1) * stride + 2 * plane.channels
        && work >= plane.scratch_len(lanes)
}

impl<T: SimdReal> Vectorised<T> for ForwardRow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { plane, pixels, spectrum, stride, work } = self;
        assert!(fits(plane, pixels.len(), spectrum.len(), stride, work.len(), V::N));
        // SAFETY: the lengths are as asserted, and the three slices do not overlap.
        unsafe { plane.forward_row::<V>(pixels.as_ptr(), spectrum.as_mut_ptr(), stride, work.as_mut_ptr()) };
    }
}

/// The way back.
struct InverseRow<'a, T> {
    plane: &'a Plane<T>,
    spectrum: &'a [T],
    stride: usize,
    pixels: &'a mut [T],
    work: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for InverseRow<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { plane, spectrum, stride, pixels, work } = self;
        assert!(fits(plane, pixels.len(), spectrum.len(), stride, work.len(), V::N));
        // SAFETY: the lengths are as asserted, and the three slices do not overlap.
        unsafe { plane.inverse_row::<V>(spectrum.as_ptr(), stride, pixels.as_mut_ptr(), work.as_mut_ptr()) };
    }
}

/// One column of the spectra of a block, of which some images are worked on: the transforms.
struct ForwardColumns<'a, T: SimdReal> {
    table: &'a Table<T>,
    images: &'a [usize],
    spectra: &'a mut [T],
    work: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for ForwardColumns<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { table, images, spectra, work } = self;
        assert!(work.len() >= table.plane.scratch_len(V::N));
        let stride = image_stride(table);
        for &image in images {
            let image = &mut spectra[image * stride..][..stride];
            // SAFETY: the slice holds a column; the work memory is as long as asserted.
            unsafe { table.plane.column::<V>(image.as_mut_ptr(), false, work.as_mut_ptr()) };
        }
    }
}

/// The way back; rows that are conjugates of others are filled in first.
struct InverseColumns<'a, T: SimdReal> {
    table: &'a Table<T>,
    column: usize,
    images: &'a [usize],
    spectra: &'a mut [T],
    work: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for InverseColumns<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { table, column, images, spectra, work } = self;
        let (plane, stride) = (&table.plane, image_stride(table));
        assert!(work.len() >= plane.scratch_len(V::N));
        for &image in images {
            let image = &mut spectra[image * stride..][..stride];
            // A loop, not a closure: only inlined code gets the vector instructions.
            for row in table.independent_rows(column)..plane.height {
                mirror::<V>(image, plane.channels, plane.height - row, row);
            }
            // SAFETY: the slice holds a column; the work memory is as long as asserted.
            unsafe { plane.column::<V>(image.as_mut_ptr(), true, work.as_mut_ptr()) };
        }
    }
}

/// The products at the frequencies of a column, to full accuracy.
struct Products<'a, T: SimdReal> {
    table: &'a Table<T>,
    column: usize,
    images: &'a [usize],
    spectra: &'a mut [T],
    work: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Products<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { table, column, images, spectra, work } = self;
        let (c, stride) = (table.plane.channels, image_stride(table));
        assert!(
            work.len() >= RESULTS * 2 * c
                && images.iter().all(|&image| (image + 1) * stride <= spectra.len())
        );
        for row in 0..table.independent_rows(column) {
            let matrix = table.matrix(column, row);
            for run in images.chunk_by(|a, b| a + 1 == *b) {
                // SAFETY: element `row` of each image's column is within the spectra, as asserted; `matrix` has
                // `units` columns of 2c numbers; the work memory holds the results as asserted.
                unsafe {
                    let start = spectra.as_mut_ptr().add(run[0] * stride + row * 2 * c);
                    let spectra = Spectra { start, stride, images: run.len() };
                    multiply::<V>(matrix.as_ptr(), table.units, c, spectra, work.as_mut_ptr());
                }
            }
        }
    }
}

/// Element `to` of a column becomes the conjugate of element `from`.
#[inline(always)]
fn mirror<V: Lanes>(column: &mut [V::Elem], c: usize, from: usize, to: usize) {
    for lane in (0..c).step_by(V::N) {
        let re = V::load(&column[from * 2 * c + lane..]);
        let im = V::load(&column[from * 2 * c + c + lane..]);
        re.store(&mut column[to * 2 * c + lane..]);
        (-im).store(&mut column[to * 2 * c + c + lane..]);
    }
}
