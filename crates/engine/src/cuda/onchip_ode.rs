//! Integrations in one launch, everything of a sample on chip (`kernels/onchip_ode.cuh`), and back: for a tanh or ReLU of 48 channels of 32 x 32 or 32
//! of 28 x 28, zero padded, on compute capability 9.0. All others take the general path (`integrate.rs`); answers are the same within the
//! tolerance. `SUBDEQ_CUDA_ONCHIP=0` in the environment leaves all to it.
//!
//! What is remembered of the first steps is a piece of memory for each, the same for all samples; of later ones the states before them, from which they
//! are made again. Which of the two a step is depends on its number alone, so that a sample's bits do not depend on the others. How many steps
//! there will be nobody knows: where one sample needs more than there is room for, all are integrated again.

use std::sync::Arc;

use super::gpu::{Block, Gpu, Grid, Memory};
use super::integrate::{NO_ROOM, ReportRow};
use super::kernel::Passed;
use super::plan::Operators;
use super::product::add_parts;
use crate::cpu::ode::tableau::{A, ERROR, STAGES};
use crate::{Activation, OdeTolerance, Operator, Padding, Result, ShapedMap};

/// Steps that have a piece.
const KEPT: usize = 8;
/// Where the piece of a step is that is made again.
const AGAIN: usize = KEPT + 1;
/// Steps that there is room for at first.
const FIRST_ROOM: usize = 3;
/// Blocks that share the gradient of the weights: as many as an H200 runs at once.
const GRADIENT_BLOCKS: usize = 132;

/// The kernels for one shape of states.
#[derive(Debug)]
struct Kernels {
    file: &'static str,
    channels: usize,
    side: usize,
    /// Blocks that have a sample together: `OnchipTiles::CL`.
    cluster: u32,
    /// `THREADS` and `SHARED` of `OdeTiles`, and of `OdeGradient`.
    block: Block,
    gradient_block: Block,
    forward: &'static str,
    back: &'static str,
    gradient: &'static str,
}

static KERNELS: [Kernels; 2] = [
    Kernels {
        file: "onchip_ode_48_32",
        channels: 48,
        side: 32,
        cluster: 8,
        block: Block { threads: 512, shared: 227_008 },
        gradient_block: Block { threads: 384, shared: 202_752 },
        forward: "onchip_ode_forward_48_32",
        back: "onchip_ode_back_48_32",
        gradient: "onchip_ode_gradient_48_32",
    },
    Kernels {
        file: "onchip_ode_32_28",
        channels: 32,
        side: 28,
        cluster: 4,
        block: Block { threads: 512, shared: 222_656 },
        gradient_block: Block { threads: 384, shared: 199_680 },
        forward: "onchip_ode_forward_32_28",
        back: "onchip_ode_back_32_28",
        gradient: "onchip_ode_gradient_32_28",
    },
];

/// This GPU's kernels for integrations of this map.
fn kernels_for(gpu: &Gpu, map: &ShapedMap) -> Result<Option<&'static Kernels>> {
    let switched_off = std::env::var("SUBDEQ_CUDA_ONCHIP").is_ok_and(|value| value == "0");
    let known = matches!(map.activation, Activation::Tanh | Activation::Relu);
    if switched_off || !gpu.is_hopper() || !known {
        return Ok(None);
    }
    let shape = |kernels: &Kernels| {
        let Kernels { channels, side, .. } = *kernels;
        Operator::Conv { channels, height: side, width: side, padding: Padding::Zero, kernel: 3 }
    };
    let Some(kernels) = KERNELS.iter().find(|kernels| shape(kernels) == map.operator) else {
        return Ok(None);
    };
    let Kernels { file, cluster, block, forward, back, .. } = *kernels;
    gpu.load(file, block, cluster)?;
    for name in [forward, back] {
        if gpu.active_clusters(name, block, cluster)? == 0 {
            return Ok(None);
        }
    }
    Ok(Some(kernels))
}

/// `OdePiece` of the kernels: where the stages of a step were taken, as halves, and the stages.
#[derive(Debug)]
struct Piece {
    points: Memory<u32>,
    stages: Memory<f32>,
}

