//! Complex Fourier transforms of short lengths, many at once: the lanes of a vector are different channels, so a
//! butterfly needs no shuffles.
//!
//! Stockham's self-sorting algorithm with mixed radices 8, 4, 2, 3, 5, 7; other primes by the definition.
//! The forward transform is `sum_j x_j exp(-2 pi i j k / n)`; the inverse, not scaled, is the forward one with real
//! and imaginary parts exchanged on both sides, so it needs no code.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};
use std::ops::{Add, Mul, Sub};

use crate::Real;
use crate::cpu::simd::{Lanes, SimdReal};

/// Where the complex numbers of a sequence lie: `re + i * stride` and `im + i * stride`.
#[derive(Clone, Copy)]
pub(crate) struct Strided<T> {
    pub re: *mut T,
    pub im: *mut T,
    pub stride: usize,
}

impl<T> Strided<T> {
    /// Real and imaginary parts exchanged: a forward transform of this is an inverse one.
    pub(crate) fn swapped(self) -> Self {
        Self { re: self.im, im: self.re, stride: self.stride }
    }
}

/// A complex vector in registers.
#[derive(Clone, Copy)]
pub(crate) struct Complex<V> {
    pub re: V,
    pub im: V,
}

impl<V: Lanes> Complex<V> {
    /// Element `index` of a sequence.
    ///
    /// # Safety
    /// Both parts of the element must be valid for reading `V::N` numbers.
    #[inline(always)]
    pub(crate) unsafe fn load(from: Strided<V::Elem>, index: usize) -> Self {
        // SAFETY: the caller says that element `index` of the sequence exists.
        unsafe {
            Self { re: load(from.re.add(index * from.stride)), im: load(from.im.add(index * from.stride)) }
        }
    }
    /// To element `index` of a sequence.
    ///
    /// # Safety
    /// Both parts of the element must be valid for writing `V::N` numbers.
    #[inline(always)]
    pub(crate) unsafe fn store(self, to: Strided<V::Elem>, index: usize) {
        // SAFETY: the caller says that element `index` of the sequence exists.
        unsafe {
            store(self.re, to.re.add(index * to.stride));
            store(self.im, to.im.add(index * to.stride));
        }
    }
    #[inline(always)]
    pub(crate) fn zero() -> Self {
        Self { re: V::zero(), im: V::zero() }
    }
    #[inline(always)]
    pub(crate) fn splat((re, im): (V::Elem, V::Elem)) -> Self {
        Self { re: V::splat(re), im: V::splat(im) }
    }
    #[inline(always)]
    pub(crate) fn conj(self) -> Self {
        Self { re: self.re, im: -self.im }
    }
    /// `self + i b`.
    #[inline(always)]
    pub(crate) fn add_i(self, b: Self) -> Self {
        Self { re: self.re - b.im, im: self.im + b.re }
    }
    /// `self - i b`.
    #[inline(always)]
    pub(crate) fn sub_i(self, b: Self) -> Self {
        Self { re: self.re + b.im, im: self.im - b.re }
    }
}

impl<V: Lanes> Add for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Self { re: self.re + b.re, im: self.im + b.im }
    }
}

impl<V: Lanes> Sub for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Self { re: self.re - b.re, im: self.im - b.im }
    }
}

impl<V: Lanes> Mul for Complex<V> {
    type Output = Self;
    #[inline(always)]
    fn mul(self, w: Self) -> Self {
        Self { re: (-self.im).fma(w.im, self.re * w.re), im: self.im.fma(w.re, self.re * w.im) }
    }
}

/// Reads a vector.
///
/// # Safety
/// `from` must be valid for reading `V::N` numbers.
#[inline(always)]
pub(crate) unsafe fn load<V: Lanes>(from: *const V::Elem) -> V {
    // SAFETY: the caller says so.
    V::load(unsafe { std::slice::from_raw_parts(from, V::N) })
}

/// Writes a vector.
///
/// # Safety
/// `to` must be valid for writing `V::N` numbers.
#[inline(always)]
pub(crate) unsafe fn store<V: Lanes>(vector: V, to: *mut V::Elem) {
    // SAFETY: the caller says so.
    vector.store(unsafe { std::slice::from_raw_parts_mut(to, V::N) })
}

