//! A certificate checked again, from the weights and the numbers in it alone.
//!
//! Shared with the code that found the proof are only the scalar constants of the forms and where their maps are positive, the signs
//! and row sums of the weights, exact scalings by powers of two, the approximate inverse, and the basic interval type: products are taken end by end instead of with centres and radii, a proof by form is the
//! condition at the claimed factor instead of a search for the least one, definiteness is decided by a congruence instead
//! of a factorisation, frequencies by real blocks of twice the size, secants by a different inequality.

mod boxes;
mod definite;
mod fixed_points;
mod forms;
mod rows;
mod scalar;
mod split_forms;

use subdeq_map::{Form, Map, Operator, WeightClass};

use self::scalar::Scalar;
use crate::balance;
use crate::bound::Upper;
use crate::certificate::{
    Certificate, Domain, Evidence, Metric, Refutation, Scope, States, Theorem, Verdict,
};
use crate::certify::{SECANT_MARGIN, SECANT_REACH, WIDER_MARGINS};
use crate::interval::Interval;
use crate::lu;
use crate::round::vectorised;
use crate::secant::NEIGHBOURHOOD;

/// How far a stated Lipschitz constant of tied weights may lie above that by row and column sums, relatively.
const SAME_SUMS: f64 = 1e-6;
/// A stated norm of tied weights is no norm of theirs if this share of it bounds them too.
const SAME_NORM: f64 = 0.99;

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
    /// use subdeq_map::{Activation, Map, Operator};
    /// use subdeq_theory::certificate::Scope;
    /// use subdeq_theory::certify::Certifier;
    ///
    /// let map = Map::single(Activation::Tanh, 1.2)?;
    /// let w = Operator::dense(2, vec![0.4, -0.4, -0.4, 0.4])?;
    /// let certificate = Certifier::new().certify(&map, &w, &Scope::AllInputs)?;
    /// assert!(certificate.recheck(&w).is_ok());
    /// let other = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
    /// assert!(certificate.recheck(&other).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first claim that does not hold. An unproven certificate claims nothing and passes.
    pub fn recheck(&self, weights: &Operator) -> Result<(), Recheck> {
        self.map.check_operator(weights).map_err(|bad| Recheck::new(bad.to_string()))?;
        check_scope(&self.map, weights, &self.scope)?;
        match &self.verdict {
            Verdict::Unproven { .. } => Ok(()),
            Verdict::Refuted { witness } => recheck_refutation(self, weights, witness),
            Verdict::Proven { theorem, factor, metric, states, starts, evidence } => {
                ensure(factor.is_none_or(|c| (0.0..1.0).contains(&c)), "the factor is not in [0, 1)")?;
                let claim = Claim {
                    map: &self.map,
                    scope: &self.scope,
                    weights,
                    theorem: *theorem,
                    factor: *factor,
                    metric,
                    states: *states,
                    starts: *starts,
                };
                claim.check(evidence)
            }
        }
    }
}

fn check_scope(map: &Map, weights: &Operator, scope: &Scope) -> Result<(), Recheck> {
    let (Scope::Sample { y } | Scope::InputSet { ymax: y }) = scope else { return Ok(()) };
    let fits = y.len() == map.form().injection_count() * weights.len();
    ensure(fits, "the injection does not fit the weights")?;
    ensure(y.iter().all(|y| y.is_finite()), "the injection is not finite")?;
    let set = matches!(scope, Scope::InputSet { .. });
    ensure(!set || y.iter().all(|y| *y >= 0.0), "the set of inputs is empty")
}

