//! Peaceman-Rachford's splitting of circular convolutions, in the frequency domain: the method of `cpu/fourier`, with its formulas.
//!
//! The state of the iteration is `g`, the argument of the proximal step: `u = 2 prox_t(g) - g`, `g <- C u + k`, `C = 2 R - I`. It is
//! updated in place: what a sample's state is when the sample ends is left alone from then on.

use std::sync::Arc;

use super::Cuda;
use super::equilibria::ReportRow;
use super::gpu::{Gpu, Grid, Memory, THREADS};
use super::kernel::{Argument, Passed, launch};
use super::plan::{Operators, Work};
use super::resolvent::{Resolvent, Wave};
use super::solve::{Distance, LOOK, Problem, SampleMemory};
use crate::cpu::leaves_zero;
use crate::{Activation, Extent, Injection, Map, Measure, Result, Start, Stopping};

/// The lengths of lines that are transformed in a thread's registers, with the kernels: rows, rows back, columns, columns back.
const LINES: [(usize, [&str; 4]); 4] = [
    (8, ["fourier_rows_8", "fourier_rows_back_8", "fourier_columns_8", "fourier_columns_back_8"]),
    (28, ["fourier_rows_28", "fourier_rows_back_28", "fourier_columns_28", "fourier_columns_back_28"]),
    (32, ["fourier_rows_32", "fourier_rows_back_32", "fourier_columns_32", "fourier_columns_back_32"]),
    (64, ["fourier_rows_64", "fourier_rows_back_64", "fourier_columns_64", "fourier_columns_back_64"]),
];
/// The widths for which one kernel does all that is done to rows: for an adjoint, a kinked activation, and tanh with step 1.
const STEPS: [(usize, [&str; 3]); 2] = [
    (28, ["fourier_step_slopes_28", "fourier_step_kinked_28", "fourier_step_tanh_28"]),
    (32, ["fourier_step_slopes_32", "fourier_step_kinked_32", "fourier_step_tanh_32"]),
];
/// The kernels of the products, by their outputs; and the samples of a block.
const PRODUCTS: [(usize, &str); 4] = [
    (16, "fourier_product_16"),
    (32, "fourier_product_32"),
    (48, "fourier_product_48"),
    (64, "fourier_product_64"),
];
const PRODUCT_SAMPLES: usize = 128;
/// Those of changes on tensor cores, by their outputs.
const CHANGES: [(usize, &str); 4] = [
    (16, "fourier_changes_16"),
    (32, "fourier_changes_32"),
    (48, "fourier_changes_48"),
    (64, "fourier_changes_64"),
];

/// Spectra on their way, and how far each part of a sample went.
#[derive(Debug)]
pub(super) struct Waves {
    /// The current one is the first.
    spectra: [Memory<Wave>; 2],
    /// The same of samples that send only changes, as `f16`.
    changes: [Memory<u32>; 2],
    /// What each sample sends.
    flows: Memory<Flow>,
    parts: Memory<Distance>,
}

/// `Flow` of `fourier.cu`: the host never looks into it.
type Flow = [f64; 3];

/// `Waters` of `fourier.cu`.
#[repr(C)]
struct Waters {
    whole: u64,
    changes: u64,
}

impl Waves {
    pub fn new(gpu: &Arc<Gpu>) -> Self {
        Self {
            spectra: [Memory::empty(gpu), Memory::empty(gpu)],
            changes: [Memory::empty(gpu), Memory::empty(gpu)],
            flows: Memory::empty(gpu),
            parts: Memory::empty(gpu),
        }
    }

