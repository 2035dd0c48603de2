//! One picture: a PNG or JPEG file as planes of bytes, brought to the channels and the size that somebody needs.

use std::io::Cursor;

use image::imageops::{self, FilterType};
use image::{DynamicImage, GrayImage, ImageFormat, ImageReader, Limits};

use crate::budget::picture_allowance;
use crate::error::{DataError, GET_AGAIN, Place, Result};

/// Most rows and columns.
pub const MAX_SIDE: u32 = 4096;
/// Bytes that a decoder may take.
const MAX_ALLOCATION: u64 = 1 << 28;

/// A picture of one channel (grey) or three (red, green, blue).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// 1 or 3.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Bytes from 0 to 255, channel after channel, row after row.
    pub planes: Vec<u8>,
}

/// What is wrong with a picture, and what to do about it.
pub(crate) struct Fault {
    pub problem: String,
    pub remedy: &'static str,
}

impl Fault {
    /// As an error about a file.
    pub(crate) fn at(self, file: &str, place: Place) -> DataError {
        DataError::malformed(file, place, self.problem, self.remedy)
    }
}

fn unreadable(why: &image::ImageError) -> Fault {
    Fault { problem: format!("not a readable picture ({why})"), remedy: GET_AGAIN }
}

/// The name of the picture format that the first bytes of a file show, whether it is read here or not.
///
/// ```
/// use subdeq_data::picture::format_of;
/// assert_eq!(format_of(b"BM\x46\0\0\0\0\0"), Some("BMP"));
/// assert_eq!(format_of(b"\x93NUMPY"), None);
/// ```
pub fn format_of(bytes: &[u8]) -> Option<&'static str> {
    image::guess_format(bytes).ok().map(name_of)
}

fn name_of(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Png => "PNG",
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Bmp => "BMP",
        ImageFormat::Gif => "GIF",
        ImageFormat::WebP => "WebP",
        ImageFormat::Tiff => "TIFF",
        ImageFormat::Avif => "AVIF",
        other => other.extensions_str().first().copied().unwrap_or("unknown"),
    }
}

/// Rows and columns of a picture, from its head: they decide how much memory it takes.
pub(crate) fn size(bytes: &[u8]) -> std::result::Result<(u32, u32), Fault> {
    let remedy = "PNG and JPEG pictures are read: convert it first";
    match image::guess_format(bytes) {
        Ok(ImageFormat::Png | ImageFormat::Jpeg) => {}
        Ok(other) => return Err(Fault { problem: format!("is a {} picture", name_of(other)), remedy }),
        Err(_) => return Err(Fault { problem: "not a readable picture".to_owned(), remedy }),
    }
    let size = reader(bytes).and_then(ImageReader::into_dimensions);
    let (width, height) = size.map_err(|why| unreadable(&why))?;
    if width > MAX_SIDE || height > MAX_SIDE {
        let problem = format!("too large: {height} x {width}, at most {MAX_SIDE} x {MAX_SIDE}");
        return Err(Fault { problem, remedy: "bring it to the size that is needed first" });
    }
    Ok((height, width))
}

/// The picture; its [`size`] was looked at before.
pub(crate) fn decode(bytes: &[u8]) -> std::result::Result<Picture, Fault> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits.max_alloc = Some(MAX_ALLOCATION);
    let image = reader(bytes).and_then(|mut reader| {
        reader.limits(limits);
        reader.decode()
    });
    let image = image.map_err(|why| unreadable(&why))?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    if image.color().has_color() {
        Ok(Picture { channels: 3, height, width, planes: planes(&image) })
    } else {
        Ok(Picture { channels: 1, height, width, planes: image.into_luma8().into_raw() })
    }
}

fn reader(bytes: &[u8]) -> image::ImageResult<ImageReader<Cursor<&[u8]>>> {
    ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(image::ImageError::IoError)
}

fn planes(image: &DynamicImage) -> Vec<u8> {
    let rgb = image.to_rgb8().into_raw();
    (0..3).flat_map(|channel| rgb.iter().skip(channel).step_by(3).copied()).collect()
}

impl Picture {
    /// Decodes a PNG or JPEG file; `name` is used in errors.
    ///
    /// # Errors
    /// Another format, which is named; a picture that is damaged, too large, or unpacks to far more than its file justifies.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Picture> {
        let (height, width) = size(bytes).map_err(|fault| fault.at(name, Place::Whole))?;
        if 3 * u64::from(height) * u64::from(width) > picture_allowance(bytes.len() as u64) {
            let problem = format!("too large: {height} x {width} out of a file of {} bytes", bytes.len());
            let remedy = "bring it to the size that is needed first";
            return Err(DataError::malformed(name, Place::Whole, problem, remedy));
        }
        decode(bytes).map_err(|fault| fault.at(name, Place::Whole))
    }

    /// The picture with so many channels: a grey one has three equal channels in colour, and grey is the luminance of
    /// colours (0.2126 red, 0.7152 green, 0.0722 blue).
    #[must_use]
    pub fn with_channels(self, channels: usize) -> Picture {
        let planes = match (self.channels, channels) {
            (1, 3) => self.planes.repeat(3),
            (3, 1) => {
                let (red, rest) = self.planes.split_at(self.height * self.width);
                let (green, blue) = rest.split_at(self.height * self.width);
                let luminance = |((&r, &g), &b): ((&u8, &u8), &u8)| {
                    ((2126 * u32::from(r) + 7152 * u32::from(g) + 722 * u32::from(b) + 5000) / 10_000) as u8
                };
                red.iter().zip(green).zip(blue).map(luminance).collect()
            }
            _ => return self,
        };
        Picture { channels, planes, ..self }
    }

    /// The picture with so many rows and columns, each pixel a weighted mean of those it covers.
    #[must_use]
    pub fn resized(self, height: usize, width: usize) -> Picture {
        if (self.height, self.width) == (height, width) {
            return self;
        }
        let mut planes = Vec::with_capacity(self.channels * height * width);
        for plane in self.planes.chunks_exact(self.height * self.width) {
            // A plane has as many bytes as rows times columns.
            let plane = GrayImage::from_raw(self.width as u32, self.height as u32, plane.to_vec())
                .unwrap_or_default();
            let resized = imageops::resize(&plane, width as u32, height as u32, FilterType::Triangle);
            planes.extend(resized.into_raw());
        }
        Picture { height, width, planes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grey_and_colour_and_back() {
        let grey = Picture { channels: 1, height: 1, width: 2, planes: vec![7, 250] };
        let colour = grey.clone().with_channels(3);
        assert_eq!(colour.planes, [7, 250, 7, 250, 7, 250]);
        assert_eq!(colour.with_channels(1), grey);
        let green = Picture { channels: 3, height: 1, width: 1, planes: vec![0, 255, 0] };
        assert_eq!(green.with_channels(1).planes, [182]);
    }

    #[test]
    fn resizing_keeps_what_is_even_and_averages_what_is_not() {
        let even = Picture { channels: 3, height: 4, width: 6, planes: vec![90; 72] };
        assert_eq!(even.resized(2, 3), Picture { channels: 3, height: 2, width: 3, planes: vec![90; 18] });
        let halves = Picture { channels: 1, height: 1, width: 4, planes: vec![0, 0, 200, 200] };
        let small = halves.resized(1, 2).planes;
        assert!(small[0] < 60 && small[1] > 140, "{small:?}");
    }
}
