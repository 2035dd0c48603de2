//! Plans: a map's packed weights and the memory that its solves need.

use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Accuracy;
use crate::cpu::distance::Distance;
use crate::cpu::fourier;
use crate::cpu::isa::Isa;
use crate::cpu::linear::{Linear, LinearScratch, is_circular};
use crate::cpu::linearise::Linearisation;
use crate::cpu::packed::Packed;
use crate::cpu::problem::{
    Adjoint, AdjointScratch, Forward, ForwardScratch, Resolvent, Scheme, Splitting, Target,
};
use crate::cpu::prox::check_splitting;
use crate::cpu::simd::SimdReal;
use crate::cpu::solve::{Anderson, Broyden, Method, Picard, Piece, Workspace};
use crate::cpu::step::FixedPointStep;
use crate::map::product_fits;
use crate::{EngineError, Injection, Measure, Operator, Result, ShapedMap, Solver, Start, Stopping};

/// Most samples of a dense block: weights are reused over them, and their states stay in cache.
const DENSE_BLOCK: usize = 64;
/// Images of a block in the frequency domain: the matrices per frequency are reused over them.
const FOURIER_BLOCK: usize = 16;

/// A plan of the CPU: packed weights and scratch memory of one map.
///
/// The memory of a solver is allocated when it is first used and kept: training steps after the first allocate nothing.
/// Only the whole-batch stopping rule needs memory for all samples at once.
pub struct CpuPlan<T: SimdReal> {
    pub(super) packed: Packed<T>,
    pub(super) batch: usize,
    pub(super) loaded: bool,
    pub(super) splittings: Factorisations<T>,
    pub(super) workers: Vec<Worker<T>>,
    /// For the whole-batch rule: one worker per block, made when first asked for.
    pub(super) lockstep: Vec<Worker<T>>,
    /// Gradient accumulators of the chunks of a batch.
    pub(super) accumulators: Buffer<T>,
}

/// What the splittings factorise, for the step in use.
#[derive(Default)]
pub(super) struct Factorisations<T: SimdReal> {
    resolvent: Option<Resolvent<T>>,
    fourier: Option<fourier::Operator<T>>,
    fourier_step: Option<f64>,
}

impl<T: SimdReal> Factorisations<T> {
    /// Weights have changed.
    pub fn forget(&mut self) {
        self.resolvent = None;
        self.fourier_step = None;
    }

    /// Makes what `solver` needs, if it is not there yet.
    pub fn prepare(&mut self, packed: &Packed<T>, solver: &Solver) -> Result<()> {
        let step = match *solver {
            Solver::PeacemanRachford { step } => step,
            Solver::ForwardBackward { step } => return check_splitting(&packed.map, step),
            _ => return Ok(()),
        };
        check_splitting(&packed.map, step)?;
        match packed.map.operator {
            Operator::Dense { n } => {
                if !self.resolvent.as_ref().is_some_and(|resolvent| resolvent.is_for(step)) {
                    self.resolvent = Some(Resolvent::new(packed.isa, n, &packed.weights[0], step)?);
                }
            }
            Operator::Conv { channels, height, width, kernel, .. } if is_circular(&packed.map.operator) => {
                if self.fourier_step != Some(step) {
                    let kernel = fourier::Kernel { units: channels, side: kernel, height, width };
                    let operator = self.fourier.get_or_insert_with(|| fourier::Operator::new(kernel));
                    operator.load(packed.isa, &packed.weights[0], step)?;
                    self.fourier_step = Some(step);
                }
            }
            Operator::Conv { .. } => {
                return Err(EngineError::Invalid(
                    "Peaceman-Rachford needs the inverse of I + t (I - W), which a zero-padded convolution does not have \
                     in closed form: use circular padding, or ForwardBackward"
                        .into(),
                ));
            }
        }
        Ok(())
    }
}

impl<T: SimdReal> CpuPlan<T> {
    pub(super) fn new(isa: Isa, threads: usize, map: &ShapedMap, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(EngineError::Invalid("a plan for a batch of zero samples".into()));
        }
        if !product_fits(&[batch, map.injection_len(), 64]) {
            return Err(EngineError::Invalid(format!("{batch} samples do not fit into the address space")));
        }
        let packed = Packed::new(isa, map);
        let mut workers = Vec::new();
        workers.resize_with(threads, Worker::default);
        Ok(Self {
            packed,
            batch,
            loaded: false,
            splittings: Factorisations::default(),
            workers,
            lockstep: Vec::new(),
            accumulators: Buffer::default(),
        })
    }

    /// Samples that are worked on together when `batch` samples are shared by `threads` threads.
    pub(super) fn block(&self, solver: Option<&Solver>, batch: usize, threads: usize) -> usize {
        let share = batch.div_ceil(threads);
        match self.packed.map.operator {
            Operator::Dense { .. } => share.next_multiple_of(4).min(DENSE_BLOCK),
            Operator::Conv { kernel, .. }
                if kernel != 3 || matches!(solver, Some(Solver::PeacemanRachford { .. })) =>
            {
                share.min(FOURIER_BLOCK)
            }
            Operator::Conv { .. } => 1,
        }
    }
}

