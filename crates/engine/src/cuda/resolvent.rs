//! The resolvents `R = (I + t (I - W))^-1` of monotone maps, made on the GPU: of a dense map one matrix, of a circular convolution
//! one for each frequency.

use std::f64::consts::TAU;
use std::sync::Arc;

use super::gpu::{Gpu, Grid, Memory, THREADS};
use super::kernel::{Argument, Passed, launch};
use super::plan::Operators;
use crate::{EngineError, Operator, Result};

/// A complex number on the GPU, in `f64` and in `f32`.
type Complex = [f64; 2];
pub(super) type Wave = [f32; 2];

/// The kernels that invert in the registers of one block: units, and their names.
const TILED: [(usize, &str); 4] =
    [(16, "resolvents_16"), (32, "resolvents_32"), (48, "resolvents_48"), (64, "resolvents_64")];

/// Pivots that are eliminated by a launch.
const TILE: usize = 16;

/// Frequencies of a block of `shifted_symbols`, `WAVES` there.
const WAVES: usize = 8;

/// A map as a circular convolution: dense ones are of images of one pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub units: usize,
    side: usize,
    pub height: usize,
    pub width: usize,
}

impl Shape {
    fn of(operator: &Operator) -> Self {
        match *operator {
            Operator::Dense { n } => Self { units: n, side: 1, height: 1, width: 1 },
            Operator::Conv { channels, height, width, kernel, .. } => {
                Self { units: channels, side: kernel, height, width }
            }
        }
    }

    /// Columns of a real image's spectrum that are not conjugates of others.
    pub fn half(&self) -> usize {
        self.width / 2 + 1
    }

    /// Channels of a spectrum: an even number.
    pub fn padded(&self) -> usize {
        self.units.next_multiple_of(2)
    }

    pub fn frequencies(&self) -> usize {
        self.half() * self.height
    }
}

/// The resolvents of a map for one step. With new weights they are made again, in the same memory.
#[derive(Debug)]
pub(super) struct Resolvent {
    pub shape: Shape,
    step: Option<f64>,
    /// Its one number is not 0 if a weight is not finite or an inverse is wrong.
    pub bad: Memory<u32>,
    /// `R` of a dense map.
    pub plain: Memory<f32>,
    /// `C = (2 R - I) / (height width)` of a convolution, or of its transpose, frequency by frequency, by columns.
    pub matrices: Memory<Wave>,
    /// Whether they are those of the transpose.
    transposed: bool,
    /// `exp(2 pi i j / n)` for the height and the width.
    pub turns: [Memory<Wave>; 2],
    exact_turns: [Memory<Complex>; 2],
}

/// `Circular` of `resolvent.cu`.
#[repr(C)]
struct Weights {
    weights: u64,
    down: u64,
    across: u64,
    step: f64,
    units: u32,
    side: u32,
    height: u32,
    width: u32,
}

/// `Reflections` of `resolvent.cu`.
#[repr(C)]
struct Reflections {
    matrices: u64,
    plain: u64,
    bad: u64,
    padded: u32,
    unused: u32,
}

// SAFETY: `repr(C)`, the fields of the structs in `resolvent.cu`, no padding: 48 and 32 bytes are the sums of their fields.
unsafe impl Passed for Weights {}
// SAFETY: as above.
unsafe impl Passed for Reflections {}

impl Resolvent {
    fn new(gpu: &Arc<Gpu>, operator: &Operator) -> Result<Self> {
        let shape = Shape::of(operator);
        let turn = |n: usize| {
            move |j: usize| {
                let (sin, cos) = (TAU * j as f64 / n as f64).sin_cos();
                [cos, sin]
            }
        };
        let exact = [shape.height, shape.width].map(|n| (0..n).map(turn(n)).collect::<Vec<Complex>>());
        let rounded =
            exact.each_ref().map(|turns| turns.iter().map(|z| z.map(|x| x as f32)).collect::<Vec<Wave>>());
        let [down, across] = exact;
        let [down32, across32] = rounded;
        Ok(Self {
            shape,
            step: None,
            bad: Memory::zeros(gpu, 1)?,
            plain: Memory::empty(gpu),
            matrices: Memory::empty(gpu),
            transposed: false,
            turns: [Memory::upload(gpu, &down32)?, Memory::upload(gpu, &across32)?],
            exact_turns: [Memory::upload(gpu, &down)?, Memory::upload(gpu, &across)?],
        })
    }

    /// Weights have changed.
    pub fn forget(&mut self) {
        self.step = None;
    }

