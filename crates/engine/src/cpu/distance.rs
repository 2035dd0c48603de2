//! How far an iterate is from its image, in every measure that a stopping rule may ask for.

use crate::Measure;
use crate::Real;
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get};

/// The sums and extremes that a residual is made of. Partial ones merge, in the order in which they are merged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distance {
    /// Sum of `(F(z) - z)^2`.
    pub difference: f64,
    /// Sum of `F(z)^2`; not finite when the image is not.
    pub size: f64,
    /// Largest `F(z) - z`, or largest `ln(F(z) / z)` for the metrics of the positive orthant.
    pub high: f64,
    /// Smallest of the same.
    pub low: f64,
}

impl Distance {
    /// Of nothing.
    pub const EMPTY: Distance =
        Distance { difference: 0.0, size: 0.0, high: f64::NEG_INFINITY, low: f64::INFINITY };

    /// Adds what was found on other entries.
    pub fn merge(&mut self, other: Distance) {
        self.difference += other.difference;
        self.size += other.size;
        self.high = self.high.max(other.high);
        self.low = self.low.min(other.low);
    }

    /// Whether the image was finite (and not too large to be squared).
    pub fn is_finite(&self) -> bool {
        self.size.is_finite()
    }

    /// The residual. Infinite where a metric of the positive orthant meets a number that is not positive.
    pub fn value(&self, measure: Measure) -> f64 {
        match measure {
            Measure::Relative => self.difference.sqrt() / (1e-5 + self.size.sqrt()),
            Measure::Absolute => self.difference.sqrt(),
            Measure::Sup | Measure::Thompson => self.high.max(-self.low),
            Measure::Hilbert => self.high - self.low,
        }
    }
}

/// The distance of a row of arguments and their images.
#[inline(always)]
pub(crate) fn distance_row<V: Lanes>(measure: Measure, argument: &[V::Elem], image: &[V::Elem]) -> Distance {
    match measure {
        Measure::Relative | Measure::Absolute => squares::<V>(argument, image),
        Measure::Sup => extremes::<V, false>(argument, image),
        Measure::Thompson | Measure::Hilbert => extremes::<V, true>(argument, image),
    }
}

#[inline(always)]
fn squares<V: Lanes>(argument: &[V::Elem], image: &[V::Elem]) -> Distance {
    let mut squares = Squares::<V>::new();
    for_vectors!(V, image.len(), |at, count| {
        squares.add(get::<V>(argument, at, count), get::<V>(image, at, count));
    });
    squares.distance()
}

#[inline(always)]
fn extremes<V: Lanes, const RATIO: bool>(argument: &[V::Elem], image: &[V::Elem]) -> Distance {
    let mut high = V::constant(f64::NEG_INFINITY);
    let mut low = V::constant(f64::INFINITY);
    let mut size = V::zero();
    for (z, f) in argument.chunks(V::N).zip(image.chunks(V::N)) {
        let (z, f_lanes) = (V::load_tail(z), V::load_tail(f));
        let d = if RATIO {
            let positive = V::zero().lt(z.min(f_lanes));
            V::select(positive, (f_lanes / z).ln(), V::constant(f64::INFINITY))
        } else {
            f_lanes - z
        };
        high = d.first(f.len(), high).max(high);
        low = d.first(f.len(), low).min(low);
        size = f_lanes.fma(f_lanes, size);
    }
    Distance {
        difference: 0.0,
        size: size.sum().to_f64(),
        high: high.largest().to_f64(),
        low: low.smallest().to_f64(),
    }
}

/// The sums of squares of a row whose vectors come one by one.
pub(crate) struct Squares<V> {
    difference: V,
    size: V,
}

impl<V: Lanes> Squares<V> {
    /// Whether the measure is made of such sums.
    pub fn make(measure: Measure) -> bool {
        matches!(measure, Measure::Relative | Measure::Absolute)
    }

    #[inline(always)]
    pub fn new() -> Self {
        Self { difference: V::zero(), size: V::zero() }
    }

    /// One vector of arguments and their images; lanes beyond a row's end must be zero in both.
    #[inline(always)]
    pub fn add(&mut self, argument: V, image: V) {
        let d = image - argument;
        self.difference = d.fma(d, self.difference);
        self.size = image.fma(image, self.size);
    }

    #[inline(always)]
    pub fn distance(self) -> Distance {
        Distance {
            difference: self.difference.sum().to_f64(),
            size: self.size.sum().to_f64(),
            ..Distance::EMPTY
        }
    }
}

/// [`distance_row`] as a computation of its own.
pub(crate) struct DistanceRow<'a, T> {
    pub measure: Measure,
    pub argument: &'a [T],
    pub image: &'a [T],
}

impl<T: SimdReal> crate::cpu::isa::Vectorised<T> for DistanceRow<'_, T> {
    type Output = Distance;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        distance_row::<V>(self.measure, self.argument, self.image)
    }
}
