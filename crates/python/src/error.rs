//! Errors as Python has them; the sentences are the crate's.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};

create_exception!(
    subdeq,
    NotConverged,
    PyRuntimeError,
    "A solve, or the adjoint solve of a gradient, did not end within its tolerance."
);
create_exception!(subdeq, NoCertificate, PyValueError, "A promise was asked for that has no proof.");

/// The crate's error as an exception.
pub fn raise(error: subdeq::Error) -> PyErr {
    let sentence = error.to_string();
    match error {
        subdeq::Error::NotConverged { .. } => NotConverged::new_err(sentence),
        subdeq::Error::NoCertificate { .. } => NoCertificate::new_err(sentence),
        _ => PyValueError::new_err(sentence),
    }
}

/// Anything else that has a sentence to say.
pub fn refuse(why: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(why.to_string())
}
