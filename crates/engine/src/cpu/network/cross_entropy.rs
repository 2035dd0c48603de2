//! Softmax and cross-entropy.

use crate::Real;
use crate::network::CrossEntropy;

/// Mean loss and hits of a batch; `gradient` becomes the gradient of the mean loss for the logits.
pub(super) fn cross_entropy<T: Real>(
    classes: usize,
    logits: &[T],
    labels: &[u32],
    gradient: &mut [T],
) -> CrossEntropy {
    let weight = T::from_f64(1.0 / labels.len() as f64);
    let mut loss = 0.0;
    let mut correct = 0;
    for ((logits, gradient), &label) in
        logits.chunks_exact(classes).zip(gradient.chunks_exact_mut(classes)).zip(labels)
    {
        let label = label as usize;
        let mut best = 0;
        for (class, &x) in logits.iter().enumerate() {
            if x > logits[best] {
                best = class;
            }
        }
        correct += usize::from(best == label && logits[best].is_finite());
        let top = logits[best];
        let mut sum = T::ZERO;
        for (g, &x) in gradient.iter_mut().zip(logits) {
            *g = (x - top).exp();
            sum += *g;
        }
        for g in gradient.iter_mut() {
            *g = *g / sum * weight;
        }
        gradient[label] -= weight;
        loss += (top - logits[label]).to_f64() + sum.to_f64().ln();
    }
    CrossEntropy { loss: loss / labels.len() as f64, correct }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    #[test]
    fn by_hand() {
        let mut gradient = [0.0; 4];
        let found = cross_entropy(2, &[0.0, 3f64.ln(), 1e4, -1e4], &[0, 0], &mut gradient);
        assert!((found.loss - 4f64.ln() / 2.0).abs() < 1e-15, "{found:?}");
        assert_eq!(found.correct, 1);
        for (g, expected) in gradient.iter().zip([-0.375, 0.375, 0.0, 0.0]) {
            assert!((g - expected).abs() < 1e-15);
        }
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let (logits, labels) = (random(12, 1), [3, 0, 1]);
        let mut gradient = vec![0.0; 12];
        cross_entropy(4, &logits, &labels, &mut gradient);
        assert_gradient(&logits, &gradient, |logits| cross_entropy(4, logits, &labels, &mut [0.0; 12]).loss);
    }

    #[test]
    fn a_logit_that_is_not_a_number_is_no_hit() {
        let found = cross_entropy(2, &[f64::NAN, 1.0], &[0], &mut [0.0; 2]);
        assert!(found.loss.is_nan() && found.correct == 0);
    }
}
