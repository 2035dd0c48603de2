//! How far a computed state can be from the solution: one application of the map in `f64`, rounded outward, and the
//! factor of a certificate.

use std::fmt;

use serde::{Deserialize, Serialize};
use subdeq_map::Operator;
use subdeq_theory::bounds::Contraction;
use subdeq_theory::certificate::{Certificate, Domain, Evidence, Metric, States, Verdict};
use subdeq_theory::exact::ExactMap;
use subdeq_theory::interval::Interval;

use crate::{Error, Result};

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

impl ErrorBound {
    /// A bound of `|z_i - z*_i| / z*_i` and of `|z_i - z*_i| / z_i`, for every entry; only Thompson's metric gives one.
    #[must_use]
    pub fn relative(&self) -> Option<f64> {
        let growth = || (Interval::point(self.value).exp() - Interval::point(1.0)).hi;
        (self.metric == BoundMetric::Thompson).then(growth)
    }

    /// A bound of `|z_i - z*_i|`, for every entry of the state `z` that the bound is about.
    #[must_use]
    pub fn absolute(&self, z: &[f64]) -> f64 {
        match self.relative() {
            None => self.value,
            Some(relative) => {
                let largest = z.iter().fold(0.0f64, |m, z| m.max(z.abs()));
                (Interval::point(relative) * Interval::point(largest)).hi
            }
        }
    }
}

impl fmt::Display for ErrorBound {
    /// The bound with its metric, in words.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.metric, self.relative()) {
            (BoundMetric::Thompson, Some(relative)) => {
                write!(f, "{relative:.3e} relative, every entry (Thompson's metric {:.3e})", self.value)
            }
            (BoundMetric::TwoNorm, _) => {
                write!(f, "{:.3e} absolute, in the 2-norm and so in every entry", self.value)
            }
            _ => write!(f, "{:.3e} absolute, every entry", self.value),
        }
    }
}

/// A certificate with what it takes to evaluate its map.
pub(crate) struct ErrorBounds<'a> {
    certificate: &'a Certificate,
    exact: ExactMap<'a>,
}

impl<'a> ErrorBounds<'a> {
    pub(crate) fn new(
        certificate: &'a Certificate,
        operator: &'a Operator,
        hidden: Option<&Operator>,
    ) -> Result<Self> {
        let exact = ExactMap::new(&certificate.map, operator, hidden)
            .map_err(|error| Error::invalid(error.to_string()))?;
        Ok(Self { certificate, exact })
    }

    /// The bound for a state `z` of the injection `y` (both in the theory's order), if the certificate supports one.
    pub(crate) fn of(&self, z: &[f64], y: &[f64]) -> Option<ErrorBound> {
        let Verdict::Proven { factor, metric, states, evidence, .. } = &self.certificate.verdict else {
            return None;
        };
        // Factors that hold in a box say nothing about states outside.
        let everywhere = match evidence {
            Evidence::Closing { domain, .. } => *domain == Domain::Everywhere,
            Evidence::Secant { .. } | Evidence::NormalisedBox { .. } | Evidence::FormBox { .. } => false,
            Evidence::ByForm { .. }
            | Evidence::RowGains { .. }
            | Evidence::StrongDegree { .. }
            | Evidence::Splitting { .. } => true,
        };
        let among = *states == States::Reals || z.iter().all(|&z| z > 0.0);
        if !(everywhere && among && self.certificate.scope.contains(y)) {
            return None;
        }
        let start: Vec<Interval> = z.iter().map(|&z| Interval::point(z)).collect();
        let image = self.exact.apply(&start, y)?;
        if let Evidence::Splitting { weights, margin, .. } = evidence {
            return self.monotone_bound(weights, *margin, &start, &image);
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
                let logs = logs(&image, &self.exact.apply(&image, y)?)?;
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
                let residual: Vec<Interval> = image.iter().zip(&start).map(|(&f, &z)| f - z).collect();
                let (residual, (least, _)) = (scaled_norm(t, &residual), extremes(t));
                within(BoundMetric::TwoNorm, (contraction.error_before(residual) / least).next_up())
            }
            Metric::None => None,
        }
    }

    /// T3: `||F(z) - z*|| <= ||W (F(z) - z)|| / m` in the norm `||T x||_2` of the margin.
    fn monotone_bound(
        &self,
        t: &[f64],
        margin: f64,
        start: &[Interval],
        image: &[Interval],
    ) -> Option<ErrorBound> {
        let residual: Vec<Interval> = image.iter().zip(start).map(|(&f, &z)| f - z).collect();
        let turned = scaled_norm(t, &self.exact.preactivations(&residual));
        let distance = ((turned / margin).next_up() + scaled_norm(t, &residual)).next_up();
        let value = (distance / extremes(t).0).next_up();
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

/// Upper bound of `||T x||_2`; the diagonal of `T` has one entry per entry of `x` or per channel, and none for the identity.
fn scaled_norm(t: &[f64], x: &[Interval]) -> f64 {
    let scale = |i: usize| Interval::point(if t.is_empty() { 1.0 } else { t[i * t.len() / x.len()] });
    let squares = x.iter().enumerate().map(|(i, &x)| (x * scale(i)).square());
    squares.fold(Interval::point(0.0), |sum, x| sum + x).sqrt().hi
}

/// The least and the greatest entry of a scaling's diagonal, which is empty for the identity.
pub(crate) fn extremes(t: &[f64]) -> (f64, f64) {
    if t.is_empty() {
        return (1.0, 1.0);
    }
    t.iter().fold((f64::INFINITY, 0.0), |(least, most), &t| (t.min(least), t.max(most)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_says_what_it_measures() {
        let bound = |metric| ErrorBound { metric, value: 0.5 };
        let thompson = bound(BoundMetric::Thompson);
        let relative = thompson.relative().unwrap();
        assert!(relative >= 0.5f64.exp_m1() && relative < 0.6488);
        // Entries of the solution lie between z e^-d and z e^d.
        let (z, least) = ([2.0, 3.0], 3.0 * 0.5f64.exp_m1());
        assert!(thompson.absolute(&z) >= least && thompson.absolute(&z) < 1.001 * least);
        assert!(thompson.to_string().contains("relative, every entry"), "{thompson}");
        for metric in [BoundMetric::Sup, BoundMetric::TwoNorm] {
            assert_eq!((bound(metric).relative(), bound(metric).absolute(&z)), (None, 0.5));
            assert!(bound(metric).to_string().contains("absolute"), "{}", bound(metric));
        }
    }
}
