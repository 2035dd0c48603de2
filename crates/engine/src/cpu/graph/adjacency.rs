//! The matrix of a graph, ready for products with it and with its transpose.

use std::ops::Range;
use std::sync::Arc;

use super::chunks::{divide, for_each_chunk};
use super::company::{Company, Division};
use super::part::{Names, Part};
use crate::cpu::Cpu;
use crate::cpu::isa::Vectorised;
use crate::cpu::parts::Parts;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::dropout::Dropout;
use crate::network::Csr;
use crate::{EngineError, GraphOperator, Result};

/// What nodes pass to each other.
///
/// Checked once, here: column numbers are in range, entries finite, each row sorted and free of duplicates. The kernels
/// rely on it.
#[derive(Clone, Debug)]
pub struct Adjacency<T: SimdReal> {
    operator: GraphOperator<T>,
    chunks: Vec<Range<usize>>,
    transpose: Transpose<T>,
    /// Where other processes have the other rows.
    part: Option<Part<T>>,
}

/// The transpose of the stored matrix: the way back through pairs of nodes, or the way from nodes to hyperedges.
#[derive(Clone, Debug)]
enum Transpose<T: SimdReal> {
    /// The matrix is its own.
    Same,
    Other(Csr<T>, Vec<Range<usize>>),
}

/// The entries of one row range of a sparse matrix and its division into chunks.
#[derive(Clone, Copy)]
pub(crate) struct Entries<'a, T> {
    /// Where each row begins.
    pub begin: &'a [usize],
    /// Where each row ends.
    pub end: &'a [usize],
    /// Column of each entry.
    pub columns: &'a [u32],
    /// The entries.
    pub values: &'a [T],
    /// The fixed division of the rows.
    pub chunks: &'a [Range<usize>],
}

/// What a propagation runs over: a whole graph, or one with some edges dropped.
#[derive(Clone, Copy)]
pub struct Edges<'a, T: SimdReal> {
    pub(crate) forward: Entries<'a, T>,
    pub(crate) backward: Entries<'a, T>,
    pub(crate) symmetric: bool,
    /// Where nodes are joined by hyperedges: `forward` and `backward` go from those to nodes then.
    pub(crate) hyperedges: Option<ToHyperedges<'a, T>>,
    /// Where other processes have the other rows.
    pub(crate) part: Option<&'a Part<T>>,
}

/// The way from nodes to hyperedges, and what nodes keep of themselves.
#[derive(Clone, Copy)]
pub(crate) struct ToHyperedges<'a, T> {
    /// One row per hyperedge.
    pub entries: Entries<'a, T>,
    /// One number per node.
    pub own: &'a [T],
}

impl<T: SimdReal> Edges<'_, T> {
    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.forward.begin.len()
    }

    /// Whether the matrix equals its transpose.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        self.symmetric
    }
}

fn entries<'a, T: SimdReal>(matrix: &'a Csr<T>, chunks: &'a [Range<usize>]) -> Entries<'a, T> {
    let (begin, end) = (&matrix.starts[..matrix.rows], &matrix.starts[1..]);
    Entries { begin, end, columns: &matrix.columns, values: &matrix.values, chunks }
}

impl<T: SimdReal> Adjacency<T> {
    /// Takes over a square matrix, or incidences. Entries given twice are added up. Whether a matrix is symmetric is found
    /// out; if it is not, its transpose is stored too, as that of incidences always is.
    pub fn new(cpu: &Cpu<T>, operator: impl Into<GraphOperator<T>>) -> Result<Self> {
        let mut operator = operator.into();
        operator.check()?;
        sort_and_merge(operator.stored_mut());
        let stored = operator.stored();
        let chunks = divide(&stored.starts);
        let pairs = matches!(operator, GraphOperator::Pairs(_));
        let transpose = if pairs && is_symmetric(cpu, stored, &chunks) {
            Transpose::Same
        } else {
            let transposed = stored.transposed();
            let chunks = divide(&transposed.starts);
            Transpose::Other(transposed, chunks)
        };
        Ok(Self { operator, chunks, transpose, part: None })
    }

    /// Takes over this process's rows of a symmetric matrix (columns are numbered as in the whole). That it is symmetric is taken on
    /// trust: no process has all of it.
    pub fn part(company: Arc<dyn Company<T>>, division: &Division, mut matrix: Csr<T>) -> Result<Self> {
        matrix.check()?;
        if let Some(index) = matrix.values.iter().position(|x| !x.is_finite()) {
            let value = matrix.values[index].to_string();
            return Err(EngineError::NotFinite { what: "the graph", index, value });
        }
        sort_and_merge(&mut matrix);
        let blocks = division.blocks_of(company.rank(), company.size());
        let part = Part::new(company, division, &mut matrix)?;
        let local = |block: &Range<usize>| block.start - part.rows.start..block.end - part.rows.start;
        let chunks = division.blocks[blocks].iter().map(local).collect();
        Ok(Self { operator: matrix.into(), chunks, transpose: Transpose::Same, part: Some(part) })
    }

