//! Weights from free parameters, and gradients the other way.

mod factors;

use subdeq_map::Parametrisation;

use self::factors::Factors;
use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::network::symmetric_peak;
use crate::cpu::packed::{check_finite, check_len};
use crate::cpu::simd::SimdReal;
use crate::{Device, Operator, Parametrise, Result, ShapedMap};

/// Weights on the CPU, with what the way back needs.
pub struct CpuWeights<T: SimdReal> {
    map: ShapedMap,
    parametrisation: Parametrisation,
    arrays: Vec<Buffer<T>>,
    tied: Option<Buffer<T>>,
    peak: Option<Peak<T>>,
    /// The gradients with what comes through the tied shift.
    pulled: Option<Buffer<T>>,
}

/// The largest eigenvalue of a symmetric part, and its derivative for the weights.
struct Peak<T: SimdReal> {
    value: f64,
    derivative: Buffer<T>,
}

macro_rules! parametrise {
    ($($t:ident),*) => {$(
        impl Parametrise for Cpu<$t> {
            type Weights = CpuWeights<$t>;

            fn weights(&self, map: &ShapedMap, parametrisation: Parametrisation) -> Result<CpuWeights<$t>> {
                if let Operator::Conv { padding, .. } = map.operator() {
                    parametrisation.check_padding(padding)?;
                }
                let (units, count) = (map.operator().units(), map.weight_count());
                let tied = map.equation().tie() != 0.0;
                let peak = if matches!(parametrisation, Parametrisation::MonotoneShifted { .. }) {
                    Some(Peak { value: 0.0, derivative: self.zeros(map.operator().weight_len())? })
                } else {
                    None
                };
                Ok(CpuWeights {
                    map: *map,
                    parametrisation,
                    arrays: (0..count).map(|k| self.zeros(map.weight_len(k))).collect::<Result<_>>()?,
                    tied: tied.then(|| self.zeros(units)).transpose()?,
                    peak,
                    pulled: tied.then(|| self.zeros(map.weight_len(1))).transpose()?,
                })
            }

            fn make_weights(&self, weights: &mut CpuWeights<$t>, free: &[&Buffer<$t>]) -> Result<()> {
                let needed = free_parameters_of(weights);
                for (array, (name, len)) in free.iter().zip(needed) {
                    check_len(name, array.len(), len)?;
                    check_finite(self.isa, name, &array[..len])?;
                }
                if let Some(Peak { value, derivative }) = &mut weights.peak {
                    let peak = self.install(|| {
                        symmetric_peak(self.isa, &weights.map.operator(), free[0], derivative)
                    });
                    // A little more than the estimate, so that rounding the weights costs none of the margin.
                    *value = peak + 8.0 * f64::from($t::EPSILON) * peak.abs();
                }
                let free: Vec<&[$t]> = free.iter().map(|array| &array[..]).collect();
                weights.make(&free);
                Ok(())
            }

            fn weight_arrays<'a>(&self, weights: &'a CpuWeights<$t>) -> &'a [Buffer<$t>] {
                &weights.arrays
            }

            fn tied_shift<'a>(&self, weights: &'a CpuWeights<$t>) -> Option<&'a Buffer<$t>> {
                weights.tied.as_ref()
            }

            fn pull_parameters(
                &self,
                weights: &mut CpuWeights<$t>,
                free: &[&Buffer<$t>],
                gradients: &[Buffer<$t>],
                tied: Option<&Buffer<$t>>,
                free_gradients: &mut [&mut Buffer<$t>],
            ) -> Result<()> {
                for (k, gradient) in gradients.iter().enumerate() {
                    check_len("a weight gradient", gradient.len(), weights.map.weight_len(k))?;
                }
                for ((name, len), (v, g)) in free_parameters_of(weights).into_iter().zip(free.iter().zip(&*free_gradients)) {
                    check_len(name, v.len(), len)?;
                    check_len(name, g.len(), len)?;
                }
                let free: Vec<&[$t]> = free.iter().map(|array| &array[..]).collect();
                let mut gradients: Vec<&[$t]> = gradients.iter().map(|array| &array[..]).collect();
                if let (Some(sums), Some(pulled)) = (tied, &mut weights.pulled) {
                    check_len("the gradient of the tied shift", sums.len(), weights.map.operator().units())?;
                    pull_tied(&weights.map, gradients[1], sums, pulled);
                    gradients[1] = pulled;
                }
                let mut out: Vec<&mut [$t]> = free_gradients.iter_mut().map(|array| &mut array[..]).collect();
                pull_back(weights.parametrisation, &weights.map, &free, weights.peak.as_ref(), &gradients, &mut out);
                Ok(())
            }
        }
    )*};
}
parametrise!(f32, f64);

fn free_parameters_of<T: SimdReal>(weights: &CpuWeights<T>) -> Vec<(&'static str, usize)> {
    crate::free_parameters(weights.parametrisation, &weights.map)
}

