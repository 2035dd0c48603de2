//! Images that people bring: pictures, arrays, IDX files.

use std::io::Read;
use std::path::{Path, PathBuf};

use subdeq::model::ClassifierSpec;
use subdeq::train::{DataConfig, read_regular_file};
use subdeq_data::idx;
use subdeq_data::image_folder::pictures_below;
use subdeq_data::npy::{NpyArray, NpyData};
use subdeq_data::picture::{self, Picture};

use crate::failure::Failure;

/// Most bytes of a file.
const MAX_BYTES: u64 = 1 << 30;
/// What stands for standard input.
const STANDARD_INPUT: &str = "-";

/// An image for a model.
pub struct Image {
    /// The file, with the place in it if it holds several.
    pub name: String,
    /// What was done to it so that it fits the model, in words; empty if nothing.
    pub changes: Vec<String>,
    /// Numbers from 0 to 1, channel after channel, row after row.
    values: Vec<f64>,
}

impl Image {
    /// As a model takes it: standardised.
    pub fn standardised(&self, data: &DataConfig, model: &ClassifierSpec) -> Vec<f32> {
        let plane = model.height * model.width;
        let number = |(at, value): (usize, &f64)| {
            let channel = at / plane;
            ((value - data.mean[channel]) / data.deviation[channel]) as f32
        };
        self.values.iter().enumerate().map(number).collect()
    }
}

/// What a model takes.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// Scale of its data.
    pub data: &'a DataConfig,
    /// Its shape.
    pub model: &'a ClassifierSpec,
    /// Whether pictures of another size are brought to the model's.
    pub resize: bool,
}

/// The files that a path stands for: the pictures of a folder, or itself.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() { pictures_below(path).map_err(Failure::other) } else { Ok(vec![path.to_owned()]) }
}

/// All images of a file, or of standard input (`-`): PNG or JPEG (one), .npy (one or several), IDX (.gz or not), told apart by
/// what they hold.
///
/// Bytes of arrays are on the scale of the model's data (0 to 255; 0 to 16 for the digits), numbers with a point go from 0
/// to 1, pictures from 0 to 255.
pub fn read(path: &Path, wanted: Wanted<'_>) -> Result<Vec<Image>, Failure> {
    let (name, bytes) = if path.as_os_str() == STANDARD_INPUT {
        ("standard input".to_owned(), read_standard_input()?)
    } else {
        (path.display().to_string(), read_regular_file(path, MAX_BYTES).map_err(Failure::other)?)
    };
    let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    if bytes.starts_with(b"\x93NUMPY") || ending == "npy" {
        return array(NpyArray::from_bytes(&bytes, &name).map_err(Failure::other)?, &name, wanted);
    }
    if picture::format_of(&bytes).is_some() || matches!(ending.as_str(), "png" | "jpg" | "jpeg") {
        let picture = Picture::from_bytes(&bytes, &name).map_err(Failure::other)?;
        return Ok(vec![fitted(picture, name, wanted)?]);
    }
    array(idx::from_bytes(&bytes, &name).map_err(Failure::other)?, &name, wanted)
}

fn read_standard_input() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    std::io::stdin()
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|why| Failure::other(format!("standard input cannot be read: {why}")))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Failure::other(format!("standard input has more than {MAX_BYTES} bytes")));
    }
    Ok(bytes)
}

/// A picture with the channels and, if that is wanted, the size of the model.
fn fitted(picture: Picture, name: String, wanted: Wanted<'_>) -> Result<Image, Failure> {
    let ClassifierSpec { channels, height, width, .. } = *wanted.model;
    let mut changes = Vec::new();
    if (picture.height, picture.width) != (height, width) {
        let found = format!("{} x {}", picture.height, picture.width);
        if !wanted.resize {
            return Err(Failure::other(format!(
                "{name} is a picture of {found}, the model takes {height} x {width}: --resize brings it to that size"
            )));
        }
        changes.push(format!("resized from {found} to {height} x {width}"));
    }
    match (picture.channels, channels) {
        (3, 1) => changes.push("grey from colour".to_owned()),
        (1, 3) => changes.push("colour from grey".to_owned()),
        _ => {}
    }
    let planes = picture.with_channels(channels).resized(height, width).planes;
    Ok(Image { name, changes, values: planes.iter().map(|&p| f64::from(p) / 255.0).collect() })
}

fn array(array: NpyArray, name: &str, wanted: Wanted<'_>) -> Result<Vec<Image>, Failure> {
    let Wanted { data, model, .. } = wanted;
    let (h, w, c) = (model.height, model.width, model.channels);
    let shape = array.shape().to_vec();
    // (N,) H x W, (N,) C x H x W or (N,) H x W x C.
    let (count, channels_last) = match shape[..] {
        [a, b] if (a, b) == (h, w) && c == 1 => (1, false),
        [n, a, b] if (a, b) == (h, w) && c == 1 => (n, false),
        [k, a, b] if (k, a, b) == (c, h, w) => (1, false),
        [n, k, a, b] if (k, a, b) == (c, h, w) => (n, false),
        [a, b, k] if (a, b, k) == (h, w, c) => (1, true),
        [n, a, b, k] if (a, b, k) == (h, w, c) => (n, true),
        _ => {
            return Err(Failure::other(format!(
                "{name} has the shape {shape:?}; the model takes images of {h} x {w}{}",
                if c == 1 { String::new() } else { format!(" x {c}") }
            )));
        }
    };
    let (scale, limit) = match array.data() {
        NpyData::U8(_) => (f64::from(data.white), f64::from(data.white)),
        _ => (1.0, 1.0),
    };
    let values = array.to_f64().map_err(Failure::other)?;
    if let Some(at) = values.iter().position(|x| !(0.0..=limit).contains(x)) {
        return Err(Failure::other(format!(
            "{name}: number {} of image {} is {}, not between 0 and {limit}: bytes go from 0 to {}, other numbers from 0 to 1",
            at % (h * w * c),
            at / (h * w * c),
            values[at],
            data.white
        )));
    }
    let one = |(index, image): (usize, &[f64])| {
        let planar = |i: usize| if channels_last { image[i % (h * w) * c + i / (h * w)] } else { image[i] };
        Image {
            name: if count == 1 { name.to_owned() } else { format!("{name}[{index}]") },
            changes: Vec::new(),
            values: (0..image.len()).map(|i| planar(i) / scale).collect(),
        }
    };
    Ok(values.chunks_exact(h * w * c).enumerate().map(one).collect())
}
