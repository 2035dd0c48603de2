//! Upper bounds as a type in which "not a number" cannot become small.

use std::iter::Sum;

/// An upper bound of a nonnegative number. What is not known is infinite: `f64::max` forgets a NaN, and a NaN compares as
/// if it were small, so that sums, products and maxima of bounds go through this type, where a NaN is infinite, and so is
/// `0 * infinity`.
///
/// ```
/// use subdeq_theory::bound::Upper;
/// let undefined = Upper::new(f64::INFINITY - f64::INFINITY);
/// assert_eq!(undefined, Upper::UNKNOWN);
/// assert_eq!(Upper::ZERO * undefined, Upper::UNKNOWN);
/// assert_eq!(Upper::largest([1.0, f64::NAN, 2.0]), Upper::UNKNOWN);
/// assert!(Upper::new(0.1) + Upper::new(0.2) > Upper::new(0.3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Upper(f64);

impl Upper {
    /// Of nothing.
    pub const ZERO: Upper = Upper(0.0);
    /// Nothing is known.
    pub const UNKNOWN: Upper = Upper(f64::INFINITY);

    /// The bound `x`; a negative one says that there is nothing to bound.
    #[must_use]
    pub fn new(x: f64) -> Upper {
        if x.is_nan() { Upper::UNKNOWN } else { Upper(x.max(0.0)) }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// Whether something is known.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// The larger one.
    #[must_use]
    pub fn max(self, other: Upper) -> Upper {
        if self.0 >= other.0 { self } else { other }
    }

    /// The smaller one: both bound the same number.
    #[must_use]
    pub fn min(self, other: Upper) -> Upper {
        if self.0 <= other.0 { self } else { other }
    }

    /// The largest of several numbers; zero of none.
    #[must_use]
    pub fn largest(numbers: impl IntoIterator<Item = f64>) -> Upper {
        numbers.into_iter().map(Upper::new).fold(Upper::ZERO, Upper::max)
    }

    /// The quotient by a number that is at least `least`, unknown unless that is positive.
    #[must_use]
    pub fn over(self, least: f64) -> Upper {
        if least > 0.0 && self.0 == 0.0 {
            Upper::ZERO
        } else if least > 0.0 {
            Upper::new((self.0 / least).next_up())
        } else {
            Upper::UNKNOWN
        }
    }
}

impl std::ops::Add for Upper {
    type Output = Upper;
    fn add(self, other: Upper) -> Upper {
        let sum = self.0 + other.0;
        if self.0 == 0.0 || other.0 == 0.0 { Upper(sum) } else { Upper(sum.next_up()) }
    }
}

impl std::ops::Mul for Upper {
    type Output = Upper;
    fn mul(self, other: Upper) -> Upper {
        let product = self.0 * other.0;
        // Exact by zero and by one.
        if product == 0.0 && (self.0 == 0.0 || other.0 == 0.0) {
            Upper::ZERO
        } else if self.0 == 1.0 || other.0 == 1.0 {
            Upper(product)
        } else {
            Upper::new(product.next_up())
        }
    }
}

impl Sum for Upper {
    fn sum<I: Iterator<Item = Upper>>(terms: I) -> Upper {
        terms.fold(Upper::ZERO, std::ops::Add::add)
    }
}
