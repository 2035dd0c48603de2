//! Labelled images of one size.

use crate::error::{DataError, Place, Result};

/// Images as bytes (NCHW: image, channel, row, column) with one label each.
///
/// ```
/// use subdeq_data::images::ImageSet;
/// let set = ImageSet::new("two dots", vec![0, 255, 9, 9], [1, 1, 2], 255, vec![1, 0], 2).unwrap();
/// assert_eq!((set.len(), set.image(1), set.labels()[0]), (2, &[9, 9][..], 1));
/// assert!(ImageSet::new("label 2 of 2", vec![0, 0], [1, 1, 2], 255, vec![2], 2).is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSet {
    images: Vec<u8>,
    channels: usize,
    height: usize,
    width: usize,
    white: u8,
    labels: Vec<u32>,
    classes: usize,
}

impl ImageSet {
    /// Checks that sizes agree and that every label is below `classes`. `white` is the largest pixel value of the
    /// format (255, or 16 for the 8x8 digits); `name` is used in errors.
    pub fn new(
        name: &str,
        images: Vec<u8>,
        [channels, height, width]: [usize; 3],
        white: u8,
        labels: Vec<u32>,
        classes: usize,
    ) -> Result<Self> {
        let wrong = |problem: String| {
            DataError::malformed(name, Place::Whole, problem, "check that images and labels belong together")
        };
        // Sizes come from files: their product may overflow.
        let pixels = channels.checked_mul(height).and_then(|n| n.checked_mul(width)).unwrap_or(0);
        if pixels == 0 || white == 0 {
            return Err(wrong(format!("images of {channels} x {height} x {width} pixels (white {white})")));
        }
        if Some(images.len()) != labels.len().checked_mul(pixels) {
            let found = images.len() as f64 / pixels as f64;
            return Err(wrong(format!("{found} images of {pixels} bytes but {} labels", labels.len())));
        }
        if let Some(i) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(wrong(format!(
                "label {} of image {i} is not below the {classes} classes",
                labels[i]
            )));
        }
        if let Some(i) = images.iter().position(|&pixel| pixel > white) {
            let problem =
                format!("pixel {} of image {} is {}, white is {white}", i % pixels, i / pixels, images[i]);
            return Err(wrong(problem));
        }
        Ok(ImageSet { images, channels, height, width, white, labels, classes })
    }

    /// All pixels, image by image, channel by channel, row by row.
    pub fn images(&self) -> &[u8] {
        &self.images
    }

    /// The pixels of image `i`.
    pub fn image(&self, i: usize) -> &[u8] {
        &self.images[i * self.pixels()..][..self.pixels()]
    }

    /// One class per image.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are no images.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// 1 (grey) or 3 (red, green, blue).
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Rows per image.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Columns per image.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes per image.
    pub fn pixels(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// The pixel value that stands for 1.
    pub fn white(&self) -> u8 {
        self.white
    }

    /// The number of classes; labels are below it.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// How many images each class has.
    pub fn label_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes];
        self.labels.iter().for_each(|&label| counts[label as usize] += 1);
        counts
    }

    /// Adds the images of `other`, which must have the same size and classes.
    pub fn append(&mut self, other: &ImageSet) -> Result<()> {
        let kind = |s: &ImageSet| (s.channels, s.height, s.width, s.white, s.classes);
        if kind(self) != kind(other) {
            return Err(DataError::request(
                format!(
                    "cannot join images of (channels, height, width, white, classes) {:?} and {:?}",
                    kind(self),
                    kind(other)
                ),
                "train and test images must be of one kind",
            ));
        }
        self.images.extend_from_slice(&other.images);
        self.labels.extend_from_slice(&other.labels);
        Ok(())
    }
}
