//! Shapes and constants of the operations around an equilibrium.

use crate::map::product_fits;
use crate::{EngineError, Padding, Real, Result};

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

impl LinearShape {
    /// Refuses sizes of which a product overflows: the kernels trust lengths that agree.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { batch, inputs, outputs } = *self;
        if [[batch, inputs], [batch, outputs], [outputs, inputs]]
            .iter()
            .all(|sides| product_fits(&[sides[0], sides[1], 64]))
        {
            return Ok(());
        }
        Err(EngineError::Invalid(format!("{self:?} does not fit into the address space")))
    }
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

/// What batch norm learns, or the gradients for it: one number per channel.
#[derive(Clone, Copy, Debug)]
pub struct Scaling<A> {
    /// What normalised values are multiplied by.
    pub scale: A,
    /// What is added then.
    pub offset: A,
}

/// What batch norm remembers; one number per channel unless it says otherwise.
#[derive(Clone, Debug)]
pub struct NormState<A> {
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

/// One update of Adam, with an L2 term in the gradient (PyTorch's `Adam(weight_decay=..)`) or with weights that decay by themselves
/// (`AdamW(weight_decay=..)`).
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
    /// `rate * decay * parameter` is taken from the parameter.
    pub decay: f64,
    /// Which update this is, from 1.
    pub step: u64,
}

/// A parameter that is to be updated, with its gradient and Adam's moments.
#[derive(Debug)]
pub struct Update<'a, A> {
    /// The parameter.
    pub parameter: &'a mut A,
    /// Its gradient.
    pub gradient: &'a A,
    /// Mean of past gradients.
    pub mean: &'a mut A,
    /// Mean of their squares.
    pub square: &'a mut A,
}

impl Adam {
    /// PyTorch's defaults at a rate.
    #[must_use]
    pub fn new(rate: f64, l2: f64, step: u64) -> Self {
        Self { rate, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, l2, decay: 0.0, step }
    }

    /// AdamW at a rate: its decay does not pass through the moments.
    #[must_use]
    pub fn decoupled(rate: f64, decay: f64, step: u64) -> Self {
        Self { decay, ..Self::new(rate, 0.0, step) }
    }

    /// What an update leaves of a parameter before it moves it.
    pub(crate) fn kept(&self) -> f64 {
        1.0 - self.rate * self.decay
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

/// The first of the largest entries.
#[must_use]
pub fn largest<T: Real>(row: &[T]) -> usize {
    let mut best = (0, T::from_f64(f64::NEG_INFINITY));
    for (class, &x) in row.iter().enumerate() {
        if x > best.1 {
            best = (class, x);
        }
    }
    best.0
}

/// The softmax of a row, in `f64`.
///
/// ```
/// use subdeq_engine::network::Softmax;
/// let softmax = Softmax::of(&[1000.0f32, 1001.0]);
/// assert!((softmax.probability(1) - 0.731_058_578_6).abs() < 1e-9);
/// assert_eq!(softmax.largest(), 1);
/// ```
pub struct Softmax<'a, T> {
    row: &'a [T],
    top: f64,
    total: f64,
}

impl<'a, T: Real> Softmax<'a, T> {
    /// That of this row.
    pub fn of(row: &'a [T]) -> Self {
        let top = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b.to_f64()));
        let total = row.iter().map(|&z| (z.to_f64() - top).exp()).sum();
        Self { row, top, total }
    }

    /// The probability of a class.
    #[must_use]
    pub fn probability(&self, class: usize) -> f64 {
        (self.row[class].to_f64() - self.top).exp() / self.total
    }

    /// `-ln probability`.
    #[must_use]
    pub fn surprise(&self, class: usize) -> f64 {
        self.total.ln() - (self.row[class].to_f64() - self.top)
    }

    /// The class of the largest entry (the first of several).
    #[must_use]
    pub fn largest(&self) -> usize {
        largest(self.row)
    }
}
