//! Graphs on the CPU: the implementation of [`Graphs`].

use super::opinion::{form_opinion, opinion_loss};
use super::{
    Adjacency, Edges, Encoder, EncoderDropout, EncoderPass, Features, NodeMatrix, Propagation, ThinnedEdges,
};
use crate::cpu::Cpu;
use crate::cpu::packed::check_len;
use crate::cpu::simd::SimdReal;
use crate::network::{Adam, Csr, Softmax};
use crate::{
    EncoderShape, EngineError, GraphDropout, GraphOperator, GraphSpec, Graphs, LabelledNodes, NodeArray,
    Opinion, Propagate, Result, SampleReport, Summary,
};

/// A graph in the machine's memory.
#[derive(Clone, Debug)]
pub struct CpuGraph<T: SimdReal> {
    adjacency: Adjacency<T>,
    features: Features<T>,
}

/// The buffers of passes.
pub struct CpuGraphPlan<T: SimdReal> {
    encoder: EncoderPass<T>,
    propagation: Propagation<T>,
    thinned: ThinnedEdges<T>,
    injection: NodeMatrix<T>,
    injection_gradient: NodeMatrix<T>,
    state: NodeMatrix<T>,
    state_gradient: NodeMatrix<T>,
    /// What a state said about every node; no rows before the first.
    opinion: NodeMatrix<T>,
}

macro_rules! graphs {
    ($($t:ident),*) => {$(
        impl Graphs for Cpu<$t> {
            type Graph = CpuGraph<$t>;
            type Encoder = Encoder<$t>;
            type GraphPlan = CpuGraphPlan<$t>;

            fn graph(&self, operator: GraphOperator<$t>, features: Csr<$t>) -> Result<CpuGraph<$t>> {
                Ok(CpuGraph { adjacency: Adjacency::new(self, operator)?, features: Features::new(features)? })
            }

            fn operator<'a>(&self, graph: &'a CpuGraph<$t>) -> &'a GraphOperator<$t> {
                graph.adjacency.operator()
            }

            fn features<'a>(&self, graph: &'a CpuGraph<$t>) -> &'a Csr<$t> {
                graph.features.matrix()
            }

            fn encoder(&self, shape: EncoderShape, arrays: [&[$t]; 4]) -> Result<Encoder<$t>> {
                let [hidden, hidden_bias, output, output_bias] = shape.arrays();
                let matrix = |[rows, cols]: [usize; 2], array: &[$t]| NodeMatrix::from_rows(rows, cols, array);
                Ok(Encoder {
                    hidden: matrix(hidden, arrays[0])?,
                    hidden_bias: matrix(hidden_bias, arrays[1])?,
                    output: matrix(output, arrays[2])?,
                    output_bias: matrix(output_bias, arrays[3])?,
                })
            }

            fn read_encoder(&self, encoder: &Encoder<$t>) -> Result<[Vec<$t>; 4]> {
                Ok(encoder.arrays().map(NodeMatrix::to_rows))
            }

            fn penalise(
                &self,
                penalty: f64,
                encoder: &Encoder<$t>,
                gradient: &mut Encoder<$t>,
                tally: &mut Summary,
            ) -> Result<()> {
                gradient.output.check("the gradient", encoder.output.nodes(), encoder.output.channels())?;
                let factor = 2.0 * penalty as $t;
                let mut squares = 0.0;
                for unit in 0..encoder.output.nodes() {
                    for (g, &w) in gradient.output.row_mut(unit).iter_mut().zip(encoder.output.row(unit)) {
                        *g += factor * w;
                        squares += f64::from(w) * f64::from(w);
                    }
                }
                tally.penalty += penalty * squares;
                Ok(())
            }

            fn encoder_adam(
                &self,
                adam: &Adam,
                encoder: &mut Encoder<$t>,
                gradient: &Encoder<$t>,
                moments: &mut [Encoder<$t>; 2],
            ) -> Result<()> {
                encoder.adam(self, adam, gradient, moments)
            }

            fn graph_plan(&self, spec: &GraphSpec, graph: &CpuGraph<$t>) -> Result<CpuGraphPlan<$t>> {
                let EncoderShape { hidden, classes, .. } = spec.shape;
                let matrix = NodeMatrix::zeros(graph.adjacency.nodes(), classes);
                Ok(CpuGraphPlan {
                    encoder: EncoderPass::new(self, &graph.features, hidden, classes, spec.output)?,
                    propagation: Propagation::new(self, &spec.map, &graph.adjacency.edges(), classes)?,
                    thinned: ThinnedEdges::default(),
                    injection: matrix.clone(),
                    injection_gradient: matrix.clone(),
                    state: matrix.clone(),
                    state_gradient: matrix,
                    opinion: NodeMatrix::zeros(0, classes),
                })
            }

            fn inject(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                graph: &CpuGraph<$t>,
                encoder: &Encoder<$t>,
            ) -> Result<()> {
                plan.encoder.forward(&graph.features, encoder, None, &mut plan.injection)
            }

            fn propagate(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                graph: &CpuGraph<$t>,
                encoder: &Encoder<$t>,
                dropout: Option<GraphDropout>,
                how: &Propagate,
            ) -> Result<Option<SampleReport>> {
                let CpuGraphPlan { encoder: pass, propagation, thinned, injection: f, state: z, .. } = plan;
                pass.forward(&graph.features, encoder, dropout.map(of_encoder), f)?;
                if let Some(GraphDropout { edges, .. }) = dropout
                    && !edges.is_none()
                {
                    thinned.refresh(self, &graph.adjacency, edges)?;
                }
                let edges = edges(graph, thinned, dropout);
                match *how {
                    Propagate::Unroll { steps } => {
                        z.copy_from(propagation.unroll(&edges, f, steps)?);
                        Ok(None)
                    }
                    Propagate::ConjugateGradient { tolerance, max_iterations } => {
                        propagation.solve_linear(&edges, f, tolerance, max_iterations, z).map(Some)
                    }
                    Propagate::Solve { solver, stopping } => {
                        propagation.solve(&edges, f, &solver, &stopping, z).map(Some)
                    }
                }
            }

            fn node_loss(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                nodes: &LabelledNodes<Vec<u32>>,
                tally: &mut Summary,
            ) -> Result<()> {
                let CpuGraphPlan { state, state_gradient, .. } = plan;
                let share = 1.0 / nodes.count as f64;
                let mut loss = 0.0;
                for (row, label) in labelled(nodes, state)? {
                    let softmax = Softmax::of(state.row(row));
                    tally.correct += u64::from(softmax.largest() == label);
                    loss += share * softmax.surprise(label);
                    for (class, g) in state_gradient.row_mut(row).iter_mut().enumerate() {
                        let hit = f64::from(u8::from(class == label));
                        *g = (share * (softmax.probability(class) - hit)) as $t;
                    }
                }
                tally.samples += nodes.count as u64;
                tally.loss += loss * nodes.count as f64;
                Ok(())
            }

            fn form_opinion(&self, plan: &mut CpuGraphPlan<$t>, opinion: Opinion) -> Result<()> {
                form_opinion(&plan.state, opinion, &mut plan.opinion);
                Ok(())
            }

            fn opinion_loss(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                rows: &Vec<u32>,
                weight: f64,
                tally: &mut Summary,
            ) -> Result<()> {
                let CpuGraphPlan { state, state_gradient, opinion, .. } = plan;
                tally.penalty += weight * opinion_loss(state, opinion, rows, weight, state_gradient)?;
                Ok(())
            }

            fn propagate_backward(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                graph: &CpuGraph<$t>,
                encoder: &Encoder<$t>,
                dropout: Option<GraphDropout>,
                how: &Propagate,
                gradient: &mut Encoder<$t>,
            ) -> Result<Option<SampleReport>> {
                let CpuGraphPlan {
                    encoder: pass, propagation, thinned, injection: f, injection_gradient: g, state: z, state_gradient: v, ..
                } = plan;
                let edges = edges(graph, thinned, dropout);
                let report = match *how {
                    Propagate::Unroll { .. } => {
                        propagation.unroll_backward(&edges, f, v, g)?;
                        None
                    }
                    Propagate::ConjugateGradient { tolerance, max_iterations } => {
                        Some(propagation.adjoint_linear(&edges, v, tolerance, max_iterations, g)?)
                    }
                    Propagate::Solve { solver, stopping } => {
                        Some(propagation.adjoint(&edges, f, z, v, &solver, &stopping, g)?)
                    }
                };
                pass.backward(&graph.features, encoder, dropout.map(of_encoder), f, g, gradient)?;
                Ok(report)
            }

            fn count_nodes(
                &self,
                plan: &CpuGraphPlan<$t>,
                nodes: &LabelledNodes<Vec<u32>>,
                with_loss: bool,
                tally: &mut Summary,
            ) -> Result<()> {
                for (row, label) in labelled(nodes, &plan.state)? {
                    let row = plan.state.row(row);
                    tally.correct += u64::from(crate::network::largest(row) == label);
                    if with_loss {
                        tally.loss += Softmax::of(row).surprise(label);
                    }
                }
                tally.samples += nodes.count as u64;
                Ok(())
            }

            fn read_nodes(&self, plan: &CpuGraphPlan<$t>, which: NodeArray) -> Result<Vec<$t>> {
                Ok(match which {
                    NodeArray::Injection => plan.injection.to_rows(),
                    NodeArray::State => plan.state.to_rows(),
                })
            }
        }
    )*};
}
graphs!(f32, f64);

