//! 256-bit vectors (AVX2 and FMA).

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Exponent, Lanes};

/// Eight `f32`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct F32x8(pub __m256);

// SAFETY of every block in this file: the instructions exist, since 256-bit vectors are only used where an `Isa`
// with AVX2 proves it (module `simd`); memory is only touched within the bounds of the slices, which are checked.

macro_rules! operator {
    ($($trait:ident, $method:ident, $intrinsic:ident;)*) => {$(
        impl $trait for F32x8 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )*};
}
operator! { Add, add, _mm256_add_ps; Sub, sub, _mm256_sub_ps; Mul, mul, _mm256_mul_ps; Div, div, _mm256_div_ps; }

impl Neg for F32x8 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_xor_ps(self.0, _mm256_set1_ps(-0.0)) })
    }
}

/// All bits set in the first `count` lanes.
#[inline(always)]
fn lanes_below(count: usize) -> __m256i {
    // SAFETY: see above.
    unsafe {
        let index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), index)
    }
}

impl Lanes for F32x8 {
    type Elem = f32;
    type Mask = __m256;
    const N: usize = 8;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_set1_ps(x) })
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        assert!(from.len() >= Self::N);
        // SAFETY: eight numbers are there.
        Self(unsafe { _mm256_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        assert!(to.len() >= Self::N);
        // SAFETY: eight places are there.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn load_tail(from: &[f32]) -> Self {
        assert!(from.len() <= Self::N);
        // SAFETY: lanes beyond the slice are masked and not touched.
        Self(unsafe { _mm256_maskload_ps(from.as_ptr(), lanes_below(from.len())) })
    }
    #[inline(always)]
    fn store_tail(self, to: &mut [f32]) {
        assert!(to.len() <= Self::N);
        // SAFETY: lanes beyond the slice are masked and not touched.
        unsafe { _mm256_maskstore_ps(to.as_mut_ptr(), lanes_below(to.len()), self.0) }
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_blendv_ps(other.0, self.0, _mm256_castsi256_ps(lanes_below(count))) })
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_fmadd_ps(self.0, a.0, b.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let bit = _mm256_set1_ps(-0.0);
            Self(_mm256_or_ps(_mm256_and_ps(bit, sign.0), _mm256_andnot_ps(bit, self.0)))
        }
    }

    #[inline(always)]
    fn lt(self, other: Self) -> __m256 {
        // SAFETY: see above.
        unsafe { _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn select(mask: __m256, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_blendv_ps(no.0, yes.0, mask) })
    }

    elementary!();

    #[inline(always)]
    fn sum(self) -> f32 {
        let x = self.lanes();
        ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]))
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        self.lanes().into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn smallest(self) -> f32 {
        self.lanes().into_iter().fold(f32::INFINITY, |a, b| if b < a { b } else { a })
    }
}

impl F32x8 {
    #[inline(always)]
    fn lanes(self) -> [f32; 8] {
        let mut lanes = [0.0; 8];
        self.store(&mut lanes);
        lanes
    }
}

impl Exponent for F32x8 {
    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    fn scale(self, k: Self) -> Self {
        // SAFETY: see above. Two factors, so that subnormal results and 2^128 are reached.
        unsafe {
            let k = _mm256_cvtps_epi32(k.0);
            let half = _mm256_srai_epi32::<1>(k);
            let power = |k| {
                Self(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(
                    k,
                    _mm256_set1_epi32(127),
                ))))
            };
            self * power(half) * power(_mm256_sub_epi32(k, half))
        }
    }
    #[inline(always)]
    fn product(self, other: Self) -> (Self, Self) {
        let high = self * other;
        (high, self.fma(other, -high))
    }
    #[inline(always)]
    fn split(self) -> (Self, Self) {
        let subnormal = self.lt(Self::splat(f32::MIN_POSITIVE));
        let x = Self::select(subnormal, self * Self::splat(8_388_608.0), self);
        let extra = Self::select(subnormal, Self::splat(-23.0), Self::zero());
        // SAFETY: see above. Subtracting the bits of sqrt(1/2) leaves the exponent of the mantissa's interval.
        unsafe {
            let bits = _mm256_castps_si256(x.0);
            let k = _mm256_srai_epi32::<23>(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f35_04f3)));
            let m = _mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32::<23>(k)));
            (Self(m), Self(_mm256_cvtepi32_ps(k)) + extra)
        }
    }
}
