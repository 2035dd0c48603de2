//! How far an image may move before a trained classifier can change its mind, proved.
//!
//! Everything from the image to the logits except the solve is affine (up to a ReLU, which moves no further than its
//! argument), and a certificate bounds how far the solution follows its injection. All of it is computed with intervals
//! around the stored parameters: the radius is one of the exact model, not of its rounding.

use subdeq_engine::network::NORM_EPSILON;
use subdeq_engine::{Backend, Real};
use subdeq_map::{Form, Injection};
use subdeq_theory::certificate::{Certificate, Evidence, Metric, Verdict};
use subdeq_theory::interval::Interval;
use subdeq_theory::robustness::{Margin, input_radius};

use super::Classifier;
use super::block::{BlockShape, block_prefix};
use crate::error_bound::extremes;
use crate::{Equilibrium, Error, Result};

/// How far a solution follows its injection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reach {
    /// `||dz||_2 <= gain ||dy||_2`.
    TwoNorm { gain: f64 },
    /// The factor of the map in Thompson's metric, the injection added at the end.
    Thompson { factor: f64 },
}

/// The logits as a function of the state, `C z + d`.
pub(super) struct Head {
    /// Class after class, each in the engine's order of a state.
    weights: Vec<Vec<Interval>>,
    offsets: Vec<Interval>,
}

/// What was computed for a sample, and how far it is from the truth.
pub(super) struct Found<'a> {
    pub z: &'a [f64],
    pub class: usize,
    /// Distance of `z` to the solution, in the metric of the certificate.
    pub error: f64,
    /// Distance of each injection to the exact one.
    pub moved: Vec<f64>,
}

/// `U x + b` of the injection, with its norm's running statistics folded into both.
pub(super) struct Input {
    weights: Vec<Interval>,
    bias: Vec<Interval>,
    /// 2-norms of the rows (of the kernels of each channel), rounded up.
    row_norms: Vec<f64>,
    /// A bound of `||U||_2`.
    pub norm: f64,
}

impl<D: Backend> Classifier<D> {
    /// For each image a radius (2-norm, in the numbers that the model reads) within which every image is given the same
    /// class by the exact model; `None` where the certificate, which must be for all inputs that the layer is meant for, does not
    /// bound how far solutions move, and for networks, which [`Classifier::network_radii`] is for.
    ///
    /// # Errors
    /// Images that do not fit.
    pub fn certified_radii(&mut self, x: &[D::Elem], certificate: &Certificate) -> Result<Vec<Option<f64>>> {
        if self.blocks.len() != 1 || self.is_reflected() {
            return Ok(vec![None; x.len() / self.input_len()]);
        }
        let (head, input) = (self.head()?, self.input(0)?);
        let answers = self.answers(x)?;
        let Some(layer) = self.equilibrium() else { return Ok(vec![None; answers.len()]) };
        let Some(reach) = reach(layer, certificate)? else { return Ok(vec![None; answers.len()]) };
        let z = layer.read_states()?;
        let y = self.injected(x)?;
        let bounds = match self.equilibrium() {
            Some(layer) => layer.error_bounds(&y, &z)?,
            None => Vec::new(),
        };
        let state = z.len() / answers.len();
        let (x, y, z) = (numbers(x), numbers(&y), numbers(&z));
        let one = |sample: usize| {
            let error = bounds[sample].as_ref()?.value;
            let (z, y) = (&z[sample * state..][..state], &y[sample * state..][..state]);
            let x = &x[sample * self.input_len()..][..self.input_len()];
            let pixels = self.spec.height * self.spec.width;
            let moved = self.injection_error(0, &input, |pixel, channel| x[channel * pixels + pixel], y);
            let found = Found { z, class: answers[sample].class(), error, moved };
            Some(match reach {
                Reach::TwoNorm { gain } => head.two_norm_radius(&found, gain, input.norm),
                Reach::Thompson { factor } => head.thompson_radius(&found, factor, &input),
            })
        };
        Ok((0..answers.len()).map(one).collect())
    }

    /// A stored array by its name.
    pub(super) fn array(state: &[(String, Vec<D::Elem>)], name: &str) -> Result<Vec<f64>> {
        let found = state.iter().find(|(given, _)| given == name);
        let (_, host) = found.ok_or_else(|| Error::invalid(format!("the model has no array `{name}`")))?;
        Ok(numbers(host))
    }

    /// Batch norm with its running statistics, `x -> factor x + shift`, channel by channel.
    fn folded_norm(state: &[(String, Vec<D::Elem>)], name: &str) -> Result<Vec<(Interval, Interval)>> {
        let array = |part: &str| Self::array(state, &format!("{name}.{part}"));
        let (scale, offset) = (array("scale")?, array("offset")?);
        let (mean, variance) = (array("running_mean")?, array("running_variance")?);
        let point = Interval::point;
        let channel = |c: usize| {
            let factor = point(scale[c]) / (point(variance[c]) + point(NORM_EPSILON)).sqrt();
            (factor, point(offset[c]) - point(mean[c]) * factor)
        };
        Ok((0..scale.len()).map(channel).collect())
    }

