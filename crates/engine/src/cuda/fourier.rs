//! Peaceman-Rachford's splitting of circular convolutions, in the frequency domain: the method of `cpu/fourier`, with its formulas.
//!
//! The state of the iteration is `g`, the argument of the proximal step: `u = 2 prox_t(g) - g`, `g <- (1 - p) g + p (C u + k)`, `C = 2 R - I`, with
//! the part `p` of the way that an iteration goes ([`PART`], or as samples that send changes do it: `planes`). It is updated in place: what a sample's state is when the sample ends is left alone from then on. With `x` the injection, or the gradient
//! that an adjoint is given, `k = C (a x + b) + c x + d`.

use std::sync::Arc;

use super::Cuda;
use super::equilibria::ReportRow;
use super::gpu::{Block, Gpu, Grid, Memory, THREADS};
use super::kernel::{Argument, Passed, launch};
use super::plan::{Operators, Work};
use super::resolvent::{Resolvent, Wave};
use super::solve::{Distance, LOOK, Problem, SampleMemory};
use crate::cpu::leaves_zero;
use crate::solver::PEACEMAN_RACHFORD_PART;
use crate::{Activation, EngineError, Extent, Injection, Result, ShapedMap, Start, Stopping};

/// The lengths of lines that are transformed in a thread's registers, with the kernels: rows, rows back, columns, columns back.
const LINES: [(usize, [&str; 4]); 5] = [
    (8, ["fourier_rows_8", "fourier_rows_back_8", "fourier_columns_8", "fourier_columns_back_8"]),
    (16, ["fourier_rows_16", "fourier_rows_back_16", "fourier_columns_16", "fourier_columns_back_16"]),
    (28, ["fourier_rows_28", "fourier_rows_back_28", "fourier_columns_28", "fourier_columns_back_28"]),
    (32, ["fourier_rows_32", "fourier_rows_back_32", "fourier_columns_32", "fourier_columns_back_32"]),
    (64, ["fourier_rows_64", "fourier_rows_back_64", "fourier_columns_64", "fourier_columns_back_64"]),
];
/// The kernels of the products of whole waves, by their outputs: for up to as many channels, and, on tensor cores, for exactly as many;
/// and the samples of a block.
const PRODUCTS: [(usize, &str, &str); 4] = [
    (16, "fourier_product_16", "fourier_whole_16"),
    (32, "fourier_product_32", "fourier_whole_32"),
    (48, "fourier_product_48", "fourier_whole_48"),
    (64, "fourier_product_64", "fourier_whole_64"),
];
const PRODUCT_SAMPLES: usize = 128;
/// Channels up to which a block of a product has all outputs of its samples, so that these may take the places of the inputs.
const IN_PLACE: usize = PRODUCTS[PRODUCTS.len() - 1].0;
macro_rules! changes {
    ($channels:literal, $blocks:literal, $threads:literal) => {
        ChangesProduct {
            channels: $channels,
            blocks: $blocks,
            threads: $threads,
            name: concat!("fourier_changes_", $channels),
            resumed: concat!("fourier_resumed_", $channels),
        }
    };
}
/// Those of changes on tensor cores.
const CHANGES: [ChangesProduct; 6] = [
    changes!(16, 1, 128),
    changes!(32, 1, 128),
    changes!(48, 1, 128),
    changes!(64, 1, 128),
    changes!(96, 3, 256),
    changes!(128, 4, 256),
];

/// How much of the way an iteration goes where all of u is always sent.
pub(super) const PART: f32 = PEACEMAN_RACHFORD_PART as f32;

/// Kernels for products of changes: for as many channels, which as many blocks share; and for what is sent beside half of a step.
#[derive(Debug)]
pub(super) struct ChangesProduct {
    channels: usize,
    blocks: u32,
    threads: u32,
    name: &'static str,
    resumed: &'static str,
}

