//! Vectors in plain Rust, for machines without the instructions and for `f64`.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{Exponent, Lanes, SimdReal};

/// `N` numbers; the compiler vectorises the loops over them as well as the target allows.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Array<T, const N: usize>(pub [T; N]);

impl<T: SimdReal, const N: usize> Array<T, N> {
    #[inline(always)]
    pub(crate) fn map(self, f: impl Fn(T) -> T) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i])))
    }
    #[inline(always)]
    fn zip(self, other: Self, f: impl Fn(T, T) -> T) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }
}

macro_rules! operator {
    ($($trait:ident, $method:ident;)*) => {$(
        impl<T: SimdReal, const N: usize> $trait for Array<T, N> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a.$method(b))
            }
        }
    )*};
}
operator! { Add, add; Sub, sub; Mul, mul; Div, div; }

impl<T: SimdReal, const N: usize> Neg for Array<T, N> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        self.map(|a| -a)
    }
}

impl<T: SimdReal, const N: usize> Lanes for Array<T, N> {
    type Elem = T;
    type Mask = [bool; N];
    const N: usize = N;

    #[inline(always)]
    fn splat(x: T) -> Self {
        Self([x; N])
    }
    #[inline(always)]
    fn load(from: &[T]) -> Self {
        let from = &from[..N];
        Self(std::array::from_fn(|i| from[i]))
    }
    #[inline(always)]
    fn store(self, to: &mut [T]) {
        to[..N].copy_from_slice(&self.0);
    }
    #[inline(always)]
    fn load_tail(from: &[T]) -> Self {
        let mut lanes = [T::ZERO; N];
        lanes[..from.len()].copy_from_slice(from);
        Self(lanes)
    }
    #[inline(always)]
    fn store_tail(self, to: &mut [T]) {
        let len = to.len();
        to.copy_from_slice(&self.0[..len]);
    }
    #[inline(always)]
    fn first(self, count: usize, other: Self) -> Self {
        Self(std::array::from_fn(|i| if i < count { self.0[i] } else { other.0[i] }))
    }

    // Two roundings: without the instruction, a fused product costs a library call per lane.
    #[inline(always)]
    fn fma(self, a: Self, b: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * a.0[i] + b.0[i]))
    }
    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.map(T::abs)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        self.map(T::sqrt)
    }
    #[inline(always)]
    fn copysign(self, sign: Self) -> Self {
        self.zip(sign, T::copysign)
    }

    #[inline(always)]
    fn lt(self, other: Self) -> [bool; N] {
        std::array::from_fn(|i| self.0[i] < other.0[i])
    }
    #[inline(always)]
    fn select(mask: [bool; N], yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|i| if mask[i] { yes.0[i] } else { no.0[i] }))
    }

    #[inline(always)]
    fn exp(self) -> Self {
        T::Elementary::exp(self)
    }
    #[inline(always)]
    fn ln(self) -> Self {
        T::Elementary::ln(self)
    }
    #[inline(always)]
    fn tanh(self) -> Self {
        T::Elementary::tanh(self)
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        T::Elementary::sigmoid(self)
    }
    #[inline(always)]
    fn softplus(self) -> Self {
        T::Elementary::softplus(self)
    }
    #[inline(always)]
    fn powf(self, p: Self) -> Self {
        T::Elementary::powf(self, p)
    }

    #[inline(always)]
    fn sum(self) -> T {
        // Halving keeps the dependency chain short, as the vector instructions do.
        let mut lanes = self.0;
        let mut half = N / 2;
        while half > 0 {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
            half /= 2;
        }
        lanes[0]
    }
    #[inline(always)]
    fn largest(self) -> T {
        self.0.into_iter().fold(self.0[0], |a, b| if b > a { b } else { a })
    }
    #[inline(always)]
    fn smallest(self) -> T {
        self.0.into_iter().fold(self.0[0], |a, b| if b < a { b } else { a })
    }
}

/// Elementary functions of portable vectors: our own for `f32`, the standard library's for `f64`.
pub trait Elementary<T: SimdReal> {
    /// `e^x`.
    fn exp<const N: usize>(x: Array<T, N>) -> Array<T, N>;
    /// `ln x`.
    fn ln<const N: usize>(x: Array<T, N>) -> Array<T, N>;
    /// `tanh x`.
    fn tanh<const N: usize>(x: Array<T, N>) -> Array<T, N>;
    /// `1 / (1 + e^-x)`.
    fn sigmoid<const N: usize>(x: Array<T, N>) -> Array<T, N>;
    /// `ln(1 + e^x)`.
    fn softplus<const N: usize>(x: Array<T, N>) -> Array<T, N>;
    /// `x^p`.
    fn powf<const N: usize>(x: Array<T, N>, p: Array<T, N>) -> Array<T, N>;
}

