//! `U x + b`, dense or as a 3x3 convolution: injections, explicit layers, classifiers.

use rand::Rng;
use subdeq_engine::Backend;
use subdeq_engine::network::{ConvShape, LinearShape};

use super::trained::Trained;
use crate::{Init, Result};

/// What an affine map takes and gives, without the batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AffineShape {
    Linear { inputs: usize, outputs: usize },
    Conv(ConvShape),
}

impl AffineShape {
    fn fan_in(&self) -> usize {
        match *self {
            Self::Linear { inputs, .. } => inputs,
            Self::Conv(shape) => 9 * shape.inputs,
        }
    }

    /// Units, or channels of images, that come out.
    pub fn outputs(&self) -> usize {
        match *self {
            Self::Linear { outputs, .. } => outputs,
            Self::Conv(shape) => shape.outputs,
        }
    }

    /// Numbers per sample that come out.
    pub fn output_len(&self) -> usize {
        match *self {
            Self::Linear { outputs, .. } => outputs,
            Self::Conv(shape) => shape.height * shape.width * shape.outputs,
        }
    }
}

/// An affine map with its parameters.
pub(super) struct Affine<A> {
    shape: AffineShape,
    weight: Trained<A>,
    bias: Trained<A>,
}

impl<A: Send + Sync> Affine<A> {
    pub fn new<D: Backend<Array = A>>(
        device: &D,
        name: &str,
        shape: AffineShape,
        init: Init,
        rng: &mut impl Rng,
    ) -> Result<Self> {
        let (outputs, fan_in) = (shape.outputs(), shape.fan_in());
        let weight = init.draw::<D::Elem>(outputs * fan_in, fan_in, rng);
        // PyTorch draws its biases like its weights.
        let bias = Init::Release.draw::<D::Elem>(outputs, fan_in, rng);
        Ok(Self {
            shape,
            weight: Trained::new(device, &format!("{name}.weight"), &weight)?,
            bias: Trained::new(device, &format!("{name}.bias"), &bias)?,
        })
    }

    /// `y = W x + b`, or its positive part.
    pub fn forward<D: Backend<Array = A>>(
        &self,
        device: &D,
        batch: usize,
        x: &A,
        rectified: bool,
        y: &mut A,
    ) -> Result<()> {
        let (w, b) = (&self.weight.parameter.value, &self.bias.parameter.value);
        match self.shape {
            AffineShape::Linear { inputs, outputs } => {
                device.linear(LinearShape { batch, inputs, outputs }, x, w, b, rectified, y)?;
            }
            AffineShape::Conv(shape) => {
                device.convolution(ConvShape { batch, ..shape }, x, w, b, rectified, y)?;
            }
        }
        Ok(())
    }

    /// From `gy` to the gradients of the parameters, and to `gx`. `rectified` is the output, where it is the positive part; `gy` may
    /// be changed on the way.
    pub fn backward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        batch: usize,
        x: &A,
        rectified: Option<&A>,
        gy: &mut A,
        gx: Option<&mut A>,
    ) -> Result<()> {
        let w = &self.weight.parameter.value;
        let (gw, gb) = (&mut self.weight.parameter.gradient, &mut self.bias.parameter.gradient);
        match self.shape {
            AffineShape::Linear { inputs, outputs } => {
                let shape = LinearShape { batch, inputs, outputs };
                device.linear_backward(shape, x, w, rectified, gy, gx, gw, gb)?;
            }
            AffineShape::Conv(shape) => {
                let shape = ConvShape { batch, ..shape };
                device.convolution_backward(shape, x, w, rectified, gy, gx, gw, gb)?;
            }
        }
        Ok(())
    }

    pub fn shape(&self) -> AffineShape {
        self.shape
    }

    /// `W`, to change.
    pub fn weight_mut(&mut self) -> &mut A {
        &mut self.weight.parameter.value
    }

    /// Sets `b` to 0.
    pub fn clear_bias<D: Backend<Array = A>>(&mut self, device: &D) -> Result<()> {
        Ok(device.fill(self.outputs(), 0.0, &mut self.bias.parameter.value)?)
    }

    /// Sets the gradient of `b` to 0.
    pub fn clear_bias_gradient<D: Backend<Array = A>>(&mut self, device: &D) -> Result<()> {
        Ok(device.fill(self.outputs(), 0.0, &mut self.bias.parameter.gradient)?)
    }

    /// Units, or channels of images, that come out.
    pub fn outputs(&self) -> usize {
        self.shape.outputs()
    }

    /// Numbers per sample that come out.
    pub fn output_len(&self) -> usize {
        self.shape.output_len()
    }

    pub fn trained(&self) -> [&Trained<A>; 2] {
        [&self.weight, &self.bias]
    }

    pub fn trained_mut(&mut self) -> [&mut Trained<A>; 2] {
        [&mut self.weight, &mut self.bias]
    }
}
