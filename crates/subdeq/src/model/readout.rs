//! From the states of a core to what the last layer reads.

use subdeq_engine::Backend;
use subdeq_engine::network::NormPoolShape;

use super::batch_norm::{BatchNorm, Statistics};
use super::trained::Trained;
use crate::Result;
use crate::memory::made;

/// What the last layer reads of states and injections.
pub(super) enum Readout<A> {
    /// The states, normalised and pooled.
    Normed(BatchNorm<A>),
    /// The reflected states `2 m z - y`, pooled.
    Reflected(Reflection<A>),
}

/// The reflection of states.
pub(super) struct Reflection<A> {
    margin: f64,
    buffers: Option<ReflectionBuffers<A>>,
}

struct ReflectionBuffers<A> {
    /// `2 m z - y`.
    reflected: A,
    /// Its gradient.
    gradient: A,
}

impl<A: Send + Sync> Readout<A> {
    /// Of a core with this margin.
    pub fn reflected(margin: f64) -> Self {
        Self::Reflected(Reflection { margin, buffers: None })
    }

    /// Makes room for batches of this shape.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, shape: NormPoolShape) -> Result<()> {
        match self {
            Self::Normed(norm) => norm.reserve(device, shape.batch * shape.pooled_len()),
            Self::Reflected(Reflection { buffers, .. }) => {
                let len = shape.batch * shape.image_len();
                *buffers =
                    Some(ReflectionBuffers { reflected: device.zeros(len)?, gradient: device.zeros(len)? });
                Ok(())
            }
        }
    }

    /// From the states `z` of the injections `y` to the features.
    pub fn forward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        shape: NormPoolShape,
        statistics: Statistics,
        (z, y): (&A, &A),
        features: &mut A,
    ) -> Result<()> {
        match self {
            Self::Normed(norm) => norm.forward(device, shape, statistics, z, features),
            Self::Reflected(Reflection { margin, buffers }) => {
                let (len, reflected) = (shape.batch * shape.image_len(), &mut made(buffers)?.reflected);
                device.fill(len, 0.0, reflected)?;
                device.axpy(len, 2.0 * *margin, z, reflected)?;
                device.axpy(len, -1.0, y, reflected)?;
                Ok(device.average_pool(shape, reflected, features)?)
            }
        }
    }

    /// From the gradient of the features to that of the states (what of it goes through the injections alone is for
    /// [`Readout::add_to_injections`]), and to the gradients of what is learned here.
    pub fn backward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        shape: NormPoolShape,
        z: &A,
        gfeatures: &A,
        gz: &mut A,
    ) -> Result<()> {
        match self {
            Self::Normed(norm) => norm.backward(device, shape, z, gfeatures, gz),
            Self::Reflected(Reflection { margin, buffers }) => {
                let (len, gradient) = (shape.batch * shape.image_len(), &mut made(buffers)?.gradient);
                device.average_pool_backward(shape, gfeatures, gradient)?;
                device.fill(len, 0.0, gz)?;
                Ok(device.axpy(len, 2.0 * *margin, gradient, gz)?)
            }
        }
    }

    /// Adds to the gradient of the injections what does not go through the states.
    pub fn add_to_injections<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        shape: NormPoolShape,
        gy: &mut A,
    ) -> Result<()> {
        match self {
            Self::Normed(_) => Ok(()),
            Self::Reflected(Reflection { buffers, .. }) => {
                Ok(device.axpy(shape.batch * shape.image_len(), -1.0, &made(buffers)?.gradient, gy)?)
            }
        }
    }

    /// `2 m`, if states are reflected.
    pub fn reflection(&self) -> Option<f64> {
        match self {
            Self::Normed(_) => None,
            Self::Reflected(Reflection { margin, .. }) => Some(2.0 * margin),
        }
    }

    /// The batch norm, if there is one.
    pub fn norm(&self) -> Option<&BatchNorm<A>> {
        match self {
            Self::Normed(norm) => Some(norm),
            Self::Reflected(_) => None,
        }
    }

    /// What is learned, and the running statistics of the norm, to change.
    pub fn parts_mut(&mut self) -> (Vec<&mut Trained<A>>, Vec<(String, &mut A)>) {
        match self {
            Self::Normed(norm) => {
                let (trained, statistics) = norm.parts_mut();
                (trained.into(), statistics.into())
            }
            Self::Reflected(_) => (Vec::new(), Vec::new()),
        }
    }
}
