//! A user's own map, run by the same solvers.

use crate::cpu::distance::{Distance, DistanceRow};
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::FixedPointStep;
use crate::{CustomMap, Measure};

/// `z = F(z)` of a custom map, for the samples from `first` on.
pub(crate) struct CustomForward<'a, T, M: ?Sized> {
    pub map: &'a M,
    pub first: usize,
    pub isa: Isa,
    pub numbers: std::marker::PhantomData<T>,
}

impl<T: SimdReal, M: CustomMap<T> + ?Sized> FixedPointStep<T> for CustomForward<'_, T, M> {
    fn state_len(&self) -> usize {
        self.map.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.map.state_len();
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            let (argument, image) = (&argument[range.clone()], &mut image[range]);
            self.map.apply(self.first + sample, argument, image);
            distances[sample] = self.isa.dispatch(DistanceRow { measure, argument, image });
        }
    }
}

/// `g = J^T g + v` of a custom map at `z`.
pub(crate) struct CustomAdjoint<'a, T, M: ?Sized> {
    pub map: &'a M,
    pub first: usize,
    pub isa: Isa,
    pub z: &'a [T],
    pub v: &'a [T],
}

impl<T: SimdReal, M: CustomMap<T> + ?Sized> FixedPointStep<T> for CustomAdjoint<'_, T, M> {
    fn state_len(&self) -> usize {
        self.map.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        let len = self.map.state_len();
        for &sample in active {
            let range = sample * len..(sample + 1) * len;
            let (argument, image) = (&argument[range.clone()], &mut image[range.clone()]);
            self.map.vjp(self.first + sample, &self.z[range.clone()], argument, image);
            for (g, &v) in image.iter_mut().zip(&self.v[range]) {
                *g += v;
            }
            distances[sample] = self.isa.dispatch(DistanceRow { measure, argument, image });
        }
    }
}
