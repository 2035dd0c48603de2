//! A trained model, and the passes that training and prediction share.

use subdeq_engine::cpu::graph::{
    Dropout, Edges, Encoder, EncoderDropout, EncoderPass, NodeMatrix, Propagation, ThinnedEdges,
};
use subdeq_engine::{Cpu, Measure, Outcome, SampleReport, Scope, Solver, Stopping};

use super::trainer::Softmax;
use super::{GraphCertificate, GraphMode, GraphModel, GraphProblem, GraphSolver, InjectionBound};
use crate::{Error, Result};

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct GraphClassifier {
    /// The architecture.
    pub model: GraphModel,
    /// The weights of the network that makes injections.
    pub weights: Encoder<f32>,
}

/// What a model says about every node of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// The class of each node.
    pub classes: Vec<u32>,
    /// The state `Z`, nodes x classes.
    pub state: Vec<f32>,
    /// The smallest injection, for [`super::InjectionBound::AtLeast`].
    pub smallest_injection: f64,
    /// How the solve ended; `None` for an unrolled propagation.
    pub report: Option<SampleReport>,
}

impl Prediction {
    /// The share of `nodes` that is classified rightly.
    #[must_use]
    pub fn accuracy(&self, labels: &[u32], nodes: &[u32]) -> f64 {
        let hits = nodes.iter().filter(|&&node| self.classes[node as usize] == labels[node as usize]).count();
        hits as f64 / nodes.len().max(1) as f64
    }

    /// The probability that the model gives to the class it chose for a node.
    #[must_use]
    pub fn probability(&self, node: usize) -> f64 {
        let channels = self.state.len() / self.classes.len();
        Softmax::of(&self.state[node * channels..][..channels]).probability(self.classes[node] as usize)
    }
}

impl GraphClassifier {
    /// Classifies all nodes.
    ///
    /// # Errors
    /// Weights that do not fit the graph, or a solve that did not stay finite.
    pub fn predict(&self, problem: &GraphProblem, threads: usize) -> Result<Prediction> {
        let mut passes = Passes::new(&self.model, problem, self.weights.hidden.channels(), threads)?;
        let report = passes.forward(problem, &self.weights, None)?;
        let nodes = || (0..problem.nodes() as u32).map(|node| passes.state().row(problem.row(node)));
        Ok(Prediction {
            classes: nodes().map(largest).collect(),
            state: nodes().flatten().copied().collect(),
            smallest_injection: smallest(&passes.injection),
            report,
        })
    }

    /// What is proved about the propagation over this graph: for every injection that the network can make, or else for
    /// the injection that these weights make of these features.
    ///
    /// # Errors
    /// Weights that do not fit the graph.
    pub fn certify(&self, problem: &GraphProblem) -> Result<GraphCertificate> {
        let certificate = self.model.certify(problem.adjacency());
        if certificate.verdict.is_proven() {
            return Ok(certificate);
        }
        let passes = Passes::new(&self.model, problem, self.weights.hidden.channels(), 1)?;
        let smallest = smallest(&passes.into_injection(problem, &self.weights)?);
        Ok(self.model.certify_for(problem.adjacency(), InjectionBound::AtLeast(smallest)))
    }
}

fn smallest(matrix: &NodeMatrix<f32>) -> f64 {
    matrix.to_rows().into_iter().fold(f64::INFINITY, |a, b| a.min(b.into()))
}

/// The first of the largest entries.
pub(super) fn largest(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .fold((0, f32::NEG_INFINITY), |best, (k, &x)| if x > best.1 { (k, x) } else { best });
    best.0 as u32
}

/// What one training step leaves out.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepDropout {
    pub encoder: EncoderDropout,
    pub edges: Dropout,
}

/// Everything that passes of one model over one graph need.
pub(super) struct Passes {
    pub cpu: Cpu<f32>,
    mode: GraphMode,
    encoder: EncoderPass<f32>,
    propagation: Propagation<f32>,
    thinned: ThinnedEdges<f32>,
    /// `f`.
    pub injection: NodeMatrix<f32>,
    injection_gradient: NodeMatrix<f32>,
    state: NodeMatrix<f32>,
}

impl Passes {
    pub fn new(model: &GraphModel, problem: &GraphProblem, hidden: usize, threads: usize) -> Result<Self> {
        model.check()?;
        let cpu = Cpu::new(threads)?;
        let classes = problem.classes;
        let matrix = NodeMatrix::zeros(problem.nodes(), classes);
        Ok(Self {
            mode: model.mode,
            encoder: EncoderPass::new(&cpu, &problem.features, hidden, classes, model.output)?,
            propagation: Propagation::new(&cpu, &model.map, &problem.adjacency.edges(), classes)?,
            thinned: ThinnedEdges::default(),
            injection: matrix.clone(),
            injection_gradient: matrix.clone(),
            state: matrix,
            cpu,
        })
    }

