//! Elementary functions of `f32` vectors: relative error at most 3e-7 wherever the result is a normal number.
//!
//! The polynomials and the rational function were fitted for this file (weighted minimax by Lawson's iteration in
//! `f64`, coefficients rounded to `f32`); the errors stated are those of the fit, before rounding. The tests sweep all
//! binades of `f32` against `f64` on every instruction set.

use crate::cpu::simd::Exponent;

/// ln 2 in two parts; the first has so few bits that its product with any exponent is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `c[0] + c[1] x + ...` by Horner's rule.
#[inline(always)]
fn polynomial<V: Exponent, const K: usize>(x: V, c: [f32; K]) -> V {
    let mut sum = V::splat(c[K - 1]);
    for &c in c[..K - 1].iter().rev() {
        sum = sum.fma_once(x, V::splat(c));
    }
    sum
}

/// `e^(x + extra)`, the sum not being rounded. Reduced to `|r| <= ln(2)/2`, where
/// `e^r = 1 + r + r^2 Q(r)` (error 3e-9).
#[inline(always)]
fn exp_sum<V: Exponent>(x: V, extra: V) -> V {
    // Beyond these ends the result is infinite or zero anyway; NaN passes through (`max` and `min` take the second
    // operand then).
    let x = V::splat(-110.0).max(V::splat(100.0).min(x));
    let k = ((x + extra) * V::splat(std::f32::consts::LOG2_E)).round();
    let r = k.fma(V::splat(-LN2_LOW), k.fma(V::splat(-LN2_HIGH), x)) + extra;
    let q = polynomial(r, [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_712, 0.001_381_460_9]);
    ((r * r).fma(q, r) + V::one()).scale(k)
}

/// `e^x`.
#[inline(always)]
pub(crate) fn exp<V: Exponent>(x: V) -> V {
    exp_sum(x, V::zero())
}

/// `ln(1 + t) - t` for `1 + t` in `[sqrt(1/2), sqrt(2))`: `-t^2/2 + t^3 R(t)` (error 6e-9).
#[inline(always)]
fn log_tail<V: Exponent>(t: V) -> V {
    let r = polynomial(
        t,
        [
            0.333_333_3,
            -0.250_008_23,
            0.200_012_27,
            -0.166_233_55,
            0.142_017_6,
            -0.131_602,
            0.127_615_75,
            -0.076_344_46,
        ],
    );
    let t2 = t * t;
    (t * t2).fma(r, V::splat(-0.5) * t2)
}

/// `ln x`; NaN for negative `x`, minus infinity at 0.
#[inline(always)]
pub(crate) fn ln<V: Exponent>(x: V) -> V {
    let (m, k) = x.split();
    let t = m - V::one();
    let value = k.fma(V::splat(LN2_HIGH), t + k.fma(V::splat(LN2_LOW), log_tail(t)));
    // What `split` does not cover: zero, negative numbers, infinity, NaN.
    let ordinary = V::splat(f32::MAX).min(x);
    let value = V::select(V::splat(f32::MAX).lt(x), x, value);
    let at_zero = V::select(ordinary.lt(V::zero()), V::splat(f32::NAN), V::splat(f32::NEG_INFINITY));
    let value = V::select(V::zero().lt(ordinary), value, at_zero);
    // Adding 0 x turns NaN arguments, which every comparison let through, into NaN.
    V::select(x.abs().lt(V::splat(f32::INFINITY)), value, x + value)
}

