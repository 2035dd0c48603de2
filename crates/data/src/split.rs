//! Hold-out splits: the paper's, the published release's, or one's own; seeded and recorded.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::checksum::hex;
use crate::error::{DataError, Result};
use crate::random::{generator, permutation, shuffle};

/// Which rule a split follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SplitRule {
    /// As the published code does it: the official training images are divided by counts, the official test images
    /// stay the test set.
    Release,
    /// As the paper's table says: all images are pooled and divided by shares.
    Paper,
    /// The official training images give `validation` images to the validation set and `train` to the training set;
    /// the official test images stay the test set.
    Counts {
        /// Training images.
        train: usize,
        /// Validation images.
        validation: usize,
    },
}

/// Three lists of indices, the rule and the seed they came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Split<Rule = SplitRule> {
    /// The rule.
    pub rule: Rule,
    /// The seed.
    pub seed: u64,
    /// Training indices.
    pub train: Vec<u32>,
    /// Validation indices.
    pub validation: Vec<u32>,
    /// Test indices.
    pub test: Vec<u32>,
}

impl Split {
    /// Divides the first `official_train` of `total` items into training and validation items at random; the others
    /// are the test set.
    pub fn by_counts(
        rule: SplitRule,
        seed: u64,
        [train, validation]: [usize; 2],
        official_train: usize,
        total: usize,
    ) -> Result<Self> {
        if train.saturating_add(validation) > official_train || train == 0 {
            let problem =
                format!("{train} training and {validation} validation items out of {official_train}");
            return Err(DataError::request(problem, "ask for at least 1 and at most as many as there are"));
        }
        let order = permutation(official_train as u32, &mut generator(seed, 0));
        Ok(Split {
            rule,
            seed,
            train: order[..train].to_vec(),
            validation: order[train..train + validation].to_vec(),
            test: (official_train as u32..total as u32).collect(),
        })
    }

    /// Pools all items and divides them by shares; what is left over by rounding goes to the test set.
    pub fn by_shares(
        rule: SplitRule,
        seed: u64,
        [train, validation]: [f64; 2],
        total: usize,
    ) -> Result<Self> {
        let valid = train > 0.0 && validation >= 0.0 && train + validation <= 1.0;
        let sizes = [train, validation].map(|share| (share * total as f64).round() as usize);
        if !valid || sizes[0] == 0 || sizes[0] + sizes[1] > total {
            let problem = format!("shares {train} and {validation} of {total} items");
            return Err(DataError::request(problem, "shares must be positive and sum to at most 1"));
        }
        let order = permutation(total as u32, &mut generator(seed, 0));
        let (train, rest) = order.split_at(sizes[0]);
        let (validation, test) = rest.split_at(sizes[1]);
        Ok(Split { rule, seed, train: train.to_vec(), validation: validation.to_vec(), test: test.to_vec() })
    }
}

impl<Rule> Split<Rule> {
    /// SHA-256 over the three lists, to record in a run and compare between machines.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.train, &self.validation, &self.test] {
            hash.update((part.len() as u64).to_le_bytes());
            part.iter().for_each(|i| hash.update(i.to_le_bytes()));
        }
        hex(&hash.finalize())
    }

    /// The training indices in the random order of one epoch; the same seed and epoch give the same order.
    pub fn epoch_order(&self, seed: u64, epoch: u64) -> Vec<u32> {
        let mut order = self.train.clone();
        // Stream 0 belongs to the split itself.
        shuffle(&mut order, &mut generator(seed, epoch + 1));
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn everything(split: &Split) -> Vec<u32> {
        let mut all = [split.train.clone(), split.validation.clone(), split.test.clone()].concat();
        all.sort_unstable();
        all
    }

    proptest! {
        #[test]
        fn shares_divide_everything_once(total in 10usize..2000, seed in any::<u64>()) {
            let split = Split::by_shares(SplitRule::Paper, seed, [0.71, 0.145], total).unwrap();
            prop_assert_eq!(everything(&split), (0..total as u32).collect::<Vec<_>>());
        }

        #[test]
        fn counts_leave_the_official_test_set_alone(extra in 0usize..50, seed in any::<u64>()) {
            let split = Split::by_counts(SplitRule::Release, seed, [50, 10], 60, 60 + extra).unwrap();
            prop_assert_eq!(split.test.clone(), (60..60 + extra as u32).collect::<Vec<_>>());
            prop_assert_eq!(everything(&split), (0..60 + extra as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn seeds_matter_and_are_reproducible() {
        let make = |seed| Split::by_counts(SplitRule::Release, seed, [50, 10], 60, 70).unwrap();
        assert_eq!(make(1), make(1));
        assert_ne!(make(1).fingerprint(), make(2).fingerprint());
        assert_ne!(make(1).epoch_order(1, 0), make(1).epoch_order(1, 1));
        assert!(Split::by_counts(SplitRule::Release, 0, [60, 1], 60, 70).is_err());
        assert!(Split::by_counts(SplitRule::Release, 0, [1, usize::MAX], 60, 70).is_err());
        assert!(Split::by_shares(SplitRule::Paper, 0, [0.9, 0.2], 10).is_err());
    }
}
