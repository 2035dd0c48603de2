//! A propagation over one graph: solved to its equilibrium, or unrolled; with the gradient of either.

use std::ops::Range;

use super::adjacency::Edges;
use super::node_matrix::NodeMatrix;
use super::passes::{Passes, Step};
use crate::cpu::Cpu;
use crate::cpu::distance::Distance;
use crate::cpu::plan::{Methods, check_solver};
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Block, Method, Piece, Workspace, solve_block};
use crate::cpu::step::FixedPointStep;
use crate::{EngineError, GraphMap, Measure, Result, SampleReport, Solver, Stopping};

/// A map over graphs of one size, with every buffer that its solves need.
///
/// ```
/// use subdeq_engine::cpu::graph::{Adjacency, NodeMatrix, Propagation};
/// use subdeq_engine::network::Csr;
/// use subdeq_engine::{Cpu, GraphMap, Measure, Extent, Solver, Stopping};
/// use subdeq_map::{Layout, Map};
///
/// // Two nodes that listen to each other.
/// let cpu = Cpu::<f32>::new(1)?;
/// let a = Csr { rows: 2, cols: 2, starts: vec![0, 1, 2], columns: vec![1, 0], values: vec![1.0, 1.0] };
/// let graph = Adjacency::new(&cpu, a)?;
/// let map = GraphMap::new(Map::named("appnp-tanh", Layout::Graph)?)?;
/// let mut propagation = Propagation::new(&cpu, &map, &graph.edges(), 1)?;
///
/// let f = NodeMatrix::from_rows(2, 1, &[0.0, 1.0])?;
/// let mut z = NodeMatrix::zeros(2, 1);
/// let (measure, extent) = (Measure::Thompson, Extent::PerSample);
/// let stopping = Stopping { measure, tolerance: 1e-6, max_iterations: 50, extent };
/// let report = propagation.solve(&graph.edges(), &f, &Solver::Picard, &stopping, &mut z)?;
/// assert!(report.converged());
/// assert!((z.row(0)[0] - ((0.9 * z.row(1)[0]).tanh() + 1.2)).abs() < 1e-5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Propagation<T: SimdReal> {
    pub(super) cpu: Cpu<T>,
    pub(super) map: GraphMap,
    pub(super) nodes: usize,
    pub(super) channels: usize,
    pub(super) passes: Passes<T>,
    /// Norms of the last state that was solved for.
    norms: Vec<T>,
    workspace: Workspace<T>,
    methods: Methods<T>,
    trajectory: Vec<State<T>>,
}

/// A state on an unrolled trajectory.
struct State<T: SimdReal> {
    image: NodeMatrix<T>,
    norms: Vec<T>,
}

impl<T: SimdReal> Propagation<T> {
    /// Makes room for states of `channels` numbers per node of graphs like this one.
    pub fn new(cpu: &Cpu<T>, map: &GraphMap, edges: &Edges<'_, T>, channels: usize) -> Result<Self> {
        if channels == 0 {
            return Err(EngineError::Invalid("a propagation needs at least one channel".into()));
        }
        check_hyperedges(map, edges)?;
        let nodes = edges.nodes();
        let stride = NodeMatrix::<T>::zeros(0, channels).stride();
        let chunks = edges.forward.chunks.len().max(edges.backward.chunks.len());
        let passes = Passes::new(cpu, map, nodes, channels, stride, chunks);
        let norms = vec![T::ONE; passes.norms_len()];
        let mut methods = Methods::new(cpu.isa());
        if let Some(part) = edges.part {
            let (begin, whole) = (part.rows.start * stride, part.nodes * stride);
            methods.share(Piece { company: part.company.clone(), begin, whole });
        }
        Ok(Self {
            cpu: cpu.clone(),
            map: *map,
            nodes,
            channels,
            passes,
            norms,
            workspace: Workspace::default(),
            methods,
            trajectory: Vec::new(),
        })
    }

    /// The map.
    #[must_use]
    pub fn map(&self) -> &GraphMap {
        &self.map
    }

