//! The linear part of a map, packed for the machine: rows of preactivations out of states.
//!
//! An operator maps a stack of input states to a stack of output states. Forward, a map with two operators has one input
//! (the state) and two outputs (`P z`, `N z`); transposed, two inputs and one output. Whoever receives a row of outputs
//! decides what becomes of it while it is still in the first-level cache.

mod conv;
mod dense;
#[cfg(target_arch = "x86_64")]
mod tiled;

pub(crate) use conv::{ConvKernel, ConvScratch, StackShape};
pub(crate) use dense::{Dense, DenseScratch, OuterProducts, outer_products, panels};

use crate::cpu::conv::{Accuracy, Grade};
use crate::cpu::fourier::{Convolution, ConvolutionScratch, Kernel};
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::{Operator, Padding};

/// A packed operator from `inputs` states to `outputs` states (at most two each).
pub(crate) enum Linear<T: SimdReal> {
    /// A matrix product.
    Dense(Dense<T>),
    /// A 3x3 convolution.
    Conv(Box<dyn ConvKernel<T>>),
    /// A circular convolution with a larger kernel, in the frequency domain; one input, one output.
    Fourier(Box<Convolution<T>>),
}

/// What an operator works in; one per thread.
pub(crate) enum LinearScratch<T: SimdReal> {
    /// For matrix products.
    Dense(DenseScratch<T>),
    /// For 3x3 convolutions.
    Conv(ConvScratch<T>),
    /// For convolutions in the frequency domain.
    Fourier(ConvolutionScratch<T>),
}

impl<T: SimdReal> LinearScratch<T> {
    /// Sets how accurately the operator is applied, if it has a choice, to samples one of which has nothing to do with the other.
    pub fn set_accuracy(&mut self, accuracy: Accuracy) {
        if let Some(grade) = self.grade() {
            grade.set_alone(accuracy);
        }
    }

    /// How accurately the operator is applied, if it has a choice.
    pub fn grade(&mut self) -> Option<&mut Grade> {
        match self {
            Self::Fourier(_) => None,
            Self::Dense(scratch) => scratch.grade(),
            Self::Conv(scratch) => Some(&mut scratch.grade),
        }
    }
}

/// Receives rows: `(sample, offset in the state, row of the first output, row of the second or nothing)`.
pub(crate) type Emit<'a, T> = &'a mut dyn FnMut(usize, usize, &mut [T], &mut [T]);

impl<T: SimdReal> Linear<T> {
    /// An operator of this kind with all weights zero.
    pub fn new(isa: Isa, operator: &Operator, inputs: usize, outputs: usize) -> Self {
        match *operator {
            Operator::Dense { n } => Self::Dense(Dense::new(isa, n, inputs, outputs)),
            Operator::Conv { channels, height, width, padding, kernel: 3 } => {
                Self::Conv(crate::cpu::conv::kernel(
                    isa,
                    StackShape { height, width, channels, padding, inputs, outputs },
                ))
            }
            Operator::Conv { channels, height, width, kernel, .. } => {
                let kernel = Kernel { units: channels, side: kernel, height, width };
                Self::Fourier(Box::new(Convolution::new(isa, kernel)))
            }
        }
    }

    /// Packs weight blocks: block `o * inputs + i` leads from input `i` to output `o`; `n x n`, row = output, or
    /// `[out][in][row][column]`. Transposed operators are given blocks that are transposed already (`transpose`).
    pub fn pack(&mut self, blocks: &[&[T]]) {
        match self {
            Self::Dense(dense) => dense.pack(blocks),
            Self::Conv(kernel) => kernel.pack(blocks),
            Self::Fourier(convolution) => convolution.pack(blocks[0]),
        }
    }

    /// Scratch memory for `apply`.
    pub fn scratch(&self) -> LinearScratch<T> {
        match self {
            Self::Dense(dense) => LinearScratch::Dense(dense.scratch()),
            Self::Conv(kernel) => LinearScratch::Conv(kernel.scratch()),
            Self::Fourier(convolution) => LinearScratch::Fourier(convolution.scratch()),
        }
    }

    /// Applies the operator to the `active` samples of a block whose states lie one after the other in `states`.
    pub fn apply(&self, active: &[usize], states: &[T], scratch: &mut LinearScratch<T>, emit: Emit<T>) {
        match (self, scratch) {
            (Self::Dense(dense), LinearScratch::Dense(scratch)) => dense.apply(active, states, scratch, emit),
            (Self::Conv(kernel), LinearScratch::Conv(scratch)) => {
                let len = kernel.input_len();
                for &sample in active {
                    let images = &states[sample * len..(sample + 1) * len];
                    let series = scratch.grade.begin(sample);
                    kernel.rows(images, series, scratch, &mut |offset, u, w| emit(sample, offset, u, w));
                }
            }
            (Self::Fourier(convolution), LinearScratch::Fourier(scratch)) => {
                convolution.apply(active, states, scratch, &mut |sample, offset, row| {
                    emit(sample, offset, row, &mut []);
                });
            }
            _ => unreachable!("scratch memory of another operator"),
        }
    }
}

/// The transpose of a weight block, as a block of the transposed operator.
pub(crate) fn transpose<T: SimdReal>(operator: &Operator, block: &[T], transposed: &mut [T]) {
    if let Operator::Dense { n } = *operator {
        for (row, block) in block.chunks_exact(n).enumerate() {
            for (&w, transposed) in block.iter().zip(transposed[row..].iter_mut().step_by(n)) {
                *transposed = w;
            }
        }
        return;
    }
    let units = operator.units();
    let taps = operator.taps();
    for (index, &w) in block.iter().enumerate() {
        let (out, input, tap) = (index / (taps * units), index / taps % units, index % taps);
        transposed[(input * units + out) * taps + (taps - 1 - tap)] = w;
    }
}

/// Whether the operator continues images periodically.
pub(crate) fn is_circular(operator: &Operator) -> bool {
    matches!(operator, Operator::Conv { padding: Padding::Circular, .. })
}
