//! The network that makes injections out of sparse node features:
//! `f = output(dropout(ReLU(dropout(X) W1 + b1)) W2 + b2)`, each direction one pass over the nodes.
//!
//! Forward, a node's hidden row stays in the first-level cache between the two layers. Backward, the gradient of `W1` is
//! added up row by row into a few private copies (each small enough for the second-level cache), which are then added
//! in a fixed order: no transposed features, no atomics, the same bits for any number of threads.

// Loops in the kernels are counted by hand: iterators over pairs are not always inlined into functions with their own
// instruction set, and then vectors leave the registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::adjacency::BLOCK;
use super::chunks::{divide, divide_into, for_each_chunk};
use super::company::{Company, Division};
use super::node_matrix::NodeMatrix;
use super::product::{Gathered, isa_for};
use super::slices::SharedSlices;
use crate::cpu::Cpu;
use crate::cpu::isa::Vectorised;
use crate::cpu::network::adam;
use crate::cpu::parts::Parts;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::dropout::Dropout;
use crate::network::{Adam, Csr};
use crate::{EngineError, Result};

/// What is applied to the last layer's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputActivation {
    /// Nothing: injections of any sign, as in the published code.
    Signed,
    /// `max(x, 0)`: nonnegative injections.
    Relu,
    /// `ln(1 + e^x)`: positive injections.
    Softplus,
}

/// Weights of the network, or their gradients, or their moments.
#[derive(Clone, Debug)]
pub struct Encoder<T: SimdReal> {
    /// `W1`: features x hidden.
    pub hidden: NodeMatrix<T>,
    /// `b1`: one row.
    pub hidden_bias: NodeMatrix<T>,
    /// `W2`: hidden x classes.
    pub output: NodeMatrix<T>,
    /// `b2`: one row.
    pub output_bias: NodeMatrix<T>,
}

impl<T: SimdReal> Encoder<T> {
    /// All zero.
    #[must_use]
    pub fn zeros(features: usize, hidden: usize, classes: usize) -> Self {
        Self {
            hidden: NodeMatrix::zeros(features, hidden),
            hidden_bias: NodeMatrix::zeros(1, hidden),
            output: NodeMatrix::zeros(hidden, classes),
            output_bias: NodeMatrix::zeros(1, classes),
        }
    }

    /// The four arrays, in the order in which they are declared.
    pub fn arrays(&self) -> [&NodeMatrix<T>; 4] {
        [&self.hidden, &self.hidden_bias, &self.output, &self.output_bias]
    }

    /// The four arrays, in the order in which they are declared.
    pub fn arrays_mut(&mut self) -> [&mut NodeMatrix<T>; 4] {
        [&mut self.hidden, &mut self.hidden_bias, &mut self.output, &mut self.output_bias]
    }

    /// One update of Adam, given the gradient and the two moments, all of this network's shape.
    pub fn adam(
        &mut self,
        cpu: &Cpu<T>,
        adam: &Adam,
        gradient: &Self,
        moments: &mut [Self; 2],
    ) -> Result<()> {
        let (features, hidden, classes) =
            (self.hidden.nodes(), self.hidden.channels(), self.output.channels());
        self.check("the network", features, hidden, classes)?;
        gradient.check("the gradient", features, hidden, classes)?;
        let [means, squares] = moments;
        means.check("the first moment", features, hidden, classes)?;
        squares.check("the second moment", features, hidden, classes)?;
        let moments = means.arrays_mut().into_iter().zip(squares.arrays_mut());
        let arrays = self.arrays_mut().into_iter().zip(gradient.arrays());
        for ((weight, gradient), (mean, square)) in arrays.zip(moments) {
            // With the padding: where weight and gradient are zero, the update is.
            adam::adam(
                cpu.team(),
                cpu.isa(),
                adam,
                weight.padded_mut(),
                gradient.padded(),
                mean.padded_mut(),
                square.padded_mut(),
            )?;
        }
        Ok(())
    }

