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
/// Its memory cannot be exchanged for a shorter one, which kernels would read beyond:
/// ```compile_fail,E0616
/// let mut z = subdeq_engine::cpu::graph::NodeMatrix::<f32>::zeros(9, 9);
/// z.numbers = Default::default();
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
    if channels <= 8 { 8 } else { channels.checked_next_multiple_of(16).expect(TOO_LARGE) }
}

const TOO_LARGE: &str = "a node matrix larger than the address space";

impl<T: SimdReal> NodeMatrix<T> {
    /// Zeros.
    ///
    /// # Panics
    /// If there are more of them than the address space holds.
    #[must_use]
    pub fn zeros(nodes: usize, channels: usize) -> Self {
        let stride = stride(channels);
        // Kernels read any row below `nodes` unchecked: a product that wraps around must not pass for a small matrix.
        let len = nodes.checked_mul(stride).expect(TOO_LARGE);
        Self { nodes, channels, stride, numbers: Buffer::zeros(len) }
    }

    /// A copy of `nodes x channels` numbers.
    pub fn from_rows(nodes: usize, channels: usize, rows: &[T]) -> Result<Self> {
        let needed = nodes.saturating_mul(channels);
        if rows.len() != needed {
            return Err(EngineError::Length { what: "node matrix", found: rows.len(), needed });
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
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn copy_from(&mut self, other: &Self) {
        assert_eq!(
            (self.nodes, self.channels),
            (other.nodes, other.channels),
            "matrices of different shapes"
        );
        self.numbers.copy_from_slice(&other.numbers);
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
