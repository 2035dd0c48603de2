//! The distance of a state and its image, gathered vector by vector while the image is still in registers.

use crate::cpu::distance::Distance;
use crate::cpu::simd::Lanes;
use crate::{Measure, Real};

/// Vectors added up in the working precision before their sum goes to `f64`.
const FLUSH: u32 = 256;

/// Partial sums and extremes, one per lane.
pub(crate) struct Residual<V: Lanes> {
    measure: Option<Measure>,
    total: Distance,
    pending: u32,
    difference: V,
    size: V,
    high: V,
    low: V,
}

impl<V: Lanes> Residual<V> {
    /// Of nothing; `None` measures nothing.
    #[inline(always)]
    pub fn new(measure: Option<Measure>) -> Self {
        let (high, low) = (V::constant(f64::NEG_INFINITY), V::constant(f64::INFINITY));
        Self {
            measure,
            total: Distance::EMPTY,
            pending: 0,
            difference: V::zero(),
            size: V::zero(),
            high,
            low,
        }
    }

    /// Adds the first `count` lanes of an argument and its image; the others must be zero in both.
    #[inline(always)]
    pub fn add(&mut self, argument: V, image: V, count: usize) {
        let Some(measure) = self.measure else { return };
        self.size = image.fma(image, self.size);
        let difference = image - argument;
        match measure {
            Measure::Relative | Measure::Absolute => {
                self.difference = difference.fma(difference, self.difference)
            }
            Measure::Sup => self.extend(difference, count),
            Measure::Thompson | Measure::Hilbert => {
                let positive = V::zero().lt(argument.min(image));
                self.extend(V::select(positive, (image / argument).ln(), V::constant(f64::INFINITY)), count);
            }
        }
        self.pending += 1;
        if self.pending == FLUSH {
            self.flush();
        }
    }

    #[inline(always)]
    fn extend(&mut self, gap: V, count: usize) {
        self.high = gap.first(count, self.high).max(self.high);
        self.low = gap.first(count, self.low).min(self.low);
    }

    #[inline(always)]
    fn flush(&mut self) {
        self.total.difference += self.difference.sum().to_f64();
        self.total.size += self.size.sum().to_f64();
        self.difference = V::zero();
        self.size = V::zero();
        self.pending = 0;
    }

    /// Everything that was added.
    #[inline(always)]
    pub fn finish(mut self) -> Distance {
        self.flush();
        self.total.high = self.high.largest().to_f64();
        self.total.low = self.low.smallest().to_f64();
        self.total
    }
}