    fn check(&self, what: &'static str, features: usize, hidden: usize, classes: usize) -> Result<()> {
        self.hidden.check(what, features, hidden)?;
        self.hidden_bias.check(what, 1, hidden)?;
        self.output.check(what, hidden, classes)?;
        self.output_bias.check(what, 1, classes)
    }
}

/// Sparse node features, checked once; the kernels rely on it.
#[derive(Clone)]
pub struct Features<T: SimdReal> {
    matrix: Csr<T>,
    chunks: Vec<Range<usize>>,
    /// The slices of rows over which gradients are added up, as rows of the whole.
    slices: Vec<Range<usize>>,
    /// The number of row 0 in the whole.
    first: usize,
    /// Where other processes have the other rows.
    shared: Option<SharedSlices<T>>,
}

impl<T: SimdReal> std::fmt::Debug for Features<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} nodes x {} features", self.matrix.rows, self.matrix.cols)
    }
}

impl<T: SimdReal> Features<T> {
    /// Takes over a matrix of nodes x features.
    pub fn new(matrix: Csr<T>) -> Result<Self> {
        matrix.check()?;
        if u32::try_from(matrix.rows).is_err() {
            return Err(EngineError::Invalid(format!("{} nodes are more than 2^32 - 1", matrix.rows)));
        }
        if u32::try_from(matrix.cols).is_err() {
            return Err(EngineError::Invalid(format!("{} features are more than 2^32 - 1", matrix.cols)));
        }
        if let Some(index) = matrix.values.iter().position(|x| !x.is_finite()) {
            let value = matrix.values[index].to_string();
            return Err(EngineError::NotFinite { what: "features", index, value });
        }
        let chunks = divide(&matrix.starts);
        let slices = divide_features(&matrix.starts, matrix.cols);
        Ok(Self { matrix, chunks, slices, first: 0, shared: None })
    }

    /// This process's rows of features that several share.
    pub fn part(company: Arc<dyn Company<T>>, division: &Division, matrix: Csr<T>) -> Result<Self> {
        division.check()?;
        let rows = division.rows_of(company.rank(), company.size());
        if matrix.rows != rows.len() {
            return Err(EngineError::Invalid(format!(
                "{} rows of features for the nodes {} to {}",
                matrix.rows, rows.start, rows.end
            )));
        }
        let (slices, shared) = (division.slices.clone(), Some(SharedSlices::new(company, division)));
        Ok(Self { slices, first: rows.start, shared, ..Self::new(matrix)? })
    }

    /// The rows of a slice that are here, from 0.
    fn here(&self, slice: &Range<usize>) -> Range<usize> {
        let local = |row: usize| row.clamp(self.first, self.first + self.matrix.rows) - self.first;
        local(slice.start)..local(slice.end)
    }

    /// The matrix.
    #[must_use]
    pub fn matrix(&self) -> &Csr<T> {
        &self.matrix
    }
}

/// What a training step leaves out of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EncoderDropout {
    /// Of the features.
    pub features: Dropout,
    /// Of the hidden layer's output.
    pub hidden: Dropout,
}

/// Buffers for passes of one network over one set of features.
pub struct EncoderPass<T: SimdReal> {
    cpu: Cpu<T>,
    shape: Shape,
    activation: OutputActivation,
    /// Output of the hidden layer, after ReLU and dropout.
    hidden: NodeMatrix<T>,
    /// `W2` transposed.
    output_transposed: NodeMatrix<T>,
    partials: Vec<Partial<T>>,
}

#[derive(Clone, Copy)]
struct Shape {
    nodes: usize,
    features: usize,
    hidden: usize,
    classes: usize,
}

/// The gradient from some of the nodes.
pub(super) struct Partial<T: SimdReal> {
    pub(super) rows: Range<usize>,
    hidden: NodeMatrix<T>,
    hidden_bias: NodeMatrix<T>,
    output_transposed: NodeMatrix<T>,
    output_bias: NodeMatrix<T>,
    /// One row for the hidden layer and one for the output.
    scratch: (NodeMatrix<T>, NodeMatrix<T>),
}

