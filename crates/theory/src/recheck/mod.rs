//! A certificate checked again, from the weights and the numbers in it alone.
//!
//! Shared with the code that found the proof are only the scalar constants of the forms, the activations and the basic interval
//! type: rows are read off the operator's definition, sums are rounded outward term by term, definiteness is decided by a
//! congruence instead of a factorisation, frequencies by real blocks of twice the size, secants by a different inequality.

mod boxes;
mod definite;
mod fixed_points;
mod rows;

use crate::by_form;
use crate::certificate::{Certificate, Domain, Evidence, Metric, Refutation, Scope, Theorem, Verdict};
use crate::certify::{SECANT_MARGIN, SECANT_REACH, WIDER_MARGINS, facts};
use crate::interval::Interval;
use crate::lu;
use crate::map::{Form, MapSpec};
use crate::operator::Operator;
use crate::secant::NEIGHBOURHOOD;

/// Why a certificate does not hold for the weights it was checked against.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate does not hold: {0}")]
pub struct Recheck(String);

impl Recheck {
    fn new(why: impl Into<String>) -> Recheck {
        Recheck(why.into())
    }
}

fn ensure(holds: bool, why: impl Into<String>) -> Result<(), Recheck> {
    if holds { Ok(()) } else { Err(Recheck(why.into())) }
}

impl Certificate {
    /// Checks the certificate from scratch against the weights.
    ///
    /// ```
    /// use subdeq_theory::activation::Activation;
    /// use subdeq_theory::certify::Certifier;
    /// use subdeq_theory::map::MapSpec;
    /// use subdeq_theory::operator::Operator;
    ///
    /// let map = MapSpec::single(Activation::Tanh, 1.2);
    /// let w = Operator::dense(2, vec![0.4, -0.4, -0.4, 0.4])?;
    /// let certificate = Certifier::new().all_inputs(&map, &w)?;
    /// assert!(certificate.recheck(&w).is_ok());
    /// let other = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
    /// assert!(certificate.recheck(&other).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first claim that does not hold. An unproven certificate claims nothing and passes.
    pub fn recheck(&self, weights: &Operator) -> Result<(), Recheck> {
        self.map.check().map_err(|bad| Recheck::new(bad.to_string()))?;
        check_scope(&self.map, weights, &self.scope)?;
        match &self.verdict {
            Verdict::Unproven { .. } => Ok(()),
            Verdict::Refuted { witness } => recheck_refutation(self, weights, witness),
            Verdict::Proven { theorem, factor, metric, picard_converges, evidence } => {
                ensure(factor.is_none_or(|c| (0.0..1.0).contains(&c)), "the factor is not in [0, 1)")?;
                let claim = Claim {
                    map: &self.map,
                    scope: &self.scope,
                    weights,
                    theorem: *theorem,
                    factor: *factor,
                    metric,
                    picard: *picard_converges,
                };
                claim.check(evidence)
            }
        }
    }
}

fn check_scope(map: &MapSpec, weights: &Operator, scope: &Scope) -> Result<(), Recheck> {
    let (Scope::Sample { y } | Scope::InputSet { ymax: y }) = scope else { return Ok(()) };
    let per_unknown = if matches!(map.form, Form::PowerRatio { .. }) { 2 } else { 1 };
    ensure(y.len() == per_unknown * weights.len(), "the injection does not fit the weights")?;
    ensure(y.iter().all(|y| y.is_finite()), "the injection is not finite")
}