/// Steps of the samples: `OdeSpan` of the kernels.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Span {
    low: u32,
    high: u32,
    place: u32,
}

/// `OdeTableau` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Tableau {
    a: [[f32; STAGES]; STAGES + 1],
    error: [f32; STAGES + 1],
    unused: f32,
}

/// `OnchipOde` of the kernels.
#[derive(Clone, Copy)]
#[repr(C)]
struct Integration {
    weights: u64,
    from: u64,
    to: u64,
    reports: u64,
    pieces: u64,
    sizes: u64,
    later: u64,
    bad: u64,
    first: f64,
    absolute: f64,
    relative: f64,
    tableau: Tableau,
    tries: u32,
    room: u32,
    kept: u32,
    relu: u32,
    span: Span,
    unused: u32,
}

/// `OnchipOdeGradient` of the kernels.
#[repr(C)]
struct WeightGradient {
    reports: u64,
    pieces: u64,
    parts: u64,
    span: Span,
    batch: u32,
}

// SAFETY: `repr(C)`, the fields of the kernels' structs, no padding: 8 addresses, 3 numbers of 8 bytes and 58 of 4 (50 of them in `Tableau`,
// 3 in `Span`), which are 320 bytes; 3 addresses and 4 numbers of 4 bytes, which are 40.
unsafe impl Passed for Integration {}
// SAFETY: as above.
unsafe impl Passed for WeightGradient {}

/// The kernels of an equation, and what they remember of the last integration.
#[derive(Debug)]
pub(super) struct OnChip {
    kernels: &'static Kernels,
    /// Of the first steps, the first stage behind them; then of a step that is made again, and the first stage behind it.
    pieces: [Piece; KEPT + 3],
    /// Their addresses, for the kernels.
    table: Memory<[u64; 2]>,
    sizes: Memory<f64>,
    later: Memory<f32>,
    /// Steps of a sample that there is room for.
    room: usize,
    tolerance: OdeTolerance,
}

impl OnChip {
    /// `None` for equations and GPUs that there are no such kernels for.
    pub fn new(gpu: &Arc<Gpu>, map: &ShapedMap) -> Result<Option<Self>> {
        let Some(kernels) = kernels_for(gpu, map)? else { return Ok(None) };
        Ok(Some(Self {
            kernels,
            pieces: std::array::from_fn(|_| Piece { points: Memory::empty(gpu), stages: Memory::empty(gpu) }),
            table: Memory::empty(gpu),
            sizes: Memory::empty(gpu),
            later: Memory::empty(gpu),
            room: FIRST_ROOM,
            tolerance: OdeTolerance { relative: 1e-3, absolute: 1e-3, max_steps: 1 },
        }))
    }

    /// Makes room for the pieces of some steps, and for the first stage behind them; what they held may be lost.
    fn reserve(&mut self, gpu: &Arc<Gpu>, steps: std::ops::Range<usize>, states: usize) -> Result<()> {
        let before = self.addresses();
        for step in steps.clone() {
            self.pieces[step].points.reserve(STAGES * states)?;
            self.pieces[step].stages.reserve(STAGES * states)?;
        }
        self.pieces[steps.end].stages.reserve(states)?;
        if self.addresses() != before {
            self.table = Memory::upload(gpu, &self.addresses())?;
        }
        Ok(())
    }

    fn addresses(&self) -> [[u64; 2]; KEPT + 3] {
        self.pieces.each_ref().map(|piece| [piece.points.address_of(0), piece.stages.address_of(0)])
    }

    /// What all launches are told.
    fn integration(&self, operators: &Operators, reports: &Memory<ReportRow>) -> Integration {
        let OdeTolerance { relative, absolute, max_steps } = self.tolerance;
        Integration {
            weights: 0,
            from: 0,
            to: 0,
            reports: reports.address_of(0),
            pieces: self.table.address_of(0),
            sizes: self.sizes.address_of(0),
            later: self.later.address_of(0),
            bad: operators.bad.address_of(0),
            first: self.tolerance.first_step(),
            absolute,
            relative,
            tableau: Tableau {
                a: A.map(|row| row.map(|x| x as f32)),
                error: ERROR.map(|x| x as f32),
                unused: 0.0,
            },
            tries: u32::try_from(max_steps).unwrap_or(u32::MAX),
            room: u32::try_from(self.room).unwrap_or(u32::MAX),
            kept: KEPT as u32,
            relu: u32::from(operators.map.activation == Activation::Relu),
            span: Span::default(),
            unused: 0,
        }
    }

