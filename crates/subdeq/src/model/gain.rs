//! The gain of a network whose blocks are reflected, and what it proves about an image: rounded outward, from the stored weights and the
//! certificates of the layers.

use serde::{Deserialize, Serialize};
use subdeq_engine::{Backend, Real};
use subdeq_theory::bound::Upper;
use subdeq_theory::certificate::{Certificate, Evidence, Verdict};
use subdeq_theory::interval::Interval;
use subdeq_theory::norm::{convolution_norm, matrix_norm};
use subdeq_theory::round::gamma;

use super::block::{BlockShape, block_prefix};
use super::radius::present;
use super::{Classifier, NetworkCertificate};
use crate::Result;
use crate::parallel::in_parallel;

/// Gains (2-norms) of the parts of a network, one after the other, each rounded up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkGain {
    /// Those of the blocks.
    pub blocks: Vec<BlockGain>,
    /// That of the last layer.
    pub head: f64,
    /// Their product: logits move by at most so much per unit that the numbers move which the model reads.
    pub product: f64,
}

/// Gains of the parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockGain {
    /// `||U||_2`.
    pub injection: f64,
    /// From injections to the reflected states `2 m z - y`.
    pub layer: f64,
    /// Of the pooling behind it: one over the side of the window.
    pub pooling: f64,
}

impl BlockGain {
    fn product(&self) -> Upper {
        Upper::new(self.injection) * Upper::new(self.layer) * Upper::new(self.pooling)
    }
}

/// `U x + b` of a block, with what is known of it.
struct Injection {
    shape: BlockShape,
    weights: Vec<f64>,
    bias: Vec<f64>,
    /// 2-norms of the rows (of the kernels of each channel), rounded up.
    rows: Vec<f64>,
    gain: BlockGain,
    /// `2 m`.
    factor: f64,
}

/// The last layer.
struct Head {
    features: usize,
    weights: Vec<f64>,
    bias: Vec<f64>,
}

/// What was computed for the blocks of one image: injections and states.
type Computed<'a> = Vec<(&'a [f64], &'a [f64], f64)>;

impl<D: Backend> Classifier<D> {
    /// The gain of a network whose blocks are reflected; `None` for others, and where a certificate does not bound a layer's.
    ///
    /// # Errors
    /// A device that cannot be read.
    pub fn gain(&mut self, certificate: &NetworkCertificate) -> Result<Option<NetworkGain>> {
        let Some(injections) = self.reflected_injections(certificate)? else { return Ok(None) };
        let head = self.plain_head()?;
        let norm = matrix_norm(head.bias.len(), head.features, &head.weights);
        let blocks: Vec<BlockGain> = injections.iter().map(|injection| injection.gain).collect();
        let product = blocks.iter().fold(Upper::new(norm), |product, block| product * block.product()).get();
        Ok(Some(NetworkGain { blocks, head: norm, product }))
    }

    /// The radii of [`Classifier::network_radii`] for a network whose blocks are reflected.
    pub(super) fn reflected_radii(
        &mut self,
        x: &[D::Elem],
        certificate: &NetworkCertificate,
    ) -> Result<Vec<Option<f64>>> {
        let Some(injections) = self.reflected_injections(certificate)? else {
            return Ok(vec![None; x.len() / self.input_len()]);
        };
        let head = self.plain_head()?;
        let answers = self.answers(x)?;
        let count = answers.len();
        let x: Vec<Vec<f64>> =
            x.chunks_exact(self.input_len()).map(|x| self.in_block_order(&numbers(x))).collect();
        let mut computed = Vec::new();
        for (block, injection) in injections.iter().enumerate() {
            let len = count * injection.shape.state_len();
            let mut y = vec![D::Elem::ZERO; len];
            self.device.read(self.blocks[block].injected()?, 0, &mut y)?;
            let Some(layer) = self.equilibrium_of(block) else { return Ok(vec![None; count]) };
            let z = layer.read_states()?;
            let errors: Vec<f64> = layer
                .error_bounds(&y, &z)?
                .into_iter()
                .map(|bound| bound.map_or(f64::INFINITY, |bound| bound.value))
                .collect();
            computed.push((numbers(&y), numbers(&z), errors));
        }
        let gain = injections.iter().fold(Upper::new(1.0), |product, block| product * block.gain.product());
        let one = |sample: usize| {
            let of_blocks: Computed<'_> = computed
                .iter()
                .zip(&injections)
                .map(|((y, z, errors), injection)| {
                    let at = injection.shape.state_len();
                    (&y[sample * at..][..at], &z[sample * at..][..at], errors[sample])
                })
                .collect();
            let (features, error) = through(&injections, x[sample].clone(), &of_blocks);
            head.radius(&features, answers[sample].class(), error, gain.get())
        };
        Ok(in_parallel(0, &(0..count).collect::<Vec<_>>(), one))
    }

