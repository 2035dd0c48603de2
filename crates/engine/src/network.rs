//! The operations around an equilibrium: everything else that training a classifier needs.

use crate::{EngineError, Integrate, Operator, Padding, Real, Result};

/// Shape of a fully connected layer, `y = W x + b`; `W` is `outputs x inputs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearShape {
    /// Samples.
    pub batch: usize,
    /// Length of `x`.
    pub inputs: usize,
    /// Length of `y`.
    pub outputs: usize,
}

/// Shape of a 3x3 convolution between images of one size, stored height x width x channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Image height.
    pub height: usize,
    /// Image width.
    pub width: usize,
    /// Channels in.
    pub inputs: usize,
    /// Channels out.
    pub outputs: usize,
    /// Continuation beyond the border.
    pub padding: Padding,
}

/// Shape of a batch norm that is followed by average pooling over `window x window` pixels (stride `window`, incomplete
/// windows dropped, as in PyTorch).
///
/// A vector is an image of one pixel: batch norm 1d has `height = width = window = 1`. Input: height x width x channels.
/// Output: channels x pooled height x pooled width, the order in which PyTorch flattens its images, so that a linear
/// layer behind it has PyTorch's column order. Pooling and normalisation commute, so the normalised image is never
/// written: a third of the memory traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NormPoolShape {
    /// Images.
    pub batch: usize,
    /// Image height.
    pub height: usize,
    /// Image width.
    pub width: usize,
    /// Channels, each normalised by itself over all pixels of all images.
    pub channels: usize,
    /// Side of the pooling window.
    pub window: usize,
}

impl NormPoolShape {
    /// Batch norm of vectors.
    #[must_use]
    pub fn vectors(batch: usize, channels: usize) -> Self {
        Self { batch, height: 1, width: 1, channels, window: 1 }
    }

    /// Numbers in one pooled image.
    #[must_use]
    pub fn pooled_len(&self) -> usize {
        self.channels * (self.height / self.window) * (self.width / self.window)
    }

    /// Numbers in one image.
    #[must_use]
    pub fn image_len(&self) -> usize {
        self.channels * self.height * self.width
    }

    /// Refuses an empty batch and a window that is larger than the image.
    pub fn check(&self) -> Result<()> {
        if self.batch == 0 || self.channels == 0 || self.height == 0 || self.width == 0 {
            return Err(EngineError::Invalid(format!("batch norm over nothing: {self:?}")));
        }
        if self.window == 0 || self.window > self.height || self.window > self.width {
            return Err(EngineError::Invalid(format!(
                "a pooling window of {0}x{0} does not fit into {1}x{2} images",
                self.window, self.height, self.width
            )));
        }
        Ok(())
    }
}

/// What batch norm learns and remembers; one number per channel unless it says otherwise.
#[derive(Clone, Debug)]
pub struct NormState<A> {
    /// Learned scale.
    pub scale: A,
    /// Learned offset.
    pub offset: A,
    /// Running mean, for evaluation.
    pub running_mean: A,
    /// Running (unbiased) variance, for evaluation.
    pub running_variance: A,
    /// Mean of the last training batch, kept for the way back.
    pub batch_mean: A,
    /// `1 / sqrt(variance + eps)` of the last training batch, kept for the way back.
    pub batch_inverse_deviation: A,
    /// Pooled values of the last training batch before scale and offset (`batch x pooled_len`), kept for the way back.
    pub normalised: A,
}

/// Added to a variance before its root is taken (PyTorch's default).
pub const NORM_EPSILON: f64 = 1e-5;
/// Weight of the newest batch in the running statistics (PyTorch's default).
pub const NORM_MOMENTUM: f64 = 0.1;

/// Loss and hits of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    /// Mean of `-ln softmax(logits)[label]`.
    pub loss: f64,
    /// Samples whose largest logit (the first, in a tie) is the label's.
    pub correct: usize,
}

/// One update of Adam with an L2 term in the gradient (PyTorch's `Adam(weight_decay=..)`, not AdamW).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Step length.
    pub rate: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the root of the second.
    pub epsilon: f64,
    /// `l2 * parameter` is added to the gradient.
    pub l2: f64,
    /// Which update this is, from 1.
    pub step: u64,
}

