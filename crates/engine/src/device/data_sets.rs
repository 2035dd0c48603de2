//! Labelled images that stay on the device: bytes in memory, standardised when a batch is put together.

use std::ops::Range;
use std::sync::Arc;

use super::Device;
use crate::{Crop, Dropout, EngineError, Result};

/// In a list of samples: this one is mirrored left to right.
pub const MIRRORED: u32 = 1 << 31;

/// The samples of a batch: a part of a list that is on the device. Each entry is the number of a sample, with [`MIRRORED`]
/// set or not.
#[derive(Debug)]
pub struct Picks<'a, I> {
    /// The list.
    pub list: &'a I,
    /// Which part of it.
    pub range: Range<usize>,
}

impl<I> Clone for Picks<'_, I> {
    fn clone(&self) -> Self {
        Self { list: self.list, range: self.range.clone() }
    }
}

/// How an image's numbers are ordered in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Channel after channel: what dense layers read (PyTorch's flattening).
    ChannelsFirst,
    /// Pixel after pixel: what convolutions read.
    ChannelsLast,
}

/// How an image is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Left to right.
    pub mirrored: bool,
    /// Moved up and to the left by so many rows and columns, before it is mirrored; beyond the border it is black (the byte 0).
    pub shift: [i32; 2],
}

/// A set of labelled images on the host: bytes in channel-first order, with the constants that standardise them. Cheap to
/// clone.
///
/// ```
/// use subdeq_engine::Images;
/// let images = Images::new(vec![0, 51, 102, 255], vec![1], [1, 2, 2], 255.0, &[0.2], &[0.5])?;
/// assert_eq!((images.len(), images.label(0), images.bytes(0)[2]), (1, 1, 102));
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Images {
    /// `samples x channels x height x width`.
    pixels: Arc<Vec<u8>>,
    labels: Arc<Vec<u32>>,
    channels: usize,
    height: usize,
    width: usize,
    scale: f64,
    /// `value[channel][byte]`: the standardised number for each byte. 256 entries replace a division per pixel.
    value: Arc<Vec<[f32; 256]>>,
}

impl Images {
    /// Checks the sizes and takes the arrays over. `mean` and `deviation` are those of `byte / scale`, one per channel.
    ///
    /// # Errors
    /// Sizes that do not fit, constants that make no finite numbers, more than 2^31 images.
    pub fn new(
        pixels: Vec<u8>,
        labels: Vec<u32>,
        [channels, height, width]: [usize; 3],
        scale: f64,
        mean: &[f64],
        deviation: &[f64],
    ) -> Result<Self> {
        let len = channels.checked_mul(height).and_then(|len| len.checked_mul(width)).unwrap_or(0);
        if len == 0 || len.checked_mul(labels.len()) != Some(pixels.len()) {
            return Err(EngineError::Invalid(format!(
                "{} bytes are not {} images of {channels}x{height}x{width}",
                pixels.len(),
                labels.len()
            )));
        }
        if labels.len() >= MIRRORED as usize {
            return Err(EngineError::Invalid(format!("{} images are more than 2^31", labels.len())));
        }
        let value = Arc::new(table(channels, scale, mean, deviation)?);
        let (pixels, labels) = (Arc::new(pixels), Arc::new(labels));
        Ok(Self { pixels, labels, channels, height, width, scale, value })
    }

    /// The same images with other constants.
    ///
    /// # Errors
    /// Constants that do not fit the channels.
    pub fn restandardised(self, mean: &[f64], deviation: &[f64]) -> Result<Self> {
        let value = Arc::new(table(self.channels, self.scale, mean, deviation)?);
        Ok(Self { value, ..self })
    }

