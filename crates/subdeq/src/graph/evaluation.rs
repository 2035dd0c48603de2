//! What a trained model does on the test nodes, in the fields that every run's `evaluation.json` has.

use subdeq_engine::Outcome;
use subdeq_engine::network::Softmax;
use subdeq_theory::certificate::{Certificate, Scope, Verdict};

use super::{GraphCertificate, GraphClassifier, GraphProblem, InjectionBound, Prediction};
use crate::Result;
use crate::train::{Evaluation, VerdictSummary};

/// The distance to the solution down to which an evaluation follows the iteration.
const TOLERANCE: f64 = 1e-6;

impl GraphClassifier {
    /// Classifies all nodes and counts the given ones. Nodes share one equation, so that all of them are certified or
    /// none; an unrolled propagation solves no equation, and nothing is said about one.
    ///
    /// # Errors
    /// Weights that do not fit the graph, or a solve that did not stay finite.
    pub fn evaluate(
        &self,
        problem: &GraphProblem,
        nodes: &[u32],
        threads: usize,
    ) -> Result<(Evaluation, Prediction)> {
        let prediction = self.predict(problem, threads)?;
        let convergence = self.convergence(problem, TOLERANCE)?;
        let classes = problem.classes();
        let mut confusion = vec![vec![0; classes]; classes];
        let mut loss = 0.0;
        for &node in nodes {
            let (label, predicted) = (problem.labels()[node as usize], prediction.classes[node as usize]);
            confusion[label as usize][predicted as usize] += 1;
            let state = &prediction.state[node as usize * classes..][..classes];
            loss += Softmax::of(state).surprise(label as usize) / nodes.len() as f64;
        }
        let accuracy = 100.0 * prediction.accuracy(problem.labels(), nodes);
        let certificate = &convergence.certificate;
        let solved = prediction.report;
        let equation = solved.is_some();
        let certified = f64::from(u8::from(certificate.verdict.is_proven()));
        let evaluation = Evaluation {
            model: self.model.name.clone(),
            samples: nodes.len(),
            error: 100.0 - accuracy,
            accuracy,
            loss,
            converged: f64::from(u8::from(solved.is_none_or(|report| report.outcome == Outcome::Converged))),
            certified: equation.then_some(certified),
            certified_samples: if equation { nodes.len() } else { 0 },
            all_inputs: equation.then(|| certificate.into()),
            median_factor: certificate.factor().filter(|_| equation),
            confusion,
            iterations: solved.map(|report| (report.iterations, nodes.len() as u64)).into_iter().collect(),
            residuals: vec![convergence.residuals],
            ..Evaluation::default()
        };
        Ok((evaluation, prediction))
    }
}

impl From<&GraphCertificate> for VerdictSummary {
    fn from(certificate: &GraphCertificate) -> Self {
        let scope = match certificate.injection {
            InjectionBound::Any => Scope::AllInputs,
            InjectionBound::Nonnegative | InjectionBound::AtLeast(_) => Scope::NonnegativeInputs,
        };
        let words = scope.to_string();
        let verdict = certificate.verdict.clone();
        let mut summary = Self::from(&Certificate { map: certificate.map, scope, verdict });
        if let (InjectionBound::AtLeast(bound), Verdict::Proven { .. }) =
            (certificate.injection, &certificate.verdict)
        {
            // Not every input, then: the network could make lower injections with other weights or features.
            let these = format!("for every injection from {bound:.4} on, such as this model's");
            summary.words = summary.words.replace(&words, &these);
        }
        summary
    }
}
