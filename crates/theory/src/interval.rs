//! Closed intervals of reals whose ends are rounded outward, so that a result computed in `f64` still encloses the
//! exact one.
//!
//! Rust offers no directed rounding, so every operation rounds to nearest and then steps one (for the four basic
//! operations and the square root, which IEEE 754 rounds correctly) or [`LIBM_ULPS`] (for library functions) floating
//! point numbers outward.

use std::ops::{Add, Div, Mul, Neg, Sub};

use serde::{Deserialize, Serialize};

/// How many units in the last place a library function (`exp`, `ln`, `tanh`, ...) may be wrong by, with a margin: the
/// widely used implementations stay below two.
pub const LIBM_ULPS: u32 = 4;

/// The next number below `x`, `steps` times.
#[must_use]
pub fn down_by(x: f64, steps: u32) -> f64 {
    -up_by(-x, steps)
}

/// The next number above `x`, `steps` times.
#[must_use]
pub fn up_by(mut x: f64, steps: u32) -> f64 {
    // Far from zero and infinity, numbers of one sign are ordered as their bits are.
    if (1e-290..1e290).contains(&x.abs()) {
        let steps = u64::from(steps);
        return f64::from_bits(if x > 0.0 { x.to_bits() + steps } else { x.to_bits() - steps });
    }
    for _ in 0..steps {
        x = x.next_up();
    }
    x
}

/// A closed interval `[lo, hi]`; either end may be infinite.
///
/// ```
/// use subdeq_theory::interval::Interval;
/// let third = Interval::point(1.0) / Interval::point(3.0);
/// assert!(third.lo < third.hi && (third * Interval::point(3.0)).contains(1.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// The lower end.
    pub lo: f64,
    /// The upper end; never below `lo`.
    pub hi: f64,
}

impl Interval {
    /// All reals: what is left to say after an undefined operation.
    pub const ALL: Interval = Interval { lo: f64::NEG_INFINITY, hi: f64::INFINITY };

    /// The interval from `lo` to `hi`. An end that is not a number, `lo > hi`, or ends that are the same infinity (a number too
    /// large to be one) give [`Interval::ALL`]: a wider answer is never a wrong one.
    #[must_use]
    pub fn new(lo: f64, hi: f64) -> Interval {
        let holds_numbers = lo <= hi && lo < f64::INFINITY && hi > f64::NEG_INFINITY;
        if holds_numbers { Interval { lo, hi } } else { Interval::ALL }
    }

    /// The interval that holds `x` alone.
    #[must_use]
    pub fn point(x: f64) -> Interval {
        Interval::new(x, x)
    }

    /// `hi - lo`, rounded up.
    #[must_use]
    pub fn width(self) -> f64 {
        if self.lo == self.hi { 0.0 } else { (self.hi - self.lo).next_up() }
    }

    /// A number in the middle, inside the interval whenever it is bounded.
    #[must_use]
    pub fn midpoint(self) -> f64 {
        (0.5 * self.lo + 0.5 * self.hi).clamp(self.lo, self.hi)
    }

    /// The largest `|x|` in the interval.
    #[must_use]
    pub fn magnitude(self) -> f64 {
        self.lo.abs().max(self.hi.abs())
    }

    /// The smallest `|x|` in the interval: its distance from zero.
    #[must_use]
    pub fn mignitude(self) -> f64 {
        if self.contains(0.0) { 0.0 } else { self.lo.abs().min(self.hi.abs()) }
    }

    /// Whether both ends are finite.
    #[must_use]
    pub fn is_bounded(self) -> bool {
        self.lo.is_finite() && self.hi.is_finite()
    }

    /// Whether `x` lies inside.
    #[must_use]
    pub fn contains(self, x: f64) -> bool {
        self.lo <= x && x <= self.hi
    }

    /// Whether every number of `other` lies inside.
    #[must_use]
    pub fn encloses(self, other: Interval) -> bool {
        self.lo <= other.lo && other.hi <= self.hi
    }

