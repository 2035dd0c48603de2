//! Shifted crops by counting: how far an image is moved is a function of seed, epoch and image.

use crate::counter;

/// Moves each image by up to so many pixels in each direction; what comes in at the border is black (the byte 0, standardised
/// like any other).
///
/// ```
/// use subdeq_engine::Crop;
/// let crop = Crop::new(4, 7, 1);
/// assert!((0..1000).all(|image| crop.shift(image).iter().all(|by| (-4..=4).contains(by))));
/// assert_eq!(Crop::NONE.shift(5), [0, 0]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crop {
    pixels: u32,
    key: u32,
}

impl Crop {
    /// Nothing is moved.
    pub const NONE: Self = Self { pixels: 0, key: 0 };

    /// Moves by up to `pixels`. Streams of one seed are independent.
    #[must_use]
    pub fn new(pixels: u16, seed: u64, stream: u64) -> Self {
        Self { pixels: pixels.into(), key: counter::key(seed, stream) }
    }

    /// Rows and columns by which this image is moved up and to the left; each of the `(2 pixels + 1)^2` is as likely.
    #[inline]
    #[must_use]
    pub fn shift(&self, image: u32) -> [i32; 2] {
        let down = counter::at(self.key, image);
        let right = counter::at(down, 1);
        [down, right].map(|random| {
            let choice = (u64::from(random) * u64::from(2 * self.pixels + 1)) >> 32;
            choice as i32 - self.pixels as i32
        })
    }

    /// Pixels and key, for devices that move images themselves.
    pub(crate) fn constants(&self) -> [u32; 2] {
        [self.pixels, self.key]
    }
}

#[cfg(test)]
mod tests {
    use super::Crop;

    #[test]
    fn every_shift_is_as_likely_and_epochs_differ() {
        let (crop, other) = (Crop::new(2, 7, 1), Crop::new(2, 7, 2));
        let (mut counts, mut same) = ([0; 25], 0);
        for image in 0..25_000 {
            let [down, right] = crop.shift(image);
            counts[((down + 2) * 5 + right + 2) as usize] += 1;
            same += usize::from(crop.shift(image) == other.shift(image));
        }
        // Six standard deviations of 25,000 independent draws of one in 25.
        assert!(counts.iter().all(|count| (814..1186).contains(count)), "{counts:?}");
        assert!((814..1186).contains(&same), "{same}");
    }
}
