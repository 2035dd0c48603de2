//! A7, monotone layers `z = s(W z + y)` with `sym(W) <= (1 - m) I`: the margin, the contraction factor of Peaceman and
//! Rachford's iteration (one that goes a part `p` of the way contracts by `1 - p + p` times it), and the parametrisations that have a
//! margin by construction.
//!
//! With `M = I - W` and the step `t`, the factor `k = ||(I - tM)(I + tM)^-1||_2` satisfies `k^2 = (1 - q)/(1 + q)`, where `q` is the
//! largest number with `t (M + M^T) - q (I + t^2 M^T M) >= 0`: one definiteness test per candidate `q`, and no inverse.

use subdeq_map::{Activation, Conv, Operator, OperatorError};

use crate::balance;
use crate::certificate::{Attempt, Evidence, Theorem};
use crate::cholesky::{MOST_BISECTIONS, Symmetric};
use crate::closing::diagonal_stability::recheck_slack;
use crate::frequency;
use crate::lu::gram;
use crate::round::gamma;

/// Relative accuracy of margins and factors.
const TOLERANCE: f64 = 1e-6;
/// Beyond this the squares of the weights drown everything else.
const LARGEST_LIPSCHITZ: f64 = 1e60;
/// Larger dense systems than this are not certified (cubic cost).
const LIMIT: usize = 1024;

/// A proved margin with the operator splitting that uses it.
#[derive(Clone, Debug, PartialEq)]
pub struct Splitting {
    /// Diagonal of the scaling `T` in whose norm the rest holds, one per entry or per channel; empty for the identity.
    pub weights: Vec<f64>,
    /// `m` with `sym(T W T^-1) <= (1 - m) I`, rounded down.
    pub margin: f64,
    /// `||I - W||_2` in the weighted norm, rounded up.
    pub lipschitz: f64,
    /// The step `t` that (nearly) minimises the factor.
    pub step: f64,
    /// `||(I - t(I-W))(I + t(I-W))^-1||_2` in the weighted norm, rounded up.
    pub factor: f64,
}

impl From<Splitting> for Evidence {
    fn from(s: Splitting) -> Evidence {
        let Splitting { weights, margin, lipschitz, step, factor } = s;
        Evidence::Splitting { weights, margin, lipschitz, step, factor }
    }
}

impl Splitting {
    /// Certifies a margin of at least `margin` (any above zero if that is 0) and finds the best step: with the weights as they
    /// are, or else in a diagonal scaling of them.
    ///
    /// ```
    /// use subdeq_map::{Activation, Operator};
    /// use subdeq_theory::monotone::Splitting;
    /// let w = Operator::dense(2, vec![-3.0, 8.0, -8.0, 0.5])?;
    /// let splitting = Splitting::certify(&w, Activation::Relu, 0.4).expect("sym(W) <= 0.5 I");
    /// assert!((splitting.margin - 0.5).abs() < 1e-4 && splitting.factor < 1.0 && splitting.weights.is_empty());
    /// // sym(W) has the eigenvalue 1.55, but only because the second unit is counted in another unit of measure.
    /// let uneven = Operator::dense(2, vec![-0.5, 4.0, 0.1, -0.5])?;
    /// let splitting = Splitting::certify(&uneven, Activation::Relu, 0.0).expect("monotone once scaled");
    /// assert!(!splitting.weights.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The [`Attempt`] says what the weights or the activation lack.
    pub fn certify(weights: &Operator, s: Activation, margin: f64) -> Result<Splitting, Attempt> {
        if !s.slopes_in_unit_interval() {
            return Err(failed("the activation has slopes outside [0, 1]", s.steepest_slope()));
        }
        Splitting::of(weights, margin).or_else(|attempt| {
            let t = balance::weights(weights).ok_or_else(|| attempt.clone())?;
            let scaled = balance::scaled(weights, &t).ok_or_else(|| attempt.clone())?;
            Splitting::of(&scaled, margin).map(|found| Splitting { weights: t, ..found }).map_err(|_| attempt)
        })
    }