fn recheck_refutation(
    certificate: &Certificate,
    weights: &Operator,
    witness: &Refutation,
) -> Result<(), Recheck> {
    let map = &certificate.map;
    ensure(matches!(map.form, Form::Single | Form::Monotone { .. }), "no refutation is known for this form")?;
    let y = witness.y();
    let n = weights.len();
    ensure(y.len() == n && y.iter().all(|y| y.is_finite()), "the witness has no proper input")?;
    match &certificate.scope {
        Scope::AllInputs => ensure(y.iter().all(|y| *y >= 0.0), "the input of the witness is negative")?,
        Scope::InputSet { ymax } => {
            let inside = y.iter().zip(ymax).all(|(y, top)| (0.0..=*top).contains(y));
            ensure(inside, "the input of the witness is outside the set")?;
        }
        Scope::Sample { y: given } => ensure(y == given, "the witness is about another input")?,
    }
    let exact = fixed_points::Map::new(map, weights, y);
    match witness {
        Refutation::FixedPoints { points, radii, .. } => {
            ensure(points.len() >= 2 && points.len() == radii.len(), "fewer than two fixed points")?;
            ensure(points.iter().all(|p| p.len() == n), "a fixed point has the wrong length")?;
            for (point, &radius) in points.iter().zip(radii) {
                exact.verify(point, radius)?;
            }
            for i in 0..points.len() {
                for j in 0..i {
                    let apart = (radii[i] + radii[j]).next_up();
                    let distant =
                        points[i].iter().zip(&points[j]).any(|(a, b)| (a - b).abs().next_down() > apart);
                    ensure(distant, "two of the balls meet")?;
                }
            }
            Ok(())
        }
        Refutation::Index { point, radius, .. } => {
            ensure(point.len() == n, "the fixed point has the wrong length")?;
            ensure(map.normalisation.is_none(), "the index argument is for unnormalised maps")?;
            ensure(map.activation.is_bounded(), "the index argument needs a bounded map")?;
            exact.verify(point, *radius)?;
            exact.verify_negative_index(point)
        }
    }
}

/// A claim of uniqueness.
struct Claim<'a> {
    map: &'a MapSpec,
    scope: &'a Scope,
    weights: &'a Operator,
    theorem: Theorem,
    factor: Option<f64>,
    metric: &'a Metric,
    picard: bool,
}

