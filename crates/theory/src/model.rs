//! The complete map for one input, normalisation included, with its Jacobian in floating point and as an enclosure:
//! what Newton's method and its interval version need.

use crate::interval::Interval;
use crate::map::{Groups, Normalisation, PNorm};
use crate::operator::Operator;
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

/// Which entries each group consists of.
pub(crate) fn members(groups: Groups, operator: &Operator) -> Vec<Vec<usize>> {
    let n = operator.len();
    let strided = |count: usize| (0..count).map(|g| (g..n).step_by(count).collect()).collect();
    match (groups, operator) {
        (Groups::AlongHeight, Operator::Conv(conv)) => {
            let (h, w) = (conv.height(), conv.width());
            (0..conv.channels() * w)
                .map(|g| (0..h).map(|row| (g / w) * h * w + row * w + g % w).collect())
                .collect()
        }
        (Groups::GraphColumns, Operator::Graph(graph)) => strided(graph.columns()),
        (Groups::GraphRows, Operator::Graph(graph)) => consecutive(n, graph.columns()),
        (Groups::Blocks { size }, _) => consecutive(n, size.max(1)),
        // A vector, or groups that this operator does not have: one group is what the map then means.
        _ => vec![(0..n).collect()],
    }
}

fn consecutive(n: usize, size: usize) -> Vec<Vec<usize>> {
    (0..n).step_by(size).map(|start| (start..(start + size).min(n)).collect()).collect()
}

impl<'a> Model<'a> {
    pub(crate) fn new(
        layer: &'a Layer<'a>,
        normalisation: Option<Normalisation>,
        limit: usize,
    ) -> Option<Model<'a>> {
        let matrix = layer.operator.to_dense(limit)?;
        let norm = normalisation.map(|norm| (norm.p, members(norm.groups, layer.operator)));
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

    /// `{G(x) : x in on}`, rounded outward.
    pub(crate) fn enclose(&self, on: &[Interval]) -> Vec<Interval> {
        let f = self.unnormalised(on).0;
        match &self.norm {
            None => f,
            Some((p, groups)) => {
                let mut out = f.clone();
                for group in groups {
                    let (norm, _) = norm_and_gradient(*p, group, &f);
                    group.iter().for_each(|&i| out[i] = f[i] / norm);
                }
                out
            }
        }
    }

    /// `F` and its preactivations over a box.
    fn unnormalised(&self, on: &[Interval]) -> (Vec<Interval>, Vec<Interval>) {
        let (lower, upper): (Vec<f64>, Vec<f64>) = on.iter().map(|x| (x.lo, x.hi)).unzip();
        let (u_lower, u_upper) = self.layer.operator.enclose(&lower, &upper);
        let u: Vec<Interval> =
            (0..on.len()).map(|i| Interval::new(u_lower[i], u_upper[i]) + self.layer.inner.at(i)).collect();
        let f = (0..on.len()).map(|i| self.layer.response.enclose(u[i]) + self.layer.outer.at(i)).collect();
        (f, u)
    }

    /// `I - J` over a box.
    pub(crate) fn one_minus_jacobian(&self, on: &[Interval]) -> Ball {
        let n = self.len();
        let (f, u) = self.unnormalised(on);
        let mut j: Vec<Interval> = Vec::with_capacity(n * n);
        for (&u, row) in u.iter().zip(self.matrix.chunks_exact(n)) {
            let slope = self.layer.response.slope(u);
            j.extend(row.iter().map(|&w| slope * Interval::point(w)));
        }
        if let Some((p, groups)) = &self.norm {
            for group in groups {
                normalise_rows(*p, group, &f, &mut j, n);
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
        Ball { centre, radius }
    }
}

/// The norm of a group of positive numbers and its gradient, enclosed.
fn norm_and_gradient(p: PNorm, group: &[usize], f: &[Interval]) -> (Interval, Vec<Interval>) {
    match p {
        PNorm::Inf => {
            let lo = group.iter().map(|&i| f[i].lo).fold(f64::NEG_INFINITY, f64::max);
            let hi = group.iter().map(|&i| f[i].hi).fold(f64::NEG_INFINITY, f64::max);
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
    }
}

/// `J_ij <- (J_ij - G_i sum_k g_k J_kj) / norm` for the rows of a group with norm gradient `g`.
fn normalise_rows(p: PNorm, group: &[usize], f: &[Interval], j: &mut [Interval], n: usize) {
    let (norm, gradient) = norm_and_gradient(p, group, f);
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
}
