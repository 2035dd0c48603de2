//! Images that people bring: pictures, arrays, IDX files.

use std::path::Path;

use subdeq::model::ClassifierSpec;
use subdeq::train::{DataConfig, check_regular_file, read_regular_file};
use subdeq_data::idx;
use subdeq_data::image_folder::decode_picture;
use subdeq_data::npy::{NpyArray, NpyData};

use crate::failure::Failure;

/// Most bytes of a picture.
const MAX_PICTURE: u64 = 64 << 20;
/// Most bytes of a file with many images.
const MAX_ARRAY: u64 = 1 << 30;

/// An image for a model.
pub struct Picture {
    /// The file, with the place in it if it holds several.
    pub name: String,
    /// Numbers from 0 to 1, channel after channel, row after row.
    values: Vec<f64>,
}

impl Picture {
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

/// All images of a file: .png or .jpg (one), .npy (one or several), anything else as IDX (.gz or not).
///
/// Bytes of arrays are on the scale of the model's data (0 to 255; 0 to 16 for the digits), numbers with a point go from 0
/// to 1, pictures from 0 to 255.
pub fn read(path: &Path, data: &DataConfig, model: &ClassifierSpec) -> Result<Vec<Picture>, Failure> {
    let name = path.display().to_string();
    let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default();
    check_regular_file(path, MAX_ARRAY).map_err(Failure::other)?;
    match ending.as_str() {
        "png" | "jpg" | "jpeg" => Ok(vec![picture(path, name, model)?]),
        "npy" => array(NpyArray::read(path).map_err(Failure::other)?, &name, data, model),
        _ => array(idx::read(path).map_err(Failure::other)?, &name, data, model),
    }
}

fn picture(path: &Path, name: String, model: &ClassifierSpec) -> Result<Picture, Failure> {
    let bytes = read_regular_file(path, MAX_PICTURE).map_err(Failure::other)?;
    let (channels, height, width, pixels) = decode_picture(&bytes, &name).map_err(Failure::other)?;
    if (height, width) != (model.height, model.width) || channels > model.channels {
        return Err(Failure::other(format!(
            "{name} is a {} picture of {height}x{width}; the model takes {} ones of {}x{}: convert it first",
            if channels == 1 { "grey" } else { "colour" },
            if model.channels == 1 { "grey" } else { "colour" },
            model.height,
            model.width
        )));
    }
    let plane: Vec<f64> = pixels.iter().map(|&p| f64::from(p) / 255.0).collect();
    // A grey picture is a colour picture with three equal channels.
    let values = if channels == model.channels { plane } else { plane.repeat(model.channels) };
    Ok(Picture { name, values })
}

fn array(
    array: NpyArray,
    name: &str,
    data: &DataConfig,
    model: &ClassifierSpec,
) -> Result<Vec<Picture>, Failure> {
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
        Picture {
            name: if count == 1 { name.to_owned() } else { format!("{name}[{index}]") },
            values: (0..image.len()).map(|i| planar(i) / scale).collect(),
        }
    };
    Ok(values.chunks_exact(h * w * c).enumerate().map(one).collect())
}