    /// What other processes have to do with it.
    pub(crate) fn shared(&self) -> Option<&Part<T>> {
        self.part.as_ref()
    }

    /// Rows that come from others and rows that go to them, in one application of a map; none without others.
    #[must_use]
    pub fn rows_that_travel(&self) -> [usize; 2] {
        self.part.as_ref().map_or([0, 0], |part| [part.halo(), part.given()])
    }

    /// Number of nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.operator.nodes()
    }

    /// What was taken over, entries sorted.
    #[must_use]
    pub fn operator(&self) -> &GraphOperator<T> {
        &self.operator
    }

    /// Whether the matrix equals its transpose.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        self.operator.own().is_some() || matches!(self.transpose, Transpose::Same)
    }

    /// All edges.
    #[must_use]
    pub fn edges(&self) -> Edges<'_, T> {
        let forward = entries(self.operator.stored(), &self.chunks);
        let transposed = match &self.transpose {
            Transpose::Same => forward,
            Transpose::Other(matrix, chunks) => entries(matrix, chunks),
        };
        match self.operator.own() {
            None => Edges {
                forward,
                backward: transposed,
                symmetric: self.is_symmetric(),
                hyperedges: None,
                part: self.part.as_ref(),
            },
            Some(own) => Edges {
                forward,
                backward: forward,
                symmetric: true,
                hyperedges: Some(ToHyperedges { entries: transposed, own }),
                part: None,
            },
        }
    }
}

/// Brings the entries of each row into the order of their columns; equal columns are added up.
fn sort_and_merge<T: SimdReal>(matrix: &mut Csr<T>) {
    let sorted = (0..matrix.rows).all(|row| {
        matrix.columns[matrix.starts[row]..matrix.starts[row + 1]].windows(2).all(|pair| pair[0] < pair[1])
    });
    if sorted {
        return;
    }
    let mut row_entries: Vec<(u32, T)> = Vec::new();
    let mut kept = 0;
    let mut first = 0;
    for row in 0..matrix.rows {
        let end = matrix.starts[row + 1];
        row_entries.clear();
        row_entries.extend((first..end).map(|k| (matrix.columns[k], matrix.values[k])));
        row_entries.sort_by_key(|&(column, _)| column);
        let row_start = kept;
        for &(column, value) in &row_entries {
            if kept > row_start && matrix.columns[kept - 1] == column {
                matrix.values[kept - 1] += value;
            } else {
                matrix.columns[kept] = column;
                matrix.values[kept] = value;
                kept += 1;
            }
        }
        matrix.starts[row + 1] = kept;
        first = end;
    }
    matrix.columns.truncate(kept);
    matrix.values.truncate(kept);
}

/// Whether each entry `(i, j)` has an equal `(j, i)`; needs sorted rows and no memory.
fn is_symmetric<T: SimdReal>(cpu: &Cpu<T>, matrix: &Csr<T>, chunks: &[Range<usize>]) -> bool {
    let row = |i: usize| matrix.starts[i]..matrix.starts[i + 1];
    let mirrored = |i: usize| {
        row(i).all(|k| {
            let range = row(matrix.columns[k] as usize);
            let found = matrix.columns[range.clone()].binary_search(&(i as u32));
            found.is_ok_and(|at| matrix.values[range.start + at] == matrix.values[k])
        })
    };
    let mut verdicts = vec![true; chunks.len()];
    for_each_chunk(cpu, &mut verdicts, |k, verdict| *verdict = chunks[k].clone().all(mirrored));
    verdicts.into_iter().all(|verdict| verdict)
}

/// A graph with some of its entries dropped and the others scaled up, remade for each training step.
///
/// Both directions are written out: a propagation reads them many times, and reading half the entries is worth more
/// than the memory.
#[derive(Clone, Debug, Default)]
pub struct ThinnedEdges<T: SimdReal> {
    forward: Kept<T>,
    backward: Kept<T>,
    /// The part that they were of; 0 for a whole graph.
    part: u64,
}

/// Rows of kept entries. Those of one chunk follow each other; each chunk begins where it does in the whole matrix, so
/// that chunks can be written at the same time.
#[derive(Clone, Debug, Default)]
struct Kept<T> {
    begin: Vec<usize>,
    end: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<T>,
}

impl<T: SimdReal> Kept<T> {
    fn reserve(&mut self, rows: usize, entries: usize) {
        self.begin.resize(rows, 0);
        self.end.resize(rows, 0);
        self.columns.resize(entries, 0);
        self.values.resize(entries, T::ZERO);
    }

