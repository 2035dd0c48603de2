//! What a core's equation sees of an image: `U x + b`, normalised or not.
//!
//! A normalised injection is, with the running statistics, another affine map of the image, so that whatever is proved about the
//! equation for all injections is proved for it. Batch norm takes away what `b` adds: `b` begins at 0 and stays there, and the norm's
//! offset does its work.

use rand::Rng;
use subdeq_engine::Backend;
use subdeq_engine::network::NormPoolShape;

use super::affine::{Affine, AffineShape};
use super::batch_norm::{BatchNorm, Statistics};
use super::trained::Trained;
use crate::memory::made;
use crate::{Init, Result};

/// One injection of a core, with its parameters.
pub(super) struct Injection<A> {
    affine: Affine<A>,
    norm: Option<Normalised<A>>,
}

/// The norm of an injection.
struct Normalised<A> {
    norm: BatchNorm<A>,
    /// `U x + b` of the last batch, kept for the way back.
    affine: Option<A>,
}

impl<A: Send + Sync> Injection<A> {
    pub fn new<D: Backend<Array = A>>(
        device: &D,
        name: &str,
        shape: AffineShape,
        normalised: bool,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        let mut affine = Affine::new(device, name, shape, init, rng)?;
        let norm = if normalised {
            affine.clear_bias(device)?;
            let norm = BatchNorm::new(device, &format!("{name}.norm"), shape.outputs())?;
            Some(Normalised { norm, affine: None })
        } else {
            None
        };
        Ok(Self { affine, norm })
    }

    /// Makes room for batches of this many samples.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, batch: usize) -> Result<()> {
        if let Some(Normalised { norm, affine }) = &mut self.norm {
            let len = batch * self.affine.output_len();
            norm.reserve(device, len)?;
            *affine = Some(device.zeros(len)?);
        }
        Ok(())
    }

    /// From the images to `y`, or to its positive part.
    pub fn forward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        batch: usize,
        statistics: Statistics,
        x: &A,
        rectified: bool,
        y: &mut A,
    ) -> Result<()> {
        let shape = self.norm_shape(batch);
        let Some(Normalised { norm, affine }) = &mut self.norm else {
            return self.affine.forward(device, batch, x, rectified, y);
        };
        let affine = made(affine)?;
        self.affine.forward(device, batch, x, false, affine)?;
        norm.forward(device, shape, statistics, affine, y)?;
        if rectified { Ok(device.relu(batch * self.affine.output_len(), y)?) } else { Ok(()) }
    }

    /// From `gy` to the gradients of the parameters. `rectified` is the output, where it is the positive part; `gy` and `room` (as
    /// long) may be changed on the way.
    pub fn backward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        batch: usize,
        x: &A,
        rectified: Option<&A>,
        gy: &mut A,
        room: &mut A,
    ) -> Result<()> {
        let shape = self.norm_shape(batch);
        let Some(Normalised { norm, affine }) = &mut self.norm else {
            return self.affine.backward(device, batch, x, rectified, gy, None);
        };
        if let Some(y) = rectified {
            device.relu_backward(batch * self.affine.output_len(), y, gy)?;
        }
        norm.backward(device, shape, made(affine)?, gy, room)?;
        self.affine.backward(device, batch, x, None, room, None)?;
        // Nothing depends on the bias; what rounding leaves of its gradient, Adam would blow up.
        self.affine.clear_bias_gradient(device)
    }

    /// Every pixel is a vector of its own.
    fn norm_shape(&self, batch: usize) -> NormPoolShape {
        let channels = self.affine.outputs();
        NormPoolShape::vectors(batch * self.affine.output_len() / channels, channels)
    }

    pub fn affine(&self) -> &Affine<A> {
        &self.affine
    }

    /// `U`, to change.
    pub fn weight_mut(&mut self) -> &mut A {
        self.affine.weight_mut()
    }

    pub fn norm(&self) -> Option<&BatchNorm<A>> {
        self.norm.as_ref().map(|normalised| &normalised.norm)
    }

    pub fn trained(&self) -> impl Iterator<Item = &Trained<A>> {
        self.affine.trained().into_iter().chain(self.norm().into_iter().flat_map(BatchNorm::trained))
    }

    /// What is learned, and the running statistics of the norm if there is one, to change.
    pub fn parts_mut(&mut self) -> (Vec<&mut Trained<A>>, Vec<(String, &mut A)>) {
        let mut trained: Vec<_> = self.affine.trained_mut().into();
        let mut statistics = Vec::new();
        if let Some(Normalised { norm, .. }) = &mut self.norm {
            let (learned, remembered) = norm.parts_mut();
            trained.extend(learned);
            statistics.extend(remembered);
        }
        (trained, statistics)
    }
}
