//! The weights of the network that makes injections, on the host: what files and classifiers hold.

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_engine::{EncoderShape, Graphs};

use crate::train::ArraySizes;
use crate::{Error, Result};

/// Names of a network's arrays in files.
const ARRAYS: [&str; 4] = ["hidden", "hidden-bias", "output", "output-bias"];

/// The four arrays of a network, row after row (see [`EncoderShape`]).
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderWeights {
    /// Its sizes.
    pub shape: EncoderShape,
    /// `W1`, `b1`, `W2`, `b2`.
    pub arrays: [Vec<f32>; 4],
}

impl EncoderWeights {
    /// The published code's first weights: Glorot's uniform for matrices, uniform in `+-1/sqrt(outputs)` for biases.
    pub(super) fn first(shape: EncoderShape, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let EncoderShape { features, hidden, classes } = shape;
        let glorot = |inputs: usize, outputs: usize| (6.0 / (inputs + outputs) as f64).sqrt();
        let bias = |outputs: usize| 1.0 / (outputs as f64).sqrt();
        let bounds = [glorot(features, hidden), bias(hidden), glorot(hidden, classes), bias(classes)];
        let lens = shape.arrays().map(|[rows, cols]| rows * cols);
        let mut draw = |bound: f64| {
            let unit = (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
            (bound * (2.0 * unit - 1.0)) as f32
        };
        let arrays = std::array::from_fn(|k| (0..lens[k]).map(|_| draw(bounds[k])).collect());
        Self { shape, arrays }
    }

    /// A step of a running mean: `share` of it is kept, the rest is `new`.
    pub(super) fn average(&mut self, new: &Self, share: f64) {
        for (mean, new) in self.arrays.iter_mut().flatten().zip(new.arrays.iter().flatten()) {
            *mean = (share * f64::from(*mean) + (1.0 - share) * f64::from(*new)) as f32;
        }
    }

    /// All zero.
    pub(super) fn zeros(shape: EncoderShape) -> Self {
        Self { shape, arrays: shape.arrays().map(|[rows, cols]| vec![0.0; rows * cols]) }
    }

    /// The arrays of the names `part.array` in a file.
    pub(super) fn from_file(tensors: &[(String, Vec<f32>)], part: &str, shape: EncoderShape) -> Result<Self> {
        let mut arrays: [Vec<f32>; 4] = Default::default();
        for (k, [rows, cols]) in shape.arrays().into_iter().enumerate() {
            let name = format!("{part}.{}", ARRAYS[k]);
            let Some((_, numbers)) = tensors.iter().find(|(found, _)| *found == name) else {
                return Err(Error::invalid(format!("the file has no array `{name}`")));
            };
            if numbers.len() != rows * cols {
                return Err(Error::invalid(format!(
                    "the array `{name}` has {} numbers, this graph and model need {rows} x {cols}",
                    numbers.len()
                )));
            }
            arrays[k].clone_from(numbers);
        }
        Ok(Self { shape, arrays })
    }

    /// The arrays under the names `part.array`.
    pub(super) fn to_file(&self, part: &str) -> Vec<(String, Vec<f32>)> {
        let named = ARRAYS.iter().zip(&self.arrays);
        named.map(|(name, array)| (format!("{part}.{name}"), array.clone())).collect()
    }

    /// What a device holds.
    pub(super) fn read<D: Graphs<Elem = f32>>(
        device: &D,
        encoder: &D::Encoder,
        shape: EncoderShape,
    ) -> Result<Self> {
        Ok(Self { shape, arrays: device.read_encoder(encoder)? })
    }

    /// The same on a device.
    pub(super) fn upload<D: Graphs<Elem = f32>>(&self, device: &D) -> Result<D::Encoder> {
        Ok(device.encoder(self.shape, self.arrays.each_ref().map(Vec::as_slice))?)
    }
}

/// Names and lengths of what [`EncoderWeights::to_file`] gives.
pub(super) fn encoder_arrays(parts: &[&str], shape: EncoderShape) -> Result<ArraySizes> {
    let EncoderShape { features, hidden, classes } = shape;
    let lens = || {
        let product = |a: usize, b: usize| (a as u64).checked_mul(b as u64);
        Some([product(features, hidden)?, hidden as u64, product(hidden, classes)?, classes as u64])
    };
    let lens = lens().filter(|lens| !lens.contains(&0)).ok_or_else(|| {
        Error::invalid(format!("a network of {features} features, {hidden} units and {classes} classes"))
    })?;
    let named = |part| ARRAYS.iter().zip(lens).map(move |(name, len)| (format!("{part}.{name}"), len));
    Ok(parts.iter().flat_map(named).collect())
}