/// Elementary functions from `vmath`.
pub struct ByVmath;

macro_rules! by_vmath {
    ($($name:ident),*) => {$(
        #[inline(always)]
        fn $name<const N: usize>(x: Array<f32, N>) -> Array<f32, N> {
            crate::cpu::vmath::$name(x)
        }
    )*};
}

impl Elementary<f32> for ByVmath {
    by_vmath!(exp, ln, tanh, sigmoid, softplus);
    #[inline(always)]
    fn powf<const N: usize>(x: Array<f32, N>, p: Array<f32, N>) -> Array<f32, N> {
        crate::cpu::vmath::powf(x, p)
    }
}

/// Elementary functions from the standard library.
pub struct ByLibrary;

impl<T: SimdReal> Elementary<T> for ByLibrary {
    #[inline(always)]
    fn exp<const N: usize>(x: Array<T, N>) -> Array<T, N> {
        x.map(T::exp)
    }
    #[inline(always)]
    fn ln<const N: usize>(x: Array<T, N>) -> Array<T, N> {
        x.map(T::ln)
    }
    #[inline(always)]
    fn tanh<const N: usize>(x: Array<T, N>) -> Array<T, N> {
        x.map(T::tanh)
    }
    #[inline(always)]
    fn sigmoid<const N: usize>(x: Array<T, N>) -> Array<T, N> {
        x.map(|x| T::ONE / (T::ONE + (-x).exp()))
    }
    #[inline(always)]
    fn softplus<const N: usize>(x: Array<T, N>) -> Array<T, N> {
        x.map(|x| x.max(T::ZERO) + (-x.abs()).exp().ln_1p())
    }
    #[inline(always)]
    fn powf<const N: usize>(x: Array<T, N>, p: Array<T, N>) -> Array<T, N> {
        x.zip(p, T::powf)
    }
}

impl<const N: usize> Exponent for Array<f32, N> {
    #[inline(always)]
    fn round(self) -> Self {
        // Adding 1.5 * 2^23 leaves no bits after the point.
        const SHIFT: f32 = 12_582_912.0;
        self.map(|x| (x + SHIFT) - SHIFT)
    }
    #[inline(always)]
    fn scale(self, k: Self) -> Self {
        // Two factors, so that subnormal results and 2^128 are reached.
        let power = |k: i32| f32::from_bits(((k + 127) as u32) << 23);
        self.zip(k, |x, k| {
            let k = k as i32;
            let half = k >> 1;
            x * power(half) * power(k - half)
        })
    }
    // Products of two `f32` are exact in `f64`; what the sum's second rounding adds is below a billionth of a unit.
    #[inline(always)]
    fn fma_once(self, a: Self, b: Self) -> Self {
        let once = |i: usize| f64::from(self.0[i]) * f64::from(a.0[i]) + f64::from(b.0[i]);
        Self(std::array::from_fn(|i| once(i) as f32))
    }
    #[inline(always)]
    fn product(self, other: Self) -> (Self, Self) {
        let exact = |i: usize| f64::from(self.0[i]) * f64::from(other.0[i]);
        let high = self * other;
        (high, Self(std::array::from_fn(|i| (exact(i) - f64::from(high.0[i])) as f32)))
    }
    #[inline(always)]
    fn split(self) -> (Self, Self) {
        const SUBNORMAL: f32 = 8_388_608.0; // 2^23
        const SQRT_HALF: u32 = 0x3f35_04f3;
        let lane = |x: f32| {
            let (x, extra) = if x < f32::MIN_POSITIVE { (x * SUBNORMAL, -23) } else { (x, 0) };
            let k = (x.to_bits().wrapping_sub(SQRT_HALF) as i32) >> 23;
            (f32::from_bits((x.to_bits() as i32).wrapping_sub(k << 23) as u32), (k + extra) as f32)
        };
        (self.map(|x| lane(x).0), self.map(|x| lane(x).1))
    }
}
