//! Arrays as slices, with sentences for those that are not.

use numpy::{PyReadonlyArrayDyn, PyReadwriteArrayDyn, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::error::refuse;

/// The numbers of a contiguous array.
pub fn read<'a, T: numpy::Element>(what: &str, array: &'a PyReadonlyArrayDyn<'_, T>) -> PyResult<&'a [T]> {
    array.as_slice().map_err(|_| not_contiguous(what, array.shape()))
}

/// The numbers of a contiguous array, to be written.
pub fn write<'a, T: numpy::Element>(
    what: &str,
    array: &'a mut PyReadwriteArrayDyn<'_, T>,
) -> PyResult<&'a mut [T]> {
    let shape = array.shape().to_vec();
    array.as_slice_mut().map_err(|_| not_contiguous(what, &shape))
}

fn not_contiguous(what: &str, shape: &[usize]) -> PyErr {
    refuse(format!(
        "{what} of shape {shape:?} does not lie row after row in memory: use numpy.ascontiguousarray"
    ))
}

/// Refuses another number of entries.
pub fn expect_len(what: &str, found: usize, expected: usize) -> PyResult<()> {
    if found == expected {
        return Ok(());
    }
    Err(refuse(format!("{what} has {found} numbers, {expected} are needed")))
}
