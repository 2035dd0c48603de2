//! Plans on a GPU: a map's weights as the kernels read them, and the memory that its solves need.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use super::convolution::{Convolution, LARGEST_SIDE, Norm};
use super::fourier::Waves;
use super::gpu::{Gpu, Grid, Memory};
use super::kernel::{Passed, launch};
use super::not_yet;
use super::onchip::Onchip;
use super::onchip_anderson::{self, TogetherMemory};
use super::product::{Active, Axis, Factor, Lie, Target, multiply};
use super::resolvent::Resolvent;
use super::solve::{Distance, MethodMemory, SampleMemory};
use crate::cpu::packed::check_weights;
use crate::map::{Formula, product_fits};
use crate::{Activation, EngineError, Injection, Operator, PNorm, Result, ShapedMap};

/// A map with its weights on a GPU, and scratch memory, which is allocated when it is first needed and kept.
#[derive(Debug)]
pub struct CudaPlan {
    pub(super) operators: Operators,
    pub(super) work: Work,
    pub(super) batch: usize,
    pub(super) loaded: bool,
}

/// A map and its linear parts.
#[derive(Debug)]
pub(super) struct Operators {
    pub gpu: Arc<Gpu>,
    pub map: ShapedMap,
    pub constants: MapConstants,
    /// The square operators as they were given, one after the other.
    pub weights: Memory<f32>,
    /// `A` and `B`, one after the other; empty for maps without gains.
    gains: Memory<f32>,
    /// Those of a convolution, in the order in which it sums, and transposed.
    packed: [Packed; 2],
    /// Its first number is not 0 if a weight is not finite; the rest is for the kernel that finds it out.
    pub bad: Memory<u32>,
    pub resolvent: Option<Resolvent>,
    /// Kernels for whole solves, where the map has such.
    pub onchip: Option<Onchip>,
    /// Those for Anderson's method: looked up when they are first wanted.
    anderson_on_chip: OnceLock<Option<&'static onchip_anderson::Kernels>>,
}

/// Weights as a convolution reads them.
#[derive(Debug)]
struct Packed {
    room: OnceLock<Memory<f32>>,
    /// Whether other weights have come since they were packed.
    stale: AtomicBool,
}

/// Scratch memory. States lie one after the other; what has planes is `[sample][plane][entry]`.
#[derive(Debug)]
pub(super) struct Work {
    /// Preactivations; for maps with gains, after linearising, what the activation made of them.
    pub u: Memory<f32>,
    /// The same after the gains, or a gradient after the transposed ones.
    pub gained: Memory<f32>,
    /// A gradient for the state.
    pub g: Memory<f32>,
    pub linearisation: Linearisation,
    pub iterates: [Memory<f32>; 2],
    /// The last states of a solve, where they are not the answers yet.
    pub ends: Memory<f32>,
    /// Of the splittings: `b`, `c` or `R t c`, and the solution.
    pub offset: Memory<f32>,
    pub constant: Memory<f32>,
    pub solution: Memory<f32>,
    pub samples: SampleMemory,
    /// Distances of parts of states from their images, where a map's kernels measure them.
    pub measured: Memory<Distance>,
    pub memory: MethodMemory,
    /// Of solves on chip whose samples end together.
    pub together: TogetherMemory,
    /// Of Peaceman-Rachford's splitting of a convolution.
    pub waves: Waves,
}

/// The derivative of a map at one state per sample.
#[derive(Debug)]
pub(super) struct Linearisation {
    pub slopes: Memory<f32>,
    /// The normalised state, the gradient of the norm, the reciprocal norms.
    pub normalised: Memory<f32>,
    gradient: Memory<f32>,
    inverse: Memory<f32>,
}

impl Linearisation {
    /// Of the normalisation, for the kernels.
    pub fn norm(&self) -> Norm {
        Norm::new(&self.normalised, &self.gradient, &self.inverse)
    }
}

/// What the kernels read of a map.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct MapConstants {
    formula: u32,
    activation: u32,
    inner: u32,
    has_power: u32,
    first: f32,
    second: f32,
    base: f32,
    power: f32,
    shift: f32,
    q: f32,
    p: f32,
    e: f32,
    planes: u32,
    units: u32,
    len: u64,
}

