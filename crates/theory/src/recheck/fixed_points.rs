//! Refutations again: Krawczyk's operator component by component, in interval arithmetic, on the balls of the certificate.

use subdeq_map::{Map, Operator, PNorm};

use super::Recheck;
use super::scalar::{Scalar, injections};
use crate::interval::Interval;
use crate::lu;

/// The map and its Jacobian over a box, in plain interval arithmetic.
pub(super) struct ExactMap<'a> {
    map: &'a Map,
    y: &'a [f64],
    rows: Vec<Vec<(usize, f64)>>,
    groups: Option<(PNorm, Vec<Vec<usize>>)>,
}

impl<'a> ExactMap<'a> {
    pub(super) fn new(map: &'a Map, operator: &Operator, y: &'a [f64]) -> Result<ExactMap<'a>, Recheck> {
        let rows = (0..operator.len()).map(|i| operator.row(i)).collect();
        let groups = match map.normalisation() {
            None => None,
            Some(norm) => {
                let members = norm.groups.members(operator).map_err(|bad| Recheck::new(bad.to_string()))?;
                Some((norm.p, members))
            }
        };
        Ok(ExactMap { map, y, rows, groups })
    }

    /// `G(X)` and `G'(X)`, row major; an error where either is not certainly defined and bounded.
    fn evaluate(&self, x: &[Interval]) -> Result<(Vec<Interval>, Vec<Interval>), Recheck> {
        let n = x.len();
        let scalar = Scalar::of(self.map);
        let (mut value, mut jacobian) = (Vec::with_capacity(n), vec![Interval::point(0.0); n * n]);
        for i in 0..n {
            let (inner, outer) = injections(self.map, Interval::point(self.y[i]));
            let product = self.rows[i]
                .iter()
                .fold(Interval::point(0.0), |sum, &(j, w)| sum + Interval::point(w) * x[j]);
            let u = product + inner;
            let (f, slope) = (scalar.value(u) + outer, scalar.slope(u));
            if !(f.is_bounded() && slope.is_bounded()) {
                return Err(Recheck::new(format!("entry {i} of the map is not certainly defined there")));
            }
            value.push(f);
            for &(j, w) in &self.rows[i] {
                jacobian[i * n + j] = slope * Interval::point(w);
            }
        }
        let Some((p, groups)) = &self.groups else { return Ok((value, jacobian)) };
        if value.iter().any(|f| !(f.lo > 0.0)) {
            return Err(Recheck::new("a map is normalised where it is not certainly positive"));
        }
        let mut normalised = value.clone();
        for group in groups {
            let (norm, gradient) = norm(*p, group, &value);
            for &i in group {
                normalised[i] = value[i] / norm;
            }
            for j in 0..n {
                let drift = group
                    .iter()
                    .zip(&gradient)
                    .fold(Interval::point(0.0), |sum, (&k, &g)| sum + g * jacobian[k * n + j]);
                for &i in group {
                    jacobian[i * n + j] = (jacobian[i * n + j] - normalised[i] * drift) / norm;
                }
            }
        }
        Ok((normalised, jacobian))
    }

    /// `I - G'(X)`.
    fn one_minus_jacobian(&self, x: &[Interval]) -> Result<Vec<Interval>, Recheck> {
        let n = x.len();
        let jacobian = self.evaluate(x)?.1;
        let one = |k: usize| Interval::point(f64::from(k / n == k % n));
        Ok(jacobian.into_iter().enumerate().map(|(k, j)| one(k) - j).collect())
    }

    /// Whether the ball contains exactly one fixed point: `m - C g(m) + (I - C g'(X))(X - m)` lies inside it.
    pub(super) fn verify(&self, point: &[f64], radius: f64) -> Result<(), Recheck> {
        let n = point.len();
        if !(radius > 0.0 && radius.is_finite() && point.iter().all(|x| x.is_finite())) {
            return Err(Recheck::new("a ball without a centre or a radius"));
        }
        let here: Vec<Interval> = point.iter().map(|&x| Interval::point(x)).collect();
        let ball: Vec<Interval> = here.iter().map(|&x| x + Interval::new(-radius, radius)).collect();
        let a = self.one_minus_jacobian(&ball)?;
        let middle: Vec<f64> = a.iter().map(|x| x.midpoint()).collect();
        let c = lu::inverse(&middle, n)
            .ok_or_else(|| Recheck::new("the Jacobian at a fixed point is singular"))?;
        let g: Vec<Interval> =
            self.evaluate(&here)?.0.into_iter().zip(&here).map(|(value, &x)| x - value).collect();
        let offset = Interval::new(-radius, radius);
        for i in 0..n {
            let mut image = Interval::point(0.0);
            for k in 0..n {
                image = image - Interval::point(c[i * n + k]) * g[k];
            }
            for j in 0..n {
                let ca = (0..n).fold(Interval::point(f64::from(i == j)), |sum, k| {
                    sum - Interval::point(c[i * n + k]) * a[k * n + j]
                });
                image = image + ca * offset;
            }
            if !(image.magnitude() < radius) {
                return Err(Recheck::new(format!("entry {i} of a claimed fixed point is not verified")));
            }
        }
        Ok(())
    }

    /// Whether `det(I - J) < 0` over a ball that [`ExactMap::verify`] accepts, and about as large as claimed.
    pub(super) fn verify_negative_index(&self, point: &[f64], claimed: f64) -> Result<(), Recheck> {
        let here: Vec<Interval> = point.iter().map(|&x| Interval::point(x)).collect();
        let middle: Vec<f64> = self.one_minus_jacobian(&here)?.iter().map(|x| x.midpoint()).collect();
        if lu::determinant_sign(&middle, point.len()) != Some(-1.0) {
            return Err(Recheck::new("the determinant at the fixed point is not certainly negative"));
        }
        let found = lu::determinant(&middle, point.len());
        if (found - claimed).abs() <= 1e-6 * found.abs() {
            Ok(())
        } else {
            Err(Recheck::new(format!("the determinant is {found}, not {claimed}")))
        }
    }
}

/// The norm of positive intervals and its gradient.
fn norm(p: PNorm, group: &[usize], f: &[Interval]) -> (Interval, Vec<Interval>) {
    match p {
        PNorm::Inf => {
            let top = group
                .iter()
                .map(|&i| f[i])
                .fold(f[group[0]], |a, b| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi)));
            let rivals = |i: usize| group.iter().any(|&k| k != i && f[k].hi >= f[i].lo);
            let gradient = group.iter().map(|&i| {
                if f[i].hi < top.lo {
                    Interval::point(0.0)
                } else if rivals(i) {
                    Interval::new(0.0, 1.0)
                } else {
                    Interval::point(1.0)
                }
            });
            (top, gradient.collect())
        }
        PNorm::Finite(p) => {
            let total = group.iter().fold(Interval::point(0.0), |sum, &i| sum + f[i].powf(p));
            let norm = total.powf(1.0 / p);
            (norm, group.iter().map(|&i| (f[i] / norm).powf(p - 1.0)).collect())
        }
    }
}
