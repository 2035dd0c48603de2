//! Peaceman-Rachford splitting for circular convolutions, in the frequency domain (THEORY A7).
//!
//! A circular convolution is a complex `c x c` matrix at each frequency, so the resolvent `R = (I + t (I - W))^-1` is computed
//! exactly, frequency by frequency, once per weights and step ([`Operator::load`]). One iteration transforms the images,
//! multiplies each frequency by its matrix and transforms back ([`sweep`]); the proximal step of the activation and the
//! residual are fused into the passes over the rows.
//!
//! [`Forward`] and [`Adjoint`] are the fixed-point problems that the drivers iterate (plainly: the splitting contracts).

mod adjoint;
mod convolution;
mod fft;
mod forward;
mod gradient;
mod inverse;
mod operator;
mod pixels;
mod plane;
mod product;
mod sweep;
mod symbol;
mod table;
#[cfg(target_arch = "x86_64")]
mod tiled;

pub(crate) use adjoint::Adjoint;
pub(crate) use convolution::{Convolution, ConvolutionScratch};
pub(crate) use forward::Forward;
pub(crate) use operator::Operator;
pub(crate) use symbol::Kernel;

use super::buffer::Buffer;
use super::conv::{Accuracy, Grade};
use super::simd::SimdReal;
use sweep::Scratch;

/// What one worker needs to iterate blocks of at most `block` images.
pub(crate) struct Memory<T: SimdReal> {
    scratch: Scratch<T>,
    /// The constant `k` of each image.
    constant: Buffer<T>,
    /// The adjoint's `r` of each image.
    reflection: Buffer<T>,
    row: Buffer<T>,
    images: Vec<usize>,
    /// How accurately the steps are computed, where there is a choice.
    grade: Option<Grade>,
}

impl<T: SimdReal> Memory<T> {
    pub(crate) fn new(operator: &Operator<T>, block: usize) -> Self {
        let len = block * pixels::Pixels::of(&operator.forward).padded_len();
        Self {
            scratch: Scratch::new(&operator.forward, block),
            constant: Buffer::zeros(len),
            reflection: Buffer::zeros(len),
            row: Buffer::zeros(operator.forward.plane.width * operator.forward.plane.channels),
            images: Vec::with_capacity(block),
            grade: operator.forward.is_graded().then(Grade::default),
        }
    }

    fn accuracy(&self) -> Accuracy {
        self.grade.map_or(Accuracy::Full, |grade| grade.accuracy())
    }
}

#[cfg(test)]
mod tests;
