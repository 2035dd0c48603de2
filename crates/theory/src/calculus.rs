//! The calculus of strong degrees: how an operator of one's own gets a contraction factor.
//!
//! Expressions in positive variables are built from the operations under which positivity and a degree are inherited:
//!
//! | expression | degree |
//! |---|---|
//! | constant | 0 |
//! | coordinate | 1 |
//! | `a f + b g + c`, `a, b, c >= 0` | the larger one |
//! | `f g`, `f / g` | the sum |
//! | `f^p` | `abs(p)` times |
//! | max, min, p-norm, log-sum-exp | the largest |
//! | `h(f)`, `h` scalar | times the degree of `h` on the nonnegative half-line |
//! | `s(f) - s(g) + a` | times the split-sign factor |
//! | composition | the product |
//!
//! There is no subtraction: `h(f - g)` has no degree, however small `h`'s own is. This is where the published theorem
//! for signed weights fails, so the type does not offer it.

use std::sync::Arc;

use subdeq_map::{Activation, PNorm};

use crate::activation::LogSumExp;
use crate::by_form::split_sign_infimum;
use crate::certificate::{Evidence, Metric, States, Theorem, Verdict};
use crate::degree::forms;
use crate::degree::{Domain, NoDegree, Nonlinearity, StrongDegree};

/// A positive expression in the variables `z_0, z_1, ...` together with an upper bound of its strong degree.
///
/// ```
/// use subdeq_map::Activation;
/// use subdeq_theory::calculus::{Expr, PositiveMap};
/// use subdeq_theory::degree::Nonlinearity;
///
/// // A divisive layer of one's own: z_0 = tanh(3 z_0 / (1 + 5 z_1)) + 1.2, z_1 = sqrt(z_0).
/// let ratio = Expr::sum([(3.0, Expr::coordinate(0))], 0.0)?.over(Expr::sum([(5.0, Expr::coordinate(1))], 1.0)?);
/// let first = ratio.apply(Nonlinearity::shifted(Activation::Tanh, 1.2))?;
/// let second = Expr::coordinate(0).power(0.5);
/// let map = PositiveMap::new(vec![first, second]);
/// assert!(map.degree().is_contraction()); // the larger of 2 * 0.246994 and 0.5
/// # Ok::<(), subdeq_theory::calculus::NotPositive>(())
/// ```
#[derive(Clone, Debug)]
pub struct Expr {
    node: Arc<Node>,
    degree: StrongDegree,
    /// How many coordinates its variables take; `usize::MAX` where a composition lacks one.
    coordinates: usize,
}

#[derive(Debug)]
enum Node {
    Coordinate(usize),
    Sum { terms: Vec<(f64, Expr)>, constant: f64 },
    Product(Expr, Expr),
    Quotient(Expr, Expr),
    Power(Expr, f64),
    Max(Vec<Expr>),
    Min(Vec<Expr>),
    Norm(PNorm, Vec<Expr>),
    LogSumExp(Vec<Expr>),
    Scalar(Nonlinearity, Expr),
    SplitSign { s: Activation, excitation: Expr, inhibition: Expr, shift: f64 },
    Composed { outer: Expr, inner: Vec<Expr> },
}

/// An operation that would not give a positive expression with a degree.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum NotPositive {
    /// A negative or non-finite coefficient or constant, or nothing to add up.
    #[error(
        "a sum of positive expressions needs finite coefficients >= 0 and a positive total, but {0} was given"
    )]
    Coefficient(f64),
    /// The scalar function is zero or negative at positive arguments.
    #[error("{function:?} vanishes or is negative at positive arguments")]
    Vanishes {
        /// The function.
        function: Nonlinearity,
    },
    /// A functional of no expressions.
    #[error("max, min and norms need at least one expression")]
    Empty,
    /// The scalar function has no degree on the nonnegative half-line, or vanishes there.
    #[error("{function:?} cannot be applied to a positive expression: {why}")]
    Scalar {
        /// The function.
        function: Nonlinearity,
        /// What it lacks.
        why: NoDegree,
    },
}

impl Expr {
    /// `z_j`, of degree 1.
    #[must_use]
    pub fn coordinate(j: usize) -> Expr {
        Expr::new(Node::Coordinate(j), StrongDegree::ONE)
    }

    /// A constant above zero, of degree 0.
    ///
    /// # Errors
    /// A constant that is not positive and finite.
    pub fn constant(value: f64) -> Result<Expr, NotPositive> {
        Expr::sum([], value)
    }

