//! Shifted monotone weights: the largest eigenvalue of a symmetric part and its derivative, on a GPU.

use std::sync::Arc;

use super::gpu::{Gpu, Grid, Memory, THREADS};
use super::kernel::{Passed, launch};
use crate::{Operator, Padding, Result};

/// The kernels for matrices that fit into a block's registers: rows, and their names.
const BRACKETS: [(usize, &str); 5] = [
    (16, "bracket_tops_16"),
    (32, "bracket_tops_32"),
    (48, "bracket_tops_48"),
    (64, "bracket_tops_64"),
    (96, "bracket_tops_96"),
];
/// Eliminations after which frequencies that cannot have the largest eigenvalue are left alone, and the most for the others.
const ROUGH: u32 = 3;
const MOST: u32 = 64;
/// Steps of Lanczos' method for larger ones, at most, as in `kernels/eigen.cu`.
const STEPS: usize = 128;
/// Frequencies whose matrices one block makes.
const FREQUENCIES: usize = 8;

/// The frequencies of an operator, for the kernels.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Torus {
    units: u32,
    side: u32,
    height: u32,
    width: u32,
    real: u32,
    frequencies: u32,
}

// SAFETY: `repr(C)`, six fields of four bytes, as in `eigen.cu`.
unsafe impl Passed for Torus {}

impl Torus {
    /// Zero padding is a compression of a circular convolution on a torus that is one pixel larger each way.
    fn of(operator: &Operator) -> Self {
        let (units, side, height, width, real) = match *operator {
            Operator::Dense { n } => (n, 1, 1, 1, 1),
            Operator::Conv { channels, height, width, padding: Padding::Circular, kernel } => {
                (channels, kernel, height, width, 0)
            }
            Operator::Conv { channels, height, width, kernel, .. } => {
                (channels, kernel, height + 1, width + 1, 0)
            }
        };
        Self {
            units: units as u32,
            side: side as u32,
            height: height as u32,
            width: width as u32,
            real,
            frequencies: (height * (width / 2 + 1)) as u32,
        }
    }

    /// Rows of the matrix of a frequency, as a real one.
    fn size(&self) -> usize {
        self.units as usize * if self.real == 1 { 1 } else { 2 }
    }

    /// The kernel that brackets the largest eigenvalues, where there is one for such matrices.
    fn bracket(&self) -> Option<&'static str> {
        BRACKETS.iter().find(|(most, _)| self.units as usize <= *most).map(|(_, name)| *name)
    }
}

/// What makes shifted weights, and brings their gradients back.
#[derive(Debug)]
pub(super) struct Shifted {
    torus: Torus,
    margin: f64,
    /// Room for so many vectors of each frequency; the first becomes its eigenvector.
    basis: Memory<f64>,
    stride: usize,
    /// An upper bound and the vector's own value, of each frequency.
    tops: Memory<f64>,
    /// By how much the diagonal is lowered, and the frequency of the largest eigenvalue: `Peak` in `eigen.cu`.
    peak: Memory<[u64; 2]>,
    derivative: Memory<f32>,
    trace: Memory<f64>,
}

impl Shifted {
    pub fn new(gpu: &Arc<Gpu>, operator: &Operator, margin: f64) -> Result<Self> {
        let torus = Torus::of(operator);
        let count = torus.frequencies as usize;
        let stride = if torus.bracket().is_some() { 1 } else { STEPS + 1 };
        Ok(Self {
            torus,
            margin,
            basis: Memory::zeros(gpu, count * stride * torus.size())?,
            stride,
            tops: Memory::zeros(gpu, 2 * count)?,
            peak: Memory::zeros(gpu, 1)?,
            derivative: Memory::zeros(gpu, operator.weight_len())?,
            trace: Memory::zeros(gpu, 1)?,
        })
    }

    /// `w <- v - max(0, lambda - (1 - margin)) I`, `lambda` the largest eigenvalue of the symmetric part of `v`.
    pub fn make(&mut self, gpu: &Arc<Gpu>, v: &Memory<f32>, w: &mut Memory<f32>) -> Result<()> {
        let Self { torus, margin, basis, stride, tops, peak, derivative, .. } = self;
        let (count, units) = (torus.frequencies as usize, torus.units as usize);
        // Of no use during a solve, which needs as much.
        let mut matrices = Memory::<f64>::room(gpu, count * 2 * units * units)?;
        let blocks = (units * units).div_ceil(THREADS as usize) * count.div_ceil(FREQUENCIES);
        launch!(gpu, "symbols", Grid::blocks(blocks), &*torus, v, &mut matrices)?;
        let grid = Grid::blocks(count);
        if let Some(name) = torus.bracket() {
            for (rounds, resume) in [(ROUGH, false), (MOST, true)] {
                let arguments = [
                    (&*torus).into(),
                    (&matrices).into(),
                    (&*basis).into(),
                    (&*tops).into(),
                    rounds.into(),
                    resume.into(),
                ];
                gpu.launch(name, grid, &arguments)?;
            }
        } else {
            launch!(gpu, "top_eigenpairs", grid, &*torus, &matrices, &mut *basis, &mut *tops)?;
        }
        launch!(gpu, "find_peak", Grid::blocks(1), &*torus, &*tops, *margin, &mut *peak)?;
        let grid = Grid::entries(derivative.len());
        launch!(gpu, "make_shifted", grid, &*torus, v, &*basis, *stride as u32, &*peak, w, derivative)
    }

    /// From the gradient for the weights to that for `v`.
    pub fn pull(&mut self, gpu: &Gpu, g: &Memory<f32>, out: &mut Memory<f32>) -> Result<()> {
        let Self { torus, peak, derivative, trace, .. } = self;
        launch!(gpu, "sum_diagonal", Grid::blocks(1), &*torus, g, &mut *trace)?;
        let len = derivative.len();
        launch!(gpu, "pull_shifted", Grid::entries(len), g, &*trace, &*derivative, &*peak, out, len)
    }
}
