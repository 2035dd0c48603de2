//! The linear part `W` of an equilibrium layer: a dense matrix, a convolution, or propagation on a graph, with
//! the products the certificates need (`Wx`, `|W|x`, an interval product) and outward bounds of their rounding.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::round::{centre_radius, dot, dot_abs, dot_and_abs, gamma, sum_upper, tiny, vectorised};

/// What lies beyond the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Padding {
    /// Zeros, as in the paper's layers.
    Zero,
    /// The opposite border: the image is a torus.
    Circular,
}

/// Height and width of the largest kernel: what two factors of 3x3 make.
pub(crate) const LARGEST_SIDE: usize = 5;

/// A square matrix, row major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dense {
    n: usize,
    entries: Vec<f64>,
}

/// A convolution (cross-correlation, as in PyTorch) from `channels` planes to as many of the same size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Conv {
    channels: usize,
    height: usize,
    width: usize,
    padding: Padding,
    /// `channels x channels x 3 x 3` (or `5 x 5`): output, input, row, column.
    kernel: Vec<f64>,
}

/// `Z -> A Z` for a sparse `A` (nodes x nodes, compressed rows) and `Z` with `columns` features per node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    nodes: usize,
    columns: usize,
    offsets: Vec<usize>,
    neighbours: Vec<usize>,
    weights: Vec<f64>,
}

/// The linear part `W` of a layer.
///
/// ```
/// use subdeq_theory::operator::Operator;
/// let w = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
/// let (lower, upper) = w.enclose(&[0.0, 0.0], &[1.0, 1.0]);
/// assert!(lower[0] <= -1.0 && upper[0] >= 1.0 && upper[0] < 1.0 + 1e-12);
/// # Ok::<(), subdeq_theory::operator::OperatorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Operator {
    /// A dense matrix.
    Dense(Dense),
    /// A convolution.
    Conv(Conv),
    /// Propagation on a graph.
    Graph(Graph),
}