/// One pass over the sequence.
struct Stage<T> {
    radix: usize,
    /// Length of the remaining transforms divided by the radix.
    m: usize,
    /// Product of the radices before.
    s: usize,
    /// `exp(-2 pi i p j / (m radix))` for `p < m`, `0 < j < radix`.
    twiddles: Vec<(T, T)>,
    /// `exp(-2 pi i j / radix)`.
    roots: Vec<(T, T)>,
}

/// The transform of one length.
pub(crate) struct Fft<T> {
    n: usize,
    stages: Vec<Stage<T>>,
}

fn radices(n: usize) -> Vec<usize> {
    let mut rest = n;
    let mut twos = 0;
    while rest.is_multiple_of(2) && rest > 0 {
        rest /= 2;
        twos += 1;
    }
    let mut list = match twos % 3 {
        _ if twos == 1 => vec![2],
        1 => vec![4, 4],
        2 => vec![4],
        _ => vec![],
    };
    let taken: usize = list.iter().map(|r: &usize| r.trailing_zeros() as usize).sum();
    list.extend(std::iter::repeat_n(8, (twos - taken) / 3));
    let mut p = 3;
    while rest > 1 {
        while rest.is_multiple_of(p) {
            list.push(p);
            rest /= p;
        }
        p += 2;
    }
    list.reverse();
    list
}

pub(crate) fn root<T: Real>(k: usize, n: usize) -> (T, T) {
    let angle = -TAU * (k % n) as f64 / n as f64;
    (T::from_f64(angle.cos()), T::from_f64(angle.sin()))
}

impl<T: SimdReal> Fft<T> {
    pub(crate) fn new(n: usize) -> Self {
        let (mut rest, mut s) = (n, 1);
        let stages = radices(n)
            .into_iter()
            .map(|radix| {
                let m = rest / radix;
                let twiddles = (0..m)
                    .flat_map(|p| (1..radix).map(move |j| (p, j)))
                    .map(|(p, j)| root(p * j, rest))
                    .collect();
                let stage =
                    Stage { radix, m, s, twiddles, roots: (0..radix).map(|j| root(j, radix)).collect() };
                rest = m;
                s *= radix;
                stage
            })
            .collect();
        Self { n, stages }
    }

    /// Numbers of scratch memory that [`Self::run`] needs for vectors of `lanes` numbers.
    pub(crate) fn scratch_len(&self, lanes: usize) -> usize {
        4 * self.n * lanes
    }

    /// Transforms one sequence of vectors; `input` and `output` may be the same memory.
    ///
    /// # Safety
    /// `input` must be valid for reading and `output` for writing `n` vectors, `scratch` for `scratch_len(V::N)`
    /// numbers and distinct from both.
    #[inline(always)]
    pub(crate) unsafe fn run<V: Lanes<Elem = T>>(
        &self,
        input: Strided<T>,
        output: Strided<T>,
        scratch: *mut T,
    ) {
        // SAFETY: the two halves of the scratch memory hold n complex vectors each.
        unsafe {
            let buffer = |k: usize| {
                let re = scratch.add((k % 2) * 2 * self.n * V::N);
                Strided { re, im: re.add(V::N), stride: 2 * V::N }
            };
            if self.stages.is_empty() {
                return Complex::<V>::load(input, 0).store(output, 0);
            }
            let last = self.stages.len() - 1;
            for (k, stage) in self.stages.iter().enumerate() {
                let from = if k == 0 { input } else { buffer(k - 1) };
                let in_place = matches!(stage.radix, 2..=5 | 7 | 8);
                let to = if k == last && in_place { output } else { buffer(k) };
                match stage.radix {
                    2 => stage.pass::<V, 2>(from, to),
                    3 => stage.pass::<V, 3>(from, to),
                    4 => stage.pass::<V, 4>(from, to),
                    5 => stage.pass::<V, 5>(from, to),
                    7 => stage.pass::<V, 7>(from, to),
                    8 => stage.pass::<V, 8>(from, to),
                    _ => stage.pass_by_definition::<V>(from, to),
                }
                if k == last && !in_place {
                    for i in 0..self.n {
                        Complex::<V>::load(to, i).store(output, i);
                    }
                }
            }
        }
    }
}