    /// `sum_k a_k f_k + constant` with `a_k >= 0`, `constant >= 0`, not all of them zero.
    ///
    /// # Errors
    /// A negative or non-finite coefficient, or a sum of nothing.
    pub fn sum(terms: impl IntoIterator<Item = (f64, Expr)>, constant: f64) -> Result<Expr, NotPositive> {
        let terms: Vec<(f64, Expr)> = terms.into_iter().collect();
        let coefficients = || terms.iter().map(|(a, _)| *a).chain([constant]);
        if let Some(bad) = coefficients().find(|a| !(*a >= 0.0 && a.is_finite())) {
            return Err(NotPositive::Coefficient(bad));
        }
        if coefficients().all(|a| a == 0.0) {
            return Err(NotPositive::Coefficient(0.0));
        }
        let used = terms.iter().filter(|(a, _)| *a > 0.0);
        let degree = used.map(|(_, f)| f.degree).fold(StrongDegree::ZERO, StrongDegree::max);
        Ok(Expr::new(Node::Sum { terms, constant }, degree))
    }

    /// `f g`.
    #[must_use]
    pub fn times(self, other: Expr) -> Expr {
        let degree = self.degree.plus(other.degree);
        Expr::new(Node::Product(self, other), degree)
    }

    /// `f / g`.
    #[must_use]
    pub fn over(self, other: Expr) -> Expr {
        let degree = self.degree.plus(other.degree);
        Expr::new(Node::Quotient(self, other), degree)
    }

    /// `f^p` for any real `p`.
    #[must_use]
    pub fn power(self, p: f64) -> Expr {
        let degree = if p.is_finite() { self.degree.times(p) } else { StrongDegree::proved(f64::INFINITY) };
        Expr::new(Node::Power(self, p), degree)
    }

    /// The largest of several.
    ///
    /// # Errors
    /// Of none.
    pub fn max(parts: Vec<Expr>) -> Result<Expr, NotPositive> {
        let degree = largest(&parts)?;
        Ok(Expr::new(Node::Max(parts), degree))
    }

    /// The smallest of several.
    ///
    /// # Errors
    /// Of none.
    pub fn min(parts: Vec<Expr>) -> Result<Expr, NotPositive> {
        let degree = largest(&parts)?;
        Ok(Expr::new(Node::Min(parts), degree))
    }

    /// A p-norm of several: monotone and 1-homogeneous, so the largest degree is inherited.
    ///
    /// # Errors
    /// Of none.
    pub fn norm(p: PNorm, parts: Vec<Expr>) -> Result<Expr, NotPositive> {
        let degree = largest(&parts)?;
        Ok(Expr::new(Node::Norm(p, parts), degree))
    }

    /// `ln sum_k e^(f_k)`, of degree at most 1 in its (positive) arguments.
    ///
    /// # Errors
    /// Of none.
    pub fn log_sum_exp(parts: Vec<Expr>) -> Result<Expr, NotPositive> {
        let degree = largest(&parts)?.times(LogSumExp.degree().bound());
        Ok(Expr::new(Node::LogSumExp(parts), degree))
    }

    /// `h(f)` for a scalar `h`.
    ///
    /// # Errors
    /// Where `h` has no degree on the nonnegative half-line.
    pub fn apply(self, h: Nonlinearity) -> Result<Expr, NotPositive> {
        let scalar = h.degree(Domain::Nonnegative).map_err(|why| NotPositive::Scalar { function: h, why })?;
        if !(h.is_positive_beyond_zero() && h.power > 0.0 && h.power.is_finite()) {
            return Err(NotPositive::Vanishes { function: h });
        }
        let degree = self.degree.times(scalar.bound());
        Ok(Expr::new(Node::Scalar(h, self), degree))
    }

    /// `s(f) - s(g) + shift`, the one difference that is safe: each side saturates by itself.
    ///
    /// # Errors
    /// Where the shift does not keep it positive, or `s` is unbounded.
    pub fn split_sign(
        s: Activation,
        excitation: Expr,
        inhibition: Expr,
        shift: f64,
    ) -> Result<Expr, NotPositive> {
        let factor = forms::split_sign(s, shift)
            .map_err(|why| NotPositive::Scalar { function: Nonlinearity::shifted(s, shift), why })?;
        if !(split_sign_infimum(s, shift) > 0.0) {
            return Err(NotPositive::Vanishes { function: Nonlinearity::shifted(s, shift) });
        }
        let degree = excitation.degree.max(inhibition.degree).times(factor.bound());
        Ok(Expr::new(Node::SplitSign { s, excitation, inhibition, shift }, degree))
    }

    /// This expression with `inner[j]` in place of `z_j`.
    #[must_use]
    pub fn compose(self, inner: &[Expr]) -> Expr {
        let inside = inner.iter().map(|f| f.degree).fold(StrongDegree::ZERO, StrongDegree::max);
        let degree = self.degree.times(inside.bound());
        Expr::new(Node::Composed { outer: self, inner: inner.to_vec() }, degree)
    }

    /// An upper bound of the strong degree.
    #[must_use]
    pub fn degree(&self) -> StrongDegree {
        self.degree
    }

