//! How fast a propagation is proved to converge, and how fast it does.

use serde::{Deserialize, Serialize};
use subdeq_engine::cpu::graph::{Adjacency, NodeMatrix, Propagation};
use subdeq_engine::{Cpu, GraphNorm};
use subdeq_theory::bound::Upper;
use subdeq_theory::certificate::{Metric, Verdict};

use super::{GraphCertificate, GraphClassifier, GraphProblem};
use crate::Result;

/// Plain iteration `Z <- F(Z)` from `Z_0 = F(0)` on, in double precision, measured in the metric of the certificate
/// (Frobenius' where there is none; norms relative to the solution's).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Convergence {
    /// What is proved.
    pub certificate: GraphCertificate,
    /// The distance to the solution that is asked for.
    pub tolerance: f64,
    /// Iterations after which it is proved to be reached, from `distance(Z_0, F(Z_0))` and the factor.
    pub promised: Option<u64>,
    /// Iterations after which it was reached.
    pub measured: u64,
    /// `distance(Z_k, F(Z_k))` for `k` from 0.
    pub residuals: Vec<f64>,
}

/// The solution is iterated until steps are so much smaller than the tolerance.
const SOLUTION: f64 = 1e-6;
/// Far more than any certified propagation needs.
const MOST_STEPS: usize = 20_000;

impl GraphClassifier {
    /// Iterates the trained model's propagation over a graph to `tolerance`, beside what its certificate promises.
    ///
    /// # Errors
    /// Weights that do not fit the graph.
    pub fn convergence(&self, problem: &GraphProblem, tolerance: f64) -> Result<Convergence> {
        let injection = self.injection(problem)?;
        let certificate = self.certify(problem)?;
        let cpu = Cpu::<f64>::new(1)?;
        let adjacency = Adjacency::new(&cpu, problem.operator().in_f64())?;
        let edges = adjacency.edges();
        let (nodes, classes) = (problem.nodes(), problem.classes());
        let numbers: Vec<f64> = injection.into_iter().map(f64::from).collect();
        let f = NodeMatrix::from_rows(nodes, classes, &numbers)?;
        let mut propagation = Propagation::new(&cpu, &self.model.map, &edges, classes)?;
        let metric = MetricOf::new(&certificate, self.model.map.normalisation());

        let mut iterates = [NodeMatrix::zeros(nodes, classes), NodeMatrix::zeros(nodes, classes)];
        propagation.apply(&edges, None, &f, None, &mut iterates[0])?;
        let start = iterates[0].clone();
        let mut residuals = Vec::new();
        for _ in 0..MOST_STEPS {
            let [z, image] = &mut iterates;
            propagation.apply(&edges, Some(z), &f, None, image)?;
            let residual = metric.distance(z, image);
            residuals.push(residual);
            let solved = residual <= SOLUTION * tolerance * metric.unit(image);
            iterates.swap(0, 1);
            if solved {
                break;
            }
        }
        let solution = iterates[0].clone();
        let unit = metric.unit(&solution);
        residuals.iter_mut().for_each(|residual| *residual /= unit);

        iterates[0].copy_from(&start);
        let mut measured = 0;
        while metric.distance(&iterates[0], &solution) / unit > tolerance && measured < MOST_STEPS as u64 {
            let [z, image] = &mut iterates;
            propagation.apply(&edges, Some(z), &f, None, image)?;
            iterates.swap(0, 1);
            measured += 1;
        }
        let promised = residuals.first().and_then(|&first| certificate.iterations(first, tolerance));
        Ok(Convergence { certificate, tolerance, promised, measured, residuals })
    }
}

/// The metric that a certificate is about.
enum MetricOf {
    Thompson,
    /// Of each normalised group.
    Hilbert(GraphNorm),
    /// With one weight per node.
    WeightedSup(Vec<f64>),
    Frobenius,
}

impl MetricOf {
    fn new(certificate: &GraphCertificate, normalisation: Option<GraphNorm>) -> Self {
        match (&certificate.verdict, normalisation) {
            (Verdict::Proven { metric: Metric::Thompson, .. }, _) => MetricOf::Thompson,
            (Verdict::Proven { metric: Metric::Hilbert, .. }, Some(groups)) => MetricOf::Hilbert(groups),
            (Verdict::Proven { metric: Metric::WeightedSup { v }, .. }, _) => {
                MetricOf::WeightedSup(v.clone())
            }
            _ => MetricOf::Frobenius,
        }
    }

    /// What distances are divided by: the metrics of positive states are relative already.
    fn unit(&self, solution: &NodeMatrix<f64>) -> f64 {
        match self {
            MetricOf::Thompson | MetricOf::Hilbert(_) => 1.0,
            MetricOf::WeightedSup(_) | MetricOf::Frobenius => {
                let zero = NodeMatrix::zeros(solution.nodes(), solution.channels());
                self.distance(solution, &zero).max(f64::MIN_POSITIVE)
            }
        }
    }

    fn distance(&self, x: &NodeMatrix<f64>, y: &NodeMatrix<f64>) -> f64 {
        let entries = |node: usize| x.row(node).iter().zip(y.row(node));
        let nodes = 0..x.nodes();
        match self {
            MetricOf::Frobenius => nodes.flat_map(entries).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt(),
            MetricOf::WeightedSup(v) => {
                let row = |node: usize| entries(node).map(move |(x, y)| (x - y).abs() / v[node]);
                Upper::largest(nodes.flat_map(row)).get()
            }
            MetricOf::Thompson => {
                Upper::largest(nodes.flat_map(entries).map(|(x, y)| (x / y).ln().abs())).get()
            }
            MetricOf::Hilbert(groups) => {
                let count = match groups {
                    GraphNorm::Rows => x.nodes(),
                    GraphNorm::Columns => x.channels(),
                };
                let mut extent = vec![(f64::INFINITY, f64::NEG_INFINITY); count];
                for node in nodes {
                    for (channel, (x, y)) in entries(node).enumerate() {
                        let group = if *groups == GraphNorm::Rows { node } else { channel };
                        let ratio = (x / y).ln();
                        let (low, high) = &mut extent[group];
                        // What is no number is infinitely far from everything.
                        (*low, *high) = if ratio.is_nan() {
                            (f64::NEG_INFINITY, f64::INFINITY)
                        } else {
                            (low.min(ratio), high.max(ratio))
                        };
                    }
                }
                Upper::largest(extent.into_iter().map(|(low, high)| high - low)).get()
            }
        }
    }
}