/// Spectra on their way, and how far each part of a sample went.
#[derive(Debug)]
pub(super) struct Waves {
    /// The current one is the first; the other is empty where nothing needs it.
    pub spectra: [Memory<Wave>; 2],
    /// The same of samples that send only changes, as `f16`.
    pub changes: [Memory<u32>; 2],
    /// What each sample sends.
    pub flows: Memory<Flow>,
    /// Which slopes of an adjoint are 1, where they are that or one other number: a bit for each.
    pub masks: Memory<u32>,
    pub parts: Memory<Distance>,
    /// How many parts of each sample are there.
    pub arrived: Memory<u32>,
}

/// What samples have sent: all of their waves, only changes of these, or one or the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    Changes,
    Either,
    /// Changes, after half of a step: of what comes back then the other half is a part.
    AfterHalf,
}

/// `Flow` of `fourier.cu`: the host never looks into it.
pub(super) type Flow = [f64; 4];

/// `Waters` of `fourier.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Waters {
    whole: u64,
    changes: u64,
}

impl Waves {
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            spectra: [Memory::empty(gpu), Memory::empty(gpu)],
            changes: [Memory::empty(gpu), Memory::empty(gpu)],
            flows: Memory::empty(gpu),
            masks: Memory::empty(gpu),
            parts: Memory::empty(gpu),
            arrived: Memory::empty(gpu),
        }
    }

    /// Makes room for a solve of whole images.
    pub fn begin(&mut self, iteration: &Iteration, changes: bool) -> Result<()> {
        if !changes {
            return Ok(());
        }
        let count = if iteration.multiplies_in_place() { 1 } else { 2 };
        for room in &mut self.changes[..count] {
            room.reserve(iteration.spectrum_len())?;
        }
        self.flows.reserve(iteration.batch)
    }

    /// The current spectra, and where the next go.
    pub fn waters(&self) -> [Waters; 2] {
        [0, 1]
            .map(|k| Waters { whole: self.spectra[k].address_of(0), changes: self.changes[k].address_of(0) })
    }

    /// Where changes go so that the step that they are made of stays, when no sample has all of its waves on their way: where the next changes
    /// go, or, without such a place, that of all waves.
    pub fn beside(&self, iteration: &Iteration) -> Waters {
        let [Waters { whole, .. }, Waters { changes, .. }] = self.waters();
        Waters { whole, changes: if iteration.multiplies_in_place() { whole } else { changes } }
    }

    /// The next are the current ones now.
    fn swap(&mut self) {
        self.spectra.swap(0, 1);
        self.changes.swap(0, 1);
    }
}

/// `Plane` of `fourier.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Plane {
    batch: u32,
    height: u32,
    width: u32,
    half: u32,
    channels: u32,
    padded: u32,
}

/// `Reflection` of `fourier.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Reflection {
    t: f32,
    factor: f32,
    part: f32,
}

// SAFETY: `repr(C)`, the fields of the structs of the same names in `fourier.cu`, no padding: 24, 12 and 16 bytes.
unsafe impl Passed for Plane {}
// SAFETY: as above.
unsafe impl Passed for Waters {}
// SAFETY: as above.
unsafe impl Passed for Reflection {}

/// `Source` of `fourier.cu`: `x`, and the numbers of `k = C (a x + b) + c x + d`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Source {
    x: u64,
    before: [f32; 2],
    after: [f32; 2],
}

// SAFETY: `repr(C)`, the fields of the struct in `fourier.cu`, no padding: 8 and four times 4 bytes.
unsafe impl Passed for Source {}

/// The activation's slopes, in an adjoint.
#[derive(Clone, Copy)]
pub(super) enum Slopes<'a> {
    /// Those of any activation.
    Any(&'a Memory<f32>),
    /// Those of an activation with a kink, at this solution; for whole images.
    AtKink(&'a Memory<f32>),
}

/// What an answer at a kink is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// `g = W' q + v`.
    G,
    /// `q = D g`.
    Q,
}

/// One splitting, forward or adjoint, of a batch.
pub(super) struct Iteration<'a> {
    pub gpu: &'a Gpu,
    pub operators: &'a Operators,
    pub resolvent: &'a Resolvent,
    pub batch: usize,
    pub step: f64,
    /// The adjoint's.
    pub slopes: Option<Slopes<'a>>,
    /// What the equation is given, and what multiplies it and is added to it before and after `C`.
    pub x: &'a Memory<f32>,
    pub parts: [(f32, f32); 2],
}