    pub(super) fn check(
        &self,
        edges: &Edges<'_, T>,
        matrices: &[(&'static str, &NodeMatrix<T>)],
    ) -> Result<()> {
        if edges.nodes() != self.nodes {
            return Err(EngineError::Invalid(format!(
                "this propagation was made for {} nodes, the graph has {}",
                self.nodes,
                edges.nodes()
            )));
        }
        let covered = |chunks: &[Range<usize>]| chunks.last().map_or(0, |chunk| chunk.end);
        if [edges.forward, edges.backward].iter().any(|entries| covered(entries.chunks) != self.nodes) {
            return Err(EngineError::Invalid(
                "these edges were thinned out from another graph than the one they are asked for".into(),
            ));
        }
        check_hyperedges(&self.map, edges)?;
        matrices.iter().try_for_each(|(what, matrix)| matrix.check(what, self.nodes, self.channels))
    }

    /// `image = F(z; f)`, one application; `None` stands for `z = 0`. Returns the distance of the two, if it is asked for.
    pub fn apply(
        &mut self,
        edges: &Edges<'_, T>,
        z: Option<&NodeMatrix<T>>,
        f: &NodeMatrix<T>,
        measure: Option<Measure>,
        image: &mut NodeMatrix<T>,
    ) -> Result<Distance> {
        self.check(edges, &[("the state", z.unwrap_or(f)), ("the injection", f), ("the image", image)])?;
        let z = z.map(NodeMatrix::padded);
        Ok(self.passes.forward(edges, z, f.padded(), image.padded_mut(), &mut self.norms, measure))
    }

    /// Solves `Z = F(Z; f)` from `F(0; f)` on. The norms that [`Propagation::adjoint`] needs are remembered.
    pub fn solve(
        &mut self,
        edges: &Edges<'_, T>,
        f: &NodeMatrix<T>,
        solver: &Solver,
        stopping: &Stopping,
        z: &mut NodeMatrix<T>,
    ) -> Result<SampleReport> {
        self.check(edges, &[("the injection", f), ("the state", z)])?;
        check_method(edges, solver, stopping)?;
        let Self { passes, norms, workspace, methods, .. } = self;
        let len = passes.state_len();
        workspace.reserve(1, len);
        passes.forward(edges, None, f.padded(), &mut workspace.iterates.image[..len], norms, None);
        let mut step = Forward { passes, edges, injection: f.padded(), norms };
        Ok(drive(&mut step, methods.choose(solver), workspace, stopping, z.padded_mut()))
    }

    /// The gradient for `f`, given the gradient `v` for the equilibrium `z` of the last [`Propagation::solve`]:
    /// `g = J^T g + v` is solved by iteration, then pulled back to `f`.
    #[allow(clippy::too_many_arguments)] // the equation, how to solve it, and where to put the answer
    pub fn adjoint(
        &mut self,
        edges: &Edges<'_, T>,
        f: &NodeMatrix<T>,
        z: &NodeMatrix<T>,
        v: &NodeMatrix<T>,
        solver: &Solver,
        stopping: &Stopping,
        gradient: &mut NodeMatrix<T>,
    ) -> Result<SampleReport> {
        let matrices =
            [("the injection", f), ("the state", z), ("the gradient", v), ("the result", gradient)];
        self.check(edges, &matrices)?;
        check_method(edges, solver, stopping)?;
        let Self { passes, norms, workspace, methods, .. } = self;
        let len = passes.state_len();
        workspace.reserve(1, len);
        passes.prepare_pull(edges, z.padded());
        let at = Step { image: z.padded(), norms: &norms[..], injection: f.padded() };
        passes.pull(edges, &at, None, Some(v.padded()), &mut workspace.iterates.image[..len], None, None);
        // The answer q goes to `gradient` first, and from there through the last pull back.
        let mut step = Adjoint { passes, edges, at, arriving: v.padded() };
        let report = drive(&mut step, methods.choose(solver), workspace, stopping, gradient.padded_mut());
        let Adjoint { passes, at, .. } = step;
        let (q, scratch) = (&mut workspace.iterates.argument[..len], &mut workspace.iterates.image[..len]);
        q.copy_from_slice(gradient.padded());
        gradient.padded_mut().fill(T::ZERO);
        passes.pull(edges, &at, Some(q), Some(v.padded()), scratch, Some(gradient.padded_mut()), None);
        Ok(report)
    }

    /// `steps` applications from `Z = f` on, each remembered for [`Propagation::unroll_backward`].
    pub fn unroll(
        &mut self,
        edges: &Edges<'_, T>,
        f: &NodeMatrix<T>,
        steps: usize,
    ) -> Result<&NodeMatrix<T>> {
        self.check(edges, &[("the injection", f)])?;
        if steps == 0 {
            return Err(EngineError::Invalid("an unrolled propagation needs at least one step".into()));
        }
        let norms_len = self.passes.norms_len();
        self.trajectory.truncate(steps);
        self.trajectory.resize_with(steps, || State {
            image: NodeMatrix::zeros(self.nodes, self.channels),
            norms: vec![T::ONE; norms_len],
        });
        let mut argument = f;
        for state in &mut self.trajectory {
            let image = state.image.padded_mut();
            self.passes.forward(edges, Some(argument.padded()), f.padded(), image, &mut state.norms, None);
            argument = &state.image;
        }
        Ok(&self.trajectory[steps - 1].image)
    }

    /// The gradient for `f`, given the gradient `v` for the end of the last [`Propagation::unroll`] with the same edges
    /// and injection.
    pub fn unroll_backward(
        &mut self,
        edges: &Edges<'_, T>,
        f: &NodeMatrix<T>,
        v: &NodeMatrix<T>,
        gradient: &mut NodeMatrix<T>,
    ) -> Result<()> {
        self.check(edges, &[("the injection", f), ("the gradient", v), ("the result", gradient)])?;
        if self.trajectory.is_empty() {
            return Err(EngineError::Invalid("nothing has been unrolled yet".into()));
        }
        let Self { passes, workspace, trajectory, .. } = self;
        let len = passes.state_len();
        workspace.reserve(1, len);
        let (q, next) = (&mut workspace.iterates.argument, &mut workspace.iterates.image);
        gradient.padded_mut().fill(T::ZERO);
        let last = trajectory.len() - 1;
        for (k, State { image, norms }) in trajectory.iter().enumerate().rev() {
            passes.prepare_pull(edges, image.padded());
            let at = Step { image: image.padded(), norms, injection: f.padded() };
            let (after, arriving) =
                if k == last { (None, Some(v.padded())) } else { (Some(&q[..len]), None) };
            passes.pull(edges, &at, after, arriving, &mut next[..len], Some(gradient.padded_mut()), None);
            std::mem::swap(q, next);
        }
        passes.pull_start(edges, f.padded(), &q[..len], &mut next[..len], gradient.padded_mut());
        Ok(())
    }
}

/// Refuses power means where there is nothing to take them of.
fn check_hyperedges<T: SimdReal>(map: &GraphMap, edges: &Edges<'_, T>) -> Result<()> {
    if map.power().is_some() && edges.hyperedges.is_none() {
        return Err(EngineError::Invalid(
            "power means are taken over hyperedges, and this graph joins pairs of nodes: give its hyperedges, or choose another \
             model"
                .into(),
        ));
    }
    Ok(())
}

/// Refuses solvers that are not for propagation.
fn check_method<T: SimdReal>(edges: &Edges<'_, T>, solver: &Solver, stopping: &Stopping) -> Result<()> {
    if matches!(solver, Solver::Broyden { .. }) && edges.part.is_some() {
        return Err(EngineError::Invalid(
            "processes that share a graph solve its propagation by Picard or Anderson iteration, not by Broyden's method".into(),
        ));
    }
    if matches!(solver, Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. }) {
        return Err(EngineError::Invalid(
            "the splittings need a matrix that can be factorised: solve a propagation by Picard or Anderson iteration"
                .into(),
        ));
    }
    if stopping.measure == Measure::Hilbert {
        return Err(EngineError::Invalid(
            "a propagation is measured by Thompson's metric; Hilbert's is at most twice that".into(),
        ));
    }
    check_solver(solver, stopping)
}

/// Runs a method on one state, which starts at the workspace's image.
fn drive<T: SimdReal>(
    step: &mut dyn FixedPointStep<T>,
    method: &mut dyn Method<T>,
    workspace: &mut Workspace<T>,
    stopping: &Stopping,
    answer: &mut [T],
) -> SampleReport {
    let mut reports = [SampleReport::default()];
    solve_block(Block { step, method, workspace, answers: answer, reports: &mut reports }, stopping);
    reports[0]
}

/// `Z -> F(Z; f)`.
struct Forward<'a, 'e, T: SimdReal> {
    passes: &'a mut Passes<T>,
    edges: &'a Edges<'e, T>,
    injection: &'a [T],
    norms: &'a mut [T],
}

impl<T: SimdReal> FixedPointStep<T> for Forward<'_, '_, T> {
    fn state_len(&self) -> usize {
        self.passes.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        z: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.state_len();
        for &sample in active {
            let (z, image) = (Some(&z[..len]), &mut image[..len]);
            distances[sample] =
                self.passes.forward(self.edges, z, self.injection, image, self.norms, Some(measure));
        }
    }
}

/// `q -> s' (d norm)^T ((1 - t) A^T q + v)`.
struct Adjoint<'a, 'e, T: SimdReal> {
    passes: &'a mut Passes<T>,
    edges: &'a Edges<'e, T>,
    at: Step<'a, T>,
    arriving: &'a [T],
}

impl<T: SimdReal> FixedPointStep<T> for Adjoint<'_, '_, T> {
    fn state_len(&self) -> usize {
        self.passes.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        q: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.state_len();
        for &sample in active {
            let (q, image) = (Some(&q[..len]), &mut image[..len]);
            let arriving = Some(self.arriving);
            distances[sample] =
                self.passes.pull(self.edges, &self.at, q, arriving, image, None, Some(measure));
        }
    }
}