    /// Puts the inversion for these weights on the stream.
    fn make(
        &mut self,
        gpu: &Arc<Gpu>,
        dense: bool,
        weights: &Memory<f32>,
        bad: &Memory<u32>,
        step: f64,
    ) -> Result<()> {
        let Shape { units, side, height, width } = self.shape;
        let (padded, frequencies) = (self.shape.padded(), self.shape.frequencies());
        self.bad.copy_from(bad, 1)?;
        if dense {
            self.plain.reserve(units * units)?;
        } else {
            self.matrices.reserve(frequencies * padded * padded)?;
        }
        let convolution = Weights {
            weights: weights.address_of(0),
            down: self.exact_turns[0].address_of(0),
            across: self.exact_turns[1].address_of(0),
            step,
            units: units as u32,
            side: side as u32,
            height: height as u32,
            width: width as u32,
        };
        let to = Reflections {
            matrices: self.matrices.address_of(0),
            plain: self.plain.address_of(0),
            bad: self.bad.address_of(0),
            padded: padded as u32,
            unused: 0,
        };
        // As large as the states of a batch may be, and of no use during a solve.
        let mut matrices = Memory::room(gpu, frequencies * units * units)?;
        let parts = frequencies.div_ceil(WAVES);
        let grid = Grid::blocks((units * units).div_ceil(THREADS as usize) * parts);
        launch!(gpu, "shifted_symbols", grid, &convolution, &mut matrices, frequencies as u32, parts as u32)?;
        if let Some((_, kernel)) = TILED.iter().find(|(most, _)| units <= *most) {
            let arguments = [Argument::from(&convolution), (&matrices).into(), Argument::from(&to)];
            gpu.launch(kernel, Grid::blocks(frequencies), &arguments)?;
        } else {
            self.eliminate(gpu, matrices, &convolution, &to)?;
        }
        (self.step, self.transposed) = (Some(step), false);
        Ok(())
    }

    /// Puts the matrices of `C`, or those of its transpose, where a solve finds them. There is room for one kind: a training step goes
    /// forward once and back once with each.
    fn turn(&mut self, gpu: &Gpu, transposed: bool) -> Result<()> {
        if self.transposed == transposed || self.matrices.len() == 0 {
            return Ok(());
        }
        let (padded, len) = (self.shape.padded() as u32, self.matrices.len());
        launch!(gpu, "turn_matrices", Grid::entries(len), padded, &self.matrices, len)?;
        self.transposed = transposed;
        Ok(())
    }

    /// Inverts matrices that do not fit into a block, a launch for some pivots.
    fn eliminate(
        &mut self,
        gpu: &Arc<Gpu>,
        mut matrices: Memory<Complex>,
        convolution: &Weights,
        to: &Reflections,
    ) -> Result<()> {
        let (n, frequencies) = (self.shape.units, self.shape.frequencies());
        let mut next = Memory::room(gpu, frequencies * n * n)?;
        // Of the probe.
        let mut images = Memory::<Complex>::room(gpu, frequencies * n)?;
        let (blocks, bands) = (Grid::blocks(frequencies), Grid::blocks(frequencies * n.div_ceil(TILE)));
        let none = None::<&Memory<u32>>;
        launch!(gpu, "probe_matrices", blocks, n as u32, &matrices, &mut images, none)?;
        for pivots in (0..n as u32).step_by(TILE) {
            launch!(gpu, "eliminate", bands, n as u32, pivots, &matrices, &mut next)?;
            std::mem::swap(&mut matrices, &mut next);
        }
        launch!(gpu, "probe_matrices", blocks, n as u32, &matrices, &mut images, &mut self.bad)?;
        let side = if to.plain == 0 { to.padded as usize } else { n };
        let len = frequencies * side * side;
        launch!(gpu, "put_resolvents", Grid::entries(len), convolution, &matrices, to, len)
    }
}

impl Operators {
    /// Makes the resolvents for a step, if they are not there yet; of a convolution those of its transpose, if `transposed`.
    pub fn prepare_resolvent(&mut self, step: f64, transposed: bool) -> Result<()> {
        let dense = matches!(self.map.operator, Operator::Dense { .. });
        let resolvent = match &mut self.resolvent {
            Some(resolvent) => resolvent,
            none => none.insert(Resolvent::new(&self.gpu, &self.map.operator)?),
        };
        if resolvent.step != Some(step) {
            resolvent.make(&self.gpu, dense, &self.weights, &self.bad, step)?;
        }
        resolvent.turn(&self.gpu, transposed)
    }

    /// What [`Self::prepare_resolvent`] made.
    pub fn resolvent(&self) -> Result<&Resolvent> {
        self.resolvent
            .as_ref()
            .filter(|resolvent| resolvent.step.is_some())
            .ok_or_else(|| EngineError::Invalid("the resolvent of these weights was not made".into()))
    }
}