/// Refuses parameters with which a solver or a stopping rule makes no sense.
pub(crate) fn check_solver(solver: &Solver, stopping: &Stopping) -> Result<()> {
    let refuse = |why: String| Err(EngineError::Invalid(why));
    match *solver {
        Solver::Anderson { window, ridge, mixing } => {
            if window == 0 {
                return refuse("Anderson's window must be at least 1".into());
            }
            if !(ridge >= 0.0 && ridge.is_finite()) {
                return refuse(format!("Anderson's ridge must be a number >= 0, got {ridge}"));
            }
            if !(mixing > 0.0 && mixing <= 1.0) {
                return refuse(format!("Anderson's mixing must lie in (0, 1], got {mixing}"));
            }
        }
        Solver::Broyden { memory: 0 } => return refuse("Broyden's memory must be at least 1".into()),
        Solver::PeacemanRachford { .. } | Solver::ForwardBackward { .. }
            if matches!(stopping.measure, Measure::Thompson | Measure::Hilbert) =>
        {
            return refuse(format!(
                "the splittings iterate on states that need not be positive: {:?} cannot measure them",
                stopping.measure
            ));
        }
        Solver::ForwardBackward { step } if !(step > 0.0 && step <= 1.0) => {
            return refuse(format!("the forward-backward step must lie in (0, 1], got {step}"));
        }
        _ => {}
    }
    if !(stopping.tolerance >= 0.0) {
        return refuse(format!("the tolerance must be a number >= 0, got {}", stopping.tolerance));
    }
    if stopping.max_iterations == 0 {
        return refuse("at least one iteration must be allowed".into());
    }
    Ok(())
}

/// What one thread needs to solve blocks; parts are made when first used.
pub(super) struct Worker<T: SimdReal> {
    /// Samples that the parts were made for.
    block: usize,
    pub workspace: Workspace<T>,
    methods: Option<Methods<T>>,
    forward: Option<ForwardScratch<T>>,
    adjoint: Option<AdjointParts<T>>,
    splitting: Option<SplittingParts<T>>,
    fourier: Option<fourier::Memory<T>>,
    /// All samples of a block.
    everyone: Vec<usize>,
    distances: Vec<Distance>,
}

/// A problem with its method and memory, ready for a driver.
pub(super) struct Prepared<'w, T: SimdReal> {
    pub step: Step<'w, T>,
    pub method: &'w mut dyn Method<T>,
    pub workspace: &'w mut Workspace<T>,
}

pub(super) struct AdjointParts<T: SimdReal> {
    pub linearisation: Linearisation<T>,
    pub scratch: AdjointScratch<T>,
    /// One state.
    pub g: Buffer<T>,
    /// What is fed to the transposed operators, for a block.
    pub q: Buffer<T>,
    /// Scratch memory of the weight gradient.
    pub gradient: LinearScratch<T>,
}

struct SplittingParts<T: SimdReal> {
    /// Scratch memory for `R` and `R^T` (dense).
    resolvent: Option<LinearScratch<T>>,
    /// `b`, `c` or `R t c`, and the solution; one state per sample.
    offset: Buffer<T>,
    constant: Buffer<T>,
    solution: Buffer<T>,
}

pub(super) struct Methods<T: SimdReal> {
    picard: Picard,
    anderson: Anderson<T>,
    broyden: Broyden<T>,
}

impl<T: SimdReal> Methods<T> {
    pub fn new(isa: Isa) -> Self {
        Self { picard: Picard, anderson: Anderson::new(isa), broyden: Broyden::new(isa) }
    }

    /// States are pieces from now on, of which other processes have the others.
    pub fn share(&mut self, piece: Piece<T>) {
        self.anderson.share(piece);
    }

