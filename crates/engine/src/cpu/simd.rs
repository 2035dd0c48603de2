//! Vectors of numbers: one trait, three implementations.
//!
//! Kernels are written once over [`Lanes`] and compiled for each instruction set by [`SimdReal::dispatch`]. Everything here
//! is `#[inline(always)]`, so that it takes on the instructions of the entry point.
//!
//! The 256- and 512-bit vectors must only be used below `dispatch` (or in a function with the matching
//! `#[target_feature]`): an [`Isa`] is the proof that the machine has the instructions. That is why this module is private.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::Real;
use crate::cpu::buffer::Zeroable;
use crate::cpu::isa::{Isa, Vectorised};

/// The elementary functions of an `f32` vector, from [`super::vmath`].
macro_rules! elementary {
    () => {
        #[inline(always)]
        fn exp(self) -> Self {
            crate::cpu::vmath::exp(self)
        }
        #[inline(always)]
        fn ln(self) -> Self {
            crate::cpu::vmath::ln(self)
        }
        #[inline(always)]
        fn tanh(self) -> Self {
            crate::cpu::vmath::tanh(self)
        }
        #[inline(always)]
        fn sigmoid(self) -> Self {
            crate::cpu::vmath::sigmoid(self)
        }
        #[inline(always)]
        fn softplus(self) -> Self {
            crate::cpu::vmath::softplus(self)
        }
        #[inline(always)]
        fn powf(self, p: Self) -> Self {
            crate::cpu::vmath::powf(self, p)
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub use avx512::F32x16;
pub use portable::Array;

/// A number type that the kernels are compiled for: `f32` or `f64`.
///
/// Generic code may name it, to speak of a [`crate::Cpu`] of any number type; nothing else can be done with it. The vectors
/// themselves stay out of reach, since their instructions are only there where an [`Isa`] proves it:
///
/// ```compile_fail,E0603
/// // Without an `Isa`, this would run AVX-512 on any machine.
/// subdeq_engine::cpu::simd::F32x16::splat(1.0);
/// ```
/// ```compile_fail,E0220
/// fn widest<T: subdeq_engine::cpu::SimdReal>(x: T) -> T::Avx512 {
///     unimplemented!()
/// }
/// ```
pub trait SimdReal: Real + Zeroable {
    /// The elementary functions of the portable vectors.
    #[doc(hidden)]
    type Elementary: portable::Elementary<Self>;

    /// Runs a computation with the vectors of an instruction set. Computations can only be written in this crate.
    #[doc(hidden)]
    fn dispatch<K: Vectorised<Self>>(isa: Isa, kernel: K) -> K::Output;
}

impl SimdReal for f32 {
    type Elementary = portable::ByVmath;

    #[inline]
    fn dispatch<K: Vectorised<f32>>(isa: Isa, kernel: K) -> K::Output {
        #[cfg(target_arch = "x86_64")]
        {
            /// The 512-bit version.
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn wide<K: Vectorised<f32>>(kernel: K) -> K::Output {
                kernel.run::<F32x16>()
            }
            /// The 256-bit version.
            #[target_feature(enable = "avx2,fma")]
            fn narrow<K: Vectorised<f32>>(kernel: K) -> K::Output {
                kernel.run::<F32x8>()
            }
            if isa.has_avx512() {
                // SAFETY: an `Isa` of this level exists only if the machine has the instructions.
                return unsafe { wide(kernel) };
            }
            if isa.has_avx2() {
                // SAFETY: as above.
                return unsafe { narrow(kernel) };
            }
        }
        let _ = isa;
        kernel.run::<Array<f32, 8>>()
    }
}

impl SimdReal for f64 {
    type Elementary = portable::ByLibrary;

    /// Portable vectors whatever the instruction set: `f64` is for checks, which are not worth compiling every kernel twice
    /// more.
    #[inline]
    fn dispatch<K: Vectorised<f64>>(_: Isa, kernel: K) -> K::Output {
        kernel.run::<Array<f64, 8>>()
    }
}

/// A vector of `N` numbers.
pub trait Lanes:
    Copy
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// The number type.
    type Elem: SimdReal;
    /// The outcome of a comparison, lane by lane.
    type Mask: Copy;
    /// Numbers in a vector.
    const N: usize;

    /// The same number in every lane.
    fn splat(x: Self::Elem) -> Self;
    /// The first `N` numbers of a slice; panics if it is shorter.
    fn load(from: &[Self::Elem]) -> Self;
    /// Writes to the first `N` places of a slice; panics if it is shorter.
    fn store(self, to: &mut [Self::Elem]);
    /// A slice of at most `N` numbers, then zeros.
    fn load_tail(from: &[Self::Elem]) -> Self;
    /// Writes the first `to.len() <= N` lanes.
    fn store_tail(self, to: &mut [Self::Elem]);
    /// The first `count` lanes of `self`, the others of `other`.
    fn first(self, count: usize, other: Self) -> Self;

    /// `self * a + b` (rounded once where the instruction exists).
    fn fma(self, a: Self, b: Self) -> Self;
    /// The smaller number of each lane; `other` where `self` is NaN.
    fn min(self, other: Self) -> Self;
    /// The larger number of each lane; `other` where `self` is NaN.
    fn max(self, other: Self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// The absolute value of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;

    /// `self < other`; false where either is NaN.
    fn lt(self, other: Self) -> Self::Mask;
    /// `yes` where the mask holds, `no` elsewhere.
    fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;

    /// `e^x`.
    fn exp(self) -> Self;
    /// `ln x`.
    fn ln(self) -> Self;
    /// `tanh x`.
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-x)`.
    fn sigmoid(self) -> Self;
    /// `ln(1 + e^x)`.
    fn softplus(self) -> Self;
    /// `x^p` for `x >= 0`, `p > 0`.
    fn powf(self, p: Self) -> Self;

    /// Sum of the lanes, in a fixed order.
    fn sum(self) -> Self::Elem;
    /// Largest lane.
    fn largest(self) -> Self::Elem;
    /// Smallest lane.
    fn smallest(self) -> Self::Elem;

    /// A vector of zeros.
    #[inline(always)]
    fn zero() -> Self {
        Self::splat(Self::Elem::ZERO)
    }
    /// A vector of ones.
    #[inline(always)]
    fn one() -> Self {
        Self::splat(Self::Elem::ONE)
    }
    /// A constant in every lane.
    #[inline(always)]
    fn constant(x: f64) -> Self {
        Self::splat(Self::Elem::from_f64(x))
    }
}

/// Access to the binary exponent, which the elementary functions of `f32` vectors are built on.
pub trait Exponent: Lanes<Elem = f32> {
    /// The nearest integer, ties to even, as a number; for arguments below 2^22 in size.
    fn round(self) -> Self;
    /// `self * 2^k` with overflow to infinity and gradual underflow; `k` is integral, `|k| <= 252`.
    fn scale(self, k: Self) -> Self;
    /// `self * other` as an unevaluated sum of two numbers (exact unless it underflows).
    fn product(self, other: Self) -> (Self, Self);
    /// `self * a + b`, rounded once: what the accuracy of the elementary functions rests on.
    #[inline(always)]
    fn fma_once(self, a: Self, b: Self) -> Self {
        self.fma(a, b)
    }
    /// `self / other` to about one unit in the last place, for `other` between `2^-60` and `2^60`: faster than a division
    /// where the machine has approximate reciprocals.
    #[inline(always)]
    fn over(self, other: Self) -> Self {
        self / other
    }
    /// `(m, k)` with `self = m 2^k` and `m` in `[sqrt(1/2), sqrt(2))`, for positive finite `self` (subnormal too).
    fn split(self) -> (Self, Self);
}

/// `for_vectors!(V, len, |at, count| body)`: the body for each vector of a row of `len` numbers, full ones first, then
/// the tail, if any.
///
/// A macro and not a function that takes a closure: the body of a closure is compiled without the instructions of the
/// entry point, and unless the compiler happens to inline it, every vector operation in it becomes a function call.
macro_rules! for_vectors {
    ($lanes:ty, $len:expr, |$at:ident, $count:ident| $body:expr) => {{
        let len: usize = $len;
        let lanes = <$lanes as $crate::cpu::simd::Lanes>::N;
        let mut start = 0;
        // One body for full vectors and tail: the elementary functions in it are long, and a branch is cheap.
        while start < len {
            let ($at, $count) = (start, usize::min(len - start, lanes));
            $body;
            start += lanes;
        }
    }};
}
pub(crate) use for_vectors;

/// The `count` numbers of a row that begin at `at`, then zeros.
#[inline(always)]
pub(crate) fn get<V: Lanes>(row: &[V::Elem], at: usize, count: usize) -> V {
    if count == V::N { V::load(&row[at..]) } else { V::load_tail(&row[at..at + count]) }
}

/// Writes the first `count` lanes to a row, beginning at `at`.
#[inline(always)]
pub(crate) fn put<V: Lanes>(vector: V, row: &mut [V::Elem], at: usize, count: usize) {
    if count == V::N { vector.store(&mut row[at..]) } else { vector.store_tail(&mut row[at..at + count]) }
}