    /// An image in the order in which the first block reads it.
    fn in_block_order(&self, x: &[f64]) -> Vec<f64> {
        let (channels, pixels) = (self.spec.channels, self.spec.height * self.spec.width);
        if self.spec.pool.is_none() || channels == 1 {
            return x.to_vec();
        }
        (0..x.len()).map(|at| x[at % channels * pixels + at / channels]).collect()
    }

    /// The injections of a network whose blocks are reflected, and whose certificates bound their gains.
    fn reflected_injections(&mut self, certificate: &NetworkCertificate) -> Result<Option<Vec<Injection>>> {
        if certificate.layers().len() != self.block_count() {
            return Ok(None);
        }
        let state = self.state()?;
        let array = |name: String| Self::array(&state, &name);
        let mut all = Vec::new();
        for (block, certificate) in certificate.layers().iter().enumerate() {
            let Some(factor) = self.reflection(block) else { return Ok(None) };
            let Some(layer) = self.equilibrium_of(block) else { return Ok(None) };
            let Some(own) = present(layer, certificate)? else { return Ok(None) };
            let Some(layer) = reflected_gain(&own, factor) else { return Ok(None) };
            let (shape, prefix) = (self.blocks[block].shape, block_prefix(block));
            let weights = array(format!("{prefix}injection0.weight"))?;
            let bias = array(format!("{prefix}injection0.bias"))?;
            let fan_in = weights.len() / bias.len();
            let injection = match shape.pool {
                None => matrix_norm(bias.len(), fan_in, &weights),
                // Every s-th pixel of the whole image is no longer than all of them.
                Some(_) => {
                    convolution_norm([shape.hidden, shape.channels, 3], [shape.height, shape.width], &weights)
                }
            };
            let rows = weights.chunks_exact(fan_in).map(|row| two_norm(row).get()).collect();
            let pooling = Upper::new(1.0).over(shape.pool.unwrap_or(1) as f64).get();
            let gain = BlockGain { injection, layer, pooling };
            all.push(Injection { shape, weights, bias, rows, gain, factor });
        }
        Ok(Some(all))
    }

    fn plain_head(&mut self) -> Result<Head> {
        let state = self.state()?;
        let (weights, bias) = (Self::array(&state, "head.weight")?, Self::array(&state, "head.bias")?);
        Ok(Head { features: weights.len() / bias.len(), weights, bias })
    }
}

/// A bound of the gain from injections to `factor z - y`: `||f dz - dy||^2 = f^2 ||dz||^2 - 2 f <dz, dy> + ||dy||^2`, where `<dz, dy> >= m
/// ||dz||^2` and `m ||dz|| <= ||dy||`, with the margin `m` that is proved; 1 where `f <= 2 m`.
fn reflected_gain(certificate: &Certificate, factor: f64) -> Option<f64> {
    let Verdict::Proven { evidence: Evidence::Splitting { weights, margin, .. }, .. } = &certificate.verdict
    else {
        return None;
    };
    // The margin must hold in the 2-norm itself.
    if !weights.is_empty() {
        return None;
    }
    let (f, m) = (Interval::point(factor), Interval::point(*margin));
    let excess = (f * (f - Interval::point(2.0) * m) / m.square()).hi.max(0.0);
    Some((Interval::point(1.0) + Interval::point(excess)).sqrt().hi)
}

/// What the last layer reads, computed from the blocks' injections and states, and how far it can be from that of the exact network:
/// `e_k <= 2 m ||z - z*|| + gain (||y - U p - b|| + ||U|| e_(k-1))`, and what pooling makes of it.
fn through(injections: &[Injection], image: Vec<f64>, computed: &Computed<'_>) -> (Vec<f64>, f64) {
    let (mut p, mut error) = (image, Upper::ZERO);
    for (injection, &(y, z, solved)) in injections.iter().zip(computed) {
        let Injection { gain, factor, .. } = injection;
        let moved = Upper::new(injection.distance(&p, y)) + Upper::new(gain.injection) * error;
        let reflected: Vec<f64> = z.iter().zip(y).map(|(z, y)| factor * z - y).collect();
        let window = injection.shape.pool.unwrap_or(1);
        // Two roundings of a difference, and those of a mean.
        let rounded =
            (Upper::new(*factor) * two_norm(z) + two_norm(y)) * Upper::new(gamma(window * window + 8));
        let own = Upper::new(*factor) * Upper::new(solved) + Upper::new(gain.layer) * moved;
        error = Upper::new(gain.pooling) * (own + rounded);
        p = injection.pooled(&reflected);
    }
    (p, error.get())
}

