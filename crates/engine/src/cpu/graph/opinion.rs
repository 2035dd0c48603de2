//! What a state says about nodes without labels, as something to learn from.

use super::NodeMatrix;
use crate::cpu::simd::SimdReal;
use crate::network::Softmax;
use crate::{EngineError, Opinion, Result};

/// The opinion of a state about each of its nodes (see [`crate::Graphs::form_opinion`]).
pub(super) fn form_opinion<T: SimdReal>(state: &NodeMatrix<T>, how: Opinion, opinion: &mut NodeMatrix<T>) {
    let (nodes, classes) = (state.nodes(), state.channels());
    if opinion.nodes() != nodes {
        *opinion = NodeMatrix::zeros(nodes, classes);
    }
    let mut means = vec![0.0; classes];
    for node in 0..nodes {
        let softmax = Softmax::of(state.row(node));
        for (class, mean) in means.iter_mut().enumerate() {
            *mean += softmax.probability(class) / nodes as f64;
        }
    }
    // In logarithms, since a class may have no probability at all: ln p = z up to a number for each row.
    let level: Vec<f64> = means.iter().map(|mean| how.levelling * mean.max(f64::MIN_POSITIVE).ln()).collect();
    let mut sharpened = vec![0.0; classes];
    for node in 0..nodes {
        for ((sharp, z), level) in sharpened.iter_mut().zip(state.row(node)).zip(&level) {
            *sharp = (z.to_f64() - level) / how.temperature;
        }
        let softmax = Softmax::of(&sharpened);
        for (class, target) in opinion.row_mut(node).iter_mut().enumerate() {
            *target = T::from_f64(softmax.probability(class));
        }
    }
}

/// Sets the gradient of some rows to that of `weight` times their mean cross-entropy to the opinion, which is returned.
pub(super) fn opinion_loss<T: SimdReal>(
    state: &NodeMatrix<T>,
    opinion: &NodeMatrix<T>,
    rows: &[u32],
    weight: f64,
    gradient: &mut NodeMatrix<T>,
) -> Result<f64> {
    let nodes = state.nodes();
    if opinion.nodes() != nodes || rows.is_empty() || rows.iter().any(|&row| row as usize >= nodes) {
        return Err(EngineError::Invalid(format!(
            "{} rows of {nodes} nodes are to follow an opinion about {} nodes",
            rows.len(),
            opinion.nodes()
        )));
    }
    let share = 1.0 / rows.len() as f64;
    let mut loss = 0.0;
    for &row in rows {
        let row = row as usize;
        let softmax = Softmax::of(state.row(row));
        let targets = opinion.row(row).iter().map(|target| target.to_f64());
        for ((class, g), target) in gradient.row_mut(row).iter_mut().enumerate().zip(targets) {
            loss += share * target * softmax.surprise(class);
            *g = T::from_f64(weight * share * (softmax.probability(class) - target));
        }
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: [f64; 12] = [2.0, 0.1, -1.0, 1.5, 0.3, 0.2, 0.9, -0.4, 0.8, -0.6, 1.1, 0.4];

    fn state() -> NodeMatrix<f64> {
        NodeMatrix::from_rows(4, 3, &STATE).unwrap()
    }

    fn opinion(state: &NodeMatrix<f64>, temperature: f64, levelling: f64) -> NodeMatrix<f64> {
        let mut opinion = NodeMatrix::zeros(0, state.channels());
        form_opinion(state, Opinion { temperature, levelling }, &mut opinion);
        opinion
    }

    #[test]
    fn opinions_are_the_formula() {
        let state = state();
        let softmax = |node: usize| {
            let powers: Vec<f64> = state.row(node).iter().map(|z| z.exp()).collect();
            let total: f64 = powers.iter().sum();
            powers.into_iter().map(move |power| power / total).collect::<Vec<f64>>()
        };
        let mean = |class: usize| (0..4).map(|node| softmax(node)[class]).sum::<f64>() / 4.0;
        for (temperature, levelling) in [(1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (0.4, 0.5)] {
            let found = opinion(&state, temperature, levelling);
            for node in 0..4 {
                let raised = |class: usize| {
                    (softmax(node)[class] / mean(class).powf(levelling)).powf(1.0 / temperature)
                };
                let total: f64 = (0..3).map(raised).sum();
                for class in 0..3 {
                    let (found, expected) = (found.row(node)[class], raised(class) / total);
                    assert!(
                        (found - expected).abs() < 1e-14,
                        "{temperature} {levelling}: {found} {expected}"
                    );
                }
            }
        }
    }

    /// A class that no node believes in must not make numbers that are none.
    #[test]
    fn a_class_without_probability_keeps_the_opinion_finite() {
        let state = NodeMatrix::from_rows(2, 2, &[0.0f32, -3e38, 1.0, -3e38]).unwrap();
        let mut opinion = NodeMatrix::zeros(0, 2);
        form_opinion(&state, Opinion { temperature: 0.5, levelling: 1.0 }, &mut opinion);
        for node in 0..2 {
            assert_eq!(opinion.row(node), [1.0, 0.0]);
        }
    }

    #[test]
    fn the_gradient_agrees_with_differences() {
        let (mut state, opinion) = (state(), opinion(&state(), 0.5, 0.5));
        let (rows, weight) = ([0, 2, 3], 0.7);
        let mut gradient = NodeMatrix::zeros(4, 3);
        opinion_loss(&state, &opinion, &rows, weight, &mut gradient).unwrap();
        assert_eq!(gradient.row(1), [0.0; 3]);
        let step = 1e-5;
        for row in rows {
            for class in 0..3 {
                let mut loss = |by: f64| {
                    state.row_mut(row as usize)[class] += by;
                    opinion_loss(&state, &opinion, &rows, weight, &mut NodeMatrix::zeros(4, 3)).unwrap()
                };
                let difference = weight * (loss(step) - loss(-2.0 * step)) / (2.0 * step);
                loss(step);
                let found = gradient.row(row as usize)[class];
                assert!((found - difference).abs() < 1e-9, "{row} {class}: {found} {difference}");
            }
        }
        assert!(opinion_loss(&state, &opinion, &[4], weight, &mut gradient).is_err());
        assert!(opinion_loss(&state, &NodeMatrix::zeros(0, 3), &rows, weight, &mut gradient).is_err());
    }
}
