//! Weights whose 2-norm is kept at a number, update by update.
//!
//! A matrix is moved to the nearest one whose singular values are all the same: Newton and Schulz's iteration `X <- X (3 - X^T X)/2`,
//! written as `P X` with small `P`. A step takes every singular value from 0 to below sqrt(3) to at most 1, so that the bound holds however
//! far the iteration has come; those between a tenth and two and a half are at 1 after all of it. It starts from the weights alone: nothing
//! has to be remembered, and a run that is continued has the same bits.
//!
//! A convolution is divided by a bound of its norm.

use subdeq_engine::network::LinearShape;
use subdeq_engine::{Backend, Real};
use subdeq_theory::norm::convolution_norm;

use super::affine::AffineShape;
use crate::{Error, Result};

/// Steps of the iteration.
const STEPS: usize = 8;
/// What weights are divided by before it: an update may have made them larger than they are kept at.
const ROOM: f64 = 1.5;

/// Keeps weights at a norm.
pub(super) struct Isometry<A> {
    shape: AffineShape,
    norm: f64,
    /// Of a matrix.
    room: Option<Room<A>>,
}

/// Room for the iteration, for `n` rows of `k` numbers.
struct Room<A> {
    /// `n x n`: 1, `X X^T`, the polynomial of a step, the product of all of them, and one more.
    one: A,
    gram: A,
    step: A,
    product: A,
    other: A,
    /// `n x k`.
    result: A,
    unused: A,
    /// `n`.
    zero: A,
    unused_bias: A,
}

impl<A: Send + Sync> Isometry<A> {
    pub fn new<D: Backend<Array = A>>(device: &D, shape: AffineShape, norm: f64) -> Result<Self> {
        let room = match shape {
            AffineShape::Conv(_) => None,
            AffineShape::Linear { inputs: k, outputs: n } => {
                let entry = |at: usize| if at.is_multiple_of(n + 1) { D::Elem::ONE } else { D::Elem::ZERO };
                let square = || device.zeros(n * n);
                Some(Room {
                    one: device.upload(&(0..n * n).map(entry).collect::<Vec<_>>())?,
                    gram: square()?,
                    step: square()?,
                    product: square()?,
                    other: square()?,
                    result: device.zeros(n * k)?,
                    unused: device.zeros(n * k)?,
                    zero: device.zeros(n)?,
                    unused_bias: device.zeros(n)?,
                })
            }
        };
        Ok(Self { shape, norm, room })
    }

    /// Brings weights back to the norm.
    pub fn hold<D: Backend<Array = A>>(&mut self, device: &D, weight: &mut A) -> Result<()> {
        let norm = self.norm;
        match (self.shape, &mut self.room) {
            (AffineShape::Linear { inputs, outputs }, Some(room)) => {
                room.hold(device, (outputs, inputs), norm, weight)
            }
            (AffineShape::Conv(shape), _) => {
                let mut host = vec![D::Elem::ZERO; 9 * shape.inputs * shape.outputs];
                device.read(weight, 0, &mut host)?;
                let kernel: Vec<f64> = host.iter().map(|w| w.to_f64()).collect();
                let found =
                    convolution_norm([shape.outputs, shape.inputs, 3], [shape.height, shape.width], &kernel);
                if !found.is_finite() {
                    return Err(Error::invalid(
                        "the weights of an injection are not finite: training has diverged",
                    ));
                }
                let factor = norm / found;
                host.iter_mut().zip(kernel).for_each(|(w, kernel)| *w = D::Elem::from_f64(factor * kernel));
                Ok(device.write(weight, 0, &host)?)
            }
            (AffineShape::Linear { .. }, None) => Err(Error::invalid("a matrix without room to be held in")),
        }
    }
}

impl<A: Send + Sync> Room<A> {
    fn hold<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        (n, k): (usize, usize),
        norm: f64,
        weight: &mut A,
    ) -> Result<()> {
        let Self { one, gram, step, product, other, result, unused, zero, unused_bias } = self;
        // `x w^T`; all but the weights are symmetric.
        let times = |inputs: usize, x: &A, w: &A, y: &mut A| {
            device.linear(LinearShape { batch: n, inputs, outputs: n }, x, w, zero, false, y)
        };
        let square = n * n;
        times(k, weight, weight, other)?;
        device.fill(square, 0.0, gram)?;
        device.axpy(square, (ROOM * norm).powi(-2), other, gram)?;
        device.copy(square, one, product)?;
        for round in 1..=STEPS {
            device.fill(square, 0.0, step)?;
            device.axpy(square, 1.5, one, step)?;
            device.axpy(square, -0.5, gram, step)?;
            times(n, product, step, other)?;
            std::mem::swap(product, other);
            if round < STEPS {
                times(n, gram, step, other)?;
                times(n, other, step, gram)?;
            }
        }
        // The gradient of a linear layer for its input is `P X`.
        let shape = LinearShape { batch: n, inputs: k, outputs: n };
        device.linear_backward(shape, weight, weight, None, product, Some(result), unused, unused_bias)?;
        device.fill(n * k, 0.0, weight)?;
        Ok(device.axpy(n * k, 1.0 / ROOM, result, weight)?)
    }
}
