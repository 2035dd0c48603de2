//! Enclosures of a map's values: [`Map::evaluate`] with every operation rounded outward.

use subdeq_map::{Form, Injection, Map, Normalisation, Operator, OperatorError, PNorm};

use crate::activation::Enclosure;
use crate::interval::Interval;
use crate::operator::Products;

/// A map with its weights, ready to be evaluated over boxes.
///
/// ```
/// use subdeq_map::{Layout, Map, Operator};
/// use subdeq_theory::{exact::ExactMap, interval::Interval};
/// let map = Map::named("split-sign", Layout::Dense)?;
/// let w = Operator::dense(2, vec![1.0, -1.0, -1.0, 1.0])?;
/// let z = [Interval::point(1.0), Interval::point(3.0)];
/// let image = ExactMap::new(&map, &w, None)?.apply(&z, &[0.0, 0.5]).expect("it is defined everywhere");
/// let exact = map.evaluate(&w, None, &[1.0, 3.0], &[0.0, 0.5])?;
/// assert!(image[0].contains(exact[0]) && image[0].width() < 1e-14);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ExactMap<'a> {
    map: &'a Map,
    w: &'a Operator,
    /// `W+` and `W-`, where the form takes them apart.
    split: Option<[Operator; 2]>,
    /// `P` and `N` of [`Form::Gains`].
    hidden: Option<[Operator; 2]>,
    groups: Vec<Vec<usize>>,
}

