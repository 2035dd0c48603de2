//! Degrees of subhomogeneity: by how much a map stretches logarithms.
//!
//! A positive map `F` with Jacobian `J` has on a set of positive vectors
//!
//! * the **weak degree** `mu`, the smallest number with `|J z| <= mu F(z)`: the paper's subhomogeneity constant;
//! * the **strong degree** `c`, the smallest number with `|J| z <= c F(z)`: the Lipschitz constant of `F` in Thompson's
//!   metric, and thus the number that must be below one for a unique fixed point.
//!
//! They are different types here, because taking one for the other is how a promise gets broken: they agree for a scalar
//! function and for rows of one sign, and for no other signed weights. A [`StrongDegree`] may be weakened, a
//! [`WeakDegree`] can never be strengthened.
//!
//! All numbers are upper bounds, rounded up, and within `1e-9` of the true constant (relative to it where it is above
//! one).

pub mod forms;
mod required_shift;
mod threshold;

use std::fmt;

use serde::{Deserialize, Serialize};

use subdeq_map::Activation;

use crate::activation::LogSumExp;
use crate::bound::Upper;
pub use required_shift::{Side, required_shift, required_shift_subtracted};
pub use threshold::tanh_above_threshold;

/// The preactivations `u` over which a degree is taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Domain {
    /// All of R: rows of either sign.
    Reals,
    /// `u >= 0`: what nonnegative weights give.
    Nonnegative,
    /// `0 <= u <= bound`.
    UpTo {
        /// The upper end.
        bound: f64,
    },
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Domain::Reals => f.write_str("reals"),
            Domain::Nonnegative => f.write_str("nonnegative"),
            Domain::UpTo { bound } => write!(f, "[0, {bound}]"),
        }
    }
}

/// An upper bound of the smallest `c` with `|J| z <= c F(z)`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct StrongDegree(f64);

/// An upper bound of the smallest `mu` with `|J z| <= mu F(z)`. Proves nothing about uniqueness by itself.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd, Serialize)]
pub struct WeakDegree(f64);

impl StrongDegree {
    /// The degree of a constant.
    pub const ZERO: StrongDegree = StrongDegree(0.0);
    /// The degree of a coordinate.
    pub const ONE: StrongDegree = StrongDegree(1.0);

    /// For bounds proved in this crate only: anyone else builds degrees by the [calculus](crate::calculus).
    pub(crate) fn proved(bound: f64) -> StrongDegree {
        debug_assert!(bound >= 0.0, "a degree is nonnegative, not {bound}");
        StrongDegree(Upper::new(bound).get())
    }

    /// The bound.
    #[must_use]
    pub fn bound(self) -> f64 {
        self.0
    }

    /// Whether the map contracts Thompson's metric (Theorem 1).
    #[must_use]
    pub fn is_contraction(self) -> bool {
        self.0 < 1.0
    }

    /// `factor * degree`, rounded up.
    #[must_use]
    pub fn times(self, factor: f64) -> StrongDegree {
        StrongDegree((Upper::new(self.0) * Upper::new(factor.abs())).get())
    }

    /// The larger one.
    #[must_use]
    pub fn max(self, other: StrongDegree) -> StrongDegree {
        StrongDegree(self.0.max(other.0))
    }

    /// `self + other`, rounded up.
    #[must_use]
    pub fn plus(self, other: StrongDegree) -> StrongDegree {
        StrongDegree((Upper::new(self.0) + Upper::new(other.0)).get())
    }
}

impl WeakDegree {
    /// The bound.
    #[must_use]
    pub fn bound(self) -> f64 {
        self.0
    }
}

impl From<StrongDegree> for WeakDegree {
    fn from(strong: StrongDegree) -> WeakDegree {
        WeakDegree(strong.0)
    }
}

/// Why there is no degree.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum NoDegree {
    /// No finite constant exists.
    #[error("the degree is infinite there")]
    Infinite,
    /// The function takes negative values, where logarithms make no sense.
    #[error("the function is not positive there: its values go down to {infimum}")]
    NotPositive {
        /// How far down.
        infimum: f64,
    },
    /// It is finite perhaps, but not below one, and the characterisation used only covers degrees below one.
    #[error("the degree is not below one there")]
    NotBelowOne,
}

