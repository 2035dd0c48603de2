//! Sums over slices in a binary tree: `((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7))`. Whoever adds what, the roundings are the same.

use std::ops::Range;

/// The sums that are ready on the way through a row of leaves from left to right: each is a whole subtree, no two can be added yet.
/// The sums themselves are the caller's: a stack as high as this one.
#[derive(Clone, Debug, Default)]
pub(super) struct Subtrees {
    /// First leaf and number of leaves, a power of two that divides the first leaf.
    nodes: Vec<(usize, usize)>,
}

impl Subtrees {
    /// How many sums there are.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Puts the next subtree on top; `add` is called with the place of a sum to which the one above it has to be added, as often as
    /// that is so.
    pub fn push<E>(
        &mut self,
        node: (usize, usize),
        mut add: impl FnMut(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        self.nodes.push(node);
        while let [.., (first, count), (_, above)] = self.nodes[..]
            && count == above
            && first % (2 * count) == 0
        {
            self.nodes.pop();
            let below = self.nodes.len() - 1;
            self.nodes[below].1 = 2 * count;
            add(below)?;
        }
        Ok(())
    }
}

/// The subtrees that some neighbouring leaves make up.
pub(super) fn subtrees(leaves: Range<usize>) -> Vec<(usize, usize)> {
    let mut trees = Subtrees::default();
    for leaf in leaves {
        let Ok(()) = trees.push((leaf, 1), |_| Ok::<(), std::convert::Infallible>(()));
    }
    trees.nodes
}

/// Numbers that are added.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
}
impl Number for f32 {
    fn add(self, other: f32) -> f32 {
        self + other
    }
}
impl Number for f64 {
    fn add(self, other: f64) -> f64 {
        self + other
    }
}

/// The sum of all leaves from the sums of subtrees that follow each other, `len` numbers each.
pub(super) fn total<T: Number>(trees: &[(usize, usize)], len: usize, sums: &[T]) -> Vec<T> {
    let (mut ready, mut stack) = (Subtrees::default(), Vec::<Vec<T>>::new());
    for (k, &tree) in trees.iter().enumerate() {
        stack.push(sums[k * len..(k + 1) * len].to_vec());
        let Ok(()) = ready.push(tree, |below| {
            if let Some(above) = stack.pop() {
                stack[below].iter_mut().zip(above).for_each(|(sum, x)| *sum = sum.add(x));
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
    stack.swap_remove(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_make_up_whole_subtrees() {
        assert_eq!(subtrees(0..16), [(0, 16)]);
        assert_eq!(subtrees(4..8), [(4, 4)]);
        assert_eq!(subtrees(5..10), [(5, 1), (6, 2), (8, 2)]);
        assert_eq!(subtrees(10..16), [(10, 2), (12, 4)]);
        assert_eq!(subtrees(3..3), []);
    }

    #[test]
    fn the_sum_has_the_same_bits_for_any_shares() {
        let leaves: Vec<f32> = (0..16).map(|k| 0.1 * 1.7f32.powi(3 * (k % 5)) - k as f32).collect();
        let expected =
            total(&subtrees(0..16), 1, &[total(&(0..16).map(|k| (k, 1)).collect::<Vec<_>>(), 1, &leaves)[0]]);
        let row: f32 = leaves.iter().sum();
        assert_ne!(row, expected[0], "a sum in a row would round otherwise, else this shows nothing");
        for cuts in [vec![0, 8, 16], vec![0, 5, 10, 16], vec![0, 4, 8, 12, 16], vec![0, 1, 15, 16]] {
            let (mut trees, mut sums) = (Vec::new(), Vec::new());
            for share in cuts.windows(2) {
                for tree in subtrees(share[0]..share[1]) {
                    let under: Vec<_> = (tree.0..tree.0 + tree.1).map(|k| (k, 1)).collect();
                    sums.push(total(&under, 1, &leaves[tree.0..tree.0 + tree.1])[0]);
                    trees.push(tree);
                }
            }
            assert_eq!(total(&trees, 1, &sums), expected, "{cuts:?}");
        }
    }
}
