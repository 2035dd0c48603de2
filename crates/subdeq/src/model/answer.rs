//! What a classifier says about one image.

use subdeq_engine::{Network, Outcome, Real};

use super::{Classifier, CoreLayer, norm_shape};
use crate::{Error, Result};

/// The answer to one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// One number per class.
    pub logits: Vec<f64>,
    /// Applications of the map; steps of a neural ODE; 0 for an explicit layer.
    pub iterations: u32,
    /// Whether the solve ended within its tolerance.
    pub converged: bool,
}

impl Answer {
    /// The class with the largest logit (the first of several).
    #[must_use]
    pub fn class(&self) -> usize {
        let mut best = 0;
        for (k, logit) in self.logits.iter().enumerate() {
            if *logit > self.logits[best] {
                best = k;
            }
        }
        best
    }

    /// The softmax probability of a class.
    #[must_use]
    pub fn probability(&self, class: usize) -> f64 {
        (-self.cross_entropy(class)).exp()
    }

    /// The cross-entropy if that class is the true one.
    #[must_use]
    pub fn cross_entropy(&self, class: usize) -> f64 {
        let most = self.logits.iter().fold(f64::NEG_INFINITY, |m, &x| m.max(x));
        let sum: f64 = self.logits.iter().map(|x| (x - most).exp()).sum();
        sum.ln() + most - self.logits[class]
    }
}

impl<T: Real, D: Network<T>> Classifier<T, D> {
    /// What the classifier says about images, with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn answers(&mut self, x: &[T]) -> Result<Vec<Answer>> {
        let logits = self.logits(x)?;
        let batch = logits.len() / self.spec.classes;
        let ended: Vec<(u32, bool)> = match &self.core {
            CoreLayer::Equilibrium { layer, .. } => {
                let ended = |r: &crate::SampleReport| (r.iterations, r.outcome == Outcome::Converged);
                layer.reports()[..batch].iter().map(ended).collect()
            }
            CoreLayer::Explicit { .. } => vec![(0, true); batch],
            CoreLayer::Ode { layer, .. } => {
                layer.reports()[..batch].iter().map(|r| (r.accepted, true)).collect()
            }
        };
        let rows = logits.chunks_exact(self.spec.classes).zip(ended);
        Ok(rows
            .map(|(row, (iterations, converged))| Answer {
                logits: row.iter().map(|x| x.to_f64()).collect(),
                iterations,
                converged,
            })
            .collect())
    }

    /// The injections `y` of images, what the core's equation sees of them: rows of the core's injection length.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn injected(&mut self, x: &[T]) -> Result<Vec<T>> {
        let batch = self.load(x, None)?;
        self.inject(batch)?;
        let Some(b) = &self.buffers else { return Err(Error::invalid("no buffers")) };
        let len = norm_shape(&self.spec, 1).image_len() * self.injections.len();
        let mut y = vec![T::ZERO; b.capacity * len];
        self.device.read(&b.y, &mut y)?;
        y.truncate(batch * len);
        Ok(y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_even_for_huge_logits() {
        let answer = Answer { logits: vec![1000.0, 1001.0, -1000.0], iterations: 0, converged: true };
        assert_eq!(answer.class(), 1);
        let sum: f64 = (0..3).map(|k| answer.probability(k)).sum();
        assert!((sum - 1.0).abs() < 1e-12 && (answer.probability(1) - 0.731_058_578_6).abs() < 1e-9);
    }
}