    pub(super) fn head(&mut self) -> Result<Head> {
        let state = self.state()?;
        let array = |name: &str| Self::array(&state, name);
        let (weight, bias) = (array("head.weight")?, array("head.bias")?);
        let (factor, shift): (Vec<_>, Vec<_>) = Self::folded_norm(&state, "norm")?.into_iter().unzip();
        let point = Interval::point;
        let last = self.last()?.shape;
        let (channels, shape) = (last.hidden, last.pooling(1));
        let (rows, columns) = (shape.height / shape.window, shape.width / shape.window);
        let (features, area) = (shape.pooled_len(), point((shape.window * shape.window) as f64));
        let class = |k: usize| {
            let weight = &weight[k * features..][..features];
            let entry = |i: usize| {
                let (pixel, c) = (i / channels, i % channels);
                let (row, column) = (pixel / shape.width / shape.window, pixel % shape.width / shape.window);
                if row >= rows || column >= columns {
                    return point(0.0);
                }
                point(weight[c * rows * columns + row * columns + column]) * factor[c] / area
            };
            // A pooled constant is the constant.
            let constant = (0..features)
                .map(|f| point(weight[f]) * shift[f / (rows * columns)])
                .fold(point(bias[k]), |sum, term| sum + term);
            ((0..shape.image_len()).map(entry).collect(), constant)
        };
        let (weights, offsets) = (0..self.spec.classes).map(class).unzip();
        Ok(Head { weights, offsets })
    }

    /// What is between a block and the one before it.
    pub(super) fn input(&mut self, block: usize) -> Result<Input> {
        let (state, prefix) = (self.state()?, block_prefix(block));
        let point = Interval::point;
        let intervals = |name: &str| -> Result<Vec<Interval>> {
            Ok(Self::array(&state, &format!("{prefix}injection0.{name}"))?.into_iter().map(point).collect())
        };
        let (mut weights, mut bias) = (intervals("weight")?, intervals("bias")?);
        let fan_in = weights.len() / bias.len();
        if self.blocks[block].injections[0].norm().is_some() {
            let folded = Self::folded_norm(&state, &format!("{prefix}injection0.norm"))?;
            for ((row, bias), (factor, shift)) in weights.chunks_exact_mut(fan_in).zip(&mut bias).zip(folded)
            {
                row.iter_mut().for_each(|w| *w = *w * factor);
                *bias = *bias * factor + shift;
            }
        }
        let row_norms = weights.chunks_exact(fan_in).map(length).collect();
        // sqrt(||U||_1 ||U||_inf), where a kernel counts with all its taps.
        let (taps, inputs) = if self.spec.pool.is_some() { (9, fan_in / 9) } else { (1, fan_in) };
        let mut columns = vec![point(0.0); inputs];
        let mut rows = vec![point(0.0); bias.len()];
        for (at, w) in weights.iter().enumerate() {
            let size = point(w.magnitude());
            rows[at / fan_in] = rows[at / fan_in] + size;
            columns[at % fan_in / taps] = columns[at % fan_in / taps] + size;
        }
        let most = |sums: &[Interval]| sums.iter().fold(0.0f64, |m, s| m.max(s.hi));
        let mut norm = (point(most(&rows)) * point(most(&columns))).sqrt().hi;
        if taps == 1 {
            norm = norm.min(length(&weights));
        }
        Ok(Input { weights, bias, row_norms, norm })
    }

    /// How far each computed injection of a block can be from that of the input `x(pixel, channel)`.
    pub(super) fn injection_error(
        &self,
        block: usize,
        input: &Input,
        x: impl Fn(usize, usize) -> f64,
        y: &[f64],
    ) -> Vec<f64> {
        let point = Interval::point;
        let BlockShape { height, width, channels: inputs, stride, pool, .. } = self.blocks[block].shape;
        let outputs = input.bias.len();
        let exact = |i: usize| {
            let (pixel, o) = (i / outputs, i % outputs);
            if pool.is_none() {
                // Channel after channel, as dense layers read images.
                let (pixels, len) = (height * width, height * width * inputs);
                let row = input.weights[o * len..][..len].iter().enumerate();
                return row.fold(input.bias[o], |sum, (at, &w)| sum + w * point(x(at % pixels, at / pixels)));
            }
            let mut sum = input.bias[o];
            let (row, column) = (pixel / (width / stride) * stride, pixel % (width / stride) * stride);
            for tap in 0..9 {
                let (row, column) = (row + tap / 3, column + tap % 3);
                // Rows and columns count from one outside the image.
                if (1..=height).contains(&row) && (1..=width).contains(&column) {
                    let at = (row - 1) * width + column - 1;
                    for c in 0..inputs {
                        sum = sum + input.weights[(o * inputs + c) * 9 + tap] * point(x(at, c));
                    }
                }
            }
            sum
        };
        let rectifies = self.injections(block).1;
        let rectified = |u: Interval| Interval::new(u.lo.max(0.0), u.hi.max(0.0));
        (0..y.len())
            .map(|i| if rectifies { rectified(exact(i)) } else { exact(i) })
            .zip(y)
            .map(|(exact, &y)| (exact - point(y)).magnitude())
            .collect()
    }
}