    /// The method of a solver; Picard's iteration for the splittings.
    pub fn choose(&mut self, solver: &Solver) -> &mut dyn Method<T> {
        match *solver {
            Solver::Anderson { window, ridge, mixing } => {
                self.anderson.configure(window, ridge, mixing);
                &mut self.anderson
            }
            Solver::Broyden { memory } => {
                self.broyden.configure(memory);
                &mut self.broyden
            }
            _ => &mut self.picard,
        }
    }
}

/// The problems, as one type.
pub(super) enum Step<'w, T: SimdReal> {
    Forward(Forward<'w, T>),
    Adjoint(Adjoint<'w, T>),
    Splitting(Splitting<'w, T>),
    FourierForward(fourier::Forward<'w, T>),
    FourierAdjoint(fourier::Adjoint<'w, T>),
}

impl<'w, T: SimdReal> Step<'w, T> {
    pub fn problem(&mut self) -> &mut (dyn FixedPointStep<T> + 'w) {
        match self {
            Self::Forward(step) => step,
            Self::Adjoint(step) => step,
            Self::Splitting(step) => step,
            Self::FourierForward(step) => step,
            Self::FourierAdjoint(step) => step,
        }
    }
}

/// What the problem of a block is made of.
pub(super) enum Inputs<'a, T> {
    /// `z = F(z; y)`; a given start is what the answers hold.
    Forward { y: &'a [T], start: Start },
    /// `g = J^T g + v` at `(z, y)`, started at `v`.
    Adjoint { z: &'a [T], y: &'a [T], v: &'a [T] },
}

impl<'a, T> Inputs<'a, T> {
    /// What the equation is given: the injections, or the right-hand sides.
    pub fn given(&self) -> &'a [T] {
        match self {
            Self::Forward { y, .. } => y,
            Self::Adjoint { v, .. } => v,
        }
    }
}

/// What all blocks of a solve have in common.
#[derive(Clone, Copy)]
pub(super) struct Common<'a, T: SimdReal> {
    pub packed: &'a Packed<T>,
    pub splittings: &'a Factorisations<T>,
    pub solver: &'a Solver,
    /// How accurate the answers have to be.
    pub accuracy: Accuracy,
    /// The most samples of a block.
    pub block: usize,
}

impl<T: SimdReal> Default for Worker<T> {
    fn default() -> Self {
        Self {
            block: 0,
            workspace: Workspace::default(),
            methods: None,
            forward: None,
            adjoint: None,
            splitting: None,
            fourier: None,
            everyone: Vec::new(),
            distances: Vec::new(),
        }
    }
}

impl<T: SimdReal> Worker<T> {
    /// Makes room for blocks of `block` samples.
    pub fn reserve(&mut self, block: usize) {
        if self.block < block {
            *self = Self { block, everyone: (0..block).collect(), ..Self::default() };
            self.distances.resize(block, Distance::EMPTY);
        }
    }

    /// `F(z; y)` for a block.
    pub fn apply(&mut self, packed: &Packed<T>, z: &[T], y: &[T], out: &mut [T]) {
        let scratch = self.forward.get_or_insert_with(|| ForwardScratch::new(packed));
        let samples = out.len() / packed.map.operator.state_len();
        let everyone = &self.everyone[..samples];
        Forward { packed, y, scratch }.step(everyone, z, out, Measure::Absolute, &mut self.distances);
    }

    /// The derivative at `(z, y)` for a block.
    pub fn linearise(&mut self, packed: &Packed<T>, z: &[T], y: &[T]) -> (&mut AdjointParts<T>, &[usize]) {
        let len = packed.map.operator.state_len();
        let block = self.block;
        let forward = self.forward.get_or_insert_with(|| ForwardScratch::new(packed));
        let parts = self.adjoint.get_or_insert_with(|| AdjointParts {
            linearisation: Linearisation::new(packed, block),
            scratch: AdjointScratch::new(packed, block),
            g: Buffer::zeros(len),
            q: Buffer::zeros(block * packed.planes() * len),
            gradient: packed.forward.scratch(),
        });
        let everyone = &self.everyone[..z.len() / len];
        forward.linear.set_accuracy(Accuracy::Fine); // ample for slopes
        parts.linearisation.at(packed, everyone, z, y, &mut forward.linear);
        forward.linear.set_accuracy(Accuracy::Full);
        (parts, everyone)
    }

    /// The problem of a block, with its start in place.
    pub fn prepare<'w, 'a: 'w>(
        &'w mut self,
        common: Common<'a, T>,
        inputs: Inputs<'a, T>,
        answers: &[T],
    ) -> Prepared<'w, T> {
        match inputs {
            Inputs::Forward { y, start } => self.forward(common, y, start, answers),
            Inputs::Adjoint { z, y, v } => self.adjoint(common, z, y, v),
        }
    }

    /// The forward problem of a block, with its start in place. `z` holds the start, if it is given.
    fn forward<'w>(
        &'w mut self,
        common: Common<'w, T>,
        y: &'w [T],
        start: Start,
        z: &[T],
    ) -> Prepared<'w, T> {
        let Common { packed, splittings, solver, accuracy, block } = common;
        let (isa, map, len) = (packed.isa, &packed.map, packed.map.operator.state_len());
        self.reserve(block);
        let Self { workspace, methods, forward, splitting, fourier, everyone, block, .. } = self;
        let block = *block; // what is kept must have room for the largest block, not for this one
        let everyone = &everyone[..z.len() / len];
        let write_start = |states: &mut [T]| match start {
            Start::Constant(value) => states.fill(T::from_f64(value)),
            Start::Given => states.copy_from_slice(z),
        };
        let step = match (*solver, &splittings.fourier) {
            (Solver::PeacemanRachford { .. }, Some(operator)) => {
                let memory = fourier.get_or_insert_with(|| fourier::Memory::new(operator, block));
                let mut step = fourier::Forward::new(isa, operator, memory, map, y);
                workspace.reserve(block, step.state_len());
                step.start(accuracy, start, z, &mut workspace.iterates.image);
                Step::FourierForward(step)
            }
            (Solver::PeacemanRachford { step } | Solver::ForwardBackward { step }, _) => {
                let own = &mut forward.get_or_insert_with(|| ForwardScratch::new(packed)).linear;
                let SplittingParts { resolvent: scratch, offset, constant, solution } =
                    splitting.get_or_insert_with(|| SplittingParts::new(splittings, block * len));
                forward_constants(packed, everyone, y, offset, constant, own);
                workspace.reserve(block, len);
                let states = &mut workspace.iterates.image[..z.len()];
                write_start(states);
                for (x, &b) in states.iter_mut().zip(&offset[..]) {
                    *x -= b;
                }
                let resolvent =
                    splittings.resolvent.as_ref().filter(|_| scheme_of(solver) == Scheme::PeacemanRachford);
                let (linear, scratch) = match (resolvent, scratch) {
                    (Some(resolvent), Some(scratch)) => {
                        resolve_constant(
                            &resolvent.forward,
                            step,
                            everyone,
                            len,
                            constant,
                            solution,
                            scratch,
                        );
                        (&resolvent.forward, scratch)
                    }
                    _ => (&packed.forward, own),
                };
                let target = Target::Forward { activation: map.activation, offset };
                let scheme = scheme_of(solver);
                Step::Splitting(Splitting {
                    isa,
                    scheme,
                    step,
                    linear,
                    scratch,
                    constant,
                    len,
                    target,
                    solution,
                })
            }
            _ => {
                workspace.reserve(block, len);
                write_start(&mut workspace.iterates.image[..z.len()]);
                let scratch = forward.get_or_insert_with(|| ForwardScratch::new(packed));
                Step::Forward(Forward { packed, y, scratch })
            }
        };
        Prepared { step, method: methods.get_or_insert_with(|| Methods::new(isa)).choose(solver), workspace }
    }

    /// The adjoint problem of a block at `(z, y)`, started at `g = v`.
    fn adjoint<'w>(&'w mut self, common: Common<'w, T>, z: &[T], y: &[T], v: &'w [T]) -> Prepared<'w, T> {
        let Common { packed, splittings, solver, accuracy, block } = common;
        let (isa, len) = (packed.isa, packed.map.operator.state_len());
        self.reserve(block);
        self.linearise(packed, z, y);
        let Self { workspace, methods, adjoint, splitting, fourier, everyone, block, .. } = self;
        let block = *block;
        let Some(AdjointParts { linearisation, scratch, g, .. }) = adjoint else {
            unreachable!("just linearised")
        };
        let everyone = &everyone[..z.len() / len];
        let step = match (*solver, &splittings.fourier) {
            (Solver::PeacemanRachford { .. }, Some(operator)) => {
                let memory = fourier.get_or_insert_with(|| fourier::Memory::new(operator, block));
                let slopes = linearisation.all_slopes(z.len());
                let mut step = fourier::Adjoint::new(isa, operator, memory, slopes, v);
                workspace.reserve(block, step.state_len());
                step.start(accuracy, &mut workspace.iterates.image);
                Step::FourierAdjoint(step)
            }
            (Solver::PeacemanRachford { step } | Solver::ForwardBackward { step }, _) => {
                let SplittingParts { resolvent: own, constant, solution, offset: _ } =
                    splitting.get_or_insert_with(|| SplittingParts::new(splittings, block * len));
                constant[..v.len()].copy_from_slice(v);
                let slopes = linearisation.all_slopes(z.len());
                workspace.reserve(block, len);
                for ((x, &d), &v) in workspace.iterates.image.iter_mut().zip(slopes).zip(v) {
                    *x = d * v;
                }
                let resolvent =
                    splittings.resolvent.as_ref().filter(|_| scheme_of(solver) == Scheme::PeacemanRachford);
                let transposed = &mut scratch.linear;
                let scheme = scheme_of(solver);
                match (resolvent, own) {
                    (Some(resolvent), Some(own)) => {
                        let linear = &resolvent.transposed;
                        resolve_constant(linear, step, everyone, len, constant, solution, own);
                        let target = Target::Adjoint { slopes, v, packed, scratch: Some(transposed) };
                        Step::Splitting(Splitting {
                            isa,
                            scheme,
                            step,
                            linear,
                            scratch: own,
                            constant,
                            len,
                            target,
                            solution,
                        })
                    }
                    _ => {
                        let target = Target::Adjoint { slopes, v, packed, scratch: None };
                        let linear = &packed.transposed;
                        Step::Splitting(Splitting {
                            isa,
                            scheme,
                            step,
                            linear,
                            scratch: transposed,
                            constant,
                            len,
                            target,
                            solution,
                        })
                    }
                }
            }
            _ => {
                let mut step = Adjoint { packed, linearisation, v, scratch };
                let state_len = step.state_len();
                workspace.reserve(block, state_len);
                for &sample in everyone {
                    g.copy_from_slice(&v[sample * len..][..len]);
                    step.q_of(sample, g, &mut workspace.iterates.image[sample * state_len..][..state_len]);
                }
                Step::Adjoint(step)
            }
        };
        Prepared { step, method: methods.get_or_insert_with(|| Methods::new(isa)).choose(solver), workspace }
    }
}