    /// The value at positive `z`; a coordinate that `z` does not have counts as not a number.
    #[must_use]
    pub fn value(&self, z: &[f64]) -> f64 {
        let values = |parts: &[Expr]| parts.iter().map(|f| f.value(z)).collect::<Vec<f64>>();
        match &*self.node {
            Node::Coordinate(j) => z.get(*j).copied().unwrap_or(f64::NAN),
            Node::Sum { terms, constant } => {
                terms.iter().map(|(a, f)| a * f.value(z)).sum::<f64>() + constant
            }
            Node::Product(f, g) => f.value(z) * g.value(z),
            Node::Quotient(f, g) => f.value(z) / g.value(z),
            Node::Power(f, p) => f.value(z).powf(*p),
            // As a loop of comparisons, so that "not a number" is not forgotten.
            Node::Max(parts) => {
                values(parts).into_iter().fold(f64::NEG_INFINITY, |a, b| if a > b { a } else { b })
            }
            Node::Min(parts) => {
                values(parts).into_iter().fold(f64::INFINITY, |a, b| if a < b { a } else { b })
            }
            Node::Norm(p, parts) => p.norm(&values(parts)),
            Node::LogSumExp(parts) => LogSumExp.value(&values(parts)),
            Node::Scalar(h, f) => h.value(f.value(z)),
            Node::SplitSign { s, excitation, inhibition, shift } => {
                s.value(excitation.value(z)) - s.value(inhibition.value(z)) + shift
            }
            Node::Composed { outer, inner } => outer.value(&values(inner)),
        }
    }

    fn new(node: Node, degree: StrongDegree) -> Expr {
        let most = |parts: &[Expr]| parts.iter().map(|f| f.coordinates).max().unwrap_or(0);
        let coordinates = match &node {
            Node::Coordinate(j) => j.saturating_add(1),
            Node::Sum { terms, .. } => terms.iter().map(|(_, f)| f.coordinates).max().unwrap_or(0),
            Node::Product(f, g) | Node::Quotient(f, g) => f.coordinates.max(g.coordinates),
            Node::Power(f, _) | Node::Scalar(_, f) => f.coordinates,
            Node::Max(parts) | Node::Min(parts) | Node::Norm(_, parts) | Node::LogSumExp(parts) => {
                most(parts)
            }
            Node::SplitSign { excitation, inhibition, .. } => {
                excitation.coordinates.max(inhibition.coordinates)
            }
            Node::Composed { outer, inner } if outer.coordinates > inner.len() => usize::MAX,
            Node::Composed { inner, .. } => most(inner),
        };
        Expr { node: Arc::new(node), degree, coordinates }
    }
}

fn largest(parts: &[Expr]) -> Result<StrongDegree, NotPositive> {
    parts.iter().map(|f| f.degree).reduce(StrongDegree::max).ok_or(NotPositive::Empty)
}

/// A map of the open positive orthant into itself, one expression per output.
#[derive(Clone, Debug)]
pub struct PositiveMap {
    outputs: Vec<Expr>,
}

impl PositiveMap {
    /// The map with these outputs.
    #[must_use]
    pub fn new(outputs: Vec<Expr>) -> PositiveMap {
        PositiveMap { outputs }
    }

    /// The map that applies `inner` first.
    #[must_use]
    pub fn after(self, inner: &PositiveMap) -> PositiveMap {
        PositiveMap::new(self.outputs.into_iter().map(|f| f.compose(&inner.outputs)).collect())
    }

    /// `F(z)`.
    #[must_use]
    pub fn value(&self, z: &[f64]) -> Vec<f64> {
        self.outputs.iter().map(|f| f.value(z)).collect()
    }

    /// The strong degree: that of the worst output.
    #[must_use]
    pub fn degree(&self) -> StrongDegree {
        self.outputs.iter().map(Expr::degree).fold(StrongDegree::ZERO, StrongDegree::max)
    }

    /// Theorem 1: a strong degree below one makes the positive fixed point unique, where the map leads from vectors to vectors of
    /// the same length.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let unproven = |why: String| Verdict::Unproven { why, tried: Vec::new() };
        let outputs = self.outputs.len();
        if outputs == 0 {
            return unproven("a map without outputs has no fixed point".into());
        }
        if let Some(at) = self.outputs.iter().position(|f| f.coordinates > outputs) {
            return unproven(format!("output {at} uses a coordinate that {outputs} outputs do not have"));
        }
        let degree = self.degree();
        let c = degree.bound();
        if degree.is_contraction() {
            return Verdict::Proven {
                theorem: Theorem::StrongDegree,
                factor: Some(c),
                metric: Metric::Thompson,
                states: States::Positive,
                starts: Some(States::Positive),
                evidence: Evidence::StrongDegree { degree: c },
            };
        }
        unproven(format!("the strong degree {c:.6} is not below one"))
    }
}
