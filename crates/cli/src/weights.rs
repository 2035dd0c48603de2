//! Weights and injections from `.npy` and `.safetensors` files, checked before anything is computed with them.

use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use subdeq::map::position;
use subdeq::train::{check_regular_file, read_regular_file};
use subdeq_data::npy::{NpyArray, NpyData};

use crate::failure::Failure;

/// More weights than these fit into no layer that could be solved or certified.
const MAX_BYTES: u64 = 1 << 30;

/// An array of finite numbers with its shape.
pub struct Array {
    pub shape: Vec<usize>,
    pub data: Vec<f64>,
}

impl Array {
    /// Reads a file; `tensor` picks one of a `.safetensors` file.
    pub fn read(path: &Path, tensor: Option<&str>) -> Result<Array, Failure> {
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        let array = match extension.as_str() {
            "npy" => {
                if let Some(name) = tensor {
                    return Err(Failure::usage(format!(
                        "--tensor {name}: {} holds a single array without a name",
                        path.display()
                    )));
                }
                read_npy(path)?
            }
            "safetensors" => read_safetensors(path, tensor)?,
            _ => {
                return Err(Failure::other(format!(
                    "{} is neither a .npy nor a .safetensors file",
                    path.display()
                )));
            }
        };
        array.require_finite(path)?;
        Ok(array)
    }

    fn require_finite(&self, path: &Path) -> Result<(), Failure> {
        let Some(at) = self.data.iter().position(|x| !x.is_finite()) else { return Ok(()) };
        let place = position(&self.shape, at);
        Err(Failure::other(format!(
            "{}: entry {place:?} is {}, not a finite number",
            path.display(),
            self.data[at]
        )))
    }
}

fn read_npy(path: &Path) -> Result<Array, Failure> {
    check_regular_file(path, MAX_BYTES).map_err(Failure::other)?;
    let array = NpyArray::read(path).map_err(Failure::other)?;
    match array.data() {
        NpyData::F32(_) | NpyData::F64(_) => {
            let data = array.to_f64().map_err(Failure::other)?;
            Ok(Array { shape: array.shape().to_vec(), data })
        }
        _ => Err(Failure::other(format!(
            "{} holds {} values; f32 or f64 are needed",
            path.display(),
            array.dtype()
        ))),
    }
}

fn read_safetensors(path: &Path, tensor: Option<&str>) -> Result<Array, Failure> {
    let file = path.display();
    let bytes = read_regular_file(path, MAX_BYTES).map_err(Failure::other)?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|cause| Failure::other(format!("{file} is not a valid .safetensors file: {cause}")))?;
    let mut names = tensors.names();
    names.sort_unstable();
    let name = match (tensor, names.as_slice()) {
        (Some(name), _) => name,
        (None, [only]) => *only,
        (None, _) => {
            return Err(Failure::usage(format!(
                "{file} holds several tensors, name one with --tensor: {}",
                names.join(", ")
            )));
        }
    };
    let view = tensors
        .tensor(name)
        .map_err(|_| Failure::usage(format!("{file} has no tensor `{name}`; it has {}", names.join(", "))))?;
    let data = decode(&view).ok_or_else(|| {
        Failure::other(format!(
            "{file}: tensor `{name}` holds {:?} values; F32 or F64 are needed",
            view.dtype()
        ))
    })?;
    Ok(Array { shape: view.shape().to_vec(), data })
}

fn decode(view: &TensorView<'_>) -> Option<Vec<f64>> {
    let bytes = view.data();
    match view.dtype() {
        Dtype::F64 => Some(bytes.as_chunks::<8>().0.iter().map(|b| f64::from_le_bytes(*b)).collect()),
        Dtype::F32 => {
            Some(bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect())
        }
        _ => None,
    }
}