impl Adam {
    /// PyTorch's defaults at a rate.
    #[must_use]
    pub fn new(rate: f64, l2: f64, step: u64) -> Self {
        Self { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2, step }
    }
}

/// A sparse matrix by rows: row `i` holds `values[k]` in column `columns[k]` for `k` in `starts[i]..starts[i + 1]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Csr<T> {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Where each row begins, and the end of the last.
    pub starts: Vec<usize>,
    /// Column of each entry.
    pub columns: Vec<u32>,
    /// The entries.
    pub values: Vec<T>,
}

impl<T: Real> Csr<T> {
    /// Refuses what is not a sparse matrix.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(EngineError::Invalid(format!("not a sparse matrix: {what}")));
        if self.starts.len() != self.rows + 1 {
            return wrong(format!("{} row starts for {} rows", self.starts.len(), self.rows));
        }
        if self.starts[0] != 0 || self.starts.windows(2).any(|w| w[0] > w[1]) {
            return wrong("the row starts must begin at 0 and never fall".into());
        }
        let entries = self.starts[self.rows];
        if self.columns.len() != entries || self.values.len() != entries {
            return wrong(format!(
                "{entries} entries announced, {} columns and {} values given",
                self.columns.len(),
                self.values.len()
            ));
        }
        if let Some(k) = self.columns.iter().position(|&c| c as usize >= self.cols) {
            return wrong(format!("entry {k} is in column {} of {}", self.columns[k], self.cols));
        }
        Ok(())
    }

    /// The transposed matrix, entries of a row in the order of the old rows.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let mut starts = vec![0; self.cols + 1];
        for &c in &self.columns {
            starts[c as usize + 1] += 1;
        }
        for i in 0..self.cols {
            starts[i + 1] += starts[i];
        }
        let mut next = starts.clone();
        let mut columns = vec![0; self.columns.len()];
        let mut values = vec![T::ZERO; self.values.len()];
        for row in 0..self.rows {
            for k in self.starts[row]..self.starts[row + 1] {
                let slot = &mut next[self.columns[k] as usize];
                columns[*slot] = u32::try_from(row).unwrap_or(u32::MAX);
                values[*slot] = self.values[k];
                *slot += 1;
            }
        }
        Self { rows: self.cols, cols: self.rows, starts, columns, values }
    }
}

/// Shape of a matrix product: `m x k` times `k x n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductShape {
    /// Rows of the result.
    pub m: usize,
    /// Length of the sums.
    pub k: usize,
    /// Columns of the result.
    pub n: usize,
}

/// How [`Network::product`] reads a factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// As stored, row after row.
    Plain,
    /// Transposed.
    Transposed,
}

/// Pieces of an array: piece `k` begins at `offset + k * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<A> {
    /// The array.
    pub array: A,
    /// From the beginning of a piece to that of the next.
    pub stride: usize,
    /// Where the first begins.
    pub offset: usize,
}

/// A device that can also carry out what surrounds an equilibrium layer.
///
/// Images are height x width x channels, samples outermost. Gradients of parameters are added to what their arrays
/// hold; gradients of inputs are overwritten. Arrays may be longer than a call needs. Every result is the same bits for
/// any number of threads; a sample's forward values do not depend on its batch (training-mode batch norm excepted).
pub trait Network<T: Real>: Integrate<T> {
    /// `c = a b` (or `c += a b`), `a` of `m x k` and `b` of `k x n` after their orientation, `c` of `m x n`.
    fn product(
        &self,
        shape: ProductShape,
        a: (&Self::Array, Orientation),
        b: (&Self::Array, Orientation),
        c: &mut Self::Array,
        accumulate: bool,
    ) -> Result<()>;

    /// `y = W x + b` for each sample.
    fn linear(
        &self,
        shape: LinearShape,
        x: &Self::Array,
        w: &Self::Array,
        b: &Self::Array,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Network::linear`].
    #[allow(clippy::too_many_arguments)] // two factors, one gradient in, three out
    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &Self::Array,
        w: &Self::Array,
        gy: &Self::Array,
        gx: Option<&mut Self::Array>,
        gw: &mut Self::Array,
        gb: &mut Self::Array,
    ) -> Result<()>;

    /// `y = w * x + b`, a 3x3 convolution; `w` is `outputs x inputs x 3 x 3`.
    fn convolution(
        &self,
        shape: ConvShape,
        x: &Self::Array,
        w: &Self::Array,
        b: &Self::Array,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Network::convolution`].
    #[allow(clippy::too_many_arguments)]
    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &Self::Array,
        w: &Self::Array,
        gy: &Self::Array,
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