    /// Number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Numbers in one image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Channels, height, width.
    #[must_use]
    pub fn shape(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    /// The label of image `index`.
    #[must_use]
    pub fn label(&self, index: usize) -> u32 {
        self.labels[index]
    }

    /// All labels.
    #[must_use]
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The bytes of image `index`, channel-first.
    #[must_use]
    pub fn bytes(&self, index: usize) -> &[u8] {
        &self.pixels[index * self.image_len()..][..self.image_len()]
    }

    /// The bytes of all images.
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The standardised number of each byte, per channel.
    #[must_use]
    pub fn table(&self) -> &[[f32; 256]] {
        &self.value
    }

    /// Writes an image, standardised.
    pub fn standardise<T: crate::Real>(&self, index: usize, view: View, order: Order, out: &mut [T]) {
        let plane = self.height * self.width;
        let [down, right] = view.shift.map(|by| by as isize);
        for (c, (bytes, value)) in self.bytes(index).chunks_exact(plane).zip(&*self.value).enumerate() {
            for row in 0..self.height {
                let line = row.checked_add_signed(down).filter(|row| *row < self.height);
                for column in 0..self.width {
                    let seen = if view.mirrored { self.width - 1 - column } else { column };
                    let seen = seen.checked_add_signed(right).filter(|column| *column < self.width);
                    let byte = line.zip(seen).map_or(0, |(row, column)| bytes[row * self.width + column]);
                    let pixel = row * self.width + column;
                    let at = match order {
                        Order::ChannelsFirst => c * plane + pixel,
                        Order::ChannelsLast => pixel * self.channels + c,
                    };
                    out[at] = T::from_f64(value[usize::from(byte)].into());
                }
            }
        }
    }
}

/// The standardised number of each byte, per channel.
fn table(channels: usize, scale: f64, mean: &[f64], deviation: &[f64]) -> Result<Vec<[f32; 256]>> {
    if mean.len() != channels || deviation.len() != channels {
        return Err(EngineError::Invalid(format!(
            "{} means and {} deviations for {channels} channels",
            mean.len(),
            deviation.len()
        )));
    }
    if let Some(d) = deviation.iter().find(|d| !(**d > 0.0 && d.is_finite())) {
        return Err(EngineError::Invalid(format!("a standard deviation must be positive, got {d}")));
    }
    let row = |c: usize| std::array::from_fn(|byte| ((byte as f64 / scale - mean[c]) / deviation[c]) as f32);
    let table: Vec<[f32; 256]> = (0..channels).map(row).collect();
    match table.iter().position(|row| row.iter().any(|x| !x.is_finite())) {
        None => Ok(table),
        Some(c) => Err(EngineError::Invalid(format!(
            "mean {} and deviation {} of channel {c} at scale {scale} make numbers that are not finite",
            mean[c], deviation[c]
        ))),
    }
}

/// A device that holds sets of images and puts batches together.
pub trait DataSets: Device {
    /// Images on the device.
    type Images: Send + Sync;

    /// Brings images to the device; refuses labels that are not below `classes`.
    fn images(&self, images: &Images, classes: usize) -> Result<Self::Images>;
    /// Writes the images that are picked, moved and mirrored, standardised, one after the other, and their labels.
    fn gather(
        &self,
        images: &Self::Images,
        picks: Picks<'_, Self::Integers>,
        crop: Crop,
        order: Order,
        x: &mut Self::Array,
        labels: &mut Self::Integers,
    ) -> Result<()>;
    /// Drops entries of the rows of `x`, one row of `len` numbers per sample that is picked, and scales those that it keeps.
    /// Rows count by the number of their sample: its mask is the same in any batch.
    fn drop_entries(
        &self,
        len: usize,
        picks: Picks<'_, Self::Integers>,
        dropout: &Dropout,
        x: &mut Self::Array,
    ) -> Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    fn images() -> Images {
        // Two images, two channels of 1x3.
        let pixels = vec![0, 51, 102, 153, 204, 255, 255, 204, 153, 102, 51, 0];
        Images::new(pixels, vec![3, 1], [2, 1, 3], 255.0, &[0.0, 0.5], &[1.0, 0.5]).unwrap()
    }