/// Weights that do not describe an operator.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OperatorError {
    /// The number of entries does not fit the shape.
    #[error("{what} needs {expected} entries, but {found} were given")]
    Length {
        /// Which operator, with its shape.
        what: String,
        /// Entries the shape asks for.
        expected: usize,
        /// Entries given.
        found: usize,
    },
    /// An entry is infinite or not a number.
    #[error("weight number {index} (counting from 0) is {value}; every weight must be finite")]
    NotFinite {
        /// Position in the flat array.
        index: usize,
        /// The offending value.
        value: f64,
    },
    /// A size is zero.
    #[error("{0} has no entries")]
    Empty(&'static str),
    /// A test that needs the matrix itself was asked of too large an operator.
    #[error("this needs the dense matrix, for at most {limit} unknowns, but there are {found}")]
    TooLarge {
        /// Most unknowns.
        limit: usize,
        /// Unknowns there are.
        found: usize,
    },
    /// Two taps of the kernel would fall on the same pixel.
    #[error(
        "a circular {side} x {side} kernel needs an image of at least that size, but it is {height} x {width}"
    )]
    SmallTorus {
        /// Height and width of the kernel.
        side: usize,
        /// Image height.
        height: usize,
        /// Image width.
        width: usize,
    },
    /// The compressed rows are inconsistent.
    #[error("row {row} of the graph is inconsistent: {why}")]
    Graph {
        /// The row at fault.
        row: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl Operator {
    /// A dense `n x n` matrix, row major.
    ///
    /// # Errors
    /// A wrong number of entries, none at all, or one that is not finite.
    pub fn dense(n: usize, entries: Vec<f64>) -> Result<Operator, OperatorError> {
        if n == 0 {
            return Err(OperatorError::Empty("the matrix"));
        }
        check_len(|| format!("a {n} x {n} matrix"), n.saturating_mul(n), entries.len())?;
        check_finite(&entries)?;
        Ok(Operator::Dense(Dense { n, entries }))
    }

    /// A 3x3 convolution with `kernel[output][input][row][column]` on images of `height x width`; with circular padding the
    /// kernels may be 5x5 instead, which their number tells.
    ///
    /// # Errors
    /// A wrong number of entries, an empty image, a torus narrower than the kernel, or a weight that is not finite.
    pub fn conv(
        channels: usize,
        height: usize,
        width: usize,
        padding: Padding,
        kernel: Vec<f64>,
    ) -> Result<Operator, OperatorError> {
        if channels == 0 || height == 0 || width == 0 {
            return Err(OperatorError::Empty("the image or the kernel"));
        }
        let pairs = channels.saturating_mul(channels);
        let wide =
            padding == Padding::Circular && kernel.len() == pairs.saturating_mul(LARGEST_SIDE * LARGEST_SIDE);
        let side = if wide { LARGEST_SIDE } else { 3 };
        if padding == Padding::Circular && (height < side || width < side) {
            return Err(OperatorError::SmallTorus { side, height, width });
        }
        let expected = pairs.saturating_mul(side * side);
        check_len(|| format!("a {channels} x {channels} x {side} x {side} kernel"), expected, kernel.len())?;
        check_finite(&kernel)?;
        Ok(Operator::Conv(Conv { channels, height, width, padding, kernel }))
    }

    /// Propagation `Z -> A Z` with `A` in compressed rows: row `i` has the entries
    /// `offsets[i]..offsets[i + 1]` of `neighbours` and `weights`.
    ///
    /// # Errors
    /// Offsets that do not increase or do not end at the number of weights, a neighbour out of range, a weight that
    /// is not finite.
    pub fn graph(
        columns: usize,
        offsets: Vec<usize>,
        neighbours: Vec<usize>,
        weights: Vec<f64>,
    ) -> Result<Operator, OperatorError> {
        if offsets.len() < 2 || columns == 0 {
            return Err(OperatorError::Empty("the graph"));
        }
        let nodes = offsets.len() - 1;
        check_len(|| "the weights of a graph".to_owned(), neighbours.len(), weights.len())?;
        check_finite(&weights)?;
        for row in 0..nodes {
            if offsets[row] > offsets[row + 1] || offsets[row + 1] > weights.len() {
                let why = format!("it runs from {} to {}", offsets[row], offsets[row + 1]);
                return Err(OperatorError::Graph { row, why });
            }
            if let Some(far) = neighbours[offsets[row]..offsets[row + 1]].iter().find(|&&j| j >= nodes) {
                let why = format!("it names node {far}, but there are {nodes} nodes");
                return Err(OperatorError::Graph { row, why });
            }
            let mut sorted = neighbours[offsets[row]..offsets[row + 1]].to_vec();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
                let why = format!("it names node {} twice", twice[0]);
                return Err(OperatorError::Graph { row, why });
            }
        }
        if offsets[0] != 0 || offsets[nodes] != weights.len() {
            let why = format!("the offsets cover {}..{} of {}", offsets[0], offsets[nodes], weights.len());
            return Err(OperatorError::Graph { row: nodes - 1, why });
        }
        Ok(Operator::Graph(Graph { nodes, columns, offsets, neighbours, weights }))
    }

    /// The number of unknowns `n`.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Operator::Dense(dense) => dense.n,
            Operator::Conv(conv) => conv.channels * conv.pixels(),
            Operator::Graph(graph) => graph.nodes * graph.columns,
        }
    }

    /// Never true: an operator has at least one unknown.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most products that one entry of `Wx` sums up.
    #[must_use]
    pub fn terms(&self) -> usize {
        match self {
            Operator::Dense(dense) => dense.n,
            Operator::Conv(conv) => conv.tap_count() * conv.channels,
            Operator::Graph(graph) => graph.offsets.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0),
        }
    }

    /// The stored weights, flat.
    #[must_use]
    pub fn weights(&self) -> &[f64] {
        match self {
            Operator::Dense(dense) => &dense.entries,
            Operator::Conv(conv) => &conv.kernel,
            Operator::Graph(graph) => &graph.weights,
        }
    }

    /// `out = W x`, each entry wrong by at most `gamma(terms)` times that of `|W||x|`.
    pub fn apply(&self, x: &[f64], out: &mut [f64]) {
        match self {
            Operator::Dense(dense) => vectorised(
                #[inline(always)]
                || {
                    for (row, out) in dense.entries.chunks_exact(dense.n).zip(out) {
                        *out = dot(row, x);
                    }
                },
            ),
            Operator::Conv(conv) => conv.apply(x, out, |k| k),
            Operator::Graph(graph) => graph.apply(x, out, |a| a),
        }
    }

    /// `out = |W| x` for `x >= 0`, relatively wrong by at most `gamma(terms)`.
    pub fn apply_abs(&self, x: &[f64], out: &mut [f64]) {
        match self {
            Operator::Dense(dense) => vectorised(
                #[inline(always)]
                || {
                    for (row, out) in dense.entries.chunks_exact(dense.n).zip(out) {
                        *out = dot_abs(row, x);
                    }
                },
            ),
            Operator::Conv(conv) => conv.apply(x, out, f64::abs),
            Operator::Graph(graph) => graph.apply(x, out, f64::abs),
        }
    }

    /// `W c` and `|W| r` together.
    fn apply_ball(&self, centre: &[f64], radius: &[f64], out: &mut [f64], spread: &mut [f64]) {
        if let Operator::Dense(dense) = self {
            vectorised(
                #[inline(always)]
                || {
                    for ((row, out), spread) in dense.entries.chunks_exact(dense.n).zip(out).zip(spread) {
                        (*out, *spread) = dot_and_abs(row, centre, radius);
                    }
                },
            );
        } else {
            self.apply(centre, out);
            self.apply_abs(radius, spread);
        }
    }

    /// `sum_j |W_ij|` for every row, rounded up.
    #[must_use]
    pub fn row_sums(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.len()];
        self.apply_abs(&vec![1.0; self.len()], &mut sums);
        let terms = self.terms();
        sums.iter_mut().for_each(|s| *s = sum_upper(*s, terms));
        sums
    }

    /// `W+ l - W- h` rounded down and `W+ h - W- l` rounded up: the range of `Wx` over the box, entry by entry.
    #[must_use]
    pub fn enclose(&self, lower: &[f64], upper: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let mut product = BoxProduct::new(self);
        let (mut out_lower, mut out_upper) = (vec![0.0; self.len()], vec![0.0; self.len()]);
        product.enclose(lower, upper, &mut out_lower, &mut out_upper);
        (out_lower, out_upper)
    }

    /// `W^T`.
    #[must_use]
    pub fn transposed(&self) -> Operator {
        match self {
            Operator::Dense(dense) => {
                let n = dense.n;
                let mut entries = vec![0.0; n * n];
                for i in 0..n {
                    for j in 0..n {
                        entries[j * n + i] = dense.entries[i * n + j];
                    }
                }
                Operator::Dense(Dense { n, entries })
            }
            Operator::Conv(conv) => Operator::Conv(conv.transposed()),
            Operator::Graph(graph) => Operator::Graph(graph.transposed()),
        }
    }

    /// The dense matrix, row major, where it has at most `limit` rows.
    #[must_use]
    pub fn to_dense(&self, limit: usize) -> Option<Vec<f64>> {
        let n = self.len();
        if n > limit {
            return None;
        }
        if let Operator::Dense(dense) = self {
            return Some(dense.entries.clone());
        }
        // Column j is W e_j; a single product and sums of zeros are exact.
        let (mut matrix, mut unit, mut column) = (vec![0.0; n * n], vec![0.0; n], vec![0.0; n]);
        for j in 0..n {
            unit[j] = 1.0;
            self.apply(&unit, &mut column);
            unit[j] = 0.0;
            for i in 0..n {
                matrix[i * n + j] = column[i];
            }
        }
        Some(matrix)
    }

    /// The same without a copy where the operator is dense.
    pub(crate) fn matrix(&self, limit: usize) -> Option<Cow<'_, [f64]>> {
        match self {
            Operator::Dense(dense) if dense.n <= limit => Some(Cow::Borrowed(&dense.entries)),
            _ => self.to_dense(limit).map(Cow::Owned),
        }
    }

    /// The convolution, where it is one.
    #[must_use]
    pub fn as_conv(&self) -> Option<&Conv> {
        if let Operator::Conv(conv) = self { Some(conv) } else { None }
    }

    /// The weights of each row; an output channel of a convolution stands for all its pixels, a node of a graph for
    /// all its columns.
    pub fn rows(&self) -> Box<dyn Iterator<Item = &[f64]> + '_> {
        match self {
            Operator::Dense(dense) => Box::new(dense.entries.chunks_exact(dense.n)),
            Operator::Conv(conv) => Box::new(conv.kernel.chunks_exact(conv.tap_count() * conv.channels)),
            Operator::Graph(graph) => {
                Box::new(graph.offsets.windows(2).map(|row| &graph.weights[row[0]..row[1]]))
            }
        }
    }

    /// `|W|`.
    #[must_use]
    pub fn abs(&self) -> Operator {
        let mut absolute = self.clone();
        let weights = match &mut absolute {
            Operator::Dense(dense) => &mut dense.entries,
            Operator::Conv(conv) => &mut conv.kernel,
            Operator::Graph(graph) => &mut graph.weights,
        };
        weights.iter_mut().for_each(|w| *w = w.abs());
        absolute
    }
}

