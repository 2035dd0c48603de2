//! Images and labels as a training reads them: bytes in memory, standardised when a batch is gathered.

use crate::{Error, Result};

/// How an image's numbers are ordered in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Channel after channel: what dense layers read (PyTorch's flattening).
    ChannelsFirst,
    /// Pixel after pixel: what convolutions read.
    ChannelsLast,
}

/// A set of labelled images, bytes in channel-first order, with the constants that standardise them.
#[derive(Clone, Debug)]
pub struct Images {
    /// `samples x channels x height x width`.
    pixels: Vec<u8>,
    labels: Vec<u32>,
    channels: usize,
    height: usize,
    width: usize,
    scale: f64,
    /// `value[channel][byte]`: the standardised number for each byte. 256 entries replace a division per pixel.
    value: Vec<[f32; 256]>,
}

impl Images {
    /// Checks the sizes and takes the arrays over. `mean` and `deviation` are those of `byte / scale`, one per channel.
    pub fn new(
        pixels: Vec<u8>,
        labels: Vec<u32>,
        [channels, height, width]: [usize; 3],
        scale: f64,
        mean: &[f64],
        deviation: &[f64],
    ) -> Result<Self> {
        let len = channels * height * width;
        if len == 0 || pixels.len() != len * labels.len() {
            return Err(Error::Invalid(format!(
                "{} bytes are not {} images of {channels}x{height}x{width}",
                pixels.len(),
                labels.len()
            )));
        }
        let value = table(channels, scale, mean, deviation)?;
        Ok(Self { pixels, labels, channels, height, width, scale, value })
    }

    /// The same images with other constants.
    ///
    /// # Errors
    /// Constants that do not fit the channels.
    pub fn restandardised(self, mean: &[f64], deviation: &[f64]) -> Result<Self> {
        let value = table(self.channels, self.scale, mean, deviation)?;
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

    /// The bytes of image `index`, channel-first.
    #[must_use]
    pub fn bytes(&self, index: usize) -> &[u8] {
        &self.pixels[index * self.image_len()..][..self.image_len()]
    }

    /// Writes the standardised images `indices` and their labels one after the other; `flipped` says which ones are
    /// mirrored left to right.
    pub fn gather(
        &self,
        indices: &[usize],
        flipped: impl Fn(usize) -> bool,
        order: Order,
        out: &mut [f32],
        labels: &mut [u32],
    ) {
        let len = self.image_len();
        for ((&index, image), label) in indices.iter().zip(out.chunks_exact_mut(len)).zip(labels) {
            *label = self.labels[index];
            self.standardise(self.bytes(index), flipped(index), order, image);
        }
    }

    fn standardise(&self, bytes: &[u8], flip: bool, order: Order, out: &mut [f32]) {
        let plane = self.height * self.width;
        for (c, (bytes, value)) in bytes.chunks_exact(plane).zip(&self.value).enumerate() {
            for (row, line) in bytes.chunks_exact(self.width).enumerate() {
                for (column, &byte) in line.iter().enumerate() {
                    let column = if flip { self.width - 1 - column } else { column };
                    let pixel = row * self.width + column;
                    let at = match order {
                        Order::ChannelsFirst => c * plane + pixel,
                        Order::ChannelsLast => pixel * self.channels + c,
                    };
                    out[at] = value[usize::from(byte)];
                }
            }
        }
    }
}

/// The standardised number of each byte, per channel.
fn table(channels: usize, scale: f64, mean: &[f64], deviation: &[f64]) -> Result<Vec<[f32; 256]>> {
    if mean.len() != channels || deviation.len() != channels {
        return Err(Error::Invalid(format!(
            "{} means and {} deviations for {channels} channels",
            mean.len(),
            deviation.len()
        )));
    }
    if let Some(d) = deviation.iter().find(|d| !(**d > 0.0 && d.is_finite())) {
        return Err(Error::Invalid(format!("a standard deviation must be positive, got {d}")));
    }
    let row = |c: usize| std::array::from_fn(|byte| ((byte as f64 / scale - mean[c]) / deviation[c]) as f32);
    Ok((0..channels).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> Images {
        // Two images, two channels of 1x3.
        let pixels = vec![0, 51, 102, 153, 204, 255, 255, 204, 153, 102, 51, 0];
        Images::new(pixels, vec![3, 1], [2, 1, 3], 255.0, &[0.0, 0.5], &[1.0, 0.5]).unwrap()
    }

    #[test]
    fn gathers_in_both_orders_and_mirrored() {
        let images = images();
        let (mut out, mut labels) = (vec![0.0; 6], vec![0; 1]);
        images.gather(&[0], |_| false, Order::ChannelsFirst, &mut out, &mut labels);
        assert_eq!(labels, [3]);
        let expect = [0.0, 0.2, 0.4, 0.2, 0.6, 1.0];
        assert!(out.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
        images.gather(&[0], |_| true, Order::ChannelsLast, &mut out, &mut labels);
        let expect = [0.4, 1.0, 0.2, 0.6, 0.0, 0.2];
        assert!(out.iter().zip(expect).all(|(a, b)| (a - b).abs() < 1e-6), "{out:?}");
    }

    #[test]
    fn refuses_sizes_that_do_not_fit() {
        let error = Images::new(vec![0; 7], vec![0, 0], [1, 2, 2], 255.0, &[0.0], &[1.0]).unwrap_err();
        assert!(error.to_string().contains("7 bytes are not 2 images"), "{error}");
        assert!(Images::new(vec![0; 8], vec![0, 0], [1, 2, 2], 255.0, &[0.0], &[0.0]).is_err());
    }
}