/// What is proved about a layer's present weights, if the certificate is one about that layer: the equations of two sets of weights may
/// be the same, so what a certificate says is looked up where the weights are.
pub(super) fn present<D: Backend>(
    layer: &mut Equilibrium<D>,
    certificate: &Certificate,
) -> Result<Option<Certificate>> {
    let same = certificate.scope == layer.scope() && certificate.map == layer.equation()?;
    let proven = same && certificate.verdict.is_proven();
    Ok(if proven { Some(layer.certificate()?.clone()) } else { None })
}

/// How far the solutions of a layer follow their injections, if the certificate is about that layer and says so.
pub(super) fn reach<D: Backend>(
    layer: &mut Equilibrium<D>,
    certificate: &Certificate,
) -> Result<Option<Reach>> {
    let Some(own) = present(layer, certificate)? else { return Ok(None) };
    let map = own.map;
    let Verdict::Proven { factor, metric, evidence, .. } = &own.verdict else { return Ok(None) };
    let outer = map.injection() == Injection::Outer;
    Ok(match (evidence, metric) {
        // T3: m ||dz|| <= ||dy||; outside the activation, z - y is the solution for W y.
        (Evidence::Splitting { weights, margin, lipschitz, .. }, _) => {
            let (m, norm) = (Interval::point(*margin), Interval::point(*lipschitz) + Interval::point(1.0));
            let one = Interval::point(1.0);
            let gain = if outer { one + norm / m } else { one / m };
            // The margin holds in the norm ||T x||_2.
            let (least, most) = extremes(weights);
            let spread = Interval::point(most) / Interval::point(least);
            Some(Reach::TwoNorm { gain: (gain * spread).hi })
        }
        (_, Metric::Thompson)
            if outer && map.normalisation().is_none() && !matches!(map.form(), Form::PowerRatio { .. }) =>
        {
            factor.map(|factor| Reach::Thompson { factor })
        }
        _ => None,
    })
}

impl Head {
    /// For every other class the weights and the offset of the margin.
    fn margins(&self, class: usize) -> impl Iterator<Item = (Vec<Interval>, Interval)> {
        (0..self.offsets.len()).filter(move |&k| k != class).map(move |k| {
            let weights = self.weights[class].iter().zip(&self.weights[k]).map(|(&t, &k)| t - k).collect();
            (weights, self.offsets[class] - self.offsets[k])
        })
    }

    /// Where states follow images by `gain` times `norm` at most.
    pub(super) fn two_norm_radius(&self, found: &Found<'_>, gain: f64, norm: f64) -> f64 {
        let Found { z, class, error, ref moved } = *found;
        let point = Interval::point;
        let mut least = f64::INFINITY;
        for (weights, offset) in self.margins(class) {
            let margin = weights.iter().zip(z).fold(offset, |sum, (&w, &z)| sum + w * point(z));
            let size = length(&weights);
            // The solution may be `error` away from z, and the margin with it.
            let reach = (point(margin.lo) - point(size) * point(error)) / point(size);
            least = least.min(reach.lo);
        }
        let radius = (point(least) / point(gain) - point(two_norm(moved))) / point(norm);
        radius.lo.max(0.0)
    }

    fn thompson_radius(&self, found: &Found<'_>, factor: f64, input: &Input) -> f64 {
        let Found { z, class, error, ref moved } = *found;
        let point = Interval::point;
        let mut least = f64::INFINITY;
        for (weights, offset) in self.margins(class) {
            // States are positive, so lower weights give a lower margin.
            let margin = Margin { weights: weights.iter().map(|w| w.lo).collect(), offset: offset.lo };
            least = least.min(margin.thompson_radius(z));
        }
        let reach = (point(least) - point(error)).lo.max(0.0);
        let share = point(1.0) - ((point(factor) - point(1.0)) * point(reach)).exp();
        let nearest = (-point(error)).exp();
        let radii: Vec<f64> = z
            .iter()
            .zip(moved)
            .map(|(&z, &moved)| (point(z) * nearest * share - point(moved)).lo.max(0.0))
            .collect();
        let norms: Vec<f64> = (0..z.len()).map(|i| input.row_norms[i % input.row_norms.len()]).collect();
        input_radius(&radii, &norms)
    }
}

pub(super) fn numbers<T: Real>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// Upper bound of the 2-norm.
pub(super) fn two_norm(x: &[f64]) -> f64 {
    length(&x.iter().map(|&x| Interval::point(x)).collect::<Vec<_>>())
}

/// The same of numbers that are known to lie in intervals.
fn length(x: &[Interval]) -> f64 {
    x.iter().fold(Interval::point(0.0), |sum, x| sum + x.square()).sqrt().hi
}
