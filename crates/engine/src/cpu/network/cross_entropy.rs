//! Softmax and cross-entropy.

use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};

/// Loss and hits of a batch.
#[derive(Debug)]
pub(super) struct CrossEntropy {
    /// Mean of `-ln softmax(logits)[label]`, or with smoothing of its mixture with the mean over all classes.
    pub loss: f64,
    /// Samples whose largest logit (the first, in a tie) is the label's.
    pub correct: usize,
}

/// Mean loss and hits of some samples of a batch of `of`; `gradient` becomes the gradient of the mean loss of all of it for their
/// logits.
pub(super) fn cross_entropy<T: SimdReal>(
    isa: Isa,
    of: usize,
    classes: usize,
    smoothing: f64,
    logits: &[T],
    labels: &[u32],
    gradient: &mut [T],
) -> CrossEntropy {
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
        gradient.iter_mut().zip(logits).for_each(|(g, &x)| *g = x - top);
        let exact = gradient[label].to_f64();
        loss -= if smoothing > 0.0 {
            let mean = gradient.iter().map(|g| g.to_f64()).sum::<f64>() / classes as f64;
            (1.0 - smoothing) * exact + smoothing * mean
        } else {
            exact
        };
    }
    // All samples at once: few classes would leave most of a vector empty.
    isa.dispatch(Exponentials(&mut gradient[..labels.len() * classes]));
    let count = of as f64;
    let (weight, exact) = (T::from_f64(1.0 / count), T::from_f64((1.0 - smoothing) / count));
    let shared = T::from_f64(smoothing / (count * classes as f64));
    for (gradient, &label) in gradient.chunks_exact_mut(classes).zip(labels) {
        let mut sum = T::ZERO;
        gradient.iter().for_each(|&g| sum += g);
        loss += sum.to_f64().ln();
        let scale = weight / sum;
        gradient.iter_mut().for_each(|g| *g = *g * scale - shared);
        gradient[label as usize] -= exact;
    }
    CrossEntropy { loss: loss / labels.len() as f64, correct }
}

/// `x <- e^x`.
struct Exponentials<'a, T>(&'a mut [T]);

impl<T: SimdReal> Vectorised<T> for Exponentials<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        for_vectors!(V, self.0.len(), |at, count| put(get::<V>(self.0, at, count).exp(), self.0, at, count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    #[test]
    fn by_hand() {
        let mut gradient = [0.0; 4];
        let found =
            cross_entropy(Isa::detect(), 2, 2, 0.0, &[0.0, 3f64.ln(), 1e4, -1e4], &[0, 0], &mut gradient);
        assert!((found.loss - 4f64.ln() / 2.0).abs() < 1e-15, "{found:?}");
        assert_eq!(found.correct, 1);
        for (g, expected) in gradient.iter().zip([-0.375, 0.375, 0.0, 0.0]) {
            assert!((g - expected).abs() < 1e-15);
        }
    }

    #[test]
    fn gradient_equals_finite_differences() {
        let (isa, logits, labels) = (Isa::detect(), random(12, 1), [3, 0, 1]);
        for smoothing in [0.0, 0.1, 1.0] {
            let mut gradient = vec![0.0; 12];
            cross_entropy(isa, 3, 4, smoothing, &logits, &labels, &mut gradient);
            assert_gradient(&logits, &gradient, |logits| {
                cross_entropy(isa, 3, 4, smoothing, logits, &labels, &mut [0.0; 12]).loss
            });
        }
    }

    #[test]
    fn a_smoothed_loss_is_that_of_a_mixture() {
        let (isa, logits) = (Isa::detect(), random(4, 1));
        let of = |smoothing: f64, label: u32| {
            cross_entropy(isa, 1, 4, smoothing, &logits, &[label], &mut [0.0; 4]).loss
        };
        let mean = (0..4).map(|label| of(0.0, label)).sum::<f64>() / 4.0;
        assert!((of(0.2, 3) - (0.8 * of(0.0, 3) + 0.2 * mean)).abs() < 1e-14);
    }

    #[test]
    fn every_instruction_set_gives_the_same_gradient() {
        let logits: Vec<f32> = random(70, 3).iter().map(|&x| 20.0 * x as f32).collect();
        let labels = [3, 0, 1, 9, 2, 2, 5];
        let exact: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
        let mut expected = vec![0.0; 70];
        let loss = cross_entropy(Isa::PORTABLE, 7, 10, 0.1, &exact, &labels, &mut expected).loss;
        for isa in Isa::available() {
            let mut gradient = vec![0.0; 70];
            let found = cross_entropy(isa, 7, 10, 0.1, &logits, &labels, &mut gradient);
            assert!((found.loss - loss).abs() <= 1e-6 * loss, "{isa:?}: {} but {loss}", found.loss);
            for (g, expected) in gradient.iter().zip(&expected) {
                assert!((f64::from(*g) - expected).abs() <= 1e-7, "{isa:?}: {g} but {expected}");
            }
        }
    }

    #[test]
    fn a_logit_that_is_not_a_number_is_no_hit() {
        let found = cross_entropy(Isa::detect(), 2, 2, 0.0, &[f64::NAN, 1.0], &[0], &mut [0.0; 2]);
        assert!(found.loss.is_nan() && found.correct == 0);
        let found = cross_entropy(Isa::detect(), 2, 2, 0.0, &[1.0, f32::NAN], &[0], &mut [0.0; 2]);
        assert!(found.loss.is_nan(), "{found:?}");
    }
}
