//! Contraction factors of the architectures with signed interactions and no constraint on the weights (A3 to A6), and
//! of their normalised versions. All are uniform in weights and inputs, and tight.

use subdeq_map::Activation;

use super::{
    Domain, NoDegree, Nonlinearity, Side, StrongDegree, required_shift, required_shift_subtracted, smallest,
};
use crate::interval::Interval;

const POSITIVE: Side = Side::Positive { up_to: f64::INFINITY };

/// A3, `s(P z) - s(N z) + a` with `P, N >= 0`: `P z` and `N z` are independent, so the shifts they need add up.
///
/// ```
/// use subdeq_map::Activation;
/// use subdeq_theory::degree::forms::split_sign;
/// // softsign: a - sqrt(a^2 - 1), below one for every a > 1.
/// let c = split_sign(Activation::Softsign, 1.2).unwrap().bound();
/// assert!((c - (1.2 - 0.44f64.sqrt())).abs() < 1e-12);
/// ```
///
/// # Errors
/// For an unbounded activation and for shifts at which the map is not positive.
pub fn split_sign(s: Activation, a: f64) -> Result<StrongDegree, NoDegree> {
    smallest(|m| sum_up(required_shift(s, POSITIVE, m), required_shift_subtracted(s, m)) <= a)
}

/// One output of A3': `sum_j A_ij s(..) - sum_j B_ij s(..) + a_i`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    /// Encloses the row sum `A_i >= 0`.
    pub excitatory: Interval,
    /// Encloses the row sum `B_i >= 0`.
    pub inhibitory: Interval,
    /// The shift is `a_i = tie * B_i + shift`.
    pub tie: f64,
    /// The part of the shift that does not depend on the weights.
    pub shift: f64,
}

/// A3', `A s(P z) - B s(N z) + a` with all matrices nonnegative: the worst row counts.
///
/// # Errors
/// Where a row's shift is too small for its inhibitory gain.
pub fn gains(s: Activation, rows: &[Gain]) -> Result<StrongDegree, NoDegree> {
    smallest(|m| {
        let (excited, inhibited) = (required_shift(s, POSITIVE, m), required_shift_subtracted(s, m));
        if !(excited.is_finite() && inhibited.is_finite()) {
            return false;
        }
        rows.iter().all(|row| {
            let beyond_tie = Interval::point(inhibited) - Interval::point(row.tie);
            let needed = row.excitatory * Interval::point(excited) + row.inhibitory * beyond_tie;
            needed.hi <= row.shift
        })
    })
}

/// A4, `s(P z / (q + N z)) + a`: the ratio has a degree below two.
///
/// # Errors
/// As for the scalar degree on the nonnegative half-line.
pub fn divisive(s: Activation, a: f64) -> Result<StrongDegree, NoDegree> {
    Ok(Nonlinearity::shifted(s, a).degree(Domain::Nonnegative)?.times(2.0))
}

/// A4 with softsign, `P z / (q + P z + N z) + a`.
///
/// # Errors
/// For a negative shift.
pub fn rational(a: f64) -> Result<StrongDegree, NoDegree> {
    divisive(Activation::Softsign, a)
}

/// `kappa` (Theorem 4) of the normalised row-signed map: excitatory rows give `mu_p`, inhibitory ones `mu_n`.
///
/// # Errors
/// As for the scalar degree on R.
pub fn normalised_row_signed(s: Activation, a: f64) -> Result<StrongDegree, NoDegree> {
    let excitatory = smallest(|m| required_shift(s, POSITIVE, m) <= a)?;
    let inhibitory = smallest(|m| required_shift(s, Side::Negative, m) <= a)?;
    Ok(excitatory.plus(inhibitory))
}

/// `kappa` (Theorem 4) of the normalised split-sign map: `mu_p(a - sup s) + mu_n(a)`.
///
/// # Errors
/// Where the map is not positive.
pub fn normalised_split_sign(s: Activation, a: f64) -> Result<StrongDegree, NoDegree> {
    let least = (a - s.range().1).next_down();
    let excitatory = smallest(|m| required_shift(s, POSITIVE, m) <= least)?;
    let inhibitory = smallest(|m| sum_up(required_shift_subtracted(s, m), -s.value(0.0)) <= a)?;
    Ok(excitatory.plus(inhibitory))
}

/// `a + b` rounded up, exact where one of them is zero.
fn sum_up(a: f64, b: f64) -> f64 {
    if a == 0.0 || b == 0.0 { a + b } else { (a + b).next_up() }
}