    /// Batch norm with the statistics of this batch, then pooling; the running statistics move by [`NORM_MOMENTUM`].
    fn norm_pool_train(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        state: &mut NormState<Self::Array>,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Batch norm with the running statistics, then pooling.
    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        state: &NormState<Self::Array>,
        y: &mut Self::Array,
    ) -> Result<()>;
    /// Pulls `gy` back through [`Network::norm_pool_train`].
    #[allow(clippy::too_many_arguments)]
    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &Self::Array,
        state: &NormState<Self::Array>,
        gy: &Self::Array,
        gx: &mut Self::Array,
        gscale: &mut Self::Array,
        goffset: &mut Self::Array,
    ) -> Result<()>;

    /// Mean cross-entropy of softmax(logits), and its gradient for the logits.
    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Self::Array,
        labels: &[u32],
        gradient: &mut Self::Array,
    ) -> Result<CrossEntropy>;

    /// Sets each entry to zero with probability `rate` and divides the others by `1 - rate`. Which ones depends on
    /// `seed`, `stream` and the entry's index only; the same call on a gradient is the way back.
    fn dropout(&self, len: usize, rate: f64, seed: u64, stream: u64, x: &mut Self::Array) -> Result<()>;

    /// One step of [`Adam`]; `mean` and `square` are its two moments.
    fn adam(
        &self,
        adam: &Adam,
        parameter: &mut Self::Array,
        gradient: &Self::Array,
        mean: &mut Self::Array,
        square: &mut Self::Array,
    ) -> Result<()>;

    /// `y = A x`, `x` of `A.cols x width` and `y` of `A.rows x width`.
    fn sparse_product(&self, a: &Csr<T>, width: usize, x: &Self::Array, y: &mut Self::Array) -> Result<()>;

    /// `x . y`, summed in `f64`.
    fn dot(&self, len: usize, x: &Self::Array, y: &Self::Array) -> Result<f64>;
    /// `y += a x`.
    fn axpy(&self, len: usize, a: f64, x: &Self::Array, y: &mut Self::Array) -> Result<()>;
    /// `x <- value`.
    fn fill(&self, len: usize, value: f64, x: &mut Self::Array) -> Result<()>;
    /// `y <- x`.
    fn copy(&self, len: usize, x: &Self::Array, y: &mut Self::Array) -> Result<()>;
    /// Copies `rows` pieces of `len` numbers from one array to another, each with its own spacing.
    fn copy_rows(
        &self,
        rows: usize,
        len: usize,
        from: Rows<&Self::Array>,
        to: Rows<&mut Self::Array>,
    ) -> Result<()>;
    /// Adds one vector of length `cols` to each of `rows` rows.
    fn add_to_rows(&self, rows: usize, cols: usize, b: &Self::Array, x: &mut Self::Array) -> Result<()>;
    /// `sums += ` the sum of the rows.
    fn sum_rows(&self, rows: usize, cols: usize, x: &Self::Array, sums: &mut Self::Array) -> Result<()>;

    /// The largest eigenvalue of the symmetric part of `W`, estimated from above, and its derivative for the weights.
    /// For zero padding: of the circular convolution on a torus one pixel larger each way, which bounds it.
    fn symmetric_peak(&self, operator: &Operator, w: &Self::Array, gradient: &mut Self::Array)
    -> Result<f64>;
    /// The factor `||(I - t(I - W)) (I + t(I - W))^-1||_2` of Peaceman-Rachford's splitting at step `t`, for a
    /// convolution the largest over at most `frequencies` of its frequencies, evenly spread: to choose `t` by.
    fn splitting_factor(
        &self,
        operator: &Operator,
        w: &Self::Array,
        step: f64,
        frequencies: usize,
    ) -> Result<f64>;
}