/// The scalar function `h(u) = (s(u) + shift)^power`.
///
/// ```
/// use subdeq_map::Activation;
/// use subdeq_theory::degree::{Domain, NoDegree, Nonlinearity};
///
/// let h = Nonlinearity::shifted(Activation::Tanh, 1.2);
/// let on_reals = h.degree(Domain::Reals)?.bound();
/// assert!((0.999123..0.999125).contains(&on_reals), "not the 0.99 of the paper");
/// let on_positive = h.degree(Domain::Nonnegative)?.bound();
/// assert!((0.246993..0.246995).contains(&on_positive));
/// assert_eq!(Nonlinearity::shifted(Activation::Sigmoid, 0.0).degree(Domain::Reals), Err(NoDegree::Infinite));
/// # Ok::<(), NoDegree>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Nonlinearity {
    /// `s`.
    pub activation: Activation,
    /// Added to `s`.
    pub shift: f64,
    /// Exponent of the sum, `> 0`.
    pub power: f64,
}

impl Nonlinearity {
    /// `s(u) + shift`.
    #[must_use]
    pub fn shifted(activation: Activation, shift: f64) -> Nonlinearity {
        Nonlinearity { activation, shift, power: 1.0 }
    }

    /// `h(u)`.
    #[must_use]
    pub fn value(self, u: f64) -> f64 {
        let base = self.activation.value(u) + self.shift;
        if self.power == 1.0 { base } else { base.powf(self.power) }
    }

    /// The tight constant `sup |u h'(u)| / h(u)` over the domain. A function of one variable has the same weak and strong
    /// degree.
    ///
    /// # Errors
    /// Where `h` is negative somewhere in the domain, or the supremum is infinite.
    pub fn degree(self, domain: Domain) -> Result<StrongDegree, NoDegree> {
        let infimum = self.base_infimum(domain);
        if infimum + self.shift < 0.0 {
            return Err(NoDegree::NotPositive { infimum: infimum + self.shift });
        }
        let needed = |m: f64| match domain {
            Domain::Reals => required_shift(self.activation, Side::Positive { up_to: f64::INFINITY }, m)
                .max(required_shift(self.activation, Side::Negative, m)),
            Domain::Nonnegative => {
                required_shift(self.activation, Side::Positive { up_to: f64::INFINITY }, m)
            }
            Domain::UpTo { bound } => required_shift(self.activation, Side::Positive { up_to: bound }, m),
        };
        Ok(smallest(|m| needed(m) <= self.shift)?.times(self.power))
    }

    /// Whether `h > 0` at every point of the domain, zero included: what Theorems 1 to 4 ask of every entry of `F`.
    #[must_use]
    pub fn is_strictly_positive(self, domain: Domain) -> bool {
        let infimum = self.base_infimum(domain);
        let attained = !(domain == Domain::Reals
            && matches!(
                self.activation,
                Activation::Tanh | Activation::Softsign | Activation::Sigmoid | Activation::Softplus { .. }
            ));
        // Sterbenz-safe: only the sign of the sum matters, and a rounded sum has the sign of the exact one.
        if attained { infimum + self.shift > 0.0 } else { infimum + self.shift >= 0.0 }
    }

    /// Whether `h > 0` at every `u > 0`, whatever it is at zero.
    #[must_use]
    pub fn is_positive_beyond_zero(self) -> bool {
        let at_zero = self.base_infimum(Domain::Nonnegative);
        let rises = match self.activation {
            // Constant beyond zero, or constant near it.
            Activation::HardTanh { lo, hi } => lo <= 0.0 && hi > 0.0,
            _ => true,
        };
        // Only the sign of the sum matters, and a rounded sum has the sign of the exact one.
        if rises { at_zero + self.shift >= 0.0 } else { at_zero + self.shift > 0.0 }
    }

    fn base_infimum(self, domain: Domain) -> f64 {
        match (domain, self.activation) {
            (Domain::Reals, s) => s.range().0,
            // Rounded down: ln 2 / beta is not a floating point number.
            (_, Activation::Softplus { beta }) => (std::f64::consts::LN_2.next_down() / beta).next_down(),
            (_, s) => s.value(0.0),
        }
    }
}

impl LogSumExp {
    /// The tight degree on nonnegative vectors: `<p, z> / (<p, z> + H(p))` with `p = softmax(z)`, whose supremum is 1. All
    /// partial derivatives are positive, so it is strong as well as weak.
    #[must_use]
    pub fn degree(self) -> StrongDegree {
        StrongDegree::ONE
    }
}

/// The smallest `m > 0` with `holds(m)`, for a property that stays true once it is, to a relative `1e-13`, returned as
/// an `m` for which it was seen to hold.
pub(crate) fn smallest(holds: impl Fn(f64) -> bool) -> Result<StrongDegree, NoDegree> {
    let mut high = 1.0;
    while !holds(high) {
        high *= 2.0;
        if high > 1e18 {
            return Err(NoDegree::Infinite);
        }
    }
    let mut low = if high > 1.0 { 0.5 * high } else { 0.0 };
    while high - low > 1e-13 * high && high > 1e-300 {
        let middle = 0.5 * (low + high);
        if holds(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Ok(StrongDegree::proved(high))
}
