//! The complete map for one input, normalisation included, with its Jacobian in floating point and as an enclosure:
//! what Newton's method and its interval version need.

use subdeq_map::{Normalisation, PNorm};

use crate::bound::Upper;
use crate::interval::Interval;
use crate::operator::Products;
use crate::response::Layer;
use crate::round::centre_radius;

/// `G(z) = norm(F(z))`, or `F` itself without a normalisation.
pub(crate) struct Model<'a> {
    pub(crate) layer: &'a Layer<'a>,
    /// `W`, row major.
    matrix: Vec<f64>,
    norm: Option<(PNorm, Vec<Vec<usize>>)>,
}

/// An interval matrix as centres and radii.
pub(crate) struct Ball {
    pub(crate) centre: Vec<f64>,
    pub(crate) radius: Vec<f64>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(
        layer: &'a Layer<'a>,
        normalisation: Option<Normalisation>,
        limit: usize,
    ) -> Option<Model<'a>> {
        let matrix = layer.operator.to_dense(limit)?;
        let norm = match normalisation {
            Some(norm) => Some((norm.p, norm.groups.members(layer.operator).ok()?)),
            None => None,
        };
        Some(Model { layer, matrix, norm })
    }

    /// Whether there is no division by a norm.
    pub(crate) fn is_unnormalised(&self) -> bool {
        self.norm.is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.layer.len()
    }

    /// `out = G(z)`.
    pub(crate) fn apply(&self, z: &[f64], out: &mut [f64]) {
        self.layer.apply(z, out);
        if let Some((p, groups)) = &self.norm {
            for group in groups {
                let values: Vec<f64> = group.iter().map(|&i| out[i]).collect();
                let norm = p.norm(&values);
                group.iter().for_each(|&i| out[i] /= norm);
            }
        }
    }

    /// `{G(x) : x in on}`, rounded outward; `None` where it is not certainly defined and bounded.
    pub(crate) fn enclose(&self, on: &[Interval]) -> Option<Vec<Interval>> {
        let f = self.unnormalised(on)?.0;
        let Some((p, groups)) = &self.norm else { return Some(f) };
        let mut out = f.clone();
        for group in groups {
            let (norm, _) = norm_and_gradient(*p, group, &f)?;
            group.iter().for_each(|&i| out[i] = f[i] / norm);
        }
        Some(out)
    }

    /// `F` and its preactivations over a box; `None` where `F` is not certainly defined and bounded.
    fn unnormalised(&self, on: &[Interval]) -> Option<(Vec<Interval>, Vec<Interval>)> {
        let products = self.layer.operator.image(on).into_iter().enumerate();
        let u: Vec<Interval> = products.map(|(i, product)| product + self.layer.inner.at(i)).collect();
        let f: Vec<Interval> =
            (0..on.len()).map(|i| self.layer.response.enclose(u[i]) + self.layer.outer.at(i)).collect();
        f.iter().all(|f| f.is_bounded()).then_some((f, u))
    }

    /// `I - J` over a box; `None` where `J` is not certainly defined and bounded there.
    pub(crate) fn one_minus_jacobian(&self, on: &[Interval]) -> Option<Ball> {
        let n = self.len();
        let (f, u) = self.unnormalised(on)?;
        let mut j: Vec<Interval> = Vec::with_capacity(n * n);
        for (&u, row) in u.iter().zip(self.matrix.chunks_exact(n)) {
            // Bounded also where the weights of the row are zero: zero times an unknown slope is unknown.
            let slope = Some(self.layer.response.slope(u)).filter(|slope| slope.is_bounded())?;
            j.extend(row.iter().map(|&w| slope * Interval::point(w)));
        }
        if let Some((p, groups)) = &self.norm {
            for group in groups {
                normalise_rows(*p, group, &f, &mut j, n)?;
            }
        }
        let (centre, radius) = j
            .iter()
            .enumerate()
            .map(|(k, &entry)| {
                let one = Interval::point(f64::from(k / n == k % n));
                let difference = one - entry;
                centre_radius(difference.lo, difference.hi)
            })
            .unzip();
        Some(Ball { centre, radius })
    }
}

/// The norm of a group of positive numbers and its gradient, enclosed; `None` unless all are certainly positive.
fn norm_and_gradient(p: PNorm, group: &[usize], f: &[Interval]) -> Option<(Interval, Vec<Interval>)> {
    if !group.iter().all(|&i| f[i].lo > 0.0) {
        return None;
    }
    Some(match p {
        PNorm::Inf => {
            let lo = Upper::largest(group.iter().map(|&i| f[i].lo)).get();
            let hi = Upper::largest(group.iter().map(|&i| f[i].hi)).get();
            let leaders: Vec<bool> = group.iter().map(|&i| f[i].hi >= lo).collect();
            let alone = leaders.iter().filter(|&&l| l).count() == 1;
            let gradient = leaders.iter().map(|&leads| match (leads, alone) {
                (false, _) => Interval::point(0.0),
                (true, true) => Interval::point(1.0),
                (true, false) => Interval::new(0.0, 1.0),
            });
            (Interval::new(lo, hi), gradient.collect())
        }
        PNorm::Finite(p) => {
            let sum = |end: fn(Interval) -> f64| {
                let powers = group.iter().map(|&i| Interval::point(end(f[i])).powf(p));
                powers.fold(Interval::point(0.0), |sum, x| sum + x).powf(1.0 / p)
            };
            let norm = Interval::new(sum(|x| x.lo).lo, sum(|x| x.hi).hi);
            let gradient = group.iter().map(|&i| (f[i] / norm).powf(p - 1.0)).collect();
            (norm, gradient)
        }
    })
}

/// `J_ij <- (J_ij - G_i sum_k g_k J_kj) / norm` for the rows of a group with norm gradient `g`.
fn normalise_rows(p: PNorm, group: &[usize], f: &[Interval], j: &mut [Interval], n: usize) -> Option<()> {
    let (norm, gradient) = norm_and_gradient(p, group, f)?;
    for column in 0..n {
        let drift = group
            .iter()
            .zip(&gradient)
            .map(|(&k, &g)| g * j[k * n + column])
            .fold(Interval::point(0.0), |sum, x| sum + x);
        for &i in group {
            j[i * n + column] = (j[i * n + column] - (f[i] / norm) * drift) / norm;
        }
    }
    Some(())
}
