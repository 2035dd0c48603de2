//! Sheets: many small RGB images of one size in a lossless JPEG XL picture, row by row.

use std::path::Path;

use jxl_oxide::{AllocTracker, JxlImage, PixelFormat};

use crate::budget::picture_allowance;
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::source;

/// A sheet holds at most this many pixels (ours have 3200 x 3200).
const MAX_PIXELS: u64 = 1 << 26;
/// Memory the decoder may use for a sheet of the largest size, and for one of a few bytes; between them in proportion to
/// the file.
const MAX_MEMORY: u64 = 4 << 30;
const SMALL_MEMORY: u64 = 128 << 20;
const MEMORY_PER_BYTE: u64 = 128;

/// A decoded picture, 8-bit RGB, row by row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sheet {
    width: usize,
    height: usize,
    rgb: Vec<u8>,
}

impl Sheet {
    /// Decodes a `.jxl` file.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = source::read_whole(path)?;
        Self::from_bytes(&bytes, &path.display().to_string())
    }

    /// Decodes a JPEG XL picture in memory; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let damaged = |problem: String| DataError::malformed(name, Place::Whole, problem, GET_AGAIN);
        let undecodable =
            |e: Box<dyn std::error::Error + Send + Sync>| damaged(format!("not decodable ({e})"));
        let length = bytes.len() as u64;
        let memory = length.saturating_mul(MEMORY_PER_BYTE).saturating_add(SMALL_MEMORY).min(MAX_MEMORY);
        let tracker = AllocTracker::with_limit(usize::try_from(memory).unwrap_or(usize::MAX));
        let image = JxlImage::builder().alloc_tracker(tracker).read(bytes).map_err(undecodable)?;
        let (width, height) = (image.width(), image.height());
        let pixels = u64::from(width) * u64::from(height);
        if pixels > MAX_PIXELS || 3 * pixels > picture_allowance(length) {
            return Err(damaged(format!(
                "{width} x {height} pixels are too many for a sheet of {length} bytes"
            )));
        }
        let bits = image.image_header().metadata.bit_depth.bits_per_sample();
        if image.pixel_format() != PixelFormat::Rgb || bits != 8 {
            let problem = format!("{:?} with {bits} bits, 8-bit RGB expected", image.pixel_format());
            return Err(DataError::malformed(
                name,
                Place::Field("header".into()),
                problem,
                "convert the picture",
            ));
        }
        let render = image.render_frame(0).map_err(undecodable)?;
        let mut stream = render.stream_no_alpha();
        if (stream.width(), stream.height(), stream.channels()) != (width, height, 3) {
            return Err(damaged(format!("the frame is {} x {}", stream.width(), stream.height())));
        }
        let mut rgb = vec![0u8; width as usize * height as usize * 3];
        if stream.write_to_buffer(&mut rgb) != rgb.len() {
            return Err(damaged("the frame is incomplete".to_owned()));
        }
        Ok(Sheet { width: width as usize, height: height as usize, rgb })
    }

    /// Appends the first `count` images of `side` x `side` pixels to `images`, planes R, G, B.
    pub fn cut(&self, side: usize, count: usize, name: &str, images: &mut Vec<u8>) -> Result<()> {
        // A side of 0 divides nothing but 0, and is refused with the rest.
        let (columns, rows) =
            (self.width.checked_div(side).unwrap_or(0), self.height.checked_div(side).unwrap_or(0));
        let fits = self.width.is_multiple_of(side) && self.height.is_multiple_of(side);
        if !fits || columns * rows < count {
            let problem = format!(
                "a sheet of {} x {} pixels does not hold {count} images of {side} x {side}",
                self.width, self.height
            );
            return Err(DataError::malformed(
                name,
                Place::Whole,
                problem,
                "check sheet and label file belong together",
            ));
        }
        images.reserve(count * 3 * side * side);
        for i in 0..count {
            let (top, left) = (i / columns * side, i % columns * side);
            for channel in 0..3 {
                for y in top..top + side {
                    let start = (y * self.width + left) * 3 + channel;
                    images.extend(self.rgb[start..].iter().step_by(3).take(side));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_row_by_row_into_planes() {
        // Two images of 2 x 2 side by side; pixel value = 10 * image + position, per channel + 100.
        let pixel = |image: u8, p: u8| [10 * image + p, 100 + 10 * image + p, 200 + p];
        let rows = [
            [pixel(0, 0), pixel(0, 1), pixel(1, 0), pixel(1, 1)],
            [pixel(0, 2), pixel(0, 3), pixel(1, 2), pixel(1, 3)],
        ];
        let sheet = Sheet { width: 4, height: 2, rgb: rows.concat().concat() };
        let mut images = Vec::new();
        sheet.cut(2, 2, "t", &mut images).unwrap();
        assert_eq!(images[..12], [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203]);
        assert_eq!(images[12..16], [10, 11, 12, 13]);
        assert!(sheet.cut(2, 3, "t", &mut images).is_err());
    }

    #[test]
    fn other_files_are_refused() {
        assert!(Sheet::from_bytes(b"", "t").is_err());
        assert!(Sheet::from_bytes(b"\x89PNG\r\n", "t").is_err());
    }
}