    /// The current spectra, and where the next go.
    fn waters(&self) -> [Waters; 2] {
        [0, 1]
            .map(|k| Waters { whole: self.spectra[k].address_of(0), changes: self.changes[k].address_of(0) })
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
struct Plane {
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
struct Reflection {
    t: f32,
    factor: f32,
}

// SAFETY: `repr(C)`, the fields of the structs of the same names in `fourier.cu`, no padding: 24, 8 and 16 bytes.
unsafe impl Passed for Plane {}
// SAFETY: as above.
unsafe impl Passed for Waters {}
// SAFETY: as above.
unsafe impl Passed for Reflection {}

/// One splitting, forward or adjoint, of a batch.
struct Iteration<'a> {
    gpu: &'a Gpu,
    operators: &'a Operators,
    resolvent: &'a Resolvent,
    batch: usize,
    step: f64,
    /// The adjoint's.
    slopes: Option<&'a Memory<f32>>,
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
        let resolvent = operators.resolvent()?;
        let iteration = Iteration { gpu: &self.gpu, operators, resolvent, batch, step, slopes: None };
        let (map, states) = (&operators.map, batch * operators.len());
        let grid = Grid::entries(states);
        let Work { iterates: [g, u], constant, samples, waves, .. } = work;
        iteration.reserve(waves, [&mut *g, &mut *u, &mut *constant])?;
        // k = C x + t y + (t - 1) b with x = t y + (1 + t) b.
        let (factor, shift) = combination(map, step, 1.0 + step);
        launch!(self.gpu, "fourier_affine", grid, factor, y, shift, false, &mut *u, states)?;
        iteration.image(waves, u, constant)?;
        let (factor, shift) = combination(map, step, step - 1.0);
        launch!(self.gpu, "fourier_affine", grid, factor, y, shift, true, &mut *constant, states)?;
        let (factor, shift) = combination(map, 0.0, 1.0);
        match start {
            // A step from zero is known to give the constant.
            Start::Constant(0.0) if leaves_zero(map) => g.copy_from(constant, states)?,
            Start::Constant(value) => {
                let value = value as f32 - shift;
                launch!(self.gpu, "fourier_affine", grid, -factor, y, value, false, &mut *g, states)?;
            }
            Start::Given => {
                g.copy_from(z, states)?;
                launch!(self.gpu, "fourier_affine", grid, -factor, y, -shift, true, &mut *g, states)?;
            }
        }
        let problem = operators.splitting_problem(batch, true, stopping, y);
        iteration.run(&problem, samples, reports, waves, constant, [&mut *g, &mut *u])?;
        let (constants, none) = (&operators.constants, None::<&Memory<f32>>);
        launch!(
            self.gpu,
            "fourier_answer",
            grid,
            constants,
            step as f32,
            none,
            &*g,
            factor,
            y,
            shift,
            z,
            states
        )
    }

    /// Solves `g = W' D g + v` after linearising.
    #[allow(clippy::too_many_arguments)] // as above
    pub(super) fn fourier_adjoint(
        &self,
        operators: &Operators,
        work: &mut Work,
        batch: usize,
        v: &Memory<f32>,
        step: f64,
        stopping: &Stopping,
        answer: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<()> {
        let resolvent = operators.resolvent()?;
        let Work { iterates: [g, u], constant, samples, waves, linearisation, .. } = work;
        let slopes = Some(&linearisation.slopes);
        let iteration = Iteration { gpu: &self.gpu, operators, resolvent, batch, step, slopes };
        let (states, t) = (batch * operators.len(), step as f32);
        let grid = Grid::entries(states);
        iteration.reserve(waves, [&mut *g, &mut *u, &mut *constant])?;
        // k = t (C' v + v), which is also where the iteration starts.
        launch!(self.gpu, "fourier_affine", grid, t, v, 0.0f32, false, &mut *u, states)?;
        iteration.image(waves, u, constant)?;
        launch!(self.gpu, "fourier_affine", grid, t, v, 0.0f32, true, &mut *constant, states)?;
        g.copy_from(constant, states)?;
        let problem = operators.splitting_problem(batch, true, stopping, v);
        iteration.run(&problem, samples, reports, waves, constant, [&mut *g, &mut *u])?;
        let constants = &operators.constants;
        launch!(
            self.gpu,
            "fourier_answer",
            grid,
            constants,
            t,
            slopes,
            &*g,
            0.0f32,
            v,
            0.0f32,
            answer,
            states
        )
    }
}

/// What multiplies the injection, and what is added, when `inner y + outer b` is formed; `b` is what is added outside the activation.
fn combination(map: &Map, inner: f64, outer: f64) -> (f32, f32) {
    let factor = if map.injection == Injection::Inner { inner } else { outer };
    (factor as f32, (outer * map.shift) as f32)
}

/// What to work on: all samples, or those that are flagged.
type Flags<'a> = Option<&'a Memory<u32>>;

/// The least tolerance at which samples may send changes: rounding to `f16` would show below.
const LEAST_TOLERANCE: f64 = 1e-6;

impl Iteration<'_> {
    fn plane(&self) -> Plane {
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

    fn reserve(&self, waves: &mut Waves, states: [&mut Memory<f32>; 3]) -> Result<()> {
        let shape = &self.resolvent.shape;
        for state in states {
            state.reserve(self.batch * self.operators.len())?;
        }
        for spectrum in &mut waves.spectra {
            spectrum.reserve(self.batch * shape.frequencies() * shape.padded())?;
        }
        waves.parts.reserve(self.batch * self.row_blocks().1.max(self.blocks()))
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
    fn columns(&self, waves: &mut Waves, back: bool, changes: bool, active: Flags) -> Result<()> {
        let (plane, shape) = (self.plane(), &self.resolvent.shape);
        if let Some(names) = self.lines(shape.height, false) {
            let grid = Grid::entries(self.batch * shape.half() * shape.padded());
            let ([from, to], flows) = (waves.waters(), changes.then_some(&waves.flows));
            let arguments = [(&plane).into(), (&from).into(), (&to).into(), flows.into(), active.into()];
            self.gpu.launch(names[2 + usize::from(back)], grid, &arguments)?;
        } else {
            let turns = &self.resolvent.turns[0];
            let [from, to] = &mut waves.spectra;
            let grid = Grid::entries(from.len());
            launch!(self.gpu, "fourier_columns_any", grid, &plane, turns, back, &*from, to, active)?;
        }
        waves.swap();
        Ok(())
    }

    /// The spectra at each frequency times its matrix.
    fn product(&self, waves: &mut Waves, changes: bool, active: Flags) -> Result<()> {
        let (plane, shape) = (self.plane(), &self.resolvent.shape);
        let matrices = if self.slopes.is_some() { &self.resolvent.adjoint } else { &self.resolvent.forward };
        let (outputs, name) = PRODUCTS
            .iter()
            .find(|(most, _)| shape.padded() <= *most)
            .unwrap_or(&PRODUCTS[PRODUCTS.len() - 1]);
        let grid = Grid(
            shape.frequencies() as u32,
            self.batch.div_ceil(PRODUCT_SAMPLES) as u32,
            shape.padded().div_ceil(*outputs) as u32,
        );
        let ([from, to], flows) = (waves.waters(), changes.then_some(&waves.flows));
        let tiles = self.tiles().filter(|_| changes);
        let arguments: [Argument; 7] = [
            (&plane).into(),
            matrices.into(),
            tiles.is_none().into(),
            (&from).into(),
            (&to).into(),
            flows.into(),
            active.into(),
        ];
        self.gpu.launch(name, grid, &arguments)?;
        if let Some((name, tiles)) = tiles {
            let arguments =
                [(&plane).into(), tiles.into(), (&from).into(), (&to).into(), flows.into(), active.into()];
            self.gpu.launch(name, grid, &arguments)?;
        }
        waves.swap();
        Ok(())
    }

    /// The matrices for tensor cores, and the kernel, if there are any.
    fn tiles(&self) -> Option<(&'static str, &Memory<u32>)> {
        let Resolvent { forward_tiles, adjoint_tiles, shape, .. } = self.resolvent;
        let tiles = if self.slopes.is_some() { adjoint_tiles } else { forward_tiles };
        let (_, name) = CHANGES.iter().find(|(outputs, _)| *outputs == shape.padded())?;
        (tiles.len() > 0).then_some((*name, tiles))
    }

    /// Row spectra to those of the image under `C`; `changes`: samples may have sent changes only.
    fn apply(&self, waves: &mut Waves, changes: bool, active: Flags) -> Result<()> {
        self.columns(waves, false, changes, active)?;
        self.product(waves, changes, active)?;
        self.columns(waves, true, changes, active)
    }

    /// `to <- C from`, for all samples.
    fn image(&self, waves: &mut Waves, from: &Memory<f32>, to: &mut Memory<f32>) -> Result<()> {
        self.rows(from, waves, None)?;
        self.apply(waves, false, None)?;
        self.rows_back(waves, to, None)
    }

    /// Iterates from `g` until every sample has ended; `u` is scratch memory.
    fn run(
        &self,
        problem: &Problem,
        samples: &mut SampleMemory,
        reports: &mut Memory<ReportRow>,
        waves: &mut Waves,
        k: &Memory<f32>,
        [g, u]: [&mut Memory<f32>; 2],
    ) -> Result<()> {
        let (rule, table) = problem.begin(samples, reports)?;
        let (gpu, batch, constants) = (self.gpu, self.batch, &self.operators.constants);
        let states = batch * self.operators.len();
        let by = self.reflection();
        launch!(
            gpu,
            "fourier_reflect",
            Grid::entries(states),
            constants,
            &by,
            self.slopes,
            &*g,
            &mut *u,
            states
        )?;
        self.rows(u, waves, None)?;
        let together = problem.stopping.extent == Extent::WholeBatch;
        let whole = self.whole_step();
        let blocks = if whole.is_some() { self.row_blocks().1 } else { self.blocks() };
        let changes = whole.is_some() && self.sends_changes(problem.stopping);
        if changes {
            self.begin_changes(waves)?;
        }
        for iteration in 1..=rule.max_iterations {
            let active = &samples.active;
            self.apply(waves, changes, Some(active))?;
            if let Some(name) = whole {
                let (plane, rows) = (self.plane(), self.row_blocks().0 as u32);
                let ([rows_of, _], flows) = (waves.waters(), changes.then_some(&waves.flows));
                let arguments: [Argument; 12] = [
                    (&plane).into(),
                    rows.into(),
                    constants.into(),
                    (&by).into(),
                    rule.measure.into(),
                    (&rows_of).into(),
                    k.into(),
                    self.slopes.into(),
                    (&mut *g).into(),
                    (&waves.parts).into(),
                    flows.into(),
                    active.into(),
                ];
                gpu.launch(name, Grid::blocks(batch * blocks), &arguments)?;
            } else {
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
                    self.slopes,
                    &mut *g,
                    parts,
                    active
                )?;
                self.rows(u, waves, Some(active))?;
            }
            let (grid, count, n) = (Grid::threads(batch), blocks as u32, batch as u32);
            let (parts, flows) = (&waves.parts, changes.then_some(&waves.flows));
            let len = self.operators.len();
            launch!(gpu, "conclude_waves", grid, &rule, iteration, &table, parts, count, n, flows, len)?;
            if together {
                launch!(gpu, "conclude_together", Grid::blocks(1), &rule, iteration, &table, n)?;
            }
            if iteration.is_multiple_of(LOOK) && samples.all_ended()? {
                break;
            }
        }
        Ok(())
    }

    /// Whether most iterations send only changes: where every sample ends by itself on its relative residual.
    fn sends_changes(&self, stopping: &Stopping) -> bool {
        stopping.extent == Extent::PerSample
            && stopping.measure == Measure::Relative
            && stopping.tolerance >= LEAST_TOLERANCE
            && self.lines(self.resolvent.shape.height, false).is_some()
    }

    /// The first iterations send everything.
    fn begin_changes(&self, waves: &mut Waves) -> Result<()> {
        let len = waves.spectra[0].len();
        waves.changes.iter_mut().try_for_each(|changes| changes.reserve(len))?;
        waves.flows.reserve(self.batch)?;
        let (grid, batch) = (Grid::threads(self.batch), self.batch as u32);
        launch!(self.gpu, "begin_flows", grid, &mut waves.flows, batch)
    }

    /// What the proximal step is made of.
    fn reflection(&self) -> Reflection {
        let t = self.step;
        let factor = match self.operators.map.activation {
            Activation::LeakyRelu { slope } if slope != 0.0 => slope / (t + (1.0 - t) * slope),
            Activation::Identity => 1.0,
            _ => 0.0,
        };
        Reflection { t: t as f32, factor: factor as f32 }
    }

    /// The kernel that does all that is done to rows, if there is one.
    fn whole_step(&self) -> Option<&'static str> {
        let kind = match self.operators.map.activation {
            _ if self.slopes.is_some() => 0,
            Activation::Relu | Activation::LeakyRelu { .. } | Activation::Identity => 1,
            Activation::Tanh if self.step == 1.0 => 2,
            _ => return None,
        };
        let shape = &self.resolvent.shape;
        let (_, names) =
            STEPS.iter().find(|(width, _)| *width == shape.width && shape.units.is_multiple_of(2))?;
        Some(names[kind])
    }
}