impl Claim<'_> {
    fn check(&self, evidence: &Evidence) -> Result<(), Recheck> {
        match evidence {
            Evidence::StrongDegree { .. } => Err(Recheck::new(
                "a degree from the calculus speaks about a user's own operator, not about weights",
            )),
            Evidence::Closing { domain, weights } => self.closing(*domain, weights),
            Evidence::Secant { steps, anchor, slopes, weights } => {
                self.secant(*steps, anchor, slopes, weights)
            }
            Evidence::Splitting { margin, lipschitz, step, factor } => {
                self.splitting(*margin, *lipschitz, *step, *factor)
            }
            Evidence::NormalisedBox { steps } => self.normalised(*steps),
            _ => self.by_form(),
        }
    }

    /// The form of the map and the signs of the weights, read off again.
    fn by_form(&self) -> Result<(), Recheck> {
        let y_min = match self.scope {
            Scope::Sample { y } => y.iter().copied().fold(f64::INFINITY, f64::min),
            _ => 0.0,
        };
        ensure(y_min >= 0.0, "a proof by form needs inputs that are not negative")?;
        match by_form::prove(self.map, &facts(self.map, self.weights), y_min) {
            Ok(Verdict::Proven { theorem, factor, .. }) => {
                ensure(theorem == self.theorem, format!("its form is proved by another theorem: {theorem}"))?;
                match (factor, self.factor) {
                    (Some(again), Some(claimed)) => self.not_above(again, claimed),
                    (None, None) => Ok(()),
                    _ => Err(Recheck::new("a factor is claimed where there is none, or missing")),
                }
            }
            Ok(_) => Err(Recheck::new("its form proves nothing")),
            Err(attempt) => Err(Recheck::new(attempt.outcome)),
        }
    }

    fn not_above(&self, again: f64, claimed: f64) -> Result<(), Recheck> {
        ensure(again <= claimed, format!("the factor is {again}, above the claimed {claimed}"))
    }

    fn claimed_factor(&self) -> Result<f64, Recheck> {
        self.factor.ok_or_else(|| Recheck::new("the theorem gives a factor, but none is claimed"))
    }

    /// The conclusions must be those of the theorem.
    fn conclusions(&self, picard: bool, metric: &Metric) -> Result<(), Recheck> {
        ensure(self.picard == picard || !self.picard, "plain iteration is not proved to converge")?;
        ensure(self.metric == metric, "the metric is not the one of the theorem")?;
        ensure(picard || self.factor.is_none(), "the theorem gives no factor")
    }

    fn plain_layer(&self) -> Result<rows::Scalar, Recheck> {
        ensure(
            matches!(self.map.form, Form::Single | Form::Monotone { .. }),
            "the test is not for this form",
        )?;
        ensure(self.map.normalisation.is_none(), "the test is not for normalised maps")?;
        Ok(rows::Scalar::of(self.map))
    }

    fn closing(&self, domain: Domain, v: &[f64]) -> Result<(), Recheck> {
        let scalar = self.plain_layer()?;
        let n = self.weights.len();
        let per_channel =
            matches!(self.weights, Operator::Conv(c) if c.channels() == v.len()) && v.len() != n;
        let fits = v.len() == n || per_channel || self.theorem == Theorem::LogJacobian;
        ensure(
            fits && v.iter().all(|v| *v > 0.0 && v.is_finite()),
            "the weights of the norm are not positive",
        )?;
        let state = match domain {
            Domain::Everywhere => None,
            Domain::Propagated { steps } => {
                Some(boxes::propagate(self.map, self.scope, self.weights, steps)?)
            }
        };
        let slopes: Vec<Interval> = match &state {
            None => vec![scalar.slope(Interval::ALL); n],
            Some(state) => state.preactivations.iter().map(|&u| scalar.slope(u)).collect(),
        };
        let d: Vec<f64> = slopes.iter().map(|s| s.magnitude().max(1e-200)).collect();
        ensure(d.iter().all(|d| d.is_finite()), "the slopes are not bounded")?;
        match self.theorem {
            Theorem::WeightedSup => {
                self.conclusions(true, &Metric::WeightedSup { v: v.to_vec() })?;
                self.weighted_sup(&d, v, per_channel)
            }
            Theorem::WeightedTwoNorm => {
                let identity =
                    Metric::WeightedTwoNorm { t: if per_channel { Vec::new() } else { v.to_vec() } };
                self.conclusions(true, &identity)?;
                self.two_norm(&d, v, domain)
            }
            Theorem::DiagonalStability => {
                self.conclusions(false, &Metric::None)?;
                ensure(scalar.is_increasing(), "the activation is not increasing")?;
                self.diagonal_stability(&d, v, 0.0, domain)
            }
            Theorem::SlopeInterval => {
                self.conclusions(false, &Metric::None)?;
                self.slope_interval(&slopes, v)
            }
            Theorem::LogJacobian => {
                self.conclusions(true, &Metric::Thompson)?;
                let state = state.ok_or_else(|| Recheck::new("the log-Jacobian is bounded on a box only"))?;
                let degree = boxes::row_sums(self.map, self.scope, self.weights, &state).absolute;
                self.not_above(degree, self.claimed_factor()?)
            }
            other => Err(Recheck::new(format!("{other} is no closing test"))),
        }
    }

    /// T1, row by row.
    fn weighted_sup(&self, d: &[f64], v: &[f64], per_channel: bool) -> Result<(), Recheck> {
        let claimed = self.claimed_factor()?;
        let absolute = self.map.absolute_weights;
        let pixels = if per_channel { self.weights.len() / v.len() } else { 1 };
        // With weights constant over the pixels no row is larger than one with all taps inside the image.
        if per_channel && let Operator::Conv(conv) = self.weights {
            let (c, count) = (conv.channels(), conv.side() * conv.side());
            return (0..c).try_for_each(|o| {
                let taps: Vec<(usize, f64)> = conv.kernel()[o * c * count..][..c * count]
                    .iter()
                    .enumerate()
                    .map(|(k, &w)| (k / count, w))
                    .collect();
                let sum = rows::absolute_sum(&taps, |i| v[i]);
                let steepest = d[o * pixels..][..pixels].iter().copied().fold(0.0, f64::max);
                self.not_above(((steepest * sum).next_up() / v[o]).next_up(), claimed)
            });
        }
        (0..self.weights.len()).try_for_each(|i| {
            let sum = rows::absolute_sum(&rows::row(self.weights, i, absolute), |j| v[j]);
            self.not_above(((d[i] * sum).next_up() / v[i]).next_up(), claimed)
        })
    }

    fn matrix(&self) -> Result<Vec<f64>, Recheck> {
        definite::matrix(self.weights, self.map.absolute_weights)
            .ok_or_else(|| Recheck::new("too large to be checked as a dense matrix"))
    }

    /// T2: `c^2 I - M^T M` positive definite with `M = T D W T^-1`.
    fn two_norm(&self, d: &[f64], t: &[f64], domain: Domain) -> Result<(), Recheck> {
        let c = self.claimed_factor()?;
        if domain == Domain::Everywhere && matches!(self.weights, Operator::Conv(_)) {
            ensure(t.iter().all(|other| *other == t[0]), "a convolution is checked without weights")?;
            let level = (c * c / (d[0] * d[0])) * (1.0 - 1e-14);
            let shown = definite::form_is_positive(self.weights, self.map.absolute_weights, level, 0.0, 1.0);
            return ensure(shown == Some(true), "the 2-norm is not below the claimed factor");
        }
        let n = self.weights.len();
        let w = self.matrix()?;
        let m: Vec<f64> = (0..n * n).map(|k| t[k / n] * d[k / n] * w[k] / t[k % n]).collect();
        let mut entries = vec![0.0; n * n];
        let mut size = c * c;
        for i in 0..n {
            for j in 0..n {
                let mut sum = 0.0;
                let mut absolute = 0.0;
                for k in 0..n {
                    sum += m[k * n + i] * m[k * n + j];
                    absolute += (m[k * n + i] * m[k * n + j]).abs();
                }
                entries[i * n + j] = f64::from(i == j) * c * c - sum;
                size = size.max(c * c + absolute);
            }
        }
        let error = (n as f64 + 16.0) * 2.0 * f64::EPSILON * size;
        let shown = definite::is_positive(&definite::Uncertain { n, entries, error });
        ensure(shown, "the weighted 2-norm is not below the claimed factor")
    }

    /// T3: `S (P D^-1 - sym(P W)) S - margin I` positive definite, `s_i = sqrt(d_i/p_i)`.
    fn diagonal_stability(&self, d: &[f64], p: &[f64], margin: f64, domain: Domain) -> Result<(), Recheck> {
        if domain == Domain::Everywhere && matches!(self.weights, Operator::Conv(_)) {
            ensure(p.iter().all(|other| *other == p[0]), "a convolution is checked without weights")?;
            let level = (1.0 / d[0]) * (1.0 - 1e-15) - margin;
            let shown = definite::form_is_positive(self.weights, self.map.absolute_weights, level, -0.5, 0.0);
            return ensure(shown == Some(true), "not positive definite at some frequency");
        }
        let n = self.weights.len();
        let w = self.matrix()?;
        let s: Vec<f64> = d.iter().zip(p).map(|(d, p)| (d / p).sqrt()).collect();
        let mut entries = vec![0.0; n * n];
        let mut size = 1.0f64;
        for i in 0..n {
            for j in 0..n {
                let forth = s[i] * p[i] * w[i * n + j] * s[j];
                let back = s[j] * p[j] * w[j * n + i] * s[i];
                let diagonal = if i == j { s[i] * s[i] * p[i] / d[i] - margin } else { 0.0 };
                entries[i * n + j] = diagonal - 0.5 * (forth + back);
                size = size.max(diagonal.abs() + forth.abs() + back.abs());
            }
        }
        let shown =
            definite::is_positive(&definite::Uncertain { n, entries, error: 16.0 * f64::EPSILON * size });
        ensure(shown, "P D^-1 - sym(P W) is not certainly positive definite")
    }

    /// T4: `(I - Delta W) C` is within the identity for an approximate inverse `C` of `I - Dc W`, in the norm with weights `v`.
    fn slope_interval(&self, slopes: &[Interval], v: &[f64]) -> Result<(), Recheck> {
        let n = slopes.len();
        let w = self.matrix()?;
        let centre: Vec<f64> = slopes.iter().map(|s| s.midpoint()).collect();
        let one = |k: usize| f64::from(k / n == k % n);
        let a: Vec<f64> = (0..n * n).map(|k| one(k) - centre[k / n] * w[k]).collect();
        let c = lu::inverse(&a, n).ok_or_else(|| Recheck::new("I - Dc W is singular"))?;
        let units = (2.0 * n as f64 + 16.0) * f64::EPSILON;
        for i in 0..n {
            let radius = (slopes[i] - Interval::point(centre[i])).magnitude();
            let mut total = 0.0;
            for j in 0..n {
                let (mut wc, mut size) = (0.0, 0.0);
                for k in 0..n {
                    wc += w[i * n + k] * c[k * n + j];
                    size += (w[i * n + k] * c[k * n + j]).abs();
                }
                // Entry of I - (I - Dc W) C, and how far the slopes can move it.
                let defect = (one(i * n + j) - c[i * n + j] + centre[i] * wc).abs();
                let error = units * (1.0 + c[i * n + j].abs() + (centre[i].abs() + radius) * size);
                total += (defect + radius * wc.abs() + error) * v[j];
            }
            ensure(
                total * (1.0 + units) < v[i],
                format!("row {i} of the slope interval test is not below one"),
            )?;
        }
        Ok(())
    }

    /// The secant slopes that are claimed, then the test with them, then that all fixed points are near the anchor.
    fn secant(&self, steps: usize, anchor: &[f64], slopes: &[f64], v: &[f64]) -> Result<(), Recheck> {
        let scalar = self.plain_layer()?;
        let n = self.weights.len();
        ensure(matches!(self.scope, Scope::Sample { .. }), "secants are for one input")?;
        ensure(anchor.len() == n && slopes.len() == n && v.len() == n, "the evidence has the wrong length")?;
        ensure(v.iter().all(|v| *v > 0.0 && v.is_finite()), "the weights of the norm are not positive")?;
        ensure(anchor.iter().all(|x| x.is_finite()), "the anchor is not finite")?;
        let state = boxes::propagate(self.map, self.scope, self.weights, steps)?;
        let here: Vec<Interval> = anchor.iter().map(|&x| Interval::point(x)).collect();
        let (preactivations, images) = boxes::evaluate(self.map, self.scope, self.weights, &here);
        let residual: Vec<f64> = images.iter().zip(&here).map(|(f, &x)| (*f - x).magnitude()).collect();
        for i in 0..n {
            let at = preactivations[i];
            let on = state.preactivations[i].hull(at);
            let near = at + Interval::new(-NEIGHBOURHOOD, NEIGHBOURHOOD);
            let near_ok = scalar.slope(near).magnitude() <= slopes[i] * (1.0 + 1e-12);
            let everywhere = scalar.slope(on).magnitude() <= slopes[i] * (1.0 + 1e-12);
            // Half of the inflation is left for the distance between anchor and fixed point.
            let by_secants = near_ok && scalar.secants_below(at, on, slopes[i] - 0.5e-6);
            ensure(near_ok && (everywhere || by_secants), format!("slope {i} is larger than claimed"))?;
        }
        let d: Vec<f64> = slopes.iter().map(|s| s * (1.0 + 1e-12)).collect();
        let row_sums: Vec<f64> = (0..n)
            .map(|i| rows::absolute_sum(&rows::row(self.weights, i, self.map.absolute_weights), |_| 1.0))
            .collect();
        let row_sum = row_sums.iter().copied().fold(0.0, f64::max);
        let top = residual.iter().copied().fold(0.0, f64::max);
        let boxed = Domain::Propagated { steps };
        let (reach, allowed) = match self.theorem {
            Theorem::SecantWeightedSup => {
                self.conclusions(true, &Metric::WeightedSup { v: v.to_vec() })?;
                self.weighted_sup(&d, v, false)?;
                let off = residual.iter().zip(v).map(|(r, v)| r / v).fold(0.0, f64::max);
                let largest = v.iter().copied().fold(0.0, f64::max);
                // Cruder than the bound that was used to find the proof, so with the rows of |W| v themselves.
                let image = (0..n).map(|i| {
                    let row = rows::row(self.weights, i, self.map.absolute_weights);
                    rows::absolute_sum(&row, |j| v[j])
                });
                let image = image.fold(0.0, f64::max).min(row_sum * largest);
                (image * off / (1.0 - self.claimed_factor()?), 12.0 * SECANT_REACH)
            }
            Theorem::SecantTwoNorm => {
                self.conclusions(true, &Metric::WeightedTwoNorm { t: v.to_vec() })?;
                self.two_norm(&d, v, boxed)?;
                let off = residual.iter().zip(v).map(|(r, t)| (r * t).powi(2)).sum::<f64>().sqrt();
                let least = v.iter().copied().fold(f64::INFINITY, f64::min);
                (row_sum / least * off / (1.0 - self.claimed_factor()?), 12.0 * SECANT_REACH)
            }
            Theorem::SecantDiagonalStability => {
                self.conclusions(false, &Metric::None)?;
                ensure(scalar.is_increasing(), "the activation is not increasing")?;
                self.diagonal_stability(&d, v, 0.999 * SECANT_MARGIN, boxed)?;
                let wider = |margin: &f64| self.diagonal_stability(&d, v, 0.999 * margin, boxed).is_ok();
                let margin = 0.999 * WIDER_MARGINS.into_iter().find(wider).unwrap_or(SECANT_MARGIN);
                let s: Vec<f64> = d.iter().zip(v).map(|(d, p)| (d / p).sqrt()).collect();
                let push = s.iter().zip(v).map(|(s, p)| (s * p).powi(2)).sum::<f64>().sqrt();
                let widest = s.iter().copied().fold(0.0, f64::max);
                // Two fixed points this near have their secants among the tangents near the anchor, which were checked.
                (row_sum * (widest * push * row_sum * top / margin + top), NEIGHBOURHOOD)
            }
            other => return Err(Recheck::new(format!("{other} is no secant test"))),
        };
        ensure(reach * (1.0 + 1e-9) <= allowed, "the anchor is too far from a fixed point")
    }

    /// A7: margin, Lipschitz constant and splitting factor, each as one definiteness test.
    fn splitting(&self, margin: f64, lipschitz: f64, step: f64, factor: f64) -> Result<(), Recheck> {
        self.plain_layer()?;
        ensure(self.theorem == Theorem::Monotone, "the evidence is for a monotone operator")?;
        ensure(self.map.activation.slopes_in_unit_interval(), "the activation has slopes outside [0, 1]")?;
        ensure(self.map.power == 1.0, "a power has other slopes")?;
        ensure(margin > 0.0 && step > 0.0 && step.is_finite(), "margin and step must be positive")?;
        ensure((0.0..1.0).contains(&factor), "the splitting factor is not in [0, 1)")?;
        if let Form::Monotone { margin: asked } = self.map.form {
            ensure(margin >= asked * (1.0 - 1e-5), "the margin is smaller than the map asks")?;
        }
        self.conclusions(false, &Metric::None)?;
        let shown = |diagonal: f64, skew: f64, weight: f64, what: &str| {
            let absolute = self.map.absolute_weights;
            match definite::form_is_positive(self.weights, absolute, diagonal, skew, weight) {
                Some(true) => Ok(()),
                Some(false) => Err(Recheck::new(format!("{what} does not hold"))),
                None => Err(Recheck::new("too large to be checked as a dense matrix")),
            }
        };
        shown(1.0 - margin, -0.5, 0.0, "the margin")?;
        shown(lipschitz * lipschitz - 1.0, 1.0, 1.0, "the Lipschitz constant")?;
        let q = (1.0 - factor * factor) / (1.0 + factor * factor);
        let t = step;
        shown(2.0 * t - q * (1.0 + t * t), q * t * t - t, q * t * t, "the splitting factor")
    }

    /// Theorem 4 on the box, propagated again.
    fn normalised(&self, steps: usize) -> Result<(), Recheck> {
        ensure(
            matches!(self.map.form, Form::Single | Form::Monotone { .. }),
            "the test is not for this form",
        )?;
        let norm = self.map.normalisation.ok_or_else(|| Recheck::new("the map is not normalised"))?;
        self.conclusions(true, &Metric::Hilbert)?;
        let expected =
            if norm.interacting { Theorem::NormalisedInteracting } else { Theorem::NormalisedGeneral };
        ensure(self.theorem == expected, "another theorem is claimed than the groups allow")?;
        let state = boxes::propagate_normalised(self.map, self.scope, self.weights, norm, steps)?;
        let sums = boxes::row_sums(self.map, self.scope, self.weights, &state);
        let factor = if norm.interacting { 2.0 * sums.absolute } else { sums.positive + sums.negative };
        self.not_above(factor, self.claimed_factor()?)
    }
}
