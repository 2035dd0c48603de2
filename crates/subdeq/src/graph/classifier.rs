//! A trained model, and the passes that training and prediction share.

use std::sync::Arc;

use subdeq_engine::network::{Softmax, largest};
use subdeq_engine::{
    Cpu, EncoderShape, Extent, GraphDropout, GraphSpec, Graphs, Measure, NodeArray, Outcome, Propagate,
    SampleReport, Solver, Stopping,
};

use super::{
    EncoderWeights, GraphCertificate, GraphMode, GraphModel, GraphProblem, GraphSolver, InjectionBound,
};
use crate::{Error, Result};

/// A model with its weights.
#[derive(Clone, Debug)]
pub struct GraphClassifier {
    /// The architecture.
    pub model: GraphModel,
    /// The weights of the network that makes injections.
    pub weights: EncoderWeights,
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
        self.probabilities(node)[self.classes[node] as usize]
    }

    /// The probabilities that the model gives to the classes of a node.
    #[must_use]
    pub fn probabilities(&self, node: usize) -> Vec<f64> {
        let channels = self.state.len() / self.classes.len();
        let softmax = Softmax::of(&self.state[node * channels..][..channels]);
        (0..channels).map(|class| softmax.probability(class)).collect()
    }
}

impl GraphClassifier {
    /// Classifies all nodes, with so many threads (0: all cores).
    ///
    /// # Errors
    /// Weights that do not fit the graph, or a solve that did not stay finite.
    pub fn predict(&self, problem: &GraphProblem, threads: usize) -> Result<Prediction> {
        self.predict_on(&Arc::new(Cpu::new(threads)?), problem)
    }

    /// The same on a device.
    ///
    /// # Errors
    /// As for [`GraphClassifier::predict`].
    pub fn predict_on<D: Graphs<Elem = f32>>(
        &self,
        device: &Arc<D>,
        problem: &GraphProblem<D>,
    ) -> Result<Prediction> {
        let mut passes = Passes::new(device, &self.model, problem, self.weights.shape)?;
        let report = passes.forward(problem, &self.weights.upload(&**device)?, None)?;
        let (state, channels) = (device.read_nodes(&passes.plan, NodeArray::State)?, problem.classes());
        let row = |node: u32| &state[problem.row(node) * channels..][..channels];
        let nodes = || (0..problem.nodes() as u32).map(row);
        Ok(Prediction {
            classes: nodes().map(|row| largest(row) as u32).collect(),
            state: nodes().flatten().copied().collect(),
            smallest_injection: smallest(&device.read_nodes(&passes.plan, NodeArray::Injection)?),
            report,
        })
    }

    /// What is proved about the propagation over this graph: for every injection that the network can make, or else for
    /// the injection that these weights make of these features.
    ///
    /// # Errors
    /// Weights that do not fit the graph.
    pub fn certify(&self, problem: &GraphProblem) -> Result<GraphCertificate> {
        let certificate = self.model.certify(problem.operator());
        if certificate.verdict.is_proven() {
            return Ok(certificate);
        }
        let smallest = smallest(&self.injection(problem)?);
        Ok(self.model.certify_for(problem.operator(), InjectionBound::AtLeast(smallest)))
    }

    /// `f`, in the order of the problem's rows.
    pub(super) fn injection(&self, problem: &GraphProblem) -> Result<Vec<f32>> {
        let device = Arc::new(Cpu::new(1)?);
        let mut passes = Passes::new(&device, &self.model, problem, self.weights.shape)?;
        device.inject(&mut passes.plan, &problem.graph, &self.weights.upload(&*device)?)?;
        Ok(device.read_nodes(&passes.plan, NodeArray::Injection)?)
    }
}

/// What is not a number is as small as can be: nothing is proved about it.
fn smallest(numbers: &[f32]) -> f64 {
    let number = |x: f32| if x.is_nan() { f64::NEG_INFINITY } else { x.into() };
    numbers.iter().fold(f64::INFINITY, |a, &b| a.min(number(b)))
}

/// Everything that passes of one model over one graph need.
pub(super) struct Passes<D: Graphs> {
    pub device: Arc<D>,
    pub plan: D::GraphPlan,
    how: Propagate,
}

impl<D: Graphs<Elem = f32>> Passes<D> {
    pub fn new(
        device: &Arc<D>,
        model: &GraphModel,
        problem: &GraphProblem<D>,
        shape: EncoderShape,
    ) -> Result<Self> {
        model.check()?;
        let found = EncoderShape { features: problem.features().cols, classes: problem.classes(), ..shape };
        if found != shape {
            return Err(Error::invalid(format!(
                "a network for {} features and {} classes, but the graph has {} features and {} classes",
                shape.features, shape.classes, found.features, found.classes
            )));
        }
        let spec = GraphSpec { map: model.map, output: model.output, shape };
        let plan = device.graph_plan(&spec, &problem.graph)?;
        Ok(Self { device: device.clone(), plan, how: propagate(model.mode) })
    }

    /// Computes `Z`, with dropout in training.
    pub fn forward(
        &mut self,
        problem: &GraphProblem<D>,
        weights: &D::Encoder,
        dropout: Option<GraphDropout>,
    ) -> Result<Option<SampleReport>> {
        let report = self.device.propagate(&mut self.plan, &problem.graph, weights, dropout, &self.how)?;
        report.map(|report| finite("solve", report)).transpose()
    }

    /// The gradient for the weights, given the gradient for `Z` that is in the plan; must follow the [`Passes::forward`] with
    /// the same arguments.
    pub fn backward(
        &mut self,
        problem: &GraphProblem<D>,
        weights: &D::Encoder,
        dropout: Option<GraphDropout>,
        gradient: &mut D::Encoder,
    ) -> Result<Option<SampleReport>> {
        let (plan, graph) = (&mut self.plan, &problem.graph);
        let report = self.device.propagate_backward(plan, graph, weights, dropout, &self.how, gradient)?;
        report.map(|report| finite("adjoint solve", report)).transpose()
    }
}

fn propagate(mode: GraphMode) -> Propagate {
    match mode {
        GraphMode::Unrolled { steps } => Propagate::Unroll { steps },
        GraphMode::Equilibrium { solver: GraphSolver::ConjugateGradient, tolerance, max_iterations } => {
            Propagate::ConjugateGradient { tolerance, max_iterations }
        }
        GraphMode::Equilibrium { solver, tolerance, max_iterations } => {
            Propagate::Solve { solver: engine_solver(solver), stopping: stopping(tolerance, max_iterations) }
        }
    }
}

fn engine_solver(solver: GraphSolver) -> Solver {
    match solver {
        GraphSolver::Anderson { window, ridge } => Solver::Anderson { window, ridge, mixing: 1.0 },
        GraphSolver::Picard | GraphSolver::ConjugateGradient => Solver::Picard,
    }
}

fn stopping(tolerance: f64, max_iterations: usize) -> Stopping {
    Stopping { measure: Measure::Relative, tolerance, max_iterations, extent: Extent::PerSample }
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