impl Cuda {
    /// Solves `z = F(z; y)`.
    #[allow(clippy::too_many_arguments)] // a solve has this many sides
    pub(super) fn fourier_forward(
        &self,
        operators: &Operators,
        work: &mut Work,
        batch: usize,
        y: &Memory<f32>,
        step: f64,
        stopping: &Stopping,
        start: Start,
        z: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let (gpu, map, resolvent) = (&self.gpu, &operators.map, operators.resolvent()?);
        let states = batch * operators.len();
        let grid = Grid::entries(states);
        // The state of the iteration is where the answer will be.
        let Work { iterates: [u, _], constant, samples, waves, .. } = work;
        // k = C x + t y + (t - 1) b with x = t y + (1 + t) b.
        let parts = [combination(map, step, 1.0 + step), combination(map, step, step - 1.0)];
        let iteration = Iteration { gpu, operators, resolvent, batch, step, slopes: None, x: y, parts };
        // A step from zero is known to give the constant.
        let from_constant = matches!(start, Start::Constant(0.0)) && leaves_zero(map);
        iteration.begin(waves, constant, from_constant, [&mut *z, &mut *u])?;
        let (factor, shift) = combination(map, 0.0, 1.0);
        match start {
            _ if from_constant => {}
            Start::Constant(value) => {
                let value = value as f32 - shift;
                launch!(gpu, "fourier_affine", grid, -factor, y, value, false, &mut *z, states)?;
            }
            Start::Given => {
                launch!(gpu, "fourier_affine", grid, -factor, y, -shift, true, &mut *z, states)?;
            }
        }
        let problem = operators.splitting_problem(batch, true, stopping, y);
        iteration.run(&problem, samples, reports, waves, (constant, from_constant), [&mut *z, &mut *u])?;
        let (constants, none, t) = (&operators.constants, None::<&Memory<f32>>, step as f32);
        launch!(gpu, "fourier_answer", grid, constants, t, none, factor, y, shift, z, states)
    }

    /// Solves `g = W' D g + v`, by the slopes of the linearisation, or at a kink by those at the solution `z`, where it may be `q = D g` that
    /// is wanted.
    #[allow(clippy::too_many_arguments)] // as above
    pub(super) fn fourier_adjoint(
        &self,
        operators: &Operators,
        work: &mut Work,
        batch: usize,
        at_kink: Option<(&Memory<f32>, Answer)>,
        v: &Memory<f32>,
        step: f64,
        stopping: &Stopping,
        g: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let (gpu, resolvent) = (&self.gpu, operators.resolvent()?);
        let Work { iterates: [u, _], constant, samples, waves, linearisation, .. } = work;
        let slopes = match at_kink {
            Some((z, _)) => Slopes::AtKink(z),
            None => Slopes::Any(&linearisation.slopes),
        };
        let (states, t) = (batch * operators.len(), step as f32);
        let grid = Grid::entries(states);
        // k = t (C' v + v), which is also where the iteration starts.
        let (slopes, parts) = (Some(slopes), [(t, 0.0); 2]);
        let iteration = Iteration { gpu, operators, resolvent, batch, step, slopes, x: v, parts };
        iteration.begin(waves, constant, true, [&mut *g, &mut *u])?;
        let problem = operators.splitting_problem(batch, true, stopping, v);
        iteration.run(&problem, samples, reports, waves, (constant, true), [&mut *g, &mut *u])?;
        // The gradients of the weights come next and need room.
        waves.spectra.iter_mut().for_each(Memory::release);
        let Some((z, answer)) = at_kink else {
            let (constants, slopes) = (&operators.constants, &linearisation.slopes);
            return launch!(gpu, "fourier_answer", grid, constants, t, slopes, 0.0f32, v, 0.0f32, g, states);
        };
        // What was iterated is g (d + t (1 - d)), d the slope.
        let d = operators.kink().unwrap_or(1.0);
        let (gain, slope) = (1.0 / (d + t * (1.0 - d)), if answer == Answer::Q { d } else { 1.0 });
        launch!(gpu, "fourier_answer_at_kink", grid, z, gain, slope, g, states)
    }
}

