//! Which nodes are labelled, validate and test: the paper's random splits, the release's, or those given with the data.

use serde::{Deserialize, Serialize};

use super::GraphDataset;
use crate::error::{DataError, Result};
use crate::random::{generator, permutation, shuffle};
use crate::split::Split;

/// The labelled shares of the five graphs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LabelledShares {
    /// Name of the graph.
    pub name: &'static str,
    /// In the paper's main table (and its code).
    pub main: f64,
    /// In the paper's appendix table.
    pub appendix_paper: f64,
    /// In the published code of the appendix. It differs for CiteSeer: all others are 1.5 times the main share, and
    /// the 7.8 % printed for CiteSeer (instead of 6.3 %) seems to be a slip.
    pub appendix_release: f64,
}

/// The labelled shares, by graph.
pub const LABELLED_SHARES: &[LabelledShares] = &[
    LabelledShares { name: "cora-cit", main: 0.052, appendix_paper: 0.078, appendix_release: 0.078 },
    LabelledShares { name: "cora-author", main: 0.052, appendix_paper: 0.078, appendix_release: 0.078 },
    LabelledShares { name: "citeseer", main: 0.042, appendix_paper: 0.078, appendix_release: 0.063 },
    LabelledShares { name: "dblp", main: 0.040, appendix_paper: 0.060, appendix_release: 0.060 },
    LabelledShares { name: "pubmed", main: 0.008, appendix_paper: 0.012, appendix_release: 0.012 },
];

/// How nodes are divided.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GraphSplitRule {
    /// The paper's main table: the labelled share at random, the rest halved into test and validation.
    Main,
    /// The paper's appendix: a test set fixed by `test_seed` (half of what the main share leaves), the labelled share
    /// of the other nodes at random, the rest for validation. Shares as printed in the paper.
    AppendixPaper {
        /// Seed of the test set, the same for all runs.
        test_seed: u64,
    },
    /// The same with the shares of the published code.
    AppendixRelease {
        /// Seed of the test set, the same for all runs.
        test_seed: u64,
    },
    /// As `Main`, with a share of one's own.
    Share {
        /// Labelled share of all nodes, between 0 and 1.
        labelled: f64,
    },
    /// A split given with the data. Where it names no validation nodes, they are half of the test nodes, at random.
    Given {
        /// Which one, from 0.
        index: usize,
    },
    /// A split given with the data, as it is: without validation nodes if it names none.
    GivenAsIs {
        /// Which one, from 0.
        index: usize,
    },
}

impl GraphDataset {
    /// A split by the given rule.
    pub fn split(&self, rule: GraphSplitRule, seed: u64) -> Result<Split<GraphSplitRule>> {
        let parts = match rule {
            GraphSplitRule::Main => self.random_split(seed, self.shares()?.main)?,
            GraphSplitRule::Share { labelled } => self.random_split(seed, labelled)?,
            GraphSplitRule::AppendixPaper { test_seed } => {
                let shares = self.shares()?;
                self.fixed_test_split(seed, test_seed, shares.main, shares.appendix_paper)?
            }
            GraphSplitRule::AppendixRelease { test_seed } => {
                let shares = self.shares()?;
                self.fixed_test_split(seed, test_seed, shares.main, shares.appendix_release)?
            }
            GraphSplitRule::Given { index } => self.given_split(index, Some(seed))?,
            GraphSplitRule::GivenAsIs { index } => self.given_split(index, None)?,
        };
        let [train, validation, test] = parts;
        Ok(Split { rule, seed, train, validation, test })
    }

    fn shares(&self) -> Result<&'static LabelledShares> {
        LABELLED_SHARES.iter().find(|shares| shares.name == self.name).ok_or_else(|| {
            let problem = format!("the paper gives no labelled share for '{}'", self.name);
            DataError::request(problem, "give a share of your own or use a given split")
        })
    }

    fn labelled_count(&self, of: usize, share: f64) -> Result<usize> {
        let count = (of as f64 * share).ceil();
        if !(share > 0.0 && share < 1.0 && count < of as f64) {
            let problem = format!("a labelled share of {share} of {of} nodes");
            return Err(DataError::request(
                problem,
                "it must lie between 0 and 1 and leave nodes to test on",
            ));
        }
        Ok(count as usize)
    }

    fn random_split(&self, seed: u64, share: f64) -> Result<[Vec<u32>; 3]> {
        let nodes = self.labels.len();
        let labelled = self.labelled_count(nodes, share)?;
        let order = permutation(nodes as u32, &mut generator(seed, 0));
        let (train, rest) = order.split_at(labelled);
        let (test, validation) = rest.split_at(rest.len() / 2);
        Ok([train.to_vec(), validation.to_vec(), test.to_vec()])
    }

    fn fixed_test_split(&self, seed: u64, test_seed: u64, main: f64, share: f64) -> Result<[Vec<u32>; 3]> {
        let nodes = self.labels.len();
        let test_size = (nodes - self.labelled_count(nodes, main)?) / 2;
        // Stream 1, so that equal seeds do not tie the test set to the training set.
        let order = permutation(nodes as u32, &mut generator(test_seed, 1));
        let (test, rest) = order.split_at(test_size);
        let mut rest = rest.to_vec();
        rest.sort_unstable();
        shuffle(&mut rest, &mut generator(seed, 0));
        let labelled = self.labelled_count(rest.len(), share)?;
        let (train, validation) = rest.split_at(labelled);
        Ok([train.to_vec(), validation.to_vec(), test.to_vec()])
    }

    fn given_split(&self, index: usize, halve: Option<u64>) -> Result<[Vec<u32>; 3]> {
        let given = self.given_splits.get(index).ok_or_else(|| {
            let problem =
                format!("'{}' has no given split {index} (it has {})", self.name, self.given_splits.len());
            DataError::request(problem, "splits count from 0")
        })?;
        let (mut validation, mut test) = (given.validation.clone(), given.test.clone());
        if let Some(seed) = halve.filter(|_| validation.is_empty()) {
            shuffle(&mut test, &mut generator(seed, 0));
            validation = test.split_off(test.len() / 2);
        }
        Ok([given.train.clone(), validation, test])
    }
}
