//! `z = F(z; y)` for a block of samples.

use crate::cpu::activation::{activate, activate_and_measure, is_plain};
use crate::cpu::buffer::Buffer;
use crate::cpu::conv::Grade;
use crate::cpu::distance::{Distance, DistanceRow, Squares, distance_row};
use crate::cpu::epilogue::{Injected, forward_row};
use crate::cpu::gains::GainScratch;
use crate::cpu::isa::Vectorised;
use crate::cpu::linear::LinearScratch;
use crate::cpu::linearise::injected;
use crate::cpu::normalise::{Grouping, normalise};
use crate::cpu::packed::Packed;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::step::FixedPointStep;
use crate::map::Formula;
use crate::{Measure, ShapedMap};

/// Memory of the forward problem; one per thread.
pub(crate) struct ForwardScratch<T: SimdReal> {
    pub linear: LinearScratch<T>,
    gains: Option<GainScratch<T>>,
    rows: [Buffer<T>; 2],
    inverse_norms: Buffer<T>,
}

impl<T: SimdReal> ForwardScratch<T> {
    pub fn new(packed: &Packed<T>) -> Self {
        let row = if packed.gains.is_some() { packed.map.operator.state_len() } else { 0 };
        Self {
            linear: packed.forward.scratch(),
            gains: packed.gains.as_ref().map(|gains| gains.scratch()),
            rows: [Buffer::zeros(row), Buffer::zeros(row)],
            inverse_norms: Buffer::zeros(packed.grouping.map_or(0, |g| g.groups())),
        }
    }
}

/// `z = F(z; y)`.
pub(crate) struct Forward<'a, T: SimdReal> {
    pub packed: &'a Packed<T>,
    pub y: &'a [T],
    pub scratch: &'a mut ForwardScratch<T>,
}

impl<T: SimdReal> FixedPointStep<T> for Forward<'_, T> {
    fn grade(&mut self) -> Option<&mut Grade> {
        self.scratch.linear.grade()
    }

    fn state_len(&self) -> usize {
        self.packed.map.operator.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let Packed { isa, map, grouping, gains, .. } = self.packed;
        let len = map.operator.state_len();
        let ForwardScratch { linear, gains: gain_scratch, rows: [row0, row1], inverse_norms } =
            &mut *self.scratch;
        for &sample in active {
            distances[sample] = Distance::EMPTY;
        }
        self.packed.forward.apply(active, argument, linear, &mut |sample, offset, u, w| {
            let width = u.len();
            let range = sample * len + offset..sample * len + offset + width;
            if let (Some(gains), Some(scratch)) = (gains, gain_scratch.as_mut()) {
                isa.dispatch(Activate { map, u, w });
                gains.apply(0, u, scratch, &mut row0[..width]);
                gains.apply(1, w, scratch, &mut row1[..width]);
                u.copy_from_slice(&row0[..width]);
                w.copy_from_slice(&row1[..width]);
            }
            let y = injected(map, self.y, sample, offset, width);
            let (z, out) = (&argument[range.clone()], &mut image[range]);
            let measured = isa.dispatch(Row { map, measure, u, w, y, z, out });
            distances[sample].merge(measured);
        });
        if let Some(grouping) = *grouping {
            for &sample in active {
                let range = sample * len..(sample + 1) * len;
                isa.dispatch(Normalise { grouping, f: &mut image[range.clone()], inverse: inverse_norms });
                let (argument, image) = (&argument[range.clone()], &image[range]);
                distances[sample] = isa.dispatch(DistanceRow { measure, argument, image });
            }
        }
    }
}

struct Activate<'a, T> {
    map: &'a ShapedMap,
    u: &'a mut [T],
    w: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Activate<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        activate::<V>(self.map, self.u);
        activate::<V>(self.map, self.w);
    }
}

struct Row<'a, T> {
    map: &'a ShapedMap,
    measure: Measure,
    u: &'a mut [T],
    w: &'a mut [T],
    y: Injected<'a, T>,
    z: &'a [T],
    out: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Row<'_, T> {
    type Output = Distance;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        let Self { map, measure, .. } = self;
        let one_pass = map.formula == Formula::Single && is_plain(map) && map.norm.is_none();
        if one_pass && Squares::<V>::make(measure) {
            return activate_and_measure::<V>(map, self.u, self.y.first, self.z, self.out);
        }
        forward_row::<V>(self.map, self.u, self.w, self.y, self.out);
        // A normalised state is measured when it is complete.
        if self.map.norm.is_some() {
            Distance::EMPTY
        } else {
            distance_row::<V>(self.measure, self.z, self.out)
        }
    }
}

struct Normalise<'a, T> {
    grouping: Grouping,
    f: &'a mut [T],
    inverse: &'a mut [T],
}

impl<T: SimdReal> Vectorised<T> for Normalise<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        normalise::<V>(self.grouping, self.f, self.inverse);
    }
}