fn check_len(what: impl FnOnce() -> String, expected: usize, found: usize) -> Result<(), OperatorError> {
    if expected == found { Ok(()) } else { Err(OperatorError::Length { what: what(), expected, found }) }
}

fn check_finite(weights: &[f64]) -> Result<(), OperatorError> {
    match weights.iter().position(|w| !w.is_finite()) {
        Some(index) => Err(OperatorError::NotFinite { index, value: weights[index] }),
        None => Ok(()),
    }
}

impl Conv {
    /// Number of channels.
    #[must_use]
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Image height.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// Image width.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// What lies beyond the border.
    #[must_use]
    pub fn padding(&self) -> Padding {
        self.padding
    }

    /// `kernel[output][input][row][column]`, flat.
    #[must_use]
    pub fn kernel(&self) -> &[f64] {
        &self.kernel
    }

    pub(crate) fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Height and width of the kernel: 3 or 5.
    #[must_use]
    pub fn side(&self) -> usize {
        if self.tap_count() == 9 { 3 } else { LARGEST_SIDE }
    }

    /// Taps of the kernel from one channel to another.
    #[inline(always)]
    pub(crate) fn tap_count(&self) -> usize {
        self.kernel.len() / (self.channels * self.channels)
    }

    /// The taps from channel `input` to channel `output`.
    #[inline(always)]
    pub(crate) fn taps(&self, output: usize, input: usize) -> &[f64] {
        let count = self.tap_count();
        &self.kernel[(output * self.channels + input) * count..][..count]
    }

