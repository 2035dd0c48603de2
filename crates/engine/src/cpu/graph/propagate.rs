//! One application of the map, `Z -> F(Z; f)`: sparse product, activation, injection, shift, normalisation and residual
//! in one pass over the rows (two where columns are normalised, since their norms are known at the end only).

use std::ops::Range;

use super::adjacency::Entries;
use super::power_mean::{Power, Slopes};
use super::product::Gathered;
use super::residual::Residual;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::{Activation, GraphMap, GraphNorm, Injection, Measure};

/// What is done with an image at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Finish<T> {
    /// Nothing.
    Plain,
    /// Each row is divided by its largest entry.
    Rows,
    /// Each column is divided by its largest entry.
    Columns,
    /// Each row is projected onto the ball of this radius: divided by `max(1, |row|_2 / radius)`.
    Ball(T),
}

impl<T: Copy> Finish<T> {
    /// Whether each row has a divisor of its own.
    pub fn by_row(&self) -> bool {
        matches!(self, Finish::Rows | Finish::Ball(_))
    }

    /// Whether each column has one.
    pub fn by_column(&self) -> bool {
        matches!(self, Finish::Columns)
    }
}

/// A map's constants in the working precision.
#[derive(Clone, Copy)]
pub(crate) struct Constants<T> {
    pub keep: T,
    pub teleport: T,
    pub shift: T,
    pub tanh: bool,
    pub inner: bool,
    /// Where hyperedges take power means.
    pub power: Option<Power<T>>,
    pub finish: Finish<T>,
    pub channels: usize,
    pub stride: usize,
}

impl<T: SimdReal> Constants<T> {
    pub fn new(map: &GraphMap, channels: usize, stride: usize) -> Self {
        Self {
            keep: T::from_f64(1.0 - map.teleport()),
            teleport: T::from_f64(map.teleport()),
            shift: T::from_f64(map.shift()),
            tanh: map.activation() == Activation::Tanh,
            inner: map.injection() == Injection::Inner,
            power: map.power().map(Power::new),
            finish: match (map.normalisation(), map.ball()) {
                (Some(GraphNorm::Rows), _) => Finish::Rows,
                (Some(GraphNorm::Columns), _) => Finish::Columns,
                (None, Some(radius)) => Finish::Ball(T::from_f64(radius)),
                (None, None) => Finish::Plain,
            },
            channels,
            stride,
        }
    }

    /// How many lanes of the vector that starts at `at` are channels; the rest is padding.
    #[inline(always)]
    pub fn valid<V: Lanes<Elem = T>>(&self, at: usize) -> usize {
        (self.channels - at.min(self.channels)).min(V::N)
    }

    /// The part of the state that belongs to `rows`.
    pub fn span(&self, rows: &Range<usize>) -> Range<usize> {
        rows.start * self.stride..rows.end * self.stride
    }

    /// `s(u) + t f + shift` or `s(u + t f) + shift`, zero in the padding.
    #[inline(always)]
    fn image<V: Lanes<Elem = T>>(&self, product: V, injection: V, at: usize) -> V {
        let injected = injection * V::splat(self.teleport);
        let mut image = product * V::splat(self.keep);
        if self.inner {
            image = image + injected;
        }
        if self.tanh {
            image = image.tanh();
        }
        if !self.inner {
            image = image + injected;
        }
        (image + V::splat(self.shift)).first(self.valid::<V>(at), V::zero())
    }
}

/// Norms of zero vectors are taken as one: zero stays zero.
#[inline(always)]
pub(crate) fn divisor<T: SimdReal>(norm: T) -> T {
    if norm > T::ZERO { norm } else { T::ONE }
}

/// Entries of a row that are added up before their sum is added to the row's: a hyperedge of very many nodes would lose digits if each
/// was added to the sum of all before it.
pub(super) const SEGMENT: usize = 512;

/// What the rows of an image gather.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a, T> {
    /// One row per column of the matrix: per node, or per hyperedge.
    pub gathered: &'a [T],
    /// What nodes keep of their own rows, and those rows, whole.
    pub own: Option<(&'a [T], &'a [T])>,
    /// Where what is gathered goes back through power means.
    pub slopes: Option<Slopes<'a, T>>,
}

impl<T: SimdReal> Source<'_, T> {
    /// `out` = row `row` of the product with the matrix.
    ///
    /// # Safety
    /// Every column of `entries` must be the number of a gathered row, `stride` the length of rows and of `out` and a multiple
    /// of the vector length.
    #[inline(always)]
    pub unsafe fn row_product<V: Lanes<Elem = T>>(
        &self,
        entries: &Entries<'_, T>,
        row: usize,
        stride: usize,
        out: &mut [T],
    ) {
        if let Some(slopes) = &self.slopes {
            slopes.row_product::<V>(entries, row, self.gathered, stride, out);
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.weighted_sum::<V>(entries, row, stride, out) };
        }
        if let Some((weights, numbers)) = self.own {
            let weight = V::splat(weights[row]);
            let numbers = &numbers[row * stride..][..stride];
            for at in (0..stride).step_by(V::N) {
                weight.fma(V::load(&numbers[at..]), V::load(&out[at..])).store(&mut out[at..]);
            }
        }
    }

    /// `out` = the gathered rows of row `row` of the matrix, weighted by its entries.
    ///
    /// # Safety
    /// As for `row_product`.
    #[inline(always)]
    unsafe fn weighted_sum<V: Lanes<Elem = T>>(
        &self,
        entries: &Entries<'_, T>,
        row: usize,
        stride: usize,
        out: &mut [T],
    ) {
        let gathered = Gathered::new(self.gathered, stride);
        let (begin, end) = (entries.begin[row], entries.end[row]);
        let mut at = begin;
        loop {
            let range = (at, end.min(at + SEGMENT));
            // SAFETY: the caller's promise.
            unsafe { gathered.row_product::<V>(entries.columns, entries.values, range, out, at > begin) };
            at += SEGMENT;
            if at >= end {
                break;
            }
        }
    }
}

