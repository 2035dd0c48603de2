//! Standardisation: pixels to numbers of mean 0 and deviation 1, per channel.

use serde::{Deserialize, Serialize};

use crate::error::{DataError, Result};
use crate::images::ImageSet;

/// Mean and standard deviation of each channel, for pixels scaled to \[0, 1\].
///
/// ```
/// use subdeq_data::{images::ImageSet, standardise::Standardisation};
/// let set = ImageSet::new("four", vec![0, 255, 0, 255], [1, 2, 2], 255, vec![0], 1).unwrap();
/// let measured = Standardisation::measured(&set, &[0]).unwrap();
/// let mut out = [0.0; 4];
/// measured.table(&set).unwrap().apply(set.image(0), &mut out);
/// assert_eq!(out, [-1.0, 1.0, -1.0, 1.0]);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Standardisation {
    /// Mean of each channel.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel.
    pub deviation: Vec<f32>,
}

impl Standardisation {
    /// Given constants, e.g. those of the paper's published code.
    pub fn constants(mean: &[f32], deviation: &[f32]) -> Self {
        Standardisation { mean: mean.to_vec(), deviation: deviation.to_vec() }
    }

    /// Mean and deviation of the images with these indices, as the paper describes ("normalised to mean 0, standard
    /// deviation 1" on the training images). A channel without any variation keeps the deviation 1.
    pub fn measured(set: &ImageSet, indices: &[u32]) -> Result<Self> {
        if indices.is_empty() {
            return Err(DataError::request(
                "no images to measure mean and deviation of",
                "give a training set",
            ));
        }
        let plane = set.height() * set.width();
        // Integers, so that the result is exact and does not depend on the order.
        let mut sums = vec![(0u64, 0u64); set.channels()];
        for &i in indices {
            for (pixels, (sum, squares)) in set.image(i as usize).chunks_exact(plane).zip(&mut sums) {
                *sum += pixels.iter().map(|&p| u64::from(p)).sum::<u64>();
                *squares += pixels.iter().map(|&p| u64::from(p) * u64::from(p)).sum::<u64>();
            }
        }
        let count = (indices.len() * plane) as f64;
        let white = f64::from(set.white());
        let moments = sums.iter().map(|&(sum, squares)| {
            let mean = sum as f64 / count;
            let variance = (squares as f64 / count - mean * mean).max(0.0);
            let deviation = variance.sqrt() / white;
            ((mean / white) as f32, if deviation > 0.0 { deviation as f32 } else { 1.0 })
        });
        let (mean, deviation) = moments.unzip();
        Ok(Standardisation { mean, deviation })
    }

    /// A look-up table for images of this kind.
    pub fn table(&self, set: &ImageSet) -> Result<Table> {
        if self.mean.len() != set.channels() || self.deviation.len() != set.channels() {
            let problem = format!(
                "{} means and {} deviations for {} channels",
                self.mean.len(),
                self.deviation.len(),
                set.channels()
            );
            return Err(DataError::request(problem, "give one of each per channel"));
        }
        if let Some(bad) = self.deviation.iter().find(|d| !(d.is_finite() && **d > 0.0)) {
            return Err(DataError::request(format!("a standard deviation of {bad}"), "it must be positive"));
        }
        let white = f32::from(set.white());
        let channel = |(mean, deviation): (&f32, &f32)| {
            let mut values = [0.0; 256];
            (0u8..=255).for_each(|p| values[usize::from(p)] = (f32::from(p) / white - mean) / deviation);
            values
        };
        let values = self.mean.iter().zip(&self.deviation).map(channel).collect();
        Ok(Table { plane: set.height() * set.width(), values })
    }
}

/// The standardised value of every pixel value, per channel.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    plane: usize,
    values: Vec<[f32; 256]>,
}

impl Table {
    /// Standardises one image or several (NCHW).
    ///
    /// # Panics
    /// If `out` has not the length of `pixels`, or `pixels` is not a whole number of images.
    pub fn apply(&self, pixels: &[u8], out: &mut [f32]) {
        assert_eq!(pixels.len(), out.len(), "one number per pixel");
        assert_eq!(pixels.len() % (self.plane * self.values.len()), 0, "whole images only");
        let planes = pixels.chunks_exact(self.plane).zip(out.chunks_exact_mut(self.plane));
        for ((from, to), values) in planes.zip(self.values.iter().cycle()) {
            to.iter_mut().zip(from).for_each(|(t, &p)| *t = values[usize::from(p)]);
        }
    }
}