    #[test]
    fn gathers_in_both_orders_and_mirrored() {
        let cpu = Cpu::<f32>::new(1).unwrap();
        let set = cpu.images(&images(), 4).unwrap();
        let (mut x, mut labels) = (cpu.zeros(6).unwrap(), cpu.integers(&[0]).unwrap());
        let list = cpu.integers(&[1, 0, MIRRORED]).unwrap();
        let picks = |at: usize| Picks { list: &list, range: at..at + 1 };
        cpu.gather(&set, picks(1), Crop::NONE, Order::ChannelsFirst, &mut x, &mut labels).unwrap();
        assert_eq!(labels[0], 3);
        let expect = [0.0, 0.2, 0.4, 0.2, 0.6, 1.0];
        assert!(x.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{x:?}");
        cpu.gather(&set, picks(2), Crop::NONE, Order::ChannelsLast, &mut x, &mut labels).unwrap();
        let expect = [0.4, 1.0, 0.2, 0.6, 0.0, 0.2];
        assert!(x.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{x:?}");
        let beyond = cpu.integers(&[2]).unwrap();
        let picks = Picks { list: &beyond, range: 0..1 };
        let error =
            cpu.gather(&set, picks, Crop::NONE, Order::ChannelsLast, &mut x, &mut labels).unwrap_err();
        assert!(error.to_string().contains("sample 2 of 2"), "{error}");
    }

    #[test]
    fn a_moved_image_is_black_beyond_its_border() {
        // One image of 2x3, brighter from pixel to pixel.
        let images = Images::new(vec![1, 2, 3, 4, 5, 6], vec![0], [1, 2, 3], 1.0, &[0.0], &[1.0]).unwrap();
        let seen = |mirrored: bool, shift: [i32; 2]| {
            let mut x = [9.0f32; 6];
            images.standardise(0, View { mirrored, shift }, Order::ChannelsFirst, &mut x);
            x
        };
        assert_eq!(seen(false, [1, 0]), [4.0, 5.0, 6.0, 0.0, 0.0, 0.0]);
        assert_eq!(seen(false, [-1, 1]), [0.0, 0.0, 0.0, 2.0, 3.0, 0.0]);
        assert_eq!(seen(true, [0, 1]), [0.0, 3.0, 2.0, 0.0, 6.0, 5.0]);
        assert_eq!(seen(false, [-2, 0]), [0.0; 6]);
        assert_eq!(seen(false, [0, 7]), [0.0; 6]);
    }

    #[test]
    fn a_sample_is_thinned_alike_in_any_batch() {
        let cpu = Cpu::<f32>::new(2).unwrap();
        let (len, dropout) = (50, Dropout::new(0.4, 3, 9));
        let thinned = |samples: &[u32]| {
            let list = cpu.integers(samples).unwrap();
            let mut x = cpu.upload(&vec![1.5; samples.len() * len]).unwrap();
            let picks = Picks { list: &list, range: 1..samples.len() };
            cpu.drop_entries(len, picks, &dropout, &mut x).unwrap();
            x.to_vec()
        };
        let (some, other) = (thinned(&[8, 2, 0, 7]), thinned(&[1, 7 | MIRRORED, 3, 2]));
        assert_eq!((&some[..50], &some[100..150]), (&other[100..150], &other[..50]));
        let expected =
            |sample: u32| move |k: u32| if dropout.keeps(sample, k) { 1.5 * (1.0 / 0.6) as f32 } else { 0.0 };
        assert!(some[50..100].iter().copied().eq((0..50).map(expected(0))));
        assert!(some[150..].iter().all(|x| *x == 1.5), "beyond the batch nothing changes");
    }

    #[test]
    fn refuses_sizes_labels_and_constants_that_do_not_fit() {
        let error = Images::new(vec![0; 7], vec![0, 0], [1, 2, 2], 255.0, &[0.0], &[1.0]).unwrap_err();
        assert!(error.to_string().contains("7 bytes are not 2 images"), "{error}");
        assert!(Images::new(vec![0; 8], vec![0, 0], [1, 2, 2], 255.0, &[0.0], &[0.0]).is_err());
        let error = Images::new(vec![0; 8], vec![0, 0], [1, 2, 2], 255.0, &[0.5], &[1e-300]).unwrap_err();
        assert!(error.to_string().contains("not finite"), "{error}");
        let error = Cpu::<f32>::new(1).unwrap().images(&images(), 3).unwrap_err();
        assert!(error.to_string().contains("label of image 0 is 3"), "{error}");
    }
}
