//! 512-bit vectors (AVX-512 F, BW, DQ, VL).

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Exponent, Lanes};

/// Sixteen `f32`.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct F32x16(pub __m512);

// SAFETY of every block in this file: the instructions exist, since 512-bit vectors are only used where an `Isa`
// with AVX-512 proves it (module `simd`); memory is only touched within the bounds of the slices, which are checked.

macro_rules! operator {
    ($($trait:ident, $method:ident, $intrinsic:ident;)*) => {$(
        impl $trait for F32x16 {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: see above.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )*};
}
operator! { Add, add, _mm512_add_ps; Sub, sub, _mm512_sub_ps; Mul, mul, _mm512_mul_ps; Div, div, _mm512_div_ps; }

impl Neg for F32x16 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_xor_ps(self.0, _mm512_set1_ps(-0.0)) })
    }
}

/// The mask of the first `count <= 16` lanes.
#[inline(always)]
fn lanes_below(count: usize) -> __mmask16 {
    ((1u32 << count) - 1) as __mmask16
}

impl Lanes for F32x16 {
    type Elem = f32;
    type Mask = __mmask16;
    const N: usize = 16;

    #[inline(always)]
    fn splat(x: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(x) })
    }
    #[inline(always)]
    fn load(from: &[f32]) -> Self {
        assert!(from.len() >= Self::N);
        // SAFETY: sixteen numbers are there.
        Self(unsafe { _mm512_loadu_ps(from.as_ptr()) })
    }
    #[inline(always)]
    fn store(self, to: &mut [f32]) {
        assert!(to.len() >= Self::N);
        // SAFETY: sixteen places are there.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), self.0) }
    }
    #[inline(always)]
    fn load_tail(from: &[f32]) -> Self {
        assert!(from.len() <= Self::N);
        // SAFETY: lanes beyond the slice are masked and not touched.
        Self(unsafe { _mm512_maskz_loadu_ps(lanes_below(from.len()), from.as_ptr()) })
    }
    #[inline(always)]
    fn store_tail(self, to: &mut [f32]) {
        assert!(to.len() <= Self::N);
        // SAFETY: lanes beyond the slice are masked and not touched.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes_below(to.len()), self.0) }
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(lanes_below(count), other.0, self.0) })
    }

    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, a.0, b.0) })
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let bit = _mm512_set1_ps(-0.0);
            Self(_mm512_or_ps(_mm512_and_ps(bit, sign.0), _mm512_andnot_ps(bit, self.0)))
        }
    }

    #[inline(always)]
    fn lt(self, other: Self) -> __mmask16 {
        // SAFETY: see above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, other.0) }
    }
    #[inline(always)]
    fn select(mask: __mmask16, yes: Self, no: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mask_blend_ps(mask, no.0, yes.0) })
    }

    elementary!();

    #[inline(always)]
    fn sum(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_ps(self.0) }
    }
    #[inline(always)]
    fn largest(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }
    #[inline(always)]
    fn smallest(self) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_min_ps(self.0) }
    }
}

impl Exponent for F32x16 {
    #[inline(always)]
    fn round(self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
    }
    #[inline(always)]
    fn scale(self, k: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_scalef_ps(self.0, k.0) })
    }
    #[inline(always)]
    fn product(self, other: Self) -> (Self, Self) {
        let high = self * other;
        (high, self.fma(other, -high))
    }
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        // SAFETY: see above.
        let r = Self(unsafe { _mm512_rcp14_ps(other.0) });
        // What the rough quotient leaves over, exactly, is divided once more: the relative error e < 2^-14 of r becomes e^2, and
        // the rounding of the rough quotient is made good.
        let rough = self * r;
        let left = (-other).fma(rough, self);
        left.fma(r, rough)
    }
    #[inline(always)]
    fn split(self) -> (Self, Self) {
        // SAFETY: see above. The instruction gives a mantissa in [1, 2); halving the upper part moves it to
        // [sqrt(1/2), sqrt(2)), as in the other implementations.
        unsafe {
            let m = _mm512_getmant_ps::<_MM_MANT_NORM_1_2, _MM_MANT_SIGN_SRC>(self.0);
            let k = _mm512_getexp_ps(self.0);
            let high = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(m, _mm512_set1_ps(std::f32::consts::SQRT_2));
            let m = _mm512_mask_mul_ps(m, high, m, _mm512_set1_ps(0.5));
            let k = _mm512_mask_add_ps(k, high, k, _mm512_set1_ps(1.0));
            (Self(m), Self(k))
        }
    }
}