    /// Without a scaling.
    fn of(weights: &Operator, margin: f64) -> Result<Splitting, Attempt> {
        let form = QuadraticForm::of(weights)
            .ok_or_else(|| failed("too large for a dense factorisation", weights.len() as f64))?;
        let found = 1.0 - form.largest_symmetric_eigenvalue();
        if !(found > 0.0 && found >= margin) {
            return Err(failed("the margin is too small", found));
        }
        let lipschitz = form.lipschitz();
        if !(lipschitz < LARGEST_LIPSCHITZ) {
            return Err(failed("the weights are too large for a splitting", lipschitz));
        }
        // A little below what was shown, for re-checks with other roundings.
        let slack = recheck_slack(form.len(), 1.0 + lipschitz);
        let margin = found - (TOLERANCE * found.min(1.0)).max(slack);
        if !(margin > 0.0) {
            return Err(failed("the margin is too small to be certain of", found));
        }
        let step = form.best_step(margin, lipschitz);
        let q = form
            .largest_q(step, margin, lipschitz)
            .ok_or_else(|| failed("no splitting factor below 1", 1.0))?;
        // The form whose definiteness shows q is made of terms this large, however small I - W is.
        let size = 2.0 * step * (2.0 + lipschitz) + q * (1.0 + (step * (2.0 + lipschitz)).powi(2));
        let q = q - recheck_slack(form.len(), size);
        let factor = ((1.0 - q) / (1.0 + q)).sqrt().next_up().next_up();
        if !(q > 0.0 && factor < 1.0) {
            return Err(failed("no splitting factor below 1", factor));
        }
        Ok(Splitting { weights: Vec::new(), margin, lipschitz, step, factor })
    }
}

fn failed(outcome: &str, value: f64) -> Attempt {
    Attempt::new(Theorem::Monotone.to_string(), outcome, value)
}

/// `diagonal I + skew (W + W^T) - weight W^T W` of either kind of operator.
enum QuadraticForm<'a> {
    Dense { n: usize, matrix: Vec<f64>, gram: Vec<f64>, row_norms: Vec<f64> },
    Conv { conv: &'a Conv, form: frequency::QuadraticForm },
}

