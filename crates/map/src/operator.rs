//! The weights `W` of an equilibrium layer: a dense matrix, a convolution, or propagation on a graph.

use serde::{Deserialize, Serialize};

/// How the weights act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// `W z` is a matrix product.
    Dense,
    /// `W z` is a convolution of an image with several channels.
    Conv,
    /// `A Z` mixes the rows (nodes) of `Z`, each column by itself.
    Graph,
}

/// What lies beyond the border of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Padding {
    /// Zeros, as in the paper's layers.
    Zero,
    /// The opposite border: the image is a torus.
    Circular,
}

/// A square matrix, row major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dense {
    n: usize,
    entries: Vec<f64>,
}

/// A convolution (cross-correlation, as in PyTorch) from `channels` planes to as many of the same size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Conv {
    channels: usize,
    height: usize,
    width: usize,
    padding: Padding,
    /// `channels x channels x 3 x 3` (or another of [`Conv::SIDES`]): output, input, row, column.
    kernel: Vec<f64>,
}

/// `Z -> A Z` for a sparse `A` (nodes x nodes, compressed rows) and `Z` with `columns` features per node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
/// use subdeq_map::Operator;
/// let w = Operator::dense(2, vec![1.0, -1.0, 0.0, 3.0])?;
/// assert_eq!(w.row(1), [(1, 3.0)]);
/// let json = r#"{"kind": "dense", "n": 2, "entries": [1.0]}"#;
/// assert!(serde_json::from_str::<Operator>(json).is_err(), "what is read is checked as what is built");
/// # Ok::<(), subdeq_map::OperatorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", try_from = "Unchecked")]
pub enum Operator {
    /// A dense matrix.
    Dense(Dense),
    /// A convolution.
    Conv(Conv),
    /// Propagation on a graph.
    Graph(Graph),
}

/// An operator as it is read, before its sizes and numbers are checked.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Unchecked {
    Dense(Dense),
    Conv(UncheckedConv),
    Graph(Graph),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UncheckedConv {
    channels: usize,
    height: usize,
    width: usize,
    padding: Padding,
    kernel: Vec<f64>,
}

impl TryFrom<Unchecked> for Operator {
    type Error = OperatorError;

    fn try_from(read: Unchecked) -> Result<Operator, OperatorError> {
        match read {
            Unchecked::Dense(Dense { n, entries }) => Operator::dense(n, entries),
            Unchecked::Conv(UncheckedConv { channels, height, width, padding, kernel }) => {
                Operator::conv(channels, height, width, padding, kernel)
            }
            Unchecked::Graph(Graph { nodes, columns, offsets, neighbours, weights }) => {
                if nodes.checked_add(1) != Some(offsets.len()) {
                    let why = format!("{} offsets for {nodes} nodes", offsets.len());
                    return Err(OperatorError::Graph { row: 0, why });
                }
                Operator::graph(columns, offsets, neighbours, weights)
            }
        }
    }
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
    /// More unknowns than can be counted.
    #[error("{0} has more entries than any machine could hold")]
    Overflow(String),
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
    /// kernels may have another side of [`Conv::SIDES`] instead, which their number tells.
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
        count(&[channels, height, width])
            .ok_or_else(|| OperatorError::Overflow(format!("an image of {channels} x {height} x {width}")))?;
        let pairs = channels.saturating_mul(channels);
        let told = |side: &usize| kernel.len() == pairs.saturating_mul(side * side);
        let side = match padding {
            Padding::Circular => Conv::SIDES.into_iter().find(told).unwrap_or(3),
            Padding::Zero => 3,
        };
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
        count(&[nodes, columns])
            .ok_or_else(|| OperatorError::Overflow(format!("a state of {nodes} x {columns}")))?;
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