/// One chunk of the way from nodes to hyperedges: `image = B' argument`.
pub(crate) struct Collect<'a, T> {
    pub entries: Entries<'a, T>,
    pub rows: Range<usize>,
    pub stride: usize,
    pub argument: &'a [T],
    /// The rows of these hyperedges.
    pub image: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Collect<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let Self { entries, rows, stride, argument, image } = self;
        let source = Source { gathered: argument, own: None, slopes: None };
        for (row, out) in rows.zip(image.chunks_exact_mut(stride)) {
            // SAFETY: columns of a transposed incidence are numbers of nodes, the argument has a row for each, and strides are
            // multiples of the vector length (`isa_for`).
            unsafe { source.row_product::<V>(&entries, row, stride, out) };
        }
    }
}

/// One chunk of an application.
pub(crate) struct Propagate<'a, T> {
    pub constants: Constants<T>,
    pub entries: Entries<'a, T>,
    pub rows: Range<usize>,
    /// The argument, whole; `None` stands for zero.
    pub argument: Option<&'a [T]>,
    /// What its product with the matrix is made of.
    pub source: Option<Source<'a, T>>,
    /// `f`, whole.
    pub injection: &'a [T],
    /// The rows of the image.
    pub image: &'a mut [T],
    /// The divisors of these rows, where each has one.
    pub row_norms: &'a mut [T],
    /// The largest absolute values of this chunk's columns, where columns are normalised.
    pub column_tops: &'a mut [T],
    pub measure: Option<Measure>,
}

impl<T: SimdReal> Vectorised<T> for Propagate<'_, T> {
    type Output = Distance;

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        let Self { constants, entries, rows, argument, source, injection, image, row_norms, .. } = self;
        let (column_tops, measure) = (self.column_tops, self.measure);
        let stride = constants.stride;
        // The image is not complete before its columns are normalised; the second pass measures.
        let measure = measure.filter(|_| !constants.finish.by_column() && argument.is_some());
        let mut residual = Residual::<V>::new(measure);
        column_tops.fill(T::ZERO);
        for row in rows.clone() {
            let out = &mut image[(row - rows.start) * stride..][..stride];
            match &source {
                // SAFETY: an adjacency's columns are numbers of nodes (or hyperedges), the source has a row for each, and
                // strides are multiples of the vector length (`isa_for`).
                Some(source) => unsafe { source.row_product::<V>(&entries, row, stride, out) },
                None => out.fill(T::ZERO),
            }
            let injected = &injection[row * stride..][..stride];
            let (mut top, mut squares) = (V::zero(), V::zero());
            for at in (0..stride).step_by(V::N) {
                let new = constants.image(V::load(&out[at..]), V::load(&injected[at..]), at);
                top = top.max(new.abs());
                squares = new.fma(new, squares);
                new.store(&mut out[at..]);
            }
            let norm = match constants.finish {
                Finish::Rows => Some(divisor(top.largest())),
                Finish::Ball(radius) => Some((squares.sum().sqrt() / radius).max(T::ONE)),
                Finish::Plain | Finish::Columns => None,
            };
            if let Some(norm) = norm {
                row_norms[row - rows.start] = norm;
                for at in (0..stride).step_by(V::N) {
                    (V::load(&out[at..]) / V::splat(norm)).store(&mut out[at..]);
                }
            }
            if constants.finish.by_column() {
                for at in (0..stride).step_by(V::N) {
                    let new = V::load(&out[at..]).abs();
                    V::load(&column_tops[at..]).max(new).store(&mut column_tops[at..]);
                }
            }
            if let (Some(_), Some(argument)) = (measure, argument) {
                let old = &argument[row * stride..][..stride];
                for at in (0..stride).step_by(V::N) {
                    residual.add(V::load(&old[at..]), V::load(&out[at..]), constants.valid::<V>(at));
                }
            }
        }
        residual.finish()
    }
}

/// Divides one chunk of an image by the norms of the columns, and measures.
pub(crate) struct NormaliseColumns<'a, T> {
    pub constants: Constants<T>,
    /// The rows of the argument.
    pub argument: Option<&'a [T]>,
    /// The rows of the image.
    pub image: &'a mut [T],
    pub norms: &'a [T],
    pub measure: Option<Measure>,
}

impl<T: SimdReal> Vectorised<T> for NormaliseColumns<'_, T> {
    type Output = Distance;

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        let Self { constants, argument, image, norms, measure } = self;
        let stride = constants.stride;
        let mut residual = Residual::<V>::new(measure.filter(|_| argument.is_some()));
        for (row, out) in image.chunks_exact_mut(stride).enumerate() {
            for at in (0..stride).step_by(V::N) {
                let new = V::load(&out[at..]) / V::load(&norms[at..]);
                new.store(&mut out[at..]);
                if let Some(argument) = argument {
                    residual.add(V::load(&argument[row * stride + at..]), new, constants.valid::<V>(at));
                }
            }
        }
        residual.finish()
    }
}