impl<T: SimdReal> Partial<T> {
    /// What is added up.
    pub(super) fn sums(&self) -> [&NodeMatrix<T>; 4] {
        [&self.hidden, &self.hidden_bias, &self.output_transposed, &self.output_bias]
    }

    /// What is added up.
    pub(super) fn sums_mut(&mut self) -> [&mut NodeMatrix<T>; 4] {
        [&mut self.hidden, &mut self.hidden_bias, &mut self.output_transposed, &mut self.output_bias]
    }
}

/// Private copies of a gradient: as many as there may be threads at work, no more than the features are worth.
const MOST_PARTIALS: usize = 8;
/// A copy costs clearing and adding `features` rows; it must receive several times as many.
const ENTRIES_PER_FEATURE: usize = 16;

/// The slices of rows that have a copy each.
pub(super) fn divide_features(starts: &[usize], features: usize) -> Vec<Range<usize>> {
    divide_into(starts, MOST_PARTIALS, (ENTRIES_PER_FEATURE * features).max(1))
}

impl<T: SimdReal> EncoderPass<T> {
    /// Makes room.
    pub fn new(
        cpu: &Cpu<T>,
        features: &Features<T>,
        hidden: usize,
        classes: usize,
        activation: OutputActivation,
    ) -> Result<Self> {
        let matrix = &features.matrix;
        if hidden == 0 || classes == 0 || matrix.cols == 0 {
            return Err(EngineError::Invalid(format!(
                "a network of {} features, {hidden} hidden units and {classes} classes has an empty layer",
                matrix.cols
            )));
        }
        let shape = Shape { nodes: matrix.rows, features: matrix.cols, hidden, classes };
        let partials = features.slices.iter().map(|slice| Partial {
            rows: features.here(slice),
            hidden: NodeMatrix::zeros(matrix.cols, hidden),
            hidden_bias: NodeMatrix::zeros(1, hidden),
            output_transposed: NodeMatrix::zeros(classes, hidden),
            output_bias: NodeMatrix::zeros(1, classes),
            scratch: (NodeMatrix::zeros(1, hidden), NodeMatrix::zeros(1, classes)),
        });
        Ok(Self {
            cpu: cpu.clone(),
            shape,
            activation,
            hidden: NodeMatrix::zeros(matrix.rows, hidden),
            output_transposed: NodeMatrix::zeros(classes, hidden),
            partials: partials.collect(),
        })
    }

    fn check(&self, features: &Features<T>, weights: &Encoder<T>, f: &NodeMatrix<T>) -> Result<()> {
        let Shape { nodes, features: columns, hidden, classes } = self.shape;
        if (features.matrix.rows, features.matrix.cols) != (nodes, columns) {
            return Err(EngineError::Invalid(format!(
                "this pass was made for {nodes} nodes x {columns} features, these are {} x {}",
                features.matrix.rows, features.matrix.cols
            )));
        }
        weights.check("the network", columns, hidden, classes)?;
        f.check("the injection", nodes, classes)
    }

    /// `f`, for all nodes. What [`EncoderPass::backward`] needs is remembered.
    pub fn forward(
        &mut self,
        features: &Features<T>,
        weights: &Encoder<T>,
        dropout: Option<EncoderDropout>,
        f: &mut NodeMatrix<T>,
    ) -> Result<()> {
        self.check(features, weights, f)?;
        let (shape, activation, isa) =
            (self.shape, self.activation, isa_for(self.cpu.isa(), self.hidden.stride()));
        let chunks = &features.chunks[..];
        let (hidden_stride, stride) = (self.hidden.stride(), f.stride());
        let (hiddens, outputs) = (Parts::new(self.hidden.padded_mut()), Parts::new(f.padded_mut()));
        let mut nothing = vec![(); chunks.len()];
        for_each_chunk(&self.cpu, &mut nothing, |k, ()| {
            let rows = chunks[k].clone();
            // SAFETY: chunks are disjoint ranges of rows.
            let (hidden, output) = unsafe {
                let hidden = hiddens.take(rows.start * hidden_stride..rows.end * hidden_stride);
                (hidden, outputs.take(rows.start * stride..rows.end * stride))
            };
            let (features, first) = (&features.matrix, features.first);
            isa.dispatch(Forward {
                shape,
                features,
                first,
                weights,
                activation,
                dropout,
                rows,
                hidden,
                output,
            });
        });
        Ok(())
    }