    /// How the weights act.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match self {
            Operator::Dense(_) => Layout::Dense,
            Operator::Conv(_) => Layout::Conv,
            Operator::Graph(_) => Layout::Graph,
        }
    }

    /// The nonzero entries of row `i` of the matrix, as (column, weight), read off the definition.
    ///
    /// # Panics
    /// Where there is no row `i`.
    #[must_use]
    pub fn row(&self, i: usize) -> Vec<(usize, f64)> {
        let mut entries: Vec<(usize, f64)> = match self {
            Operator::Dense(Dense { n, entries }) => {
                entries[i * n..][..*n].iter().copied().enumerate().collect()
            }
            Operator::Conv(conv) => conv.row(i),
            Operator::Graph(graph) => {
                let columns = graph.columns;
                graph.neighbours(i / columns).map(|(j, a)| (j * columns + i % columns, a)).collect()
            }
        };
        entries.retain(|(_, w)| *w != 0.0);
        entries
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
        let mut matrix = vec![0.0; n * n];
        for i in 0..n {
            self.row(i).into_iter().for_each(|(j, w)| matrix[i * n + j] = w);
        }
        Some(matrix)
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

    /// The same operator with every weight changed.
    ///
    /// # Errors
    /// A weight that is not finite afterwards.
    pub fn try_map(mut self, change: impl FnMut(f64) -> f64) -> Result<Operator, OperatorError> {
        let weights = match &mut self {
            Operator::Dense(dense) => &mut dense.entries,
            Operator::Conv(conv) => &mut conv.kernel,
            Operator::Graph(graph) => &mut graph.weights,
        };
        let mut change = change;
        weights.iter_mut().for_each(|w| *w = change(*w));
        check_finite(weights)?;
        Ok(self)
    }
}

/// The product of sizes, where an array of as many numbers can exist.
fn count(sizes: &[usize]) -> Option<usize> {
    let most = isize::MAX as usize / size_of::<f64>();
    sizes.iter().try_fold(1usize, |product, &size| product.checked_mul(size)).filter(|&n| n <= most)
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
    /// Heights and widths of kernels: 1, 3 and 5, and what two factors of those make.
    pub const SIDES: [usize; 4] = [1, 3, 5, 9];

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

    /// Pixels of a plane.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.height * self.width
    }

    /// Height and width of the kernel, one of [`Conv::SIDES`].
    #[must_use]
    pub fn side(&self) -> usize {
        self.tap_count().isqrt()
    }

    /// Taps of the kernel from one channel to another.
    #[must_use]
    pub fn tap_count(&self) -> usize {
        self.kernel.len() / (self.channels * self.channels)
    }

    /// The taps from channel `input` to channel `output`.
    #[must_use]
    pub fn taps(&self, output: usize, input: usize) -> &[f64] {
        let count = self.tap_count();
        &self.kernel[(output * self.channels + input) * count..][..count]
    }

    /// Row `i` of the matrix; with zero padding, taps outside the image are left out.
    fn row(&self, i: usize) -> Vec<(usize, f64)> {
        let (h, w) = (self.height as isize, self.width as isize);
        let (output, pixel) = (i / self.pixels(), (i % self.pixels()) as isize);
        let side = self.side() as isize;
        let mut entries = Vec::with_capacity(self.channels * self.tap_count());
        for input in 0..self.channels {
            for (tap, &weight) in self.taps(output, input).iter().enumerate() {
                let (down, right) = (tap as isize / side - side / 2, tap as isize % side - side / 2);
                let (mut y, mut x) = (pixel / w + down, pixel % w + right);
                match self.padding {
                    Padding::Circular => (y, x) = (y.rem_euclid(h), x.rem_euclid(w)),
                    Padding::Zero if y < 0 || y >= h || x < 0 || x >= w => continue,
                    Padding::Zero => {}
                }
                entries.push((input * self.pixels() + (y * w + x) as usize, weight));
            }
        }
        entries
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

    /// Nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Features per node.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(Operator::conv(1, 5, 5, Padding::Zero, vec![0.0; 1]).is_err());
        assert!(Operator::conv(1, 9, 9, Padding::Circular, vec![0.0; 49]).is_err());
        for side in Conv::SIDES {
            let operator = Operator::conv(2, 9, 10, Padding::Circular, vec![0.0; 4 * side * side]).unwrap();
            assert!(matches!(operator, Operator::Conv(conv) if conv.side() == side));
        }
        assert!(Operator::conv(1, usize::MAX / 2, 5, Padding::Zero, vec![0.0; 9]).is_err());
    }
}
