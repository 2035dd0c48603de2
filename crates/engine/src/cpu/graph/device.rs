//! Graphs on the CPU: the implementation of [`Graphs`].

use std::sync::Arc;

use super::company::gather_alike;
use super::opinion::{form_opinion, opinion_loss};
use super::part::failed;
use super::{
    Adjacency, Company, Division, Edges, Encoder, EncoderDropout, EncoderPass, Features, NodeMatrix,
    Propagation, ThinnedEdges,
};
use crate::cpu::Cpu;
use crate::cpu::packed::check_len;
use crate::cpu::simd::SimdReal;
use crate::network::{Adam, Csr, Softmax, largest};
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

impl<T: SimdReal> CpuGraph<T> {
    /// Whether the matrix equals its transpose.
    #[must_use]
    pub fn is_symmetric(&self) -> bool {
        self.adjacency.is_symmetric()
    }

    /// This process's part of a graph that several share: its rows of a symmetric matrix, whose columns are numbered as in the
    /// whole, and of the features.
    ///
    /// # Errors
    /// Rows that are not the part that the division gives to this process, or what [`Graphs::graph`] refuses.
    pub fn part(
        company: &Arc<dyn Company<T>>,
        division: &Division,
        matrix: Csr<T>,
        features: Csr<T>,
    ) -> Result<Self> {
        Ok(CpuGraph {
            adjacency: Adjacency::part(company.clone(), division, matrix)?,
            features: Features::part(company.clone(), division, features)?,
        })
    }
}

/// The buffers of passes.
pub struct CpuGraphPlan<T: SimdReal> {
    /// Who has the other nodes.
    company: Option<Arc<dyn Company<T>>>,
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
                    company: graph.adjacency.shared().map(|part| part.company.clone()),
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
                let CpuGraphPlan { company, encoder: pass, propagation, thinned, injection: f, state: z, .. } = plan;
                pass.forward(&graph.features, encoder, dropout.map(of_encoder), f)?;
                if let Some(GraphDropout { edges, .. }) = dropout
                    && !edges.is_none()
                {
                    thinned.refresh(self, &graph.adjacency, edges)?;
                }
                let edges = edges(graph, thinned, dropout);
                let report = match *how {
                    Propagate::Unroll { steps } => {
                        z.copy_from(propagation.unroll(&edges, f, steps)?);
                        None
                    }
                    Propagate::ConjugateGradient { tolerance, max_iterations } => {
                        Some(propagation.solve_linear(&edges, f, tolerance, max_iterations, z)?)
                    }
                    Propagate::Solve { solver, stopping } => {
                        Some(propagation.solve(&edges, f, &solver, &stopping, z)?)
                    }
                };
                company.as_deref().map_or(Ok(()), failed)?;
                Ok(report)
            }

            fn node_loss(
                &self,
                plan: &mut CpuGraphPlan<$t>,
                nodes: &LabelledNodes<Vec<u32>>,
                tally: &mut Summary,
            ) -> Result<()> {
                let CpuGraphPlan { company, state, state_gradient, .. } = plan;
                let company = company.as_deref();
                let labelled = labelled(nodes, state, company)?;
                let [count, correct] = {
                    let right = labelled.clone().filter(|&(row, label)| largest(state.row(row)) == label);
                    together(company, [nodes.count, right.count()])
                };
                let share = 1.0 / count as f64;
                let loss = go_on(company, 0.0, |loss| {
                    for (row, label) in labelled.clone() {
                        let softmax = Softmax::of(state.row(row));
                        *loss += share * softmax.surprise(label);
                        for (class, g) in state_gradient.row_mut(row).iter_mut().enumerate() {
                            let hit = f64::from(u8::from(class == label));
                            *g = (share * (softmax.probability(class) - hit)) as $t;
                        }
                    }
                });
                tally.correct += correct as u64;
                tally.samples += count as u64;
                tally.loss += loss * count as f64;
                Ok(())
            }

            fn form_opinion(&self, plan: &mut CpuGraphPlan<$t>, opinion: Opinion) -> Result<()> {
                if plan.company.is_some() {
                    return Err(EngineError::Invalid("opinions are about a whole graph, not a part".into()));
                }
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
                    company, encoder: pass, propagation, thinned, injection: f, injection_gradient: g, state: z,
                    state_gradient: v, ..
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
                company.as_deref().map_or(Ok(()), failed)?;
                Ok(report)
            }

            fn count_nodes(
                &self,
                plan: &CpuGraphPlan<$t>,
                nodes: &LabelledNodes<Vec<u32>>,
                with_loss: bool,
                tally: &mut Summary,
            ) -> Result<()> {
                let company = plan.company.as_deref();
                let labelled = labelled(nodes, &plan.state, company)?;
                let right = labelled.clone().filter(|&(row, label)| largest(plan.state.row(row)) == label);
                let [count, correct] = together(company, [nodes.count, right.count()]);
                if with_loss {
                    tally.loss = go_on(company, tally.loss, |loss| {
                        labelled.clone().for_each(|(row, label)| {
                            *loss += Softmax::of(plan.state.row(row)).surprise(label);
                        });
                    });
                }
                tally.correct += correct as u64;
                tally.samples += count as u64;
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

/// Counts of all processes.
fn together<T, const N: usize>(company: Option<&dyn Company<T>>, mine: [usize; N]) -> [usize; N] {
    let Some(company) = company else { return mine };
    // Whole numbers below 2^53 are exact.
    let gathered = gather_alike(company, &mine.map(|count| count as f64));
    std::array::from_fn(|k| gathered.iter().skip(k).step_by(N).map(|&count| count as usize).sum())
}

/// A sum that each process goes on with where the one before ended.
fn go_on<T>(company: Option<&dyn Company<T>>, begin: f64, mut add: impl FnMut(&mut f64)) -> f64 {
    let mut sum = [begin];
    match company {
        None => add(&mut sum[0]),
        Some(company) => company.relay(&mut sum, &mut |sum| add(&mut sum[0])),
    }
    sum[0]
}

/// Rows and classes of some nodes, each within its bounds. A process of several may have none of them.
fn labelled<'a, T: SimdReal>(
    nodes: &'a LabelledNodes<Vec<u32>>,
    state: &NodeMatrix<T>,
    company: Option<&dyn Company<T>>,
) -> Result<impl Iterator<Item = (usize, usize)> + Clone + use<'a, T>> {
    let LabelledNodes { rows, labels, count } = nodes;
    check_len("the rows of the nodes", rows.len(), *count)?;
    check_len("the classes of the nodes", labels.len(), *count)?;
    let beyond = |numbers: &[u32], bound: usize| numbers.iter().any(|&x| x as usize >= bound);
    let none = *count == 0 && company.is_none();
    if none || beyond(rows, state.nodes()) || beyond(labels, state.channels()) {
        return Err(EngineError::Invalid(format!(
            "{count} nodes with their classes do not fit {} nodes x {} classes",
            state.nodes(),
            state.channels()
        )));
    }
    Ok(rows.iter().zip(labels).take(*count).map(|(&row, &label)| (row as usize, label as usize)))
}