// SAFETY: `repr(C)`, the fields of `ShapedMap` in `map.cuh`; 14 fields of 4 bytes and one of 8, without padding.
unsafe impl Passed for MapConstants {}

impl MapConstants {
    fn of(map: &ShapedMap) -> Self {
        let (activation, first, second) = match map.activation {
            Activation::Tanh => (0, 0.0, 0.0),
            Activation::Sigmoid => (1, 0.0, 0.0),
            Activation::Softplus { beta } => (2, beta, 1.0 / beta),
            Activation::Softsign => (3, 0.0, 0.0),
            Activation::HardTanh { lo, hi } => (4, lo, hi),
            Activation::Relu => (5, 0.0, 0.0),
            Activation::LeakyRelu { slope } => (5, slope, 0.0),
            Activation::Identity => (6, 0.0, 0.0),
        };
        let (formula, q, p, e) = match map.formula {
            Formula::Single => (0, 0.0, 0.0, 0.0),
            Formula::SplitSign => (1, 0.0, 0.0, 0.0),
            Formula::Divisive { q } => (2, q, 0.0, 0.0),
            Formula::Rational { q } => (3, q, 0.0, 0.0),
            Formula::PowerRatio { p, e } => (4, 0.0, p, e),
            Formula::Gains => (5, 0.0, 0.0, 0.0),
        };
        Self {
            formula,
            activation,
            inner: u32::from(map.injection == Injection::Inner),
            has_power: u32::from(map.power != 1.0),
            first: first as f32,
            second: second as f32,
            base: map.base as f32,
            power: map.power as f32,
            shift: map.shift as f32,
            q: q as f32,
            p: p as f32,
            e: e as f32,
            planes: planes(map) as u32,
            units: map.operator.units() as u32,
            len: map.operator.state_len() as u64,
        }
    }
}

/// Weights that are brought to a plan, for the kernel: at most four arrays.
#[derive(Default)]
#[repr(C)]
struct WeightTable {
    from: [u64; 4],
    to: [u64; 4],
    len: [u64; 4],
}

// SAFETY: `repr(C)`, twelve fields of 8 bytes, as `Arrays` in `memory.cu`.
unsafe impl Passed for WeightTable {}

/// Operators that are applied to the state: 1, or 2 for the forms with `P` and `N`.
fn planes(map: &ShapedMap) -> usize {
    if map.formula == Formula::Single { 1 } else { 2 }
}

impl CudaPlan {
    pub(super) fn new(gpu: &Arc<Gpu>, map: &ShapedMap, batch: usize) -> Result<Self> {
        if batch == 0 {
            return Err(EngineError::Invalid("a plan for a batch of zero samples".into()));
        }
        if !product_fits(&[batch, map.injection_len(), 64]) {
            return Err(EngineError::Invalid(format!("{batch} samples do not fit into the address space")));
        }
        // The kernels count rows and terms in 32 bits.
        if u32::try_from(batch * map.injection_len()).is_err() {
            return Err(EngineError::Invalid(format!(
                "{batch} samples of {} numbers are more than a GPU's kernels count: use smaller batches",
                map.injection_len()
            )));
        }
        if let Operator::Conv { kernel, .. } = map.operator
            && kernel > LARGEST_SIDE
        {
            return Err(not_yet(&format!(
                "a {kernel}x{kernel} kernel (the most is {LARGEST_SIDE}x{LARGEST_SIDE})"
            )));
        }
        let empty = || Memory::empty(gpu);
        let operators = Operators {
            gpu: gpu.clone(),
            map: *map,
            constants: MapConstants::of(map),
            weights: Memory::zeros(gpu, planes(map) * map.operator.weight_len())?,
            gains: empty(),
            packed: [(); 2].map(|()| Packed { room: OnceLock::new(), stale: AtomicBool::new(true) }),
            bad: Memory::zeros(gpu, 3)?,
            resolvent: None,
            onchip: Onchip::of(gpu, map)?,
            anderson_on_chip: OnceLock::new(),
        };
        let linearisation =
            Linearisation { slopes: empty(), normalised: empty(), gradient: empty(), inverse: empty() };
        let work = Work {
            u: empty(),
            gained: empty(),
            g: empty(),
            linearisation,
            iterates: [empty(), empty()],
            ends: empty(),
            offset: empty(),
            constant: empty(),
            solution: empty(),
            samples: SampleMemory::new(gpu),
            measured: Memory::empty(gpu),
            memory: MethodMemory::new(gpu),
            together: TogetherMemory::new(gpu)?,
            waves: Waves::new(gpu),
        };
        Ok(Self { operators, work, batch, loaded: false })
    }
}

