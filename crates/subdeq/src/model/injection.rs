//! What a core's equation sees of an image: `U x + b`, thinned out or not, normalised or not.
//!
//! A normalised injection is, with the running statistics, another affine map of the image, so that whatever is proved about the
//! equation for all injections is proved for it. Batch norm takes away what `b` adds: `b` begins at 0 and stays there, and the norm's
//! offset does its work.

use rand::Rng;
use subdeq_engine::Backend;
use subdeq_engine::network::NormPoolShape;

use super::affine::{Affine, AffineShape};
use super::batch_norm::{BatchNorm, Statistics};
use super::thinning::Thinning;
use super::trained::Trained;
use crate::memory::made;
use crate::{Init, Result};

/// What an injection is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct InjectionShape {
    pub affine: AffineShape,
    /// Of a convolution: every so many-th pixel of every so many-th row is kept.
    pub stride: usize,
    pub normalised: bool,
}

/// One injection of a core, with its parameters.
pub(super) struct Injection<A> {
    affine: Affine<A>,
    thinning: Option<Thinning<A>>,
    norm: Option<Normalised<A>>,
    /// Numbers per sample that come out.
    output_len: usize,
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
        shape: InjectionShape,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        let mut affine = Affine::new(device, name, shape.affine, init, rng)?;
        let norm = if shape.normalised {
            affine.clear_bias(device)?;
            let norm = BatchNorm::new(device, &format!("{name}.norm"), shape.affine.outputs())?;
            Some(Normalised { norm, affine: None })
        } else {
            None
        };
        let thinning = match shape.affine {
            AffineShape::Linear { .. } => None,
            AffineShape::Conv(conv) => Thinning::new(conv, shape.stride),
        };
        let area = if thinning.is_some() { shape.stride * shape.stride } else { 1 };
        Ok(Self { affine, thinning, norm, output_len: shape.affine.output_len() / area })
    }

    /// Makes room for batches of this many samples.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, batch: usize) -> Result<()> {
        if let Some(thinning) = &mut self.thinning {
            thinning.reserve(device, batch)?;
        }
        if let Some(Normalised { norm, affine }) = &mut self.norm {
            let len = batch * self.output_len;
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
        let (shape, len) = (self.norm_shape(batch), batch * self.output_len);
        let Self { affine, thinning, norm, .. } = self;
        let mut linear = |rectified: bool, y: &mut A| match &mut *thinning {
            None => affine.forward(device, batch, x, rectified, y),
            Some(thinning) => {
                affine.forward(device, batch, x, rectified, thinning.whole()?)?;
                thinning.forward(device, batch, y)
            }
        };
        let Some(Normalised { norm, affine }) = norm else { return linear(rectified, y) };
        let affine = made(affine)?;
        linear(false, affine)?;
        norm.forward(device, shape, statistics, affine, y)?;
        if rectified { Ok(device.relu(len, y)?) } else { Ok(()) }
    }

    /// From `gy` to the gradients of the parameters and to `gx`. `rectified` is the output, where it is the positive part; `gy` and
    /// `room` (as long) may be changed on the way.
    pub fn backward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        batch: usize,
        (x, gx): (&A, Option<&mut A>),
        rectified: Option<&A>,
        gy: &mut A,
        room: &mut A,
    ) -> Result<()> {
        let (shape, len) = (self.norm_shape(batch), batch * self.output_len);
        let Self { affine, thinning, norm, .. } = self;
        if let (None, None) = (&thinning, &norm) {
            return affine.backward(device, batch, x, rectified, gy, gx);
        }
        if let Some(y) = rectified {
            device.relu_backward(len, y, gy)?;
        }
        let normalised = norm.is_some();
        let g = match norm {
            None => gy,
            Some(Normalised { norm, affine }) => {
                norm.backward(device, shape, made(affine)?, gy, room)?;
                room
            }
        };
        match thinning {
            None => affine.backward(device, batch, x, None, g, gx)?,
            Some(thinning) => {
                thinning.backward(device, batch, g)?;
                affine.backward(device, batch, x, None, thinning.whole()?, gx)?;
            }
        }
        // Nothing depends on the bias under a norm; what rounding leaves of its gradient, Adam would blow up.
        if normalised { affine.clear_bias_gradient(device) } else { Ok(()) }
    }

    /// Every pixel is a vector of its own.
    fn norm_shape(&self, batch: usize) -> NormPoolShape {
        let channels = self.affine.outputs();
        NormPoolShape::vectors(batch * self.output_len / channels, channels)
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
