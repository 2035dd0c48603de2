//! The metrics in which maps contract.

mod hilbert;
mod thompson;
mod weighted_sup;

pub use hilbert::hilbert;
pub use thompson::thompson;
pub use weighted_sup::weighted_sup;

use crate::bound::Upper;
use crate::certificate::Metric;

impl Metric {
    /// The distance of two vectors of equal length in this metric; `None` for [`Metric::None`]. Weights given per
    /// channel count for all pixels of the channel; Hilbert's metric is taken over the whole vector as one group.
    ///
    /// # Panics
    /// Where the lengths differ or the weights do not divide the entries evenly.
    #[must_use]
    pub fn distance(&self, x: &[f64], y: &[f64]) -> Option<f64> {
        match self {
            Metric::Thompson => Some(thompson(x, y)),
            Metric::Hilbert => Some(hilbert(x, y)),
            Metric::WeightedSup { v } => Some(weighted_sup(x, y, v)),
            Metric::WeightedTwoNorm { t } => Some(weighted_two_norm(x, y, t)),
            Metric::None => None,
        }
    }
}

/// `||T (x - y)||_2`; no weights stand for ones.
fn weighted_two_norm(x: &[f64], y: &[f64], t: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len(), "a distance is between vectors of equal length");
    let weight = |i: usize| if t.is_empty() { 1.0 } else { t[i / entries_per_weight(x.len(), t.len())] };
    let square = |(i, (a, b)): (usize, (&f64, &f64))| (weight(i) * (a - b)).powi(2);
    Upper::new(x.iter().zip(y).enumerate().map(square).sum::<f64>().sqrt()).get()
}

/// How many neighbouring entries share one weight.
fn entries_per_weight(entries: usize, weights: usize) -> usize {
    assert!(
        weights > 0 && entries.is_multiple_of(weights),
        "{weights} weights do not divide {entries} entries"
    );
    entries / weights
}