impl Operators {
    pub fn len(&self) -> usize {
        self.map.operator.state_len()
    }

    pub fn planes(&self) -> usize {
        planes(&self.map)
    }

    pub fn has_gains(&self) -> bool {
        self.map.formula == Formula::Gains
    }

    /// Brings the weights, in the order given with [`ShapedMap`], into the order of the kernels. What is not finite is found out by the
    /// GPU, and every solve says so in its reports.
    pub fn load(&mut self, weights: &[&Memory<f32>]) -> Result<()> {
        let map = &self.map;
        check_weights(map, weights.iter().map(|array| array.len()))?;
        if let Some(resolvent) = &mut self.resolvent {
            resolvent.forget();
        }
        let gain_count = if self.has_gains() { 2 } else { 0 };
        let (units, len) = (self.map.operator.units(), self.map.operator.weight_len());
        self.gains.reserve(gain_count * units * units)?;
        let mut table = WeightTable::default();
        for (index, array) in weights.iter().enumerate() {
            table.from[index] = array.address_of(0);
            table.to[index] = match index.checked_sub(gain_count) {
                None => self.gains.address_of(index * units * units),
                Some(k) => self.weights.address_of(k * len),
            };
            table.len[index] = self.map.weight_len(index) as u64;
        }
        launch!(self.gpu, "load_weights", Grid::entries(len), &table, &mut self.bad)?;
        for packed in &mut self.packed {
            packed.stale = AtomicBool::new(true);
        }
        match &mut self.onchip {
            Some(onchip) => onchip.load(&self.gpu, &self.weights),
            None => Ok(()),
        }
    }

    /// The weights as `convolution` reads them, transposed or not: packed when they are first wanted, which solves on chip and in the
    /// frequency domain never do.
    fn packed(&self, convolution: &Convolution, transposed: bool) -> Result<&Memory<f32>> {
        let Packed { room, stale } = &self.packed[usize::from(transposed)];
        let room = match room.get() {
            Some(room) => room,
            None => {
                let made = Memory::room(&self.gpu, convolution.packed_len())?;
                room.get_or_init(|| made)
            }
        };
        if stale.load(Ordering::Relaxed) {
            let len = self.map.operator.weight_len();
            let weights: Vec<_> = (0..self.planes()).map(|k| self.weights.at(k * len)).collect();
            convolution.pack(&self.gpu, &weights, transposed, room)?;
            stale.store(false, Ordering::Relaxed);
        }
        Ok(room)
    }

    /// The same of the convolution of a batch's states.
    pub fn packed_weights(&self, batch: usize, transposed: bool) -> Result<&Memory<f32>> {
        let convolution = self.convolution(batch, 1, 1).expect("a convolution's weights are asked for");
        self.packed(&convolution, transposed)
    }

