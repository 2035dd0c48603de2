//! Node matrices: one row per node.

use crate::cpu::buffer::Buffer;
use crate::cpu::simd::SimdReal;
use crate::{EngineError, Result};

/// Numbers per node and channel, row after row. Rows are padded with zeros to whole vectors, so that the kernels have
/// no tails.
///
/// ```
/// use subdeq_engine::cpu::graph::NodeMatrix;
/// let z = NodeMatrix::from_rows(2, 3, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// assert_eq!(z.row(1), &[4.0, 5.0, 6.0]);
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Clone, Debug)]
pub struct NodeMatrix<T: SimdReal> {
    nodes: usize,
    channels: usize,
    stride: usize,
    numbers: Buffer<T>,
}

/// Numbers between the starts of two rows. Up to eight channels share half a cache line, more take whole ones.
fn stride(channels: usize) -> usize {
    if channels <= 8 { 8 } else { channels.next_multiple_of(16) }
}

impl<T: SimdReal> NodeMatrix<T> {
    /// Zeros.
    #[must_use]
    pub fn zeros(nodes: usize, channels: usize) -> Self {
        let stride = stride(channels);
        Self { nodes, channels, stride, numbers: Buffer::zeros(nodes * stride) }
    }

    /// A copy of `nodes x channels` numbers.
    pub fn from_rows(nodes: usize, channels: usize, rows: &[T]) -> Result<Self> {
        if rows.len() != nodes * channels {
            return Err(EngineError::Length {
                what: "node matrix",
                found: rows.len(),
                needed: nodes * channels,
            });
        }
        let mut matrix = Self::zeros(nodes, channels);
        for node in 0..nodes {
            matrix.row_mut(node).copy_from_slice(&rows[node * channels..(node + 1) * channels]);
        }
        Ok(matrix)
    }

    /// All rows, without the padding.
    #[must_use]
    pub fn to_rows(&self) -> Vec<T> {
        (0..self.nodes).flat_map(|node| self.row(node).iter().copied()).collect()
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Numbers per node.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// The numbers of one node.
    #[must_use]
    pub fn row(&self, node: usize) -> &[T] {
        &self.numbers[node * self.stride..][..self.channels]
    }

    /// The numbers of one node.
    pub fn row_mut(&mut self, node: usize) -> &mut [T] {
        &mut self.numbers[node * self.stride..][..self.channels]
    }

    /// Sets every number (the padding stays zero).
    pub fn fill(&mut self, value: T) {
        for node in 0..self.nodes {
            self.row_mut(node).fill(value);
        }
    }

    /// Takes over the numbers of another matrix of the same shape.
    pub fn copy_from(&mut self, other: &Self) {
        self.numbers.copy_from_slice(&other.numbers);
    }

    /// All numbers with the padding, as a device array (for [`crate::Network::adam`]).
    #[must_use]
    pub fn array(&self) -> &Buffer<T> {
        &self.numbers
    }

    /// All numbers with the padding, which must stay zero, as a device array.
    pub fn array_mut(&mut self) -> &mut Buffer<T> {
        &mut self.numbers
    }

    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// All numbers with the padding.
    pub(crate) fn padded(&self) -> &[T] {
        &self.numbers
    }

    /// All numbers with the padding, which must stay zero.
    pub(crate) fn padded_mut(&mut self) -> &mut [T] {
        &mut self.numbers
    }

    pub(crate) fn check(&self, what: &'static str, nodes: usize, channels: usize) -> Result<()> {
        if (self.nodes, self.channels) == (nodes, channels) {
            return Ok(());
        }
        Err(EngineError::Invalid(format!(
            "{what} is {} nodes x {} channels, {nodes} x {channels} are needed",
            self.nodes, self.channels
        )))
    }
}
