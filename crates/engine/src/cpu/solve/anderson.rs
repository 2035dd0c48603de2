//! Anderson acceleration, safeguarded.
//!
//! The next argument is a combination of past images whose residuals, combined alike, are smallest in the least-squares
//! sense. It is replaced by a Picard step where the combination leaves the positive orthant that the iterates were in,
//! and taken back where it did not reduce the residual: so every application of the map either reduces the residual or is
//! followed by a Picard step from the best iterate.

use super::{Iterates, Method, Piece};
use crate::Measure;
use crate::cpu::buffer::Buffer;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;
use crate::cpu::vector::{all_positive, combine, difference, dots};

/// Anderson acceleration for a block of samples, each with a history of its own.
pub(crate) struct Anderson<T: SimdReal> {
    isa: Isa,
    window: usize,
    ridge: f64,
    mixing: f64,
    state_len: usize,
    /// Images and residuals: `window` states per sample each.
    images: Buffer<T>,
    residuals: Buffer<T>,
    /// Inner products of the residuals, `window x window` per sample.
    gram: Vec<f64>,
    /// Those of the newest residual.
    products: Vec<f64>,
    histories: Vec<History>,
    weights: Weights,
    /// Where other processes have pieces of the state.
    piece: Option<Piece<T>>,
}

/// Where a sample stands.
#[derive(Clone, Copy)]
struct History {
    /// Pairs kept.
    count: usize,
    /// Slot of the newest pair.
    newest: usize,
    /// Squared norm of the newest residual.
    residual: f64,
    distance: Distance,
    /// Whether the argument in use is a combination, which may be taken back.
    accelerated: bool,
}

impl History {
    const NONE: History = History {
        count: 0,
        newest: 0,
        residual: f64::INFINITY,
        distance: Distance::EMPTY,
        accelerated: false,
    };
}

impl<T: SimdReal> Anderson<T> {
    pub fn new(isa: Isa) -> Self {
        Self {
            isa,
            window: 0,
            ridge: 0.0,
            mixing: 1.0,
            state_len: 0,
            images: Buffer::default(),
            residuals: Buffer::default(),
            gram: Vec::new(),
            products: Vec::new(),
            histories: Vec::new(),
            weights: Weights::default(),
            piece: None,
        }
    }

    /// States are pieces from now on.
    pub fn share(&mut self, piece: Piece<T>) {
        self.piece = Some(piece);
    }

    /// Sets the parameters of the next solves.
    pub fn configure(&mut self, window: usize, ridge: f64, mixing: f64) {
        (self.window, self.ridge, self.mixing) = (window, ridge, mixing);
    }

    fn slot(&self, sample: usize, slot: usize) -> std::ops::Range<usize> {
        let at = (sample * self.window + slot) * self.state_len;
        at..at + self.state_len
    }

    /// The first slots of a sample.
    fn slots(&self, sample: usize, count: usize) -> std::ops::Range<usize> {
        let at = sample * self.window * self.state_len;
        at..at + count * self.state_len
    }

    /// The next argument of a sample; true if it is a combination, false if it is the last image.
    fn propose(&mut self, sample: usize, image: &[T], argument: &mut [T]) -> bool {
        let History { count, newest, .. } = self.histories[sample];
        if count >= 2 {
            let gram = &self.gram[sample * self.window * self.window..][..self.window * self.window];
            if self.weights.solve(gram, self.window, count, self.ridge) {
                let (weights, history) = (&self.weights.solution[..count], self.slots(sample, count));
                argument.fill(T::ZERO);
                let mut signs = combine(self.isa, 1.0, weights, &self.images[history.clone()], argument);
                if self.mixing != 1.0 {
                    let back = self.mixing - 1.0;
                    signs = combine(self.isa, back, weights, &self.residuals[history], argument);
                }
                let newest = &self.images[self.slot(sample, newest)];
                let (stays, finite) = match &self.piece {
                    None => (signs.positive || !all_positive(newest), signs.finite),
                    Some(piece) => {
                        let found = [signs.positive, signs.finite, all_positive(newest)];
                        let [positive, finite, was_positive] = piece.all(found);
                        (positive || !was_positive, finite)
                    }
                };
                if stays && finite {
                    return true;
                }
            }
        }
        argument.copy_from_slice(image);
        false
    }