    /// The smallest interval that holds both.
    #[must_use]
    pub fn hull(self, other: Interval) -> Interval {
        Interval { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// What both have in common, `None` where that is nothing.
    #[must_use]
    pub fn intersect(self, other: Interval) -> Option<Interval> {
        let (lo, hi) = (self.lo.max(other.lo), self.hi.min(other.hi));
        (lo <= hi).then_some(Interval { lo, hi })
    }

    /// Both ends moved outward by `steps` floating point numbers.
    #[must_use]
    pub fn widened(self, steps: u32) -> Interval {
        Interval::new(down_by(self.lo, steps), up_by(self.hi, steps))
    }

    /// `{x^2}`.
    #[must_use]
    pub fn square(self) -> Interval {
        let (small, large) = (self.mignitude(), self.magnitude());
        Interval::new((small * small).next_down().max(0.0), (large * large).next_up())
    }

    /// `{sqrt x}`; negative numbers in the interval count as zero.
    #[must_use]
    pub fn sqrt(self) -> Interval {
        let root = |x: f64| x.max(0.0).sqrt();
        Interval::new(root(self.lo).next_down().max(0.0), root(self.hi).next_up())
    }

    /// `{e^x}`.
    #[must_use]
    pub fn exp(self) -> Interval {
        let e = self.increasing(f64::exp);
        Interval { lo: e.lo.max(0.0), hi: e.hi }
    }

    /// `{ln x}`; numbers not above zero give an unbounded lower end.
    #[must_use]
    pub fn ln(self) -> Interval {
        self.increasing(|x| if x > 0.0 { x.ln() } else { f64::NEG_INFINITY })
    }

    /// `{ln(1 + x)}`.
    #[must_use]
    pub fn ln_1p(self) -> Interval {
        self.increasing(|x| if x > -1.0 { x.ln_1p() } else { f64::NEG_INFINITY })
    }

    /// `{tanh x}`.
    #[must_use]
    pub fn tanh(self) -> Interval {
        let t = self.increasing(f64::tanh);
        Interval { lo: t.lo.max(-1.0), hi: t.hi.min(1.0) }
    }

    /// `{sech^2 x} = {1 - tanh^2 x}`, without cancellation: `4 e^-2|x| / (1 + e^-2|x|)^2`.
    #[must_use]
    pub fn sech_squared(self) -> Interval {
        let at = |distance: f64| {
            let decay = (Interval::point(-2.0) * Interval::point(distance)).exp();
            Interval::point(4.0) * decay / (Interval::point(1.0) + decay).square()
        };
        let (far, near) = (at(self.magnitude()), at(self.mignitude()));
        Interval::new(far.lo.max(0.0), near.hi.min(1.0))
    }

    /// `{x^p}` for `x > 0`.
    #[must_use]
    pub fn powf(self, p: f64) -> Interval {
        (self.ln() * Interval::point(p)).exp()
    }

    /// Image under an increasing library function, widened by [`LIBM_ULPS`].
    fn increasing(self, f: impl Fn(f64) -> f64) -> Interval {
        Interval::new(down_by(f(self.lo), LIBM_ULPS), up_by(f(self.hi), LIBM_ULPS))
    }
}

impl From<f64> for Interval {
    fn from(x: f64) -> Interval {
        Interval::point(x)
    }
}

impl Neg for Interval {
    type Output = Interval;
    fn neg(self) -> Interval {
        Interval { lo: -self.hi, hi: -self.lo }
    }
}

impl Add for Interval {
    type Output = Interval;
    fn add(self, other: Interval) -> Interval {
        let exact = |a: f64, b: f64| a == 0.0 || b == 0.0;
        let (lo, hi) = (self.lo + other.lo, self.hi + other.hi);
        Interval::new(
            if exact(self.lo, other.lo) { lo } else { lo.next_down() },
            if exact(self.hi, other.hi) { hi } else { hi.next_up() },
        )
    }
}

impl Sub for Interval {
    type Output = Interval;
    fn sub(self, other: Interval) -> Interval {
        self + -other
    }
}

impl Mul for Interval {
    type Output = Interval;
    fn mul(self, other: Interval) -> Interval {
        // 0 * infinity is not a number, and then everything: what is unbounded may also be undefined.
        corners(self, other, |a, b| a * b, |a, b| a == 0.0 || b == 0.0)
    }
}

impl Div for Interval {
    type Output = Interval;
    /// A divisor that contains zero gives [`Interval::ALL`].
    fn div(self, other: Interval) -> Interval {
        if other.contains(0.0) {
            return Interval::ALL;
        }
        corners(self, other, |a, b| a / b, |a, _| a == 0.0)
    }
}

/// The hull of `op` at the four pairs of ends, each rounded outward unless it is known to be exact.
fn corners(
    x: Interval,
    y: Interval,
    op: impl Fn(f64, f64) -> f64,
    exact: impl Fn(f64, f64) -> bool,
) -> Interval {
    let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
    for (a, b) in [(x.lo, y.lo), (x.lo, y.hi), (x.hi, y.lo), (x.hi, y.hi)] {
        let value = op(a, b);
        if value.is_nan() {
            return Interval::ALL;
        }
        lo = lo.min(if exact(a, b) { value } else { value.next_down() });
        hi = hi.max(if exact(a, b) { value } else { value.next_up() });
    }
    Interval::new(lo, hi)
}