    fn entries<'a>(&'a self, chunks: &'a [Range<usize>]) -> Entries<'a, T> {
        Entries { begin: &self.begin, end: &self.end, columns: &self.columns, values: &self.values, chunks }
    }

    fn refresh(
        &mut self,
        cpu: &Cpu<T>,
        (source, part): (Entries<'_, T>, Option<&Part<T>>),
        dropout: Dropout,
        transposed: bool,
    ) {
        self.reserve(source.begin.len(), source.columns.len());
        let begin = Parts::new(&mut self.begin);
        let end = Parts::new(&mut self.end);
        let columns = Parts::new(&mut self.columns);
        let values = Parts::new(&mut self.values);
        let mut nothing = vec![(); source.chunks.len()];
        for_each_chunk(cpu, &mut nothing, |k, ()| {
            let rows = source.chunks[k].clone();
            if rows.is_empty() {
                return;
            }
            let span = source.begin[rows.start]..source.end[rows.end - 1];
            // SAFETY: chunks are disjoint ranges of rows, and so are the spans of their entries.
            let part = unsafe {
                Thin {
                    source,
                    rows: rows.clone(),
                    first: part.map_or(0, |part| part.rows.start as u32),
                    names: part.map_or(Names::From(0), |part| part.names(k)),
                    dropout,
                    transposed,
                    begin: begin.take(rows.clone()),
                    end: end.take(rows.clone()),
                    columns: columns.take(span.clone()),
                    values: values.take(span),
                }
            };
            cpu.isa().dispatch(part);
        });
    }
}

impl<T: SimdReal> ThinnedEdges<T> {
    /// Drops entries of `whole` anew. An entry and its mirror image are dropped independently.
    ///
    /// # Errors
    /// Hyperedges, of which nothing can be dropped.
    pub fn refresh(&mut self, cpu: &Cpu<T>, whole: &Adjacency<T>, dropout: Dropout) -> Result<()> {
        let Edges { forward, backward, hyperedges, part, .. } = whole.edges();
        if hyperedges.is_some() {
            return Err(EngineError::Invalid(
                "incidences of hyperedges cannot be dropped: set the edge dropout to 0".into(),
            ));
        }
        self.part = part.map_or(0, |part| part.id);
        self.forward.refresh(cpu, (forward, part), dropout, false);
        self.backward.refresh(cpu, (backward, part), dropout, true);
        Ok(())
    }

    /// The edges that `whole` was left with.
    #[must_use]
    pub fn edges<'a>(&'a self, whole: &'a Adjacency<T>) -> Edges<'a, T> {
        let Edges { forward, backward, part, .. } = whole.edges();
        // Columns of another part are not those of this one: no chunk, and whoever uses the edges refuses them.
        let same = self.part == part.map_or(0, |part| part.id);
        let chunks = |chunks: &'a [Range<usize>]| if same { chunks } else { &[] };
        Edges {
            forward: self.forward.entries(chunks(forward.chunks)),
            backward: self.backward.entries(chunks(backward.chunks)),
            symmetric: false,
            hyperedges: None,
            part,
        }
    }
}

/// Entries looked at together.
pub(crate) const BLOCK: usize = 128;

/// Thins out one chunk.
struct Thin<'a, T> {
    source: Entries<'a, T>,
    rows: Range<usize>,
    /// The number of row 0 in the whole graph.
    first: u32,
    /// What column numbers mean.
    names: Names<'a>,
    dropout: Dropout,
    transposed: bool,
    begin: &'a mut [usize],
    end: &'a mut [usize],
    columns: &'a mut [u32],
    values: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Thin<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let base = self.source.begin[self.rows.start];
        let scale = T::from_f64(self.dropout.scale());
        let mut hashes = [0; BLOCK];
        let mut named = [0; BLOCK];
        let mut kept = 0;
        for row in self.rows.clone() {
            self.begin[row - self.rows.start] = base + kept;
            let range = self.source.begin[row]..self.source.end[row];
            let blocks =
                self.source.columns[range.clone()].chunks(BLOCK).zip(self.source.values[range].chunks(BLOCK));
            for (columns, values) in blocks {
                // What is dropped depends on rows and columns of the whole graph.
                let (row, names) = (self.first + row as u32, self.names.of(columns, &mut named));
                if self.transposed {
                    self.dropout.hash_column(row, names, &mut hashes);
                } else {
                    self.dropout.hash_row(row, names, &mut hashes);
                }
                for k in 0..columns.len().min(values.len()).min(BLOCK) {
                    // Written in any case, kept by moving on: no branch that could be guessed wrong.
                    self.columns[kept] = columns[k];
                    self.values[kept] = values[k] * scale;
                    kept += usize::from(self.dropout.keeps_hash(hashes[k]));
                }
            }
            self.end[row - self.rows.start] = base + kept;
        }
    }
}
