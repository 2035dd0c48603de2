//! Activations of rows: `h(u) = (s(u) + base)^power` and its derivative.

use crate::cpu::distance::{Distance, Squares};
use crate::cpu::simd::{Lanes, for_vectors, get, put};
use crate::{Activation, Injection, ShapedMap};

/// A scalar function and its derivative, in vectors.
pub(super) trait Scalar: Copy {
    fn value<V: Lanes>(self, u: V) -> V;
    /// The derivative at `u`, where the value is `s`.
    fn slope<V: Lanes>(self, u: V, s: V) -> V;
}

#[derive(Clone, Copy)]
pub(super) struct Tanh;
impl Scalar for Tanh {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        u.tanh()
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, _: V, s: V) -> V {
        (V::one() - s) * (V::one() + s)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Sigmoid;
impl Scalar for Sigmoid {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        u.sigmoid()
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, _: V, s: V) -> V {
        s * (V::one() - s)
    }
}

#[derive(Clone, Copy)]
pub(super) struct Softplus {
    pub beta: f64,
}
impl Scalar for Softplus {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        (u * V::constant(self.beta)).softplus() * V::constant(1.0 / self.beta)
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, u: V, _: V) -> V {
        (u * V::constant(self.beta)).sigmoid()
    }
}

#[derive(Clone, Copy)]
struct Softsign;
impl Scalar for Softsign {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        // An infinite argument would give NaN; 1e30 is beyond where the value rounds to 1.
        let size = u.abs().min(V::constant(1e30));
        (size / (V::one() + size)).copysign(u)
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, u: V, _: V) -> V {
        let r = V::one() / (V::one() + u.abs());
        r * r
    }
}

#[derive(Clone, Copy)]
struct HardTanh {
    lo: f64,
    hi: f64,
}
impl Scalar for HardTanh {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        V::constant(self.lo).max(V::constant(self.hi).min(u))
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, u: V, _: V) -> V {
        let below = V::select(u.lt(V::constant(self.hi)), V::one(), V::zero());
        V::select(V::constant(self.lo).lt(u), below, V::zero())
    }
}

#[derive(Clone, Copy)]
struct LeakyRelu {
    slope: f64,
}
impl Scalar for LeakyRelu {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        V::select(V::zero().lt(u), u, u * V::constant(self.slope))
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, u: V, _: V) -> V {
        V::select(V::zero().lt(u), V::one(), V::constant(self.slope))
    }
}

#[derive(Clone, Copy)]
struct Identity;
impl Scalar for Identity {
    #[inline(always)]
    fn value<V: Lanes>(self, u: V) -> V {
        u
    }
    #[inline(always)]
    fn slope<V: Lanes>(self, _: V, _: V) -> V {
        V::one()
    }
}

/// Calls `$work` with the scalar function of an activation; the choice is made once per row, not per number.
macro_rules! with_scalar {
    ($activation:expr, $scalar:ident => $work:expr) => {
        match $activation {
            Activation::Tanh => {
                let $scalar = Tanh;
                $work
            }
            Activation::Sigmoid => {
                let $scalar = Sigmoid;
                $work
            }
            Activation::Softplus { beta } => {
                let $scalar = Softplus { beta };
                $work
            }
            Activation::Softsign => {
                let $scalar = Softsign;
                $work
            }
            Activation::HardTanh { lo, hi } => {
                let $scalar = HardTanh { lo, hi };
                $work
            }
            Activation::Relu => {
                let $scalar = LeakyRelu { slope: 0.0 };
                $work
            }
            Activation::LeakyRelu { slope } => {
                let $scalar = LeakyRelu { slope };
                $work
            }
            Activation::Identity => {
                let $scalar = Identity;
                $work
            }
        }
    };
}

/// Whether `h` is just the activation.
pub(crate) fn is_plain(map: &ShapedMap) -> bool {
    map.power == 1.0
}

/// `row <- s(row)`, without base and power.
#[inline(always)]
pub(crate) fn activate_plain<V: Lanes>(activation: Activation, row: &mut [V::Elem]) {
    with_scalar!(activation, s => for_vectors!(V, row.len(), |at, count| {
        put(s.value(get::<V>(row, at, count)), row, at, count);
    }));
}

/// `row <- h(row)`.
#[inline(always)]
pub(crate) fn activate<V: Lanes>(map: &ShapedMap, row: &mut [V::Elem]) {
    activate_plain::<V>(map.activation, row);
    if is_plain(map) {
        return;
    }
    let (base, power) = (V::constant(map.base), V::constant(map.power));
    for_vectors!(V, row.len(), |at, count| {
        let s = get::<V>(row, at, count) + base;
        put(s.powf(power), row, at, count);
    });
}

/// `out <- s(u + y) + shift` or `s(u) + y + shift` and its distance from the argument `z`, in one pass.
#[inline(always)]
pub(crate) fn activate_and_measure<V: Lanes>(
    map: &ShapedMap,
    u: &[V::Elem],
    y: &[V::Elem],
    z: &[V::Elem],
    out: &mut [V::Elem],
) -> Distance {
    let shift = V::constant(map.shift);
    let mut squares = Squares::<V>::new();
    with_scalar!(map.activation, s => match map.injection {
        Injection::Inner => for_vectors!(V, out.len(), |at, count| {
            let sum = get::<V>(u, at, count) + get::<V>(y, at, count);
            let image = (s.value(sum) + shift).first(count, V::zero());
            put(image, out, at, count);
            squares.add(get::<V>(z, at, count), image);
        }),
        Injection::Outer => for_vectors!(V, out.len(), |at, count| {
            let offset = get::<V>(y, at, count) + shift;
            let image = (s.value(get::<V>(u, at, count)) + offset).first(count, V::zero());
            put(image, out, at, count);
            squares.add(get::<V>(z, at, count), image);
        }),
    });
    squares.distance()
}

/// `slope <- h'(row)`, `row <- h(row)`.
#[inline(always)]
pub(crate) fn activate_with_slope<V: Lanes>(map: &ShapedMap, row: &mut [V::Elem], slope: &mut [V::Elem]) {
    with_scalar!(map.activation, f => for_vectors!(V, row.len(), |at, count| {
        let u = get::<V>(row, at, count);
        let s = f.value(u);
        put(f.slope(u, s), slope, at, count);
        put(s, row, at, count);
    }));
    if is_plain(map) {
        return;
    }
    let (base, power) = (V::constant(map.base), V::constant(map.power));
    for_vectors!(V, row.len(), |at, count| {
        let s = get::<V>(row, at, count) + base;
        let h = s.powf(power);
        put(get::<V>(slope, at, count) * (power * h / s), slope, at, count);
        put(h, row, at, count);
    });
}
