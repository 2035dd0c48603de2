//! Weights from free parameters: what makes an architecture sound for every value an optimiser may choose.

mod factors;

use factors::Factors;
use serde::{Deserialize, Serialize};
use subdeq_engine::{Map, Operator, Padding, Real};
use subdeq_map::{Form, WeightClass};

use crate::{Error, Result};

/// How the weights of a map come from free parameters.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Parametrisation {
    /// `W = V`.
    Free,
    /// `W = |V|`.
    Absolute,
    /// `W = diag(+1, -1, +1, ..) |V|`.
    RowSigned,
    /// `P = V+`, `N = V-`.
    Split,
    /// `A = V+`, `B = V-`, `P = U+`, `N = U-` (`V` is `units x units`).
    SplitGains,
    /// `W = V - max(0, lambda - (1 - margin)) I`, `lambda` the largest eigenvalue of `V`'s symmetric part.
    MonotoneShifted {
        /// `m > 0`.
        margin: f64,
    },
    /// `W = (1 - margin) I - A'A + B - B'`; for images `A` and `B` are 3x3 kernels, and `W` is a circular 5x5 one.
    MonotoneProduct {
        /// `m > 0`.
        margin: f64,
    },
}

/// The largest eigenvalue of a symmetric part, and its derivative for the weights.
pub(crate) struct Peak<'a, T> {
    pub value: f64,
    pub derivative: &'a [T],
}

impl Parametrisation {
    /// The margin of the monotone ones.
    #[must_use]
    pub fn margin(&self) -> Option<f64> {
        match *self {
            Self::MonotoneShifted { margin } | Self::MonotoneProduct { margin } => Some(margin),
            _ => None,
        }
    }

    /// Whether the weights depend on the largest eigenvalue of the parameter's symmetric part.
    pub(crate) fn is_shifted(&self) -> bool {
        matches!(self, Self::MonotoneShifted { .. })
    }

    /// Height and width of the kernel of the weights, for images.
    pub(crate) fn kernel(&self, operator: &Operator) -> usize {
        match self {
            Self::MonotoneProduct { .. } => Factors::of(operator).product_side(),
            _ => 3,
        }
    }

    /// The weights that it makes.
    #[must_use]
    pub fn weight_class(&self) -> WeightClass {
        match self {
            Self::Absolute => WeightClass::Nonnegative,
            Self::RowSigned => WeightClass::RowSigned,
            // How large the margin is in the end is read off the weights.
            Self::MonotoneShifted { .. } | Self::MonotoneProduct { .. } => {
                WeightClass::Monotone { margin: 0.0 }
            }
            Self::Free | Self::Split | Self::SplitGains => WeightClass::Any,
        }
    }

    /// Refuses an equation that it makes no weights for, and a margin that makes no sense.
    pub(crate) fn check_form(&self, map: &subdeq_map::Map) -> Result<()> {
        let (fits, instead) = match map.form() {
            Form::Single => (
                !matches!(self, Self::Split | Self::SplitGains),
                "use Free, Absolute, RowSigned or a monotone one",
            ),
            Form::SplitSign | Form::Divisive { .. } | Form::Rational { .. } | Form::PowerRatio { .. } => {
                (*self == Self::Split, "use Split")
            }
            Form::Gains => (*self == Self::SplitGains, "use SplitGains"),
            Form::Monomial | Form::Tied { .. } | Form::Graph { .. } => {
                (false, "it is not the map of a layer")
            }
        };
        if !fits {
            return Err(Error::invalid(format!(
                "the parametrisation {self:?} does not fit the form {:?} of `{map}`: {instead}",
                map.form()
            )));
        }
        if let Some(margin) = self.margin()
            && !(margin > 0.0 && margin.is_finite())
        {
            return Err(Error::invalid(format!(
                "the margin of a monotone layer must be above 0, not {margin}"
            )));
        }
        Ok(())
    }

    /// Refuses an operator that it makes no weights for.
    pub(crate) fn check_operator(&self, operator: &Operator) -> Result<()> {
        let zero_padded = matches!(operator, Operator::Conv { padding: Padding::Zero, .. });
        if zero_padded && matches!(self, Self::MonotoneProduct { .. }) {
            return Err(Error::invalid(
                "A'A of zero-padded convolutions is no convolution at the border: W = (1-m)I - A'A + B - B' needs circular \
                 padding; with zeros use the shifted parametrisation (`Monotone::shifted`)",
            ));
        }
        Ok(())
    }

    /// Names and lengths of the free parameters.
    pub(crate) fn free(&self, map: &Map) -> Vec<(&'static str, usize)> {
        let (square, units) = (map.operator().weight_len(), map.operator().units());
        match self {
            Self::SplitGains => vec![("gain", units * units), ("weight", square)],
            Self::MonotoneProduct { .. } => {
                let len = Factors::of(&map.operator()).len();
                vec![("a", len), ("b", len)]
            }
            _ => vec![("weight", square)],
        }
    }

