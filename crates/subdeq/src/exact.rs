//! `F(z; y)` on intervals, rounded outward.

use subdeq_map::{Form, Injection, Map, Operator, PNorm};
use subdeq_theory::activation::Enclosure;
use subdeq_theory::interval::Interval;
use subdeq_theory::operator::Products;

use crate::{Error, Result};

/// A map with its weights, to be evaluated on boxes.
pub(crate) struct ExactMap<'a> {
    map: &'a Map,
    operator: &'a Operator,
    /// The signs of the operator, and of the one inside the gains.
    signs: [Operator; 2],
    hidden: Option<[Operator; 2]>,
}

impl<'a> ExactMap<'a> {
    pub(crate) fn new(map: &'a Map, operator: &'a Operator, hidden: Option<&Operator>) -> Result<Self> {
        Ok(Self { map, operator, signs: signs(operator)?, hidden: hidden.map(signs).transpose()? })
    }

    /// A box around `F(z; y)` for `z` in the box; `None` where it is not certainly defined.
    pub(crate) fn apply(&self, z: &[Interval], y: &[f64]) -> Option<Vec<Interval>> {
        let (map, n) = (self.map, z.len());
        let point = Interval::point;
        let s = |u: Interval| map.activation().enclose(u);
        let shift = point(map.shift());
        let positive = |x: Interval| (x.lo > 0.0).then_some(x);
        let power = |x: Interval| match map.power() {
            1.0 => Some(x),
            power => positive(x).map(|x| x.powf(power)),
        };
        let both = || (product(&self.signs[0], z), product(&self.signs[1], z));
        let mut f: Vec<Interval> = match map.form() {
            Form::Single => {
                let u = product(self.operator, z);
                let entry = |i: usize| match map.injection() {
                    Injection::Inner => power(s(u[i] + point(y[i])) + shift),
                    Injection::Outer => power(s(u[i]) + shift).map(|x| x + point(y[i])),
                };
                (0..n).map(entry).collect::<Option<_>>()?
            }
            Form::SplitSign => {
                let (u, w) = both();
                (0..n).map(|i| s(u[i]) - s(w[i]) + point(y[i]) + shift).collect()
            }
            Form::Divisive { q } => {
                let (u, w) = both();
                let entry = |i: usize| Some(s(u[i] / positive(point(q) + w[i])?) + point(y[i]) + shift);
                (0..n).map(entry).collect::<Option<_>>()?
            }
            Form::Rational { q } => {
                let (u, w) = both();
                let entry = |i: usize| Some(u[i] / positive(point(q) + u[i] + w[i])? + point(y[i]) + shift);
                (0..n).map(entry).collect::<Option<_>>()?
            }
            Form::PowerRatio { p, e } => {
                let (u, w) = both();
                let entry = |i: usize| {
                    let above = positive(u[i] + point(y[i]) + point(e))?;
                    Some((above / positive(w[i] + point(y[n + i]) + point(e))?).powf(p))
                };
                (0..n).map(entry).collect::<Option<_>>()?
            }
            Form::Gains => {
                let hidden = self.hidden.as_ref()?;
                let side = |k: usize| {
                    let inside: Vec<Interval> = product(&hidden[k], z).into_iter().map(s).collect();
                    product(&self.signs[k], &inside)
                };
                let (up, down) = (side(0), side(1));
                let tied = product(&self.signs[1], &vec![point(1.0); n]);
                (0..n).map(|i| up[i] - down[i] + point(y[i]) + point(map.tie()) * tied[i] + shift).collect()
            }
            Form::Monomial | Form::Graph { .. } => return None,
        };
        if let Some(norm) = map.normalisation() {
            if f.iter().any(|&f| positive(f).is_none()) {
                return None;
            }
            for group in norm.groups.members(self.operator).ok()? {
                let members = group.iter().map(|&i| f[i]);
                let size = match norm.p {
                    PNorm::Inf => members.reduce(|a, b| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi))),
                    PNorm::Finite(p) => {
                        members.map(|x| x.powf(p)).reduce(|a, b| a + b).map(|sum| sum.powf(1.0 / p))
                    }
                }?;
                group.iter().for_each(|&i| f[i] = f[i] / size);
            }
        }
        f.iter().all(|f| f.lo.is_finite() && f.hi.is_finite()).then_some(f)
    }
}

/// `W+` and `W-`.
fn signs(operator: &Operator) -> Result<[Operator; 2]> {
    let sign =
        |of: fn(f64) -> f64| operator.clone().try_map(of).map_err(|error| Error::invalid(error.to_string()));
    Ok([sign(|w| w.max(0.0))?, sign(|w| (-w).max(0.0))?])
}

/// Boxes around `W x` for `x` in the box.
fn product(operator: &Operator, x: &[Interval]) -> Vec<Interval> {
    let (lower, upper): (Vec<f64>, Vec<f64>) = x.iter().map(|x| (x.lo, x.hi)).unzip();
    let (lower, upper) = operator.enclose(&lower, &upper);
    lower.into_iter().zip(upper).map(|(lo, hi)| Interval::new(lo, hi)).collect()
}