fn of_encoder(dropout: GraphDropout) -> EncoderDropout {
    EncoderDropout { features: dropout.features, hidden: dropout.hidden }
}

/// The edges of a pass: all of them, or what dropout left.
fn edges<'a, T: SimdReal>(
    graph: &'a CpuGraph<T>,
    thinned: &'a ThinnedEdges<T>,
    dropout: Option<GraphDropout>,
) -> Edges<'a, T> {
    match dropout {
        Some(GraphDropout { edges, .. }) if !edges.is_none() => thinned.edges(&graph.adjacency),
        _ => graph.adjacency.edges(),
    }
}

/// Rows and classes of some nodes, each within its bounds.
fn labelled<'a, T: SimdReal>(
    nodes: &'a LabelledNodes<Vec<u32>>,
    state: &NodeMatrix<T>,
) -> Result<impl Iterator<Item = (usize, usize)> + use<'a, T>> {
    let LabelledNodes { rows, labels, count } = nodes;
    check_len("the rows of the nodes", rows.len(), *count)?;
    check_len("the classes of the nodes", labels.len(), *count)?;
    let beyond = |numbers: &[u32], bound: usize| numbers.iter().any(|&x| x as usize >= bound);
    if *count == 0 || beyond(rows, state.nodes()) || beyond(labels, state.channels()) {
        return Err(EngineError::Invalid(format!(
            "{count} nodes with their classes do not fit {} nodes x {} classes",
            state.nodes(),
            state.channels()
        )));
    }
    Ok(rows.iter().zip(labels).take(*count).map(|(&row, &label)| (row as usize, label as usize)))
}
