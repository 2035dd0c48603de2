//! One pull back through the map: from what arrives at the image to what is fed to the transposed matrix.
//!
//! With `g` the gradient for an image, `p = (d norm)^T g` the one before its normalisation and `q = s'(u) p` the one for
//! the preactivation, the gradient for the argument is `(1 - t) A^T q` and the one for the injection `t p` (outer) or
//! `t q` (inner). A pass computes `q` from the `q` of the step after: `g = (1 - t) A^T q + v`. Slopes are not stored:
//! `tanh u` is recovered from the image.

use std::ops::Range;

use super::adjacency::Entries;
use super::part::Part;
use super::propagate::{Constants, Finish, Source};
use super::residual::Residual;
use crate::Measure;
use crate::cpu::distance::Distance;
use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal};

impl<T: SimdReal> Constants<T> {
    /// `s'(u)` from an image before its normalisation.
    #[inline(always)]
    pub fn slope<V: Lanes<Elem = T>>(&self, raw: V, injection: V) -> V {
        if !self.tanh {
            return V::one();
        }
        let injected = if self.inner { V::zero() } else { injection * V::splat(self.teleport) };
        let tanh = raw - injected - V::splat(self.shift);
        (V::one() - tanh * tanh).max(V::zero())
    }
}

/// One where an entry has the norm of its group: exactly there its normalised absolute value is 1.
#[inline(always)]
pub(crate) fn is_top<V: Lanes>(normalised: V) -> V {
    V::select(normalised.abs().lt(V::one()), V::zero(), V::one())
}

/// One chunk of a pull back.
pub(crate) struct Pull<'a, T> {
    pub constants: Constants<T>,
    /// Entries of the transposed matrix.
    pub entries: Entries<'a, T>,
    pub rows: Range<usize>,
    /// The `q` of the step after, whole; `None` stands for zero.
    pub after: Option<&'a [T]>,
    /// What its product with the transposed matrix is made of.
    pub source: Option<Source<'a, T>>,
    /// What arrives besides, whole.
    pub arriving: Option<&'a [T]>,
    /// The image of this step, whole.
    pub image: &'a [T],
    /// Its norms, one per row or per column of the whole.
    pub norms: &'a [T],
    /// `f`, whole.
    pub injection: &'a [T],
    /// The rows of `q`.
    pub q: &'a mut [T],
    /// The rows of the injection's gradient, to be added to.
    pub injection_gradient: Option<&'a mut [T]>,
    /// `sum g z` of this chunk's columns, where columns are normalised.
    pub column_products: &'a mut [f64],
    pub measure: Option<Measure>,
}

impl<T: SimdReal> Vectorised<T> for Pull<'_, T> {
    type Output = Distance;

    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> Distance {
        let Self { constants, entries, rows, after, source, arriving, image, norms, injection, q, .. } = self;
        let mut injection_gradient = self.injection_gradient;
        let stride = constants.stride;
        let mut residual = Residual::<V>::new(self.measure.filter(|_| after.is_some()));
        let columns_normalised = constants.finish.by_column();
        self.column_products.fill(0.0);
        for row in rows.clone() {
            let own = row * stride..(row + 1) * stride;
            let here = (row - rows.start) * stride..(row - rows.start + 1) * stride;
            let out = &mut q[here.clone()];
            match &source {
                // SAFETY: as in `Propagate`.
                Some(source) => unsafe { source.row_product::<V>(&entries, row, stride, out) },
                None => out.fill(T::ZERO),
            }
            let z = &image[own.clone()];
            let f = &injection[own.clone()];
            let correction = arrive::<V>(&constants, arriving.map(|v| &v[own.clone()]), z, out);
            if columns_normalised {
                for ((sum, &g), &z) in self.column_products.iter_mut().zip(out.iter()).zip(z) {
                    *sum += g.to_f64() * z.to_f64();
                }
            }
            for at in (0..stride).step_by(V::N) {
                let normalised = V::load(&z[at..]);
                let g = V::load(&out[at..]);
                let norm = match constants.finish {
                    Finish::Plain => V::one(),
                    Finish::Rows | Finish::Ball(_) => V::splat(norms[row]),
                    Finish::Columns => V::load(&norms[at..]),
                };
                let p = match constants.finish {
                    Finish::Plain => g,
                    Finish::Rows => {
                        (g - is_top(normalised).copysign(normalised) * V::splat(correction)) / norm
                    }
                    // On the sphere what points outwards is lost; within the ball nothing is, and the norm is 1.
                    Finish::Ball(_) if norms[row] > T::ONE => (g - normalised * V::splat(correction)) / norm,
                    Finish::Ball(_) => g,
                    Finish::Columns => g / norm,
                };
                let new = p * constants.slope(normalised * norm, V::load(&f[at..]));
                if let Some(gradient) = &mut injection_gradient {
                    let gradient = &mut gradient[here.start + at..];
                    let part = if constants.inner { new } else { p };
                    part.fma(V::splat(constants.teleport), V::load(gradient)).store(gradient);
                }
                new.store(&mut out[at..]);
                if let Some(after) = after {
                    let old = V::load(&after[own.start + at..]);
                    if columns_normalised {
                        // Tops still lack their correction, which needs the sums over all rows.
                        let rest = V::one() - is_top(normalised);
                        residual.add(old * rest, new * rest, constants.valid::<V>(at));
                    } else {
                        residual.add(old, new, constants.valid::<V>(at));
                    }
                }
            }
        }
        residual.finish()
    }
}