    /// `K[o][i] = sum of |taps|`, rounded up, as an operator on channels: `rho(|W|) <= rho(K)`, with weights that are
    /// constant over the pixels.
    #[must_use]
    pub fn channel_sums(&self) -> Operator {
        let count = self.tap_count();
        let kernels = self.kernel.chunks_exact(count);
        let sums = kernels.map(|taps| sum_upper(taps.iter().map(|t| t.abs()).sum(), count));
        Operator::Dense(Dense { n: self.channels, entries: sums.collect() })
    }

    /// The planes of `x` with a border as wide as the kernel reaches.
    fn padded(&self, x: &[f64]) -> Vec<f64> {
        let (h, w, border) = (self.height, self.width, self.side() / 2);
        let (rows, columns) = (h + 2 * border, w + 2 * border);
        let mut planes = vec![0.0; self.channels * rows * columns];
        for (plane, x) in planes.chunks_exact_mut(rows * columns).zip(x.chunks_exact(h * w)) {
            for (row, target) in plane.chunks_exact_mut(columns).enumerate() {
                let source = match self.padding {
                    Padding::Zero if row < border || row >= h + border => continue,
                    // The rows before the first are the last ones of the torus.
                    _ => (row + h - border) % h,
                };
                let source = &x[source * w..][..w];
                target[border..border + w].copy_from_slice(source);
                if self.padding == Padding::Circular {
                    target[..border].copy_from_slice(&source[w - border..]);
                    target[border + w..].copy_from_slice(&source[..border]);
                }
            }
        }
        planes
    }

