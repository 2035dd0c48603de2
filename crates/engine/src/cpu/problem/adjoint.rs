//! The adjoint equation `g = J^T g + v`, iterated on `q`, what is fed to the transposed operators:
//! `q <- D N^T (W^T q + v)`, `N` the normalisation, `D` the slopes; then `g = W^T q + v`.

use crate::Measure;
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Grade;
use crate::cpu::distance::{Distance, DistanceRow, Squares, distance_row};
use crate::cpu::isa::Vectorised;
use crate::cpu::linear::LinearScratch;
use crate::cpu::linearise::{Add, Linearisation};
use crate::cpu::packed::Packed;
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};
use crate::cpu::step::FixedPointStep;

/// Memory of the adjoint problem; one per thread.
pub(crate) struct AdjointScratch<T: SimdReal> {
    pub linear: LinearScratch<T>,
    /// States of a block, for maps whose normalisation has to see the whole state.
    states: Buffer<T>,
}

impl<T: SimdReal> AdjointScratch<T> {
    pub fn new(packed: &Packed<T>, samples: usize) -> Self {
        let whole =
            if Linearisation::is_rowwise(packed) { 0 } else { samples * packed.map.operator.state_len() };
        Self { linear: packed.transposed.scratch(), states: Buffer::zeros(whole) }
    }
}

/// `q = D N^T (W^T q + v)` for a block of samples.
pub(crate) struct Adjoint<'a, T: SimdReal> {
    pub packed: &'a Packed<T>,
    pub linearisation: &'a mut Linearisation<T>,
    pub v: &'a [T],
    pub scratch: &'a mut AdjointScratch<T>,
}

impl<T: SimdReal> Adjoint<'_, T> {
    /// `q` out of `g`, for one sample; overwrites `g`.
    pub fn q_of(&mut self, sample: usize, g: &mut [T], q: &mut [T]) {
        self.linearisation.through_norm(self.packed, sample, g);
        self.linearisation.row_of_q(self.packed, sample, 0, g, q);
    }
}

impl<T: SimdReal> FixedPointStep<T> for Adjoint<'_, T> {
    fn grade(&mut self) -> Option<&mut Grade> {
        self.scratch.linear.grade()
    }

    fn state_len(&self) -> usize {
        self.packed.planes() * self.packed.map.operator.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let (packed, linearisation) = (self.packed, &mut *self.linearisation);
        let isa = packed.isa;
        let len = packed.map.operator.state_len();
        let q_len = packed.planes() * len;
        let AdjointScratch { linear, states } = &mut *self.scratch;
        let rowwise = Linearisation::is_rowwise(packed);
        for &sample in active {
            distances[sample] = Distance::EMPTY;
        }
        packed.transposed.apply(active, argument, linear, &mut |sample, offset, g, _| {
            let range = offset..offset + g.len();
            let v = &self.v[sample * len..][range.clone()];
            if let Some(slopes) = linearisation.plain_slopes(packed, sample) {
                let whole = sample * len + offset..sample * len + offset + g.len();
                let (argument, image) = (&argument[whole.clone()], &mut image[whole]);
                let row = PlainRow { measure, g, v, slopes: &slopes[range], argument, image };
                distances[sample].merge(isa.dispatch(row));
                return;
            }
            isa.dispatch(Add { x: &mut *g, y: v });
            if rowwise {
                let q = &mut image[sample * q_len..][..q_len];
                linearisation.row_of_q(packed, sample, offset, g, q);
                for plane in 0..packed.planes() {
                    let range = plane * len + offset..plane * len + offset + g.len();
                    let argument = &argument[sample * q_len..][range.clone()];
                    distances[sample].merge(isa.dispatch(DistanceRow {
                        measure,
                        argument,
                        image: &q[range],
                    }));
                }
            } else {
                states[sample * len..][range].copy_from_slice(g);
            }
        });
        if !rowwise {
            for &sample in active {
                let g = &mut states[sample * len..][..len];
                let range = sample * q_len..(sample + 1) * q_len;
                let q = &mut image[range.clone()];
                linearisation.through_norm(packed, sample, g);
                linearisation.row_of_q(packed, sample, 0, g, q);
                distances[sample] =
                    isa.dispatch(DistanceRow { measure, argument: &argument[range], image: q });
            }
        }
    }

    fn finish(&mut self, done: &[usize], state: &[T], answers: &mut [T]) {
        finish_adjoint(self.packed, done, state, self.v, &mut self.scratch.linear, answers);
    }
}

/// `q = D (g + v)` and its distance from the argument, in one pass.
struct PlainRow<'a, T> {
    measure: Measure,
    g: &'a [T],
    v: &'a [T],
    slopes: &'a [T],
    argument: &'a [T],
    image: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for PlainRow<'_, T> {
    type Output = Distance;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        let Self { measure, g, v, slopes, argument, image } = self;
        if Squares::<V>::make(measure) {
            let mut squares = Squares::<V>::new();
            for_vectors!(V, image.len(), |at, count| {
                let sum = get::<V>(g, at, count) + get::<V>(v, at, count);
                let q = get::<V>(slopes, at, count) * sum;
                put(q, image, at, count);
                squares.add(get::<V>(argument, at, count), q);
            });
            return squares.distance();
        }
        for_vectors!(V, image.len(), |at, count| {
            let sum = get::<V>(g, at, count) + get::<V>(v, at, count);
            put(get::<V>(slopes, at, count) * sum, image, at, count);
        });
        distance_row::<V>(measure, argument, image)
    }
}

/// `g = W^T q + v`.
pub(super) fn finish_adjoint<T: SimdReal>(
    packed: &Packed<T>,
    done: &[usize],
    q: &[T],
    v: &[T],
    scratch: &mut LinearScratch<T>,
    answers: &mut [T],
) {
    let len = packed.map.operator.state_len();
    packed.transposed.apply(done, q, scratch, &mut |sample, offset, g, _| {
        let range = sample * len + offset..sample * len + offset + g.len();
        packed.isa.dispatch(Add { x: &mut *g, y: &v[range.clone()] });
        answers[range].copy_from_slice(g);
    });
}