/// What multiplies the injection, and what is added, when `inner y + outer b` is formed; `b` is what is added outside the activation.
fn combination(map: &ShapedMap, inner: f64, outer: f64) -> (f32, f32) {
    let factor = if map.injection == Injection::Inner { inner } else { outer };
    (factor as f32, (outer * map.shift) as f32)
}

/// What to work on: all samples, or those that are flagged.
type Flags<'a> = Option<&'a Memory<u32>>;

impl Iteration<'_> {
    pub fn plane(&self) -> Plane {
        let shape = &self.resolvent.shape;
        Plane {
            batch: self.batch as u32,
            height: shape.height as u32,
            width: shape.width as u32,
            half: shape.half() as u32,
            channels: shape.units as u32,
            padded: shape.padded() as u32,
        }
    }

    /// Complex numbers in the spectra of all samples.
    fn spectrum_len(&self) -> usize {
        self.batch * self.resolvent.shape.frequencies() * self.resolvent.shape.padded()
    }

    /// Whether products take the places of what they are products of.
    fn multiplies_in_place(&self) -> bool {
        self.resolvent.shape.padded() <= IN_PLACE
    }

    /// Room for the solve, and `g <- k`, if the iteration starts there. Without whole images, `constant <- k`, and `u` is scratch memory.
    fn begin(
        &self,
        waves: &mut Waves,
        constant: &mut Memory<f32>,
        starts_there: bool,
        [g, u]: [&mut Memory<f32>; 2],
    ) -> Result<()> {
        let (states, planes) = (self.batch * self.operators.len(), self.planes());
        let count = if planes.is_some() && self.multiplies_in_place() { 1 } else { 2 };
        for spectrum in &mut waves.spectra[..count] {
            spectrum.reserve(self.spectrum_len())?;
        }
        if let Some((planes, _)) = planes {
            return if starts_there { self.image_of_planes(planes, waves, g) } else { Ok(()) };
        }
        constant.reserve(states)?;
        u.reserve(states)?;
        waves.parts.reserve(self.batch * self.blocks())?;
        let (grid, x, [(a, b), (c, d)]) = (Grid::entries(states), self.x, self.parts);
        launch!(self.gpu, "fourier_affine", grid, a, x, b, false, &mut *u, states)?;
        self.rows(u, waves, None)?;
        self.apply(waves, None)?;
        self.rows_back(waves, constant, None)?;
        launch!(self.gpu, "fourier_affine", grid, c, x, d, true, &mut *constant, states)?;
        if starts_there { g.copy_from(constant, states) } else { Ok(()) }
    }

    /// What the equation is given, for the kernels.
    pub fn source(&self) -> Source {
        let [(a, b), (c, d)] = self.parts;
        Source { x: self.x.address_of(0), before: [a, b], after: [c, d] }
    }

    /// Rows that a block of a kernel for rows has, and how many blocks a sample has then.
    fn row_blocks(&self) -> (usize, usize) {
        let (height, pairs) = (self.resolvent.shape.height, self.resolvent.shape.padded() / 2);
        let blocks = height.div_ceil((THREADS as usize / pairs).max(1));
        (height.div_ceil(blocks), height.div_ceil(height.div_ceil(blocks)))
    }

    /// Blocks that a sample has in a kernel for entries.
    fn blocks(&self) -> usize {
        self.operators.len().div_ceil(THREADS as usize).clamp(1, 32)
    }

    /// The kernels for lines of a length in registers; of rows only for an even number of channels.
    fn lines(&self, len: usize, rows: bool) -> Option<&'static [&'static str; 4]> {
        let whole = !rows || self.resolvent.shape.units.is_multiple_of(2);
        LINES.iter().find(|(n, _)| *n == len && whole).map(|(_, names)| names)
    }

    /// Images to row spectra.
    fn rows(&self, images: &Memory<f32>, waves: &mut Waves, active: Flags) -> Result<()> {
        let (plane, to) = (self.plane(), &mut waves.spectra[0]);
        if let Some([name, ..]) = self.lines(self.resolvent.shape.width, true) {
            let (rows, blocks) = self.row_blocks();
            let arguments = [(&plane).into(), (rows as u32).into(), images.into(), to.into(), active.into()];
            return self.gpu.launch(name, Grid::blocks(self.batch * blocks), &arguments);
        }
        let (grid, turns) = (Grid::entries(to.len()), &self.resolvent.turns[1]);
        launch!(self.gpu, "fourier_rows_any", grid, &plane, turns, images, to, active)
    }

    /// Row spectra to images.
    fn rows_back(&self, waves: &Waves, images: &mut Memory<f32>, active: Flags) -> Result<()> {
        let (plane, from) = (self.plane(), &waves.spectra[0]);
        if let Some([_, name, ..]) = self.lines(self.resolvent.shape.width, true) {
            let (rows, blocks) = self.row_blocks();
            let arguments =
                [(&plane).into(), (rows as u32).into(), from.into(), images.into(), active.into()];
            return self.gpu.launch(name, Grid::blocks(self.batch * blocks), &arguments);
        }
        let (grid, turns) = (Grid::entries(self.batch * self.operators.len()), &self.resolvent.turns[1]);
        launch!(self.gpu, "fourier_rows_back_any", grid, &plane, turns, from, images, active)
    }

    /// Row spectra to spectra, or back.
    fn columns(&self, waves: &mut Waves, back: bool, active: Flags) -> Result<()> {
        let (plane, shape) = (self.plane(), &self.resolvent.shape);
        let [from, to] = &mut waves.spectra;
        if let Some(names) = self.lines(shape.height, false) {
            let grid = Grid::entries(self.batch * shape.half() * shape.padded());
            let arguments = [(&plane).into(), (&*from).into(), (&*to).into(), active.into()];
            self.gpu.launch(names[2 + usize::from(back)], grid, &arguments)?;
        } else {
            let turns = &self.resolvent.turns[0];
            let grid = Grid::entries(from.len());
            launch!(self.gpu, "fourier_columns_any", grid, &plane, turns, back, &*from, to, active)?;
        }
        waves.swap();
        Ok(())
    }

    /// The spectra at each frequency times its matrix.
    pub fn product(&self, waves: &mut Waves, sent: Sent, active: Flags) -> Result<()> {
        let (plane, shape) = (self.plane(), &self.resolvent.shape);
        let matrices = &self.resolvent.matrices;
        let (outputs, name, exact) = PRODUCTS
            .iter()
            .find(|(most, ..)| shape.padded() <= *most)
            .unwrap_or(&PRODUCTS[PRODUCTS.len() - 1]);
        let grid = Grid(
            shape.frequencies() as u32,
            self.batch.div_ceil(PRODUCT_SAMPLES) as u32,
            shape.padded().div_ceil(*outputs) as u32,
        );
        let ([current, next], flows) = (waves.waters(), (sent != Sent::All).then_some(&waves.flows));
        let after_half = sent == Sent::AfterHalf;
        let in_place = after_half || self.multiplies_in_place();
        let to = if in_place { current } else { next };
        let from = if after_half { waves.beside(self) } else { current };
        let changes = self.changes_product().filter(|_| sent != Sent::All);
        let some_are_whole = changes.is_none() || sent == Sent::Either;
        if some_are_whole && shape.padded() == *outputs {
            // As many channels have a kernel for changes, so these are not this one's.
            let arguments =
                [(&plane).into(), matrices.into(), (&from).into(), (&to).into(), flows.into(), active.into()];
            // The matrix in halves, twice for its real form.
            let shared = (2 * outputs * outputs * size_of::<Wave>()) as u32;
            self.gpu.launch_blocks(exact, grid, Block { threads: THREADS, shared }, &arguments)?;
        } else if some_are_whole {
            let arguments: [Argument; 7] = [
                (&plane).into(),
                matrices.into(),
                changes.is_none().into(),
                (&from).into(),
                (&to).into(),
                flows.into(),
                active.into(),
            ];
            self.gpu.launch(name, grid, &arguments)?;
        }
        if let Some(product) = changes {
            let grid = Grid(grid.0, grid.1, product.blocks);
            let arguments =
                [(&plane).into(), matrices.into(), (&from).into(), (&to).into(), flows.into(), active.into()];
            // A block's part of the matrix, as it is and in halves, twice for its real form.
            let part = shape.padded() * shape.padded() / product.blocks as usize * size_of::<Wave>();
            let block = Block { threads: product.threads, shared: 2 * part as u32 };
            let name = if after_half { product.resumed } else { product.name };
            self.gpu.launch_blocks(name, grid, block, &arguments)?;
        }
        if !in_place {
            waves.swap();
        }
        Ok(())
    }

    /// The kernel for products of changes, if there is one.
    pub fn changes_product(&self) -> Option<&'static ChangesProduct> {
        CHANGES.iter().find(|product| product.channels == self.resolvent.shape.padded())
    }

    /// Row spectra to those of the image under `C`.
    fn apply(&self, waves: &mut Waves, active: Flags) -> Result<()> {
        self.columns(waves, false, active)?;
        self.product(waves, Sent::All, active)?;
        self.columns(waves, true, active)
    }

    /// Iterates from `g` until every sample has ended; `u` is scratch memory.
    fn run(
        &self,
        problem: &Problem,
        samples: &mut SampleMemory,
        reports: &mut Memory<ReportRow>,
        waves: &mut Waves,
        (k, starts_at_k): (&Memory<f32>, bool),
        [g, u]: [&mut Memory<f32>; 2],
    ) -> Result<()> {
        if let Some(planes) = self.planes() {
            return self.run_planes(planes, problem, samples, reports, waves, starts_at_k, g);
        }
        let (rule, table) = problem.begin(samples, reports)?;
        let (gpu, batch, constants) = (self.gpu, self.batch, &self.operators.constants);
        let (states, blocks, by) = (batch * self.operators.len(), self.blocks(), self.reflection(PART));
        let slopes = match self.slopes {
            Some(Slopes::Any(slopes)) => Some(slopes),
            Some(Slopes::AtKink(_)) => {
                return Err(EngineError::Invalid("slopes at a kink are for whole images".into()));
            }
            None => None,
        };
        let grid = Grid::entries(states);
        launch!(gpu, "fourier_reflect", grid, constants, &by, slopes, &*g, &mut *u, states)?;
        self.rows(u, waves, None)?;
        let together = problem.stopping.extent == Extent::WholeBatch;
        for iteration in 1..=rule.max_iterations {
            let active = &samples.active;
            self.apply(waves, Some(active))?;
            self.rows_back(waves, u, Some(active))?;
            let (parts, measure) = (&mut waves.parts, rule.measure);
            launch!(
                gpu,
                "fourier_advance",
                Grid::blocks(batch * blocks),
                constants,
                &by,
                measure,
                blocks as u32,
                &mut *u,
                k,
                slopes,
                &mut *g,
                parts,
                active
            )?;
            self.rows(u, waves, Some(active))?;
            let (grid, count, n) = (Grid::threads(batch), blocks as u32, batch as u32);
            launch!(gpu, "conclude_waves", grid, &rule, iteration, &table, &waves.parts, count, n)?;
            if together {
                launch!(gpu, "conclude_together", Grid::blocks(1), &rule, iteration, &table, n)?;
            }
            if iteration.is_multiple_of(LOOK) && samples.all_ended()? {
                break;
            }
        }
        Ok(())
    }

    /// What the proximal step is made of, in an iteration that goes a part of the way.
    pub fn reflection(&self, part: f32) -> Reflection {
        let t = self.step;
        let factor = match self.operators.map.activation {
            Activation::LeakyRelu { slope } if slope != 0.0 => slope / (t + (1.0 - t) * slope),
            Activation::Identity => 1.0,
            _ => 0.0,
        };
        Reflection { t: t as f32, factor: factor as f32, part }
    }
}
