//! The two number types: `f32` for work, `f64` for the tests that hold `f32` to account.

use std::fmt::{Debug, Display};
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
}

/// A real number type of the engine: `f32` or `f64`.
///
/// The portable kernels are written once over this trait; the SIMD kernels exist for `f32` only.
pub trait Real:
    sealed::Sealed
    + Copy
    + Default
    + Debug
    + Display
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
    + Sum
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// Distance from one to the next number.
    const EPSILON: Self;
    /// The nearest number to `x`.
    fn from_f64(x: f64) -> Self;
    /// The same number as `f64`.
    fn to_f64(self) -> f64;
    /// `self * a + b`, rounded once.
    fn mul_add(self, a: Self, b: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Natural exponential.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// `ln(1 + self)`.
    fn ln_1p(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// `self` to the power `p`.
    fn powf(self, p: Self) -> Self;
    /// The larger number.
    fn max(self, other: Self) -> Self;
    /// The smaller number.
    fn min(self, other: Self) -> Self;
    /// The absolute value of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
}

macro_rules! real {
    ($($t:ident),*) => {$(
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const EPSILON: Self = $t::EPSILON;
            #[inline(always)]
            fn from_f64(x: f64) -> Self { x as $t }
            #[inline(always)]
            fn to_f64(self) -> f64 { f64::from(self) }
            #[inline(always)]
            fn mul_add(self, a: Self, b: Self) -> Self { $t::mul_add(self, a, b) }
            #[inline(always)]
            fn abs(self) -> Self { $t::abs(self) }
            #[inline(always)]
            fn sqrt(self) -> Self { $t::sqrt(self) }
            #[inline(always)]
            fn exp(self) -> Self { $t::exp(self) }
            #[inline(always)]
            fn ln(self) -> Self { $t::ln(self) }
            #[inline(always)]
            fn ln_1p(self) -> Self { $t::ln_1p(self) }
            #[inline(always)]
            fn tanh(self) -> Self { $t::tanh(self) }
            #[inline(always)]
            fn powf(self, p: Self) -> Self { $t::powf(self, p) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { $t::max(self, other) }
            #[inline(always)]
            fn min(self, other: Self) -> Self { $t::min(self, other) }
            #[inline(always)]
            fn copysign(self, sign: Self) -> Self { $t::copysign(self, sign) }
            #[inline(always)]
            fn is_finite(self) -> bool { $t::is_finite(self) }
        }
    )*};
}
real!(f32, f64);
