//! The tight degree of subhomogeneity.

use pyo3::prelude::*;
use subdeq::Activation;
use subdeq::subdeq_theory::degree::{Domain, Nonlinearity};

use crate::error::refuse;

/// See `subdeq.degree`.
#[pyfunction]
#[pyo3(signature = (activation, shift, power, domain))]
pub fn degree(activation: &str, shift: f64, power: f64, domain: &str) -> PyResult<f64> {
    if !(shift.is_finite() && power.is_finite() && power > 0.0) {
        return Err(refuse(format!(
            "shift must be a finite number and power one above 0, not {shift} and {power}"
        )));
    }
    let activation: Activation = activation.parse().map_err(refuse)?;
    let domain = match domain {
        "reals" => Domain::Reals,
        "nonnegative" => Domain::Nonnegative,
        other => return Err(refuse(format!("domain must be 'reals' or 'nonnegative', not '{other}'"))),
    };
    let degree = Nonlinearity { activation, shift, power }.degree(domain).map_err(refuse)?;
    Ok(degree.bound())
}
