//! How far a computed state can be from the solution: one application of the map in `f64`, rounded outward, and the
//! factor of a certificate.

use serde::{Deserialize, Serialize};
use subdeq_engine as engine;
use subdeq_engine::{Form, Injection};
use subdeq_theory::bounds::Contraction;
use subdeq_theory::certificate::{Certificate, Domain, Evidence, Metric, Scope, Verdict};
use subdeq_theory::interval::Interval;
use subdeq_theory::map::PNorm;
use subdeq_theory::operator::Operator;

use crate::map::Architecture;
use crate::{Result, theory};

/// A proven bound of the distance between a computed state and the one solution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ErrorBound {
    /// What the distance is measured with.
    pub metric: BoundMetric,
    /// The bound.
    pub value: f64,
}

/// What an [`ErrorBound`] measures distances with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoundMetric {
    /// Thompson's, `max |ln z_i - ln z*_i|`: entries have a relative error of at most `e^value - 1`.
    Thompson,
    /// `max |z_i - z*_i|`.
    Sup,
    /// `||z - z*||_2`.
    TwoNorm,
}

/// The exact map of a layer: its constants, and its weights as operators in the theory's order.
pub(crate) struct ExactMap<'a> {
    architecture: &'a Architecture,
    operators: Vec<Operator>,
    normalisation: Option<subdeq_theory::map::Normalisation>,
    /// Pixels per row of a convolution's images and their number of rows.
    width: usize,
    height: usize,
}

impl<'a> ExactMap<'a> {
    pub(crate) fn new(
        architecture: &'a Architecture,
        on: &engine::Operator,
        weights: &[Vec<f64>],
    ) -> Result<Self> {
        let operators = weights.iter().map(|w| theory::operator(on, w)).collect::<Result<Vec<_>>>()?;
        let normalisation = theory::map_spec(architecture, theory::layout(on)).normalisation;
        let (height, width) = match *on {
            engine::Operator::Dense { .. } => (1, 1),
            engine::Operator::Conv { height, width, .. } => (height, width),
        };
        Ok(Self { architecture, operators, normalisation, width, height })
    }

    /// Boxes around `W_k x` for `x` in the box.
    fn product(&self, k: usize, x: &[Interval]) -> Vec<Interval> {
        let (lower, upper): (Vec<f64>, Vec<f64>) = x.iter().map(|x| (x.lo, x.hi)).unzip();
        let (lower, upper) = self.operators[k].enclose(&lower, &upper);
        lower.into_iter().zip(upper).map(|(lo, hi)| Interval::new(lo, hi)).collect()
    }

    /// A box around `F(z; y)` for `z` in the box. `None` where a power or a norm would meet numbers that are not positive.
    fn apply(&self, z: &[Interval], y: &[f64]) -> Option<Vec<Interval>> {
        let a = self.architecture;
        let point = Interval::point;
        let s = theory::activation(a.activation);
        let h = |u: Interval| {
            let value = s.enclose(u) + point(a.base);
            if a.power == 1.0 { value } else { value.powf(a.power) }
        };
        let n = z.len();
        let first = self.product(0, z);
        let mut f: Vec<Interval> = match a.form {
            Form::Single if a.injection == Injection::Inner => {
                first.iter().zip(y).map(|(&u, &y)| h(u + point(y)) + point(a.shift)).collect()
            }
            Form::Single => first.iter().zip(y).map(|(&u, &y)| h(u) + point(y) + point(a.shift)).collect(),
            Form::Gains => {
                let hidden = |k: usize| self.product(k, z).into_iter().map(h).collect::<Vec<_>>();
                let (up, down) = (self.product(0, &hidden(2)), self.product(1, &hidden(3)));
                let sums = self.product(1, &vec![point(1.0); n]);
                (0..n)
                    .map(|i| up[i] - down[i] + point(y[i]) + point(a.tie) * sums[i] + point(a.shift))
                    .collect()
            }
            form => {
                let second = self.product(1, z);
                (0..n)
                    .map(|i| {
                        let (u, w) = (first[i], second[i]);
                        let value = match form {
                            Form::SplitSign => h(u) - h(w),
                            Form::Divisive { q } => h(u / (point(q) + w)),
                            Form::Rational { q } => u / (point(q) + u + w),
                            Form::PowerRatio { p, e } => {
                                let ratio = (u + point(y[i]) + point(e)) / (w + point(y[n + i]) + point(e));
                                return ratio.powf(p);
                            }
                            Form::Single | Form::Gains => u,
                        };
                        value + point(y[i]) + point(a.shift)
                    })
                    .collect()
            }
        };
        if let Some(normalisation) = self.normalisation {
            if f.iter().any(|f| f.lo <= 0.0) {
                return None;
            }
            self.normalise(normalisation.p, &mut f);
        }
        f.iter().all(|f| f.lo.is_finite() && f.hi.is_finite()).then_some(f)
    }

