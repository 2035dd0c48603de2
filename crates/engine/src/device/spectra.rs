//! Norms and factors of linear parts.

use super::Device;
use crate::{Operator, Result};

/// A device that knows what the choice of a splitting's step needs.
pub trait Spectra: Device {
    /// How much of an error one iteration of Peaceman-Rachford's splitting leaves at step `t` in the usual direction: the mean
    /// `(mean of s^256)^(1/256)` of the singular values `s` of `(I - t(I - W)) (I + t(I - W))^-1`, for a convolution over at most
    /// `frequencies` of its frequencies, evenly spread. To choose `t` by; it bounds nothing.
    fn splitting_rate(
        &self,
        operator: &Operator,
        w: &Self::Array,
        step: f64,
        frequencies: usize,
    ) -> Result<f64>;
    /// `sqrt(||W||_1 ||W||_inf) >= ||W||_2`.
    fn norm_bound(&self, operator: &Operator, w: &Self::Array) -> Result<f64>;
}