    fn apply(&self, x: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
        let padded = self.padded(x);
        vectorised(
            #[inline(always)]
            || match self.side() {
                3 => self.correlate(&padded, out, weight),
                _ => self.correlate_wide(&padded, out, weight),
            },
        );
    }

    /// Tap after tap, for kernels of any size.
    #[inline(always)]
    fn correlate_wide(&self, padded: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
        let (h, w, side) = (self.height, self.width, self.side());
        let stride = w + side - 1;
        for (output, out) in out.chunks_exact_mut(h * w).enumerate() {
            out.fill(0.0);
            for (input, plane) in padded.chunks_exact((h + side - 1) * stride).enumerate() {
                for (tap, &k) in self.taps(output, input).iter().enumerate() {
                    let k = weight(k);
                    for (row, out) in out.chunks_exact_mut(w).enumerate() {
                        let source = &plane[(row + tap / side) * stride + tap % side..][..w];
                        out.iter_mut().zip(source).for_each(|(out, x)| *out += k * x);
                    }
                }
            }
        }
    }

    /// Nine taps in one pass over each row of the output.
    #[inline(always)]
    fn correlate(&self, padded: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
        let (h, w) = (self.height, self.width);
        let stride = w + 2;
        for (output, out) in out.chunks_exact_mut(h * w).enumerate() {
            out.fill(0.0);
            for (input, plane) in padded.chunks_exact((h + 2) * stride).enumerate() {
                let mut k = [0.0; 9];
                for (k, &tap) in k.iter_mut().zip(self.taps(output, input)) {
                    *k = weight(tap);
                }
                for (row, out) in out.chunks_exact_mut(w).enumerate() {
                    let top = &plane[row * stride..][..stride];
                    let middle = &plane[(row + 1) * stride..][..stride];
                    let bottom = &plane[(row + 2) * stride..][..stride];
                    let (t0, t1, t2) = (&top[..w], &top[1..][..w], &top[2..][..w]);
                    let (m0, m1, m2) = (&middle[..w], &middle[1..][..w], &middle[2..][..w]);
                    let (b0, b1, b2) = (&bottom[..w], &bottom[1..][..w], &bottom[2..][..w]);
                    for i in 0..w {
                        out[i] += (k[0] * t0[i] + k[1] * t1[i] + k[2] * t2[i])
                            + (k[3] * m0[i] + k[4] * m1[i] + k[5] * m2[i])
                            + (k[6] * b0[i] + k[7] * b1[i] + k[8] * b2[i]);
                    }
                }
            }
        }
    }

    /// Swap output and input, turn the kernel by half a turn.
    fn transposed(&self) -> Conv {
        let count = self.tap_count();
        let mut kernel = vec![0.0; self.kernel.len()];
        for output in 0..self.channels {
            for input in 0..self.channels {
                let target = &mut kernel[(input * self.channels + output) * count..][..count];
                for (t, &k) in target.iter_mut().zip(self.taps(output, input).iter().rev()) {
                    *t = k;
                }
            }
        }
        Conv { kernel, ..*self }
    }
}