    /// `f`, without dropout.
    pub fn into_injection(
        mut self,
        problem: &GraphProblem,
        weights: &Encoder<f32>,
    ) -> Result<NodeMatrix<f32>> {
        self.encoder.forward(&problem.features, weights, None, &mut self.injection)?;
        Ok(self.injection)
    }

    /// `Z` of the last pass.
    pub fn state(&self) -> &NodeMatrix<f32> {
        &self.state
    }

    /// Computes `Z`, with dropout in training.
    pub fn forward(
        &mut self,
        problem: &GraphProblem,
        weights: &Encoder<f32>,
        dropout: Option<StepDropout>,
    ) -> Result<Option<SampleReport>> {
        let encoder_dropout = dropout.map(|dropout| dropout.encoder);
        self.encoder.forward(&problem.features, weights, encoder_dropout, &mut self.injection)?;
        if let Some(StepDropout { edges, .. }) = dropout
            && !edges.is_none()
        {
            self.thinned.refresh(&self.cpu, &problem.adjacency, edges);
        }
        let edges = edges(problem, &self.thinned, dropout);
        let report = match self.mode {
            GraphMode::Unrolled { steps } => {
                let end = self.propagation.unroll(&edges, &self.injection, steps)?;
                self.state.copy_from(end);
                return Ok(None);
            }
            GraphMode::Equilibrium { solver: GraphSolver::ConjugateGradient, tolerance, max_iterations } => {
                self.propagation.solve_linear(
                    &edges,
                    &self.injection,
                    tolerance,
                    max_iterations,
                    &mut self.state,
                )?
            }
            GraphMode::Equilibrium { solver, tolerance, max_iterations } => {
                let (solver, stopping) = (engine_solver(solver), stopping(tolerance, max_iterations));
                self.propagation.solve(&edges, &self.injection, &solver, &stopping, &mut self.state)?
            }
        };
        finite("solve", report).map(Some)
    }

    /// The gradient for the weights, given the gradient `v` for `Z`; must follow the [`Passes::forward`] with the same
    /// arguments.
    pub fn backward(
        &mut self,
        problem: &GraphProblem,
        weights: &Encoder<f32>,
        dropout: Option<StepDropout>,
        v: &NodeMatrix<f32>,
        gradient: &mut Encoder<f32>,
    ) -> Result<Option<SampleReport>> {
        let edges = edges(problem, &self.thinned, dropout);
        let (f, g) = (&self.injection, &mut self.injection_gradient);
        let report = match self.mode {
            GraphMode::Unrolled { .. } => {
                self.propagation.unroll_backward(&edges, f, v, g)?;
                None
            }
            GraphMode::Equilibrium { solver: GraphSolver::ConjugateGradient, tolerance, max_iterations } => {
                Some(self.propagation.adjoint_linear(&edges, v, tolerance, max_iterations, g)?)
            }
            GraphMode::Equilibrium { solver, tolerance, max_iterations } => {
                let (solver, stopping) = (engine_solver(solver), stopping(tolerance, max_iterations));
                Some(self.propagation.adjoint(&edges, f, &self.state, v, &solver, &stopping, g)?)
            }
        };
        let encoder_dropout = dropout.map(|dropout| dropout.encoder);
        self.encoder.backward(&problem.features, weights, encoder_dropout, f, g, gradient)?;
        report.map(|report| finite("adjoint solve", report)).transpose()
    }
}

/// The edges of a pass: all of them, or what dropout left.
fn edges<'a>(
    problem: &'a GraphProblem,
    thinned: &'a ThinnedEdges<f32>,
    dropout: Option<StepDropout>,
) -> Edges<'a, f32> {
    match dropout {
        Some(StepDropout { edges, .. }) if !edges.is_none() => thinned.edges(&problem.adjacency),
        _ => problem.adjacency.edges(),
    }
}

fn engine_solver(solver: GraphSolver) -> Solver {
    match solver {
        GraphSolver::Anderson { window, ridge } => Solver::Anderson { window, ridge, mixing: 1.0 },
        GraphSolver::Picard | GraphSolver::ConjugateGradient => Solver::Picard,
    }
}

fn stopping(tolerance: f64, max_iterations: usize) -> Stopping {
    Stopping { measure: Measure::Relative, tolerance, max_iterations, scope: Scope::PerSample }
}

/// A state that is not finite cannot be gone on with.
fn finite(what: &'static str, report: SampleReport) -> Result<SampleReport> {
    let SampleReport { iterations, residual, outcome } = report;
    match outcome {
        Outcome::NotFinite => {
            Err(Error::NotConverged { what, failed: 1, samples: 1, first: 0, outcome, iterations, residual })
        }
        _ => Ok(report),
    }
}
