//! Dropout by counting: whether an entry is dropped is a function of seed, row and column.
//!
//! Nothing is stored and nothing is drawn in order: the way back asks the same question again, a transposed matrix asks
//! it with row and column exchanged, and threads do not matter.

use crate::counter;

/// Which entries of a matrix are dropped.
///
/// ```
/// use subdeq_engine::Dropout;
/// let dropout = Dropout::new(0.25, 7, 1);
/// let kept = (0..1000).filter(|&column| dropout.keeps(3, column)).count();
/// assert!((700..800).contains(&kept) && dropout.scale() == 1.0 / 0.75);
/// assert!((0..1000).all(|column| Dropout::NONE.keeps(3, column)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    rate: f64,
    key: u32,
    /// An entry is kept if its hash is at least this.
    threshold: u32,
}

impl Dropout {
    /// Nothing is dropped.
    pub const NONE: Self = Self { rate: 0.0, key: 0, threshold: 0 };

    /// Drops each entry with probability `rate` (clipped to `[0, 1)`, to the nearest 2^-32). Streams of one seed are
    /// independent.
    #[must_use]
    pub fn new(rate: f64, seed: u64, stream: u64) -> Self {
        let rate = rate.clamp(0.0, 1.0 - 1e-9);
        Self { rate, key: counter::key(seed, stream), threshold: (rate * 4_294_967_296.0) as u32 }
    }

    /// Whether nothing is dropped.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.threshold == 0
    }

    /// What kept entries are multiplied by: `1 / (1 - rate)`.
    #[must_use]
    pub fn scale(&self) -> f64 {
        1.0 / (1.0 - self.rate)
    }

    /// Whether the entry in this row and column is kept.
    #[inline(always)]
    #[must_use]
    pub fn keeps(&self, row: u32, column: u32) -> bool {
        self.hash(self.row_key(row), column) >= self.threshold
    }

    /// Key and threshold, for devices that ask the same questions themselves.
    pub(crate) fn constants(&self) -> [u32; 2] {
        [self.key, self.threshold]
    }

    #[inline(always)]
    pub(crate) fn row_key(&self, row: u32) -> u32 {
        counter::at(self.key, row)
    }

    #[inline(always)]
    fn hash(&self, row_key: u32, column: u32) -> u32 {
        counter::at(row_key, column)
    }

    /// Writes the hashes of the entries of one row; a loop that the compiler turns into vectors.
    #[inline(always)]
    pub(crate) fn hash_row(&self, row: u32, columns: &[u32], hashes: &mut [u32]) {
        let key = self.row_key(row);
        for (hash, &column) in hashes.iter_mut().zip(columns) {
            *hash = self.hash(key, column);
        }
    }

    /// The same for the entries of one row of the transposed matrix.
    #[inline(always)]
    pub(crate) fn hash_column(&self, column: u32, rows: &[u32], hashes: &mut [u32]) {
        for (hash, &row) in hashes.iter_mut().zip(rows) {
            *hash = self.hash(self.row_key(row), column);
        }
    }

    #[inline(always)]
    pub(crate) fn keeps_hash(&self, hash: u32) -> bool {
        hash >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::Dropout;

    #[test]
    fn rate_is_met_and_streams_differ() {
        for rate in [0.1, 0.5, 0.9] {
            let mask = Dropout::new(rate, 7, 1);
            let other = Dropout::new(rate, 7, 2);
            let (mut kept, mut agree, mut neighbours) = (0.0, 0.0, 0.0);
            for row in 0..1000 {
                for column in 0..1000 {
                    let here = mask.keeps(row, column);
                    kept += f64::from(u8::from(here));
                    agree += f64::from(u8::from(here && other.keeps(row, column)));
                    neighbours += f64::from(u8::from(here && mask.keeps(row, column + 1)));
                }
            }
            let keep = 1.0 - rate;
            // Six standard deviations of a million independent draws.
            let close = |found: f64, p: f64| (found / 1e6 - p).abs() < 6e-3 * (p * (1.0 - p)).sqrt();
            assert!(close(kept, keep), "{rate}: {kept}");
            assert!(close(agree, keep * keep), "{rate}: {agree}");
            assert!(close(neighbours, keep * keep), "{rate}: {neighbours}");
        }
    }

    #[test]
    fn rate_zero_keeps_everything() {
        let mask = Dropout::new(0.0, 1, 1);
        assert!(mask.is_none() && (0..1000).all(|k| mask.keeps(k, k)));
        assert_eq!(mask.scale(), 1.0);
    }
}