impl<T: SimdReal> CpuWeights<T> {
    fn make(&mut self, free: &[&[T]]) {
        let Self { map, parametrisation, arrays, tied, peak, .. } = self;
        let v = free[0];
        match *parametrisation {
            Parametrisation::Free => arrays[0].copy_from_slice(v),
            Parametrisation::Absolute => assign(&mut arrays[0], v, |_, v| v.abs()),
            Parametrisation::RowSigned => {
                let row = row_len(map);
                assign(
                    &mut arrays[0],
                    v,
                    |i, v| if (i / row).is_multiple_of(2) { v.abs() } else { -v.abs() },
                );
            }
            Parametrisation::Split => split(v, arrays),
            Parametrisation::SplitGains => {
                let (gains, parts) = arrays.split_at_mut(2);
                split(v, gains);
                split(free[1], parts);
            }
            Parametrisation::MonotoneShifted { margin } => {
                arrays[0].copy_from_slice(v);
                let peak = peak.as_ref().map_or(0.0, |peak| peak.value);
                let excess = T::from_f64(excess(peak, margin));
                for i in diagonal(map) {
                    arrays[0][i] -= excess;
                }
            }
            Parametrisation::MonotoneProduct { margin } => {
                Factors::of(parametrisation, &map.operator()).multiply(margin, v, free[1], &mut arrays[0]);
            }
            Parametrisation::MonotoneTied { margin } => {
                let factors = Factors::of(parametrisation, &map.operator());
                factors.multiply_tied(margin, v, free[1][0], &mut arrays[0]);
            }
        }
        if let Some(tied) = tied {
            // a_i = tie * (sum of row i of B).
            let (tie, units) = (map.equation().tie(), map.operator().units());
            for (tied, row) in tied.iter_mut().zip(arrays[1].chunks_exact(units)) {
                *tied = T::from_f64(tie * row.iter().map(|b| b.to_f64()).sum::<f64>());
            }
        }
    }
}

/// The gradient for `B` with what comes through the tied shift, a second way from `B` to the result.
fn pull_tied<T: SimdReal>(map: &ShapedMap, gradient: &[T], sums: &[T], pulled: &mut [T]) {
    let (tie, units) = (T::from_f64(map.equation().tie()), map.operator().units());
    let rows = pulled.chunks_exact_mut(units).zip(gradient.chunks_exact(units));
    for ((row, gradient), &sum) in rows.zip(sums) {
        row.iter_mut().zip(gradient).for_each(|(out, &g)| *out = g + tie * sum);
    }
}

/// Turns gradients for the weights into gradients for the free parameters.
fn pull_back<T: SimdReal>(
    parametrisation: Parametrisation,
    map: &ShapedMap,
    free: &[&[T]],
    peak: Option<&Peak<T>>,
    weights: &[&[T]],
    gradients: &mut [&mut [T]],
) {
    let v = free[0];
    match parametrisation {
        Parametrisation::Free => gradients[0].copy_from_slice(weights[0]),
        Parametrisation::Absolute => {
            combine(gradients[0], v, weights[0], |_, v, g| if v < T::ZERO { -g } else { g });
        }
        Parametrisation::RowSigned => {
            let row = row_len(map);
            combine(gradients[0], v, weights[0], |i, v, g| {
                if (i / row).is_multiple_of(2) == (v < T::ZERO) { -g } else { g }
            });
        }
        Parametrisation::Split => unsplit(gradients[0], v, weights[0], weights[1]),
        Parametrisation::SplitGains => {
            unsplit(gradients[0], v, weights[0], weights[1]);
            unsplit(gradients[1], free[1], weights[2], weights[3]);
        }
        Parametrisation::MonotoneShifted { margin } => {
            gradients[0].copy_from_slice(weights[0]);
            if let Some(peak) = peak
                && excess(peak.value, margin) > 0.0
            {
                let trace: f64 = diagonal(map).map(|i| weights[0][i].to_f64()).sum();
                let trace = T::from_f64(trace);
                for (g, &x) in gradients[0].iter_mut().zip(&*peak.derivative) {
                    *g -= trace * x;
                }
            }
        }
        Parametrisation::MonotoneProduct { .. } => {
            let (ga, gb) = gradients.split_at_mut(1);
            Factors::of(&parametrisation, &map.operator()).pull_back(v, weights[0], ga[0], gb[0]);
        }
        Parametrisation::MonotoneTied { .. } => {
            let (ga, gb) = gradients.split_at_mut(1);
            let factors = Factors::of(&parametrisation, &map.operator());
            factors.pull_back_tied(v, free[1][0], weights[0], ga[0], &mut gb[0][0]);
        }
    }
}

/// By how much the diagonal must be lowered.
fn excess(peak: f64, margin: f64) -> f64 {
    (peak - (1.0 - margin)).max(0.0)
}

/// Weights per row (output unit or channel).
fn row_len(map: &ShapedMap) -> usize {
    map.operator().weight_len() / map.operator().units()
}

/// Where the identity has its ones: the diagonal, or the centre taps of each channel's own kernel.
fn diagonal(map: &ShapedMap) -> impl Iterator<Item = usize> {
    let units = map.operator().units();
    let taps = map.operator().taps();
    (0..units).map(move |i| (i * units + i) * taps + taps / 2)
}

fn assign<T: SimdReal>(weights: &mut [T], v: &[T], f: impl Fn(usize, T) -> T) {
    for (i, (w, &v)) in weights.iter_mut().zip(v).enumerate() {
        *w = f(i, v);
    }
}

fn combine<T: SimdReal>(gradient: &mut [T], v: &[T], g: &[T], f: impl Fn(usize, T, T) -> T) {
    for (i, ((out, &v), &g)) in gradient.iter_mut().zip(v).zip(g).enumerate() {
        *out = f(i, v, g);
    }
}

fn split<T: SimdReal>(v: &[T], parts: &mut [Buffer<T>]) {
    assign(&mut parts[0], v, |_, v| v.max(T::ZERO));
    assign(&mut parts[1], v, |_, v| (-v).max(T::ZERO));
}

fn unsplit<T: SimdReal>(gradient: &mut [T], v: &[T], positive: &[T], negative: &[T]) {
    for (((out, &v), &p), &n) in gradient.iter_mut().zip(v).zip(positive).zip(negative) {
        *out = if v < T::ZERO { -n } else { p };
    }
}
