//! Certificates for weights that somebody gives.

use numpy::{PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;
use subdeq::map::GivenWeights;
use subdeq::subdeq_map::{Operator, Overrides};
use subdeq::subdeq_theory::certify::Certifier;
use subdeq::{Layout, Map, Padding, Scope};

use crate::arrays::read;
use crate::certificate::Certificate;
use crate::error::{raise, refuse};
use crate::layer::scope;

/// Side of the images that a convolution is certified for unless their size is given.
const SIDE: usize = 8;

/// Weights as an operator: n x n, or c x c x 3 x 3 (or another side, for tori) on images of a size.
pub fn operator(
    map: &Map,
    weights: &PyReadonlyArrayDyn<'_, f64>,
    size: Option<(usize, usize)>,
    columns: Option<usize>,
) -> PyResult<Operator> {
    let (shape, data) = (weights.shape(), read("the weights", weights)?.to_vec());
    let graph = columns.is_some() || matches!(map.form(), subdeq::Form::Graph { .. });
    let built = match *shape {
        [n, m] if n == m && graph => sparse(n, columns.unwrap_or(1), &data),
        [n, m] if n == m => Operator::dense(n, data),
        [c, d, h, w] if c == d && h == w && !graph => {
            let padding = if map.is_monotone() { Padding::Circular } else { Padding::Zero };
            let (height, width) = size.unwrap_or((SIDE, SIDE));
            Operator::conv(c, height, width, padding, data)
        }
        _ => {
            return Err(refuse(format!(
                "weights of shape {shape:?}: they are n x n, or c x c x 3 x 3 for images"
            )));
        }
    };
    built.map_err(refuse)
}

/// The compressed rows of a square matrix.
fn sparse(n: usize, columns: usize, entries: &[f64]) -> Result<Operator, subdeq::subdeq_map::OperatorError> {
    let (mut offsets, mut neighbours, mut weights) = (vec![0], Vec::new(), Vec::new());
    for row in entries.chunks(n.max(1)) {
        for (j, &w) in row.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            neighbours.push(j);
            weights.push(w);
        }
        offsets.push(weights.len());
    }
    Operator::graph(columns, offsets, neighbours, weights)
}

/// See `subdeq.certify`. Images in `injection` are channel after channel, as the theory has them.
#[pyfunction]
#[pyo3(signature = (weights, map, size, inputs, injection, activation, shift, power, norm, teleport))]
#[allow(clippy::too_many_arguments)] // one per keyword of the Python function
pub fn certify(
    py: Python<'_>,
    weights: PyReadonlyArrayDyn<'_, f64>,
    map: &str,
    size: Option<(usize, usize)>,
    inputs: Option<&str>,
    injection: Option<PyReadonlyArrayDyn<'_, f64>>,
    activation: Option<&str>,
    shift: Option<f64>,
    power: Option<f64>,
    norm: Option<&str>,
    teleport: Option<f64>,
) -> PyResult<Certificate> {
    let name = map;
    let layout = match weights.shape().len() {
        4 => Layout::Conv,
        _ if Map::is_of_graph(name) => Layout::Graph,
        _ => Layout::Dense,
    };
    let overrides = Overrides {
        activation: activation.map(str::parse).transpose().map_err(refuse)?,
        shift,
        power,
        norm: norm.map(str::parse).transpose().map_err(refuse)?,
        teleport,
    };
    let map = Map::named(name, layout).and_then(|map| map.with(&overrides, layout)).map_err(refuse)?;
    let injection = injection.as_ref().map(|y| read("the injection", y)).transpose()?;
    let columns = match (layout, injection) {
        (Layout::Graph, Some(y)) => Some((y.len() / weights.shape()[0].max(1)).max(1)),
        _ => None,
    };
    let plain = operator(&map, &weights, size, columns)?;
    let given = GivenWeights::new(name, &map, weights.shape(), read("the weights", &weights)?.to_vec());
    let GivenWeights { data, absolute } = given.map_err(raise)?;
    let operator = match plain {
        Operator::Dense(_) if absolute => Operator::dense(weights.shape()[0], data).map_err(refuse)?,
        Operator::Conv(_) if absolute => {
            let (height, width) = size.unwrap_or((SIDE, SIDE));
            Operator::conv(weights.shape()[0], height, width, Padding::Zero, data).map_err(refuse)?
        }
        plain => plain,
    };
    let scope = match injection {
        Some(y) => Scope::Sample { y: y.to_vec() },
        None => scope(inputs, &map)?,
    };
    let certificate = py.detach(|| Certifier::new().certify(&map, &operator, &scope)).map_err(refuse)?;
    Ok(Certificate::about(certificate, operator))
}
