//! Propagation over a graph, with the small network that makes its injections out of sparse features.

use super::Device;
use crate::cpu::graph::{Dropout, OutputActivation};
use crate::network::{Adam, Csr};
use crate::{GraphMap, GraphOperator, Result, SampleReport, Solver, Stopping};

/// Sizes of the network that makes injections: its arrays are `W1` (features x hidden), `b1` (hidden), `W2` (hidden x
/// classes) and `b2` (classes), in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderShape {
    /// Features of a node.
    pub features: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Channels that come out.
    pub classes: usize,
}

impl EncoderShape {
    /// Rows and columns of the four arrays.
    #[must_use]
    pub fn arrays(&self) -> [[usize; 2]; 4] {
        let Self { features, hidden, classes } = *self;
        [[features, hidden], [1, hidden], [hidden, classes], [1, classes]]
    }
}

/// What is propagated: `Z = F(Z; f)`, `f` out of a network of this shape.
#[derive(Clone, Copy, Debug)]
pub struct GraphSpec {
    /// `F`.
    pub map: GraphMap,
    /// What is applied to the last layer of the network.
    pub output: OutputActivation,
    /// The network.
    pub shape: EncoderShape,
}

/// How far a propagation goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Propagate {
    /// To the solution, by iteration.
    Solve {
        /// The method.
        solver: Solver,
        /// When it ends.
        stopping: Stopping,
    },
    /// To the solution of a linear propagation, by conjugate gradients.
    ConjugateGradient {
        /// Relative residual at which it ends.
        tolerance: f64,
        /// At most so many steps.
        max_iterations: usize,
    },
    /// A fixed number of steps from `Z = f` on.
    Unroll {
        /// The number of steps.
        steps: usize,
    },
}

/// What a training step leaves out.
#[derive(Clone, Copy, Debug)]
pub struct GraphDropout {
    /// Entries of the features.
    pub features: Dropout,
    /// Hidden units.
    pub hidden: Dropout,
    /// Edges.
    pub edges: Dropout,
}

/// Some nodes, as rows of the graph's matrices, with their classes.
#[derive(Debug)]
pub struct LabelledNodes<I> {
    /// The rows.
    pub rows: I,
    /// The class of each.
    pub labels: I,
    /// How many.
    pub count: usize,
}

/// How a state becomes an opinion (see [`Graphs::form_opinion`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Opinion {
    /// Below 1: sharper than the state's own probabilities.
    pub temperature: f64,
    /// 0: classes stay as frequent as the state has them; 1: all become equally frequent.
    pub levelling: f64,
}

/// Which matrix of a plan is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeArray {
    /// `f`.
    Injection,
    /// `Z`.
    State,
}

/// A device that propagates over graphs.
///
/// A plan owns every buffer of the passes of one model over one graph; passes must be given the graph and the shapes that it
/// was made for. A state that is not finite is in the report of its solve.
pub trait Graphs: Device {
    /// What nodes pass to each other, and sparse features.
    type Graph: Send + Sync;
    /// The arrays of a network, or their gradients, or their moments.
    type Encoder: Clone + Send + Sync;
    /// The buffers of passes.
    type GraphPlan: Send;

    /// Brings a graph to the device; refuses what is not a sparse matrix of finite numbers.
    fn graph(&self, operator: GraphOperator<Self::Elem>, features: Csr<Self::Elem>) -> Result<Self::Graph>;
    /// What nodes pass to each other, on the host.
    fn operator<'a>(&self, graph: &'a Self::Graph) -> &'a GraphOperator<Self::Elem>;
    /// The features, on the host.
    fn features<'a>(&self, graph: &'a Self::Graph) -> &'a Csr<Self::Elem>;

    /// A network, its four arrays row after row.
    fn encoder(&self, shape: EncoderShape, arrays: [&[Self::Elem]; 4]) -> Result<Self::Encoder>;
    /// The four arrays of a network, row after row.
    fn read_encoder(&self, encoder: &Self::Encoder) -> Result<[Vec<Self::Elem>; 4]>;
    /// `gradient += 2 penalty W2`; `penalty ||W2||^2` is counted.
    fn penalise(
        &self,
        penalty: f64,
        encoder: &Self::Encoder,
        gradient: &mut Self::Encoder,
        tally: &mut Self::Tally,
    ) -> Result<()>;
    /// One step of Adam on all four arrays.
    fn encoder_adam(
        &self,
        adam: &Adam,
        encoder: &mut Self::Encoder,
        gradient: &Self::Encoder,
        moments: &mut [Self::Encoder; 2],
    ) -> Result<()>;

    /// Makes room for passes over a graph.
    fn graph_plan(&self, spec: &GraphSpec, graph: &Self::Graph) -> Result<Self::GraphPlan>;
    /// Computes `f`, without dropout.
    fn inject(&self, plan: &mut Self::GraphPlan, graph: &Self::Graph, encoder: &Self::Encoder) -> Result<()>;
    /// Computes `f` and `Z`.
    fn propagate(
        &self,
        plan: &mut Self::GraphPlan,
        graph: &Self::Graph,
        encoder: &Self::Encoder,
        dropout: Option<GraphDropout>,
        how: &Propagate,
    ) -> Result<Option<SampleReport>>;
    /// The gradient of the mean cross-entropy of some nodes for `Z`, to be pulled back; loss and hits are counted. The gradient
    /// of other nodes stays what it was, which is zero unless they were among the nodes of an earlier call.
    fn node_loss(
        &self,
        plan: &mut Self::GraphPlan,
        nodes: &LabelledNodes<Self::Integers>,
        tally: &mut Self::Tally,
    ) -> Result<()>;
    /// Keeps what the state says about every node as an opinion to be learned from: the softmax `p` of each row becomes
    /// proportional to `(p_c / mean_c^levelling)^(1 / temperature)`, where `mean` is the mean of `p` over all nodes. Levelling by
    /// a half keeps large classes from swallowing small ones and leaves them larger; a temperature below one sharpens.
    fn form_opinion(&self, plan: &mut Self::GraphPlan, opinion: Opinion) -> Result<()>;
    /// Like [`Graphs::node_loss`], with the opinion in the place of classes: the gradient of `weight` times the mean cross-entropy
    /// of some rows, given by their numbers, to the opinion about them.
    fn opinion_loss(
        &self,
        plan: &mut Self::GraphPlan,
        rows: &Self::Integers,
        weight: f64,
        tally: &mut Self::Tally,
    ) -> Result<()>;
    /// Pulls the gradient for `Z` back to the network; must follow the [`Graphs::propagate`] with the same arguments.
    fn propagate_backward(
        &self,
        plan: &mut Self::GraphPlan,
        graph: &Self::Graph,
        encoder: &Self::Encoder,
        dropout: Option<GraphDropout>,
        how: &Propagate,
        gradient: &mut Self::Encoder,
    ) -> Result<Option<SampleReport>>;
    /// Counts which of some nodes are classified rightly, and their loss if it is asked for.
    fn count_nodes(
        &self,
        plan: &Self::GraphPlan,
        nodes: &LabelledNodes<Self::Integers>,
        with_loss: bool,
        tally: &mut Self::Tally,
    ) -> Result<()>;
    /// One of the plan's matrices, row after row.
    fn read_nodes(&self, plan: &Self::GraphPlan, which: NodeArray) -> Result<Vec<Self::Elem>>;
}