fn recheck_refutation(
    certificate: &Certificate,
    weights: &Operator,
    witness: &Refutation,
) -> Result<(), Recheck> {
    let map = &certificate.map;
    ensure(map.form() == Form::Single, "no refutation is known for this form")?;
    let y = witness.y();
    let n = weights.len();
    ensure(y.len() == n && y.iter().all(|y| y.is_finite()), "the witness has no proper input")?;
    ensure(certificate.scope.contains(y), "the input of the witness is not one that was asked about")?;
    let states = States::of(map);
    let among = |point: &[f64], radius: f64| {
        ensure(point.len() == n, "a fixed point has the wrong length")?;
        let positive = point.iter().all(|x| (x - radius).next_down() > 0.0);
        ensure(states == States::Reals || positive, "a fixed point is not among the states in question")
    };
    let exact = fixed_points::ExactMap::new(map, weights, y)?;
    match witness {
        Refutation::FixedPoints { points, radii, .. } => {
            ensure(points.len() >= 2 && points.len() == radii.len(), "fewer than two fixed points")?;
            for (point, &radius) in points.iter().zip(radii) {
                among(point, radius)?;
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
        Refutation::Index { point, radius, determinant, .. } => {
            among(point, *radius)?;
            ensure(map.normalisation().is_none(), "the index argument is for unnormalised maps")?;
            // The indices of all real fixed points sum to one: all of them must be among the states in question.
            let image = boxes::image_of_everything(map, &Scope::Sample { y: y.to_vec() }, n)?;
            let positive = image.iter().all(|x| x.lo > 0.0);
            ensure(states == States::Reals || positive, "the other fixed points need not be positive")?;
            exact.verify(point, *radius)?;
            exact.verify_negative_index(point, *determinant)
        }
    }
}

/// A claim of uniqueness.
struct Claim<'a> {
    map: &'a Map,
    scope: &'a Scope,
    weights: &'a Operator,
    theorem: Theorem,
    factor: Option<f64>,
    metric: &'a Metric,
    states: States,
    starts: Option<States>,
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
            Evidence::Splitting { weights, margin, lipschitz, step, factor } => {
                self.splitting(weights, *margin, *lipschitz, *step, *factor)
            }
            Evidence::NormalisedBox { steps } => self.normalised(*steps),
            Evidence::FormBox { steps } => self.form_box(*steps),
            Evidence::ByForm { .. } | Evidence::RowGains { .. } => self.by_form(evidence),
        }
    }

    /// The form of the map and the signs of the weights, read off again.
    fn by_form(&self, evidence: &Evidence) -> Result<(), Recheck> {
        let factor = self.claimed_factor()?;
        let again = forms::check(self.map, self.scope, self.weights, self.theorem, factor)?;
        ensure(*self.metric == again.metric, "the metric is not the one of the theorem")?;
        ensure(*evidence == again.evidence, "the evidence is not what the weights show")?;
        let starts = Some(again.states);
        ensure(self.states == again.states && self.starts == starts, "the proof is about other states")
    }

    fn not_above(&self, again: f64, claimed: f64) -> Result<(), Recheck> {
        ensure(again <= claimed, format!("the factor is {again}, above the claimed {claimed}"))
    }

    fn claimed_factor(&self) -> Result<f64, Recheck> {
        self.factor.ok_or_else(|| Recheck::new("the theorem gives a factor, but none is claimed"))
    }

    /// The conclusions must be those of the theorem.
    fn conclusions(&self, picard: bool, metric: &Metric) -> Result<(), Recheck> {
        let starts = picard.then_some(States::Reals);
        ensure(self.states == States::Reals && self.starts == starts, "the proof is about other states")?;
        ensure(self.metric == metric, "the metric is not the one of the theorem")?;
        ensure(picard == self.factor.is_some(), "a factor is claimed where there is none, or missing")
    }

    fn plain_layer(&self) -> Result<Scalar, Recheck> {
        ensure(self.map.form() == Form::Single, "the test is not for this form")?;
        ensure(self.map.normalisation().is_none(), "the test is not for normalised maps")?;
        Ok(Scalar::of(self.map))
    }

    fn closing(&self, domain: Domain, v: &[f64]) -> Result<(), Recheck> {
        let scalar = self.plain_layer()?;
        let n = self.weights.len();
        let per_channel =
            matches!(self.weights, Operator::Conv(c) if c.channels() == v.len()) && v.len() != n;
        let fits =
            if self.theorem == Theorem::LogJacobian { v.is_empty() } else { v.len() == n || per_channel };
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
                self.conclusions(true, &Metric::WeightedTwoNorm { t: v.to_vec() })?;
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
                let claimed = self.claimed_factor()?;
                let rows = boxes::row_sums(self.map, self.scope, self.weights, &state, claimed)?;
                self.not_above(Upper::largest(rows.iter().map(|row| row.absolute.get())).get(), claimed)
            }
            other => Err(Recheck::new(format!("{other} is no closing test"))),
        }
    }

    /// T1, row by row.
    fn weighted_sup(&self, d: &[f64], v: &[f64], per_channel: bool) -> Result<(), Recheck> {
        let claimed = self.claimed_factor()?;
        // With weights constant over the pixels no row is larger than one with all taps inside the image.
        if per_channel && let Operator::Conv(conv) = self.weights {
            let (c, pixels) = (conv.channels(), conv.pixels());
            return (0..c).try_for_each(|o| {
                let taps = |i: usize| conv.taps(o, i).iter().map(|w| Upper::new(w.abs())).sum::<Upper>();
                let sum: Upper = (0..c).map(|i| taps(i) * Upper::new(v[i])).sum();
                let steepest = Upper::largest(d[o * pixels..][..pixels].iter().copied());
                self.not_above((steepest * sum).over(v[o]).get(), claimed)
            });
        }
        let sums = rows::absolute_product(self.weights, v);
        sums.into_iter()
            .enumerate()
            .try_for_each(|(i, sum)| self.not_above((Upper::new(d[i]) * sum).over(v[i]).get(), claimed))
    }

    fn matrix(&self) -> Result<Vec<f64>, Recheck> {
        definite::matrix(self.weights)
            .ok_or_else(|| Recheck::new("too large to be checked as a dense matrix"))
    }

    /// `T W T^-1` of a convolution, `T` one power of two per channel.
    fn scaled_by_channels(&self, t: &[f64]) -> Result<Operator, Recheck> {
        balance::scaled(self.weights, t)
            .ok_or_else(|| Recheck::new("the weights are not one power of two per channel"))
    }

    /// T2: `c^2 I - M^T M` positive definite with `M = T D W T^-1`.
    fn two_norm(&self, d: &[f64], t: &[f64], domain: Domain) -> Result<(), Recheck> {
        let c = self.claimed_factor()?;
        if domain == Domain::Everywhere && matches!(self.weights, Operator::Conv(_)) {
            let scaled = self.scaled_by_channels(t)?;
            let level = (c * c / (d[0] * d[0])) * (1.0 - 1e-14);
            let shown = definite::form_is_positive(&scaled, level, 0.0, 1.0);
            return ensure(shown == Some(true), "the 2-norm is not below the claimed factor");
        }
        let n = self.weights.len();
        let w = self.matrix()?;
        let m: Vec<f64> = (0..n * n).map(|k| t[k / n] * d[k / n] * w[k] / t[k % n]).collect();
        let mut entries = vec![0.0; n * n];
        vectorised(
            #[inline(always)]
            || definite::add_gram(&m, n, &mut entries),
        );
        // Cauchy and Schwarz: the terms of any entry sum to at most the largest squared column norm, which is on the diagonal.
        let size = c * c + 1.01 * Upper::largest((0..n).map(|i| entries[i * n + i])).get();
        for (k, entry) in entries.iter_mut().enumerate() {
            *entry = f64::from(k / n == k % n) * c * c - *entry;
        }
        let error = (n as f64 + 16.0) * 2.0 * f64::EPSILON * size;
        let shown = definite::is_positive(&definite::Uncertain { n, entries, error });
        ensure(shown, "the weighted 2-norm is not below the claimed factor")
    }

    /// T3: `S (P D^-1 - sym(P W)) S - margin I` positive definite, `s_i = sqrt(d_i/p_i)`.
    fn diagonal_stability(&self, d: &[f64], p: &[f64], margin: f64, domain: Domain) -> Result<(), Recheck> {
        if domain == Domain::Everywhere && matches!(self.weights, Operator::Conv(_)) {
            // P = T^2 with powers of two: sym(P W) is congruent to sym(T W T^-1).
            let t: Vec<f64> = p.iter().map(|p| p.sqrt()).collect();
            ensure(t.iter().zip(p).all(|(t, p)| t * t == *p), "the weights are not squares")?;
            let scaled = self.scaled_by_channels(&t)?;
            let level = (1.0 / d[0]) * (1.0 - 1e-15) - margin;
            let shown = definite::form_is_positive(&scaled, level, -0.5, 0.0);
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
        let absolute = |m: &[f64]| m.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        let wc = lu::product(&w, &c, n);
        let sizes = lu::product(&absolute(&w), &absolute(&c), n);
        for i in 0..n {
            let radius = (slopes[i] - Interval::point(centre[i])).magnitude();
            let mut total = 0.0;
            for j in 0..n {
                let (wc, size) = (wc[i * n + j], sizes[i * n + j]);
                // Entry of I - (I - Dc W) C, and how far the slopes can move it.
                let defect = (one(i * n + j) - c[i * n + j] + centre[i] * wc).abs();
                let error = units * (1.0 + c[i * n + j].abs() + (centre[i].abs() + radius) * size);
                total += (defect + radius * wc.abs() + error) * v[j];
            }
            ensure(
                Upper::new(total * (1.0 + units)).get() < v[i],
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
            let near_ok = || scalar.slope(near).magnitude() <= slopes[i] * (1.0 + 1e-12);
            // Tangents on all of the box bound the secant between any two of its points; then nothing more is needed.
            let everywhere = scalar.slope(on).magnitude() <= slopes[i] * (1.0 + 1e-12);
            // Half of the inflation is left for the distance between anchor and fixed point.
            let by_secants = || near_ok() && scalar.secants_below(at, on, slopes[i] - 0.5e-6);
            ensure(everywhere || by_secants(), format!("slope {i} is larger than claimed"))?;
        }
        let d: Vec<f64> = slopes.iter().map(|s| s * (1.0 + 1e-12)).collect();
        let largest = |sums: Vec<Upper>| Upper::largest(sums.into_iter().map(Upper::get)).get();
        let row_sum = largest(rows::absolute_product(self.weights, &vec![1.0; n]));
        let top = Upper::largest(residual.iter().copied()).get();
        let boxed = Domain::Propagated { steps };
        let (reach, allowed) = match self.theorem {
            Theorem::SecantWeightedSup => {
                self.conclusions(true, &Metric::WeightedSup { v: v.to_vec() })?;
                self.weighted_sup(&d, v, false)?;
                let off = Upper::largest(residual.iter().zip(v).map(|(r, v)| r / v)).get();
                let image = largest(rows::absolute_product(self.weights, v));
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
                let widest = Upper::largest(s).get();
                // Two fixed points this near have their secants among the tangents near the anchor, which were checked.
                (row_sum * (widest * push * row_sum * top / margin + top), NEIGHBOURHOOD)
            }
            other => return Err(Recheck::new(format!("{other} is no secant test"))),
        };
        ensure(Upper::new(reach * (1.0 + 1e-9)).get() <= allowed, "the anchor is too far from a fixed point")
    }

    /// A7: margin, Lipschitz constant and splitting factor, each as one definiteness test, of the scaled weights.
    fn splitting(
        &self,
        t: &[f64],
        margin: f64,
        lipschitz: f64,
        step: f64,
        factor: f64,
    ) -> Result<(), Recheck> {
        if let Form::Tied { margin: tied, skew } = self.map.form() {
            return self.tied(tied, skew, t, [margin, lipschitz, step, factor]);
        }
        self.plain_layer()?;
        let WeightClass::Monotone { margin: asked } = self.map.weights() else {
            return Err(Recheck::new("the map is not a monotone one"));
        };
        ensure(self.theorem == Theorem::Monotone, "the evidence is for a monotone operator")?;
        ensure(self.map.activation().slopes_in_unit_interval(), "the activation has slopes outside [0, 1]")?;
        ensure(self.map.power() == 1.0, "a power has other slopes")?;
        ensure(margin > 0.0 && margin.is_finite(), "the margin must be positive")?;
        ensure(step > 0.0 && step.is_finite(), "the step must be positive")?;
        ensure(lipschitz > 0.0 && lipschitz.is_finite(), "the Lipschitz constant must be positive")?;
        ensure((0.0..1.0).contains(&factor), "the splitting factor is not in [0, 1)")?;
        ensure(margin >= asked * (1.0 - 1e-5), "the margin is smaller than the map asks")?;
        self.conclusions(false, &Metric::None)?;
        let scaled = if t.is_empty() {
            None
        } else {
            let scaled = balance::scaled(self.weights, t);
            Some(scaled.ok_or_else(|| Recheck::new("the weights of the norm are not powers of two"))?)
        };
        let weights = scaled.as_ref().unwrap_or(self.weights);
        let shown = |diagonal: f64, skew: f64, weight: f64, what: &str| match definite::form_is_positive(
            weights, diagonal, skew, weight,
        ) {
            Some(true) => Ok(()),
            Some(false) => Err(Recheck::new(format!("{what} does not hold"))),
            None => Err(Recheck::new("too large to be checked as a dense matrix")),
        };
        shown(1.0 - margin, -0.5, 0.0, "the margin")?;
        shown(lipschitz * lipschitz - 1.0, 1.0, 1.0, "the Lipschitz constant")?;
        let q = (1.0 - factor * factor) / (1.0 + factor * factor);
        let t = step;
        shown(2.0 * t - q * (1.0 + t * t), q * t * t - t, q * t * t, "the splitting factor")
    }

    /// A8: the margin is that of the form; the other numbers follow from norms of `A`, in interval arithmetic.
    fn tied(&self, margin: f64, skew: f64, t: &[f64], claimed: [f64; 4]) -> Result<(), Recheck> {
        ensure(self.theorem == Theorem::MonotoneTied && t.is_empty(), "the evidence is for another theorem")?;
        self.conclusions(false, &Metric::None)?;
        let [stated, lipschitz, step, factor] = claimed;
        ensure(stated == margin, "the margin is not the one of the map")?;
        ensure((0.0..1.0).contains(&factor), "the splitting factor is not in [0, 1)")?;
        ensure(step > 0.0 && step.is_finite(), "the step must be positive")?;
        ensure(lipschitz >= margin && lipschitz.is_finite(), "the Lipschitz constant is below the margin")?;
        self.tied_lipschitz(margin, skew.abs(), lipschitz)?;
        let near = Interval::point(2.0) * Interval::point(step) * Interval::point(margin);
        let far = Interval::point(1.0) + (Interval::point(step) * Interval::point(lipschitz)).square();
        let again = ((far - near) / (far + near)).sqrt();
        self.not_above(Upper::new(again.hi).get(), factor)
    }

    /// `||I - W|| <= m + a^2 + 2 |b| a`, `a` a bound of `||A||_2`: by `||A||_2^2 <= ||A||_inf ||A||_1`, or by definiteness. Neither may
    /// leave much room, or the certificate is one of other weights.
    fn tied_lipschitz(&self, margin: f64, skew: f64, claimed: f64) -> Result<(), Recheck> {
        let ones = vec![1.0; self.weights.len()];
        let sums =
            |a: &Operator| Upper::largest(rows::absolute_product(a, &ones).into_iter().map(Upper::get));
        let square = Interval::point(sums(self.weights).get())
            * Interval::point(sums(&self.weights.transposed()).get());
        let (m, b) = (Interval::point(margin), Interval::point(skew));
        let bound = m + square + Interval::point(2.0) * b * square.sqrt();
        let crude = Upper::new(bound.hi).get();
        if crude <= claimed && claimed <= crude * (1.0 + SAME_SUMS) {
            return Ok(());
        }
        let norm = (b.square() + Interval::point(claimed) - m).sqrt() - b;
        let below = |norm: f64| {
            let square = Interval::point(norm.max(0.0)).square().lo;
            definite::form_is_positive(self.weights, square, 0.0, 1.0) == Some(true)
        };
        ensure(crude <= claimed || below(norm.lo), "the Lipschitz constant is larger")?;
        ensure(!below(SAME_NORM * norm.hi), "the Lipschitz constant is that of larger weights")
    }

    /// TL for the forms that take signs apart, on the box of positive states, propagated again.
    fn form_box(&self, steps: usize) -> Result<(), Recheck> {
        ensure(self.theorem == Theorem::LogJacobian, "the evidence is for a degree on a box")?;
        ensure(*self.metric == Metric::Thompson, "the metric is not the one of the theorem")?;
        let positive = self.states == States::Positive && self.starts == Some(States::Positive);
        ensure(positive, "the proof is about positive states")?;
        let y = self.scope.entries().ok_or_else(|| Recheck::new("a box is for given inputs"))?;
        let degree = split_forms::degree(self.map, self.weights, &y, steps)?;
        self.not_above(degree.get(), self.claimed_factor()?)
    }

    /// Theorem 4 on the box, propagated again.
    fn normalised(&self, steps: usize) -> Result<(), Recheck> {
        ensure(self.map.form() == Form::Single, "the test is not for this form")?;
        let norm = self.map.normalisation().ok_or_else(|| Recheck::new("the map is not normalised"))?;
        self.conclusions(true, &Metric::Hilbert)?;
        let interact = norm.groups.interact(self.weights);
        let expected = if interact { Theorem::NormalisedInteracting } else { Theorem::NormalisedGeneral };
        ensure(self.theorem == expected, "another theorem is claimed than the groups allow")?;
        let state = boxes::propagate_normalised(self.map, self.scope, self.weights, norm, steps)?;
        let rows = boxes::row_sums(self.map, self.scope, self.weights, &state, 0.0)?;
        let largest =
            |part: fn(&boxes::Sums) -> Upper| Upper::largest(rows.iter().map(|row| part(row).get()));
        let factor = if interact {
            let twice = Upper::new(2.0) * largest(|row| row.absolute);
            let groups = norm.groups.members(self.weights).map_err(|bad| Recheck::new(bad.to_string()))?;
            let sharper = boxes::by_groups(self.map, self.scope, self.weights, &state, &groups, &rows);
            sharper.map_or(twice, |sharper| sharper.min(twice))
        } else {
            largest(|row| row.positive) + largest(|row| row.negative)
        };
        self.not_above(factor.get(), self.claimed_factor()?)
    }
}
