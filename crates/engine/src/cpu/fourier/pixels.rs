//! Rows of pixels between the layout of the interface (`units` channels) and that of the sweeps (channels padded).

use std::ops::Range;

use super::table::Table;
use crate::cpu::simd::SimdReal;

/// The layouts of one image.
#[derive(Clone, Copy)]
pub(crate) struct Pixels {
    units: usize,
    channels: usize,
    pixels: usize,
}

impl Pixels {
    pub(crate) fn of<T: SimdReal>(table: &Table<T>) -> Self {
        let plane = &table.plane;
        Self { units: table.units, channels: plane.channels, pixels: plane.height * plane.width }
    }

    /// Numbers of an image with padding.
    pub(crate) fn padded_len(&self) -> usize {
        self.pixels * self.channels
    }

    /// Where a row of `len` padded numbers that starts at `at` lies in a batch of padded images.
    pub(crate) fn padded(&self, image: usize, at: usize, len: usize) -> Range<usize> {
        let start = image * self.padded_len() + at;
        start..start + len
    }

    /// Where the same row lies in a batch of images without padding.
    pub(crate) fn plain(&self, image: usize, at: usize, len: usize) -> Range<usize> {
        let start = (image * self.pixels + at / self.channels) * self.units;
        start..start + len / self.channels * self.units
    }

    /// Combines a padded row with a row without padding, number by number; padding is left as it is.
    #[inline(always)]
    pub(crate) fn zip<T: Copy>(&self, padded: &mut [T], plain: &[T], combine: impl Fn(&mut T, T)) {
        if self.units == self.channels {
            padded.iter_mut().zip(plain).for_each(|(a, &b)| combine(a, b));
        } else {
            for (padded, plain) in padded.chunks_exact_mut(self.channels).zip(plain.chunks_exact(self.units))
            {
                padded.iter_mut().zip(plain).for_each(|(a, &b)| combine(a, b));
            }
        }
    }

    /// Moves the numbers of a padded row together, over the padding.
    #[inline(always)]
    pub(crate) fn compact<T: Copy>(&self, row: &mut [T]) {
        if self.units < self.channels {
            for pixel in 1..row.len() / self.channels {
                row.copy_within(
                    pixel * self.channels..pixel * self.channels + self.units,
                    pixel * self.units,
                );
            }
        }
    }

    /// The other way: combines into a row without padding.
    #[inline(always)]
    pub(crate) fn unzip<T: Copy>(&self, plain: &mut [T], padded: &[T], combine: impl Fn(&mut T, T)) {
        if self.units == self.channels {
            plain.iter_mut().zip(padded).for_each(|(a, &b)| combine(a, b));
        } else {
            for (plain, padded) in plain.chunks_exact_mut(self.units).zip(padded.chunks_exact(self.channels))
            {
                plain.iter_mut().zip(padded).for_each(|(a, &b)| combine(a, b));
            }
        }
    }
}