    /// The gradient for the weights, given the gradient `g` for `f`; features, weights, dropout and `f` must be those of
    /// the last [`EncoderPass::forward`].
    pub fn backward(
        &mut self,
        features: &Features<T>,
        weights: &Encoder<T>,
        dropout: Option<EncoderDropout>,
        f: &NodeMatrix<T>,
        g: &NodeMatrix<T>,
        gradient: &mut Encoder<T>,
    ) -> Result<()> {
        self.check(features, weights, f)?;
        let Shape { nodes, features: columns, hidden, classes } = self.shape;
        g.check("the gradient for the injection", nodes, classes)?;
        gradient.check("the gradient", columns, hidden, classes)?;
        for unit in 0..hidden {
            for class in 0..classes {
                self.output_transposed.row_mut(class)[unit] = weights.output.row(unit)[class];
            }
        }
        let (activation, isa) = (self.activation, isa_for(self.cpu.isa(), self.hidden.stride()));
        let (hidden, output, first) = (&self.hidden, &self.output_transposed, features.first);
        let work = |partial: &mut Partial<T>, go_on: bool| {
            let features = &features.matrix;
            isa.dispatch(Backward {
                features,
                first,
                output,
                activation,
                dropout,
                hidden,
                f,
                g,
                partial,
                go_on,
            });
        };
        match &features.shared {
            None => for_each_chunk(&self.cpu, &mut self.partials, |_, partial| work(partial, false)),
            Some(shared) => shared.add_up(&self.cpu, &features.slices, &mut self.partials, work),
        }
        self.add_up(gradient);
        Ok(())
    }

    /// Adds the partial gradients in their order.
    fn add_up(&self, gradient: &mut Encoder<T>) {
        let stride = self.hidden.stride();
        let isa = self.cpu.isa();
        // Any division gives the same sums here; whole rows, some thousand numbers each.
        let starts: Vec<usize> = (0..=self.shape.features).map(|row| row * stride).collect();
        let chunks = divide_into(&starts, 16, 1 << 14);
        let sums = Parts::new(gradient.hidden.padded_mut());
        let mut nothing = vec![(); chunks.len()];
        for_each_chunk(&self.cpu, &mut nothing, |k, ()| {
            let span = starts[chunks[k].start]..starts[chunks[k].end];
            // SAFETY: chunks are disjoint ranges of rows.
            let sum = unsafe { sums.take(span.clone()) };
            sum.fill(T::ZERO);
            for partial in &self.partials {
                isa.dispatch(Accumulate { sum, part: &partial.hidden.padded()[span.clone()] });
            }
        });
        for small in [&mut gradient.hidden_bias, &mut gradient.output, &mut gradient.output_bias] {
            small.fill(T::ZERO);
        }
        let add = |sum: &mut [T], part: &[T]| sum.iter_mut().zip(part).for_each(|(sum, &part)| *sum += part);
        for partial in &self.partials {
            add(gradient.hidden_bias.padded_mut(), partial.hidden_bias.padded());
            add(gradient.output_bias.padded_mut(), partial.output_bias.padded());
            for class in 0..self.shape.classes {
                for (unit, &part) in partial.output_transposed.row(class).iter().enumerate() {
                    gradient.output.row_mut(unit)[class] += part;
                }
            }
        }
    }
}

/// `sum += part`.
struct Accumulate<'a, T> {
    sum: &'a mut [T],
    part: &'a [T],
}

impl<T: SimdReal> Vectorised<T> for Accumulate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        for (sum, part) in self.sum.chunks_mut(V::N).zip(self.part.chunks(V::N)) {
            (V::load_tail(sum) + V::load_tail(part)).store_tail(sum);
        }
    }
}

/// Room for the entries of a row that are kept, some at a time.
struct Kept<T> {
    hashes: [u32; BLOCK],
    columns: [u32; BLOCK],
    values: [T; BLOCK],
}