/// `tanh x`: an odd rational function of degrees 9 and 8 with positive coefficients (error 2e-8), 1 beyond 9.02.
#[inline(always)]
pub(crate) fn tanh<V: Exponent>(x: V) -> V {
    const END: f32 = 9.02;
    let x = V::splat(-END).max(V::splat(END).min(x));
    let x2 = x * x;
    let p = polynomial(x2, [1.0, 0.133_797_12, 0.003_494_027_3, 2.058_335_7e-5, 1.331_889_35e-8]);
    let q = polynomial(x2, [1.0, 0.467_130_27, 0.025_871_046, 3.283_081e-4, 7.761_948e-7]);
    let value = (x * p).over(q);
    // Rounding must not push it beyond 1: its derivative 1 - tanh^2 would turn negative.
    V::splat(-1.0).max(V::one().min(value))
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn sigmoid<V: Exponent>(x: V) -> V {
    V::one() / (V::one() + exp(-x))
}

/// `ln(1 + e^x)`.
#[inline(always)]
pub(crate) fn softplus<V: Exponent>(x: V) -> V {
    // ln(1 + t) with the rounding error of 1 + t put back.
    let t = exp(-(x.abs()));
    let u = V::one() + t;
    let log = ln(u) + (t - (u - V::one())) / u;
    x.max(V::zero()) + log
}

/// `x^p` for `x >= 0`, `p > 0`. The error grows with `|p|` beyond 4 (about `1e-7 |p|`).
#[inline(always)]
pub(crate) fn powf<V: Exponent>(x: V, p: V) -> V {
    let (m, k) = x.split();
    let t = m - V::one();
    // p ln x = p (k LN2_HIGH) + p (k LN2_LOW + t + tail): the first product is large and kept exactly.
    let (high, low) = p.product(k * V::splat(LN2_HIGH));
    let rest = p * (t + k.fma(V::splat(LN2_LOW), log_tail(t)));
    let value = exp_sum(high, low + rest);
    let value = V::select(V::splat(f32::MAX).lt(x), x, value);
    let value = V::select(V::zero().lt(x), value, x * V::zero());
    let negative_or_nan = V::select(x.lt(V::zero()), V::splat(f32::NAN), V::zero());
    value + negative_or_nan
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use crate::cpu::isa::{Isa, Vectorised};
    use crate::cpu::simd::{Lanes, for_vectors, get, put};

    /// The functions under test.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Function {
        Exp,
        Ln,
        Tanh,
        Sigmoid,
        Softplus,
        Power(f32),
    }

    impl Function {
        fn exact(self, x: f32) -> f64 {
            let x = f64::from(x);
            match self {
                Self::Exp => x.exp(),
                Self::Ln => x.ln(),
                Self::Tanh => x.tanh(),
                Self::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Self::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
                Self::Power(p) => x.powf(f64::from(p)),
            }
        }
    }

    struct Sweep<'a> {
        function: Function,
        x: &'a mut [f32],
    }

    impl Vectorised<f32> for Sweep<'_> {
        type Output = ();
        #[inline(always)]
        fn run<V: Lanes<Elem = f32>>(self) {
            let Self { function, x } = self;
            for_vectors!(V, x.len(), |at, count| {
                let v = get::<V>(x, at, count);
                let value = match function {
                    Function::Exp => v.exp(),
                    Function::Ln => v.ln(),
                    Function::Tanh => v.tanh(),
                    Function::Sigmoid => v.sigmoid(),
                    Function::Softplus => v.softplus(),
                    Function::Power(p) => v.powf(V::splat(p)),
                };
                put(value, x, at, count);
            });
        }
    }

    const FUNCTIONS: [Function; 11] = [
        Function::Exp,
        Function::Ln,
        Function::Tanh,
        Function::Sigmoid,
        Function::Softplus,
        Function::Power(0.4),
        Function::Power(0.99),
        Function::Power(0.999),
        Function::Power(1.0 / 3.0),
        Function::Power(2.5),
        Function::Power(3.9),
    ];

    /// The error of a value: relative where the exact one is a normal number, else whether it is beyond them as well.
    fn error(value: f32, exact: f64) -> f64 {
        let value = f64::from(value);
        if exact.abs() > f64::from(f32::MAX) * (1.0 - 1e-6) {
            f64::from(u8::from(!(value * exact.signum() > 3.3e38)))
        } else if exact.abs() < 2.0 * f64::from(f32::MIN_POSITIVE) {
            f64::from(u8::from(!((value - exact).abs() <= f64::from(f32::MIN_POSITIVE))))
        } else {
            (value - exact).abs() / exact.abs()
        }
    }

    /// The largest errors of all functions on all instruction sets, over the bit patterns `0, stride, 2 stride, ..`.
    fn sweep(stride: u32) -> Vec<(Function, Isa, f64, f32)> {
        const BLOCK: u32 = 1 << 16;
        // Two threads share the blocks of each function.
        let of_block = |function: Function, first: u32| {
            let patterns = (first..first.saturating_add(BLOCK * stride)).step_by(stride as usize);
            let defined = |x: &f32| {
                x.is_finite()
                    && (x.is_sign_positive() || !matches!(function, Function::Ln | Function::Power(_)))
            };
            let arguments: Vec<f32> = patterns.map(f32::from_bits).filter(defined).collect();
            let exact: Vec<f64> = arguments.iter().map(|&x| function.exact(x)).collect();
            Isa::available().filter(|isa| !isa.has_amx()).map(move |isa| {
                let mut values = arguments.clone();
                isa.dispatch(Sweep { function, x: &mut values });
                let errors = arguments.iter().zip(values.iter().zip(&exact));
                let errors = errors.map(|(&x, (&value, &exact))| (error(value, exact), x));
                errors.fold((0.0, 0.0), |worst, new| if new.0 > worst.0 { new } else { worst })
            })
        };
        let mut found = Vec::new();
        for function in FUNCTIONS {
            let blocks = (0..u32::MAX).step_by((BLOCK * stride) as usize);
            let worst = blocks.collect::<Vec<_>>().into_par_iter();
            let worst = worst.map(|first| of_block(function, first).collect::<Vec<_>>());
            let worst = worst.reduce(Vec::new, |a, b| {
                if a.is_empty() || b.is_empty() {
                    return if a.is_empty() { b } else { a };
                }
                a.into_iter().zip(b).map(|(a, b)| if b.0 > a.0 { b } else { a }).collect()
            });
            let isas = Isa::available().filter(|isa| !isa.has_amx());
            found.extend(isas.zip(worst).map(|(isa, (error, x))| (function, isa, error, x)));
        }
        found
    }

    /// All of `f32`, both signs, with a stride (a prime) that meets every binade at 33,000 different mantissas.
    #[test]
    fn relative_error_over_all_of_f32() {
        for (function, isa, error, x) in sweep(251) {
            assert!(error <= 3e-7, "{function:?} on {}: error {error:e} at {x:e}", isa.name());
        }
    }

    /// Every finite `f32`. Takes an hour of processor time:
    /// `cargo test --release -p subdeq-engine every_f32 -- --ignored --nocapture`.
    #[test]
    #[ignore = "an hour of processor time"]
    fn relative_error_of_every_f32() {
        for (function, isa, error, x) in sweep(1) {
            println!("{function:?} on {}: at most {error:.2e}, at {x:e}", isa.name());
            assert!(error <= 3e-7, "{function:?} on {}: error {error:e} at {x:e}", isa.name());
        }
    }

    #[test]
    fn special_values() {
        for isa in Isa::available() {
            let value = |function, x| {
                let mut x = [x];
                isa.dispatch(Sweep { function, x: &mut x });
                x[0]
            };
            for function in FUNCTIONS {
                assert!(value(function, f32::NAN).is_nan(), "{function:?} of NaN on {}", isa.name());
            }
            assert_eq!(value(Function::Exp, f32::NEG_INFINITY), 0.0);
            assert_eq!(value(Function::Exp, f32::INFINITY), f32::INFINITY);
            assert_eq!(value(Function::Exp, 0.0), 1.0);
            assert_eq!(value(Function::Ln, 0.0), f32::NEG_INFINITY);
            assert_eq!(value(Function::Ln, 1.0), 0.0);
            assert_eq!(value(Function::Ln, f32::INFINITY), f32::INFINITY);
            assert!(value(Function::Ln, -1.0).is_nan());
            assert_eq!(value(Function::Tanh, f32::INFINITY), 1.0);
            assert_eq!(value(Function::Tanh, f32::NEG_INFINITY), -1.0);
            assert_eq!(value(Function::Sigmoid, f32::INFINITY), 1.0);
            assert_eq!(value(Function::Sigmoid, f32::NEG_INFINITY), 0.0);
            assert_eq!(value(Function::Softplus, f32::INFINITY), f32::INFINITY);
            assert_eq!(value(Function::Softplus, f32::NEG_INFINITY), 0.0);
            assert_eq!(value(Function::Power(0.5), 0.0), 0.0);
            assert_eq!(value(Function::Power(0.5), f32::INFINITY), f32::INFINITY);
            assert!(value(Function::Power(0.5), -2.0).is_nan());
        }
    }
}