impl<T: SimdReal> Stage<T> {
    /// A pass for a radix with a butterfly.
    ///
    /// # Safety
    /// `R` is the radix; `from` must be valid for reading and `to` for writing `s * m * R` vectors.
    #[inline(always)]
    unsafe fn pass<V: Lanes<Elem = T>, const R: usize>(&self, from: Strided<T>, to: Strided<T>) {
        let (m, s) = (self.m, self.s);
        for p in 0..m {
            for q in 0..s {
                // SAFETY: q + s (p + m k) < s m R = n for k < R, and likewise on the other side.
                unsafe {
                    let mut a = [Complex::<V>::zero(); R];
                    for (k, a) in a.iter_mut().enumerate() {
                        *a = Complex::load(from, q + s * (p + m * k));
                    }
                    self.butterfly(&mut a);
                    for (j, b) in a.into_iter().enumerate() {
                        let b = if p == 0 || j == 0 {
                            b
                        } else {
                            b * Complex::splat(*self.twiddles.get_unchecked(p * (R - 1) + j - 1))
                        };
                        b.store(to, q + s * (R * p + j));
                    }
                }
            }
        }
    }

    /// The transform of `R` numbers, in place.
    #[inline(always)]
    fn butterfly<V: Lanes<Elem = T>, const R: usize>(&self, a: &mut [Complex<V>; R]) {
        match R {
            2 => (a[0], a[1]) = (a[0] + a[1], a[0] - a[1]),
            4 => {
                let b = butterfly4([a[0], a[1], a[2], a[3]]);
                a.copy_from_slice(&b);
            }
            8 => {
                let b = butterfly8([a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]]);
                a.copy_from_slice(&b);
            }
            _ => self.butterfly_odd(a),
        }
    }

    /// An odd length: the terms `k` and `R - k` are read together, the results `j` and `R - j` written together.
    #[inline(always)]
    fn butterfly_odd<V: Lanes<Elem = T>, const R: usize>(&self, a: &mut [Complex<V>; R]) {
        let input = *a;
        for k in 1..=R / 2 {
            a[0] = a[0] + (input[k] + input[R - k]);
        }
        for j in 1..=R / 2 {
            let (mut even, mut odd) = (input[0], Complex::zero());
            for k in 1..=R / 2 {
                let root = Complex::splat(self.roots[j * k % R]);
                let (sum, difference) = (input[k] + input[R - k], input[k] - input[R - k]);
                even = Complex { re: sum.re.fma(root.re, even.re), im: sum.im.fma(root.re, even.im) };
                odd = Complex {
                    re: difference.re.fma(root.im, odd.re),
                    im: difference.im.fma(root.im, odd.im),
                };
            }
            (a[j], a[R - j]) = (even.add_i(odd), even.sub_i(odd));
        }
    }

    /// A pass for a prime radix that has no butterfly.
    ///
    /// # Safety
    /// As for [`Self::pass`]; `from` and `to` are distinct.
    #[inline(always)]
    unsafe fn pass_by_definition<V: Lanes<Elem = T>>(&self, from: Strided<T>, to: Strided<T>) {
        let (r, m, s) = (self.radix, self.m, self.s);
        for (p, q) in (0..m).flat_map(|p| (0..s).map(move |q| (p, q))) {
            for j in 0..r {
                let mut sum = Complex::<V>::zero();
                for k in 0..r {
                    // SAFETY: q + s (p + m k) < n.
                    let a = unsafe { Complex::<V>::load(from, q + s * (p + m * k)) };
                    sum = sum + a * Complex::splat(self.roots[j * k % r]);
                }
                if p > 0 && j > 0 {
                    sum = sum * Complex::splat(self.twiddles[p * (r - 1) + j - 1]);
                }
                // SAFETY: q + s (r p + j) < n.
                unsafe { sum.store(to, q + s * (r * p + j)) };
            }
        }
    }
}

#[inline(always)]
fn butterfly4<V: Lanes>([a0, a1, a2, a3]: [Complex<V>; 4]) -> [Complex<V>; 4] {
    let (even, odd) = ((a0 + a2, a0 - a2), (a1 + a3, a1 - a3));
    [even.0 + odd.0, even.1.sub_i(odd.1), even.0 - odd.0, even.1.add_i(odd.1)]
}