impl<T: SimdReal> Kept<T> {
    #[inline(always)]
    fn new() -> Self {
        Self { hashes: [0; BLOCK], columns: [0; BLOCK], values: [T::ZERO; BLOCK] }
    }

    /// The kept ones of at most `BLOCK` entries of one row; values are not scaled.
    #[inline(always)]
    fn select(&mut self, dropout: Dropout, row: usize, columns: &[u32], values: &[T]) -> (&[u32], &[T]) {
        dropout.hash_row(row as u32, columns, &mut self.hashes);
        let mut kept = 0;
        for k in 0..columns.len().min(values.len()).min(BLOCK) {
            // Written in any case, kept by moving on: no branch that could be guessed wrong.
            self.columns[kept] = columns[k];
            self.values[kept] = values[k];
            kept += usize::from(dropout.keeps_hash(self.hashes[k]));
        }
        (&self.columns[..kept], &self.values[..kept])
    }
}

/// The entries of one row.
#[inline(always)]
fn row_entries<T: SimdReal>(matrix: &Csr<T>, row: usize) -> (&[u32], &[T]) {
    let range = matrix.starts[row]..matrix.starts[row + 1];
    (&matrix.columns[range.clone()], &matrix.values[range])
}

/// A dropout's scale.
fn scale_of<T: SimdReal>(dropout: Option<Dropout>) -> T {
    T::from_f64(dropout.map_or(1.0, |dropout| dropout.scale()))
}

/// The vector of the first lanes of a slice that may be shorter than a vector.
#[inline(always)]
fn load_some<V: Lanes>(from: &[V::Elem]) -> V {
    if from.len() >= V::N { V::load(from) } else { V::load_tail(from) }
}

struct Forward<'a, T: SimdReal> {
    shape: Shape,
    features: &'a Csr<T>,
    /// The number of row 0 in the whole graph, which dropout goes by.
    first: usize,
    weights: &'a Encoder<T>,
    activation: OutputActivation,
    dropout: Option<EncoderDropout>,
    rows: Range<usize>,
    hidden: &'a mut [T],
    output: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { shape, features, first, weights, activation, dropout, rows, hidden, output } = self;
        let (hidden_stride, stride) = (weights.hidden.stride(), weights.output.stride());
        let gathered = Gathered::new(weights.hidden.padded(), hidden_stride);
        // No closures around vectors in here: they would be compiled without the instructions.
        let feature_dropout = dropout.map(|dropout| dropout.features).filter(|dropout| !dropout.is_none());
        let hidden_dropout = dropout.map(|dropout| dropout.hidden).filter(|dropout| !dropout.is_none());
        let scale = V::splat(scale_of(feature_dropout));
        let mut kept = Kept::new();
        for row in rows.clone() {
            let units = &mut hidden[(row - rows.start) * hidden_stride..][..hidden_stride];
            let (columns, values) = row_entries(features, row);
            if let Some(dropout) = feature_dropout {
                units.fill(T::ZERO);
                for (columns, values) in columns.chunks(BLOCK).zip(values.chunks(BLOCK)) {
                    let (columns, values) = kept.select(dropout, first + row, columns, values);
                    // SAFETY: features have checked columns, `W1` has a row for each, strides are whole vectors.
                    unsafe { gathered.row_product::<V>(columns, values, (0, columns.len()), units, true) };
                }
            } else {
                // SAFETY: as above.
                unsafe { gathered.row_product::<V>(columns, values, (0, columns.len()), units, false) };
            }
            let bias = weights.hidden_bias.padded();
            for at in (0..hidden_stride).step_by(V::N) {
                let unit = V::load(&units[at..]).fma(scale, V::load(&bias[at..])).max(V::zero());
                unit.store(&mut units[at..]);
            }
            if let Some(dropout) = hidden_dropout {
                drop_units(dropout, first + row, &mut units[..shape.hidden]);
            }
            let out = &mut output[(row - rows.start) * stride..][..stride];
            output_layer::<V>(weights, activation, &units[..shape.hidden], shape.classes, out);
        }
    }
}

