//! Shifted monotone weights: the largest eigenvalue of a symmetric part and its derivative, on a GPU.

use std::sync::Arc;

use super::gpu::{Gpu, Grid, Memory, THREADS};
use super::kernel::{Passed, launch};
use crate::{Operator, Padding, Result};

/// Steps of Lanczos' method, at most, as in `kernels/eigen.cu`.
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
}

/// What makes shifted weights, and brings their gradients back.
#[derive(Debug)]
pub(super) struct Shifted {
    torus: Torus,
    margin: f64,
    matrices: Memory<f64>,
    basis: Memory<f64>,
    tops: Memory<f64>,
    /// By how much the diagonal is lowered, and the frequency of the largest eigenvalue: `Peak` in `eigen.cu`.
    peak: Memory<[u64; 2]>,
    derivative: Memory<f32>,
    trace: Memory<f64>,
}

impl Shifted {
    pub fn new(gpu: &Arc<Gpu>, operator: &Operator, margin: f64) -> Result<Self> {
        let torus = Torus::of(operator);
        let (count, units) = (torus.frequencies as usize, torus.units as usize);
        Ok(Self {
            torus,
            margin,
            matrices: Memory::zeros(gpu, count * 2 * units * units)?,
            basis: Memory::zeros(gpu, count * (STEPS + 1) * torus.size())?,
            tops: Memory::zeros(gpu, 2 * count)?,
            peak: Memory::zeros(gpu, 1)?,
            derivative: Memory::zeros(gpu, operator.weight_len())?,
            trace: Memory::zeros(gpu, 1)?,
        })
    }

    /// `w <- v - max(0, lambda - (1 - margin)) I`, `lambda` the largest eigenvalue of the symmetric part of `v`.
    pub fn make(&mut self, gpu: &Gpu, v: &Memory<f32>, w: &mut Memory<f32>) -> Result<()> {
        let Self { torus, margin, matrices, basis, tops, peak, derivative, .. } = self;
        let (count, units) = (torus.frequencies as usize, torus.units as usize);
        let blocks = (units * units).div_ceil(THREADS as usize) * count.div_ceil(FREQUENCIES);
        launch!(gpu, "symbols", Grid::blocks(blocks), &*torus, v, &mut *matrices)?;
        launch!(gpu, "top_eigenpairs", Grid::blocks(count), &*torus, &*matrices, &mut *basis, &mut *tops)?;
        launch!(gpu, "find_peak", Grid::blocks(1), &*torus, &*tops, *margin, &mut *peak)?;
        let grid = Grid::entries(derivative.len());
        launch!(gpu, "make_shifted", grid, &*torus, v, &*basis, &*peak, w, derivative)
    }

    /// From the gradient for the weights to that for `v`.
    pub fn pull(&mut self, gpu: &Gpu, g: &Memory<f32>, out: &mut Memory<f32>) -> Result<()> {
        let Self { torus, peak, derivative, trace, .. } = self;
        launch!(gpu, "sum_diagonal", Grid::blocks(1), &*torus, g, &mut *trace)?;
        let len = derivative.len();
        launch!(gpu, "pull_shifted", Grid::entries(len), g, &*trace, &*derivative, &*peak, out, len)
    }
}