#[inline(always)]
fn butterfly8<V: Lanes>(a: [Complex<V>; 8]) -> [Complex<V>; 8] {
    let even = butterfly4([a[0], a[2], a[4], a[6]]);
    let odd = butterfly4([a[1], a[3], a[5], a[7]]);
    let half = V::constant(FRAC_1_SQRT_2);
    // Times exp(-i pi/4) = (1 - i)/sqrt 2, and minus exp(-3 i pi/4) = (1 + i)/sqrt 2.
    let first = Complex { re: (odd[1].re + odd[1].im) * half, im: (odd[1].im - odd[1].re) * half };
    let third = Complex { re: (odd[3].re - odd[3].im) * half, im: (odd[3].re + odd[3].im) * half };
    [
        even[0] + odd[0],
        even[1] + first,
        even[2].sub_i(odd[2]),
        even[3] - third,
        even[0] - odd[0],
        even[1] - first,
        even[2].add_i(odd[2]),
        even[3] + third,
    ]
}

#[cfg(test)]
mod tests {
    use super::{Fft, Strided};
    use crate::cpu::isa::{Isa, Vectorised};
    use crate::cpu::simd::{Lanes, SimdReal};

    /// Transforms one sequence (the same in all lanes, times the lane's number plus one) and takes it back.
    struct ThereAndBack<'a, T> {
        fft: &'a Fft<T>,
        x: &'a [(f64, f64)],
    }

    impl<T: SimdReal> Vectorised<T> for ThereAndBack<'_, T> {
        type Output = [Vec<(f64, f64)>; 2];

        #[inline(always)]
        fn run<V: Lanes<Elem = T>>(self) -> Self::Output {
            let n = self.x.len();
            let mut data = vec![T::ZERO; 2 * n * V::N];
            for (i, x) in self.x.iter().enumerate() {
                for lane in 0..V::N {
                    data[2 * i * V::N + lane] = T::from_f64(x.0 * (lane + 1) as f64);
                    data[(2 * i + 1) * V::N + lane] = T::from_f64(x.1 * (lane + 1) as f64);
                }
            }
            let mut scratch = vec![T::ZERO; self.fft.scratch_len(V::N)];
            let start = data.as_mut_ptr();
            let lane = V::N - 1;
            [false, true].map(|inverse| {
                // SAFETY: the data hold n complex vectors, the scratch memory is as long as asked for.
                unsafe {
                    let sequence = Strided { re: start, im: start.add(V::N), stride: 2 * V::N };
                    let sequence = if inverse { sequence.swapped() } else { sequence };
                    self.fft.run::<V>(sequence, sequence, scratch.as_mut_ptr());
                    let read = |at: usize| (*start.add(at)).to_f64() / (lane + 1) as f64;
                    (0..n).map(|i| (read(2 * i * V::N + lane), read((2 * i + 1) * V::N + lane))).collect()
                }
            })
        }
    }

    fn check<T: SimdReal>(isa: Isa, n: usize, accepted: f64) {
        let x: Vec<(f64, f64)> = (0..n).map(|i| ((i as f64 * 0.7).sin(), (i as f64 * 1.3).cos())).collect();
        let [there, back] = isa.dispatch(ThereAndBack { fft: &Fft::<T>::new(n), x: &x });
        for k in 0..n {
            let sum = x.iter().enumerate().fold((0.0, 0.0), |sum, (j, x)| {
                let (sin, cos) = (-std::f64::consts::TAU * (j * k % n) as f64 / n as f64).sin_cos();
                (sum.0 + x.0 * cos - x.1 * sin, sum.1 + x.0 * sin + x.1 * cos)
            });
            let gap = (there[k].0 - sum.0).hypot(there[k].1 - sum.1);
            assert!(gap <= accepted * n as f64, "{} length {n}, frequency {k}: off by {gap}", isa.name());
            let gap = (back[k].0 / n as f64 - x[k].0).hypot(back[k].1 / n as f64 - x[k].1);
            assert!(
                gap <= accepted * n as f64,
                "{} length {n}, entry {k}: back with an error of {gap}",
                isa.name()
            );
        }
    }

    #[test]
    fn transforms_are_those_of_the_definition() {
        for isa in Isa::available() {
            for n in (1..=40).chain([45, 49, 56, 64, 77, 96, 128, 210]) {
                check::<f32>(isa, n, 4e-7);
                check::<f64>(isa, n, 1e-15);
            }
        }
    }
}
