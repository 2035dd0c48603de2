//! Peaceman-Rachford splitting for circular convolutions, in the frequency domain.

pub(crate) mod fft;
pub(crate) mod inverse;
pub(crate) mod operator;
pub(crate) mod plane;
pub(crate) mod product;
pub(crate) mod sweep;