    /// Takes a pair into the history, or takes back a combination that did not help.
    fn judge(&mut self, sample: usize, argument: &[T], image: &mut [T], distance: &mut Distance) {
        let history = self.histories[sample];
        let next = if history.count == 0 { 0 } else { (history.newest + 1) % self.window };
        // The oldest slot serves as scratch memory for the new residual; a rejected pair empties the history anyway.
        let range = self.slot(sample, next);
        difference(self.isa, image, argument, &mut self.residuals[range.clone()]);
        let count = (history.count + 1).min(self.window);
        let (newest, all) = (&self.residuals[range.clone()], &self.residuals[self.slots(sample, count)]);
        match &self.piece {
            None => dots(self.isa, newest, all, &mut self.products[..count]),
            Some(piece) => piece.dots(self.isa, newest, all, &mut self.products[..count]),
        }
        let residual = self.products[next];
        if history.accelerated && !(residual < history.residual) {
            let newest = self.slot(sample, history.newest);
            image.copy_from_slice(&self.images[newest.clone()]);
            *distance = history.distance;
            let first = self.slot(sample, 0).start;
            self.images.copy_within(newest.clone(), first);
            self.residuals.copy_within(newest, first);
            self.gram[sample * self.window * self.window] = history.residual;
            self.histories[sample] = History { count: 1, newest: 0, accelerated: false, ..history };
            return;
        }
        self.images[range.clone()].copy_from_slice(image);
        let gram = &mut self.gram[sample * self.window * self.window..][..self.window * self.window];
        for (slot, &product) in self.products[..count].iter().enumerate() {
            gram[next * self.window + slot] = product;
            gram[slot * self.window + next] = product;
        }
        self.histories[sample] =
            History { count, newest: next, residual, distance: *distance, accelerated: false };
    }
}

impl<T: SimdReal> Method<T> for Anderson<T> {
    fn begin(&mut self, samples: usize, state_len: usize) {
        self.state_len = state_len;
        self.images.reserve_zeros(samples * self.window * state_len);
        self.residuals.reserve_zeros(samples * self.window * state_len);
        self.gram.resize(self.gram.len().max(samples * self.window * self.window), 0.0);
        self.products.resize(self.products.len().max(self.window), 0.0);
        self.histories.clear();
        self.histories.resize(samples, History::NONE);
        self.weights.reserve(self.window);
    }

    fn advance(
        &mut self,
        step: &mut dyn FixedPointStep<T>,
        active: &[usize],
        iterates: &mut Iterates<T>,
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.state_len;
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            let accelerated =
                self.propose(sample, &iterates.image[range.clone()], &mut iterates.argument[range.clone()]);
            self.histories[sample].accelerated = accelerated;
        }
        step.step(active, &iterates.argument, &mut iterates.image, measure, distances);
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            self.judge(
                sample,
                &iterates.argument[range.clone()],
                &mut iterates.image[range],
                &mut distances[sample],
            );
        }
    }
}

/// The weights of the combination: `(G + ridge diag G) w = 1`, divided by their sum.
#[derive(Default)]
struct Weights {
    factor: Vec<f64>,
    solution: Vec<f64>,
    /// What makes the diagonal one.
    scale: Vec<f64>,
}

impl Weights {
    fn reserve(&mut self, window: usize) {
        self.factor.resize(self.factor.len().max(window * window), 0.0);
        self.solution.resize(self.solution.len().max(window), 0.0);
        self.scale.resize(self.scale.len().max(window), 0.0);
    }

    /// False if the residuals are too nearly dependent.
    fn solve(&mut self, gram: &[f64], stride: usize, count: usize, ridge: f64) -> bool {
        let Self { factor, solution, scale } = self;
        // Scaled to a unit diagonal, so that the ridge means the same at every stage of the solve.
        for (i, scale) in scale[..count].iter_mut().enumerate() {
            *scale = 1.0 / gram[i * stride + i].sqrt();
        }
        for i in 0..count {
            for j in 0..i {
                let mut sum = gram[i * stride + j] * scale[i] * scale[j];
                for k in 0..j {
                    sum -= factor[i * count + k] * factor[j * count + k];
                }
                factor[i * count + j] = sum * factor[j * count + j];
            }
            let pivot = (0..i).fold(1.0 + ridge, |sum, k| sum - factor[i * count + k].powi(2));
            if !(pivot > 1e-13) {
                return false;
            }
            // The diagonal is kept as its inverse.
            factor[i * count + i] = 1.0 / pivot.sqrt();
        }
        for i in 0..count {
            let known: f64 = (0..i).map(|k| factor[i * count + k] * solution[k]).sum();
            solution[i] = (scale[i] - known) * factor[i * count + i];
        }
        for i in (0..count).rev() {
            let known: f64 = (i + 1..count).map(|k| factor[k * count + i] * solution[k]).sum();
            solution[i] = (solution[i] - known) * factor[i * count + i];
        }
        for (weight, scale) in solution[..count].iter_mut().zip(&*scale) {
            *weight *= scale;
        }
        let total: f64 = solution[..count].iter().sum();
        if !total.is_normal() {
            return false;
        }
        solution[..count].iter_mut().for_each(|w| *w /= total);
        true
    }
}
