//! The operations around an equilibrium: everything else that training a classifier needs.

use super::Device;
use crate::Result;
use crate::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState, Scaling, Update};

/// A device that carries out what surrounds an equilibrium layer.
///
/// Images are height x width x channels, samples outermost. What arrays for gradients held is overwritten. Arrays may be longer than a call needs. Every result is the same bits for
/// any number of threads; a sample's forward values do not depend on its batch (training-mode batch norm excepted).
pub trait Layers: Device {
    /// `y = W x + b` for each sample, or its positive part.
    fn linear(
        &self,
        shape: LinearShape,
        x: &Self::Array,
        w: &Self::Array,
        b: &Self::Array,
        rectified: bool,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Layers::linear`]; `rectified` is the output, where it is the positive part. `gy` may be changed
    /// on the way.
    #[allow(clippy::too_many_arguments)] // two factors, one gradient in, three out
    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &Self::Array,
        w: &Self::Array,
        rectified: Option<&Self::Array>,
        gy: &mut Self::Array,
        gx: Option<&mut Self::Array>,
        gw: &mut Self::Array,
        gb: &mut Self::Array,
    ) -> Result<()>;

    /// `y = w * x + b`, a 3x3 convolution, or its positive part; `w` is `outputs x inputs x 3 x 3`.
    fn convolution(
        &self,
        shape: ConvShape,
        x: &Self::Array,
        w: &Self::Array,
        b: &Self::Array,
        rectified: bool,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Layers::convolution`], as [`Layers::linear_backward`] does.
    #[allow(clippy::too_many_arguments)]
    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &Self::Array,
        w: &Self::Array,
        rectified: Option<&Self::Array>,
        gy: &mut Self::Array,
        gx: Option<&mut Self::Array>,
        gw: &mut Self::Array,
        gb: &mut Self::Array,
    ) -> Result<()>;

    /// `x <- max(x, 0)`.
    fn relu(&self, len: usize, x: &mut Self::Array) -> Result<()>;
    /// `g <- g` where the output `y` of the ReLU is positive, else 0.
    fn relu_backward(&self, len: usize, y: &Self::Array, g: &mut Self::Array) -> Result<()>;
    /// `x <- tanh x`.
    fn tanh(&self, len: usize, x: &mut Self::Array) -> Result<()>;
    /// `g <- g (1 - y^2)`, `y` the output of the tanh.
    fn tanh_backward(&self, len: usize, y: &Self::Array, g: &mut Self::Array) -> Result<()>;

    /// Batch norm with the statistics of this batch, then pooling; the running statistics move by
    /// [`NORM_MOMENTUM`](crate::network::NORM_MOMENTUM).
    fn norm_pool_train(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        scaling: Scaling<&Self::Array>,
        state: &mut NormState<Self::Array>,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Batch norm with the running statistics, then pooling.
    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        scaling: Scaling<&Self::Array>,
        state: &NormState<Self::Array>,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Layers::norm_pool_train`]; `gradients` become those for scale and offset.
    #[allow(clippy::too_many_arguments)]
    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        scale: &Self::Array,
        state: &NormState<Self::Array>,
        gy: &Self::Array,
        gx: &mut Self::Array,
        gradients: Scaling<&mut Self::Array>,
    ) -> Result<()>;

    /// The pooling of such a shape alone, images staying height x width x channels.
    fn average_pool(&self, shape: NormPoolShape, x: &Self::Array, y: &mut Self::Array) -> Result<()>;
    /// Pulls `gy` back through [`Layers::average_pool`].
    fn average_pool_backward(
        &self,
        shape: NormPoolShape,
        gy: &Self::Array,
        gx: &mut Self::Array,
    ) -> Result<()>;

    /// The gradient of the mean cross-entropy of softmax(logits) over `batch` samples; loss and hits are counted. What should come
    /// out is the label with probability `1 - smoothing` and any class, the label among them, with the rest.
    #[allow(clippy::too_many_arguments)]
    fn cross_entropy(
        &self,
        batch: usize,
        classes: usize,
        smoothing: f64,
        logits: &Self::Array,
        labels: &Self::Integers,
        gradient: &mut Self::Array,
        tally: &mut Self::Tally,
    ) -> Result<()>;

    /// One step of [`Adam`] for every parameter.
    fn adam(&self, adam: &Adam, updates: &mut [Update<'_, Self::Array>]) -> Result<()>;

    /// `y += a x`.
    fn axpy(&self, len: usize, a: f64, x: &Self::Array, y: &mut Self::Array) -> Result<()>;
    /// Adds one vector of length `cols` to each of `rows` rows.
    fn add_to_rows(&self, rows: usize, cols: usize, b: &Self::Array, x: &mut Self::Array) -> Result<()>;
    /// `sums <- ` the sum of the rows.
    fn sum_rows(&self, rows: usize, cols: usize, x: &Self::Array, sums: &mut Self::Array) -> Result<()>;
}
