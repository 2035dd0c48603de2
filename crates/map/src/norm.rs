use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{BadMap, Layout, Operator};

/// The exponent of a p-norm, `1 <= p <= infinity`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum PNorm {
    /// A finite `p >= 1`.
    #[serde(rename = "P")]
    Finite(f64),
    /// The largest entry.
    Inf,
}

impl PNorm {
    /// The norm of a vector.
    ///
    /// ```
    /// use subdeq_map::PNorm;
    /// assert_eq!(PNorm::Finite(2.0).norm(&[3.0, -4.0]), 5.0);
    /// assert_eq!(PNorm::Inf.norm(&[3.0, -4.0]), 4.0);
    /// assert!(PNorm::Inf.norm(&[3.0, f64::NAN]).is_nan());
    /// ```
    #[must_use]
    pub fn norm(self, z: &[f64]) -> f64 {
        if z.iter().any(|x| x.is_nan()) {
            return f64::NAN;
        }
        let top = z.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
        match self {
            PNorm::Inf => top,
            PNorm::Finite(_) if top == 0.0 || !top.is_finite() => top,
            PNorm::Finite(1.0) => z.iter().map(|x| x.abs()).sum(),
            PNorm::Finite(2.0) => top * z.iter().map(|x| (x / top) * (x / top)).sum::<f64>().sqrt(),
            PNorm::Finite(p) => top * z.iter().map(|x| (x.abs() / top).powf(p)).sum::<f64>().powf(1.0 / p),
        }
    }
}

impl fmt::Display for PNorm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PNorm::Finite(p) => write!(f, "{p}"),
            PNorm::Inf => f.write_str("inf"),
        }
    }
}

impl FromStr for PNorm {
    type Err = BadMap;

    fn from_str(text: &str) -> Result<PNorm, BadMap> {
        match text.trim().to_ascii_lowercase().as_str() {
            "inf" | "infinity" => Ok(PNorm::Inf),
            number => match number.parse::<f64>() {
                Ok(p) if p >= 1.0 && p.is_finite() => Ok(PNorm::Finite(p)),
                _ => Err(BadMap::new(format!("a norm is a number from 1 to inf, but `{text}` was given"))),
            },
        }
    }
}

/// Which entries are divided by one common norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Groups {
    /// The whole vector, per sample.
    WholeVector,
    /// Of each channel of an image, the pixels that differ only in their height (the norm along axis 2 of an NCHW
    /// tensor), as the paper does.
    AlongHeight,
    /// Each column (feature) of a graph's state.
    GraphColumns,
    /// Each row (node) of a graph's state.
    GraphRows,
    /// Consecutive entries of a vector, `size` at a time (the columns of a matrix stored one after the other).
    Blocks {
        /// Entries per group, `>= 1`.
        size: usize,
    },
}

impl Groups {
    /// What the paper normalises in a layer of this layout: the vector, image columns, or (as it writes) the columns of
    /// a graph's state.
    #[must_use]
    pub fn of_layout(layout: Layout) -> Groups {
        match layout {
            Layout::Dense => Groups::WholeVector,
            Layout::Conv => Groups::AlongHeight,
            Layout::Graph => Groups::GraphColumns,
        }
    }

    /// Which entries each group consists of, where the operator has such groups.
    ///
    /// # Errors
    /// Groups that the operator's states do not have: image columns of a vector, a block size that does not divide the
    /// entries.
    pub fn members(self, operator: &Operator) -> Result<Vec<Vec<usize>>, BadMap> {
        let n = operator.len();
        let strided = |count: usize| (0..count).map(|g| (g..n).step_by(count).collect()).collect();
        let consecutive = |size: usize| (0..n).step_by(size).map(|at| (at..at + size).collect()).collect();
        Ok(match (self, operator) {
            (Groups::WholeVector, _) => vec![(0..n).collect()],
            (Groups::AlongHeight, Operator::Conv(conv)) => {
                let (h, w) = (conv.height(), conv.width());
                (0..conv.channels() * w)
                    .map(|g| (0..h).map(|row| (g / w) * h * w + row * w + g % w).collect())
                    .collect()
            }
            (Groups::GraphColumns, Operator::Graph(graph)) => strided(graph.columns()),
            (Groups::GraphRows, Operator::Graph(graph)) => consecutive(graph.columns()),
            (Groups::Blocks { size }, _) if size > 0 && n.is_multiple_of(size) => consecutive(size),
            (Groups::Blocks { size }, _) => {
                return Err(BadMap::new(format!("{n} entries cannot be normalised {size} at a time")));
            }
            (groups, operator) => {
                return Err(BadMap::new(format!(
                    "{} cannot be normalised by {groups}",
                    match operator.layout() {
                        Layout::Dense => "a vector",
                        Layout::Conv => "images",
                        Layout::Graph => "a graph's state",
                    }
                )));
            }
        })
    }

    /// Whether one group's entries may depend on another group's: then Hilbert's metric does not suffice (E4). Only a single
    /// group, and the columns of a graph, which its operator never mixes, are known not to.
    #[must_use]
    pub fn interact(self, operator: &Operator) -> bool {
        match self {
            Groups::WholeVector | Groups::GraphColumns => false,
            Groups::Blocks { size } => size < operator.len(),
            Groups::GraphRows => !matches!(operator, Operator::Graph(graph) if graph.nodes() == 1),
            Groups::AlongHeight => {
                !matches!(operator, Operator::Conv(conv) if conv.channels() == 1 && conv.width() == 1)
            }
        }
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Groups::WholeVector => f.write_str("the whole vector"),
            Groups::AlongHeight => f.write_str("the columns of each image channel"),
            Groups::GraphColumns => f.write_str("the columns of Z"),
            Groups::GraphRows => f.write_str("the rows of Z"),
            Groups::Blocks { size } => write!(f, "blocks of {size} entries"),
        }
    }
}

/// Division of each group of entries by its norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Normalisation {
    /// Which norm.
    pub p: PNorm,
    /// What forms a group.
    pub groups: Groups,
}

/// Projection of each group of entries onto the ball of a radius around zero, in the 2-norm.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Projection {
    /// What forms a group.
    pub groups: Groups,
    /// Radius of the ball, `> 0`.
    pub radius: f64,
}