    /// Writes the weights.
    pub(crate) fn forward<T: Real>(&self, map: &Map, free: &[Vec<T>], peak: f64, weights: &mut [Vec<T>]) {
        let v = &free[0];
        match *self {
            Self::Free => weights[0].copy_from_slice(v),
            Self::Absolute => assign(&mut weights[0], v, |_, v| v.abs()),
            Self::RowSigned => {
                let row = row_len(map);
                assign(
                    &mut weights[0],
                    v,
                    |i, v| if (i / row).is_multiple_of(2) { v.abs() } else { -v.abs() },
                );
            }
            Self::Split => split(v, weights),
            Self::SplitGains => {
                let (gains, parts) = weights.split_at_mut(2);
                split(v, gains);
                split(&free[1], parts);
            }
            Self::MonotoneShifted { margin } => {
                weights[0].copy_from_slice(v);
                let excess = T::from_f64(excess(peak, margin));
                for i in diagonal(map) {
                    weights[0][i] -= excess;
                }
            }
            Self::MonotoneProduct { margin } => {
                Factors::of(&map.operator()).multiply(margin, v, &free[1], &mut weights[0]);
            }
        }
    }

    /// Turns gradients for the weights into gradients for the free parameters.
    pub(crate) fn pullback<T: Real>(
        &self,
        map: &Map,
        free: &[Vec<T>],
        peak: Peak<T>,
        weights: &[Vec<T>],
        gradients: &mut [Vec<T>],
    ) {
        let v = &free[0];
        match *self {
            Self::Free => gradients[0].copy_from_slice(&weights[0]),
            Self::Absolute => {
                combine(&mut gradients[0], v, &weights[0], |_, v, g| if v < T::ZERO { -g } else { g })
            }
            Self::RowSigned => {
                let row = row_len(map);
                combine(&mut gradients[0], v, &weights[0], |i, v, g| {
                    if (i / row).is_multiple_of(2) == (v < T::ZERO) { -g } else { g }
                });
            }
            Self::Split => unsplit(&mut gradients[0], v, &weights[0], &weights[1]),
            Self::SplitGains => {
                unsplit(&mut gradients[0], v, &weights[0], &weights[1]);
                unsplit(&mut gradients[1], &free[1], &weights[2], &weights[3]);
            }
            Self::MonotoneShifted { margin } => {
                gradients[0].copy_from_slice(&weights[0]);
                if excess(peak.value, margin) > 0.0 {
                    let trace: f64 = diagonal(map).map(|i| weights[0][i].to_f64()).sum();
                    let trace = T::from_f64(trace);
                    for (g, &x) in gradients[0].iter_mut().zip(peak.derivative) {
                        *g -= trace * x;
                    }
                }
            }
            Self::MonotoneProduct { .. } => {
                let (ga, gb) = gradients.split_at_mut(1);
                Factors::of(&map.operator()).pull_back(v, &weights[0], &mut ga[0], &mut gb[0]);
            }
        }
    }
}

/// By how much the diagonal must be lowered.
fn excess(peak: f64, margin: f64) -> f64 {
    (peak - (1.0 - margin)).max(0.0)
}

/// Weights per row (output unit or channel).
fn row_len(map: &Map) -> usize {
    map.operator().weight_len() / map.operator().units()
}

/// Where the identity has its ones: the diagonal, or the centre taps of each channel's own kernel.
fn diagonal(map: &Map) -> impl Iterator<Item = usize> {
    let units = map.operator().units();
    let taps = map.operator().taps();
    (0..units).map(move |i| (i * units + i) * taps + taps / 2)
}

fn assign<T: Real>(weights: &mut [T], v: &[T], f: impl Fn(usize, T) -> T) {
    for (i, (w, &v)) in weights.iter_mut().zip(v).enumerate() {
        *w = f(i, v);
    }
}

fn combine<T: Real>(gradient: &mut [T], v: &[T], g: &[T], f: impl Fn(usize, T, T) -> T) {
    for (i, ((out, &v), &g)) in gradient.iter_mut().zip(v).zip(g).enumerate() {
        *out = f(i, v, g);
    }
}

fn split<T: Real>(v: &[T], parts: &mut [Vec<T>]) {
    assign(&mut parts[0], v, |_, v| v.max(T::ZERO));
    assign(&mut parts[1], v, |_, v| (-v).max(T::ZERO));
}

fn unsplit<T: Real>(gradient: &mut [T], v: &[T], positive: &[T], negative: &[T]) {
    for (((out, &v), &p), &n) in gradient.iter_mut().zip(v).zip(positive).zip(negative) {
        *out = if v < T::ZERO { -n } else { p };
    }
}
