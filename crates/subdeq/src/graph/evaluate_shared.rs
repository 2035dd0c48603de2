//! What a trained model does on the test nodes of a graph that ranks share.

use std::sync::Arc;

use subdeq_engine::network::{Softmax, largest};
use subdeq_engine::{Cpu, Graphs, NodeArray, Outcome};
use subdeq_ranks::Ranks;

use super::classifier::Passes;
use super::{GraphClassifier, GraphProblem, GraphSplit, InjectionBound};
use crate::Result;
use crate::train::Evaluation;

impl GraphClassifier {
    /// Classifies all nodes, each rank its own, and counts the test nodes; every rank has the whole answer. As
    /// [`GraphClassifier::evaluate`], but for the course of the iteration in double precision, which no rank can follow alone.
    ///
    /// # Errors
    /// Weights that do not fit the graph, a solve that did not stay finite, or a message that failed.
    pub fn evaluate_shared(
        &self,
        ranks: &Ranks,
        problem: &GraphProblem,
        split: &GraphSplit,
        threads: usize,
    ) -> Result<Evaluation> {
        let device = Arc::new(Cpu::<f32>::new(threads)?);
        let mut passes = Passes::new(&device, &self.model, problem, self.weights.shape)?;
        let report = passes.forward(problem, &self.weights.upload(&*device)?, None)?;
        let state = device.read_nodes(&passes.plan, NodeArray::State)?;
        let nodes = problem.labelled(&device, &split.test)?;
        let classes = problem.classes();
        let row = |row: u32| &state[row as usize * classes..][..classes];
        let mut counts = vec![0u64; classes * classes];
        for (&at, &label) in nodes.rows.iter().zip(&nodes.labels) {
            counts[label as usize * classes + largest(row(at))] += 1;
        }
        let counts = ranks.all_gather(&counts)?;
        let count = |place: usize| counts.iter().skip(place).step_by(classes * classes).sum::<u64>();
        let confusion: Vec<Vec<u64>> = (0..classes)
            .map(|label| (0..classes).map(|found| count(label * classes + found)).collect())
            .collect();
        let samples = split.test.len();
        let mut loss = [0.0];
        ranks.relay(&mut loss, &mut |loss| {
            for (&at, &label) in nodes.rows.iter().zip(&nodes.labels) {
                loss[0] += Softmax::of(row(at)).surprise(label as usize) / samples as f64;
            }
        })?;
        let right: u64 = (0..classes).map(|class| confusion[class][class]).sum();
        let accuracy = 100.0 * right as f64 / samples.max(1) as f64;
        let mut certificate = problem.certify(&self.model);
        if let (false, Some(part)) = (certificate.verdict.is_proven(), &problem.part) {
            let injection = device.read_nodes(&passes.plan, NodeArray::Injection)?;
            let mine = injection.iter().fold(f64::INFINITY, |a, &b| a.min(b.into()));
            let smallest = ranks.all_gather(&[mine])?.into_iter().fold(f64::INFINITY, f64::min);
            certificate = self.model.certify_by(&part.facts, InjectionBound::AtLeast(smallest));
        }
        let equation = report.is_some();
        let certified = f64::from(u8::from(certificate.verdict.is_proven()));
        Ok(Evaluation {
            model: self.model.name.clone(),
            samples,
            error: 100.0 - accuracy,
            accuracy,
            loss: loss[0],
            converged: f64::from(u8::from(report.is_none_or(|report| report.outcome == Outcome::Converged))),
            certified: equation.then_some(certified),
            certified_samples: if equation { samples } else { 0 },
            all_inputs: equation.then(|| (&certificate).into()),
            median_factor: certificate.factor().filter(|_| equation),
            confusion,
            iterations: report.map(|report| (report.iterations, samples as u64)).into_iter().collect(),
            ..Evaluation::default()
        })
    }
}