impl Graph {
    /// The neighbours of a node with the weights of their edges.
    pub fn neighbours(&self, node: usize) -> impl Iterator<Item = (usize, f64)> + '_ {
        let row = self.offsets[node]..self.offsets[node + 1];
        self.neighbours[row.clone()].iter().copied().zip(self.weights[row].iter().copied())
    }

    /// Features per node.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    fn apply(&self, x: &[f64], out: &mut [f64], weight: impl Fn(f64) -> f64) {
        let columns = self.columns;
        for (row, out) in self.offsets.windows(2).zip(out.chunks_exact_mut(columns)) {
            out.fill(0.0);
            for entry in row[0]..row[1] {
                let a = weight(self.weights[entry]);
                let z = &x[self.neighbours[entry] * columns..][..columns];
                for (out, z) in out.iter_mut().zip(z) {
                    *out += a * z;
                }
            }
        }
    }

    fn transposed(&self) -> Graph {
        let mut offsets = vec![0; self.nodes + 1];
        for &j in &self.neighbours {
            offsets[j + 1] += 1;
        }
        for i in 0..self.nodes {
            offsets[i + 1] += offsets[i];
        }
        let mut next = offsets.clone();
        let (mut neighbours, mut weights) = (vec![0; self.weights.len()], vec![0.0; self.weights.len()]);
        for (i, row) in self.offsets.windows(2).enumerate() {
            for entry in row[0]..row[1] {
                let slot = next[self.neighbours[entry]];
                next[self.neighbours[entry]] += 1;
                neighbours[slot] = i;
                weights[slot] = self.weights[entry];
            }
        }
        Graph { nodes: self.nodes, columns: self.columns, offsets, neighbours, weights }
    }
}

/// The interval product `W [l, h]`, with its row sums and scratch computed once for many products.
pub(crate) struct BoxProduct<'a> {
    operator: &'a Operator,
    row_sums: Vec<f64>,
    centre: Vec<f64>,
    radius: Vec<f64>,
}