impl Injection {
    /// A bound of `||y - (U x + b)||_2`.
    fn distance(&self, x: &[f64], y: &[f64]) -> f64 {
        let size = two_norm(x);
        let outputs = self.bias.len();
        let terms = self.weights.len() / outputs;
        let off: Vec<f64> = y
            .iter()
            .enumerate()
            .map(|(at, y)| {
                let o = at % outputs;
                let found = self.product(x, at / outputs, o) + self.bias[o];
                // |row| |x| bounds the sum of the absolute products.
                let rounded = Upper::new(gamma(terms + 8))
                    * (Upper::new(self.rows[o]) * size
                        + Upper::new(self.bias[o].abs())
                        + Upper::new(y.abs()));
                (Upper::new((found - y).abs()) + rounded).get()
            })
            .collect();
        two_norm(&off).get()
    }

    /// `(U x)` at a pixel of the states (the only one of a vector) and a unit.
    fn product(&self, x: &[f64], pixel: usize, o: usize) -> f64 {
        let BlockShape { height, width, channels, stride, pool, .. } = self.shape;
        if pool.is_none() {
            let row = &self.weights[o * x.len()..][..x.len()];
            return row.iter().zip(x).map(|(w, x)| w * x).sum();
        }
        let columns = width / stride;
        let (row, column) = (pixel / columns * stride, pixel % columns * stride);
        let mut sum = 0.0;
        for tap in 0..9 {
            let (row, column) = (row + tap / 3, column + tap % 3);
            // Rows and columns count from one outside the image.
            if (1..=height).contains(&row) && (1..=width).contains(&column) {
                let at = (row - 1) * width + column - 1;
                for c in 0..channels {
                    sum += self.weights[(o * channels + c) * 9 + tap] * x[at * channels + c];
                }
            }
        }
        sum
    }

    /// Average pooling, pixel after pixel.
    fn pooled(&self, state: &[f64]) -> Vec<f64> {
        let Some(window) = self.shape.pool else { return state.to_vec() };
        let ((height, width), channels) = (self.shape.sides(), self.shape.hidden);
        let (rows, columns) = (height / window, width / window);
        let cell = |at: usize| {
            let (row, column, c) = (at / channels / columns, at / channels % columns, at % channels);
            let pixels =
                (0..window * window).map(|k| (row * window + k / window, column * window + k % window));
            let sum: f64 = pixels.map(|(r, q)| state[(r * width + q) * channels + c]).sum();
            sum / (window * window) as f64
        };
        (0..rows * columns * channels).map(cell).collect()
    }
}

impl Head {
    /// How far an image may move where features follow it with this gain, lie within `error` of `features`, and the class is this one;
    /// 0 where it may not be.
    fn radius(&self, features: &[f64], class: usize, error: f64, gain: f64) -> Option<f64> {
        if !(error.is_finite() && gain.is_finite()) {
            return None;
        }
        let point = Interval::point;
        let row = |k: usize| &self.weights[k * self.features..][..self.features];
        let mut least = f64::INFINITY;
        for other in (0..self.bias.len()).filter(|&k| k != class) {
            let difference = |i: usize| point(row(class)[i]) - point(row(other)[i]);
            let offset = point(self.bias[class]) - point(self.bias[other]);
            let margin = (0..features.len()).fold(offset, |sum, i| sum + difference(i) * point(features[i]));
            let norm = (0..features.len()).fold(point(0.0), |sum, i| sum + difference(i).square()).sqrt().hi;
            least = least.min((point(margin.lo) / point(norm) - point(error)).lo);
        }
        Some((point(least) / point(gain)).lo.max(0.0))
    }
}

fn numbers<T: Real>(x: &[T]) -> Vec<f64> {
    x.iter().map(|x| x.to_f64()).collect()
}

/// Upper bound of the 2-norm.
fn two_norm(x: &[f64]) -> Upper {
    let square: f64 = x.iter().map(|x| x * x).sum();
    Upper::new(square.sqrt() * (1.0 + gamma(x.len() + 4)))
}