impl<'a> QuadraticForm<'a> {
    fn of(weights: &'a Operator) -> Option<QuadraticForm<'a>> {
        if let Some(conv) = weights.as_conv() {
            return Some(QuadraticForm::Conv { conv, form: frequency::QuadraticForm::new(conv) });
        }
        let n = weights.len();
        let matrix = weights.to_dense(LIMIT)?;
        let gram = gram(&matrix, n);
        let row_norms = (0..n).map(|i| gram[i * n + i].sqrt() * (1.0 + gamma(n + 8))).collect();
        Some(QuadraticForm::Dense { n, matrix, gram, row_norms })
    }

    /// Whether the form is certainly positive definite.
    fn positive(&self, diagonal: f64, skew: f64, weight: f64) -> bool {
        match self {
            QuadraticForm::Conv { form, .. } => form.exceeds(diagonal, skew, weight),
            QuadraticForm::Dense { n, matrix, gram, row_norms } => {
                let n = *n;
                Symmetric::from_fn(n, n + 16, |i, j| {
                    let (a, b) = (matrix[i * n + j], matrix[j * n + i]);
                    let d = if i == j { diagonal } else { 0.0 };
                    let product = weight * gram[i * n + j];
                    let magnitude = d.abs()
                        + skew.abs() * (a.abs() + b.abs())
                        + weight.abs() * row_norms[i] * row_norms[j];
                    (d + skew * (a + b) - product, magnitude)
                })
                .exceeds(0.0)
            }
        }
    }

    /// An upper bound of `lambda_max(sym W)`.
    fn largest_symmetric_eigenvalue(&self) -> f64 {
        match self {
            QuadraticForm::Conv { conv, .. } => frequency::largest_symmetric_eigenvalue(conv, TOLERANCE),
            QuadraticForm::Dense { n, matrix, .. } => largest_symmetric_eigenvalue(matrix, *n),
        }
    }

    /// An upper bound of `||W||_2`: the least `a` found with `a^2 I - W^T W >= 0`.
    fn norm(&self) -> f64 {
        least_shown(|a| self.positive(a * a * (1.0 - 4.0 * f64::EPSILON), 0.0, 1.0))
    }

    /// An upper bound of `||I - W||_2`: the least `L` found with `L^2 I - (I - W)^T (I - W) >= 0`.
    fn lipschitz(&self) -> f64 {
        let high = least_shown(|l| self.positive(l * l * (1.0 - 4.0 * f64::EPSILON) - 1.0, 1.0, 1.0));
        // A little above, for re-checks with other roundings: I - W may be small although its terms are not.
        let square = (high * (1.0 + TOLERANCE)).powi(2) + recheck_slack(self.len(), (2.0 + high).powi(2));
        square.sqrt().next_up()
    }

    /// Unknowns of the matrix that is factorised: all of them, or the channels (as real and imaginary parts).
    fn len(&self) -> usize {
        match self {
            QuadraticForm::Conv { conv, .. } => 2 * conv.channels(),
            QuadraticForm::Dense { n, .. } => *n,
        }
    }

    /// Whether `t (M + M^T) - q (I + t^2 M^T M)` is certainly positive definite.
    fn q_is_shown(&self, q: f64, t: f64) -> bool {
        self.positive(2.0 * t - q * (1.0 + t * t), q * t * t - t, q * t * t)
    }

    /// The largest `q` that can be shown at this step; at least what margin and norm alone give.
    fn largest_q(&self, t: f64, margin: f64, lipschitz: f64) -> Option<f64> {
        let mut low = 0.999 * 2.0 * t * margin / (1.0 + t * t * lipschitz * lipschitz);
        if !self.q_is_shown(low, t) {
            return None;
        }
        let mut high = 1.0;
        for _ in 0..MOST_BISECTIONS {
            if high - low <= 1e-4 * (1.0 - low).min(low) {
                break;
            }
            let middle = 0.5 * (low + high);
            if self.q_is_shown(middle, t) {
                low = middle;
            } else {
                high = middle;
            }
        }
        // Below the bisection's last success, for re-checks with other roundings.
        Some(low * (1.0 - 1e-9))
    }

    /// Golden section over `ln t` between `1/L` and `1/sqrt(m L)`, where the best step lies.
    fn best_step(&self, margin: f64, lipschitz: f64) -> f64 {
        let (mut a, mut b) = ((1.0 / lipschitz).ln() - 0.1, (1.0 / (margin * lipschitz).sqrt()).ln() + 0.1);
        let golden = 0.5 * (5f64.sqrt() - 1.0);
        let value = |x: f64| self.largest_q(x.exp(), margin, lipschitz).unwrap_or(0.0);
        let (mut x, mut y) = (b - golden * (b - a), a + golden * (b - a));
        let (mut at_x, mut at_y) = (value(x), value(y));
        for _ in 0..MOST_BISECTIONS {
            if b - a <= 0.02 {
                break;
            }
            if at_x > at_y {
                (b, y, at_y) = (y, x, at_x);
                x = b - golden * (b - a);
                at_x = value(x);
            } else {
                (a, x, at_x) = (x, y, at_y);
                y = a + golden * (b - a);
                at_y = value(y);
            }
        }
        (0.5 * (a + b)).exp()
    }
}

/// A number that is shown, at most a thousandth above the least one.
fn least_shown(shown: impl Fn(f64) -> bool) -> f64 {
    let mut high = 1.0;
    while !shown(high) && high < 1e150 {
        high *= 2.0;
    }
    let mut low = 0.0;
    for _ in 0..MOST_BISECTIONS {
        if high - low <= 1e-3 * high {
            break;
        }
        let middle = 0.5 * (low + high);
        if shown(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    high
}

/// An upper bound of `||W||_2` within a thousandth, frequency by frequency for a convolution; `None` where the matrix is too large
/// to be factorised.
pub(crate) fn norm(weights: &Operator) -> Option<f64> {
    QuadraticForm::of(weights).map(|form| form.norm())
}

/// An upper bound of `lambda_max(sym V)` of a dense matrix, row major, within a millionth of its size.
#[must_use]
pub fn largest_symmetric_eigenvalue(matrix: &[f64], n: usize) -> f64 {
    let negative = Symmetric::from_fn(n, 4, |i, j| {
        let (a, b) = (matrix[i * n + j], matrix[j * n + i]);
        (-0.5 * (a + b), 0.5 * (a.abs() + b.abs()))
    });
    negative.least_eigenvalue(TOLERANCE).map_or(f64::INFINITY, |least| -least)
}

/// `W = (1 - m) I - A^T A + B - B^T`, which has the margin `m` up to rounding.
///
/// # Errors
/// Matrices of the wrong size or with entries that are not finite.
pub fn from_factors(n: usize, margin: f64, a: &[f64], b: &[f64]) -> Result<Operator, OperatorError> {
    for (name, given) in [("A", a), ("B", b)] {
        if given.len() != n * n {
            let what = format!("the {n} x {n} matrix {name}");
            return Err(OperatorError::Length { what, expected: n * n, found: given.len() });
        }
    }
    let mut w = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..n {
            let product: f64 = (0..n).map(|k| a[k * n + i] * a[k * n + j]).sum();
            w[i * n + j] = f64::from(i == j) * (1.0 - margin) - product + (b[i * n + j] - b[j * n + i]);
        }
    }
    Operator::dense(n, w)
}

/// The shifted parametrisation `W = V - max(0, lambda - (1 - m)) I` with `lambda >= lambda_max(sym V)`, a bound that is
/// rounded up: one free tensor of the ordinary size, dense or convolution (there the centre tap of each channel's own kernel
/// is shifted). Returns `W` and the shift.
///
/// ```
/// use subdeq_map::{Activation, Operator};
/// use subdeq_theory::monotone;
/// let v = Operator::dense(2, vec![4.0, 1.0, -7.0, 2.0])?;
/// let (w, shift) = monotone::shifted(&v, 0.1)?;
/// assert!(shift > 0.0);
/// assert!(monotone::Splitting::certify(&w, Activation::Relu, 0.0999).is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// A matrix too large for a dense factorisation, or one so large that the bound overflows.
pub fn shifted(v: &Operator, margin: f64) -> Result<(Operator, f64), OperatorError> {
    let Some(form) = QuadraticForm::of(v) else {
        return Err(OperatorError::TooLarge { limit: LIMIT, found: v.len() });
    };
    let lambda = form.largest_symmetric_eigenvalue();
    let shift = (lambda - (1.0 - margin)).max(0.0).next_up();
    let mut weights = v.weights().to_vec();
    match v.as_conv() {
        Some(conv) => {
            let c = conv.channels();
            let taps = conv.tap_count();
            (0..c).for_each(|o| weights[(o * c + o) * taps + taps / 2] -= shift);
            let shifted = Operator::conv(c, conv.height(), conv.width(), conv.padding(), weights)?;
            Ok((shifted, shift))
        }
        None => {
            let n = v.len();
            let mut dense = v.to_dense(LIMIT).unwrap_or(weights);
            (0..n).for_each(|i| dense[i * n + i] -= shift);
            Ok((Operator::dense(n, dense)?, shift))
        }
    }
}