    fn launch(&self, gpu: &Gpu, name: &'static str, batch: usize, integration: &Integration) -> Result<()> {
        let grid = Grid::blocks(batch * self.kernels.cluster as usize);
        gpu.launch_blocks(name, grid, self.kernels.block, &[integration.into()])
    }

    /// Integrates from `start` to `end`. Says what the reports say, for which it waits.
    pub fn integrate(
        &mut self,
        operators: &Operators,
        batch: usize,
        start: &Memory<f32>,
        tolerance: &OdeTolerance,
        end: &mut Memory<f32>,
        reports: &mut Memory<ReportRow>,
    ) -> Result<Vec<ReportRow>> {
        let (gpu, states) = (&operators.gpu, batch * operators.len());
        self.tolerance = *tolerance;
        reports.reserve(batch)?;
        loop {
            self.reserve(gpu, 0..self.room.min(KEPT), states)?;
            self.later.reserve(self.room.saturating_sub(KEPT) * states)?;
            self.sizes.reserve(self.room * batch)?;
            let integration = Integration {
                weights: operators.packed_weights(batch, false)?.address_of(0),
                from: start.address_of(0),
                to: end.address_of(0),
                ..self.integration(operators, reports)
            };
            self.launch(gpu, self.kernels.forward, batch, &integration)?;
            let mut rows = vec![ReportRow::default(); batch];
            reports.read(0, &mut rows)?;
            if rows.iter().all(|row| row.outcome != NO_ROOM) {
                return Ok(rows);
            }
            self.room += (self.room / 2).max(1);
        }
    }

    /// Pulls `gradient` back through the steps that were accepted, `steps` of one sample at most; adds to the weight gradient.
    pub fn pull_back(
        &mut self,
        operators: &Operators,
        (batch, steps): (usize, usize),
        reports: &Memory<ReportRow>,
        gradient: &mut Memory<f32>,
        gw: &mut Memory<f32>,
    ) -> Result<()> {
        let gpu = &operators.gpu;
        if steps > KEPT {
            self.reserve(gpu, AGAIN..AGAIN + 1, batch * operators.len())?;
        }
        for step in (KEPT as u32..steps as u32).rev() {
            let span = Span { low: step, high: step + 1, place: AGAIN as u32 };
            let weights = operators.packed_weights(batch, false)?.address_of(0);
            let again = Integration { weights, span, ..self.integration(operators, reports) };
            self.launch(gpu, self.kernels.forward, batch, &again)?;
            self.pull_span(operators, batch, span, reports, gradient, gw)?;
        }
        let span = Span { low: 0, high: KEPT as u32, place: 0 };
        self.pull_span(operators, batch, span, reports, gradient, gw)
    }

    fn pull_span(
        &self,
        operators: &Operators,
        batch: usize,
        span: Span,
        reports: &Memory<ReportRow>,
        gradient: &mut Memory<f32>,
        gw: &mut Memory<f32>,
    ) -> Result<()> {
        let (gpu, kernels) = (&operators.gpu, self.kernels);
        let back = Integration {
            weights: operators.packed_weights(batch, true)?.address_of(0),
            from: gradient.address_of(0),
            to: gradient.address_of(0),
            span,
            ..self.integration(operators, reports)
        };
        self.launch(gpu, kernels.back, batch, &back)?;
        let blocks = GRADIENT_BLOCKS.min(batch * kernels.cluster as usize);
        let len = operators.map.operator.weight_len();
        let parts = Memory::room(gpu, blocks * len)?;
        let sum = WeightGradient {
            reports: reports.address_of(0),
            pieces: self.table.address_of(0),
            parts: parts.address_of(0),
            span,
            batch: batch as u32,
        };
        gpu.launch_blocks(kernels.gradient, Grid::blocks(blocks), kernels.gradient_block, &[(&sum).into()])?;
        add_parts(gpu, &parts, blocks, len, (9, kernels.channels), 1.0, &mut [gw])
    }
}