fn scheme_of(solver: &Solver) -> Scheme {
    match solver {
        Solver::PeacemanRachford { .. } => Scheme::PeacemanRachford,
        _ => Scheme::ForwardBackward,
    }
}

/// `b` and `c = y + W b` of `z = s(W z + y) + b`, written as `e = s(W e + c)`, `z = e + b`.
fn forward_constants<T: SimdReal>(
    packed: &Packed<T>,
    everyone: &[usize],
    y: &[T],
    offset: &mut [T],
    constant: &mut [T],
    scratch: &mut LinearScratch<T>,
) {
    let shift = T::from_f64(packed.map.shift);
    match packed.map.injection {
        Injection::Inner => {
            offset[..y.len()].fill(shift);
            constant[..y.len()].copy_from_slice(y);
            if shift == T::ZERO {
                return;
            }
        }
        Injection::Outer => {
            constant[..y.len()].fill(T::ZERO);
            for (b, &y) in offset.iter_mut().zip(y) {
                *b = y + shift;
            }
        }
    }
    let len = packed.map.operator.state_len();
    packed.forward.apply(everyone, offset, scratch, &mut |sample, at, row, _| {
        for (c, &product) in constant[sample * len + at..].iter_mut().zip(&*row) {
            *c += product;
        }
    });
}

/// `c <- R t c`.
fn resolve_constant<T: SimdReal>(
    resolvent: &Linear<T>,
    step: f64,
    everyone: &[usize],
    len: usize,
    constant: &mut [T],
    copy: &mut [T],
    scratch: &mut LinearScratch<T>,
) {
    let step = T::from_f64(step);
    for (x, &c) in copy.iter_mut().zip(&*constant) {
        *x = step * c;
    }
    resolvent.apply(everyone, copy, scratch, &mut |sample, at, row, _| {
        constant[sample * len + at..][..row.len()].copy_from_slice(row);
    });
}

impl<T: SimdReal> SplittingParts<T> {
    fn new(splittings: &Factorisations<T>, numbers: usize) -> Self {
        Self {
            resolvent: splittings.resolvent.as_ref().map(|resolvent| resolvent.forward.scratch()),
            offset: Buffer::zeros(numbers),
            constant: Buffer::zeros(numbers),
            solution: Buffer::zeros(numbers),
        }
    }
}