/// Drops hidden units of one node.
#[inline(always)]
fn drop_units<T: SimdReal>(dropout: Dropout, row: usize, units: &mut [T]) {
    let scale = T::from_f64(dropout.scale());
    let mut hashes = [0; BLOCK];
    let mut numbers = [0; BLOCK];
    for (block, units) in units.chunks_mut(BLOCK).enumerate() {
        for k in 0..BLOCK {
            numbers[k] = (block * BLOCK + k) as u32;
        }
        dropout.hash_row(row as u32, &numbers[..units.len()], &mut hashes);
        for k in 0..units.len().min(BLOCK) {
            units[k] *= if dropout.keeps_hash(hashes[k]) { scale } else { T::ZERO };
        }
    }
}

/// `out = activation(units W2 + b2)`, zero in the padding.
#[inline(always)]
fn output_layer<V: Lanes>(
    weights: &Encoder<V::Elem>,
    activation: OutputActivation,
    units: &[V::Elem],
    classes: usize,
    out: &mut [V::Elem],
) {
    let stride = out.len();
    let matrix = weights.output.padded();
    for at in (0..stride).step_by(V::N) {
        let width = V::N.min(stride - at);
        let mut sums =
            [load_some::<V>(&weights.output_bias.padded()[at..][..width]), V::zero(), V::zero(), V::zero()];
        let whole = units.len() - units.len() % 4;
        for unit in (0..whole).step_by(4) {
            for u in 0..4 {
                let row = load_some::<V>(&matrix[(unit + u) * stride + at..][..width]);
                sums[u] = V::splat(units[unit + u]).fma(row, sums[u]);
            }
        }
        for unit in whole..units.len() {
            sums[0] =
                V::splat(units[unit]).fma(load_some::<V>(&matrix[unit * stride + at..][..width]), sums[0]);
        }
        let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        let value = match activation {
            OutputActivation::Signed => sum,
            OutputActivation::Relu => sum.max(V::zero()),
            OutputActivation::Softplus => sum.softplus(),
        };
        let valid = (classes - at.min(classes)).min(V::N);
        value.first(valid, V::zero()).store_tail(&mut out[at..at + width]);
    }
}

struct Backward<'a, T: SimdReal> {
    features: &'a Csr<T>,
    /// As in the pass forward.
    first: usize,
    /// `W2` transposed.
    output: &'a NodeMatrix<T>,
    activation: OutputActivation,
    dropout: Option<EncoderDropout>,
    hidden: &'a NodeMatrix<T>,
    f: &'a NodeMatrix<T>,
    g: &'a NodeMatrix<T>,
    partial: &'a mut Partial<T>,
    /// Whether its sums have been begun.
    go_on: bool,
}