impl<'a> ExactMap<'a> {
    /// With the operator inside [`Form::Gains`], if there is one.
    ///
    /// # Errors
    /// Never for weights that are operators; [`OperatorError`] is what taking their signs apart could return.
    pub fn new(
        map: &'a Map,
        w: &'a Operator,
        hidden: Option<&Operator>,
    ) -> Result<ExactMap<'a>, OperatorError> {
        let parts = |of: &Operator| -> Result<[Operator; 2], OperatorError> {
            Ok([of.clone().try_map(|w| w.max(0.0))?, of.clone().try_map(|w| (-w).max(0.0))?])
        };
        let whole = matches!(map.form(), Form::Single | Form::Graph { .. } | Form::Monomial);
        let split = if whole { None } else { Some(parts(w)?) };
        let hidden = hidden.map(parts).transpose()?;
        let groups = map.normalisation().and_then(|norm| norm.groups.members(w).ok()).unwrap_or_default();
        Ok(ExactMap { map, w, split, hidden, groups })
    }

    /// A box around `F(z; y)` for `z` in the box; `None` where it is not certainly defined and bounded.
    #[must_use]
    pub fn apply(&self, z: &[Interval], y: &[f64]) -> Option<Vec<Interval>> {
        let mut f: Vec<Interval> = match (self.map.form(), &self.split) {
            (Form::Monomial, _) => {
                if z.iter().any(|z| !(z.lo > 0.0)) {
                    return None;
                }
                let logs: Vec<Interval> = z.iter().map(|z| z.ln()).collect();
                let powers = product(self.w, &logs).into_iter().map(Interval::exp);
                powers.zip(y).map(|(u, &y)| self.respond(u, Some(y))).collect::<Option<_>>()?
            }
            (Form::Gains, Some(gains)) => self.gains(gains, z, y)?,
            (_, Some([plus, minus])) => {
                let (up, down) = (product(plus, z), product(minus, z));
                (0..z.len()).map(|i| self.split_entry(up[i], down[i], y, i)).collect::<Option<_>>()?
            }
            (form, None) => {
                let (kept, share) = match form {
                    Form::Graph { teleport } => {
                        (Interval::point(1.0) - Interval::point(teleport), Interval::point(teleport))
                    }
                    _ => (Interval::point(1.0), Interval::point(1.0)),
                };
                let scale = |u: Interval| if kept == Interval::point(1.0) { u } else { kept * u };
                let entry = |(u, &y): (Interval, &f64)| {
                    let y = share * Interval::point(y);
                    match self.map.injection() {
                        Injection::Inner => self.power(self.map.activation().enclose(scale(u) + y)),
                        Injection::Outer => Some(self.power(self.map.activation().enclose(scale(u)))? + y),
                    }
                };
                product(self.w, z).into_iter().zip(y).map(entry).collect::<Option<_>>()?
            }
        };
        if let Some(norm) = self.map.normalisation() {
            self.normalise(norm, &mut f)?;
        }
        f.iter().all(|f| f.is_bounded()).then_some(f)
    }

    /// `(s + shift)^power` for the values of `s`.
    fn power(&self, s: Interval) -> Option<Interval> {
        let base = s + Interval::point(self.map.shift());
        match self.map.power() {
            1.0 => Some(base),
            power => (base.lo >= 0.0).then(|| base.powf(power)),
        }
    }

    /// `(s(u) + shift)^power`, plus an outer injection.
    fn respond(&self, u: Interval, y: Option<f64>) -> Option<Interval> {
        Some(self.power(self.map.activation().enclose(u))? + y.map_or(Interval::point(0.0), Interval::point))
    }

    /// Entry `i` of the forms that see excitation `u` and inhibition `w` apart.
    fn split_entry(&self, u: Interval, w: Interval, y: &[f64], i: usize) -> Option<Interval> {
        let point = Interval::point;
        let s = |u: Interval| self.map.activation().enclose(u);
        let value = match self.map.form() {
            Form::SplitSign => s(u) - s(w),
            Form::Divisive { q } => s(positive(u, point(q) + w)?),
            Form::Rational { q } => positive(u, point(q) + u + w)?,
            Form::PowerRatio { p, e } => {
                let n = y.len() / 2;
                let ratio = positive(u + point(y[i]) + point(e), w + point(y[n + i]) + point(e))?;
                return (ratio.lo > 0.0).then(|| ratio.powf(p));
            }
            Form::Single | Form::Gains | Form::Monomial | Form::Graph { .. } => return None,
        };
        Some(value + point(self.map.shift()) + point(y[i]))
    }

    fn gains(&self, [a, b]: &[Operator; 2], z: &[Interval], y: &[f64]) -> Option<Vec<Interval>> {
        let s = |u: Vec<Interval>| -> Vec<Interval> {
            u.into_iter().map(|u| self.map.activation().enclose(u)).collect()
        };
        let (excited, inhibited) = match &self.hidden {
            Some([p, n]) => (s(product(p, z)), s(product(n, z))),
            None => (s(z.to_vec()), s(z.to_vec())),
        };
        let (up, down) = (product(a, &excited), product(b, &inhibited));
        let sums = product(b, &vec![Interval::point(1.0); z.len()]);
        let (tie, shift) = (Interval::point(self.map.tie()), Interval::point(self.map.shift()));
        Some((0..z.len()).map(|i| up[i] - down[i] + tie * sums[i] + shift + Interval::point(y[i])).collect())
    }

    /// Divides each group by its norm, where all its entries are positive.
    fn normalise(&self, norm: Normalisation, f: &mut [Interval]) -> Option<()> {
        if f.iter().any(|f| !(f.lo > 0.0)) {
            return None;
        }
        for group in &self.groups {
            let members = group.iter().map(|&i| f[i]);
            let size = match norm.p {
                PNorm::Inf => members.reduce(|a, b| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi)))?,
                PNorm::Finite(p) => members.map(|x| x.powf(p)).reduce(|a, b| a + b)?.powf(1.0 / p),
            };
            group.iter().for_each(|&i| f[i] = f[i] / size);
        }
        Some(())
    }
}

/// `W x` over the box.
fn product(w: &Operator, x: &[Interval]) -> Vec<Interval> {
    let (lower, upper): (Vec<f64>, Vec<f64>) = x.iter().map(|x| (x.lo, x.hi)).unzip();
    let (lower, upper) = w.enclose(&lower, &upper);
    lower.into_iter().zip(upper).map(|(lo, hi)| Interval::new(lo, hi)).collect()
}

/// A quotient by what is certainly positive.
fn positive(above: Interval, below: Interval) -> Option<Interval> {
    (below.lo > 0.0).then(|| above / below)
}