impl<'a> BoxProduct<'a> {
    pub(crate) fn new(operator: &'a Operator) -> BoxProduct<'a> {
        let n = operator.len();
        BoxProduct { operator, row_sums: operator.row_sums(), centre: vec![0.0; n], radius: vec![0.0; n] }
    }

    /// Writes a box that contains `W x` for every `x` in `[lower, upper]`.
    pub(crate) fn enclose(
        &mut self,
        lower: &[f64],
        upper: &[f64],
        out_lower: &mut [f64],
        out_upper: &mut [f64],
    ) {
        let mut largest = 0.0f64;
        for (j, (&l, &h)) in lower.iter().zip(upper).enumerate() {
            let (centre, radius) = centre_radius(l, h);
            (self.centre[j], self.radius[j]) = (centre, radius);
            largest = largest.max(centre.abs() + radius);
        }
        // |W x - fl(W c)| <= |W| r + gamma |W||c| and |W| r <= fl(|W| r) + gamma |W| r: one bound for both errors.
        self.operator.apply_ball(&self.centre, &self.radius, out_lower, out_upper);
        let terms = self.operator.terms();
        let relative = gamma(terms + 8) * largest;
        for ((lower, upper), row_sum) in out_lower.iter_mut().zip(out_upper).zip(&self.row_sums) {
            let slack = (relative * row_sum + tiny(terms + 1)).next_up();
            let (centre, spread) = (*lower, (*upper + slack).next_up());
            *lower = (centre - spread).next_down();
            *upper = (centre + spread).next_up();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn some_operator(kind: usize, rng: &mut ChaCha8Rng) -> Operator {
        let mut weights = |n: usize| (0..n).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f64>>();
        match kind {
            0 => Operator::dense(19, weights(361)).unwrap(),
            1 => Operator::conv(2, 3, 5, Padding::Zero, weights(36)).unwrap(),
            2 => Operator::conv(3, 4, 3, Padding::Circular, weights(81)).unwrap(),
            3 => Operator::conv(2, 5, 6, Padding::Circular, weights(100)).unwrap(),
            _ => Operator::graph(2, vec![0, 2, 3, 6], vec![0, 1, 2, 0, 1, 2], weights(6)).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn products_agree_with_the_dense_matrix(kind in 0usize..5, seed in any::<u64>()) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let w = some_operator(kind, &mut rng);
            let n = w.len();
            let matrix = w.to_dense(100).unwrap();
            let x: Vec<f64> = (0..n).map(|_| rng.random_range(0.0..2.0)).collect();
            let (mut plain, mut abs, mut back) = (vec![0.0; n], vec![0.0; n], vec![0.0; n]);
            w.apply(&x, &mut plain);
            w.apply_abs(&x, &mut abs);
            w.transposed().apply(&x, &mut back);
            for i in 0..n {
                let row = &matrix[i * n..][..n];
                prop_assert!((plain[i] - row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>()).abs() < 1e-13);
                prop_assert!((abs[i] - row.iter().zip(&x).map(|(a, b)| a.abs() * b).sum::<f64>()).abs() < 1e-13);
                prop_assert!((back[i] - (0..n).map(|j| matrix[j * n + i] * x[j]).sum::<f64>()).abs() < 1e-13);
            }
            prop_assert_eq!(w.transposed().transposed(), w);
        }

        #[test]
        fn the_box_product_contains_every_product(kind in 0usize..5, seed in any::<u64>()) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let w = some_operator(kind, &mut rng);
            let n = w.len();
            let lower: Vec<f64> = (0..n).map(|_| rng.random_range(-1.0..1.0)).collect();
            let upper: Vec<f64> = lower.iter().map(|l| l + rng.random_range(0.0..1.0)).collect();
            let (out_lower, out_upper) = w.enclose(&lower, &upper);
            // The extreme corners of row i, in twice the precision, must lie inside; and the box is tight.
            let matrix = w.to_dense(100).unwrap();
            for i in 0..n {
                let row = &matrix[i * n..][..n];
                let (mut least, mut most) = (0.0, 0.0);
                for j in 0..n {
                    let ends = [row[j] * lower[j], row[j] * upper[j]];
                    least += ends[0].min(ends[1]);
                    most += ends[0].max(ends[1]);
                }
                prop_assert!(out_lower[i] <= least + 1e-15 && least - out_lower[i] < 1e-12);
                prop_assert!(out_upper[i] >= most - 1e-15 && out_upper[i] - most < 1e-12);
            }
        }
    }

    #[test]
    fn bad_weights_are_named() {
        let error = Operator::dense(2, vec![1.0, f64::NAN, 0.0, 0.0]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "weight number 1 (counting from 0) is NaN; every weight must be finite"
        );
        assert!(Operator::dense(3, vec![0.0; 4]).unwrap_err().to_string().contains("9 entries, but 4"));
        assert!(
            Operator::graph(1, vec![0, 1], vec![3], vec![1.0]).unwrap_err().to_string().contains("node 3")
        );
        assert!(Operator::graph(1, vec![0, 2, 2], vec![1, 1], vec![1.0; 2]).is_err());
        assert!(Operator::conv(1, 0, 4, Padding::Zero, vec![0.0; 9]).is_err());
        assert!(Operator::conv(1, 2, 4, Padding::Circular, vec![0.0; 9]).is_err());
        assert!(
            Operator::conv(1, 4, 5, Padding::Circular, vec![0.0; 25])
                .unwrap_err()
                .to_string()
                .contains("5 x 5")
        );
        assert!(Operator::conv(1, 5, 5, Padding::Zero, vec![0.0; 25]).is_err());
    }
}