impl<T: SimdReal> Vectorised<T> for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { features, first, output, activation, dropout, hidden, f, g, partial, go_on } = self;
        if !go_on {
            for sum in partial.sums_mut() {
                sum.padded_mut().fill(T::ZERO);
            }
        }
        let Partial { rows, hidden: gradient, hidden_bias, output_transposed, output_bias, scratch } =
            partial;
        let stride = hidden.stride();
        let (units_gradient, arriving) = (scratch.0.padded_mut(), scratch.1.row_mut(0));
        let feature_dropout = dropout.map(|dropout| dropout.features).filter(|dropout| !dropout.is_none());
        let scale = scale_of::<T>(feature_dropout);
        let mut kept = Kept::new();
        let hidden_scale = V::splat(scale_of(dropout.map(|dropout| dropout.hidden)));
        for row in rows.clone() {
            pull_activation(activation, f.row(row), g.row(row), arriving);
            if arriving.iter().all(|&g| g == T::ZERO) {
                continue;
            }
            for (sum, &g) in output_bias.padded_mut().iter_mut().zip(arriving.iter()) {
                *sum += g;
            }
            let units = &hidden.padded()[row * stride..][..stride];
            for at in (0..stride).step_by(V::N) {
                let unit = V::load(&units[at..]);
                let mut sum = V::zero();
                for class in 0..arriving.len() {
                    let (g, k) = (V::splat(arriving[class]), class * stride + at);
                    sum = g.fma(V::load(&output.padded()[k..]), sum);
                    let total = &mut output_transposed.padded_mut()[k..];
                    g.fma(unit, V::load(total)).store(total);
                }
                // Units that ReLU or dropout set to zero pass nothing on.
                let pulled = V::select(V::zero().lt(unit), sum * hidden_scale, V::zero());
                pulled.store(&mut units_gradient[at..]);
                let total = &mut hidden_bias.padded_mut()[at..];
                (V::load(total) + pulled).store(total);
            }
            let (columns, values) = row_entries(features, row);
            let gradient = gradient.padded_mut();
            if let Some(dropout) = feature_dropout {
                for (columns, values) in columns.chunks(BLOCK).zip(values.chunks(BLOCK)) {
                    let (columns, values) = kept.select(dropout, first + row, columns, values);
                    // SAFETY: features have checked columns and the gradient has a row for each.
                    unsafe { scatter::<V>(columns, values, scale, units_gradient, gradient) };
                }
            } else {
                // SAFETY: as above.
                unsafe { scatter::<V>(columns, values, scale, units_gradient, gradient) };
            }
        }
    }
}

/// The gradient before the output activation, from the activation's value.
#[inline(always)]
fn pull_activation<T: SimdReal>(activation: OutputActivation, f: &[T], g: &[T], pulled: &mut [T]) {
    for ((pulled, &g), &f) in pulled.iter_mut().zip(g).zip(f) {
        *pulled = match activation {
            OutputActivation::Signed => g,
            OutputActivation::Relu if f > T::ZERO => g,
            OutputActivation::Relu => T::ZERO,
            // f = ln(1 + e^x) has the slope 1 - e^-f.
            OutputActivation::Softplus => g * (T::ONE - (-f).exp()),
        };
    }
}

/// `gradient[columns[k]] += scale * values[k] * row` for every entry.
///
/// # Safety
/// Every column must be the number of a row of `gradient`, whose rows have the length of `row`, whole vectors.
#[inline(always)]
unsafe fn scatter<V: Lanes>(
    columns: &[u32],
    values: &[V::Elem],
    scale: V::Elem,
    row: &[V::Elem],
    gradient: &mut [V::Elem],
) {
    let stride = row.len();
    let mut at = 0;
    // SAFETY: the caller's promise; blocks stay within a row.
    unsafe {
        while at + 4 * V::N <= stride {
            scatter_block::<V, 4>(columns, values, scale, &row[at..], at, stride, gradient);
            at += 4 * V::N;
        }
        while at + V::N <= stride {
            scatter_block::<V, 1>(columns, values, scale, &row[at..], at, stride, gradient);
            at += V::N;
        }
    }
}

/// # Safety
/// As for `scatter`, for the `B` vectors from `at` on.
#[inline(always)]
unsafe fn scatter_block<V: Lanes, const B: usize>(
    columns: &[u32],
    values: &[V::Elem],
    scale: V::Elem,
    row: &[V::Elem],
    at: usize,
    stride: usize,
    gradient: &mut [V::Elem],
) {
    let mut vectors = [V::zero(); B];
    for b in 0..B {
        vectors[b] = V::load(&row[b * V::N..]);
    }
    for k in 0..columns.len().min(values.len()) {
        // SAFETY: `k` is below both lengths.
        let (column, value) = unsafe { (*columns.get_unchecked(k), *values.get_unchecked(k)) };
        let start = column as usize * stride + at;
        debug_assert!(start + B * V::N <= gradient.len());
        // SAFETY: the caller's promise.
        let sums = unsafe { std::slice::from_raw_parts_mut(gradient.as_mut_ptr().add(start), B * V::N) };
        let value = V::splat(value * scale);
        for b in 0..B {
            value.fma(vectors[b], V::load(&sums[b * V::N..])).store(&mut sums[b * V::N..]);
        }
    }
}