    /// Divides each group by its norm: the whole vector, or a column of a channel's image.
    fn normalise(&self, p: PNorm, f: &mut [Interval]) {
        let (width, height) = (self.width, self.height);
        let dense = width * height == 1;
        let groups: Vec<Vec<usize>> = if dense {
            vec![(0..f.len()).collect()]
        } else {
            let plane = width * height;
            let columns = (0..f.len()).filter(|at| at % plane < width);
            columns.map(|top| (0..height).map(|row| top + row * width).collect()).collect()
        };
        for group in groups {
            let members = group.iter().map(|&i| f[i]);
            let norm = match p {
                PNorm::Inf => members.reduce(|a, b| Interval::new(a.lo.max(b.lo), a.hi.max(b.hi))),
                PNorm::Finite(p) => {
                    members.map(|x| x.powf(p)).reduce(|a, b| a + b).map(|sum| sum.powf(1.0 / p))
                }
            };
            if let Some(norm) = norm {
                group.iter().for_each(|&i| f[i] = f[i] / norm);
            }
        }
    }

    /// The bound for a state `z` of the injection `y` (both in the theory's order), if the certificate supports one.
    pub(crate) fn error_bound(&self, certificate: &Certificate, z: &[f64], y: &[f64]) -> Option<ErrorBound> {
        let Verdict::Proven { factor, metric, evidence, .. } = &certificate.verdict else { return None };
        if certificate.scope != Scope::AllInputs
            || matches!(evidence, Evidence::Closing { domain: Domain::Propagated { .. }, .. })
        {
            return None;
        }
        if certificate.map.needs_nonnegative_injection() && y.iter().any(|&y| y < 0.0) {
            return None;
        }
        let start: Vec<Interval> = z.iter().map(|&z| Interval::point(z)).collect();
        let image = self.apply(&start, y)?;
        if let Evidence::Splitting { margin, .. } = evidence {
            return self.monotone_bound(*margin, &start, &image);
        }
        let contraction = Contraction::new((*factor)?)?;
        let within = |metric, value: f64| value.is_finite().then_some(ErrorBound { metric, value });
        match metric {
            Metric::Thompson => {
                let residual = logs(&start, &image)?.iter().fold(0.0, |m: f64, x| m.max(x.magnitude()));
                within(BoundMetric::Thompson, contraction.error_before(residual))
            }
            Metric::Hilbert => {
                // The factor holds between normalised vectors, so it is applied from F(z) on.
                let entered = logs(&start, &image)?.iter().fold(0.0, |m: f64, x| m.max(x.magnitude()));
                let logs = logs(&image, &self.apply(&image, y)?)?;
                let high = logs.iter().fold(f64::NEG_INFINITY, |m, x| m.max(x.hi));
                let low = logs.iter().fold(f64::INFINITY, |m, x| m.min(x.lo));
                let rest = contraction.error_before((high - low).next_up());
                within(BoundMetric::Thompson, (entered + rest).next_up())
            }
            Metric::WeightedSup { v } => {
                let weights = |i: usize| Interval::point(v[i * v.len() / z.len()]);
                let residual = (0..z.len())
                    .map(|i| ((image[i] - start[i]) / weights(i)).magnitude())
                    .fold(0.0, f64::max);
                let widest = v.iter().fold(0.0f64, |m, &v| m.max(v));
                within(BoundMetric::Sup, (contraction.error_before(residual) * widest).next_up())
            }
            Metric::WeightedTwoNorm { t } => {
                let weight =
                    |i: usize| Interval::point(if t.is_empty() { 1.0 } else { t[i * t.len() / z.len()] });
                let residual = two_norm((0..z.len()).map(|i| (image[i] - start[i]) * weight(i)));
                let least = t.iter().fold(f64::INFINITY, |m: f64, &t| m.min(t)).min(if t.is_empty() {
                    1.0
                } else {
                    f64::INFINITY
                });
                within(BoundMetric::TwoNorm, (contraction.error_before(residual) / least).next_up())
            }
            Metric::None => None,
        }
    }

    /// T3: `||F(z) - z*||_2 <= ||W (F(z) - z)||_2 / m`.
    fn monotone_bound(&self, margin: f64, start: &[Interval], image: &[Interval]) -> Option<ErrorBound> {
        let residual: Vec<Interval> = image.iter().zip(start).map(|(&f, &z)| f - z).collect();
        let turned = two_norm(self.product(0, &residual).into_iter());
        let value = ((turned / margin).next_up() + two_norm(residual.into_iter())).next_up();
        value.is_finite().then_some(ErrorBound { metric: BoundMetric::TwoNorm, value })
    }
}

/// `ln(image / start)`, where all is positive.
fn logs(start: &[Interval], image: &[Interval]) -> Option<Vec<Interval>> {
    if start.iter().chain(image).any(|x| x.lo <= 0.0) {
        return None;
    }
    Some(start.iter().zip(image).map(|(&z, &f)| (f / z).ln()).collect())
}

/// Upper bound of the 2-norm.
fn two_norm(x: impl Iterator<Item = Interval>) -> f64 {
    x.fold(Interval::point(0.0), |sum, x| sum + x.square()).sqrt().hi
}
