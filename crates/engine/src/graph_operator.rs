//! What nodes pass to each other, as data.

use crate::network::Csr;
use crate::{EngineError, Real, Result};

/// The matrix `A` of a propagation, nodes x nodes.
///
/// Hyperedges are never expanded to pairs of nodes: a product with `A` goes from nodes to hyperedges and back, in time
/// proportional to the number of incidences, where the expansion would grow with the square of a hyperedge's nodes.
///
/// ```
/// use subdeq_engine::{GraphOperator, network::Csr};
/// // Three nodes in one hyperedge, each of which keeps half of itself.
/// let incidence = Csr { rows: 3, cols: 1, starts: vec![0, 1, 2, 3], columns: vec![0; 3], values: vec![0.4; 3] };
/// let operator = GraphOperator::Hyperedges { incidence, own: vec![0.5; 3] };
/// operator.check()?;
/// assert_eq!((operator.nodes(), operator.entries()), (3, 3));
/// # Ok::<(), subdeq_engine::EngineError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum GraphOperator<T> {
    /// Given entry by entry: `(i, j)` weighs what node `j` passes to node `i`.
    Pairs(Csr<T>),
    /// `A = B B' + diag(own)`.
    Hyperedges {
        /// `B`, nodes x hyperedges.
        incidence: Csr<T>,
        /// What each node keeps of itself.
        own: Vec<T>,
    },
}

impl<T> From<Csr<T>> for GraphOperator<T> {
    fn from(matrix: Csr<T>) -> Self {
        GraphOperator::Pairs(matrix)
    }
}

impl<T> GraphOperator<T> {
    /// The sparse matrix that is stored: `A`, or `B`.
    #[must_use]
    pub fn stored(&self) -> &Csr<T> {
        match self {
            GraphOperator::Pairs(matrix) | GraphOperator::Hyperedges { incidence: matrix, .. } => matrix,
        }
    }

    pub(crate) fn stored_mut(&mut self) -> &mut Csr<T> {
        match self {
            GraphOperator::Pairs(matrix) | GraphOperator::Hyperedges { incidence: matrix, .. } => matrix,
        }
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.stored().rows
    }

    /// Number of stored entries: pairs, or incidences.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.stored().columns.len()
    }

    /// What each node keeps of itself beside the stored entries; nothing where those are all there is.
    #[must_use]
    pub fn own(&self) -> Option<&[T]> {
        match self {
            GraphOperator::Pairs(_) => None,
            GraphOperator::Hyperedges { own, .. } => Some(own),
        }
    }
}

impl<T: Real> GraphOperator<T> {
    /// Refuses what is not such a matrix, or has entries that are not finite.
    pub fn check(&self) -> Result<()> {
        let stored = self.stored();
        stored.check()?;
        let invalid = |why: String| Err(EngineError::Invalid(why));
        match self {
            GraphOperator::Pairs(matrix) if matrix.rows != matrix.cols => {
                return invalid(format!(
                    "the matrix of a graph is square, this one is {} x {}",
                    matrix.rows, matrix.cols
                ));
            }
            GraphOperator::Hyperedges { incidence, own } if incidence.rows != own.len() => {
                return invalid(format!(
                    "{} nodes, but {} numbers for what they keep of themselves",
                    incidence.rows,
                    own.len()
                ));
            }
            _ => {}
        }
        for (count, what) in [(stored.rows, "nodes"), (stored.cols, "hyperedges")] {
            if u32::try_from(count).is_err() {
                return invalid(format!("{count} {what} are more than 2^32 - 1"));
            }
        }
        let finite = |what: &'static str, numbers: &[T]| match numbers.iter().position(|x| !x.is_finite()) {
            Some(index) => Err(EngineError::NotFinite { what, index, value: numbers[index].to_string() }),
            None => Ok(()),
        };
        finite("adjacency", &stored.values)?;
        finite("what nodes keep of themselves", self.own().unwrap_or_default())
    }

    /// The same in double precision.
    #[must_use]
    pub fn in_f64(&self) -> GraphOperator<f64> {
        let numbers = |numbers: &[T]| numbers.iter().map(|x| x.to_f64()).collect::<Vec<f64>>();
        let Csr { rows, cols, starts, columns, values } = self.stored();
        let (starts, columns) = (starts.clone(), columns.clone());
        let stored = Csr { rows: *rows, cols: *cols, starts, columns, values: numbers(values) };
        match self {
            GraphOperator::Pairs(_) => GraphOperator::Pairs(stored),
            GraphOperator::Hyperedges { own, .. } => {
                GraphOperator::Hyperedges { incidence: stored, own: numbers(own) }
            }
        }
    }
}