/// Turns a product into `g = (1 - t) product + v`; returns what each top of a normalised row has to give up,
/// `sum g z / number of tops`, or how much of `z` a projected row has to, `sum g z / radius^2`.
#[inline(always)]
fn arrive<V: Lanes>(
    constants: &Constants<V::Elem>,
    arriving: Option<&[V::Elem]>,
    z: &[V::Elem],
    out: &mut [V::Elem],
) -> V::Elem {
    use crate::Real;
    let (mut product, mut tops) = (V::zero(), V::zero());
    for at in (0..constants.stride).step_by(V::N) {
        let mut g = V::load(&out[at..]) * V::splat(constants.keep);
        if let Some(arriving) = arriving {
            g = g + V::load(&arriving[at..]);
        }
        g.store(&mut out[at..]);
        if constants.finish.by_row() {
            let z = V::load(&z[at..]);
            product = g.fma(z, product);
            tops = tops + is_top(z);
        }
    }
    match constants.finish {
        Finish::Rows => product.sum() / tops.sum().max(V::Elem::ONE),
        Finish::Ball(radius) => product.sum() / (radius * radius),
        Finish::Plain | Finish::Columns => V::Elem::ZERO,
    }
}

/// Where the columns of a normalised state have their norms: the entries whose gradient depends on all others.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tops {
    places: Vec<(usize, usize)>,
    counts: Vec<f64>,
}

impl Tops {
    /// Finds them.
    pub fn find<T: SimdReal>(&mut self, state: &[T], constants: &Constants<T>) {
        self.places.clear();
        self.counts.clear();
        self.counts.resize(constants.channels, 0.0);
        for (row, numbers) in state.chunks_exact(constants.stride).enumerate() {
            for (channel, &z) in numbers[..constants.channels].iter().enumerate() {
                if z.abs() >= T::ONE {
                    self.places.push((row, channel));
                    self.counts[channel] += 1.0;
                }
            }
        }
    }

    /// Counts those of all processes.
    pub fn count_together<T: SimdReal>(&mut self, part: &Part<T>) {
        part.sum(&mut self.counts);
    }

    /// Completes a pull back: `products` are the sums `g z` of the columns. What the tops add to the distance of `after` and `q`
    /// goes to `distance`.
    pub fn correct<T: SimdReal>(&self, pull: &mut TopCorrection<'_, T>, distance: &mut Distance) {
        let TopCorrection { constants, image, norms, injection, products, after, q, injection_gradient } =
            pull;
        for &(row, channel) in &self.places {
            let at = row * constants.stride + channel;
            let z = image[at];
            let p = T::from_f64(products[channel] / (self.counts[channel] * norms[channel].to_f64())) * z;
            let raw = z * norms[channel];
            let injected = if constants.inner { T::ZERO } else { injection[at] * constants.teleport };
            let tanh = raw - injected - constants.shift;
            let slope = if constants.tanh { (T::ONE - tanh * tanh).max(T::ZERO) } else { T::ONE };
            q[at] -= p * slope;
            if let Some(gradient) = injection_gradient {
                gradient[at] -= constants.teleport * if constants.inner { p * slope } else { p };
            }
            if let Some(after) = after {
                let gap = (q[at] - after[at]).to_f64();
                let size = q[at].to_f64();
                distance.merge(Distance { difference: gap * gap, size: size * size, high: gap, low: gap });
            }
        }
    }
}

/// What [`Tops::correct`] works on; all arrays are whole.
pub(crate) struct TopCorrection<'a, T> {
    pub constants: Constants<T>,
    pub image: &'a [T],
    pub norms: &'a [T],
    pub injection: &'a [T],
    pub products: &'a [f64],
    pub after: Option<&'a [T]>,
    pub q: &'a mut [T],
    pub injection_gradient: Option<&'a mut [T]>,
}
