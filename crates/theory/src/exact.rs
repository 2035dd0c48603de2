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
        let whole =
            matches!(map.form(), Form::Single | Form::Graph { .. } | Form::Monomial | Form::Tied { .. });
        let split = if whole { None } else { Some(parts(w)?) };
        let hidden = hidden.map(parts).transpose()?;
        let groups = map.normalisation().map(|norm| norm.groups);
        let groups = groups.or(map.projection().map(|projection| projection.groups));
        let groups = groups.and_then(|groups| groups.members(w).ok()).unwrap_or_default();
        Ok(ExactMap { map, w, split, hidden, groups })
    }

    /// A box around `F(z; y)` for `z` in the box; `None` where it is not certainly defined and bounded.
    #[must_use]
    pub fn apply(&self, z: &[Interval], y: &[f64]) -> Option<Vec<Interval>> {
        let y: Vec<Interval> = y.iter().map(|&y| Interval::point(y)).collect();
        self.apply_inputs(z, &y)
    }

    /// The same for every input `y` in a box: one step of the interval embedding.
    #[must_use]
    pub fn apply_inputs(&self, z: &[Interval], y: &[Interval]) -> Option<Vec<Interval>> {
        let mut f: Vec<Interval> = match (self.map.form(), &self.split) {
            (Form::Monomial, _) => {
                if z.iter().any(|z| !(z.lo > 0.0)) {
                    return None;
                }
                let logs: Vec<Interval> = z.iter().map(|z| z.ln()).collect();
                let powers = self.w.image(&logs).into_iter().map(Interval::exp);
                powers
                    .zip(y)
                    .map(|(u, &y)| Some(self.power(self.map.activation().enclose(u))? + y))
                    .collect::<Option<_>>()?
            }
            (Form::Gains, Some(gains)) => self.gains(gains, z, y)?,
            (_, Some([plus, minus])) => {
                let (up, down) = (plus.image(z), minus.image(z));
                (0..z.len()).map(|i| self.split_entry(up[i], down[i], y, i)).collect::<Option<_>>()?
            }
            (form, None) => {
                let share = Interval::point(form.share());
                let kept = match form {
                    Form::Graph { .. } => Interval::point(1.0) - share,
                    _ => Interval::point(1.0),
                };
                let scale = |u: Interval| if kept == Interval::point(1.0) { u } else { kept * u };
                let entry = |(u, &y): (Interval, &Interval)| {
                    let y = if share == Interval::point(1.0) { y } else { share * y };
                    match self.map.injection() {
                        Injection::Inner => self.power(self.map.activation().enclose(scale(u) + y)),
                        Injection::Outer => Some(self.power(self.map.activation().enclose(scale(u)))? + y),
                    }
                };
                self.preactivations(z).into_iter().zip(y).map(entry).collect::<Option<_>>()?
            }
        };
        if let Some(norm) = self.map.normalisation() {
            self.normalise(norm, &mut f)?;
        }
        if let Some(projection) = self.map.projection() {
            self.project(projection.radius, &mut f);
        }
        f.iter().all(|f| f.is_bounded()).then_some(f)
    }

    /// What the weights make of the state: `W z` of [`Form::Single`] and [`Form::Tied`].
    #[must_use]
    pub fn preactivations(&self, z: &[Interval]) -> Vec<Interval> {
        let Form::Tied { margin, skew } = self.map.form() else { return self.w.image(z) };
        let back = self.w.transposed();
        let forth = self.w.image(z);
        let (gram, back) = (back.image(&forth), back.image(z));
        let (kept, skew) = (Interval::point(1.0) - Interval::point(margin), Interval::point(skew));
        (0..z.len()).map(|i| kept * z[i] - gram[i] + skew * (forth[i] - back[i])).collect()
    }

    /// `(s + shift)^power` for the values of `s`.
    fn power(&self, s: Interval) -> Option<Interval> {
        let base = s + Interval::point(self.map.shift());
        match self.map.power() {
            1.0 => Some(base),
            power => (base.lo >= 0.0).then(|| base.powf(power)),
        }
    }

    /// Entry `i` of the forms that see excitation `u` and inhibition `w` apart.
    fn split_entry(&self, u: Interval, w: Interval, y: &[Interval], i: usize) -> Option<Interval> {
        let point = Interval::point;
        let s = |u: Interval| self.map.activation().enclose(u);
        let value = match self.map.form() {
            Form::SplitSign => s(u) - s(w),
            Form::Divisive { q } => s(positive(u, point(q) + w)?),
            Form::Rational { q } => positive(u, point(q) + u + w)?,
            Form::PowerRatio { p, e } => {
                let n = y.len() / 2;
                let ratio = positive(u + y[i] + point(e), w + y[n + i] + point(e))?;
                return (ratio.lo > 0.0).then(|| ratio.powf(p));
            }
            Form::Single
            | Form::Gains
            | Form::Monomial
            | Form::Tied { .. }
            | Form::Graph { .. }
            | Form::PowerMean { .. } => return None,
        };
        Some(value + point(self.map.shift()) + y[i])
    }

    fn gains(&self, [a, b]: &[Operator; 2], z: &[Interval], y: &[Interval]) -> Option<Vec<Interval>> {
        let s = |u: Vec<Interval>| -> Vec<Interval> {
            u.into_iter().map(|u| self.map.activation().enclose(u)).collect()
        };
        let (excited, inhibited) = match &self.hidden {
            Some([p, n]) => (s(p.image(z)), s(n.image(z))),
            None => (s(z.to_vec()), s(z.to_vec())),
        };
        let (up, down) = (a.image(&excited), b.image(&inhibited));
        let sums = b.image(&vec![Interval::point(1.0); z.len()]);
        let (tie, shift) = (Interval::point(self.map.tie()), Interval::point(self.map.shift()));
        Some((0..z.len()).map(|i| up[i] - down[i] + tie * sums[i] + shift + y[i]).collect())
    }

    /// Projects each group onto the ball.
    fn project(&self, radius: f64, f: &mut [Interval]) {
        for group in &self.groups {
            let size = group.iter().fold(Interval::point(0.0), |sum, &i| sum + f[i].square()).sqrt();
            if size.hi <= radius {
                continue;
            }
            // r / max(r, size), which is at most one.
            let size = Interval::new(size.lo.max(radius), size.hi);
            let scale = Interval::point(radius) / size;
            let scale = Interval::new(scale.lo.max(0.0), scale.hi.min(1.0));
            group.iter().for_each(|&i| f[i] = f[i] * scale);
        }
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

/// A quotient by what is certainly positive.
fn positive(above: Interval, below: Interval) -> Option<Interval> {
    (below.lo > 0.0).then(|| above / below)
}
