//! Norms and factors of linear parts.

use super::Device;
use crate::{Operator, Result};

/// A device that knows what the choice of a splitting's step needs.
pub trait Spectra: Device {
    /// The factor `||(I - t(I - W)) (I + t(I - W))^-1||_2` of Peaceman-Rachford's splitting at step `t`, for a
    /// convolution the largest over at most `frequencies` of its frequencies, evenly spread: to choose `t` by.
    fn splitting_factor(
        &self,
        operator: &Operator,
        w: &Self::Array,
        step: f64,
        frequencies: usize,
    ) -> Result<f64>;
    /// `sqrt(||W||_1 ||W||_inf) >= ||W||_2`.
    fn norm_bound(&self, operator: &Operator, w: &Self::Array) -> Result<f64>;
}