    pub fn anderson_on_chip(&self) -> Result<Option<&'static onchip_anderson::Kernels>> {
        if let Some(&known) = self.anderson_on_chip.get() {
            return Ok(known);
        }
        let found = onchip_anderson::kernels_for(&self.gpu, &self.map)?;
        Ok(*self.anderson_on_chip.get_or_init(|| found))
    }

    /// A convolution of the state, from `planes_in` to `planes_out` images; `None` for dense maps.
    pub fn convolution(&self, batch: usize, planes_in: usize, planes_out: usize) -> Option<Convolution> {
        let Operator::Conv { channels, height, width, padding, kernel } = self.map.operator else {
            return None;
        };
        Some(Convolution {
            batch,
            height,
            width,
            side: kernel,
            padding,
            inputs: channels,
            outputs: channels,
            planes_in,
            planes_out,
            normalised: self.map.norm == Some(PNorm::Inf) && !self.has_gains(),
        })
    }

    /// `u <- W z`, or `P z` and `N z`.
    pub fn forward(
        &self,
        batch: usize,
        z: &Memory<f32>,
        u: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (len, planes) = (self.len(), self.planes());
        u.reserve(batch * planes * len)?;
        if let Some(convolution) = self.convolution(batch, 1, planes) {
            let packed = self.packed(&convolution, false)?;
            return convolution.convolve(&self.gpu, z, packed, None, u, active);
        }
        let rows = Factor::new(z, 0, Axis::plain(len), Axis::plain(1));
        let columns = Factor::new(&self.weights, 0, Axis::plain(len), Axis::plain(1));
        let target = Target::new(u, 0, Axis::plain(planes * len), Axis::plain(1));
        let active = active.map(|flags| Active { flags, rows: 1 });
        multiply(&self.gpu, Lie::Along, rows, columns, None, target, [batch, planes * len, len], active)
    }

    /// `g <- W' q`, or `P' q0 + N' q1`.
    pub fn transposed(
        &self,
        batch: usize,
        q: &Memory<f32>,
        g: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (len, planes) = (self.len(), self.planes());
        g.reserve(batch * len)?;
        if let Some(convolution) = self.convolution(batch, planes, 1) {
            let packed = self.packed(&convolution, true)?;
            return convolution.convolve(&self.gpu, q, packed, None, g, active);
        }
        let rows = Factor::new(q, 0, Axis::plain(planes * len), Axis::plain(1));
        let columns = Factor::new(&self.weights, 0, Axis::plain(1), Axis::plain(len));
        let target = Target::new(g, 0, Axis::plain(len), Axis::plain(1));
        let active = active.map(|flags| Active { flags, rows: 1 });
        multiply(&self.gpu, Lie::Mixed, rows, columns, None, target, [batch, len, planes * len], active)
    }

    /// `g <- W' q + v`, or `P' q0 + N' q1 + v`. `scratch` is for states.
    pub fn transposed_plus(
        &self,
        batch: usize,
        q: &Memory<f32>,
        v: &Memory<f32>,
        scratch: &mut Memory<f32>,
        g: &mut Memory<f32>,
    ) -> Result<()> {
        if let Some(convolution) = self.convolution(batch, self.planes(), 1) {
            let packed = self.packed(&convolution, true)?;
            return convolution.pull(&self.gpu, q, packed, v, None, g, None, None);
        }
        self.transposed(batch, q, scratch, None)?;
        let len = batch * self.len();
        launch!(self.gpu, "add_states", Grid::entries(len), &*scratch, v, g, len)
    }

    /// `gained <- A u0, B u1`, pixel by pixel.
    fn gain(
        &self,
        batch: usize,
        u: &Memory<f32>,
        gained: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (len, units) = (self.len(), self.map.operator.units());
        gained.reserve(batch * 2 * len)?;
        let pixels = Axis::grouped(len / units, 2 * len, units);
        let active = active.map(|flags| Active { flags, rows: len / units });
        for plane in 0..2 {
            let rows = Factor::new(u, plane * len, pixels, Axis::plain(1));
            let gain = Factor::new(&self.gains, plane * units * units, Axis::plain(units), Axis::plain(1));
            let target = Target::new(gained, plane * len, pixels, Axis::plain(1));
            let sizes = [batch * (len / units), units, units];
            multiply(&self.gpu, Lie::Along, rows, gain, None, target, sizes, active)?;
        }
        Ok(())
    }

    /// `gained <- A' g, B' g`, pixel by pixel.
    fn gain_transposed(
        &self,
        batch: usize,
        g: &Memory<f32>,
        gained: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (len, units) = (self.len(), self.map.operator.units());
        gained.reserve(batch * 2 * len)?;
        let active = active.map(|flags| Active { flags, rows: len / units });
        for plane in 0..2 {
            let rows = Factor::new(g, 0, Axis::plain(units), Axis::plain(1));
            let gain = Factor::new(&self.gains, plane * units * units, Axis::plain(1), Axis::plain(units));
            let target =
                Target::new(gained, plane * len, Axis::grouped(len / units, 2 * len, units), Axis::plain(1));
            let sizes = [batch * (len / units), units, units];
            multiply(&self.gpu, Lie::Mixed, rows, gain, None, target, sizes, active)?;
        }
        Ok(())
    }

    /// Parts in which the kernels of this map measure how far a state is from its image, forward and adjoint; none for maps whose
    /// images are not finished by a convolution.
    pub fn measured_parts(&self) -> Option<[usize; 2]> {
        let (forward, back) =
            (self.convolution(1, 1, self.planes())?, self.convolution(1, self.planes(), 1)?);
        let measured = !self.has_gains() && self.map.norm.is_none();
        let parts = [forward.parts(&self.gpu)?, back.parts(&self.gpu)?];
        measured.then_some(parts)
    }

    /// `out <- F(z; y)`; parts of the distances from `z`, where [`Operators::measured_parts`] promises them, go to `distances`.
    #[allow(clippy::too_many_arguments)] // a map's arguments, its scratch memory, and whom it is for
    pub fn apply(
        &self,
        batch: usize,
        z: &Memory<f32>,
        y: &Memory<f32>,
        out: &mut Memory<f32>,
        u: &mut Memory<f32>,
        gained: &mut Memory<f32>,
        distances: Option<&Memory<Distance>>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let (len, planes) = (self.len(), self.planes());
        if let Some(convolution) = self.convolution(batch, 1, planes)
            && !self.has_gains()
        {
            let (map, packed) = (&self.constants, self.packed(&convolution, false)?);
            convolution.apply(&self.gpu, map, z, packed, y, out, distances, active)?;
            return if convolution.normalises() { Ok(()) } else { self.normalise(batch, out, None, active) };
        }
        self.forward(batch, z, u, active)?;
        let mut rows: &Memory<f32> = u;
        if self.has_gains() {
            let grid = Grid::samples(batch, planes * len);
            launch!(self.gpu, "activate_planes", grid, &self.constants, batch as u32, rows, active)?;
            self.gain(batch, rows, gained, active)?;
            rows = gained;
        }
        self.epilogue(batch, rows, y, out, active)?;
        self.normalise(batch, out, None, active)
    }

    fn epilogue(
        &self,
        batch: usize,
        u: &Memory<f32>,
        y: &Memory<f32>,
        out: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let grid = Grid::samples(batch, self.len());
        launch!(self.gpu, "epilogue", grid, &self.constants, batch as u32, u, y, out, active)
    }

    /// `f <- f / norm(f)` where the map normalises; what the way back needs goes to `kept`: reciprocal norms and gradient.
    fn normalise(
        &self,
        batch: usize,
        f: &mut Memory<f32>,
        kept: Option<(&mut Memory<f32>, &mut Memory<f32>)>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        // 0 stands for the largest absolute value.
        let p = match self.map.norm {
            None => return Ok(()),
            Some(PNorm::Finite(p)) => p as f32,
            Some(PNorm::Inf) => 0.0,
        };
        let (inverse, gradient) = match kept {
            Some((inverse, gradient)) => (Some(&*inverse), Some(&*gradient)),
            None => (None, None),
        };
        match self.map.operator {
            Operator::Dense { n } => {
                let grid = Grid::blocks(batch);
                launch!(self.gpu, "normalise_vectors", grid, n, p, f, inverse, gradient, active)
            }
            Operator::Conv { channels, height, width, .. } => {
                let (row, count) = ((channels * width) as u32, batch as u32);
                let grid = Grid::threads(batch * channels * width);
                let height = height as u32;
                launch!(
                    self.gpu,
                    "normalise_columns",
                    grid,
                    count,
                    row,
                    height,
                    p,
                    f,
                    inverse,
                    gradient,
                    active
                )
            }
        }
    }

    /// The derivative at `(z, y)`; `u` then holds what the activation made of the preactivations, for maps with gains.
    pub fn linearise(&self, batch: usize, z: &Memory<f32>, y: &Memory<f32>, work: &mut Work) -> Result<()> {
        let Work { u, gained, linearisation, .. } = work;
        let Linearisation { slopes, normalised, gradient, inverse } = linearisation;
        let (len, planes) = (self.len(), self.planes());
        slopes.reserve(batch * planes * len)?;
        if let Some(Onchip::Convolution(onchip)) = &self.onchip {
            return onchip.slopes(&self.gpu, self.map.injection == Injection::Inner, batch, (z, y), slopes);
        }
        if self.map.norm.is_some() {
            let groups = match self.map.operator {
                Operator::Dense { .. } => 1,
                Operator::Conv { channels, width, .. } => channels * width,
            };
            normalised.reserve(batch * len)?;
            gradient.reserve(batch * len)?;
            inverse.reserve(batch * groups)?;
        }
        let out = self.map.norm.is_some().then_some(&*normalised);
        if let Some(convolution) = self.convolution(batch, 1, planes)
            && !self.has_gains()
        {
            let packed = self.packed(&convolution, false)?;
            convolution.linearise(&self.gpu, &self.constants, z, packed, y, slopes, out)?;
        } else {
            self.forward(batch, z, u, None)?;
            let grid = Grid::samples(batch, len);
            launch!(self.gpu, "slopes", grid, &self.constants, batch as u32, &mut *u, y, slopes, out)?;
        }
        if self.map.norm.is_some() && self.has_gains() {
            self.gain(batch, u, gained, None)?;
            self.epilogue(batch, gained, y, normalised, None)?;
        }
        self.normalise(batch, normalised, Some((inverse, gradient)), None)
    }

    /// The slope below zero of a map `z = s(W z + y)` whose activation has the slope 1 above it: there the signs of a solution say
    /// on which side its preactivations are.
    pub fn kink(&self) -> Option<f32> {
        let ShapedMap { formula, activation, injection, power, shift, norm, .. } = self.map;
        let plain = formula == Formula::Single && injection == Injection::Inner && power == 1.0;
        let below = match activation {
            Activation::Relu => 0.0,
            Activation::LeakyRelu { slope } if slope >= 0.0 => slope as f32,
            _ => return None,
        };
        (plain && shift == 0.0 && norm.is_none()).then_some(below)
    }

    /// The derivative at a solution of a map with a [kink](Self::kink), without the convolution that [`Self::linearise`] takes.
    pub fn linearise_at_solution(
        &self,
        batch: usize,
        below: f32,
        z: &Memory<f32>,
        work: &mut Work,
    ) -> Result<()> {
        let (slopes, len) = (&mut work.linearisation.slopes, batch * self.len());
        slopes.reserve(len)?;
        launch!(self.gpu, "kink_slopes", Grid::entries(len), z, below, slopes, len)
    }

    /// `g <-` its pullback through the normalisation.
    pub fn through_norm(
        &self,
        batch: usize,
        linearisation: &Linearisation,
        g: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let Linearisation { normalised, gradient, inverse, .. } = linearisation;
        if self.map.norm.is_none() {
            return Ok(());
        }
        match self.map.operator {
            Operator::Dense { n } => {
                let grid = Grid::blocks(batch);
                launch!(self.gpu, "pull_vectors", grid, n, normalised, gradient, inverse, g, active)
            }
            Operator::Conv { channels, height, width, .. } => {
                let (row, height) = ((channels * width) as u32, height as u32);
                let grid = Grid::threads(batch * channels * width);
                launch!(
                    self.gpu,
                    "pull_columns",
                    grid,
                    batch as u32,
                    row,
                    height,
                    normalised,
                    gradient,
                    inverse,
                    g,
                    active
                )
            }
        }
    }

    /// `q <- D N' (g + v)`, `N` the normalisation, `D` the slopes. What is left in `g` is of no use.
    #[allow(clippy::too_many_arguments)] // a gradient on its way, the derivative, and whom it is for
    pub fn q_of(
        &self,
        batch: usize,
        linearisation: &Linearisation,
        g: &mut Memory<f32>,
        v: Option<&Memory<f32>>,
        gained: &mut Memory<f32>,
        q: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let len = self.len();
        let mut v = v;
        if (self.map.norm.is_some() || self.has_gains())
            && let Some(v) = v.take()
        {
            let len = batch * len;
            launch!(self.gpu, "add_states", Grid::entries(len), &*g, v, &*g, len)?;
        }
        if let (Some(_), Operator::Conv { channels, height, width, .. }, false) =
            (self.map.norm, self.map.operator, self.has_gains())
        {
            let Linearisation { slopes, normalised, gradient, inverse } = linearisation;
            let (count, row, height) = (batch as u32, (channels * width) as u32, height as u32);
            let (grid, planes) = (Grid::threads(batch * channels * width), self.planes() as u32);
            let (norm, g) = (Norm::new(normalised, gradient, inverse), &*g);
            return launch!(
                self.gpu,
                "pull_columns_to_slopes",
                grid,
                count,
                row,
                height,
                planes,
                &norm,
                g,
                slopes,
                q,
                active
            );
        }
        self.through_norm(batch, linearisation, g, active)?;
        self.slope_product(batch, g, v, gained, &linearisation.slopes, q, active)
    }

    /// The slopes become `q = D g`, for a `g` that is pulled back through the normalisation: nobody needs them after it.
    pub fn turn_slopes_into_q(
        &self,
        batch: usize,
        linearisation: &mut Linearisation,
        g: &Memory<f32>,
        gained: &mut Memory<f32>,
    ) -> Result<()> {
        let slopes = &linearisation.slopes;
        self.slope_product(batch, g, None, gained, slopes, slopes, None)
    }

    /// `q <- D (g + v)`, each entry from those at its place: `q` may be `D` itself.
    #[allow(clippy::too_many_arguments)] // as above
    fn slope_product(
        &self,
        batch: usize,
        g: &Memory<f32>,
        v: Option<&Memory<f32>>,
        gained: &mut Memory<f32>,
        slopes: &Memory<f32>,
        q: &Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let gained = if self.has_gains() {
            self.gain_transposed(batch, g, gained, active)?;
            Some(&*gained)
        } else {
            None
        };
        let (grid, count) = (Grid::samples(batch, self.planes() * self.len()), batch as u32);
        launch!(self.gpu, "slope_product", grid, &self.constants, count, g, v, gained, slopes, q, active)
    }

    /// `image <- D N' (W' q + v)`; parts of the distances from `q`, where [`Operators::measured_parts`] promises them, go to
    /// `distances`. `g` and `gained` are scratch memory.
    #[allow(clippy::too_many_arguments)] // as above
    pub fn adjoint_step(
        &self,
        batch: usize,
        linearisation: &Linearisation,
        q: &Memory<f32>,
        v: &Memory<f32>,
        g: &mut Memory<f32>,
        gained: &mut Memory<f32>,
        image: &mut Memory<f32>,
        distances: Option<&Memory<Distance>>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        if let Some(convolution) = self.convolution(batch, self.planes(), 1)
            && !self.has_gains()
        {
            let packed = self.packed(&convolution, true)?;
            let (gpu, slopes) = (&self.gpu, &linearisation.slopes);
            if self.map.norm.is_none() {
                return convolution.pull(gpu, q, packed, v, Some(slopes), image, distances, active);
            }
            if convolution.normalises() {
                return convolution.pull_through(
                    gpu,
                    q,
                    packed,
                    v,
                    linearisation.norm(),
                    slopes,
                    image,
                    active,
                );
            }
            g.reserve(batch * self.len())?;
            convolution.pull(gpu, q, packed, v, None, g, None, active)?;
            return self.q_of(batch, linearisation, g, None, gained, image, active);
        }
        self.transposed(batch, q, g, active)?;
        self.q_of(batch, linearisation, g, Some(v), gained, image, active)
    }

    /// `out <- R x` or `R' x`.
    pub fn resolve(
        &self,
        batch: usize,
        transposed: bool,
        x: &Memory<f32>,
        out: &mut Memory<f32>,
        active: Option<&Memory<u32>>,
    ) -> Result<()> {
        let matrix = &self.resolvent()?.plain;
        let n = self.len();
        out.reserve(batch * n)?;
        let rows = Factor::new(x, 0, Axis::plain(n), Axis::plain(1));
        let target = Target::new(out, 0, Axis::plain(n), Axis::plain(1));
        let active = active.map(|flags| Active { flags, rows: 1 });
        let (lie, outer, inner) = if transposed { (Lie::Mixed, 1, n) } else { (Lie::Along, n, 1) };
        let columns = Factor::new(matrix, 0, Axis::plain(outer), Axis::plain(inner));
        multiply(&self.gpu, lie, rows, columns, None, target, [batch, n, n], active)
    }
}
