//! What a classifier says about one image.

use subdeq_engine::{Backend, Outcome, Picks, Real};

use super::Classifier;
use super::batch_norm::Statistics;
use super::core_layer::CoreLayer;
use super::passes::no_block;
use crate::Result;

/// The answer to one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// One number per class.
    pub logits: Vec<f64>,
    /// Applications of the map, of all blocks together; steps of a neural ODE; 0 for an explicit layer.
    pub iterations: u32,
    /// Whether every solve ended within its tolerance.
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

impl<D: Backend> Classifier<D> {
    /// What the classifier says about images, with the running statistics of batch norm.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn answers(&mut self, x: &[D::Elem]) -> Result<Vec<Answer>> {
        let logits = self.logits(x)?;
        self.with_reports(&logits)
    }

    /// The same about images that are on the device.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn answers_of(&mut self, images: &D::Images, picks: Picks<'_, D::Integers>) -> Result<Vec<Answer>> {
        let logits = self.logits_of(images, picks)?;
        self.with_reports(&logits)
    }

    fn with_reports(&self, logits: &[D::Elem]) -> Result<Vec<Answer>> {
        let classes = self.spec.classes;
        let mut ended = vec![(0, true); logits.len() / classes];
        for block in &self.blocks {
            let of_block: Vec<(u32, bool)> = match &block.core {
                CoreLayer::Equilibrium { layer, .. } => {
                    let ended = |r: crate::SampleReport| (r.iterations, r.outcome == Outcome::Converged);
                    layer.reports()?.into_iter().map(ended).collect()
                }
                CoreLayer::Explicit { .. } => continue,
                CoreLayer::Ode { layer, .. } => layer.reports()?.iter().map(|r| (r.accepted, true)).collect(),
            };
            for ((all, well), (iterations, converged)) in ended.iter_mut().zip(of_block) {
                *all += iterations;
                *well &= converged;
            }
        }
        let answer = |(row, (iterations, converged)): (&[D::Elem], _)| Answer {
            logits: row.iter().map(|x| x.to_f64()).collect(),
            iterations,
            converged,
        };
        Ok(logits.chunks_exact(classes).zip(ended).map(answer).collect())
    }

    /// The injections `y` of images, what the equation of the first block sees of them: rows of its injection length.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn injected(&mut self, x: &[D::Elem]) -> Result<Vec<D::Elem>> {
        let batch = self.load(x, None)?;
        self.inject(batch, Statistics::Running)?;
        let first = self.blocks.first().ok_or_else(no_block)?;
        let mut y = vec![Default::default(); batch * first.injection_len()];
        self.device.read(first.injected()?, 0, &mut y)?;
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
